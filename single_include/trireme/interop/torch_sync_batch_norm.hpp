// Trireme 0.1.0: trireme/interop/torch_sync_batch_norm.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: d107fa45450aa0a22aff0df370e19148c08a3e0c5eb21f3cba6b162d8de9f7e7
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/interop/torch_rank_group.hpp"

// ---- trireme/interop/torch_sync_batch_norm.hpp
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <utility>
#include <vector>

namespace trireme::interop {

namespace detail {

/// Reshapes one number a channel so that it broadcasts to (n, channels, ...).
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

/// Statistics of (n, channels, ...) over all ranks, by one message of 2 * channels + 1 numbers.
struct batch_statistics {
  torch::Tensor mean, variance;  // (channels), double; the variance is that of the batch, not an estimate
  double count;                  // of elements a channel
};
[[nodiscard]] inline batch_statistics statistics_over(rank_group const& ranks, torch::Tensor const& x) {
  auto const channels = x.size(1);
  auto const own = static_cast<double>(x.numel() / channels);
  auto const sums = torch::zeros({2 * channels + 1}, at::kDouble);
  if (own > 0) {
    auto const [variance, mean] = torch::var_mean(x, reduced_dimensions(x), false, false);
    auto const wide = mean.to(at::kDouble);
    sums.slice(0, 0, channels).copy_(wide * own);
    // The sum of squares is computed in double from the variance, so that the subtraction below keeps float's
    // precision.
    sums.slice(0, channels, 2 * channels).copy_((variance.to(at::kDouble) + wide.square()) * own);
    sums[2 * channels].fill_(own);
  }
  ranks.add_up(sums);
  auto const count = sums[2 * channels].item<double>();
  auto const mean = sums.slice(0, 0, channels) / count;
  auto const squares = sums.slice(0, channels, 2 * channels) / count;
  return {mean, (squares - mean.square()).clamp_min(0), count};
}

/// y = (x - mean) / sqrt(variance + eps) * weight + bias, where mean and variance are those of all ranks' x.
///
/// Method: backward needs two sums a channel over the ranks, of dy and of dy (x - mean), in one message
/// [Ioffe, Szegedy, 2015].
struct normalise_over_ranks : torch::autograd::Function<normalise_over_ranks> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, torch::Tensor const& x,
                               torch::Tensor const& weight, torch::Tensor const& bias, torch::Tensor const& mean,
                               torch::Tensor const& variance, double count, double eps, rank_group const& ranks) {
    ctx->save_for_backward({x, weight, mean, (variance + eps).rsqrt()});
    ctx->saved_data["count"] = count;
    ctx->saved_data["ranks"] = ranks.packed();
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
    auto const dbias = sums.slice(0, 0, channels).to(x.scalar_type(), false, true);  // copied before add_up()
    auto const dweight = (sums.slice(0, channels) * inverse).to(x.scalar_type());
    rank_group::unpacked(ctx->saved_data["ranks"]).add_up(sums);
    auto const means = sums / ctx->saved_data["count"].toDouble();
    auto const slope = by_channel(means.slice(0, channels) * inverse.square(), x);
    auto const scale = by_channel(inverse * weight, x);
    auto const dx = (dy - by_channel(means.slice(0, 0, channels), x)).sub_(centred.mul_(slope)).mul_(scale);
    torch::Tensor const none;
    return {dx, dweight, dbias, none, none, none, none, none};
  }
};

}  // namespace detail

