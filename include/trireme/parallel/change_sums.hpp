#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "trireme/contract/state.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::parallel {

/// Sums, over the ranks of owned_state::replicas, of what each has changed in the slices of parameters that it moves,
/// bucket by bucket: they take the run's compressor as gradients do. The exchange makes one for a strategy with
/// `static constexpr bool sends_changes = true`.
///
/// Bytes    those of the compressor's payloads in parallel::data; without one the elements of the masters.
/// Ranks    collective: the same calls in the same order on every rank.
/// Numerics after finish() every rank has the same bits. A compressor's state (a residual) is that of the last change
///          sent.
/// Threads  one owner.
template <class Env>
class change_sums {
 public:
  using space = typename Env::space;
  using view = tensor_view<typename Env::master, space>;
  using visitor =
      std::function<void(std::string const&, state_location const&, tensor_view<typename Env::gradient, space>)>;

  change_sums() = default;
  change_sums(change_sums const&) = delete;
  change_sums& operator=(change_sums const&) = delete;
  virtual ~change_sums() = default;

  /// Where this rank writes its change of its slice of a bucket, before it is sent: zeros where it writes nothing.
  [[nodiscard]] virtual view open(int bucket) = 0;
  /// After sum() or finish(): the sum over the ranks. Empty if no tensor is in the slice.
  [[nodiscard]] virtual view of(int bucket) const = 0;
  /// Sums some buckets.
  /// @param step  of the run: random numbers of the compressor depend on it.
  virtual void sum(std::span<int const> buckets, std::int64_t step) = 0;
  /// Starts to do so, and returns at once. What open() gave must not be touched until finish() returns.
  virtual void begin(std::span<int const> buckets, std::int64_t step) = 0;
  /// Lets what has begun progress; starts nothing.
  virtual void progress(std::span<int const> buckets) = 0;
  virtual void finish(std::span<int const> buckets) = 0;

  /// The state of compressors between steps; see contract/state.hpp.
  virtual void visit_state(state_scope scope, visitor const& f) = 0;
  /// Resets it to that before the first step.
  virtual void forget_state() = 0;
  /// Of all buffers.
  [[nodiscard]] virtual std::int64_t bytes() const = 0;
};

}  // namespace trireme::parallel
