// Trireme 0.1.0: trireme/nn/batch_norm.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 9ee8450ba944140d3b1253a5bd0f33602c62626ecaf3b98d1ae959bf0baa2c17
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/ops/batch_norm.hpp"
#include "trireme/ops/sets/batch_norm.hpp"

// ---- trireme/nn/batch_norm.hpp
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace trireme::nn {

/// y = (x - mean) / sqrt(variance + epsilon) * gain + bias, channel by channel: of images over rows and pixels, of
/// other rows over rows.
///
/// In training, mean and variance are those of a micro-batch, or with `synchronised` those of the micro-batches that
/// all data ranks run at the same time, as if they were one (PyTorch's SyncBatchNorm). Else running statistics are
/// used: exponential moving averages, which are parameters that are not trained (parameter_info::running). In each step
/// running = (1 - momentum) * running + momentum * measured, where `measured` is the mean over all micro-batches of all
/// ranks, weighted by samples. The running variance is divided by n - 1, as PyTorch's is.
///
/// Shapes   x, y (rows, width); weight, bias, running_mean and running_var (channels); without images each
///          number of a row is a channel.
/// Bytes    keeps x; and mean, variance and 1 / standard deviation of each channel.
/// Ranks    data, zero and pipelines: the same micro-batches give the same numbers, on however many ranks. Each is
///          normalised by itself. Where a sequence cuts rows, all of them are normalised over: two sums over the group
///          in the forward pass, one in backward.
///          synchronised: m micro-batches on each of p ranks are m micro-batches of p times the samples on one. Sums
///          over the data ranks are of 2 channels + 2 numbers in the forward pass, in two steps, and of 2 channels in
///          backward; ranks with fewer micro-batches take part. The model says `static constexpr bool synchronises =
///          true`. Not under parallel::diloco, context and expert, nor with .reproducible.
/// Numerics sums over rows in double, but each rank's are rounded to the accumulate type.
/// Method   [Ioffe, Szegedy, "Batch normalization", 2015].
/// Errors   config_error for an epsilon or a momentum out of range, where parallel::context cuts samples, and for
///          `synchronised` on several data ranks in a model that does not say so.
struct batch_norm {
  TRIREME_NEEDS_KERNELS("nn::batch_norm", batch_norm);
  static constexpr nn::flow flow = nn::flow::rows;
  double epsilon = 1e-5;
  double momentum = 0.1;
  bool synchronised = false;  ///< over all data ranks
  friend bool operator==(batch_norm const&, batch_norm const&) = default;
};

namespace detail {

template <class Env>
class layer_node<Env, batch_norm> final : public library_node<Env, batch_norm> {
  using library_node<Env, batch_norm>::what_;
  using kernels = ops::on<typename Env::space>;
  using norms = ops::batch_norm_on<typename Env::space>;

 public:
  using typename node<Env>::view;
  using typename node<Env>::space;

  using library_node<Env, batch_norm>::library_node;
  void visit(parameter_visitor<Env> const& each) override {
    each(gain_);
    each(bias_);
    each(running_mean_);
    each(running_variance_);
  }
  held<Env> forward(pass<Env>& pass, held<Env> x, arena_of<Env>& to, view) override {
    auto const y = to.template take<typename Env::compute>(x.v.extents());
    auto const rows = by_channel(x.v);
    auto& kept = kept_[pass];
    auto& memory = pass.backward_follows() ? pass.activations : pass.scratch;
    kept = {take(memory), take(memory), take(memory), 1};
    if (pass.training()) {
      norms::column_sums(kept.mean, rows);
      sum(pass, kept.mean);
      kept.n = count(pass, rows);
      if (joins(pass)) kept.n = join(pass, kept.mean, kept.n);
      auto const n = static_cast<double>(kept.n);
      kernels::scale(kept.mean, 1 / n);
      norms::column_squares(kept.variance, rows, kept.mean);
      sum(pass, kept.variance);
      if (joins(pass)) replica_group<Env>::of(pass).sum(kept.variance);
      kernels::scale(kept.variance, 1 / n);
    } else {
      kernels::copy(kept.mean, running_mean_.value);
      kernels::copy(kept.variance, running_variance_.value);
    }
    norms::inverse_deviation(kept.rstd, kept.variance, what_.epsilon);
    norms::normalise(by_channel(y), rows, kept.mean, kept.rstd, gain_.value, bias_.value);
    return {y, true};
  }
  void backward_input(pass<Env>& pass, layer_input<Env> x, view, view dy, target<Env> to, half) override {
    auto const& kept = kept_[pass];
    auto const rows = by_channel(x.here), d = by_channel(dy);
    auto const mark = pass.scratch.mark();
    auto const both = pass.scratch.template take<number>({2 * channels_});
    auto const of_dy = both.flat(0, channels_), of_both = both.flat(channels_, channels_);
    if (pass.training()) {
      norms::column_gradients(of_dy, of_both, d, rows, kept.mean, kept.rstd);
      kernels::accumulate(bias_.gradient, of_dy, 1.0);
      kernels::accumulate(gain_.gradient, of_both, 1.0);
      sum(pass, both);
      if (joins(pass)) replica_group<Env>::of(pass).sum(both);
    } else {  // running statistics do not depend on x
      kernels::fill(both, 0.0);
    }
    norms::normalise_backward(by_channel(to.into), d, rows, kept.mean, kept.rstd, gain_.value, of_dy, of_both, kept.n,
                              to.accumulate);
    pass.scratch.rewind(mark);
    if (pass.training()) measure(pass, kept.n);
  }
  void shadow_forward(pass<Env>& pass) override {
    if (!joins(pass)) return;
    auto const mark = pass.scratch.mark();
    auto const zeros = take(pass.scratch);
    kernels::fill(zeros, 0.0);
    static_cast<void>(join(pass, zeros, 0));
    kernels::fill(zeros, 0.0);
    replica_group<Env>::of(pass).sum(zeros);
    pass.scratch.rewind(mark);
  }
  void shadow_backward(pass<Env>& pass) override {
    if (!joins(pass)) return;
    auto const mark = pass.scratch.mark();
    auto const zeros = pass.scratch.template take<number>({2 * channels_});
    kernels::fill(zeros, 0.0);
    replica_group<Env>::of(pass).sum(zeros);
    pass.scratch.rewind(mark);
  }

 private:
  using number = typename Env::accumulate;
  using sums = tensor_view<number, space>;
  struct saved {
    sums mean, variance, rstd;  // (channels)
    std::int64_t n = 1;         // numbers of a channel that they are of
  };
  void do_place(placing<Env>& at, layer_step const&) override {
    if (!positive.holds(what_.epsilon) || !(what_.momentum > 0 && what_.momentum <= 1)) {
      throw config_error(text("trireme::nn::batch_norm ", at.name, ": epsilon ", what_.epsilon, ", momentum ",
                              what_.momentum, "; epsilon is above 0, and momentum in (0, 1]"));
    }
    if (context_group<Env>::of(at.groups).size() > 1) {
      throw config_error(text("trireme::nn::batch_norm ", at.name,
                              ": it normalises over whole micro-batches, of which parallel::context gives each rank "
                              "other positions; take nn::layer_norm, or leave that axis out"));
    }
    if (what_.synchronised && !replica_group<Env>::of(at.groups).meets()) {
      throw config_error(
          text("trireme::nn::batch_norm ", at.name,
               ": .synchronised normalises over all data ranks, but the model does not say so; give it a "
               "static constexpr bool synchronises = true"));
    }
    width_ = at.width;
    channels_ = at.image.size() == at.width ? at.image.channels : at.width;
    shape const each{channels_};
    gain_.info = {at.name + ".weight", each, {initial::distribution::ones, 0}, false};
    bias_.info = {at.name + ".bias", each, {}, false};
    running_mean_.info = {at.name + ".running_mean", each, {}, false};
    running_variance_.info = {at.name + ".running_var", each, {initial::distribution::ones, 0}, false};
    running_mean_.info.running = running_variance_.info.running = what_.momentum;
  }
  // What the exchange makes the running statistics of; see parameter_info::running.
  void measure(pass<Env> const& pass, std::int64_t n) {
    auto const& kept = kept_[pass];
    double const ranks = pass.group.cuts_rows() ? pass.group.size() : 1;  // which all add the same
    double const weight = pass.weight * static_cast<double>(pass.batch.count()) / ranks;
    kernels::accumulate(running_mean_.gradient, kept.mean, weight);
    auto const free = static_cast<double>(std::max<std::int64_t>(1, n - 1));
    kernels::accumulate(running_variance_.gradient, kept.variance, weight * static_cast<double>(n) / free);
  }
  [[nodiscard]] sums take(arena<space>& memory) const { return memory.template take<number>({channels_}); }
  [[nodiscard]] view by_channel(view x) const { return x.reshaped({x.size() / channels_, channels_}); }
  // How many numbers of a channel there are, with those that lie on other ranks of the group.
  [[nodiscard]] std::int64_t count(pass<Env> const& pass, view rows) const {
    if (!pass.group.cuts_rows()) return rows.extent(0);
    return rows_of(pass) * (width_ / channels_);
  }
  [[nodiscard]] bool joins(pass<Env> const& pass) const {
    return what_.synchronised && pass.training() && replica_group<Env>::of(pass).size() > 1;
  }
  // Sums over the replicas, and n of all of them, which travels along in two numbers that are exact as floats.
  [[nodiscard]] std::int64_t join(pass<Env>& pass, sums values, std::int64_t n) const {
    constexpr std::int64_t high = 4096;
    std::array<number, 2> counts{static_cast<number>(n / high), static_cast<number>(n % high)};
    auto const mark = pass.scratch.mark();
    auto const all = pass.scratch.template take<number>({channels_ + 2});
    kernels::copy(all.flat(0, channels_), values);
    kernels::upload(all.flat(channels_, 2), std::span<number const>(counts));
    replica_group<Env>::of(pass).sum(all);
    kernels::copy(values, all.flat(0, channels_));
    kernels::download(std::span<number>(counts), all.flat(channels_, 2));
    pass.scratch.rewind(mark);
    return static_cast<std::int64_t>(counts[0]) * high + static_cast<std::int64_t>(counts[1]);
  }
  static void sum(pass<Env>& pass, sums values) {
    if (pass.group.cuts_rows()) pass.group.sum(values);
  }

  std::int64_t channels_ = 0, width_ = 0;
  parameter<Env> gain_{}, bias_{}, running_mean_{}, running_variance_{};
  per_micro_batch<saved> kept_;
};

}  // namespace detail

}  // namespace trireme::nn
