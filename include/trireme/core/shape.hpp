#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"

namespace trireme {

/// The extents of a dense row-major tensor, outermost first; at most `shape::max_rank` of them, and together fewer than
/// 2^63 elements, so that offsets in a tensor fit in 64 bits.
///
/// Errors   config_error for an extent for which takes() is false.
class shape {
 public:
  static constexpr int max_rank = 6;

  constexpr shape() = default;
  constexpr shape(std::initializer_list<std::int64_t> extents) {
    for (auto const extent : extents) push_back(extent);
  }
  constexpr explicit shape(std::span<std::int64_t const> extents) {
    for (auto const extent : extents) push_back(extent);
  }

  [[nodiscard]] constexpr int rank() const noexcept { return rank_; }
  [[nodiscard]] constexpr std::int64_t operator[](int axis) const noexcept {
    return extents_[static_cast<std::size_t>(axis)];
  }
  /// Number of elements; 1 for a scalar (rank 0).
  [[nodiscard]] constexpr std::int64_t size() const noexcept { return size_; }
  /// Whether one more extent can be added.
  [[nodiscard]] constexpr bool takes(std::int64_t extent) const noexcept {
    std::int64_t product = 0;
    return rank_ < max_rank && extent >= 0 && !__builtin_mul_overflow(size_, extent, &product);
  }
  constexpr void push_back(std::int64_t extent) {
    if (!takes(extent)) refuse(extent);
    extents_[static_cast<std::size_t>(rank_++)] = extent;
    size_ *= extent;
  }
  [[nodiscard]] constexpr std::span<std::int64_t const> extents() const noexcept {
    return {extents_.data(), static_cast<std::size_t>(rank_)};
  }
  friend constexpr bool operator==(shape const&, shape const&) = default;

 private:
  [[noreturn]] void refuse(std::int64_t extent) const {
    if (rank_ == max_rank) throw config_error(text("trireme::shape: more than ", max_rank, " extents"));
    if (extent < 0) throw config_error(text("trireme::shape: extent ", extent, " is negative"));
    throw config_error(text("trireme::shape: ", size_, " times ", how_many(extent, "element"), " exceed 2^63 - 1"));
  }

  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
  std::int64_t size_ = 1;  // the product of the extents
};

/// "(8, 256, 384)"
[[nodiscard]] inline std::string to_string(shape const& extents) {
  std::string out = "(";
  for (int axis = 0; axis < extents.rank(); ++axis) out += text(axis == 0 ? "" : ", ", extents[axis]);
  return out + ")";
}

}  // namespace trireme
