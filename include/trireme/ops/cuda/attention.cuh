#pragma once

#include <limits>

#include "trireme/core/rng.hpp"
#include "trireme/ops/cuda/attention_launch.hpp"
#include "trireme/ops/cuda/formulas.cuh"

// Attention of any element type and of heads of up to 256 columns, without tensor cores. Method: [Dao et al., 2022]
// with softmax in one pass [Milakov, Gimelshein, 2018].
//
// Each row of a block (a query, or in the pass for keys a key) belongs to a group of neighbouring lanes, which hold its
// columns in registers and go over the rows of the other side, tile by tile in shared memory. The sums of a row depend
// on nothing but the row, and have one order.

namespace trireme::ops::detail::device {

using cuda_kernels::attention_rows;
using cuda_kernels::attention_work;

/// Which probabilities are dropped.
struct attention_dropout {
  bool active = false;
  float threshold = 0;
  double kept = 1;
  std::int64_t const* samples = nullptr;  ///< an id for each

  [[nodiscard]] __device__ __forceinline__ std::uint64_t id_of(std::int64_t sample) const {
    return active ? static_cast<std::uint64_t>(samples[sample]) : 0;
  }
};

/// The keys that a query attends to.
struct key_interval {
  std::int64_t begin, end;
};

/// Neither end decreases from row to row.
__device__ __forceinline__ key_interval keys_of(attention_work const& work, std::int64_t sample, std::int64_t row) {
  auto const position = row + work.ahead;
  auto const window = work.mask.window;
  std::int64_t from = window > 0 && position >= window ? position - window + 1 : 0;
  std::int64_t to = work.mask.causal ? position + 1 : window > 0 ? position + window : work.keys;
  if (work.seen != nullptr) {
    auto const* const limits = work.seen + 2 * (sample * work.rows + row);
    from = from > limits[0] ? from : limits[0];
    to = to < limits[1] ? to : limits[1];
  }
  from = from < work.keys ? from : work.keys;
  to = to < 0 ? 0 : to < work.keys ? to : work.keys;
  return {from, to};
}

/// The queries that attend to some of the keys [from, to): those of [begin, end), and perhaps none.
__device__ __forceinline__ key_interval queries_of(attention_work const& work, std::int64_t sample, std::int64_t from,
                                                   std::int64_t to) {
  key_interval rows{0, work.rows};
  for (std::int64_t length = work.rows; length > 0;) {  // the first row whose keys end after `from`
    auto const half = length / 2;
    if (keys_of(work, sample, rows.begin + half).end <= from) {
      rows.begin += half + 1;
      length -= half + 1;
    } else {
      length = half;
    }
  }
  std::int64_t end = rows.begin;
  for (std::int64_t length = work.rows - end; length > 0;) {  // the first row whose keys begin at `to` or later
    auto const half = length / 2;
    if (keys_of(work, sample, end + half).begin < to) {
      end += half + 1;
      length -= half + 1;
    } else {
      length = half;
    }
  }
  rows.end = end;
  return rows;
}

template <class T, class Address>
__device__ __forceinline__ auto* head_of(attention_rows<Address> const& of, std::int64_t sample, std::int64_t head,
                                         std::int64_t width) {
  using element = std::conditional_t<std::is_same_v<Address, void const*>, T const, T>;
  return static_cast<element*>(of.address) + sample * of.next_sample + head * width;
}

/// Which probabilities of a tile of queries and keys are kept: a bit for each.
template <int Rows, int Keys>
struct kept_tile {
  static constexpr int bytes = (Keys + 7) / 8;
  alignas(8) std::uint8_t bits[Rows][bytes];

  [[nodiscard]] __device__ __forceinline__ bool has(int row, int key) const {
    return (bits[row][key / 8] >> key % 8 & 1) != 0;
  }
  /// The bits of keys [8 at, 8 at + bits of Word) of a row.
  template <class Word>
  [[nodiscard]] __device__ __forceinline__ Word word(int row, int at) const {
    return *reinterpret_cast<Word const*>(&bits[row][at]);
  }

