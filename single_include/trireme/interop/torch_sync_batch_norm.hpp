// Trireme 0.1.0: trireme/interop/torch_sync_batch_norm.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 89cedb5867ea133a7d4861d6e5e84e795a2a878a2b8968603b9586ce65d13d4e
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_sync_batch_norm.hpp
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#ifndef TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED
#define TRIREME_INTEROP_DETAIL_TORCH_MODULE_INCLUDED

// ---- trireme/interop/detail/torch_module.hpp
#include <algorithm>
#include <concepts>
#include <cstring>
#include <functional>
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

/// A tensor of a module, under the first of its names: a tied one is listed once.
struct named_tensor {
  std::string name;
  torch::Tensor tensor;
};

[[nodiscard]] inline std::vector<named_tensor> listed(torch::OrderedDict<std::string, torch::Tensor> const& all,
                                                      char const* kind) {
  std::vector<named_tensor> list;
  for (auto const& item : all) {
    auto const& tensor = item.value();
    if (!tensor.defined()) continue;  // a batch normalisation without running statistics has such buffers
    if (std::any_of(list.begin(), list.end(), [&](auto const& each) { return each.tensor.is_same(tensor); })) continue;
    if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided || !tensor.is_contiguous()) {
      throw config_error(text("trireme::interop: ", kind, " \"", item.key(),
                              "\" is not a dense row-major tensor of the CPU; other devices and layouts are not "
                              "supported yet (contiguous() makes it row-major)"));
    }
    list.push_back({item.key(), tensor});
  }
  return list;
}
[[nodiscard]] inline std::vector<named_tensor> parameters_of(torch::nn::Module const& module) {
  return listed(module.named_parameters(), "parameter");
}
[[nodiscard]] inline std::vector<named_tensor> buffers_of(torch::nn::Module const& module) {
  return listed(module.named_buffers(), "buffer");
}

[[nodiscard]] inline shape shape_of(torch::Tensor const& tensor) {
  if (tensor.dim() > shape::max_rank) return shape{tensor.numel()};
  shape extents;
  for (auto const extent : tensor.sizes()) extents.push_back(extent);
  return extents;
}
/// All of a contiguous tensor, in its own memory.
/// Errors  config_error if its elements are of another type.
template <element T>
[[nodiscard]] tensor_view<T> view_of(torch::Tensor const& tensor) {
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
[[nodiscard]] inline tensor_view<std::byte> bytes_of(torch::Tensor const& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), shape{static_cast<std::int64_t>(tensor.nbytes())}};
}

/// Samples as a tensor, without a copy: valid as long as the samples are.
[[nodiscard]] inline torch::Tensor tensor_of(any_view<> const& view) {
  auto const type = torch_type(view.type);
  if (type == at::ScalarType::Undefined) {
    throw config_error(text("trireme::interop: samples of ", name_of(view.type), " have no type in torch"));
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
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      auto accumulator = torch::autograd::impl::grad_accumulator(parameters[place]);
      auto const key = accumulator->add_post_hook(std::make_unique<hook>(f_, place));
      held_.push_back({std::move(accumulator), key});
    }
  }
  gradient_hooks(gradient_hooks const&) = delete;
  gradient_hooks& operator=(gradient_hooks const&) = delete;
  ~gradient_hooks() {
    for (auto& each : held_) each.accumulator->del_post_hook(each.key);
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

  listener f_;
  std::vector<held> held_;
};

