// Trireme 0.1.0: trireme/interop/torch_sequential.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 1907529b00428be0d37ea3f0fee0ff734d7e1e63fd4b8fe108186348d0a3b1a1
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/interop/torch_autocast.hpp"
#include "trireme/interop/torch_loss.hpp"

// ---- trireme/interop/torch_sequential.hpp
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED
#define TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED

// ---- trireme/interop/detail/torch_module.hpp
#include <concepts>
#include <cstring>

// Shared by loops (data_parallel) and trainers (torch_model): a module's tensors by name, views of their memory, hooks
// of autograd, and collectives that compare and copy tensors.

namespace trireme::interop::detail {

/// The same element type in torch; Undefined if torch has none.
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

/// The torch device of a memory space, and the order of torch's work there. The specialisation for CUDA is in
/// torch_cuda.hpp.
///
/// Requires  device     the type of the device;
///           here()     the device of this thread;
///           on_stream  a guard: while it exists, torch's work is queued on the stream of the space's kernels;
///           in_order a guard for functions that users call: like on_stream, but torch's earlier work comes before the
///                      guarded work, and torch's later work after it.
template <class Space>
struct torch_space;

/// The memory space whose kernels are used for torch's tensors of a world's space: that one, or one for the same memory
/// that has torch's own kernels.
template <class Space>
struct torch_memory {
  using type = Space;
};
template <class Comm>
using torch_memory_of = typename torch_memory<typename space_of<Comm>::type>::type;

template <>
struct torch_space<host> {
  static constexpr at::DeviceType device = at::kCPU;
  [[nodiscard]] static at::Device here() { return device; }
  struct on_stream {};
  struct in_order {};
};

/// A tensor of a module under the first of its names: a tied tensor is listed once.
struct named_tensor {
  std::string name;
  torch::Tensor tensor;
};

/// The required layout of a module's tensors: row-major, or dense in any order of dimensions (channels last, say).
enum class memory_format { row_major, dense };

using named_tensors = torch::OrderedDict<std::string, torch::Tensor>;

// Lists of tensors by name, for modules, AnyModule and TorchScript.
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
/// The same without names, which takes less time.
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
/// An address that is equal for all handles of one module.
[[nodiscard]] inline void const* identity_of(torch::nn::Module const& module) { return &module; }
[[nodiscard]] inline void const* identity_of(torch::nn::AnyModule const& module) { return module.ptr().get(); }
[[nodiscard]] inline void const* identity_of(torch::jit::Module const& module) { return module._ivalue().get(); }

/// The tables of embeddings with sparse gradients (.sparse(true)).
[[nodiscard]] inline std::vector<torch::Tensor> tables_of_rows(torch::nn::Module const& module) {
  std::vector<torch::Tensor> all;
  auto const look = [&](torch::nn::Module const& each) {
    if (auto const* const table = each.as<torch::nn::EmbeddingImpl>())
      if (table->options.sparse()) all.push_back(table->weight);
    if (auto const* const bags = each.as<torch::nn::EmbeddingBagImpl>())
      if (bags->options.sparse()) all.push_back(bags->weight);
  };
  look(module);  // modules() with itself would need a shared_ptr to it
  for (auto const& each : module.modules(false)) look(*each);
  return all;
}
[[nodiscard]] inline std::vector<torch::Tensor> tables_of_rows(torch::nn::AnyModule const& module) {
  return tables_of_rows(*module.ptr());
}
[[nodiscard]] inline std::vector<torch::Tensor> tables_of_rows(torch::jit::Module const&) { return {}; }

/// @param left_alone  patterns, separated by spaces: a tensor is not listed if one of its names matches.
template <class Space>
[[nodiscard]] std::vector<named_tensor> listed(named_tensors const& all, char const* kind,
                                               memory_format layouts = memory_format::row_major,
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
        (layouts == memory_format::dense ? tensor.is_non_overlapping_and_dense() : tensor.is_contiguous());
    if (!fits) {
      throw config_error(text("trireme::interop: ", kind, " \"", item.key(), "\" is not a dense ",
                              layouts == memory_format::dense ? "" : "row-major ",
                              "tensor; other layouts are not supported (contiguous() makes it row-major)"));
    }
    list.push_back({item.key(), tensor});
  }
  return list;
}
template <class Space = host, class Module>
[[nodiscard]] std::vector<named_tensor> parameters_of(Module const& module,
                                                      memory_format layouts = memory_format::row_major,
                                                      std::string_view left_alone = {}) {
  return listed<Space>(named_parameters_of(module), "parameter", layouts, left_alone);
}
template <class Space = host, class Module>
[[nodiscard]] std::vector<named_tensor> buffers_of(Module const& module,
                                                   memory_format layouts = memory_format::row_major,
                                                   std::string_view left_alone = {}) {
  return listed<Space>(named_buffers_of(module), "buffer", layouts, left_alone);
}