  /// Draws those of queries from `row` on and keys from `key` on, with all threads of the block.
  __device__ void draw(attention_work const& work, attention_dropout const& dropout, std::uint64_t sample,
                       std::int64_t head, std::int64_t row, std::int64_t key) {
    auto const threshold = static_cast<std::uint32_t>(dropout.threshold);
    auto const start =
        ((work.first_head + head) * work.whole + work.first_query + row) * work.whole + work.first_key + key;
    for (int task = static_cast<int>(threadIdx.x); task < Rows * bytes; task += static_cast<int>(blockDim.x)) {
      int const r = task / bytes;
      int const byte = task % bytes;
      auto const position = start + r * work.whole + byte * 8;
      auto const block = static_cast<std::uint32_t>(position / 4);
      int const skipped = static_cast<int>(position % 4);  // a row need not start with a block of four numbers
      std::uint32_t found = 0;
      TRIREME_DEVICE_UNROLL
      for (int b = 0; b < 3; ++b) {
        if (b == 2 && skipped == 0) continue;
        auto const words = random_block(work.random, work.site, sample, block + static_cast<std::uint32_t>(b));
        TRIREME_DEVICE_UNROLL
        for (int k = 0; k < 4; ++k) {
          std::uint32_t const number = words[static_cast<std::size_t>(k)] >> 8;  // of 24 bits
          found |= (number >= threshold ? 1U : 0U) << (b * 4 + k);
        }
      }
      bits[r][byte] = static_cast<std::uint8_t>(found >> skipped);
    }
  }
};

/// How the columns of a head, padded to D, lie in lanes, and how many rows are in a tile of shared memory.
template <class Real, int D>
struct attention_tiling {
  static constexpr int threads = 256;
  static constexpr int packed = 16 / static_cast<int>(sizeof(Real));   // columns that are read at once
  static constexpr int columns = 64 / static_cast<int>(sizeof(Real));  // of a row in one lane
  static constexpr int group = D / columns;                            // lanes of a row
  static constexpr int rows = threads / group;
  static constexpr int tile = 8192 / (D * static_cast<int>(sizeof(Real)));
  static constexpr int batch = tile < 8 ? tile : 8;  // rows of a tile that are processed at once
  static_assert(group <= warp_width && columns % packed == 0);
  using tile_memory = pack<Real, packed>[tile][D / packed];
};

constexpr double log2_e = 1.4426950408889634;
constexpr double ln_2 = 0.6931471805599453;

/// What of a block of the kernels below is the same for all.
template <class Real, int D>
struct attention_place {
  using tiling = attention_tiling<Real, D>;
  std::int64_t tile, head, sample;
  int lane;  // in its group
  int row;   // in the block

  /// Tiles with the most work under a causal mask come first.
  static __device__ __forceinline__ attention_place of(std::int64_t tiles, std::int64_t heads, bool descending) {
    std::int64_t const block = blockIdx.x;
    auto const tile = block % tiles;
    int const thread = static_cast<int>(threadIdx.x);
    return {descending ? tiles - 1 - tile : tile, block / tiles % heads, block / tiles / heads, thread % tiling::group,
            thread / tiling::group};
  }
};

/// Numbers of a row that one lane has. (By this name, because clang 14 does not read a parameter that spells it out.)
template <class Real, int D>
using lane_columns = Real[attention_tiling<Real, D>::columns];

/// This lane's columns of a row, zeros where the row has none; `whole`: packs of it are aligned.
template <class Real, int D, class T>
__device__ __forceinline__ void load_columns(lane_columns<Real, D>& to, T const* from, int lane, int width,
                                             bool whole) {
  using tiling = attention_tiling<Real, D>;
  constexpr int packed = tiling::packed;
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns / packed; ++i) {
    int const column = (i * tiling::group + lane) * packed;
    if (whole && column < width) {
      auto const x = load<packed>(from + column);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < packed; ++k) to[i * packed + k] = opened_lane<Real>(x.values[k]).v;
    } else {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < packed; ++k)
        to[i * packed + k] = column + k < width ? opened_lane<Real>(from[column + k]).v : Real(0);
    }
  }
}

