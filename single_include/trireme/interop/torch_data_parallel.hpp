// Trireme 0.1.0: trireme/interop/torch_data_parallel.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b3ad59cb6a82452fd3f15df586256f22276ea48dc7805064875ecfca2add4791
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_data_parallel.hpp
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED
#define TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED

// ---- trireme/interop/detail/torch_module.hpp
#include <torch/torch.h>

#include <cstring>
#include <functional>

// What the two ways to use a torch::nn::Module share: its tensors by name, views of their memory, the events of
// autograd, and ranks that compare and copy what they hold.

namespace trireme::interop::detail {

/// The same element type in torch's words; Undefined where it has none.
[[nodiscard]] constexpr at::ScalarType torch_type(dtype type) noexcept {
  switch (type) {
    case dtype::f64:
      return at::kDouble;
    case dtype::f32:
      return at::kFloat;
    case dtype::bf16:
      return at::kBFloat16;
    case dtype::f16:
      return at::kHalf;
    case dtype::i64:
      return at::kLong;
    case dtype::i32:
      return at::kInt;
    case dtype::i8:
      return at::kChar;
    case dtype::u8:
      return at::kByte;
    case dtype::u64:
    case dtype::u32:
      break;
  }
  return at::ScalarType::Undefined;
}

/// Where torch has its tensors of a memory space, and in what order it works there. Those of CUDA are in
/// torch_cuda.hpp.
///
/// Requires  device     the kind of device whose tensors they are;
///           here()     the device of this thread;
///           on_stream  an object: while it lives, torch's work is queued where kernels of the space queue theirs;
///           in_order   the same for a function that users call: what torch was asked for before comes first, and what
///                      it is asked for afterwards comes last.
template <class Space>
struct torch_space;

template <>
struct torch_space<host> {
  static constexpr at::DeviceType device = at::kCPU;
  [[nodiscard]] static at::Device here() { return device; }
  struct on_stream {};
  struct in_order {};
};

/// A tensor of a module, under the first of its names: a tied one is listed once.
struct named_tensor {
  std::string name;
  torch::Tensor tensor;
};

/// What is asked of a module's tensors: row-major, or dense in any order of their dimensions (channels last, say).
enum class tensor_layouts { row_major, dense };

using named_tensors = torch::OrderedDict<std::string, torch::Tensor>;

// What lists tensors by name: torch's modules, and those of one that hide their type.
[[nodiscard]] inline named_tensors named_parameters_of(torch::nn::Module const& module) {
  return module.named_parameters();
}
[[nodiscard]] inline named_tensors named_buffers_of(torch::nn::Module const& module) { return module.named_buffers(); }
[[nodiscard]] inline named_tensors named_parameters_of(torch::nn::AnyModule const& module) {
  return module.ptr()->named_parameters();
}
[[nodiscard]] inline named_tensors named_buffers_of(torch::nn::AnyModule const& module) {
  return module.ptr()->named_buffers();
}
[[nodiscard]] inline named_tensors named_parameters_of(torch::jit::Module const& module) {
  named_tensors all;
  for (auto const& each : module.named_parameters()) all.insert(each.name, each.value);
  return all;
}
[[nodiscard]] inline named_tensors named_buffers_of(torch::jit::Module const& module) {
  named_tensors all;
  for (auto const& each : module.named_buffers()) all.insert(each.name, each.value);
  return all;
}
/// The same without names, which costs less.
[[nodiscard]] inline std::vector<torch::Tensor> plain_parameters_of(torch::nn::Module const& module) {
  return module.parameters();
}
[[nodiscard]] inline std::vector<torch::Tensor> plain_parameters_of(torch::nn::AnyModule const& module) {
  return module.ptr()->parameters();
}
[[nodiscard]] inline std::vector<torch::Tensor> plain_parameters_of(torch::jit::Module const& module) {
  std::vector<torch::Tensor> all;
  for (auto const& each : module.parameters()) all.push_back(each);
  return all;
}
/// The same address for all that hold one module.
[[nodiscard]] inline void const* identity_of(torch::nn::Module const& module) { return &module; }
[[nodiscard]] inline void const* identity_of(torch::nn::AnyModule const& module) { return module.ptr().get(); }
[[nodiscard]] inline void const* identity_of(torch::jit::Module const& module) { return module._ivalue().get(); }

/// The tables whose layers say that their gradients are rows.
[[nodiscard]] inline std::vector<torch::Tensor> tables_of_rows(torch::nn::Module const& module) {
  std::vector<torch::Tensor> all;
  auto const look = [&](torch::nn::Module const& each) {
    if (auto const* const table = each.as<torch::nn::EmbeddingImpl>())
      if (table->options.sparse()) all.push_back(table->weight);
    if (auto const* const bags = each.as<torch::nn::EmbeddingBagImpl>())
      if (bags->options.sparse()) all.push_back(bags->weight);
  };
  look(module);  // which need not be in a shared_ptr, as modules() would want it
  for (auto const& each : module.modules(false)) look(*each);
  return all;
}
[[nodiscard]] inline std::vector<torch::Tensor> tables_of_rows(torch::nn::AnyModule const& module) {
  return tables_of_rows(*module.ptr());
}
[[nodiscard]] inline std::vector<torch::Tensor> tables_of_rows(torch::jit::Module const&) { return {}; }

/// @param left_alone  patterns, separated by spaces: a tensor one of whose names they match is not listed.
template <class Space>
[[nodiscard]] std::vector<named_tensor> listed(named_tensors const& all, char const* kind,
                                               tensor_layouts layouts = tensor_layouts::row_major,
                                               std::string_view left_alone = {}) {
  auto const here = torch_space<Space>::here();
  std::vector<torch::Tensor> left;
  for (auto const& item : all)
    if (matches_any(left_alone, item.key())) left.push_back(item.value());
  std::vector<named_tensor> list;
  for (auto const& item : all) {
    auto const& tensor = item.value();
    if (!tensor.defined()) continue;  // a batch normalisation without running statistics has such buffers
    if (std::any_of(left.begin(), left.end(), [&](auto const& each) { return each.is_same(tensor); })) continue;
    if (std::any_of(list.begin(), list.end(), [&](auto const& each) { return each.tensor.is_same(tensor); })) continue;
    if (tensor.device().type() != here.type() || (here.has_index() && tensor.device() != here)) {
      throw config_error(text("trireme::interop: ", kind, " \"", item.key(), "\" is a tensor of ",
                              tensor.device().str(), ", but here ranks share tensors of ", here.str(),
                              "; move the module with to(), or see \"CUDA tensors\" in docs/torch.md"));
    }
    bool const fits =
        tensor.layout() == at::kStrided &&
        (layouts == tensor_layouts::dense ? tensor.is_non_overlapping_and_dense() : tensor.is_contiguous());
    if (!fits) {
      throw config_error(text("trireme::interop: ", kind, " \"", item.key(), "\" is not a dense ",
                              layouts == tensor_layouts::dense ? "" : "row-major ",
                              "tensor; other layouts are not supported (contiguous() makes it row-major)"));
    }
    list.push_back({item.key(), tensor});
  }
  return list;
}
template <class Space = host, class Module>
[[nodiscard]] std::vector<named_tensor> parameters_of(Module const& module,
                                                      tensor_layouts layouts = tensor_layouts::row_major,
                                                      std::string_view left_alone = {}) {
  return listed<Space>(named_parameters_of(module), "parameter", layouts, left_alone);
}
template <class Space = host, class Module>
[[nodiscard]] std::vector<named_tensor> buffers_of(Module const& module,
                                                   tensor_layouts layouts = tensor_layouts::row_major,
                                                   std::string_view left_alone = {}) {
  return listed<Space>(named_buffers_of(module), "buffer", layouts, left_alone);
}

[[nodiscard]] inline shape shape_of(torch::Tensor const& tensor) {
  if (tensor.dim() > shape::max_rank) return shape{tensor.numel()};
  shape extents;
  for (auto const extent : tensor.sizes()) extents.push_back(extent);
  return extents;
}
/// The extents of a dense tensor in the order in which its numbers lie; those of complex numbers are pairs.
[[nodiscard]] inline shape shape_in_memory(torch::Tensor const& tensor) {
  std::int64_t const pairs = tensor.is_complex() ? 2 : 1;
  if (tensor.dim() > shape::max_rank || tensor.dim() == 0) return shape{tensor.numel() * pairs};
  std::vector<std::int64_t> places(static_cast<std::size_t>(tensor.dim()));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i);
  if (!tensor.is_contiguous()) {
    std::stable_sort(places.begin(), places.end(),
                     [&](std::int64_t a, std::int64_t b) { return tensor.stride(a) > tensor.stride(b); });
  }
  shape extents;
  for (auto const place : places) extents.push_back(tensor.size(place) * (place == places.back() ? pairs : 1));
  return extents;
}
/// All numbers of a dense tensor in a row, as they lie in its memory.
[[nodiscard]] inline torch::Tensor row_of(torch::Tensor const& tensor) {
  auto const numbers = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
  return numbers.as_strided({numbers.numel()}, {1});
}
/// Whether the numbers of two dense tensors of one shape lie in the same order.
[[nodiscard]] inline bool lie_alike(torch::Tensor const& a, torch::Tensor const& b) {
  return a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous());
}
/// All of a dense tensor, in its own memory and in its order; complex numbers are pairs.
template <element T, class Space>
[[nodiscard]] tensor_view<T, Space> numbers_of(torch::Tensor const& tensor) {
  return {static_cast<T*>(tensor.data_ptr()), shape_in_memory(tensor)};
}
/// All of a contiguous tensor, in its own memory.
/// Errors  config_error if its elements are of another type.
template <element T, class Space = host>
[[nodiscard]] tensor_view<T, Space> view_of(torch::Tensor const& tensor) {
  if (tensor.scalar_type() != torch_type(dtype_of<T>)) {
    throw config_error(text("trireme::interop: a tensor", to_string(shape_of(tensor)), " of ",
                            c10::toString(tensor.scalar_type()), " where there was one of ", name_of(dtype_of<T>),
                            "; give parameters and gradients their type before ranks share them"));
  }
  return {static_cast<T*>(tensor.data_ptr()), shape_of(tensor)};
}
/// Errors  config_error if a parameter does not lie where it was shown to an exchange or a trainer.
inline void expect_at(torch::Tensor const& parameter, void const* memory, std::string const& name) {
  if (parameter.data_ptr() == memory) return;
  throw config_error(text("trireme::interop: parameter \"", name,
                          "\" has got other memory, as by torch::load, to() or set_data(); do that before ranks share "
                          "the module, or copy_() into it"));
}
template <class Space = host>
[[nodiscard]] tensor_view<std::byte, Space> bytes_of(torch::Tensor const& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), shape{static_cast<std::int64_t>(tensor.nbytes())}};
}