[[nodiscard]] inline shape shape_of(torch::Tensor const& tensor) {
  if (tensor.dim() > shape::max_rank) return shape{tensor.numel()};
  shape extents;
  for (auto const extent : tensor.sizes()) extents.push_back(extent);
  return extents;
}
/// The extents of a dense tensor in the order of its memory; a complex number counts as two.
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
  for (auto const index : places) extents.push_back(tensor.size(index) * (index == places.back() ? pairs : 1));
  return extents;
}
/// All numbers of a dense tensor as one dimension, in the order of its memory.
[[nodiscard]] inline torch::Tensor row_of(torch::Tensor const& tensor) {
  auto const numbers = tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
  return numbers.as_strided({numbers.numel()}, {1});
}
/// Whether two dense tensors of one shape have the same order in memory.
[[nodiscard]] inline bool lie_alike(torch::Tensor const& a, torch::Tensor const& b) {
  return a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous());
}
/// A view of all numbers of a dense tensor, in the order of its memory; a complex number counts as two.
template <element T, class Space>
[[nodiscard]] tensor_view<T, Space> numbers_of(torch::Tensor const& tensor) {
  return {static_cast<T*>(tensor.data_ptr()), shape_in_memory(tensor)};
}
/// A view of a contiguous tensor.
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
/// Checks that a parameter still has the memory that an exchange or a trainer knows.
/// Errors  config_error if not.
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

/// Samples as a tensor, without a copy. It is valid as long as the samples.
[[nodiscard]] inline torch::Tensor tensor_of(any_view<> const& view) {
  auto const type = torch_type(view.type);
  if (type == at::ScalarType::Undefined) {
    throw config_error(text("trireme::interop: samples of ", name_of(view.type),
                            " have no type in torch; give them one that it has, such as i64"));
  }
  std::vector<std::int64_t> const sizes(view.extents.extents().begin(), view.extents.extents().end());
  return torch::from_blob(const_cast<void*>(view.address), sizes, at::TensorOptions().dtype(type));
}

/// Hooks on autograd: calls f(index of the parameter) when a gradient has been added to .grad(), in the thread that
/// runs backward.
///
/// Threads  one owner. Cannot be moved, because the hooks refer to it; its destructor removes them.
class gradient_hooks {
 public:
  using listener = std::function<void(std::size_t)>;

  gradient_hooks(std::vector<torch::Tensor> const& parameters, listener f) : f_(std::move(f)) {
    for (std::size_t index = 0; index < parameters.size(); ++index) held_.push_back(hooked(parameters[index], index));
  }
  gradient_hooks(gradient_hooks const&) = delete;
  gradient_hooks& operator=(gradient_hooks const&) = delete;
  ~gradient_hooks() {
    for (auto& each : held_) each.accumulator->del_post_hook(each.key);
  }
  /// If the parameter has got another gradient accumulator (torch::load and to() may do that), moves the hook there.
  /// @returns whether it has.
  bool renew(torch::Tensor const& parameter, std::size_t index) {
    auto& each = held_[index];
    if (torch::autograd::impl::grad_accumulator(parameter) == each.accumulator) return false;
    each.accumulator->del_post_hook(each.key);
    each = hooked(parameter, index);
    return true;
  }
  /// Whether the parameter's accumulator has no other hook, such as that of a second data_parallel. If it has, the
  /// other one may change .grad() while gradients of this one are still expected.
  [[nodiscard]] bool are_alone(std::size_t index) const { return held_[index].accumulator->post_hooks().size() == 1; }