/// y = factor * x, or y = kept * y + factor * x if it merges, for this lane's columns of a row.
template <class Real, int D, bool Merges, class T>
__device__ __forceinline__ void store_columns(T* to, lane_columns<Real, D> const& x, Real factor, Real kept, int lane,
                                              int width) {
  using tiling = attention_tiling<Real, D>;
  constexpr int packed = tiling::packed;
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns / packed; ++i) {
    int const column = (i * tiling::group + lane) * packed;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < packed; ++k) {
      if (column + k >= width) continue;
      if constexpr (Merges)
        to[column + k] = fused(factor, x[i * packed + k], product(kept, to[column + k]));
      else
        to[column + k] = narrow<T>(product(factor, x[i * packed + k]));
    }
  }
}

/// Rows [first, first + tile) of a head to shared memory, zeros after `rows`, with all threads of the block.
template <class Real, int D, class T>
__device__ __forceinline__ void load_tile(typename attention_tiling<Real, D>::tile_memory& to, T const* from,
                                          std::int64_t next_row, std::int64_t first, std::int64_t rows, int width,
                                          bool whole) {
  using tiling = attention_tiling<Real, D>;
  constexpr int packed = tiling::packed;
  constexpr int packs = D / packed;
  for (int task = static_cast<int>(threadIdx.x); task < tiling::tile * packs; task += tiling::threads) {
    int const row = task / packs;
    int const column = task % packs * packed;
    pack<Real, packed> x;
    if (first + row < rows && column + packed <= width && whole) {
      auto const in = load<packed>(from + (first + row) * next_row + column);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < packed; ++k) x.values[k] = opened_lane<Real>(in.values[k]).v;
    } else {
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < packed; ++k) {
        x.values[k] = first + row < rows && column + k < width
                          ? opened_lane<Real>(from[(first + row) * next_row + column + k]).v
                          : Real(0);
      }
    }
    to[row][task % packs] = x;
  }
}

/// This lane's columns of a row of a tile.
template <class Real, int D>
__device__ __forceinline__ void take_columns(lane_columns<Real, D>& to,
                                             typename attention_tiling<Real, D>::tile_memory const& from, int row,
                                             int lane) {
  using tiling = attention_tiling<Real, D>;
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns / tiling::packed; ++i) {
    auto const x = from[row][i * tiling::group + lane];
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < tiling::packed; ++k) to[i * tiling::packed + k] = x.values[k];
  }
}

template <class Real, int Columns>
__device__ __forceinline__ Real dot(Real const (&a)[Columns], Real const (&b)[Columns]) {
  Real sums[2] = {0, 0};
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < Columns; i += 2) {
    sums[0] = fused(a[i], b[i], sums[0]);
    sums[1] = fused(a[i + 1], b[i + 1], sums[1]);
  }
  return sum(sums[0], sums[1]);
}
template <class Real, int Columns>
__device__ __forceinline__ void add_multiple(Real (&to)[Columns], Real factor, Real const (&x)[Columns]) {
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < Columns; ++i) to[i] = fused(factor, x[i], to[i]);
}
/// The sum over the lanes of a group, in each of them.
template <int Group, class Real>
__device__ __forceinline__ Real group_sum(Real x) {
  TRIREME_DEVICE_UNROLL
  for (int by = 1; by < Group; by *= 2) x = sum(x, shuffle_xor(x, by));
  return x;
}