/// Calls visit(name, values) with a view of a buffer's own memory.
/// Errors  config_error if its elements are not float, double, int64 or int32.
template <class Visit>
void show_buffer(char const* who, named_tensor const& buffer, Visit&& visit) {
  auto const* const name = buffer.name.c_str();
  switch (buffer.tensor.scalar_type()) {
    case at::kFloat:
      return visit(name, view_of<float>(buffer.tensor));
    case at::kDouble:
      return visit(name, view_of<double>(buffer.tensor));
    case at::kLong:
      return visit(name, view_of<std::int64_t>(buffer.tensor));
    case at::kInt:
      return visit(name, view_of<std::int32_t>(buffer.tensor));
    default:
      throw config_error(text("trireme::interop::", who, ": buffer \"", name, "\" has elements of ",
                              c10::toString(buffer.tensor.scalar_type()),
                              "; supported are Float, Double, Long and Int"));
  }
}

/// Samples as a tensor, without a copy: valid as long as the samples are.
[[nodiscard]] inline torch::Tensor tensor_of(any_view<> const& view) {
  auto const type = torch_type(view.type);
  if (type == at::ScalarType::Undefined) {
    throw config_error(text("trireme::interop: samples of ", name_of(view.type),
                            " have no type in torch; give them one that it has, such as i64"));
  }
  std::vector<std::int64_t> const sizes(view.extents.extents().begin(), view.extents.extents().end());
  return torch::from_blob(const_cast<void*>(view.address), sizes, at::TensorOptions().dtype(type));
}

/// Tells when autograd has finished the gradient of a parameter: calls f(place of the parameter) after it has been
/// added to .grad(), in the thread that runs backward.
///
/// Threads  one owner; not moved: the hooks point at it. They end with it.
class gradient_hooks {
 public:
  using listener = std::function<void(std::size_t)>;

  gradient_hooks(std::vector<torch::Tensor> const& parameters, listener f) : f_(std::move(f)) {
    for (std::size_t place = 0; place < parameters.size(); ++place) held_.push_back(hooked(parameters[place], place));
  }
  gradient_hooks(gradient_hooks const&) = delete;
  gradient_hooks& operator=(gradient_hooks const&) = delete;
  ~gradient_hooks() {
    for (auto& each : held_) each.accumulator->del_post_hook(each.key);
  }
  /// Whether the parameter has another accumulator than was listened to, as torch::load and to() may give it one: what
  /// comes from now on is told again.
  bool renew(torch::Tensor const& parameter, std::size_t place) {
    auto& each = held_[place];
    if (torch::autograd::impl::grad_accumulator(parameter) == each.accumulator) return false;
    each.accumulator->del_post_hook(each.key);
    each = hooked(parameter, place);
    return true;
  }

 private:
  struct hook final : torch::autograd::FunctionPostHook {
    hook(listener const& all, std::size_t mine) : f(all), place(mine) {}
    torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs,
                                              torch::autograd::variable_list const&) override {
      f(place);
      return outputs;
    }
    listener const& f;
    std::size_t place;
  };
  // A parameter only remembers its accumulator, and forgets the hooks with it: whoever wants them holds it.
  struct held {
    decltype(torch::autograd::impl::grad_accumulator(torch::Tensor())) accumulator;
    std::uintptr_t key;
  };
  [[nodiscard]] held hooked(torch::Tensor const& parameter, std::size_t place) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    auto const key = accumulator->add_post_hook(std::make_unique<hook>(f_, place));
    return {std::move(accumulator), key};
  }

  listener f_;
  std::vector<held> held_;
};

/// Collective. The ranks hold the same tensors: names, shapes, types, how they lie, and what is trained.
/// Errors  config_error on every rank that names the first one that differs.
template <class Comm>
void expect_equal_tensors(std::vector<named_tensor> const& parameters, std::vector<named_tensor> const& buffers,
                          Comm& world) {
  std::vector<std::string> entries;
  auto const told = [](char const* kind, named_tensor const& each) {
    auto out = text(kind, " \"", each.name, "\" of ", c10::toString(each.tensor.scalar_type()),
                    to_string(shape_of(each.tensor)));
    if (each.tensor.is_contiguous()) return out;
    for (auto const stride : each.tensor.strides()) out += text(out.back() == ')' ? ", strides " : " ", stride);
    return out;
  };
  for (auto const& each : parameters)
    entries.push_back(told("parameter", each) + (each.tensor.requires_grad() ? "" : ", not trained"));
  for (auto const& each : buffers) entries.push_back(told("buffer", each));
  auto most = static_cast<std::int64_t>(entries.size());
  world.all_reduce(tensor_view<std::int64_t>(&most, shape{1}), reduction::max{});
  auto const size = static_cast<std::size_t>(world.size());
  auto const count = static_cast<std::size_t>(most);
  std::vector<std::uint64_t> all(size * count);
  auto const mine = static_cast<std::size_t>(world.rank()) * count;
  for (std::size_t i = 0; i < entries.size(); ++i) all[mine + i] = hash_name(entries[i]);
  world.all_gather(tensor_view<std::uint64_t>(all));
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t rank = 1; rank < size; ++rank) {
      if (all[rank * count + i] == all[i]) continue;
      throw config_error(text("trireme::interop: the module of rank ", rank,
                              " is not that of rank 0; the first "
                              "difference is number ",
                              i + 1, " of its tensors, which on this rank is ",
                              i < entries.size() ? entries[i] : std::string("missing")));
    }
  }
}

/// The buffers of a module, which ranks make equal: in one message, in memory of a device in one each.
template <class Space>
class shared_tensors {
 public:
  explicit shared_tensors(std::vector<named_tensor> all) : all_(std::move(all)) {}
  [[nodiscard]] bool empty() const noexcept { return bytes() == 0; }