 private:
  struct hook final : torch::autograd::FunctionPostHook {
    hook(listener const& all, std::size_t mine) : f(all), index(mine) {}
    torch::autograd::variable_list operator()(torch::autograd::variable_list const& outputs,
                                              torch::autograd::variable_list const&) override {
      f(index);
      return outputs;
    }
    listener const& f;
    std::size_t index;
  };
  // A parameter has only a weak reference to its accumulator, which owns the hooks; so it is held here.
  struct held {
    decltype(torch::autograd::impl::grad_accumulator(torch::Tensor())) accumulator;
    std::uintptr_t key;
  };
  [[nodiscard]] held hooked(torch::Tensor const& parameter, std::size_t index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    auto const key = accumulator->add_post_hook(std::make_unique<hook>(f_, index));
    return {std::move(accumulator), key};
  }

  listener f_;
  std::vector<held> held_;
};

/// Collective. Checks that all ranks have the same tensors: names, shapes, types, strides, and which are trained.
/// Errors  config_error on every rank, which names the first difference.
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
                              " differs from that of rank 0; the first difference is number ", i + 1,
                              " of its tensors, which on this rank is ",
                              i < entries.size() ? entries[i] : std::string("missing")));
    }
  }
}

/// The buffers of a module, and collectives that make them equal: one message in host memory, one a buffer in device
/// memory.
template <class Space>
class shared_tensors {
 public:
  explicit shared_tensors(std::vector<named_tensor> all) : all_(std::move(all)) {}
  [[nodiscard]] bool empty() const noexcept { return bytes() == 0; }