/// Collective. The ranks hold the same tensors: names, shapes, types, and what is trained.
/// Errors  config_error on every rank that names the first one that differs.
template <class Comm>
void expect_equal_modules(torch::nn::Module const& module, Comm& world) {
  std::vector<std::string> entries;
  for (auto const& each : parameters_of(module)) {
    entries.push_back(text("parameter \"", each.name, "\" of ", c10::toString(each.tensor.scalar_type()),
                           to_string(shape_of(each.tensor)), each.tensor.requires_grad() ? "" : ", not trained"));
  }
  for (auto const& each : buffers_of(module)) {
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

/// The buffers of a module, which ranks make equal in one message.
class shared_tensors {
 public:
  explicit shared_tensors(std::vector<named_tensor> all) : all_(std::move(all)) {
    for (auto const& each : all_) bytes_ += each.tensor.nbytes();
  }
  [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }

  /// Collective. Every rank gets those of `root`.
  template <class Comm>
  void broadcast(Comm& world, int root) {
    if (empty() || world.size() == 1) return;
    packed_.resize(bytes_);
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
  template <class F>
  void for_each_part(std::byte* part, F&& f) {
    for (auto const& each : all_) {
      if (each.tensor.nbytes() == 0) continue;
      f(each.tensor, part);
      part += each.tensor.nbytes();
    }
  }

  std::vector<named_tensor> all_;
  std::size_t bytes_ = 0;
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

// ---- trireme/interop/torch_sync_batch_norm.hpp (goes on)
namespace trireme::interop {

namespace detail {

/// Adds numbers up over ranks: a communicator behind one virtual call, so that a module's type does not name it.
struct rank_sums : torch::CustomClassHolder {
  virtual void add_up(tensor_view<double> numbers) = 0;
};
template <class Comm>
struct rank_sums_of final : rank_sums {
  explicit rank_sums_of(Comm ranks) : world(std::move(ranks)) {}
  void add_up(tensor_view<double> numbers) override { world.all_reduce(numbers, reduction::sum{}); }
  Comm world;
};
using shared_rank_sums = c10::intrusive_ptr<rank_sums>;

/// Adds up what is in one tensor of double, in place.
inline void add_up(shared_rank_sums const& ranks, torch::Tensor const& numbers) {
  if (ranks) ranks->add_up(view_of<double>(numbers));
}

/// One number a channel, of the shape that broadcasts to (n, channels, ...).
[[nodiscard]] inline torch::Tensor by_channel(torch::Tensor const& numbers, torch::Tensor const& like) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(like.dim()), 1);
  sizes[1] = numbers.numel();
  return numbers.to(like.scalar_type()).view(sizes);
}
/// All dimensions but that of the channels.
[[nodiscard]] inline std::vector<std::int64_t> reduced_dimensions(torch::Tensor const& x) {
  std::vector<std::int64_t> all{0};
  for (std::int64_t d = 2; d < x.dim(); ++d) all.push_back(d);
  return all;
}

/// Statistics of (n, channels, ...) over all ranks: one message, of 2 channels + 1 numbers.
struct batch_statistics {
  torch::Tensor mean, variance;  // (channels), double; the variance is that of the batch, not an estimate
  double count;                  // of elements a channel
};
[[nodiscard]] inline batch_statistics statistics_over(shared_rank_sums const& ranks, torch::Tensor const& x) {
  auto const channels = x.size(1);
  auto const own = static_cast<double>(x.numel() / channels);
  auto const sums = torch::zeros({2 * channels + 1}, at::kDouble);
  if (own > 0) {
    auto const [variance, mean] = torch::var_mean(x, reduced_dimensions(x), false, false);
    auto const wide = mean.to(at::kDouble);
    sums.slice(0, 0, channels).copy_(wide * own);
    // The sum of squares comes from the variance, in double: what cancels below is exact to float's precision.
    sums.slice(0, channels, 2 * channels).copy_((variance.to(at::kDouble) + wide.square()) * own);
    sums[2 * channels].fill_(own);
  }
  add_up(ranks, sums);
  auto const count = sums[2 * channels].item<double>();
  auto const mean = sums.slice(0, 0, channels) / count;
  auto const squares = sums.slice(0, channels, 2 * channels) / count;
  return {mean, (squares - mean.square()).clamp_min(0), count};
}

/// y = (x - mean) / sqrt(variance + eps) * weight + bias, where mean and variance are those of all ranks' x.
///
/// Method: backward needs two sums a channel over the ranks, of dy and of dy (x - mean): one message, too
/// [Ioffe, Szegedy, 2015].
struct normalise_over_ranks : torch::autograd::Function<normalise_over_ranks> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor const& x,
                               torch::Tensor const& weight, torch::Tensor const& bias, torch::Tensor const& mean,
                               torch::Tensor const& variance, double count, double eps, shared_rank_sums ranks) {
    ctx->save_for_backward({x, weight, mean, (variance + eps).rsqrt()});
    ctx->saved_data["count"] = count;
    if (ranks) ctx->saved_data["ranks"] = c10::IValue::make_capsule(std::move(ranks));
    auto const type = x.scalar_type();
    return torch::batch_norm(x, weight, bias, mean.to(type), variance.to(type), false, 0, eps, false);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list const& gradients) {
    auto const saved = ctx->get_saved_variables();
    auto const &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    auto const& dy = gradients[0];
    auto const channels = x.size(1);
    auto const dimensions = reduced_dimensions(x);
    auto const centred = x - by_channel(mean, x);
    auto const sums = torch::empty({2 * channels}, at::kDouble);
    sums.slice(0, 0, channels).copy_(dy.sum(dimensions));
    sums.slice(0, channels).copy_((dy * centred).sum(dimensions));
    auto const dbias = sums.slice(0, 0, channels).to(x.scalar_type(), false, true);  // of this rank: copied first
    auto const dweight = (sums.slice(0, channels) * inverse).to(x.scalar_type());
    if (auto const ranks = ctx->saved_data.find("ranks"); ranks != ctx->saved_data.end())
      add_up(c10::static_intrusive_pointer_cast<rank_sums>(ranks->second.toCapsule()), sums);
    auto const means = sums / ctx->saved_data["count"].toDouble();
    auto const slope = by_channel(means.slice(0, channels) * inverse.square(), x);
    auto const scale = by_channel(inverse * weight, x);
    auto const dx = (dy - by_channel(means.slice(0, 0, channels), x)).sub_(centred.mul_(slope)).mul_(scale);
    torch::Tensor const none;
    return {dx, dweight, dbias, none, none, none, none, none};
  }
};

}  // namespace detail

/// Batch normalisation whose statistics in training are those of all ranks' batches together: torch.nn.SyncBatchNorm.
///
/// It has the options, parameters and buffers of torch::nn::BatchNorm1d to 3d, so files of those fit. Until
/// synchronize(module, world) gives it ranks it computes as they do.
///
/// Shapes   x (n, channels, ...) -> the same; ranks may have different n, also 0.
/// Bytes    in training one message of 16 channels + 8 bytes forward and one of 16 channels backward.
/// Ranks    collective in training: all ranks run forward and backward of the same normalisations, in the same order,
///          as often; so not with join(). In eval() nothing is exchanged.
/// Numerics statistics are combined in double, in rank order; running statistics are the same on all ranks. Computed in
///          the parameters' type where x has another one.
/// Threads  one owner. Copies made by clone() have no ranks.
/// Errors   config_error for a shape that does not fit; comm_error from the world.
class sync_batch_norm_impl : public torch::nn::NormImplBase<1, sync_batch_norm_impl, torch::nn::BatchNormOptions> {
  using base = torch::nn::NormImplBase<1, sync_batch_norm_impl, torch::nn::BatchNormOptions>;

 public:
  explicit sync_batch_norm_impl(torch::nn::BatchNormOptions const& of) : base(of) {}

  torch::Tensor forward(torch::Tensor const& given) {
    _check_input_dim(given);
    auto const x = weight.defined() ? given.to(weight.scalar_type()) : given;
    bool const own_statistics = is_training() || !running_mean.defined();
    if (!own_statistics) {
      return torch::batch_norm(x, weight, bias, running_mean, running_var, false, 0, options.eps(), false)
          .to(given.scalar_type());
    }
    auto const ranks = is_training() ? ranks_ : detail::shared_rank_sums();
    detail::batch_statistics found;
    {
      torch::NoGradGuard const guard;
      found = detail::statistics_over(ranks, x);
      if (is_training()) track(found);
    }
    auto const scale = weight.defined() ? weight : torch::ones({x.size(1)}, x.options());
    auto const shift = bias.defined() ? bias : torch::zeros({x.size(1)}, x.options());
    return detail::normalise_over_ranks::apply(x, scale, shift, found.mean, found.variance, found.count, options.eps(),
                                               ranks)
        .to(given.scalar_type());
  }
  void pretty_print(std::ostream& out) const override {
    out << "trireme::interop::sync_batch_norm(" << options.num_features() << ", eps=" << options.eps() << ")";
  }

  /// From now on statistics are those of these ranks. Called by synchronize().
  void over(detail::shared_rank_sums ranks) { ranks_ = std::move(ranks); }

 protected:
  void _check_input_dim(torch::Tensor const& x) override {  // NOLINT: torch's name
    if (x.dim() >= 2 && x.size(1) == options.num_features()) return;
    throw config_error(text("trireme::interop::sync_batch_norm: an input of shape ", to_string(detail::shape_of(x)),
                            " is not (n, ", options.num_features(), ", ...)"));
  }

 private:
  void track(detail::batch_statistics const& found) {
    if (!running_mean.defined()) return;
    num_batches_tracked += 1;
    auto const share =
        options.momentum() ? *options.momentum() : 1.0 / static_cast<double>(num_batches_tracked.item<std::int64_t>());
    auto const unbiased = found.variance * (found.count / (found.count - 1));
    running_mean.mul_(1 - share).add_(found.mean.to(running_mean.scalar_type()), share);
    running_var.mul_(1 - share).add_(unbiased.to(running_var.scalar_type()), share);
  }

  detail::shared_rank_sums ranks_;
};
TORCH_MODULE_IMPL(sync_batch_norm, sync_batch_norm_impl);

/// Collective. From now on every sync_batch_norm in a module has the statistics of all ranks of `world`.
///
/// Their messages have a communicator of their own, so they may come between those of data_parallel's buckets in
/// another order on each rank.
///
/// @param module  a torch::nn::ModuleHolder or a std::shared_ptr of a module. Batch normalisations of other types stay
///                as they are: C++ cannot exchange a member of somebody's class.
/// @returns how many there are; throws config_error if there is none.
template <class Module, class Comm>
int synchronize(Module const& module, Comm& world) {
  detail::shared_rank_sums ranks = c10::make_intrusive<detail::rank_sums_of<Comm>>(world.duplicate());
  int count = 0;
  for (auto const& each : detail::module_of(module)->modules()) {
    if (auto* const found = each->template as<sync_batch_norm_impl>()) found->over(ranks), ++count;
  }
  if (count == 0) {
    throw config_error(
        "trireme::interop::synchronize: the module has no sync_batch_norm; use it in place of torch::nn::BatchNorm");
  }
  return count;
}

}  // namespace trireme::interop