  /// Collective. Every rank gets those of `root`.
  template <class Comm>
  void broadcast(Comm& world, int root) {
    if (empty() || world.size() == 1) return;
    if constexpr (!std::is_same_v<Space, host>) {
      for (auto const& each : all_) broadcast(each.tensor, world, root);
      return;
    }
    packed_.resize(bytes());
    for_each_part(packed_.data(), [](torch::Tensor const& tensor, std::byte* part) {
      std::memcpy(part, tensor.data_ptr(), tensor.nbytes());
    });
    world.broadcast(tensor_view<std::byte>(packed_), root);
    for_each_part(packed_.data(), [](torch::Tensor const& tensor, std::byte const* part) {
      std::memcpy(tensor.data_ptr(), part, tensor.nbytes());
    });
  }
  /// Collective. Floating-point ones become their mean over the ranks, formed in double; others those of `root`.
  template <class Comm>
  void mean(Comm& world, int root) {
    if (empty() || world.size() == 1) return;
    if constexpr (!std::is_same_v<Space, host>) {
      for (auto const& each : all_) mean(each.tensor, world, root);
      return;
    }
    std::vector<double> numbers;
    for (auto const& each : all_) {
      if (!each.tensor.is_floating_point()) continue;
      auto const wide = each.tensor.to(at::kDouble);
      numbers.insert(numbers.end(), wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel());
    }
    broadcast(world, root);
    if (numbers.empty()) return;
    world.all_reduce(tensor_view<double>(numbers), reduction::mean{});
    torch::NoGradGuard const guard;
    auto* from = numbers.data();
    for (auto const& each : all_) {
      if (!each.tensor.is_floating_point()) continue;
      each.tensor.copy_(
          torch::from_blob(from, each.tensor.sizes(), each.tensor.strides(), at::TensorOptions().dtype(at::kDouble)));
      from += each.tensor.numel();
    }
  }

 private:
  // Counted each time: a buffer may be resized between two steps, on all ranks alike.
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& each : all_) sum += each.tensor.nbytes();
    return sum;
  }
  template <class Comm>
  static void broadcast(torch::Tensor const& tensor, Comm& world, int root) {
    if (tensor.nbytes() > 0) world.broadcast(bytes_of<Space>(tensor), root);
  }
  template <class Comm>
  static void mean(torch::Tensor const& tensor, Comm& world, int root) {
    if (!tensor.is_floating_point()) return broadcast(tensor, world, root);
    torch::NoGradGuard const guard;
    auto const wide = tensor.to(at::kDouble, false, true);
    world.all_reduce(numbers_of<double, Space>(wide).flat(), reduction::mean{});
    tensor.copy_(wide);
  }
  template <class F>
  void for_each_part(std::byte* part, F&& f) {
    for (auto const& each : all_) {
      if (each.tensor.nbytes() == 0) continue;
      f(each.tensor, part);
      part += each.tensor.nbytes();
    }
  }

  std::vector<named_tensor> all_;
  std::vector<std::byte> packed_;
};

/// The module behind what users hold one by: the holders that TORCH_MODULE makes, or a shared_ptr.
template <class Module>
[[nodiscard]] std::shared_ptr<Module> module_of(std::shared_ptr<Module> const& module) {
  return module;
}
template <class Module>
[[nodiscard]] std::shared_ptr<Module> module_of(torch::nn::ModuleHolder<Module> const& module) {
  return module.ptr();
}

template <class T>
inline constexpr bool is_holder = requires(T const& held) {
  module_of(held);
};
template <class T>
inline constexpr bool is_unique_holder = false;
template <class T, class Delete>
inline constexpr bool is_unique_holder<std::unique_ptr<T, Delete>> = std::derived_from<T, torch::nn::Module>;
/// Holders that share what they hold, whatever its type.
template <class T>
concept shared_handle = std::same_as<T, torch::nn::AnyModule> || std::same_as<T, torch::jit::Module>;
/// A module, or what one is held by.
template <class T>
concept some_module =
    is_holder<T> || is_unique_holder<T> || shared_handle<T> || std::derived_from<T, torch::nn::Module>;

/// The module behind all of them. One that is given by its name, or by the name of a unique_ptr, is lent: it outlives
/// whoever gets it.
/// Errors  config_error for a holder without a module.
template <class T>
requires some_module<std::remove_cvref_t<T>>
[[nodiscard]] auto lent_module(T&& module) {
  using plain = std::remove_cvref_t<T>;
  auto const expect = [](bool has) {
    if (!has) throw config_error("trireme::interop: the holder has no module; make one before ranks share it");
  };
  if constexpr (is_unique_holder<plain>) {
    using held = typename plain::element_type;
    expect(module != nullptr);
    if constexpr (std::is_rvalue_reference_v<T&&> && !std::is_const_v<std::remove_reference_t<T>>)
      return std::shared_ptr<held>(std::move(module));
    else
      return std::shared_ptr<held>(std::shared_ptr<void>(), module.get());
  } else if constexpr (is_holder<plain>) {
    if constexpr (requires { module.is_empty(); })
      expect(!module.is_empty());
    else
      expect(module != nullptr);
    return module_of(module);
  } else if constexpr (shared_handle<plain>) {
    if constexpr (requires { module.is_empty(); }) expect(!module.is_empty());
    return std::make_shared<plain>(module);
  } else {
    using held = std::remove_reference_t<T>;
    return std::shared_ptr<held>(std::shared_ptr<void>(), &module);
  }
}

}  // namespace trireme::interop::detail

#endif  // TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED

// ---- trireme/interop/torch_data_parallel.hpp (goes on)
namespace trireme::interop {

/// Which buffers (running statistics of a batch normalisation, say) ranks have after a step: those of the first rank,
/// their mean over the ranks (integers: those of the first rank), or each rank its own.
enum class step_buffers { first_rank, mean, own };

/// How many backward() end in one step: one, during which gradients are exchanged; or any number, those of other losses
/// through this module among them. Then .grad() is what finish() finds it to be, and is exchanged in finish().
enum class step_backwards { one, any };

/// What join() does where this rank has no batch and others have: follow their steps, or raise an error on all ranks.
enum class early_end { follow, raise };

struct data_parallel_options {
  /// A step need not use every parameter. The .grad() of one that no rank has used stays as it was. This takes one more
  /// message a step, of one byte a parameter. If it is false, a parameter without a gradient is an error.
  bool unused_parameters = false;
  /// Every step of a rank uses the same parameters, equally often, as the first one has. So a parameter may get its
  /// gradient in several parts of a step (several backward(), or a checkpointed part that runs backward within
  /// backward), and its exchange starts after the last of them; which parameters are used is told once, not in every
  /// step; and a step that differs is an error. In the first step, which counts, nothing overlaps. Not with join().
  bool static_graph = false;
  step_buffers buffers = step_buffers::first_rank;
  /// .grad() of each parameter lies in the exchange's memory, so nothing is copied back, and where the loop clears
  /// gradients without releasing their memory, nothing is copied at all. While data_parallel lives, .grad() is then to
  /// be read through the parameter: another tensor that shares its memory is invalid afterwards. With parallel::data,
  /// without a compressor. On one rank, where nothing is copied anyway, .grad() stays where torch has put it.
  bool gradients_in_buckets = false;
  /// If set: backward is begun by backward(loss), with the loss times a scale that follows the steps (for autocast with
  /// float16; bfloat16 needs none). finish() divides by it, and the caller skips the update where it is not finite.
  /// Gradients are cleared in every step.
  std::optional<precision::fp16> loss_scale{};
  /// Steps between comparisons of the ranks' parameters, the first step's included: one all_reduce of two numbers, and
  /// a hash of this rank's copy. 0: never. So an optimizer.step() before finish() is an error in the first step. Not
  /// where ranks take steps alone (parallel::diloco).
  std::int64_t check_every = 100;
  /// any: several backward() before finish() add up, without no_sync(), and a loss may go through this module to
  /// others, as that of a generator through the discriminator, whose optimizer's zero_grad() comes before its own step.
  /// Nothing overlaps.
  step_backwards backwards = step_backwards::one;
  /// Parameters and buffers that each rank has for itself, by patterns of their names, separated by spaces (* stands
  /// for any letters): "queue head.*". They are neither compared nor sent, and may have other shapes on other ranks.
  std::string left_alone{};
};

namespace detail {

/// Collective. Every rank gets the tensors of `root`, which all have.
template <class Comm>
void broadcast_equal(std::vector<named_tensor> const& parameters, std::vector<named_tensor> const& buffers, Comm& world,
                     int root) {
  using space = typename space_of<Comm>::type;
  expect_equal_tensors(parameters, buffers, world);
  [[maybe_unused]] typename torch_space<space>::in_order const order;
  for (auto const& each : parameters) {
    if (each.tensor.nbytes() > 0) world.broadcast(bytes_of<space>(each.tensor), root);
  }
  shared_tensors<space>(buffers).broadcast(world, root);
}

}  // namespace detail

/// Collective. Gives every rank the parameters and buffers of `root`.
/// Errors  config_error on every rank if the modules differ in names, shapes, types, or what is trained.
template <detail::some_module Module, class Comm>
void broadcast(Module const& module, Comm& world, int root = 0) {
  using space = typename space_of<Comm>::type;
  auto const held = detail::lent_module(module);
  detail::broadcast_equal(detail::parameters_of<space>(*held, detail::tensor_layouts::dense),
                          detail::buffers_of<space>(*held, detail::tensor_layouts::dense), world, root);
}

namespace detail {

/// The patterns of .left_alone, as parallel::expect_patterns asks for them.
struct left_alone_patterns {
  std::string const& patterns;
  template <class F>
  void for_each_pattern(F&& f) const {
    f(name_pattern{.what = "interop::data_parallel: .left_alone",
                   .patterns = patterns,
                   .before = "nothing in the module matches "});
  }
};

}  // namespace detail

/// What data_parallel returns: a module whose gradients are averaged over the ranks of a world while backward runs.
///
/// A step   `loss = f(ddp->forward(x)); loss.backward(); ddp.finish(); optimizer.step();` Between two calls of finish()
///          there is one backward() (with .static_graph as many as in the first step); those of further micro-batches
///          come before it, under no_sync().
/// Shapes   what torch::nn::Module::named_parameters() lists and requires a gradient, each tensor once; dense in any
///          order of their dimensions (channels last), of one order on all ranks.
/// Types    gradients of float, bfloat16, half and complex float are exchanged as floats, whose mean is rounded to what
///          .grad() is; double ones, and tables of embeddings with .sparse(true), whose gradients stay sparse, in
///          messages of their own in finish(), for parallel::data.
/// Bytes    the buckets of the exchange, as large as the gradients; gradients are copied into them as they become
///          final, and back by finish(). The memory of .grad() stays torch's, unless .gradients_in_buckets is set.
/// Ranks    collective: construction, finish() (or join() in its place) and step(). Its calls travel in a duplicate of
///          the world, so backward passes of several such objects, and the caller's own calls in the world, may come in
///          another order on each rank; ends of steps come in one order.
/// Numerics sums in rank order (docs/communicators.md): the same bits on every rank, communicator and in every run.
/// Devices  of a world in CUDA memory (comm::nccl, comm::in_space<cuda>) the module is on this thread's device, and
///          torch_cuda.hpp is included: buckets are there, too, and finish() begins the exchange.
/// Threads  one owner; cannot be moved. Ranks that are threads have a module each.
/// Errors   config_error for a parameter without a gradient, a second gradient in one step, one that was frozen or not
///          there when the object was made; and for a module that several ranks share; numeric_error on all ranks where
///          their parameters differ; comm_error from the world. After an exception call abandon() on all ranks, or
///          destroy the object.
template <class Element, class Module, class Comm, class Exchange>
class data_parallel_module {
  using space = typename Exchange::space;
  using order = typename detail::torch_space<space>::in_order;
  // Autograd runs hooks for a device in a thread of the device, which all ranks of a process share: no exchange there.
  static constexpr bool hooks_exchange = std::is_same_v<space, host>;

