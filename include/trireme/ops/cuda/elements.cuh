#pragma once

#include "trireme/core/rng.hpp"
#include "trireme/ops/cuda/formulas.cuh"
#include "trireme/ops/cuda/launch.hpp"
#include "trireme/ops/types.hpp"

// Kernels that treat every element alike: structs for for_elements (packs.cuh). bfloat16 and float16 are computed in
// float and rounded once.

namespace trireme::ops::detail::device {

/// y[i] = bits
template <class Bits>
struct filling {
  static constexpr int width = pack_width<Bits>;
  Bits* y;
  Bits bits;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    pack<Bits, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = bits;
    store(y + i, out);
  }
};

/// y[i] = x[i], converted
template <class T, class U>
struct copying {
  static constexpr int width = pack_width<T, U>;
  T* y;
  U const* x;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(x + i);
    pack<T, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      if constexpr (std::is_same_v<T, U>)
        out.values[k] = in.values[k];
      else
        out.values[k] = narrow<T>(opened_lane<real_for<T, U>>(in.values[k]).v);
    }
    store(y + i, out);
  }
};

/// Blocks of rows: y[to: b, r, c] = x[from: b, r, c], converted, `Together` columns in a task.
template <class T, class U, int Together>
struct copying_blocks {
  static constexpr int width = 1;
  T* y;
  U const* x;
  block_places to, from;
  std::int64_t rows, packs;  // of a block, and of a row
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const all_rows = quotient_of(i, packs);  // before this one
    auto const column = (i - all_rows * packs) * Together;
    auto const block = quotient_of(all_rows, rows);
    auto const row = all_rows - block * rows;
    copying<T, U>{y + to.first + block * to.block + row * to.row + column,
                  x + from.first + block * from.block + row * from.row + column}
        .template at<Together>(0);
  }
};

/// y[i] += weight * x[i]
template <class T, class U>
struct accumulating {
  using real = real_for<T, U>;
  static constexpr int width = pack_width<T, U>;
  T* y;
  U const* x;
  real weight;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const in = load<Width>(x + i);
    auto out = load<Width>(y + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) {
      out.values[k] = narrow<T>(fused(weight, opened_lane<real>(in.values[k]).v, opened_lane<real>(out.values[k]).v));
    }
    store(y + i, out);
  }
};

/// y[i] *= factor
template <class T>
struct scaling {
  using real = real_for<T>;
  static constexpr int width = pack_width<T>;
  T* y;
  real factor;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto out = load<Width>(y + i);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(product(factor, opened_lane<real>(out.values[k]).v));
    store(y + i, out);
  }
};

/// y[i] = a[i] * b[i]; y may be a or b
template <class T>
struct multiplying {
  static constexpr int width = pack_width<T>;
  T* y;
  T const* a;
  T const* b;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const of_a = load<Width>(a + i);
    auto const of_b = load<Width>(b + i);
    pack<T, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(product(wide(of_a.values[k]), wide(of_b.values[k])));
    store(y + i, out);
  }
};

/// y[i] = act(x[i]); y may be x
template <class T>
struct activating {
  static constexpr int width = pack_width<T>;
  T* y;
  T const* x;
  activation act;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const bent = [this](auto const& lanes) { return activated(lanes, act); };
    store(y + i, with_lanes<T, Width>(bent, load<Width>(x + i)));
  }
};

/// dx[i] = dy[i] * act'(x[i]); dx may be dy
template <class T>
struct activating_backward {
  static constexpr int width = pack_width<T>;
  T* dx;
  T const* dy;
  T const* x;
  activation act;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const sloped = [this](auto const& of_y, auto const& of_x) { return of_y * activation_slope(of_x, act); };
    store(dx + i, with_lanes<T, Width>(sloped, load<Width>(dy + i), load<Width>(x + i)));
  }
};

/// Samples, and how their numbers are dropped.
template <class T>
struct dropout_rule {
  using real = real_for<T>;
  random_key key;
  std::uint32_t site;
  std::uint32_t threshold;  // of 24 bits
  real kept;
  std::int64_t const* samples;  // their ids

  [[nodiscard]] __device__ __forceinline__ auto words(std::int64_t sample, std::int64_t block) const {
    return random_block(key, site, static_cast<std::uint64_t>(samples[sample]), static_cast<std::uint32_t>(block));
  }
  [[nodiscard]] __device__ __forceinline__ T apply(T x, std::uint32_t word) const {
    return word >> 8 < threshold ? narrow<T>(real{0}) : narrow<T>(product(kept, opened_lane<real>(x).v));
  }
};

/// Dropout of the numbers `begin` to `end` of samples of `each` numbers; y is the first of them. A task has the numbers
/// of one or more blocks of four random words of a sample; with Packed they are an aligned pack that lies here whole.
template <class T, bool Packed>
struct dropping {
  static constexpr int width = 1;
  static constexpr int together = Packed && pack_width<T> > 4 ? pack_width<T> : 4;
  T* y;
  std::int64_t begin, end, each;
  std::int64_t tasks_of_sample, first_task_here;
  dropout_rule<T> rule;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const task = first_task_here + i;
    auto const sample = quotient_of(task, tasks_of_sample);
    auto const position = (task - sample * tasks_of_sample) * together;
    auto const place = sample * each + position - begin;
    if constexpr (Packed) {
      auto numbers = load<together>(y + place);
      TRIREME_DEVICE_UNROLL
      for (int four = 0; four < together / 4; ++four) {
        auto const words = rule.words(sample, position / 4 + four);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < 4; ++k)
          numbers.values[4 * four + k] = rule.apply(numbers.values[4 * four + k], words[static_cast<std::size_t>(k)]);
      }
      store(y + place, numbers);
    } else {
      auto const words = rule.words(sample, position / 4);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (position + k >= each || place + k < 0 || place + k >= end - begin) continue;
        y[place + k] = rule.apply(y[place + k], words[static_cast<std::size_t>(k)]);
      }
    }
  }
};

/// Dropout of y (rows, fused, columns), a part of samples as the cut says. A task has those numbers of one of a row's
/// matrices that share a block of four random words.
template <class T>
struct dropping_part {
  static constexpr int width = 1;
  T* y;
  dropout_cut cut;
  std::int64_t tasks_of_matrix;  // enough wherever its first number lies in a block
  dropout_rule<T> rule;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    auto const matrix = quotient_of(i, tasks_of_matrix);
    auto const row = quotient_of(matrix, cut.fused);
    auto const sample = quotient_of(cut.row + row, cut.context);
    auto const position = cut.position(cut.row + row - sample * cut.context) * cut.width +
                          (matrix - row * cut.fused) * (cut.width / cut.fused) + cut.column;
    auto const block = position / 4 + (i - matrix * tasks_of_matrix);
    auto const before = block * 4 - position;
    if (before >= cut.columns) return;
    auto const words = rule.words(sample, block);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (before + k < 0 || before + k >= cut.columns) continue;
      auto& number = y[matrix * cut.columns + before + k];
      number = rule.apply(number, words[static_cast<std::size_t>(k)]);
    }
  }
};

}  // namespace trireme::ops::detail::device
