#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "trireme/contract/state.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"

namespace trireme::parallel {

namespace detail {

/// This rank alone, made before the exchange that works in it.
template <class Comm>
struct rank_alone {
  explicit rank_alone(Comm& ranks) : alone(ranks.split(ranks.rank(), 0)) {}
  Comm alone;
};

}  // namespace detail

/// The exchange of ranks that take steps alone: nothing is sent, each rank updates from its own gradients. The base of
/// strategies whose ranks meet less often than every step: they add end(step), and what they keep.
///
/// Ranks    parameters and moments belong to the rank. The constructor and what the base's notes say are collective.
/// Numerics a rank's gradient is that of its own samples' losses, weighted so that the mean over the ranks of all their
///          gradients is the gradient of the whole step. The norm is the root mean square of the ranks' norms.
template <class Env, class Comm, class Compressor>
class local_exchange : detail::rank_alone<Comm>, public basic_exchange<Env, Comm, data, Compressor> {
  using base = basic_exchange<Env, Comm, data, Compressor>;

 public:
  static constexpr bool replicas_differ = true;

  /// @param more  as for basic_exchange, after the compressor.
  template <class Parameters, class... More>
  local_exchange(Parameters all, Comm& replicas, std::int64_t bucket_bytes, Compressor const& compressor,
                 More&&... more)
      : detail::rank_alone<Comm>(replicas),
        base(std::move(all), this->alone, data{.bucket_bytes = bucket_bytes}, compressor, std::forward<More>(more)...),
        replicas_(replicas) {}

  /// The ranks that hold the same part of the model.
  [[nodiscard]] Comm& world() const noexcept { return replicas_; }
  [[nodiscard]] double sample_weight(std::int64_t total) const noexcept {
    return static_cast<double>(replicas_.size()) / static_cast<double>(total);
  }
  [[nodiscard]] exchange_result count(vote& vote) {
    auto result = base::count(vote);
    result.norm /= std::sqrt(static_cast<double>(replicas_.size()));
    return result;
  }
  void broadcast(int root = 0) {
    for (auto const& entry : this->plan().entries()) base::broadcast(entry, replicas_, root);
  }
  using base::broadcast;
  void verify_replicas() { base::verify_among(replicas_); }
  template <class F>
  void visit_state(state_scope scope, F&& f) {
    this->visit_values(scope, f, true);
  }
  /// Calls f(bucket, piece) for every tensor here that is trained.
  template <class F>
  void for_each_tensor(F&& f) const {
    for (int b = 0; b < this->plan().trained_buckets(); ++b) {
      auto const [first, count] = this->owned_range(b);
      for (auto const piece : this->plan().pieces(b, first, count)) f(b, piece);
    }
  }

 private:
  Comm& replicas_;
};

}  // namespace trireme::parallel