 public:
  template <class... Policies>
  data_parallel_module(std::shared_ptr<Module> module, Comm& world, data_parallel_options const& options,
                       Policies const&... policies)
      : module_(std::move(module)),
        world_(world.duplicate()),
        options_(options),
        buffers_(expected_buffers(*module_, options_, world_)),
        trained_(equal_at_the_start(*module_, options_, world_)),
        exchange_(make_exchange(as_foreign(trained_, nothing_), world_, policies...)),
        hooks_(tensors_of(trained_), [this](std::size_t place) { on_gradient(place); }) {
    if (options_.static_graph && adds_up()) {
      throw config_error(
          "trireme::interop::data_parallel: .static_graph counts backward(), of which .backwards = any takes any "
          "number; leave one of them out");
    }
    if (options_.loss_scale) scale_.emplace(*options_.loss_scale);
    if (options_.gradients_in_buckets) use_buckets();
  }
  data_parallel_module(data_parallel_module const&) = delete;
  data_parallel_module& operator=(data_parallel_module const&) = delete;
  ~data_parallel_module() {
    for (auto& each : trained_) leave_bucket(each);
  }

  [[nodiscard]] Module* operator->() const noexcept { return module_.get(); }
  [[nodiscard]] Module& operator*() const noexcept { return *module_; }
  [[nodiscard]] std::shared_ptr<Module> const& module() const noexcept { return module_; }
  /// The exchange of gradients: its times(), record(timeline), memory().
  [[nodiscard]] Exchange& exchange() noexcept { return exchange_; }

  /// Starts autograd's backward pass. The same as loss.backward(), but with .loss_scale.
  void backward(torch::Tensor const& loss) {
    if (scale_) {
      is_scaled_ = true;
      (loss * scale_->scale()).backward();
    } else {
      loss.backward();
    }
  }
  /// What losses are multiplied by: 1 without .loss_scale.
  [[nodiscard]] double loss_scale() const noexcept { return scale_ ? scale_->scale() : 1; }

  /// Collective. Ends the step: afterwards .grad() of every parameter is the mean over the ranks, and buffers are
  /// shared.
  /// @returns the norm of that mean, and whether all gradients of all ranks are finite: if not, the caller decides to
  ///          skip the update. .votes is the number of ranks that had a batch.
  exchange_result finish() {
    [[maybe_unused]] order const in_order;
    static_assert(
        gives_back_everything,
        "trireme::interop::data_parallel: with a sharded optimizer's state, or parameters that are averaged now and "
        "then, finish() would not leave each rank the mean of all gradients; call step(optimizer) in its place");
    complete();
    auto const result = exchanged(one_batch + (some_undefined_ ? one_undefined : 0));
    static_cast<void>(exchange_.settle(result.finite, {result.norm, 1}));
    return settle(result);
  }
  /// Collective. Ends the step with an update by one of Trireme's optimizers. The exchange keeps its state (sharded
  /// with parallel::zero). Parameters and state stay as they are if a gradient was not finite on some rank.
  template <class Optimizer>
  exchange_result step(Optimizer const& optimizer) {
    static_assert(hooks_exchange,
                  "trireme::interop::data_parallel: in a device's memory steps end by finish() and an optimizer of "
                  "torch's");
    for (auto const& each : trained_) {
      detail::expect_at(each.parameter, each.memory, each.name);
      if (each.how != way::as_it_is) {
        throw config_error(text("trireme::interop::data_parallel: step(optimizer) updates parameters of ",
                                name_of(dtype_of<Element>), " with dense gradients, and \"", each.name, "\" is ",
                                each.how == way::rows ? "a table of .sparse(true)" : "of another type",
                                "; end steps by finish() and an optimizer of torch's"));
      }
    }
    complete();
    return settle(exchange_.step(optimizer, one_batch + (some_undefined_ ? one_undefined : 0)));
  }

  /// Collective. For a rank that has no batch left while others may have some: takes part in one of their steps, with
  /// gradients of zero. Afterwards .grad() is the same on all ranks (a mean over all of them, this one included), so
  /// `while (auto const done = ddp.join()) if (done->finite) optimizer.step();` keeps parameters and optimizer states
  /// equal. Every rank calls it when its batches are over, until it returns nullopt: no rank had a batch.
  ///
  /// @param end  early_end::raise: where others have a batch, it and their finish() throw config_error.
  std::optional<exchange_result> join(early_end end = early_end::follow) {
    static_assert(
        gives_back_everything,
        "trireme::interop::data_parallel: join() is for parallel::data; with other strategies give every rank as many "
        "batches");
    if (begun_ || (has_batch() && !adds_up()))
      throw config_error("trireme::interop::data_parallel: join() in a step that finish() has not ended");
    [[maybe_unused]] order const in_order;
    if (options_.static_graph) {
      throw config_error(
          "trireme::interop::data_parallel: join() with .static_graph, which a rank without a batch has not; leave it "
          "out, or give every rank as many batches");
    }
    if (exchange_.keeps_moments()) {
      throw config_error(
          "trireme::interop::data_parallel: join() after step(optimizer), whose updates this rank would not make; end "
          "steps by finish() and an optimizer of torch's, or give every rank as many batches");
    }
    forget();
    for (std::size_t place = 0; place < trained_.size(); ++place) {
      stand_in(place);
      auto& it = trained_[place];
      if (it.how == way::rows) it.gradient.reset();  // what is in the exchange it takes for zeros
      if (it.how == way::wide) it.gradient.zero_();
    }
    exchange_.begin({.micro_batches = 0});
    begun_ = true;
    auto const result = exchanged(end == early_end::raise ? one_raises : 0);
    // Where no rank had a batch compressors must not commit: it was not a step.
    static_cast<void>(exchange_.settle(result.finite && batches_of(result) > 0, {result.norm, 1}));
    auto const step = settle(result);
    return step.votes > 0 ? std::optional(step) : std::nullopt;
  }

