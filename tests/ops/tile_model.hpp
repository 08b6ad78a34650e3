#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "trireme/ops/host/detail/tiles.hpp"

/// An emulation of the tile registers in plain C++, so that kernels on tiles are tested on any machine, and sanitizers
/// see their reads and writes. After [Intel, "Software Developer's Manual", volume 2, TDPBF16PS].
struct tile_model {
  using bytes = std::array<std::array<unsigned char, 64>, 16>;
  struct registers {
    bool ready = false;
    std::array<bytes, 8> tiles{};
  };
  static registers& state() {
    thread_local registers it;
    return it;
  }

  static void begin() { state() = {true, {}}; }
  static void end() { state() = {}; }

  template <int Tile>
  static void zero() {
    state().tiles.at(Tile) = {};
  }
  template <int Tile>
  static void load(void const* from, std::ptrdiff_t stride) {
    check();
    for (int row = 0; row < 16; ++row) {
      auto& to = state().tiles.at(Tile).at(static_cast<std::size_t>(row));
      std::memcpy(to.data(), static_cast<char const*>(from) + row * stride, 64);
    }
  }
  template <int Tile>
  static void store(void* to, std::ptrdiff_t stride) {
    check();
    for (int row = 0; row < 16; ++row) {
      auto const& from = state().tiles.at(Tile).at(static_cast<std::size_t>(row));
      std::memcpy(static_cast<char*>(to) + row * stride, from.data(), 64);
    }
  }
  /// The products of the first elements of all pairs and those of the second elements are summed separately, with one
  /// rounding to nearest per step; denormals count as zero, in inputs and results.
  template <int Sums, int Left, int Right>
  static void multiply() {
    check();
    auto& sums = state().tiles.at(Sums);
    auto const& left = state().tiles.at(Left);
    auto const& right = state().tiles.at(Right);
    for (std::size_t m = 0; m < 16; ++m) {
      for (std::size_t n = 0; n < 16; ++n) {
        float parts[2] = {};
        for (std::size_t k = 0; k < 16; ++k) {
          for (std::size_t half = 0; half < 2; ++half) {
            float const a = element(left.at(m), 2 * k + half);
            float const b = element(right.at(k), 2 * n + half);
            parts[half] = flushed(std::fma(a, b, parts[half]));
          }
        }
        float sum = 0;
        std::memcpy(&sum, sums.at(m).data() + 4 * n, sizeof sum);
        sum = flushed(flushed(sum) + flushed(parts[0] + parts[1]));
        std::memcpy(sums.at(m).data() + 4 * n, &sum, sizeof sum);
      }
    }
  }

 private:
  static void check() {
    if (!state().ready) throw std::logic_error("tile_model: used before begin()");
  }
  static float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x; }
  static float element(std::array<unsigned char, 64> const& row, std::size_t i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, row.data() + 2 * i, sizeof bits);
    return flushed(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
  }
};

/// The operation of a turn_job, element by element.
inline void turn_plainly(trireme::ops::detail::turn_job const& job) {
  for (std::int64_t column = 0; column < job.padded_columns; ++column) {
    for (std::int64_t row = 0; row < job.padded_rows; ++row) {
      bool const exists = row < job.rows && column < job.columns;
      job.to[column * job.to_row + row] = exists ? job.from[row * job.from_row + column] : trireme::bfloat16{};
    }
  }
}
