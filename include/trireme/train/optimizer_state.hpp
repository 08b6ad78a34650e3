#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "trireme/contract/optimizer.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme {

/// The moments of what this rank updates: as many tensors a bucket as the optimizer names, of the owned range.
template <class Env, class Optimizer>
class optimizer_state {
 public:
  using space = typename Env::space;
  using master = typename Env::master;
  static constexpr std::size_t count = Optimizer::moment_names.size();

  template <class Exchange>
  explicit optimizer_state(Exchange const& exchange) {
    for (int bucket = 0; bucket < static_cast<int>(exchange.plan().buckets().size()); ++bucket) {
      auto const [first, elements] = exchange.owned_range(bucket);
      auto& all = buckets_.emplace_back();
      all.first = first;
      for (auto& moment : all.moments) {
        moment = tensor<master, space>(shape{elements});
      }
    }
    clear();
  }

  /// As before the first step.
  void clear() {
    for (auto const& bucket : buckets_) {
      for (auto const& moment : bucket.moments) ops::on<space>::fill(moment.view(), 0.0);
    }
  }

  /// Bytes of the moments of this rank.
  [[nodiscard]] std::int64_t bytes() const noexcept {
    std::int64_t sum = 0;
    for (auto const& bucket : buckets_) {
      for (auto const& moment : bucket.moments) sum += static_cast<std::int64_t>(moment.view().bytes());
    }
    return sum;
  }

  /// Updates everything that this rank owns. `scale` is the clipping factor.
  template <class Exchange>
  void update(Exchange& exchange, Optimizer const& optimizer, std::int64_t step, double scale) {
    exchange.for_each_segment([&](int bucket, parallel::layout::piece const& piece, update_segment<Env>& segment) {
      std::array<tensor_view<master, space>, count> moments;
      for (std::size_t m = 0; m < count; ++m) moments[m] = moment_of(m, bucket, piece);
      segment.moments = moments;
      segment.gradient.scale *= scale;
      optimizer.update(segment, step);
    });
  }

  [[nodiscard]] tensor_view<master, space> moment_of(std::size_t which, int bucket,
                                                     parallel::layout::piece const& piece) const {
    auto const& all = buckets_[static_cast<std::size_t>(bucket)];
    return all.moments[which].view().flat(piece.in_bucket - all.first, piece.count);
  }

 private:
  struct bucket_moments {
    std::int64_t first = 0;
    std::array<tensor<master, space>, count> moments;
  };
  std::vector<bucket_moments> buckets_;
};

}  // namespace trireme