  /// While it lives, gradients add up on this rank and are not exchanged: for all micro-batches of a step but the last.
  class quiet {
   public:
    explicit quiet(data_parallel_module& of) : of_(of), before_(std::exchange(of.quiet_, true)) {}
    quiet(quiet const&) = delete;
    quiet& operator=(quiet const&) = delete;
    ~quiet() { of_.quiet_ = before_; }

   private:
    data_parallel_module& of_;
    bool before_;
  };
  [[nodiscard]] quiet no_sync() { return quiet(*this); }

  /// Gives up the step that has begun, after an exception that all ranks have survived; call it on all of them. It does
  /// not clear .grad().
  void abandon() noexcept {
    exchange_.abandon();
    forget();
  }

 private:
  // What ranks with a batch have of a parameter in a step: nothing, a gradient of before, one of this step.
  struct use {
    static constexpr std::uint8_t no_gradient = 0, none = 1, some = 2;
  };
  // How a gradient travels: in the exchange, in the memory of .grad() or as a copy in another type; or in messages of
  // its own, as doubles, or as the rows that have one.
  enum class way : std::uint8_t { as_it_is, converted, wide, rows };
  // Three counts of ranks in the one number that they sum up: those that had a batch, that autograd has given an
  // undefined gradient, and that end in join(early_end::raise).
  static constexpr std::int64_t one_batch = 1, one_undefined = std::int64_t{1} << 20,
                                one_raises = std::int64_t{1} << 40;

  struct trained {
    std::string name;
    torch::Tensor parameter;
    void const* memory;  // of the parameter, as the exchange knows it
    way how = way::as_it_is;
    int nth = -1;                     // of the exchange; -1: it has messages of its own
    torch::Tensor values{};           // of a converted one: what the exchange is shown in its place
    torch::Tensor bucket{};           // with .gradients_in_buckets: where .grad() is to lie
    torch::Tensor gradient{};         // what is read and written in this step
    bool used = false;                // backward has added to it since the last step
    int events = 0;                   // how often, without no_sync()
    bool static_used = true;          // with .static_graph: by this rank, in each step
    int static_events = 0;            // with .static_graph: in each step; the last of them reports
    std::uint8_t of_any = use::some;  // the most that a rank has of it; with .static_graph in each step
    bool reported = false;
    bool stands_in = false;  // `gradient` is not .grad()
  };
  // Whether every rank has the whole mean after a step.
  static constexpr bool gives_back_everything = !Exchange::sharded && !Exchange::replicas_differ;

  static constexpr auto layouts = detail::tensor_layouts::dense;

  static std::vector<detail::named_tensor> expected_buffers(Module const& module, data_parallel_options const& options,
                                                            Comm& world) {
    if (!options.left_alone.empty()) {
      std::vector<std::string> names;
      for (auto const& each : detail::named_parameters_of(module)) names.push_back(each.key());
      for (auto const& each : detail::named_buffers_of(module)) names.push_back(each.key());
      parallel::expect_patterns(world, detail::left_alone_patterns{options.left_alone}, names);
    }
    return detail::buffers_of<space>(module, layouts, options.left_alone);
  }
  static std::vector<trained> equal_at_the_start(Module const& module, data_parallel_options const& options,
                                                 Comm& world) {
    auto const parameters = detail::parameters_of<space>(module, layouts, options.left_alone);
    auto const tables = detail::tables_of_rows(module);
    std::vector<trained> all;
    int uses = 0;
    for (auto const& each : parameters) {
      if (!each.tensor.requires_grad()) continue;
      auto it = trained{.name = each.name, .parameter = each.tensor, .memory = each.tensor.data_ptr()};
      it.how = way_of(each);
      if (gives_back_everything &&
          std::any_of(tables.begin(), tables.end(), [&](auto const& table) { return table.is_same(each.tensor); }))
        it.how = way::rows;
      if (it.how != way::as_it_is && !gives_back_everything) {
        throw config_error(text("trireme::interop::data_parallel: parameter \"", each.name, "\" has elements of ",
                                c10::toString(each.tensor.scalar_type()), ", but this strategy updates those of ",
                                name_of(dtype_of<Element>),
                                "; use parallel::data, data_parallel<double> for Double, or module->to(type)"));
      }
      if (it.how == way::as_it_is || it.how == way::converted) it.nth = uses++;
      all.push_back(std::move(it));
    }
    if (all.empty()) {
      throw config_error(
          "trireme::interop::data_parallel: the module has no parameter that requires a gradient; register them before "
          "ranks share it");
    }
    expect_own_module(module, world);
    detail::broadcast_equal(parameters, detail::buffers_of<space>(module, layouts, options.left_alone), world, 0);
    for (auto& each : all)
      if (each.how == way::converted) each.values = each.parameter.detach().to(type_of_copy(each.parameter));
    return all;
  }
  static way way_of(detail::named_tensor const& each) {
    constexpr bool in_double = std::is_same_v<Element, double>;
    switch (each.tensor.scalar_type()) {
      case at::kFloat:
      case at::kComplexFloat:
        return in_double ? way::converted : way::as_it_is;
      case at::kDouble:
      case at::kComplexDouble:
        return in_double ? way::as_it_is : way::wide;
      case at::kBFloat16:
      case at::kHalf:
        return way::converted;
      default:
        throw config_error(text("trireme::interop::data_parallel: parameter \"", each.name, "\" has elements of ",
                                c10::toString(each.tensor.scalar_type()),
                                "; supported are Float, Double, BFloat16, Half, ComplexFloat and ComplexDouble"));
    }
  }
  static at::ScalarType type_of_copy(torch::Tensor const& parameter) {
    if (parameter.is_complex()) return std::is_same_v<Element, double> ? at::kComplexDouble : at::kComplexFloat;
    return detail::torch_type(dtype_of<Element>);
  }
  // Ranks that are threads may have been given one object.
  static void expect_own_module(Module const& module, Comm& world) {
    static std::uint64_t const process = (std::uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
    auto const size = static_cast<std::size_t>(world.size());
    std::vector<std::uint64_t> all(size);
    auto const mine = process ^ reinterpret_cast<std::uintptr_t>(detail::identity_of(module));
    all[static_cast<std::size_t>(world.rank())] = mine;
    world.all_gather(tensor_view<std::uint64_t>(all));
    for (std::size_t rank = 0; rank < size; ++rank) {
      auto const other = std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank), all[rank]);
      if (other == all.begin() + static_cast<std::ptrdiff_t>(rank)) continue;
      throw config_error(text("trireme::interop::data_parallel: ranks ", other - all.begin(), " and ", rank,
                              " have one module between them; make a module in each rank, within launch()"));
    }
  }
  // @param nothing  stands in an exchange that would have no parameter.
  static std::vector<foreign_parameter<Element, space>> as_foreign(std::vector<trained> const& all,
                                                                   torch::Tensor& nothing) {
    std::vector<foreign_parameter<Element, space>> list;
    for (auto const& each : all) {
      if (each.nth < 0) continue;
      auto const values = view_of(each.values.defined() ? each.values : each.parameter);
      list.push_back({each.name, values, values});  // no gradients yet: gradient_at() says in each step where they are
    }
    if (!list.empty()) return list;
    auto const type = detail::torch_type(dtype_of<Element>);
    nothing = torch::zeros({1}, at::TensorOptions().dtype(type).device(detail::torch_space<space>::here()));
    list.push_back({"nothing", view_of(nothing), view_of(nothing)});
    return list;
  }
  [[nodiscard]] static tensor_view<Element, space> view_of(torch::Tensor const& tensor) {
    return detail::numbers_of<Element, space>(tensor);
  }
  static std::vector<torch::Tensor> tensors_of(std::vector<trained> const& all) {
    std::vector<torch::Tensor> list;
    for (auto const& each : all) list.push_back(each.parameter);
    return list;
  }