  /// Collective. Copies the buffers of `root` to every rank.
  template <class Comm>
  void broadcast(Comm& world, int root) {
    if (empty() || world.size() == 1) return;
    expect_dense();
    if constexpr (!std::is_same_v<Space, host>) {
      for (auto const& each : all_) broadcast(each.tensor, world, root);
      return;
    }
    auto const values = bytes();
    packed_.resize(values + all_.size());  // and their types: equal bytes of another type would be other numbers
    for (std::size_t i = 0; i < all_.size(); ++i)
      packed_[values + i] = static_cast<std::byte>(all_[i].tensor.scalar_type());
    for_each_part(packed_.data(), [](torch::Tensor const& tensor, std::byte* part) {
      std::memcpy(part, tensor.data_ptr(), tensor.nbytes());
    });
    world.broadcast(tensor_view<std::byte>(packed_), root);
    for (std::size_t i = 0; i < all_.size(); ++i) expect_type(all_[i], packed_[values + i], root);
    for_each_part(packed_.data(), [](torch::Tensor const& tensor, std::byte const* part) {
      std::memcpy(tensor.data_ptr(), part, tensor.nbytes());
    });
  }
  /// Collective. Replaces floating-point buffers by their mean over the ranks, computed in double, and others by those
  /// of `root`.
  template <class Comm>
  void mean(Comm& world, int root) {
    if (empty() || world.size() == 1) return;
    expect_dense();
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
  static void expect_type(named_tensor const& each, std::byte of_root, int root) {
    if (static_cast<std::byte>(each.tensor.scalar_type()) == of_root) return;
    throw config_error(text("trireme::interop: buffer \"", each.name, "\" has become one of ",
                            c10::toString(each.tensor.scalar_type()), " on this rank, and is one of ",
                            c10::toString(static_cast<at::ScalarType>(of_root)), " on rank ", root,
                            "; convert a module on all ranks, or on none"));
  }
  // A buffer may get other memory, as by set_data().
  void expect_dense() const {
    for (auto const& each : all_) {
      if (each.tensor.is_non_overlapping_and_dense()) continue;
      throw config_error(text("trireme::interop: buffer \"", each.name,
                              "\" has become a tensor that is not dense, such as a slice of another one; give it "
                              "memory of its own by clone()"));
    }
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

/// The module behind a shared_ptr, or behind a holder that TORCH_MODULE makes.
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
/// Handles of modules of any type; copies share the module.
template <class T>
concept shared_handle = std::same_as<T, torch::nn::AnyModule> || std::same_as<T, torch::jit::Module>;
/// A module, or a handle of one.
template <class T>
concept some_module =
    is_holder<T> || is_unique_holder<T> || shared_handle<T> || std::derived_from<T, torch::nn::Module>;

/// A shared_ptr to the module behind any handle. A module that is given by its name, or by the name of a unique_ptr, is
/// only borrowed: it must outlive the result.
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

// ---- trireme/interop/torch_sequential.hpp (goes on)
// torch::nn::Sequential as a staged model: parameters are gathered for each child (parallel::zero<3>), and children are
// distributed over the stages of a pipeline.

namespace trireme::interop {

namespace detail {

/// While it exists, the parameters of a module use the memory in which an exchange keeps their values; afterwards they
/// have no memory.
///
/// A tensor keeps its storage object; only the address in it changes, also for all views that autograd has saved. So a
/// backward pass reads the memory that the parameter has at that time.
class lent_memory {
 public:
  lent_memory() = default;
  lent_memory(lent_memory const&) = delete;
  lent_memory& operator=(lent_memory const&) = delete;
  ~lent_memory() {
    for (auto const& each : storages_) each.set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
  }
  void lend(torch::Tensor const& parameter, void* address) {
    storages_.push_back(parameter.storage());
    storages_.back().set_data_ptr_noswap(at::DataPtr(address, at::kCPU));
  }

 private:
  std::vector<c10::Storage> storages_;
};

[[nodiscard]] inline bool has_memory(torch::Tensor const& parameter) {
  return parameter.numel() == 0 || parameter.storage().data_ptr().get() != nullptr;
}

/// Children [first, last) of a sequence, with their parameters and buffers. The first child has parameters, except
/// perhaps in the first unit.
struct sequence_stage {
  std::size_t first = 0;
  std::size_t last = 0;
  std::vector<named_tensor> parameters{};
  std::vector<named_tensor> buffers{};
};

/// A sequence, a loss, and the units into which they are split.
struct sequence {
  using loss_function = std::function<loss_and_count(torch::Tensor const&, torch::Tensor const&)>;

  sequence(std::shared_ptr<torch::nn::SequentialImpl> of, loss_function l)
      : module(std::move(of)), loss(std::move(l)), children(module->begin(), module->end()) {
    auto const all = parameters_of(*module);
    auto const buffers = buffers_of(*module);
    for (std::size_t child = 0; child < children.size(); ++child) {
      auto const own = children[child].ptr()->parameters();
      if (parts.empty() || (!own.empty() && !parts.back().parameters.empty())) parts.push_back({child, child});
      parts.back().last = child + 1;
      for (auto const& each : own) add(parts.back(), each, all);
      for (auto const& each : children[child].ptr()->buffers()) add_buffer(each, buffers);
    }
    if (all.empty()) {
      throw config_error(
          "trireme::interop::torch_sequential: the module has no parameters, so there is nothing to train");
    }
  }
  [[nodiscard]] named_tensor const& named(std::string_view name) const {
    for (auto const& part : parts) {
      for (auto const& each : part.parameters) {
        if (each.name == name) return each;
      }
    }
    throw config_error(text("trireme::interop::torch_sequential: there is no parameter \"", name, "\""));
  }

  std::shared_ptr<torch::nn::SequentialImpl> module;
  loss_function loss;
  std::vector<torch::nn::AnyModule> children;
  std::vector<sequence_stage> parts{};

 private:
  void add_buffer(torch::Tensor const& tensor, std::vector<named_tensor> const& all) {
    if (!tensor.defined()) return;  // a batch normalisation without running statistics has such buffers
    auto const is_it = [&](auto const& each) { return each.tensor.is_same(tensor); };
    auto const& own = parts.back().buffers;
    if (std::any_of(own.begin(), own.end(), is_it)) return;
    auto const& buffer = *std::find_if(all.begin(), all.end(), is_it);
    for (auto const& part : parts) {
      if (std::none_of(part.buffers.begin(), part.buffers.end(), is_it)) continue;
      throw config_error(text("trireme::interop::torch_sequential: buffer \"", buffer.name,
                              "\" belongs to several units, which may lie on different ranks; give each layer its "
                              "own, or use torch_model"));
    }
    show_buffer("torch_sequential", buffer, [](auto const&, auto const&) {});  // throws what it refuses
    parts.back().buffers.push_back(buffer);
  }
  // A tensor of several children is listed in each under the first of its names.
  static void add(sequence_stage& part, torch::Tensor const& tensor, std::vector<named_tensor> const& all) {
    auto const at = std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.tensor.is_same(tensor); });
    auto const again = [&](auto const& each) { return each.tensor.is_same(tensor); };
    if (std::any_of(part.parameters.begin(), part.parameters.end(), again)) return;
    if (tensor.dim() > shape::max_rank || tensor.storage_offset() != 0 ||
        tensor.storage().nbytes() != tensor.nbytes()) {
      throw config_error(text("trireme::interop::torch_sequential: parameter \"", at->name,
                              "\" shares its memory with another tensor, or has more than ", shape::max_rank,
                              " dimensions; give it memory of its own, as clone() does"));
    }
    part.parameters.push_back(*at);
  }
};

/// A unit of a sequence: a child with parameters and the children without parameters that follow it; the last unit has
/// the loss as well.
///
/// Bytes    autograd's graph of each micro-batch in flight: the tensors that torch saves for backward, the unit's
///          output included. Parameters use the exchange's memory while the unit runs, and have no memory otherwise.
struct sequence_unit {
  std::shared_ptr<sequence const> of;
  std::size_t part = 0;

  template <class Env>
  class instance;
};

template <class Env>
class sequence_unit::instance {
  using number = typename Env::compute;
  using view = tensor_view<number, typename Env::space>;
  static_assert(std::is_same_v<typename Env::space, host>,
                "trireme::interop::torch_sequential: torch's modules compute in host memory, so there is no plan of "
                "them on paper, and no communicator of device memory");

 public:
  /// The tensors of a micro-batch from which backward starts.
  struct saved {
    torch::Tensor x{}, y{}, dx{}, dy{};
    double count = -1;  // of the targets in the loss, if this is the last unit; < 0: the loss is a mean
  };

  explicit instance(sequence_unit const& what) : of_(what.of), part_(of_->parts[what.part]) {
    is_first_ = what.part == 0;
    is_last_ = what.part + 1 == of_->parts.size();
    auto const wanted = torch_type(dtype_of<typename Env::param>);
    for (auto const& [name, tensor] : part_.parameters) {
      if (tensor.scalar_type() != wanted) {
        throw config_error(text("trireme::interop::torch_sequential: parameter \"", name, "\" has elements of ",
                                c10::toString(tensor.scalar_type()), ", but this trainer keeps ", c10::toString(wanted),
                                "; convert it with to() before, and choose a precision to compute in another type"));
      }
      parameter_info info{.name = name, .extents = shape_of(tensor)};
      info.frozen = !tensor.requires_grad();
      parameters_.push_back({std::move(info), {}, {}});
    }
  }

  template <class F>
  void visit(F&& f) {
    for (auto& each : parameters_) f(each);
  }

  view forward(pass<Env>& pass, saved& kept, view x) {
    lent_memory values;
    lend(values);
    torch::AutoGradMode const mode(pass.training());
    kept = {};
    kept.x = is_first_ ? tensor_of(pass.batch.inputs) : tensor_of(x);
    if (!is_first_ && pass.training()) kept.x.requires_grad_(true);
    kept.y = cast([&] { return run(kept, pass); });
    if (!is_last_) return shown(kept.y);
    if (pass.purpose == purpose::predict) return shown(kept.y, {kept.y.size(0), -1});
    auto const count = pass.batch.count();
    auto const loss = kept.y.template item<double>();
    pass.loss += kept.count < 0 ? loss_sum{loss * static_cast<double>(count), count}
                                : trireme::sum_of({loss, kept.count}, count);
    return {};
  }
  view backward(pass<Env>& pass, saved& kept, view dy) {
    lent_memory values;
    lend(values);
    auto inputs = trained();
    auto const own = inputs.size();
    if (!is_first_) inputs.push_back(kept.x);
    auto const found = gradients(kept.y, inputs, slope(pass, kept, dy), false);
    add({found.begin(), found.begin() + static_cast<std::ptrdiff_t>(own)});
    if (!is_first_) kept.dx = found.back();
    return end(kept);
  }
  view backward_input(pass<Env>& pass, saved& kept, view dy) {
    kept.dy = slope(pass, kept, dy).clone();  // dy is overwritten before the other half runs
    if (is_first_) return {};
    lent_memory values;
    lend(values);
    kept.dx = gradients(kept.y, {kept.x}, kept.dy, true).front();
    return dx_of(kept);
  }
  void backward_weight(pass<Env>&, saved& kept) {
    lent_memory values;
    lend(values);
    add(gradients(kept.y, trained(), kept.dy, false));
    static_cast<void>(end(kept));
  }

 private:
  using tensors = torch::autograd::variable_list;

  void lend(lent_memory& values) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      values.lend(part_.parameters[i].tensor, parameters_[i].value.address());
  }
  torch::Tensor run(saved& kept, pass<Env> const& pass) {
    auto h = kept.x;
    for (auto child = part_.first; child < part_.last; ++child) {
      auto any = of_->children[child];
      if (any.ptr()->is_training() != pass.training()) any.ptr()->train(pass.training());
      h = any.forward(h);
    }
    if (!is_last_ || pass.purpose == purpose::predict) return h;
    auto const loss = of_->loss(h, interop::detail::tensor_of(pass.batch.targets));
    kept.count = loss.count;
    return loss.sum;
  }
  template <class F>
  static torch::Tensor cast(F&& f) {
    constexpr auto type = torch_type(dtype_of<casts_to<typename Env::precision>>);
    if constexpr (type == torch_type(dtype_of<number>)) {
      return f();
    } else {
      autocast const guard(type);
      return f();
    }
  }

  static torch::Tensor tensor_of(view values) { return interop::detail::tensor_of(erase_type(values)); }
  static torch::Tensor tensor_of(any_view<> const& values) { return interop::detail::tensor_of(values); }
  // y as the next unit reads it, in y's memory.
  static view shown(torch::Tensor& y) { return shown(y, y.sizes()); }
  static view shown(torch::Tensor& y, at::IntArrayRef sizes) {
    if (y.dim() > shape::max_rank) {
      throw config_error(text("trireme::interop::torch_sequential: an output has ", y.dim(), " dimensions; up to ",
                              shape::max_rank, " pass between units"));
    }
    y = y.to(torch_type(dtype_of<number>)).reshape(sizes).contiguous();
    return view_of<number>(y);
  }

  // The gradient of y: that of the next unit, or the weight of this micro-batch in the loss of the step.
  torch::Tensor slope(pass<Env> const& pass, saved const& kept, view dy) const {
    if (!is_last_) return tensor_of(dy);
    return torch::full_like(kept.y,
                            kept.count < 0 ? pass.weight * static_cast<double>(pass.batch.count()) : pass.weight);
  }
  [[nodiscard]] tensors trained() const {
    tensors list;
    for (auto const& each : part_.parameters) {
      if (each.tensor.requires_grad()) list.push_back(each.tensor);
    }
    return list;
  }
  // A gradient is undefined if y does not depend on that input.
  static tensors gradients(torch::Tensor const& y, tensors const& inputs, torch::Tensor const& dy, bool again) {
    if (inputs.empty() || !y.requires_grad()) return tensors(inputs.size());
    return torch::autograd::grad({y}, inputs, {dy}, again, false, true);
  }
  void add(tensors const& found) {
    auto next = found.begin();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!part_.parameters[i].tensor.requires_grad()) continue;
      auto const& gradient = *next++;
      if (gradient.defined()) tensor_of(parameters_[i].gradient).add_(gradient);
    }
  }
  view dx_of(saved& kept) const {
    if (is_first_) return {};
    if (!kept.dx.defined()) kept.dx = torch::zeros_like(kept.x);
    kept.dx = kept.dx.contiguous();
    return view_of<number>(kept.dx);
  }
  // Releases the graph. dx is kept until the previous unit has read it.
  view end(saved& kept) const {
    auto const dx = dx_of(kept);
    kept.x = kept.y = kept.dy = torch::Tensor();
    return dx;
  }