/// y and lse of a block of queries.
template <class T, int D, bool Merges>
__global__ void __launch_bounds__(256) attend(attention_work const work, attention_dropout const dropout, bool whole) {
  using real = real_for<T>;
  using tiling = attention_tiling<real, D>;
  constexpr auto infinity = std::numeric_limits<real>::infinity();
  auto& keys = block_shared<typename tiling::tile_memory, 0>();
  auto& values = block_shared<typename tiling::tile_memory, 1>();
  auto& kept = block_shared<kept_tile<tiling::rows, tiling::tile>, 2>();
  auto const at = attention_place<real, D>::of((work.rows + tiling::rows - 1) / tiling::rows, work.heads, true);
  int const width = static_cast<int>(work.width);
  auto const first_row = at.tile * tiling::rows;
  auto const row = first_row + at.row;
  bool const valid = row < work.rows;
  auto const last_row = first_row + tiling::rows < work.rows ? first_row + tiling::rows - 1 : work.rows - 1;
  auto const mine = keys_of(work, at.sample, valid ? row : work.rows - 1);
  auto const begin = keys_of(work, at.sample, first_row).begin;
  auto const end = keys_of(work, at.sample, last_row).end;
  auto const* const key_head = head_of<T>(work.key, at.sample, at.head, work.width);
  auto const* const value_head = head_of<T>(work.value, at.sample, at.head, work.width);
  auto const id = dropout.id_of(at.sample);

  real query[tiling::columns], result[tiling::columns], other[tiling::columns];
  load_columns<real, D>(
      query,
      head_of<T>(work.queries, at.sample, at.head, work.width) + (valid ? row : work.rows - 1) * work.queries.next_row,
      at.lane, width, whole);
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns; ++i) {
    query[i] = product(query[i], static_cast<real>(work.scale * log2_e));
    result[i] = 0;
  }
  real most = -infinity, mass = 0;  // of scores times log2(e)
  for (auto key = begin; key < end; key += tiling::tile) {
    sync_block();
    load_tile<real, D>(keys, key_head, work.key.next_row, key, work.keys, width, whole);
    load_tile<real, D>(values, value_head, work.value.next_row, key, work.keys, width, whole);
    if (dropout.active) kept.draw(work, dropout, id, at.head, first_row, key);
    sync_block();
    for (int j = 0; j < tiling::tile; j += tiling::batch) {
      real scores[tiling::batch];
      real top = most;
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < tiling::batch; ++k) {
        take_columns<real, D>(other, keys, j + k, at.lane);
        auto const score = group_sum<tiling::group>(dot(query, other));
        auto const place = key + j + k;
        scores[k] = place >= mine.begin && place < mine.end ? score : -infinity;
        top = scores[k] > top ? scores[k] : top;
      }
      real const base = top > -infinity ? top : real(0);
      auto const shrunk = exponential2(difference(most, base));
      most = top;
      mass = product(mass, shrunk);
      TRIREME_DEVICE_UNROLL
      for (int i = 0; i < tiling::columns; ++i) result[i] = product(result[i], shrunk);
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < tiling::batch; ++k) {
        auto share = exponential2(difference(scores[k], base));
        mass = sum(mass, share);
        if (dropout.active) share = kept.has(at.row, j + k) ? product(share, static_cast<real>(dropout.kept)) : real(0);
        take_columns<real, D>(other, values, j + k, at.lane);
        add_multiple(result, share, other);
      }
    }
  }

  auto* const lse = work.lse == nullptr
                        ? nullptr
                        : static_cast<real*>(work.lse) + (at.sample * work.heads + at.head) * work.lse_next_head + row;
  auto const peak = product(most, static_cast<real>(ln_2));
  if constexpr (Merges) {
    auto* const y = head_of<real>(work.y, at.sample, at.head, work.width) + row * work.y.next_row;
    auto const before = valid ? *lse : real(0);
    sync_warp();  // all lanes of the row have read it
    if (!valid || !(mass > 0)) return;
    auto const here = sum(peak, logarithm(mass));
    auto const more = before > here ? before : here;
    auto const both =
        sum(more, logarithm(sum(exponential(difference(before, more)), exponential(difference(here, more)))));
    store_columns<real, D, true>(y, result, exponential(difference(peak, both)), exponential(difference(before, both)),
                                 at.lane, width);
    if (at.lane == 0) *lse = both;
  } else {
    if (!valid) return;
    auto* const y = head_of<T>(work.y, at.sample, at.head, work.width) + row * work.y.next_row;
    store_columns<real, D, false>(y, result, mass > 0 ? quotient(real(1), mass) : real(0), real(0), at.lane, width);
    if (lse != nullptr && at.lane == 0) *lse = mass > 0 ? sum(peak, logarithm(mass)) : -infinity;
  }
}