  [[nodiscard]] bool adds_up() const noexcept { return options_.backwards == step_backwards::any; }
  void on_gradient(std::size_t place) {
    auto& it = trained_[place];
    if (adds_up()) {  // complete() takes it
      it.used = true;
      ++it.events;
      return;
    }
    if (it.reported || (!hooks_exchange && !options_.static_graph && it.events > 0)) {
      throw config_error(text("trireme::interop::data_parallel: parameter \"", it.name,
                              "\" got a second gradient in one step, of another backward() than the first; finish() is "
                              "missing between two steps, or no_sync() around all backward() of a step but the last; "
                              "where several losses add up, or one goes through this module to another as in a GAN, "
                              "say {.backwards = interop::step_backwards::any}"));
    }
    expect_scaled();
    if (is_counted_ && !it.static_used) {
      if (!std::as_const(it.parameter).grad().defined()) return;
      expect_as_first(place, "got a gradient");
    }
    it.used = true;
    if (quiet_) return;
    ++it.events;
    if (!hooks_exchange) return;  // complete() takes it
    if (!options_.static_graph || (is_counted_ && it.events == it.static_events)) take(place);
  }
  void expect_scaled() const {
    if (!scale_ || is_scaled_) return;
    throw config_error(
        "trireme::interop::data_parallel: loss.backward() with .loss_scale, of which nobody has scaled the loss; call "
        "ddp.backward(loss), which does");
  }
  // With .static_graph.
  [[noreturn]] void expect_as_first(std::size_t place, char const* what) const {
    throw config_error(text("trireme::interop::data_parallel: parameter \"", trained_[place].name, "\" ", what,
                            " in this step, unlike in the first one; .static_graph promises equal steps, so leave it "
                            "out, and say {.unused_parameters = true} if some are not used"));
  }
  // This rank's gradient is .grad().
  void take(std::size_t place) {
    auto& it = trained_[place];
    auto& gradient = it.parameter.mutable_grad();
    if (!gradient.defined()) {  // autograd has reported an undefined one
      it.used = false;
      some_undefined_ = true;
      stand_in(place);
      return report(place);
    }
    torch::NoGradGuard const guard;
    if (it.how != way::rows) {
      if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
      if (!detail::lie_alike(gradient, it.parameter)) gradient = torch::empty_like(it.parameter).copy_(gradient);
    }
    it.gradient = it.how == way::converted ? gradient.detach().to(type_of_copy(it.parameter)) : gradient;
    report(place);
    if (!it.bucket.defined()) return;
    gradient = it.gradient = it.bucket;  // ready() has copied it there
    exchange_.gradient_at(it.nth, view_of(it.bucket));
  }
  void report(std::size_t place) {
    auto& it = trained_[place];
    if (!begun_) {
      static constexpr std::int64_t only[] = {0};
      exchange_.begin({.places = only, .all_reported = true});
      if (scale_) exchange_.weight(1 / (scale_->scale() * world_.size()));
      begun_ = true;
      if (nothing_.defined()) exchange_.ready(0);
      if (is_counted_) report_never_used(place);
    }
    it.reported = true;
    if (it.nth < 0) return;  // sum_apart() sends it
    exchange_.gradient_at(it.nth, view_of(it.gradient));
    exchange_.ready(it.nth);
  }
  // Buckets need not wait for them.
  void report_never_used(std::size_t but) {
    for (std::size_t place = trained_.size(); place-- > 0;) {
      if (trained_[place].static_used || place == but) continue;
      stand_in(place);
      report(place);
    }
  }
  void use_buckets() {
    if constexpr (!Exchange::has_gradient_memory) {
      throw config_error(
          "trireme::interop::data_parallel: .gradients_in_buckets needs the whole mean of all gradients on each rank; "
          "use parallel::data and no compressor, or leave it out");
    }
    if (world_.size() == 1) return;
    for (std::size_t place = 0; place < trained_.size(); ++place) {
      auto& it = trained_[place];
      if (it.how != way::as_it_is) continue;
      auto const memory = exchange_.gradient_memory(it.nth);
      if (memory.empty()) continue;  // a tensor without elements
      it.bucket = torch::from_blob(memory.address(), it.parameter.sizes(), it.parameter.strides(),
                                   it.parameter.options().requires_grad(false));
    }
  }
  // .grad() gets memory of its own again.
  static void leave_bucket(trained& it) {
    if (!it.bucket.defined()) return;
    auto& own = it.parameter.mutable_grad();
    if (own.defined() && own.is_alias_of(it.bucket)) own = own.detach().clone();
  }
  // For a parameter that this rank has not used: a gradient apart from .grad(), with a copy of its values, or zeros.
  void stand_in(std::size_t place) {
    auto& it = trained_[place];
    leave_bucket(it);
    torch::NoGradGuard const guard;
    auto const& own = std::as_const(it.parameter).grad();
    it.stands_in = true;
    if (it.how == way::rows) {
      it.gradient = own.defined() ? own.detach() : torch::Tensor();
      return;
    }
    auto const type = it.how == way::converted ? type_of_copy(it.parameter) : it.parameter.scalar_type();
    it.gradient = torch::zeros_like(it.parameter, it.parameter.options().dtype(type).requires_grad(false));
    if (own.defined()) it.gradient.copy_(own.layout() == at::kStrided ? own : own.to_dense());
    if (it.nth >= 0) exchange_.gradient_at(it.nth, view_of(it.gradient));
  }
  [[nodiscard]] bool has_batch() const {
    return std::any_of(trained_.begin(), trained_.end(), [](auto const& each) { return each.used || each.reported; });
  }
  // Reports the gradients that backward has not reported.
  void complete() {
    follow();
    if (!has_batch()) {
      throw config_error(
          "trireme::interop::data_parallel: finish() without a backward() since the last one; a rank without a batch "
          "calls join()");
    }
    if (adds_up()) expect_scaled();
    std::size_t missing = 0;
    std::string first;
    for (std::size_t place = trained_.size(); place-- > 0;) {
      auto const& it = trained_[place];
      if (it.reported) continue;
      if (is_counted_ && (it.used != it.static_used || it.events != it.static_events))
        expect_as_first(place, "got too few gradients");
      if (it.used) {  // under no_sync() only, in the first step of a static graph, or in a device's memory
        take(place);
      } else if (options_.unused_parameters || options_.static_graph) {
        stand_in(place);
        report(place);
      } else {
        ++missing;
        first = it.name;
      }
    }
    if (missing == 0) return;
    throw config_error(text("trireme::interop::data_parallel: parameter \"", first, "\"",
                            missing > 1 ? text(" and ", missing - 1, " more") : std::string(),
                            " got no gradient in this step; if a step need not use all parameters, say "
                            "{.unused_parameters = true}, and requires_grad_(false) of what is never trained"));
  }

  // What has become of the module since it was wrapped, or since the last step. Gradients of a parameter that has got
  // another accumulator were not told, and are in .grad() alone.
  void follow() {
    for (std::size_t place = 0; place < trained_.size(); ++place) {
      auto& it = trained_[place];
      if (!it.parameter.requires_grad()) continue;
      if (hooks_.renew(it.parameter, place) && std::as_const(it.parameter).grad().defined()) it.used = true;
    }
    std::size_t place = 0;
    for (auto const& each : detail::plain_parameters_of(*module_)) {
      if (!each.requires_grad()) continue;
      if (place < trained_.size() && trained_[place].parameter.is_same(each)) {
        ++place;
      } else if (std::none_of(trained_.begin(), trained_.end(),
                              [&](auto const& known) { return known.parameter.is_same(each); })) {
        bool left = false;
        std::string name;
        for (auto const& named : detail::named_parameters_of(*module_)) {
          if (!named.value().is_same(each)) continue;
          left = left || matches_any(options_.left_alone, named.key());
          if (name.empty()) name = named.key();
        }
        if (!left) not_known(name);
      }
    }
  }
  [[noreturn]] static void not_known(std::string const& name) {
    throw config_error(text("trireme::interop::data_parallel: parameter \"", name,
                            "\" requires a gradient, and did not when ranks began to share the module, or has come "
                            "since: no rank would see the others' gradients of it; wrap the module anew after such a "
                            "change, on all ranks"));
  }

  // Collective. The sums of all gradients, and what ranks tell each other in `wishes`.
  exchange_result exchanged(std::int64_t wishes) {
    vote_.clear();
    vote_.wish(wishes);
    exchange_.finish(vote_);
    if constexpr (gives_back_everything) sum_apart();
    return exchange_.count(vote_);
  }
  [[nodiscard]] static std::int64_t batches_of(exchange_result const& result) { return result.votes % one_undefined; }

