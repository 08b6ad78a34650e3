// Trireme 0.1.0: trireme/parallel/federated.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 1abf8f38a331d63137e591f7bd4bb6c17c6d6005fc8fd46212b07fcbb32e3be7
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/parallel/federated.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::parallel {

/// Federated averaging: each rank is a client with samples of its own. In a round, `chosen` of the clients take
/// `period` steps alone, on the mean loss of their own samples; then all clients get the mean of their parameters,
/// weighted by the samples that each has trained on.
///
/// Method   FedAvg [McMahan et al., 2017]; with .proximal, FedProx [Li et al., 2020]: the loss of a client gets
///          proximal / 2 times the squared distance of its parameters to those at the beginning of the round. What
///          clients send is a change of parameters, and takes the run's compressor.
/// Bytes    2 n (p-1)/p elements of the master type, n parameters, p ranks, once in `period` steps; with a compressor
///          its payloads, as in parallel::data. In each step the numbers of samples, 8 (p-1) bytes. Memory: two more
///          tensors of the size of the masters, and the compressor's.
/// Ranks    which clients are chosen is a function of (.seed, round): see chooses(). A client that is not chosen
///          computes on its samples for nothing: give it none (trainer.step() with no samples, begin(0) in your own
///          loop). A client without samples in a step keeps its parameters in it, so clients may have different
///          numbers of steps in a round; an optimizer's moments see a gradient of zero then. A step in which no client
///          has samples counts, too, and may end a round. A client may be a mesh: mesh{federated{.ways = 10},
///          zero<1>{}}. Between rounds parameters differ between ranks. A checkpoint may be taken at any step, and
///          continues with the same number of clients.
/// Numerics losses that are reported are means over the samples of all ranks. Clipping looks at the root mean square of
///          the clients' norms, without the proximal term. Moving averages (batch normalisation) are averaged with the
///          same weights.
/// Needs    has_all_reduce of the master type, and has_all_gather.
/// @example auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.1, .momentum = 0}, world,
///                                      parallel::federated{.period = 20, .chosen = 3});
struct federated {
  using policy_category = slot::parallel;
  std::int64_t period = 20;                            ///< steps of a round
  int chosen = 0;                                      ///< clients that train in a round; 0: all
  double proximal = 0;                                 ///< FedProx's factor; 0: none
  std::uint64_t seed = 0;                              ///< of the choice of clients
  std::int64_t bucket_bytes = std::int64_t{25} << 20;  ///< parameters averaged together, in bytes of gradients
  int ways = 0;                                        ///< clients; 0: the ranks that other axes leave
  friend bool operator==(federated const&, federated const&) = default;

  void validate() const {
    expect_number("parallel::federated", ".period", period, at_least_one);
    expect_number("parallel::federated", ".chosen", chosen, not_negative);
    expect_number("parallel::federated", ".proximal", proximal, not_negative);
    expect_number("parallel::federated", ".bucket_bytes", bucket_bytes, at_least_one);
    expect_number("parallel::federated", ".ways", ways, not_negative);
  }

  /// Whether a client trains in a round. Each set of `chosen` clients is as likely as any other.
  /// @param round  number of steps taken / period.
  [[nodiscard]] bool chooses(std::int64_t round, int client, int clients) const noexcept {
    if (chosen == 0 || chosen >= clients) return true;
    // One client after the other: with `left` still to be chosen of the last `n`, the next one is with left / n.
    int left = chosen;
    for (int each = 0; each <= client; ++each) {
      auto const n = static_cast<std::uint64_t>(clients - each);
      auto const words =
          random_block({seed, static_cast<std::uint64_t>(round)}, client_site, static_cast<std::uint64_t>(each), 0);
      bool const is_in = (std::uint64_t{words[0]} * n) >> 32U < static_cast<std::uint64_t>(left);
      if (each == client) return is_in;
      left -= is_in ? 1 : 0;
    }
    return false;
  }

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr bool local_steps = true;
  static constexpr bool mean_of_own_samples = true;
  static constexpr bool sends_changes = true;
  static constexpr std::string_view name = "federated";

  template <class Env, class Comm>
  class instance;

 private:
  static constexpr std::uint32_t client_site = 0xfed;
};

[[nodiscard]] inline std::string to_string(federated const& f) {
  return text("parallel::federated{.period = ", f.period, f.chosen != 0 ? text(", .chosen = ", f.chosen) : "",
              f.proximal > 0 ? text(", .proximal = ", f.proximal) : "", f.seed != 0 ? text(", .seed = ", f.seed) : "",
              ", .bucket_bytes = ", f.bucket_bytes, f.ways != 0 ? text(", .ways = ", f.ways) : "", "}");
}

/// The parameters at the beginning of the round, and the samples that each client has trained on in it.
template <class Env, class Comm>
class federated::instance {
  using space = typename Env::space;
  using master = typename Env::master;
  using view = tensor_view<master, space>;
  using kernels = ops::on<space>;

 public:
  static constexpr strategy_hooks has{
      .begin = true, .settle = true, .end = true, .follow = true, .state = true, .numbers = true};

  instance(federated const& what, owned_state<Env, Comm> const& state) : what_(what), state_(state) {
    what.validate();
    if (what.chosen > state.replicas.size()) {
      throw config_error(text("trireme::parallel::federated: .chosen = ", what.chosen, " of ", state.replicas.size(),
                              " clients; choose at most as many as there are"));
    }
    auto const& plan = state.own.plan();
    for (int b = 0; b < plan.trained_buckets(); ++b) {
      start_.emplace_back(shape{state.own.owned(b).count});
      buckets_.push_back(b);
    }
    samples_.resize(static_cast<std::size_t>(state.replicas.size()));
    seen_.resize(samples_.size());
  }

  [[nodiscard]] std::int64_t period() const noexcept { return what_.period; }
  void begin(std::int64_t samples) {
    samples_[client()] = samples;
    state_.replicas.all_gather(tensor_view<std::int64_t>(samples_));
  }

  /// Adds the proximal term to this client's gradients. A client without samples notes its values.
  std::optional<gradient_numbers> settle(bool taken, gradient_numbers const& exchanged) {
    if (!taken) return std::nullopt;
    for (std::size_t c = 0; c < seen_.size(); ++c) seen_[c] += samples_[c];
    keeps_values_ = samples_[client()] == 0;
    if (!keeps_values_ && !(what_.proximal > 0)) return exchanged;
    open();
    for (auto const& each : state_.all) {
      auto const buffer = change(each);
      copy(buffer, each.value);
      if (keeps_values_ || each.info->running > 0) continue;
      kernels::scale(buffer, -1.0);
      kernels::add(buffer, constant(at_start(each)));
      kernels::accumulate(each.sum, constant(buffer), -what_.proximal * exchanged.scale);
    }
    return exchanged;
  }
  bool end(std::int64_t step) {
    bool const kept = std::exchange(keeps_values_, false);
    if (kept) {
      for (auto const& each : state_.all) copy(each.value, change(each));
    }
    if ((step + 1) % what_.period != 0) return kept;
    average(step);
    for (auto const& each : state_.all) copy(each.value, at_start(each));
    return true;
  }
  /// A round begins with the current values.
  void follow() {
    keeps_values_ = false;
    std::fill(seen_.begin(), seen_.end(), 0);
    for (auto const& each : state_.all) copy(at_start(each), each.value);
  }

  template <class F>
  void visit_state(state_scope scope, F&& f) {
    if (scope == state_scope::owned && state_.replicas.rank() != 0) return;  // the same for all clients
    auto const& plan = state_.own.plan();
    state_.own.for_each_range_of(scope, plan.trained_buckets(), [&](int b, bucket_plan::tensor_range const& range) {
      auto const& info = plan.at(range.entry).info;
      f("round_start/" + info.name, state_location{info, range.in_entry},
        state_.own.in_slice(start_[static_cast<std::size_t>(b)].view(), b, range));
    });
  }
  template <class F>
  void visit_numbers(F&& f) {
    for (std::size_t c = 0; c < seen_.size(); ++c) f(text("federated/samples.", c), seen_[c]);
  }
  void count(exchange_memory& sum) const {
    for (auto const& each : start_) sum.masters += static_cast<std::int64_t>(each.view().bytes());
  }

 private:
  void average(std::int64_t step) {
    std::int64_t all = 0;
    for (std::size_t c = 0; c < seen_.size(); ++c) {
      if (!what_.chooses(step / what_.period, static_cast<int>(c), static_cast<int>(seen_.size()))) seen_[c] = 0;
      all += seen_[c];
    }
    auto const weight = all > 0 ? static_cast<double>(seen_[client()]) / static_cast<double>(all) : 0.0;
    std::fill(seen_.begin(), seen_.end(), 0);
    open();
    for (auto const& each : state_.all) {
      auto const moved = change(each);
      if (!(weight > 0)) continue;
      copy(moved, at_start(each));
      kernels::scale(moved, -1.0);
      kernels::add(moved, constant(each.value));
      kernels::scale(moved, weight);
    }
    state_.changes->sum(buckets_, step);
    for (auto const& each : state_.all) kernels::add(at_start(each), constant(change(each)));
  }
  [[nodiscard]] std::size_t client() const noexcept { return static_cast<std::size_t>(state_.replicas.rank()); }
  // Between two averages their buffers are free.
  void open() {
    for (int const b : buckets_) kernels::fill(state_.changes->open(b), 0.0);
  }
  [[nodiscard]] view at_start(owned_segment<Env> const& at) const {
    return state_.own.in_slice(start_[static_cast<std::size_t>(at.bucket)].view(), at.bucket, at.range);
  }
  [[nodiscard]] view change(owned_segment<Env> const& at) const {
    return state_.own.in_slice(state_.changes->of(at.bucket), at.bucket, at.range);
  }
  static tensor_view<master const, space> constant(view all) { return all; }
  static void copy(view to, view from) { kernels::copy(to, constant(from)); }

  federated what_;
  owned_state<Env, Comm> state_;
  std::vector<trireme::tensor<master, space>> start_;  // of the round, by bucket
  std::vector<int> buckets_;
  std::vector<std::int64_t> samples_;  // of each client in this step
  std::vector<std::int64_t> seen_;     // in those steps of this round that were taken
  bool keeps_values_ = false;          // no samples in this step: what the optimizer writes is replaced
};

}  // namespace trireme::parallel
