#pragma once

#include "trireme/ops/cuda/float_types.cuh"
#include "trireme/ops/cuda/latent_heads_launch.hpp"

// Heads of latent attention: structs for for_elements (packs.cuh), in which a task is a unit of Width neighbouring
// numbers of what is written. A unit is a pack of 16 bytes where all parts of a head consist of such packs; else it is
// one number, which is computed from both numbers of its pair if it is rotated.

namespace trireme::ops::detail::device {

using cuda_kernels::latent_widths;

/// The pairs that the numbers of a unit belong to, in the type of sums.
template <class Real, int Width>
struct unit_pairs {
  static constexpr int count = Width == 1 ? 2 : Width;
  Real values[count];

  /// Sums that begin with 0, or with -0, to which any number can be added without a change of it.
  __device__ __forceinline__ explicit unit_pairs(Real zero) {
    for (auto& each : values) each = zero;
  }
  /// Adds those of the unit that begins with number `at` of the numbers from `start` on.
  template <class T>
  __device__ __forceinline__ void add(T const* start, std::int64_t at) {
    if constexpr (Width == 1) {
      for (int k = 0; k < 2; ++k) values[k] = sum(values[k], wide(start[at / 2 * 2 + k]));
    } else {
      auto const in = load<Width>(start + at);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) values[k] = sum(values[k], wide(in.values[k]));
    }
  }
  /// The unit, turned by the angles of its pairs, or back. A row of the table has cosines of all pairs, then sines.
  template <class T>
  __device__ __forceinline__ pack<T, Width> turned(std::int64_t at, Real const* table, std::int64_t rotary, Real scale,
                                                   bool back) const {
    Real out[count];
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < count; k += 2) {
      auto const a = values[k], b = values[k + 1];
      auto const cosine = table[at / 2 + k / 2], sine = table[rotary / 2 + at / 2 + k / 2];
      auto const ac = product(a, cosine), as = product(a, sine), bc = product(b, cosine), bs = product(b, sine);
      out[k] = product(scale, back ? sum(ac, bs) : difference(ac, bs));
      out[k + 1] = product(scale, back ? difference(bc, as) : sum(as, bc));
    }
    pack<T, Width> unit;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < Width; ++k) unit.values[k] = narrow<T>(Width == 1 && at % 2 == 1 ? out[1] : out[k]);
    return unit;
  }
};
template <class T, int Width>
__device__ __forceinline__ pack<T, Width> rotated(T const* start, std::int64_t at, sum_type<T> const* table,
                                                  std::int64_t rotary, sum_type<T> scale, bool back) {
  unit_pairs<sum_type<T>, Width> pairs(-sum_type<T>{0});
  pairs.add(start, at);
  return pairs.template turned<T>(at, table, rotary, scale, back);
}

template <class T, int Width>
__device__ __forceinline__ pack<T, Width> scaled(T const* from, sum_type<T> scale) {
  auto out = load<Width>(from);
  TRIREME_DEVICE_UNROLL
  for (int k = 0; k < Width; ++k) out.values[k] = narrow<T>(product(scale, wide(out.values[k])));
  return out;
}

template <class T, int Width>
struct arranging_heads {
  using real = sum_type<T>;
  static constexpr int width = 1;
  T* qkv;
  T const* queries;
  T const* pairs;
  T const* key;
  real const* table;
  latent_widths how;
  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const head_of = split(i, how.width / Width);
    auto const third_of = split(head_of.quotient, how.heads);
    auto const row_of = split(third_of.quotient, 3);
    auto const at = head_of.rest * Width;
    auto const row = row_of.quotient;
    auto const head = row * how.heads + third_of.rest;
    auto const* const turn = table + split(row, how.context).rest * how.rotary;
    auto const query = how.plain + how.rotary;
    T const* const q = queries + head * query;
    T const* const p = pairs + head * (how.plain + how.values);
    auto const scale = static_cast<real>(how.query_scale);
    pack<T, Width> out{};
    if (row_of.rest == 0) {
      if (at < how.plain)
        out = scaled<T, Width>(q + at, scale);
      else if (at < query)
        out = rotated<T, Width>(q + how.plain, at - how.plain, turn, how.rotary, scale, false);
    } else if (row_of.rest == 1) {
      if (at < how.plain)
        out = load<Width>(p + at);
      else if (at < query)
        out = rotated<T, Width>(key + row * how.rotary, at - how.plain, turn, how.rotary, real{1}, false);
    } else if (at < how.values) {
      out = load<Width>(p + how.plain + at);
    }
    store(qkv + i * Width, out);
  }
};

/// The first tasks are the key's, which are the longest: a unit of it is a sum over heads, in their order. Then come
/// those of the queries, and of the pairs.
template <class T, int Width>
struct arranging_heads_backward {
  using real = sum_type<T>;
  static constexpr int width = 1;
  T* dqueries;
  T* dpairs;
  T* dkey;
  T const* dqkv;
  real const* table;
  latent_widths how;
  [[nodiscard]] std::int64_t tasks() const {
    return how.rows * (how.rotary + how.heads * (2 * how.plain + how.rotary + how.values)) / Width;
  }
  __device__ T const* of_head(std::int64_t row, int third, std::int64_t head) const {
    return dqkv + ((3 * row + third) * how.heads + head) * how.width;
  }
  __device__ real const* turn(std::int64_t row) const { return table + split(row, how.context).rest * how.rotary; }

  template <int One>
  __device__ void at(std::int64_t i) const {
    auto const keys = how.rows * how.rotary / Width;
    if (i < keys) return of_key(i);
    auto const queries = how.rows * how.heads * (how.plain + how.rotary) / Width;
    if (i - keys < queries) return of_query(i - keys);
    of_pair(i - keys - queries);
  }
  __device__ void of_key(std::int64_t i) const {
    auto const row_of = split(i, how.rotary / Width);
    auto const at = row_of.rest * Width;
    unit_pairs<real, Width> sums(real{0});
    for (std::int64_t head = 0; head < how.heads; ++head)
      sums.add(of_head(row_of.quotient, 1, head) + how.plain, at);
    store(dkey + i * Width, sums.template turned<T>(at, turn(row_of.quotient), how.rotary, real{1}, true));
  }
  __device__ void of_query(std::int64_t i) const {
    auto const head_of = split(i, (how.plain + how.rotary) / Width);
    auto const row_of = split(head_of.quotient, how.heads);
    auto const at = head_of.rest * Width;
    T const* const from = of_head(row_of.quotient, 0, row_of.rest);
    auto const scale = static_cast<real>(how.query_scale);
    store(dqueries + i * Width, at < how.plain ? scaled<T, Width>(from + at, scale)
                                               : rotated<T, Width>(from + how.plain, at - how.plain,
                                                                   turn(row_of.quotient), how.rotary, scale, true));
  }
  __device__ void of_pair(std::int64_t i) const {
    auto const head_of = split(i, (how.plain + how.values) / Width);
    auto const row_of = split(head_of.quotient, how.heads);
    auto const at = head_of.rest * Width;
    store(dpairs + i * Width, load<Width>(at < how.plain
                                              ? of_head(row_of.quotient, 1, row_of.rest) + at
                                              : of_head(row_of.quotient, 2, row_of.rest) + (at - how.plain)));
  }
};

}  // namespace trireme::ops::detail::device