  // Collective. What does not travel in the exchange: the rows of sparse gradients, and doubles beside floats.
  void sum_apart() {
    torch::NoGradGuard const guard;
    double const weight = 1 / ((scale_ ? scale_->scale() : 1) * world_.size());
    std::vector<torch::Tensor> rows;
    std::vector<trained*> tables, wide;
    for (auto& each : trained_) {
      if (each.how == way::rows) tables.push_back(&each);
      if (each.how == way::wide && each.gradient.numel() > 0) wide.push_back(&each);
    }
    for (auto* each : wide) rows.push_back(detail::row_of(each->gradient));
    if (!rows.empty()) {
      auto const all = torch::cat(rows).mul_(weight);
      world_.all_reduce(detail::numbers_of<double, space>(all));
      add_squares(all);
      std::int64_t from = 0;
      for (auto& row : rows) {
        row.copy_(all.slice(0, from, from + row.numel()));
        from += row.numel();
      }
    }
    if (!tables.empty()) sum_tables(tables, weight);
  }
  void sum_tables(std::vector<trained*> const& tables, double weight) {
    constexpr std::int64_t dense = -1;
    auto const ranks = static_cast<std::size_t>(world_.size());
    std::vector<std::int64_t> counts(ranks * tables.size(), 0);  // of rows; by rank, and by table
    for (std::size_t i = 0; i < tables.size(); ++i) {
      auto& own = tables[i]->gradient;
      auto& mine = counts[static_cast<std::size_t>(world_.rank()) * tables.size() + i];
      if (own.defined() && own.is_sparse())
        own = own.coalesce(), mine = own._nnz();
      else if (own.defined())
        mine = dense;
    }
    world_.all_gather(tensor_view<std::int64_t>(counts));
    for (std::size_t i = 0; i < tables.size(); ++i) {
      auto& it = *tables[i];
      std::int64_t most = 0;
      bool any_dense = false;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        auto const count = counts[rank * tables.size() + i];
        any_dense = any_dense || count == dense;
        most = std::max(most, count);
      }
      // Every rank sends as many rows as the one with the most has.
      if (any_dense || most * world_.size() > it.parameter.size(0)) {
        auto const whole =
            it.gradient.defined()
                ? it.gradient.to_dense().to(at::kDouble).mul_(weight)
                : torch::zeros(it.parameter.sizes(), it.parameter.options().dtype(at::kDouble).requires_grad(false));
        if (whole.numel() > 0) world_.all_reduce(detail::numbers_of<double, space>(whole));
        add_squares(whole);
        it.gradient = whole.to(it.parameter.scalar_type());
        if (!any_dense) it.gradient = it.gradient.to_sparse(1);
      } else {
        it.gradient = rows_of_all(it, counts, i, tables.size(), most, weight);
        add_squares(it.gradient._values().to(at::kDouble));
      }
    }
  }
  torch::Tensor rows_of_all(trained const& it, std::vector<std::int64_t> const& counts, std::size_t table,
                            std::size_t tables, std::int64_t most, double weight) {
    auto const options = it.parameter.options().requires_grad(false);
    auto extents = it.parameter.sizes().vec();
    extents[0] = most;
    extents.insert(extents.begin(), world_.size());
    auto places = torch::zeros({world_.size(), most}, options.dtype(at::kLong));
    auto values = torch::zeros(extents, options);
    if (most > 0) {
      if (it.gradient.defined()) {
        auto const here = it.gradient._nnz();
        places[world_.rank()].slice(0, 0, here).copy_(it.gradient._indices()[0]);
        values[world_.rank()].slice(0, 0, here).copy_(it.gradient._values());
      }
      world_.all_gather(detail::bytes_of<space>(places));
      world_.all_gather(detail::bytes_of<space>(values));
    }
    std::vector<torch::Tensor> all_places, all_values;
    for (int rank = 0; rank < world_.size(); ++rank) {
      auto const here = counts[static_cast<std::size_t>(rank) * tables + table];
      all_places.push_back(places[rank].slice(0, 0, here));
      all_values.push_back(values[rank].slice(0, 0, here));
    }
    return torch::sparse_coo_tensor(torch::cat(all_places).unsqueeze(0), torch::cat(all_values).mul_(weight),
                                    it.parameter.sizes(), options.layout(at::kSparse))
        .coalesce();
  }
  // All ranks have the same sum, and one of them answers for it.
  void add_squares(torch::Tensor const& sum) {
    if (world_.rank() != 0 || sum.numel() == 0) return;
    auto const row = detail::row_of(sum.contiguous());
    ops::on<space>::sum_of_squares(
        tensor_view<double const, space>(static_cast<double const*>(row.data_ptr()), shape{row.numel()}),
        vote_.squares());
  }

  exchange_result settle(exchange_result result) {
    auto const undefined = result.votes / one_undefined % one_undefined, raises = result.votes / one_raises;
    result.votes = batches_of(result);
    if (result.votes > 0) {
      if (scale_) static_cast<void>(scale_->decide(result.finite));
      give_back(result.votes == world_.size(), undefined > 0);
      if (options_.static_graph) count();
      share_buffers(has_batch(), result.votes == world_.size());
    }
    bool const joined = !has_batch();
    forget();
    if (raises > 0 && result.votes > 0) refuse_early_end(joined);
    if (options_.check_every > 0 && ends_++ % options_.check_every == 0) compare();
    return result;
  }
  // Collective.
  [[noreturn]] void refuse_early_end(bool joined) {
    std::int64_t first = joined ? world_.rank() : world_.size();
    world_.all_reduce(tensor_view<std::int64_t>(&first, shape{1}), reduction::min{});
    throw config_error(text("trireme::interop::data_parallel: rank ", first,
                            " has no batch left while others have, and has called join(early_end::raise); give every "
                            "rank as many batches, or let it follow the others by join()"));
  }
  // Collective. The numbers where they lie now: a module may have been converted, and back.
  void compare() {
    if constexpr (!Exchange::replicas_differ) {
      if (world_.size() == 1) return;
      std::vector<state_piece> now;
      for (auto const& each : trained_) now.push_back(piece_of(each));
      exchange_.expect_equal_copies(
          {"trireme::interop::data_parallel",
           "call optimizer.step() after finish(): optimizer.step() before finish() uses gradients of one rank alone; "
           "where ranks have changed parameters otherwise, interop::broadcast(module, world) makes them equal"},
          now);
    }
  }
  static state_piece piece_of(trained const& each) {
    auto const piece = [&]<class T>(std::type_identity<T>) {
      auto const values = detail::numbers_of<T, space>(each.parameter);
      return state_piece(each.name, parameter_info{.name = each.name, .extents = values.extents()}, 0, values);
    };
    switch (each.parameter.scalar_type()) {
      case at::kDouble:
      case at::kComplexDouble:
        return piece(std::type_identity<double>{});
      case at::kBFloat16:
        return piece(std::type_identity<bfloat16>{});
      case at::kHalf:
        return piece(std::type_identity<float16>{});
      default:
        return piece(std::type_identity<float>{});
    }
  }
  // The first step of a static graph says what the others are.
  void count() {
    if (std::exchange(is_counted_, true)) return;
    for (auto& it : trained_) it.static_used = it.used, it.static_events = it.events;
  }
  // Makes .grad() the mean, also where something stood in for a gradient, unless no rank has used that parameter: then
  // ranks with a batch keep what they have, and one without takes that over, so that optimizers do the same everywhere.
  void give_back(bool all_had_one, bool some_undefined) {
    if ((!is_counted_ && (options_.unused_parameters || options_.static_graph)) || some_undefined) {
      std::vector<std::uint8_t> uses(trained_.size(), 0);
      bool const own = has_batch();
      std::transform(trained_.begin(), trained_.end(), uses.begin(), [&](auto const& each) {
        if (each.used) return use::some;
        return own && std::as_const(each.parameter).grad().defined() ? use::none : use::no_gradient;
      });
      world_.all_reduce(tensor_view<std::uint8_t>(uses), reduction::max{});
      for (std::size_t place = 0; place < uses.size(); ++place) trained_[place].of_any = uses[place];
    } else if (!options_.static_graph) {
      for (auto& each : trained_) each.of_any = use::some;
    }
    torch::NoGradGuard const guard;
    for (auto& it : trained_) {
      auto& own = it.parameter.mutable_grad();
      if (it.stands_in && it.of_any != use::some) {
        if (!all_had_one && it.of_any == use::no_gradient) own.reset();
        if (!all_had_one && it.of_any == use::none) put(it, own);
      } else if (it.stands_in || it.how == way::converted) {
        put(it, own);
      } else {
        own = it.gradient;  // the same tensor, unless the caller has put another one there
      }
    }
  }
  static void put(trained const& it, torch::Tensor& own) {
    if (it.how == way::rows || (!own.defined() && it.how != way::converted)) {
      own = it.gradient;
    } else if (!own.defined()) {
      own = it.gradient.to(it.parameter.scalar_type());
    } else {
      own.copy_(it.gradient);
    }
  }
  void share_buffers(bool had_batch, bool all_had_one) {
    if (options_.buffers == step_buffers::own || buffers_.empty()) return;
    std::int64_t root = had_batch ? world_.rank() : world_.size();
    if (all_had_one) {
      root = 0;
    } else {  // the first rank that had a batch
      world_.all_reduce(tensor_view<std::int64_t>(&root, shape{1}), reduction::min{});
    }
    if (options_.buffers == step_buffers::mean) {
      buffers_.mean(world_, static_cast<int>(root));
    } else {
      buffers_.broadcast(world_, static_cast<int>(root));
    }
  }
  void forget() noexcept {
    for (auto& each : trained_) {
      each.gradient = torch::Tensor();
      each.used = each.reported = each.stands_in = false;
      each.events = 0;
    }
    begun_ = is_scaled_ = some_undefined_ = false;
  }

  std::shared_ptr<Module> module_;
  Comm world_;  // of its own: ranks may reach several modules' gradients in different orders
  data_parallel_options options_;
  detail::shared_tensors<space> buffers_;
  std::vector<trained> trained_;
  torch::Tensor nothing_{};
  Exchange exchange_;
  std::optional<precision::fp16::instance> scale_{};
  parallel::vote vote_;
  std::int64_t ends_ = 0;        // of steps
  bool some_undefined_ = false;  // a gradient of this step
  bool begun_ = false;
  bool is_scaled_ = false;  // with .loss_scale: this step's losses are
  bool quiet_ = false;
  bool is_counted_ = false;       // with .static_graph: the first step has been
  detail::gradient_hooks hooks_;  // last, so that hooks end before what they use
};

