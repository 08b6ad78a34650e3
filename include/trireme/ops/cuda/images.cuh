#pragma once

#include "trireme/ops/cuda/float_types.cuh"
#include "trireme/ops/cuda/images_launch.hpp"

// Kernels of images: structs for for_elements (packs.cuh), in which a task is a pack of Width neighbouring channels of
// what is written. Backward passes gather: a pixel adds up what the positions of the window that contain it give, in
// the order of the positions, in the type of sums, and is rounded once.

namespace trireme::ops::detail::device {

using cuda_kernels::image_window;

/// The positions of the window, along one axis, that contain a pixel: from first to last; last < first if none does.
struct containing {
  std::int64_t first, last;
};
__device__ __forceinline__ containing positions_of(std::int64_t pixel, std::int64_t places, image_window const& at) {
  auto const reach = pixel + at.padding;
  auto const before = reach - at.kernel + 1;
  auto const last = split(reach, at.stride).quotient;
  return {before <= 0 ? 0 : split(before + at.stride - 1, at.stride).quotient, last < places ? last : places - 1};
}

/// The pixels of a position of the window that exist: rows from top to before bottom, columns from left to before
/// right.
struct pixel_range {
  std::int64_t top, bottom, left, right;
};
__device__ __forceinline__ pixel_range pixels_of(std::int64_t row, std::int64_t column, image_window const& at) {
  auto const top = row * at.stride - at.padding;
  auto const left = column * at.stride - at.padding;
  auto const bottom = top + at.kernel;
  auto const right = left + at.kernel;
  return {top < 0 ? 0 : top, bottom < at.height ? bottom : at.height, left < 0 ? 0 : left,
          right < at.width ? right : at.width};
}

/// Which number a task is of: its image, its row and column in it, and its first channel.
struct image_place {
  std::int64_t image, row, column, channel;
};
template <int Width>
__device__ __forceinline__ image_place place_of(std::int64_t task, std::int64_t rows, std::int64_t columns,
                                                std::int64_t channels) {
  auto const pixel = split(task, channels / Width);
  auto const line = split(pixel.quotient, columns);
  auto const image = split(line.quotient, rows);
  return {image.quotient, image.rest, line.rest, pixel.rest * Width};
}

/// The numbers of a pack in the type of sums.
template <class T, int Width>
struct pack_sums {
  sum_type<T> values[Width];

  __device__ __forceinline__ explicit pack_sums(T const* from) {
    auto const in = load<Width>(from);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) values[k] = wide(in.values[k]);
  }
  __device__ __forceinline__ void add(T const* from) {
    auto const in = load<Width>(from);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) values[k] = sum(values[k], wide(in.values[k]));
  }
  __device__ __forceinline__ void write(T* to) const {
    pack<T, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(values[k]);
    store(to, out);
  }
};

template <class T, int Width>
struct extracting_patches {
  static constexpr int width = 1;
  T* y;
  T const* x;
  image_window window;
  std::int64_t gap;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const channels = split(i, window.channels / Width);
    auto const column = split(channels.quotient, window.kernel);
    auto const row = split(column.quotient, window.kernel);
    auto const whole = split(row.quotient, gap + window.rows * window.columns);
    pack<T, Width> out{};
    if (whole.rest >= gap) {
      auto const place = split(whole.rest - gap, window.columns);
      auto const py = place.quotient * window.stride - window.padding + row.rest;
      auto const px = place.rest * window.stride - window.padding + column.rest;
      if (py >= 0 && py < window.height && px >= 0 && px < window.width) {
        auto const pixel = (whole.quotient * window.height + py) * window.width + px;
        out = load<Width>(x + pixel * window.channels + channels.rest * Width);
      }
    }
    store(y + i * Width, out);
  }
};

template <class T, int Width>
struct gathering_patches {
  static constexpr int width = 1;
  T* dx;
  T const* dy;
  image_window window;
  std::int64_t gap;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const here = place_of<Width>(i, window.height, window.width, window.channels);
    auto const down = positions_of(here.row, window.rows, window);
    auto const across = positions_of(here.column, window.columns, window);
    auto const first = here.image * (gap + window.rows * window.columns) + gap;
    pack_sums<T, Width> total(dx + i * Width);
    for (auto r = down.first; r <= down.last; ++r) {
      auto const row = here.row + window.padding - r * window.stride;
      for (auto c = across.first; c <= across.last; ++c) {
        auto const column = here.column + window.padding - c * window.stride;
        auto const place = first + r * window.columns + c;
        total.add(dy + ((place * window.kernel + row) * window.kernel + column) * window.channels + here.channel);
      }
    }
    total.write(dx + i * Width);
  }
};

template <class T, int Width>
struct adding_positions {
  static constexpr int width = 1;
  T* y;
  T const* x;
  T const* table;
  T const* token;  // or null
  std::int64_t packs, positions, first;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const row = split(i, packs);
    auto const position = split(first + row.quotient, positions).rest;
    auto const channel = row.rest * Width;
    pack_sums<T, Width> total(position == 0 && token != nullptr ? token + channel : x + i * Width);
    total.add(table + position * packs * Width + channel);
    total.write(y + i * Width);
  }
};

