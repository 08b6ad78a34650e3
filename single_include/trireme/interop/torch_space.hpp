// Trireme 0.1.0: trireme/interop/torch_space.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: bd2693eb7817373ea46adce5d1f7134e8cb3dea691ef0d478dda7ae0bbe0b6af
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_space.hpp
#include <torch/torch.h>

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED
#define TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED

// ---- trireme/interop/detail/torch_module.hpp
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

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

template <class Space>
[[nodiscard]] std::vector<named_tensor> listed(torch::OrderedDict<std::string, torch::Tensor> const& all,
                                               char const* kind) {
  auto const here = torch_space<Space>::here();
  std::vector<named_tensor> list;
  for (auto const& item : all) {
    auto const& tensor = item.value();
    if (!tensor.defined()) continue;  // a batch normalisation without running statistics has such buffers
    if (std::any_of(list.begin(), list.end(), [&](auto const& each) { return each.tensor.is_same(tensor); })) continue;
    if (tensor.device().type() != here.type() || (here.has_index() && tensor.device() != here)) {
      throw config_error(text("trireme::interop: ", kind, " \"", item.key(), "\" is a tensor of ",
                              tensor.device().str(), ", but here ranks share tensors of ", here.str(),
                              "; move the module with to(), or see \"CUDA tensors\" in docs/torch.md"));
    }
    if (tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
      throw config_error(text("trireme::interop: ", kind, " \"", item.key(),
                              "\" is not a dense row-major tensor; other layouts are not supported (contiguous() makes "
                              "it row-major)"));
    }
    list.push_back({item.key(), tensor});
  }
  return list;
}
template <class Space = host>
[[nodiscard]] std::vector<named_tensor> parameters_of(torch::nn::Module const& module) {
  return listed<Space>(module.named_parameters(), "parameter");
}
template <class Space = host>
[[nodiscard]] std::vector<named_tensor> buffers_of(torch::nn::Module const& module) {
  return listed<Space>(module.named_buffers(), "buffer");
}

[[nodiscard]] inline shape shape_of(torch::Tensor const& tensor) {
  if (tensor.dim() > shape::max_rank) return shape{tensor.numel()};
  shape extents;
  for (auto const extent : tensor.sizes()) extents.push_back(extent);
  return extents;
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

/// Collective. The ranks hold the same tensors: names, shapes, types, and what is trained.
/// Errors  config_error on every rank that names the first one that differs.
template <class Comm>
void expect_equal_modules(torch::nn::Module const& module, Comm& world) {
  using space = typename space_of<Comm>::type;
  std::vector<std::string> entries;
  for (auto const& each : parameters_of<space>(module)) {
    entries.push_back(text("parameter \"", each.name, "\" of ", c10::toString(each.tensor.scalar_type()),
                           to_string(shape_of(each.tensor)), each.tensor.requires_grad() ? "" : ", not trained"));
  }
  for (auto const& each : buffers_of<space>(module)) {
    entries.push_back(text("buffer \"", each.name, "\" of ", c10::toString(each.tensor.scalar_type()),
                           to_string(shape_of(each.tensor))));
  }
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
      auto const sizes = each.tensor.sizes();
      each.tensor.copy_(torch::from_blob(from, sizes, at::TensorOptions().dtype(at::kDouble)));
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
    world.all_reduce(view_of<double, Space>(wide).flat(), reduction::mean{});
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

}  // namespace trireme::interop::detail

#endif  // TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED

// ---- trireme/interop/torch_space.hpp (goes on)
namespace trireme::interop::detail {

/// The kernels that an exchange of gradients needs (parallel::data without a compressor), by torch's own, for a memory
/// space that torch_space describes: derive ops::on<Space> from it. Queued on the space's stream, where it has one.
///
/// Numerics the squares of float and double are summed in double in blocks of 1024, whose sums are added exactly.
template <class Space>
struct torch_kernels {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = tensor_view<std::type_identity_t<T> const, Space>;

  template <class T>
  static void fill(view<T> y, double value) {
    queued(y, [&](auto const& to) { to.fill_(value); });
  }
  template <class T, class U>
  static void copy(view<T> y, view<U> x) {
    queued(y, [&](auto const& to) { to.copy_(tensor_over(x)); });
  }
  template <class T>
  static void add(view<T> y, input<T> x) {
    queued(y, [&](auto const& to) { to.add_(tensor_over(x)); });
  }
  template <class T>
  static void scale(view<T> y, double factor) {
    queued(y, [&](auto const& to) { to.mul_(factor); });
  }
  template <class T, class U>
  static void accumulate(view<T> y, view<U> x, double weight) {
    queued(y, [&](auto const& to) { to.add_(tensor_over(x), weight); });
  }
  template <class G>
  static void sum_of_squares(view<G> x, exact_sum& total) {
    queued(x, [&](auto const& from) {
      constexpr std::int64_t block = 1024;
      auto const squares = from.to(at::kDouble).square();
      auto const whole = squares.numel() / block * block;
      auto const sums =
          torch::cat({squares.slice(0, 0, whole).view({-1, block}).sum(1), squares.slice(0, whole).sum().reshape({1})})
              .cpu();
      for (std::int64_t i = 0; i < sums.numel(); ++i) total.add(sums.template data_ptr<double>()[i]);
    });
  }
  template <class T>
  [[nodiscard]] static bool finite(view<T> x) {
    bool all = true;
    queued(x, [&](auto const& from) { all = torch::isfinite(from).all().template item<bool>(); });
    return all;
  }
  /// Computed on the host, of a copy: for checks at the start.
  template <class T>
  [[nodiscard]] static std::uint64_t hash(view<T> x, std::uint64_t name, std::int64_t first_index) {
    std::uint64_t sum = 0;
    queued(x, [&](auto const& from) {
      auto const copied = from.cpu();
      tensor_view<T const> const here(static_cast<T const*>(copied.data_ptr()), shape{copied.numel()});
      sum = ops::on<host>::hash(here, name, first_index);
    });
    return sum;
  }

 private:
  template <class T>
  static torch::Tensor tensor_over(view<T> x) {
    using element = std::remove_const_t<T>;
    auto const options = at::TensorOptions().device(torch_space<Space>::device).dtype(torch_type(dtype_of<element>));
    return torch::from_blob(const_cast<element*>(x.address()), {x.size()}, options);
  }
  template <class T, class F>
  static void queued(view<T> x, F&& f) {
    if (x.empty()) return;
    [[maybe_unused]] typename torch_space<Space>::on_stream const guard;
    torch::NoGradGuard const no_grad;
    f(tensor_over(x));
  }
};

}  // namespace trireme::interop::detail