namespace detail {

/// What data_parallel is called with by mistake.
enum class data_parallel_slip : std::uint8_t {
  none,
  element,
  swapped,
  module,
  pointer,
  temporary_module,
  world,
  temporary_world,
  constant_world
};

template <class Element, class Module, class Comm>
[[nodiscard]] consteval data_parallel_slip slip_of_data_parallel() {
  using plain = std::remove_cvref_t<Module>;
  using world = std::remove_cvref_t<Comm>;
  using slip = data_parallel_slip;
  if (!std::is_same_v<Element, float> && !std::is_same_v<Element, double>) return slip::element;
  if (has_rank<plain> && has_size<plain> && !some_module<plain>) return slip::swapped;
  if (std::is_pointer_v<plain>) return slip::pointer;
  if (!some_module<plain>) return slip::module;
  if (std::derived_from<plain, torch::nn::Module> && !std::is_lvalue_reference_v<Module>) return slip::temporary_module;
  if (!has_rank<world> || !has_size<world>) return slip::world;
  if (!std::is_lvalue_reference_v<Comm>) return slip::temporary_world;
  if (std::is_const_v<std::remove_reference_t<Comm>>) return slip::constant_world;
  return slip::none;
}
template <data_parallel_slip Slip>
struct check_data_parallel {
  using slip = data_parallel_slip;
  static_assert(Slip != slip::element,
                "trireme::interop::data_parallel: gradients are exchanged as float or double, whatever the parameters "
                "are: leave the type out, or say data_parallel<double>");
  static_assert(
      Slip != slip::swapped,
      "trireme::interop::data_parallel: the module comes first, and then the world: data_parallel(net, world)");
  static_assert(
      Slip != slip::module,
      "trireme::interop::data_parallel: the first argument is a module: one derived from torch::nn::Module, a "
      "holder, a shared_ptr or unique_ptr of one, an AnyModule or a torch::jit::Module");
  static_assert(Slip != slip::pointer,
                "trireme::interop::data_parallel: the module is given as a pointer: write data_parallel(*net, world); "
                "the module outlives what data_parallel returns");
  static_assert(
      Slip != slip::temporary_module,
      "trireme::interop::data_parallel: the module is a temporary, which ends before it is trained: keep it in "
      "a variable, or make it by std::make_shared");
  static_assert(Slip != slip::world,
                "trireme::interop::data_parallel: the second argument is a world: call launch(comm::threads{...}, "
                "[](auto& world) { ... }) and pass the world that the body gets");
  static_assert(Slip != slip::temporary_world,
                "trireme::interop::data_parallel: the world is a temporary: keep it in a variable, and pass that");
  static_assert(Slip != slip::constant_world,
                "trireme::interop::data_parallel: the world is const, but its calls are not: take it as [](auto& "
                "world)");
};

/// What data_parallel returns after its one sentence, so that no line of the loop adds another error.
struct refused_data_parallel {
  struct refused_module {
    torch::Tensor forward(auto&&...) const { return {}; }
    refused_module const* operator->() const { return this; }
  };
  refused_module const* operator->() const { return &module_; }
  refused_module const& operator*() const { return module_; }
  refused_module const& module() const { return module_; }
  void backward(torch::Tensor const&) {}
  double loss_scale() const { return 1; }
  exchange_result finish() { return {}; }
  exchange_result step(auto&&) { return {}; }
  std::optional<exchange_result> join(early_end = early_end::follow) { return {}; }
  refused_module const& no_sync() { return module_; }
  void abandon() noexcept {}
  trireme::detail::refused_exchange& exchange() { return exchange_; }

 private:
  refused_module module_;
  trireme::detail::refused_exchange exchange_;
};

}  // namespace detail

/// Makes an existing single-process loop of LibTorch data-parallel: three lines.
///
/// Ranks    collective. Parameters and buffers of all ranks become those of rank 0.
/// Threads  a module that is given by its name (`Net net; data_parallel(net, world)`), or by that of a unique_ptr,
///          outlives what is returned; other holders share it.
/// Errors   config_error on every rank if their modules differ. A wrong argument is one sentence at compile time.
///
/// @tparam Element  what gradients are exchanged as: float, or double for a module of double parameters.
/// @param module    a module, a torch::nn::ModuleHolder (what TORCH_MODULE makes), a std::shared_ptr or std::unique_ptr
///                  of a module, a torch::nn::AnyModule or a torch::jit::Module.
/// @param policies  as of make_exchange: a strategy, a compressor.
/// @example auto ddp = interop::data_parallel(net, world);
///          torch::nn::mse_loss(ddp->forward(x), y).backward();
///          ddp.finish();
template <class Element = float, class Module, class Comm, class... Policies>
[[nodiscard]] auto data_parallel(Module&& module, Comm&& world, data_parallel_options const& options,
                                 Policies const&... policies) {
  constexpr auto slip = detail::slip_of_data_parallel<Element, Module, Comm>();
  static_cast<void>(sizeof(detail::check_data_parallel<slip>));
  if constexpr (slip == detail::data_parallel_slip::none) {
    using inner = typename decltype(detail::lent_module(std::forward<Module>(module)))::element_type;
    using communicator = std::remove_reference_t<Comm>;
    using space = typename space_of<communicator>::type;
    static_assert(
        std::is_same_v<space, host> || (std::is_same_v<Policies, parallel::data> && ...),
        "trireme::interop::data_parallel: a device's memory goes with parallel::data and without a compressor");
    using exchange = decltype(make_exchange(std::vector<foreign_parameter<Element, space>>(), world, policies...));
    return data_parallel_module<Element, inner, communicator, exchange>(
        detail::lent_module(std::forward<Module>(module)), world, options, policies...);
  } else {
    return detail::refused_data_parallel{};
  }
}
template <class Element = float, class Module, class Comm, class... Policies>
requires(!(std::is_same_v<Policies, data_parallel_options> || ...))
    [[nodiscard]] auto data_parallel(Module&& module, Comm&& world, Policies const&... policies) {
  return data_parallel<Element>(std::forward<Module>(module), std::forward<Comm>(world), data_parallel_options{},
                                policies...);
}

}  // namespace trireme::interop
