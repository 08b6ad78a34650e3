#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// A gradient that is not summed yet: g = scale * (terms[0] + terms[1] + ...), added in order. Ranks in one address
/// space pass their gradients to the optimizer in this form, so the reduced gradient is never written.
template <class G, class Space>
struct gradient_terms {
  std::span<tensor_view<G const, Space> const> terms;
  double scale = 1;
};

/// A sum of losses and how many of them were summed.
struct loss_sum {
  double sum = 0;
  std::int64_t count = 0;
  std::int64_t left_out = 0;  ///< rows without a loss; backward has weighed them like all others
  [[nodiscard]] double mean() const noexcept { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
  /// The share of that weight on counted rows; 1 if none is counted.
  [[nodiscard]] double counted_fraction() const noexcept {
    return count == 0 ? 1.0 : static_cast<double>(count) / static_cast<double>(count + left_out);
  }
  loss_sum& operator+=(loss_sum const& other) noexcept {
    sum += other.sum;
    count += other.count;
    left_out += other.left_out;
    return *this;
  }
  /// Adds the sum of `other`, divided by `divisor` and then times `factor`, and none of its rows.
  void add_without_rows(loss_sum const& other, double divisor = 1, double factor = 1) noexcept {
    sum += other.sum / divisor * factor;
  }
  /// Counts the rows that were left out, too.
  void count_all_rows() noexcept { count += std::exchange(left_out, 0); }
  /// Itself; see losses_in.
  [[nodiscard]] loss_sum read() const noexcept { return *this; }
};

/// What kernels of a memory space return of losses: loss_sum, unless a space whose work is queued specialises this, so
/// that the host does not wait for each of them. Such a type has the functions of loss_sum and takes one (`+=`), and
/// its read() waits for the queued work and returns the numbers. A training step reads once, after all its gradients
/// are summed.
template <class Space>
struct losses_of_space {
  using type = loss_sum;
};
template <class Space>
using losses_in = typename losses_of_space<Space>::type;

/// A loss that counts its own targets: forward() of a plain model may return it instead of a mean.
///
/// The loss of a step is the sum of `sum` over all micro-batches and ranks, divided by the sum of `count`, so it does
/// not depend on how samples are distributed, even if targets are left out. A micro-batch with a count of 0 adds
/// nothing.
struct counted_loss {
  double sum = 0;    ///< over the targets that are counted
  double count = 0;  ///< number of counted targets, or the sum of their weights; 0: `sum` is ignored
};

/// The positions of its sample that a query attends to.
struct attention_mask {
  bool causal = true;       ///< later positions are hidden
  std::int64_t window = 0;  ///< only positions at a distance below this; 0: any distance
  friend bool operator==(attention_mask const&, attention_mask const&) = default;
};

/// The sizes of an attention, and its mask.
struct attention_shape {
  std::int64_t batch = 0;
  std::int64_t context = 0;
  std::int64_t heads = 0;
  std::int64_t channels = 0;
  std::int64_t first_head = 0;  ///< the number of the first of these heads among all of its layer, for dropout
  attention_mask mask{};
  [[nodiscard]] constexpr std::int64_t head_channels() const noexcept { return channels / heads; }
};

/// The numbers of samples in a memory space: see samples_in.
template <class Space>
using sample_ids_in = std::conditional_t<std::is_same_v<Space, host>, std::span<std::int64_t const>,
                                         tensor_view<std::int64_t const, Space>>;

/// Which numbers to drop: a function of (key, site, sample, position in the sample), the same on every rank. Off if the
/// probability is 0 or there are no samples.
template <class Space>
struct dropout_site_in {
  double probability = 0;
  random_key key;
  std::uint32_t site = 0;
  sample_ids_in<Space> samples;
  std::int64_t first = 0;  ///< index of the first element here among the elements of all samples
  std::int64_t whole = 0;  ///< number of elements of all samples; 0: the number here
  [[nodiscard]] bool active() const noexcept { return probability > 0 && !samples.empty(); }
  [[nodiscard]] std::int64_t sample_count() const noexcept { return static_cast<std::int64_t>(samples.size()); }
};
/// In host memory.
using dropout_site = dropout_site_in<host>;

}  // namespace trireme