/// Batch normalisation which in training uses the statistics of all ranks' batches together: torch.nn.SyncBatchNorm.
///
/// It has the options, parameters and buffers of torch::nn::BatchNorm1d to 3d, so it can read their files. Before
/// synchronize(module, world) is called it computes as they do.
///
/// Shapes   x (n, channels, ...) -> the same; ranks may have different n, also 0.
/// Bytes    in training one message of 16 * channels + 8 bytes forward and one of 16 * channels bytes backward.
/// Ranks    collective in training: all ranks run forward and backward of the same normalisations, in the same order
///          and equally often; so it cannot be used with join(). In eval() nothing is exchanged.
/// Numerics statistics are combined in double, in rank order; running statistics are the same on all ranks. If x has
///          another type than the parameters, it is computed in theirs.
/// Threads  one owner. Copies made by clone() are not synchronised.
/// Errors   config_error for a shape that does not fit, or, on all ranks, for less than two values a channel in
///          training; comm_error from the world.
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
    auto const ranks = is_training() ? ranks_ : rank_group();
    detail::batch_statistics found;
    {
      torch::NoGradGuard const guard;
      found = detail::statistics_over(ranks, x);
      if (is_training()) {
        expect_variance(found);
        track(found);
      }
    }
    auto const scale = weight.defined() ? weight : torch::ones({x.size(1)}, x.options());
    auto const shift = bias.defined() ? bias : torch::zeros({x.size(1)}, x.options());
    return detail::normalise_over_ranks::apply(x, scale, shift, found.mean, found.variance, found.count, options.eps(),
                                               ranks)
        .to(given.scalar_type());
  }
  void pretty_print(std::ostream& out) const override {
    out << text("trireme::interop::sync_batch_norm(", options.num_features(), ", eps=", options.eps(), ")");
  }

  /// Sets the ranks over which statistics are computed. Called by synchronize().
  void over(rank_group ranks) { ranks_ = std::move(ranks); }

 protected:
  void _check_input_dim(torch::Tensor const& x) override {  // NOLINT: torch's name
    if (x.dim() >= 2 && x.size(1) == options.num_features()) return;
    throw config_error(text("trireme::interop::sync_batch_norm: an input of shape ", to_string(detail::shape_of(x)),
                            " is not (n, ", options.num_features(), ", ...)"));
  }

 private:
  static void expect_variance(detail::batch_statistics const& found) {
    if (found.count > 1) return;
    throw config_error(text("trireme::interop::sync_batch_norm: all ranks together have ", found.count,
                            " values a channel, which have no variance; train on larger batches"));
  }
  void track(detail::batch_statistics const& found) {
    if (!running_mean.defined()) return;
    num_batches_tracked += 1;
    auto const share =
        options.momentum() ? *options.momentum() : 1.0 / static_cast<double>(num_batches_tracked.item<std::int64_t>());
    auto const unbiased = found.variance * (found.count / (found.count - 1));
    running_mean.mul_(1 - share).add_(found.mean.to(running_mean.scalar_type()), share);
    running_var.mul_(1 - share).add_(unbiased.to(running_var.scalar_type()), share);
  }

  rank_group ranks_;
};
TORCH_MODULE_IMPL(sync_batch_norm, sync_batch_norm_impl);

/// Collective. From now on every sync_batch_norm in a module uses the statistics of all ranks of `world`.
///
/// Its messages use a duplicate of the communicator, so they may be mixed with those of data_parallel's buckets in a
/// different order on each rank.
///
/// @param module  a module, a torch::nn::ModuleHolder or a std::shared_ptr of one. Batch normalisations of other types
///                stay as they are: a member of a C++ class has a fixed type.
/// @returns the number of sync_batch_norm layers; throws config_error if there is none.
template <class Module, class Comm>
int synchronize(Module const& module, Comm& world) {
  rank_group const ranks(world);
  int count = 0;
  auto const give = [&](torch::nn::Module& each) {
    if (auto* const found = each.as<sync_batch_norm_impl>()) found->over(ranks), ++count;
  };
  auto const held = detail::lent_module(module);
  give(const_cast<torch::nn::Module&>(static_cast<torch::nn::Module const&>(*held)));
  for (auto const& each : held->modules(false)) give(*each);  // modules() with itself would need a shared_ptr to it
  if (count == 0) {
    throw config_error(
        "trireme::interop::synchronize: the module has no sync_batch_norm; use it in place of torch::nn::BatchNorm");
  }
  return count;
}

}  // namespace trireme::interop
