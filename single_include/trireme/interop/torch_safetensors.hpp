// Trireme 0.1.0: trireme/interop/torch_safetensors.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: e93c54c169789a3d512daf22f0612bf53a9bfb7424e3894f6dcfde6d7ab7b2b3
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_safetensors.hpp
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#ifndef TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED
#define TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED

// ---- trireme/interop/detail/torch_module.hpp
#include <torch/torch.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>

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

// ---- trireme/interop/torch_safetensors.hpp (goes on)
namespace trireme::interop {

namespace detail {

/// The entries of PyTorch's state_dict(): parameters and buffers under all of their names, so a tied tensor more than
/// once.
[[nodiscard]] inline std::vector<named_tensor> state_of(torch::nn::Module const& module) {
  std::vector<named_tensor> list;
  for (auto const& all : {module.named_parameters(), module.named_buffers()}) {
    for (auto const& item : all) {
      if (item.value().defined()) list.push_back({item.key(), item.value()});
    }
  }
  return list;
}

/// The name of a torch type in safetensors; empty if it has none.
[[nodiscard]] constexpr std::string_view stored_name(at::ScalarType type) noexcept {
  switch (type) {
    case at::kDouble:
      return "F64";
    case at::kFloat:
      return "F32";
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "F16";
    case at::kLong:
      return "I64";
    case at::kInt:
      return "I32";
    case at::kShort:
      return "I16";
    case at::kChar:
      return "I8";
    case at::kByte:
      return "U8";
    case at::kBool:
      return "BOOL";
    default:
      return {};
  }
}

/// The entry of a tensor in a file.
/// Errors  config_error if safetensors cannot store it.
[[nodiscard]] inline formats::safetensors::entry stored_as(named_tensor const& of) {
  auto const& [name, tensor] = of;
  auto const type = formats::safetensors::stored_type::named(stored_name(tensor.scalar_type()));
  if (!type || tensor.layout() != at::kStrided || tensor.dim() > shape::max_rank) {
    throw config_error(text("trireme::interop: \"", name, "\" is a ", tensor.layout() == at::kStrided ? "" : "sparse ",
                            "tensor of ", c10::toString(tensor.scalar_type()), " with ", tensor.dim(),
                            " dimensions; a file holds dense ones of up to ", shape::max_rank,
                            " dimensions, of signed integers, bytes, bool, Half, BFloat16, Float and Double"));
  }
  return {name, *type, shape_of(tensor)};
}

/// The memory of a dense CPU tensor.
[[nodiscard]] inline std::span<std::byte> span_of(torch::Tensor const& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

/// The layout of files of one rank: each tensor is stored as it is in the module.
struct same_in_file {
  [[nodiscard]] formats::safetensors::entry stored(named_tensor const& of) const { return stored_as(of); }
  [[nodiscard]] torch::Tensor shard_of(torch::Tensor const&, torch::Tensor const& in_file) const { return in_file; }
};

/// A tensor of a module, and its entries in a file: `from` under one of its names, and `again` under further names.
struct found_tensor {
  torch::Tensor tensor;
  formats::safetensors::entry const* from;
  std::vector<formats::safetensors::entry const*> again{};
};

/// Errors  config_error if file and module differ in names, types or shapes.
template <class InFile>
[[nodiscard]] std::vector<found_tensor> found_tensors(std::vector<named_tensor> const& names,
                                                      formats::safetensors::reader const& in, InFile const& in_file) {
  auto const refuse = [&](auto const&... why) {
    throw config_error(text("trireme::interop::load_safetensors: ", in.path(), ": ", why...));
  };
  std::vector<found_tensor> all;
  auto const of = [&](torch::Tensor const& tensor) {
    return std::find_if(all.begin(), all.end(), [&](auto const& each) { return each.tensor.is_same(tensor); });
  };
  std::size_t used = 0;
  for (auto const& each : names) {
    auto const wanted = in_file.stored(each);
    auto const* from = in.find(each.name);
    if (from == nullptr) continue;
    ++used;
    if (from->type != wanted.type || from->extents != wanted.extents) {
      refuse("\"", each.name, "\" is ", from->type.name(), to_string(from->extents), " in the file, but ",
             wanted.type.name(), to_string(wanted.extents), " in the module");
    }
    auto const before = of(each.tensor);
    if (before == all.end()) {
      all.push_back({each.tensor, from});
    } else {
      before->again.push_back(from);
    }
  }
  for (auto const& each : names) {
    if (of(each.tensor) == all.end()) refuse("it has no \"", each.name, "\", which the module has");
  }
  if (used == in.entries().size()) return all;
  for (auto const& entry : in.entries()) {
    if (std::none_of(names.begin(), names.end(), [&](auto const& each) { return each.name == entry.name; }))
      refuse("the module has no \"", entry.name, "\"");
  }
  return all;
}

/// Writes tensors under their names.
inline void write_tensors(std::vector<named_tensor> all, std::string const& path) {
  // Tensors of wide types come first, so that every tensor is aligned.
  std::stable_sort(all.begin(), all.end(),
                   [](auto const& a, auto const& b) { return a.tensor.element_size() > b.tensor.element_size(); });
  std::vector<formats::safetensors::entry> entries;
  for (auto const& each : all) entries.push_back(stored_as(each));
  formats::safetensors::writer out(path, std::move(entries), {{"format", "pt"}});
  for (auto const& each : all) out.write(span_of(each.tensor.cpu().contiguous()));
  out.finish();
}

/// Reads tensors from a file whose layout `in_file` describes.
template <class InFile>
void read_tensors(std::vector<named_tensor> const& names, std::string const& path, InFile const& in_file) {
  formats::safetensors::reader const in(path);
  auto const read = [&](formats::safetensors::entry const& from, torch::Tensor const& like) {
    // A bool is read as a byte, which copy_() converts: every byte but 0 is true.
    auto const type = like.scalar_type() == at::kBool ? at::kByte : like.scalar_type();
    auto const sizes = from.extents.extents();
    auto const values =
        torch::empty(std::vector<std::int64_t>(sizes.begin(), sizes.end()), at::TensorOptions().dtype(type));
    in.read(from, 0, span_of(values));
    return values;
  };
  auto const found = found_tensors(names, in, in_file);
  for (auto const& [tensor, from, again] : found) {
    for (auto const* other : again) {
      auto const first = read(*from, tensor), second = read(*other, tensor);
      if (std::memcmp(first.data_ptr(), second.data_ptr(), first.nbytes()) == 0) continue;
      throw config_error(text("trireme::interop::load_safetensors: ", path, ": \"", from->name, "\" and \"",
                              other->name, "\" are one tensor in the module, but two in the file"));
    }
  }
  torch::NoGradGuard const guard;
  for (auto const& each : found) each.tensor.copy_(in_file.shard_of(each.tensor, read(*each.from, each.tensor)));
}

}  // namespace detail

/// Writes a module's parameters and buffers under PyTorch's names.
///
/// Python reads the file by `module.load_state_dict(safetensors.torch.load_file(path))`. It is written under another
/// name and then renamed, so a file of this name is always complete.
///
/// Shapes   a scalar has no dimensions. A tensor with several names (tied weights) is written under each of them,
///          because Python expects each.
/// Bytes    those of the tensors. A tensor that is not dense CPU memory is copied while it is written.
/// Ranks    not collective: one rank writes (`if (world.rank() == 0)`); after finish() or step() all ranks have the
///          same values.
/// Errors   config_error for a type or layout that safetensors cannot store; io_error.
///
/// @param module  a module, a torch::nn::ModuleHolder (what TORCH_MODULE makes) or a std::shared_ptr of one.
template <class Module>
void save_safetensors(Module const& module, std::string const& path) {
  torch::NoGradGuard const guard;
  detail::write_tensors(detail::state_of(*detail::lent_module(module)), path);
}

/// Reads a file of save_safetensors() or Python's safetensors.torch into a module's tensors, whose memory stays where
/// it is.
///
/// The file must have exactly the names, types and shapes of the module; a file that is refused changes nothing. Of the
/// names of a tied tensor one is enough (Python's save_model() writes only one).
///
/// Ranks    not collective. Before data_parallel() or broadcast() it is enough that rank 0 reads; otherwise every rank
///          does. A trainer keeps master values of parameters narrower than float: read before make_trainer().
/// Errors   format_error if it is not a safetensors file; config_error that names the first tensor that does not fit;
///          io_error (if the device fails in the middle, the tensors before have been read already).
template <class Module>
void load_safetensors(Module const& module, std::string const& path) {
  detail::read_tensors(detail::state_of(*detail::lent_module(module)), path, detail::same_in_file());
}

}  // namespace trireme::interop