  std::shared_ptr<sequence const> of_;
  sequence_stage const& part_;
  bool is_first_ = false;
  bool is_last_ = false;
  std::vector<parameter<Env>> parameters_{};
};

}  // namespace detail

/// A torch::nn::Sequential and a loss as a staged model: made by torch_sequential().
class torch_sequential_model {
 public:
  using policy_category = slot::model;
  /// Under precision::bf16 and fp16 each unit runs under torch's autocast.
  static constexpr bool casts_inside = true;

  explicit torch_sequential_model(std::shared_ptr<detail::sequence const> of) : of_(std::move(of)) {}

  template <class Emit>
  void units(Emit&& put) const {
    for (std::size_t part = 0; part < of_->parts.size(); ++part) put(detail::sequence_unit{of_, part});
  }
  /// The weights by which pipelines are cut if parallel::pipeline{.cuts} is empty: numbers of parameter elements.
  [[nodiscard]] std::vector<double> unit_costs() const {
    std::vector<double> costs;
    for (auto const& part : of_->parts) {
      double sum = 0;
      for (auto const& each : part.parameters) sum += static_cast<double>(each.tensor.numel());
      costs.push_back(sum);
    }
    return costs;
  }

  /// Buffers (running statistics, for example) lie in the module's own memory; every rank has all of them.
  template <class Visit>
  void visit_buffers(Visit&& visit) const {
    for (std::size_t part = 0; part < of_->parts.size(); ++part) {
      for (auto const& each : of_->parts[part].buffers) {
        detail::show_buffer("torch_sequential", each, [&](char const* name, auto values) {
          visit(name, values, static_cast<std::int64_t>(part));
        });
      }
    }
  }