/// y of the only query of each sample and head: a block for each. Each group of lanes has every so-many-th key; their
/// results are merged in the order of the groups.
template <class T, int D>
__global__ void __launch_bounds__(256) attend_one_query(attention_work const work, bool whole) {
  using real = real_for<T>;
  using tiling = attention_tiling<real, D>;
  constexpr auto infinity = std::numeric_limits<real>::infinity();
  constexpr int groups = tiling::rows;
  constexpr int batch = 4;  // keys of a group that are loaded at once
  auto& results = block_shared<real[groups][D], 0>();
  auto& peaks = block_shared<real[groups], 1>();
  auto& masses = block_shared<real[groups], 2>();
  auto const at = attention_place<real, D>::of(1, work.heads, false);
  int const width = static_cast<int>(work.width);
  auto const seen = keys_of(work, at.sample, 0);
  auto const* const key_head = head_of<T>(work.key, at.sample, at.head, work.width);
  auto const* const value_head = head_of<T>(work.value, at.sample, at.head, work.width);
  real query[tiling::columns], result[tiling::columns], other[batch][tiling::columns];
  load_columns<real, D>(query, head_of<T>(work.queries, at.sample, at.head, work.width), at.lane, width, whole);
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns; ++i) {
    query[i] = product(query[i], static_cast<real>(work.scale * log2_e));
    result[i] = 0;
  }
  real most = -infinity, mass = 0;  // of scores times log2(e)
  for (auto first = seen.begin; first < seen.end; first += batch * groups) {
    auto const key = first + at.row;
    auto const row_of = [&](int k) { return key + k * groups < seen.end ? key + k * groups : seen.end - 1; };
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < batch; ++k)
      load_columns<real, D>(other[k], key_head + row_of(k) * work.key.next_row, at.lane, width, whole);
    real scores[batch];
    real top = most;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < batch; ++k) {
      auto const score = group_sum<tiling::group>(dot(query, other[k]));
      scores[k] = key + k * groups < seen.end ? score : -infinity;
      top = scores[k] > top ? scores[k] : top;
    }
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < batch; ++k)
      load_columns<real, D>(other[k], value_head + row_of(k) * work.value.next_row, at.lane, width, whole);
    real const base = top > -infinity ? top : real(0);
    auto const shrunk = exponential2(difference(most, base));
    most = top;
    mass = product(mass, shrunk);
    TRIREME_DEVICE_UNROLL
    for (int i = 0; i < tiling::columns; ++i) result[i] = product(result[i], shrunk);
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < batch; ++k) {
      auto const share = exponential2(difference(scores[k], base));
      mass = sum(mass, share);
      add_multiple(result, share, other[k]);
    }
  }
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns; ++i) {
    int const column = (i / tiling::packed * tiling::group + at.lane) * tiling::packed + i % tiling::packed;
    results[at.row][column] = result[i];
  }
  if (at.lane == 0) {
    peaks[at.row] = most;
    masses[at.row] = mass;
  }
  sync_block();
  for (int column = static_cast<int>(threadIdx.x); column < width; column += tiling::threads) {
    real top = peaks[0];
    for (int g = 1; g < groups; ++g) top = peaks[g] > top ? peaks[g] : top;
    real const base = top > -infinity ? top : real(0);
    real total = 0, y = 0;
    for (int g = 0; g < groups; ++g) {
      auto const share = exponential2(difference(peaks[g], base));
      total = fused(share, masses[g], total);
      y = fused(share, results[g][column], y);
    }
    head_of<T>(work.y, at.sample, at.head, work.width)[column] = narrow<T>(total > 0 ? quotient(y, total) : real(0));
  }
}

