#pragma once

#include <cstdint>
#include <span>

#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// A gradient that is still a sum: g = scale * (terms[0] + terms[1] + ...), added in order. Ranks that share an
/// address space hand their gradients to the optimizer like this, so the reduced gradient is never written.
template <class G, class Space>
struct gradient_terms {
  std::span<tensor_view<G const, Space> const> terms;
  double scale = 1;
};

/// A sum of losses and how many of them were summed.
struct loss_sum {
  double sum = 0;
  std::int64_t count = 0;
  std::int64_t left_out = 0;  ///< rows that have no loss, but a share of the weight that backward gave to all rows
  [[nodiscard]] double mean() const noexcept { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
  /// The share of that weight which counted rows have; 1 if none is counted.
  [[nodiscard]] double counted_share() const noexcept {
    return count == 0 ? 1.0 : static_cast<double>(count) / static_cast<double>(count + left_out);
  }
  loss_sum& operator+=(loss_sum const& other) noexcept {
    sum += other.sum;
    count += other.count;
    left_out += other.left_out;
    return *this;
  }
};

/// A loss that counts its own targets: what forward() of a plain model may return in place of a mean.
///
/// The loss of a step is the sum of `sum` over all micro-batches and ranks, divided by the sum of `count`: so it does
/// not depend on how samples are dealt out, whatever targets are left out. A micro-batch that counts nothing adds
/// nothing.
struct counted_loss {
  double sum = 0;    ///< over the targets that are counted
  double count = 0;  ///< how many these are, or the sum of their weights; 0: `sum` is not looked at
};

/// Which positions of its sample a query sees.
struct attention_mask {
  bool causal = true;       ///< none behind its own
  std::int64_t window = 0;  ///< those fewer than so many positions away; 0: however far
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

/// Which numbers to drop: a function of (key, site, sample, position in the sample), the same on any rank.
/// Off if the probability is 0 or there are no samples.
struct dropout_site {
  double probability = 0;
  random_key key;
  std::uint32_t site = 0;
  std::span<std::int64_t const> samples;
  std::int64_t first = 0;  ///< what is dropped out begins with this element of all samples' elements,
  std::int64_t whole = 0;  ///< which are so many; 0 = as many as it has itself
  [[nodiscard]] bool active() const noexcept { return probability > 0 && !samples.empty(); }
};

}  // namespace trireme