  template <class T>
  void start(parameter_info const& info, std::int64_t first, std::span<T> values) const {
    auto const& [name, tensor] = of_->named(info.name);
    expect_memory(name, tensor);
    auto const n = static_cast<std::int64_t>(values.size());
    auto const part = tensor.detach().flatten().slice(0, first, first + n);
    torch::from_blob(values.data(), {n}, at::TensorOptions().dtype(detail::torch_type(dtype_of<T>))).copy_(part);
  }
  [[nodiscard]] std::uint64_t start_hash() const {
    std::uint64_t sum = 0;
    for (auto const& part : of_->parts) {
      for (auto const& [name, tensor] : part.parameters) {
        expect_memory(name, tensor);
        sum = mix(sum ^ (tensor.requires_grad() ? 1U : 0U));
        sum = mix(sum ^ hash_name({static_cast<char const*>(tensor.data_ptr()), tensor.nbytes()}));
      }
      for (auto const& [name, tensor] : part.buffers)
        sum = mix(sum ^ hash_name({static_cast<char const*>(tensor.data_ptr()), tensor.nbytes()}));
    }
    return sum;
  }
  [[nodiscard]] std::shared_ptr<torch::nn::SequentialImpl> const& module() const noexcept { return of_->module; }

  /// Lists the children, and the parameters of each unit with their shapes.
  friend std::string to_string(torch_sequential_model const& model) {
    std::string out = "interop::torch_sequential(";
    for (auto const& part : model.of_->parts) {
      for (auto child = part.first; child < part.last; ++child)
        out += text(child == 0 ? "" : ", ", model.of_->children[child].ptr()->name());
      for (auto const& each : part.parameters) out += text(" ", each.name, to_string(detail::shape_of(each.tensor)));
    }
    return out + ")";
  }