/// delta and dqueries of a block of queries: delta = sum(dy y), dS = P (dP - delta), dq = scale dS k.
template <class T, int D, bool Merges>
__global__ void __launch_bounds__(256)
    attend_backward_queries(attention_work const work, attention_dropout const dropout, bool whole) {
  using real = real_for<T>;
  using tiling = attention_tiling<real, D>;
  auto& keys = block_shared<typename tiling::tile_memory, 0>();
  auto& values = block_shared<typename tiling::tile_memory, 1>();
  auto& kept = block_shared<kept_tile<tiling::rows, tiling::tile>, 2>();
  auto const at = attention_place<real, D>::of((work.rows + tiling::rows - 1) / tiling::rows, work.heads, true);
  int const width = static_cast<int>(work.width);
  auto const first_row = at.tile * tiling::rows;
  auto const row = first_row + at.row < work.rows ? first_row + at.row : work.rows - 1;
  bool const valid = first_row + at.row < work.rows;
  auto const last_row = first_row + tiling::rows < work.rows ? first_row + tiling::rows - 1 : work.rows - 1;
  auto const mine = keys_of(work, at.sample, row);
  auto const begin = keys_of(work, at.sample, first_row).begin;
  auto const end = keys_of(work, at.sample, last_row).end;
  auto const* const key_head = head_of<T>(work.key, at.sample, at.head, work.width);
  auto const* const value_head = head_of<T>(work.value, at.sample, at.head, work.width);
  auto const id = dropout.id_of(at.sample);

  real query[tiling::columns], slope[tiling::columns], result[tiling::columns];
  real key_row[tiling::columns], value_row[tiling::columns];
  load_columns<real, D>(query, head_of<T>(work.queries, at.sample, at.head, work.width) + row * work.queries.next_row,
                        at.lane, width, whole);
  load_columns<real, D>(slope, head_of<T>(work.dy, at.sample, at.head, work.width) + row * work.dy.next_row, at.lane,
                        width, whole);
  load_columns<real, D>(
      result, static_cast<T const*>(head_of<T>(work.y, at.sample, at.head, work.width)) + row * work.y.next_row,
      at.lane, width, whole);
  auto const delta = group_sum<tiling::group>(dot(slope, result));
  auto const of_head = at.sample * work.heads + at.head;
  auto const mass =
      product(static_cast<real const*>(work.lse)[of_head * work.lse_next_head + row], static_cast<real>(log2_e));
  if (valid && at.lane == 0) static_cast<real*>(work.delta)[of_head * work.rows + row] = delta;
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns; ++i) {
    query[i] = product(query[i], static_cast<real>(work.scale * log2_e));
    result[i] = 0;
  }
  for (auto key = begin; key < end; key += tiling::tile) {
    sync_block();
    load_tile<real, D>(keys, key_head, work.key.next_row, key, work.keys, width, whole);
    load_tile<real, D>(values, value_head, work.value.next_row, key, work.keys, width, whole);
    if (dropout.active) kept.draw(work, dropout, id, at.head, first_row, key);
    sync_block();
    for (int j = 0; j < tiling::tile; ++j) {
      take_columns<real, D>(key_row, keys, j, at.lane);
      take_columns<real, D>(value_row, values, j, at.lane);
      auto const score = group_sum<tiling::group>(dot(query, key_row));
      auto dshare = group_sum<tiling::group>(dot(slope, value_row));
      auto const share = key + j >= mine.begin && key + j < mine.end ? exponential2(difference(score, mass)) : real(0);
      if (dropout.active) dshare = kept.has(at.row, j) ? product(dshare, static_cast<real>(dropout.kept)) : real(0);
      add_multiple(result, product(share, difference(dshare, delta)), key_row);
    }
  }
  if (!valid) return;
  using output = std::conditional_t<Merges, real, T>;
  store_columns<real, D, Merges>(
      head_of<output>(work.dqueries, at.sample, at.head, work.width) + row * work.dqueries.next_row, result,
      static_cast<real>(work.scale), real(1), at.lane, width);
}