/// A task is a pack of the table: it goes over the rows of its position, in their order.
template <class T, int Width>
struct adding_positions_backward {
  using real = sum_type<T>;
  static constexpr int width = 1;
  T* dx;
  T const* dy;
  real* dtable;
  real* dtoken;  // or null
  std::int64_t rows, packs, positions, first;
  bool accumulate;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const whole = split(i, packs);
    auto const position = whole.quotient;
    auto const channel = whole.rest * Width;
    bool const of_token = position == 0 && dtoken != nullptr;
    pack_sums<real, Width> table(dtable + i * Width);
    pack_sums<real, Width> token(of_token ? dtoken + channel : dtable + i * Width);
    auto const ahead = position - split(first, positions).rest;
    for (auto row = ahead < 0 ? ahead + positions : ahead; row < rows; row += positions) {
      auto const place = row * packs * Width + channel;
      auto const d = load<Width>(dy + place);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) {
        table.values[k] = sum(table.values[k], wide(d.values[k]));
        token.values[k] = sum(token.values[k], wide(d.values[k]));
      }
      if (accumulate && of_token) continue;
      pack<T, Width> out = d;
      if (accumulate) out = load<Width>(dx + place);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) {
        if (of_token) out.values[k] = narrow<T>(real{0});
        if (accumulate) out.values[k] = narrow<T>(sum(wide(out.values[k]), wide(d.values[k])));
      }
      store(dx + place, out);
    }
    table.write(dtable + i * Width);
    if (of_token) token.write(dtoken + channel);
  }
};

template <class T, int Width>
struct taking_maximum {
  static constexpr int width = 1;
  T* y;
  T const* x;
  image_window window;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const here = place_of<Width>(i, window.rows, window.columns, window.channels);
    auto const range = pixels_of(here.row, here.column, window);
    T const* const image = x + here.image * window.height * window.width * window.channels + here.channel;
    pack<T, Width> largest{};
    bool first = true;
    for (auto row = range.top; row < range.bottom; ++row) {
      for (auto column = range.left; column < range.right; ++column) {
        auto const in = load<Width>(image + (row * window.width + column) * window.channels);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) {
          auto const value = wide(in.values[k]);
          if (first || value > wide(largest.values[k]) || not_a_number(value)) largest.values[k] = in.values[k];
        }
        first = false;
      }
    }
    store(y + i * Width, largest);
  }
};

/// A task is a pack of dx: for each position that contains its pixel it looks whether the pixel is the maximum there,
/// that is the last NaN, or else the first of the largest numbers.
template <class T, int Width>
struct gathering_maximum {
  static constexpr int width = 1;
  T* dx;
  T const* dy;
  T const* x;
  image_window window;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const here = place_of<Width>(i, window.height, window.width, window.channels);
    auto const down = positions_of(here.row, window.rows, window);
    auto const across = positions_of(here.column, window.columns, window);
    T const* const image = x + here.image * window.height * window.width * window.channels + here.channel;
    pack_sums<T, Width> const own(x + i * Width);
    pack_sums<T, Width> total(dx + i * Width);
    for (auto r = down.first; r <= down.last; ++r) {
      for (auto c = across.first; c <= across.last; ++c) {
        bool is_largest[Width];
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) is_largest[k] = true;
        auto const range = pixels_of(r, c, window);
        for (auto row = range.top; row < range.bottom; ++row) {
          for (auto column = range.left; column < range.right; ++column) {
            if (row == here.row && column == here.column) continue;
            bool const earlier = row < here.row || (row == here.row && column < here.column);
            auto const in = load<Width>(image + (row * window.width + column) * window.channels);
            TRIREME_DEVICE_UNROLL
            for (int k = 0; k < Width; ++k) {
              auto const other = wide(in.values[k]);
              auto const mine = own.values[k];
              bool const stays = not_a_number(mine) ? earlier || !not_a_number(other)
                                                    : (earlier ? other < mine : other <= mine);
              is_largest[k] = is_largest[k] && stays;
            }
          }
        }
        auto const place = (here.image * window.rows + r) * window.columns + c;
        auto const d = load<Width>(dy + place * window.channels + here.channel);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k)
          if (is_largest[k]) total.values[k] = sum(total.values[k], wide(d.values[k]));
      }
    }
    total.write(dx + i * Width);
  }
};

template <class T, int Width>
struct taking_average {
  static constexpr int width = 1;
  T* y;
  T const* x;
  image_window window;
  sum_type<T> each;  // 1 / pixels of a position
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const here = place_of<Width>(i, window.rows, window.columns, window.channels);
    auto const pixel = (here.image * window.height + here.row * window.stride) * window.width +
                       here.column * window.stride;
    T const* const corner = x + pixel * window.channels + here.channel;
    sum_type<T> totals[Width] = {};
    for (std::int64_t row = 0; row < window.kernel; ++row) {
      for (std::int64_t column = 0; column < window.kernel; ++column) {
        auto const in = load<Width>(corner + (row * window.width + column) * window.channels);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k) totals[k] = sum(totals[k], wide(in.values[k]));
      }
    }
    pack<T, Width> out;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(product(totals[k], each));
    store(y + i * Width, out);
  }
};

template <class T, int Width>
struct gathering_average {
  static constexpr int width = 1;
  T* dx;
  T const* dy;
  image_window window;  // without padding
  sum_type<T> each;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const here = place_of<Width>(i, window.height, window.width, window.channels);
    auto const down = positions_of(here.row, window.rows, window);
    auto const across = positions_of(here.column, window.columns, window);
    pack_sums<T, Width> total(dx + i * Width);
    for (auto r = down.first; r <= down.last; ++r) {
      for (auto c = across.first; c <= across.last; ++c) {
        auto const place = (here.image * window.rows + r) * window.columns + c;
        auto const d = load<Width>(dy + place * window.channels + here.channel);
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < Width; ++k)
          total.values[k] = sum(total.values[k], product(wide(d.values[k]), each));
      }
    }
    total.write(dx + i * Width);
  }
};

}  // namespace trireme::ops::detail::device