 private:
  static void expect_memory(std::string const& name, torch::Tensor const& tensor) {
    if (detail::has_memory(tensor)) return;
    throw config_error(text("trireme::interop::torch_sequential: parameter \"", name,
                            "\" has no memory, because a trainer has its values; take_values(trainer, module) gives "
                            "them back"));
  }

  std::shared_ptr<detail::sequence const> of_;
};

/// A torch::nn::Sequential and a loss as a model for make_trainer whose children are units. Besides the strategies of
/// torch_model it supports parallel::zero<3> (the parameters of a child are gathered before its forward and before its
/// backward, and released after each) and pipelines (children are distributed over the stages).
///
/// Children a unit is a child with parameters and the children without parameters that follow it (those before the
///          first such child belong to its unit); the last unit also has the loss. Each child has forward(Tensor) ->
///          Tensor. A tensor of several children (tied weights) is one parameter.
/// Shapes   the first child gets inputs in the dataset's shape, (n, ...). Tensors between units have up to 6
///          dimensions. predict() returns (rows of the last output, the rest).
/// Bytes    the trainer copies the values. From its first pass on the module's parameters have memory only while their
///          unit runs; take_values() restores them. Activations are the tensors that autograd saves; nothing is
///          computed twice, because a saved view of a parameter reads the memory that the parameter has in backward.
/// Ranks    every rank makes the whole module, with the same values (interop::broadcast makes them equal; otherwise it
///          is a config_error).
/// Numerics parameters are float, or double with precision::fp64. Under bf16 and fp16 children and loss run under
///          torch's autocast, and tensors between units are float. Parameters that a batch does not use have gradients
///          of zeros. As for other models of units: with one micro-batch a rank, and without tied tensors, zero<3> has
///          the bits of data; a pipeline has the bits of one rank with equally many micro-batches if its schedule adds
///          them in their order; otherwise the order of sums differs.
/// Buffers  (running statistics) stay in the module, and each rank changes those of its units, once a micro-batch. They
///          are in checkpoints and hashes. Where several ranks have a unit, those of the first of them are copied to
///          the others before the trainer evaluates, saves or hashes, and at the end of fit().
/// Threads  one owner; ranks that are threads have a module each.
/// Errors   config_error for parameters of another type or that share memory, for a buffer that belongs to several
///          units or is not float, double, int64 or int32, and for a loss that is not one number; the errors of
///          make_trainer.
///
/// @param loss  as for torch_model.
/// @example auto trainer = make_trainer(interop::torch_sequential(net, torch::nn::MSELoss()), optim::adamw{}, world,
///                                      parallel::zero<3>{});
template <class Loss>
[[nodiscard]] torch_sequential_model torch_sequential(torch::nn::Sequential const& module, Loss loss) {
  auto counted = [loss = std::move(loss)](torch::Tensor const& outputs, torch::Tensor const& targets) mutable {
    return detail::loss_of(loss, outputs, targets, "torch_sequential");
  };
  return torch_sequential_model(std::make_shared<detail::sequence const>(module.ptr(), std::move(counted)));
}