/// dkey and dvalue of a block of keys, after delta: dv = P^T dy, dk = scale dS^T q.
template <class T, int D, bool Merges>
__global__ void __launch_bounds__(256)
    attend_backward_keys(attention_work const work, attention_dropout const dropout, bool whole) {
  using real = real_for<T>;
  using tiling = attention_tiling<real, D>;
  struct query_numbers {  // of each query of a tile
    real mass, delta;
    key_interval keys;
  };
  auto& queries = block_shared<typename tiling::tile_memory, 0>();
  auto& slopes = block_shared<typename tiling::tile_memory, 1>();
  auto& kept = block_shared<kept_tile<tiling::tile, tiling::rows>, 2>();
  auto& numbers = block_shared<query_numbers[tiling::tile], 3>();
  auto const at = attention_place<real, D>::of((work.keys + tiling::rows - 1) / tiling::rows, work.heads, false);
  int const width = static_cast<int>(work.width);
  auto const first_key = at.tile * tiling::rows;
  auto const key = first_key + at.row;
  bool const valid = key < work.keys;
  auto const rows = queries_of(work, at.sample, first_key,
                               first_key + tiling::rows < work.keys ? first_key + tiling::rows : work.keys);
  auto const* const query_head = head_of<T>(work.queries, at.sample, at.head, work.width);
  auto const* const slope_head = head_of<T>(work.dy, at.sample, at.head, work.width);
  auto const of_head = at.sample * work.heads + at.head;
  auto const* const lse = static_cast<real const*>(work.lse) + of_head * work.lse_next_head;
  auto const* const delta = static_cast<real const*>(work.delta) + of_head * work.rows;
  auto const id = dropout.id_of(at.sample);

  real key_row[tiling::columns], value_row[tiling::columns], dkey[tiling::columns], dvalue[tiling::columns];
  real query[tiling::columns], slope[tiling::columns];
  auto const loaded = valid ? key : work.keys - 1;
  load_columns<real, D>(key_row, head_of<T>(work.key, at.sample, at.head, work.width) + loaded * work.key.next_row,
                        at.lane, width, whole);
  load_columns<real, D>(value_row,
                        head_of<T>(work.value, at.sample, at.head, work.width) + loaded * work.value.next_row, at.lane,
                        width, whole);
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiling::columns; ++i) {
    key_row[i] = product(key_row[i], static_cast<real>(work.scale * log2_e));
    dkey[i] = 0;
    dvalue[i] = 0;
  }
  for (auto row = rows.begin; row < rows.end; row += tiling::tile) {
    sync_block();
    load_tile<real, D>(queries, query_head, work.queries.next_row, row, work.rows, width, whole);
    load_tile<real, D>(slopes, slope_head, work.dy.next_row, row, work.rows, width, whole);
    if (static_cast<int>(threadIdx.x) < tiling::tile) {
      auto const mine = row + threadIdx.x;
      numbers[threadIdx.x] = mine < work.rows ? query_numbers{product(lse[mine], static_cast<real>(log2_e)),
                                                              delta[mine], keys_of(work, at.sample, mine)}
                                              : query_numbers{real(0), real(0), {0, 0}};
    }
    if (dropout.active) kept.draw(work, dropout, id, at.head, row, first_key);
    sync_block();
    for (int j = 0; j < tiling::tile; ++j) {
      take_columns<real, D>(query, queries, j, at.lane);
      take_columns<real, D>(slope, slopes, j, at.lane);
      auto const of_query = numbers[j];
      auto const score = group_sum<tiling::group>(dot(query, key_row));
      auto dshare = group_sum<tiling::group>(dot(slope, value_row));
      auto const share = key >= of_query.keys.begin && key < of_query.keys.end
                             ? exponential2(difference(score, of_query.mass))
                             : real(0);
      auto used = share;
      if (dropout.active) {
        auto const factor = kept.has(j, at.row) ? static_cast<real>(dropout.kept) : real(0);
        used = product(used, factor);
        dshare = product(dshare, factor);
      }
      add_multiple(dvalue, used, slope);
      add_multiple(dkey, product(share, difference(dshare, of_query.delta)), query);
    }
  }
  if (!valid) return;
  using output = std::conditional_t<Merges, real, T>;
  store_columns<real, D, Merges>(head_of<output>(work.dkey, at.sample, at.head, work.width) + key * work.dkey.next_row,
                                 dkey, static_cast<real>(work.scale), real(1), at.lane, width);
  store_columns<real, D, Merges>(
      head_of<output>(work.dvalue, at.sample, at.head, work.width) + key * work.dvalue.next_row, dvalue, real(1),
      real(1), at.lane, width);
}

}  // namespace trireme::ops::detail::device
