#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "trireme/parallel/bucket_plan.hpp"

namespace trireme::parallel::detail {

/// Buffers that buckets borrow. Buckets of one size class (up to a power of two) use the same buffers, so that there
/// are only as many as are borrowed at one time.
template <class Buffer>
class buffer_pool {
 public:
  explicit buffer_pool(bucket_plan const& plan) {
    for (auto const& bucket : plan.buckets()) {
      auto& largest = elements_[class_of(bucket.elements)];
      largest = std::max(largest, bucket.elements);
    }
  }
  /// A buffer for this many elements: a returned one, or make(elements of its class).
  template <class Make>
  [[nodiscard]] std::unique_ptr<Buffer> take(std::int64_t elements, Make&& make) {
    auto const which = class_of(elements);
    auto& free = free_[which];
    if (free.empty()) {
      ++made_[which];
      return make(elements_[which]);
    }
    auto buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }
  void give(std::int64_t elements, std::unique_ptr<Buffer> buffer) {
    free_[class_of(elements)].push_back(std::move(buffer));
  }
  /// Elements of all buffers made so far.
  [[nodiscard]] std::int64_t elements() const noexcept {
    std::int64_t sum = 0;
    for (std::size_t which = 0; which < classes; ++which) sum += made_[which] * elements_[which];
    return sum;
  }

 private:
  static constexpr std::size_t classes = 65;
  static std::size_t class_of(std::int64_t elements) noexcept {
    return static_cast<std::size_t>(64 - std::countl_zero(static_cast<std::uint64_t>(elements) - 1));
  }
  std::array<std::int64_t, classes> elements_{};  // of the largest bucket in each class
  std::array<std::int64_t, classes> made_{};
  std::array<std::vector<std::unique_ptr<Buffer>>, classes> free_;
};

}  // namespace trireme::parallel::detail