/// Collective. Copies the values and buffers of a trainer of torch_sequential() into a module with the same parameters:
/// into the trainer's own module, whose parameters then have memory until the trainer's next pass, or into another one.
/// Use it to save the module, or to continue without the trainer.
///
/// Bytes    one tensor at a time in addition to the module.
/// Errors   config_error if a parameter or a buffer is missing; comm_error.
template <class Trainer>
void take_values(Trainer& trainer, torch::nn::Sequential const& module) {
  using master = typename Trainer::master;
  torch::NoGradGuard const guard;
  auto const all = detail::parameters_of(*module);
  trainer.for_each_parameter([&](std::string const& name, shape const& extents, std::span<master const> values) {
    auto const at = std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.name == name; });
    if (at == all.end() || detail::shape_of(at->tensor) != extents) {
      throw config_error(
          text("trireme::interop::take_values: the module has no parameter \"", name, "\"", to_string(extents)));
    }
    auto tensor = at->tensor;
    if (!detail::has_memory(tensor)) tensor.set_data(torch::empty(tensor.sizes(), tensor.options()));
    tensor.copy_(torch::from_blob(const_cast<master*>(values.data()), tensor.sizes(),
                                  at::TensorOptions().dtype(detail::torch_type(dtype_of<master>))));
  });
  trainer.synchronise_buffers();
  auto const buffers = detail::buffers_of(*module);
  for (auto const& each : detail::buffers_of(*trainer.described_model().module())) {
    auto const at = std::find_if(buffers.begin(), buffers.end(), [&](auto const& it) { return it.name == each.name; });
    if (at == buffers.end() || at->tensor.sizes() != each.tensor.sizes()) {
      throw config_error(text("trireme::interop::take_values: the module has no buffer \"", each.name, "\"",
                              to_string(detail::shape_of(each.tensor))));
    }
    auto tensor = at->tensor;
    if (!tensor.is_same(each.tensor)) tensor.copy_(each.tensor);
  }
}

}  // namespace trireme::interop
