#pragma once

#include "trireme/ops/cuda/attention.cuh"

// Attention of elements of 16 bits by products of tiles, for heads of up to 128 columns. Method: [Dao, 2023], but with
// a pass for queries and one for keys in the backward pass, so that sums have one order.
//
// Each of the four warps of a block has 16 rows, or 32, of one side (queries, or in the pass for keys, keys), whose
// operands and sums stay in registers. The rows of the other side come in tiles to shared memory, where the next tile
// is copied while the warps multiply this one.

namespace trireme::ops::detail::device {

/// D: columns of a head, padded to 64 or 128.
template <int D>
struct tiled_attention {
  static constexpr int threads = 128;
  static constexpr int warps = threads / warp_width;
  static constexpr int rows = 4096 / D;                  // of a tile
  static constexpr int bands = D == 64 ? 2 : 1;          // 16 rows of a warp in the passes for queries
  static constexpr int query_rows = warps * 16 * bands;  // of a block
  static constexpr int key_rows = warps * 16;
};

/// Rows of a head in shared memory. The packs of 8 elements of a row are exchanged by the row's number, so that 8 rows'
/// packs of the same columns lie in different banks.
template <class T, int D>
struct shared_rows {
  pack<T, 8> packs[tiled_attention<D>::rows][D / 8];
  [[nodiscard]] __device__ __forceinline__ pack<T, 8>* at(int row, int column_pack) {
    return &packs[row][column_pack ^ (row & 7)];
  }
};

/// Starts to copy rows [first, first + tile) of a head to a tile, zeros after `rows` and after `width`.
template <class T, int D>
__device__ __forceinline__ void start_rows(shared_rows<T, D>& to, T const* from, std::int64_t next_row,
                                           std::int64_t first, std::int64_t rows, int width) {
  using tiled = tiled_attention<D>;
  constexpr int packs = D / 8;
  constexpr int step = tiled::threads / packs;  // a multiple of 8 rows, so a thread's packs have one place in them
  int const row = static_cast<int>(threadIdx.x) / packs;
  int const column = static_cast<int>(threadIdx.x) % packs;
  auto const left = rows - first;
  bool const inside = column * 8 < width;
  T const* at = from + (first + row) * next_row + column * 8;
  TRIREME_DEVICE_UNROLL
  for (int i = 0; i < tiled::rows; i += step) {
    bool const there = inside && row + i < left;
    start_copy(to.at(row + i, column), there ? at : from, there);
    at += step * next_row;
  }
}

/// The elements of a word.
template <class T>
__device__ __forceinline__ float low_half(std::uint32_t word) {
  T x;
  x.bits = static_cast<std::uint16_t>(word);
  return wide(x);
}
template <class T>
__device__ __forceinline__ float high_half(std::uint32_t word) {
  return low_half<T>(word >> 16);
}

/// This lane's place in the operands of a product: rows `high` (g) and `high` + 8, columns `low` (2 t) and the next.
struct lane_place {
  int warp, lane, high, low;
  static __device__ __forceinline__ lane_place here() {
    int const thread = static_cast<int>(threadIdx.x);
    int const lane = thread % warp_width;
    return {thread / warp_width, lane, lane / 4, lane % 4 * 2};
  }
};

/// The words of 16 rows of a head as the first operands of products, from global memory.
template <class T, int D>
__device__ __forceinline__ void load_operands(std::uint32_t (&to)[D / 16][4], T const* from, std::int64_t next_row,
                                              std::int64_t first, std::int64_t rows, int width,
                                              lane_place const& lane) {
  TRIREME_DEVICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    auto const row = first + lane.high + 8 * half;
    T const* const at = from + (row < rows ? row : rows - 1) * next_row + lane.low;
    TRIREME_DEVICE_UNROLL
    for (int k = 0; k < D / 16; ++k) {
      TRIREME_DEVICE_UNROLL
      for (int right = 0; right < 2; ++right) {
        int const column = k * 16 + right * 8;
        std::uint32_t word = 0;
        if (column < width) word = *reinterpret_cast<std::uint32_t const*>(at + column);
        to[k][half + 2 * right] = word;
      }
    }
  }
}

/// products (16, 16) = a (16, D) b^T, with b 16 rows of a tile from `row` on, as two tiles of 8 columns; for each of
/// several a.
template <class T, int D, int Bands>
__device__ __forceinline__ void multiply_rows(float (&products)[Bands][2][4],
                                              std::uint32_t const (&a)[Bands][D / 16][4], shared_rows<T, D>& b, int row,
                                              lane_place const& lane) {
  TRIREME_DEVICE_UNROLL
  for (int m = 0; m < Bands; ++m) {
    TRIREME_DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) products[m][0][i] = products[m][1][i] = 0;
  }
  int const at = row + (lane.lane & 7) + (lane.lane >> 4) * 8;
  TRIREME_DEVICE_UNROLL
  for (int k = 0; k < D / 16; ++k) {
    std::uint32_t words[4];
    load_matrices(words, b.at(at, 2 * k + (lane.lane >> 3 & 1)));
    TRIREME_DEVICE_UNROLL
    for (int m = 0; m < Bands; ++m) {
      multiply_tiles<T>(products[m][0], a[m][k], words[0], words[1]);
      multiply_tiles<T>(products[m][1], a[m][k], words[2], words[3]);
    }
  }
}

/// The (16, 16) numbers of two tiles of sums, as the first operand of a product.
template <class T>
__device__ __forceinline__ void operand_of(std::uint32_t (&to)[4], float const (&from)[2][4]) {
  to[0] = word_of<T>(from[0][0], from[0][1]);
  to[1] = word_of<T>(from[0][2], from[0][3]);
  to[2] = word_of<T>(from[1][0], from[1][1]);
  to[3] = word_of<T>(from[1][2], from[1][3]);
}

/// sums (16, D) += a (16, 16) b, with b 16 rows of a tile from `row` on; for each of several a.
template <class T, int D, int Bands>
__device__ __forceinline__ void add_products(float (&sums)[Bands][D / 8][4], std::uint32_t const (&a)[Bands][4],
                                             shared_rows<T, D>& b, int row, lane_place const& lane) {
  int const at = row + (lane.lane & 15);
  TRIREME_DEVICE_UNROLL
  for (int n = 0; n < D / 16; ++n) {
    std::uint32_t words[4];
    load_transposed(words, b.at(at, 2 * n + (lane.lane >> 4)));
    TRIREME_DEVICE_UNROLL
    for (int m = 0; m < Bands; ++m) {
      multiply_tiles<T>(sums[m][2 * n], a[m], words[0], words[1]);
      multiply_tiles<T>(sums[m][2 * n + 1], a[m], words[2], words[3]);
    }
  }
}

/// Row `row` of the output `to` = factor * sums, of elements T, or of float, to which it is added times `kept`.
template <class T, int D>
__device__ __forceinline__ void store_sums(attention_rows<void*> const& to, bool merges, std::int64_t sample,
                                           std::int64_t head, std::int64_t row, std::int64_t width,
                                           float const (&sums)[D / 8][4], int half, float factor, float kept,
                                           lane_place const& lane) {
  auto const at = sample * to.next_sample + head * width + row * to.next_row + lane.low;
  TRIREME_DEVICE_UNROLL
  for (int n = 0; n < D / 8; ++n) {
    if (n * 8 >= width) continue;
    float const first = sums[n][2 * half], second = sums[n][2 * half + 1];
    if (merges) {
      float* const y = static_cast<float*>(to.address) + at + n * 8;
      y[0] = fused(factor, first, product(kept, y[0]));
      y[1] = fused(factor, second, product(kept, y[1]));
    } else {
      *reinterpret_cast<std::uint32_t*>(static_cast<T*>(to.address) + at + n * 8) =
          word_of<T>(product(factor, first), product(factor, second));
    }
  }
}

/// The largest or the sum over the four lanes of a row.
__device__ __forceinline__ float row_sum(float x) { return group_sum<4>(x); }
__device__ __forceinline__ float row_peak(float x) {
  TRIREME_DEVICE_UNROLL
  for (int by = 1; by < 4; by *= 2) {
    auto const other = shuffle_xor(x, by);
    x = x > other ? x : other;
  }
  return x;
}

/// The keys that some of the rows [first, first + count) attend to, and those that all of them do.
struct key_range_of_rows {
  key_interval some, all;
  static __device__ __forceinline__ key_range_of_rows of(attention_work const& work, std::int64_t sample,
                                                         std::int64_t first, std::int64_t count) {
    auto const last = work.rows - 1;
    auto const top = keys_of(work, sample, first < last ? first : last);
    auto const bottom = keys_of(work, sample, first + count - 1 < last ? first + count - 1 : last);
    return {{top.begin, bottom.end}, {bottom.begin, top.end}};
  }
  [[nodiscard]] __device__ __forceinline__ bool none(std::int64_t key, int count) const {
    return key >= some.end || key + count <= some.begin;
  }
  [[nodiscard]] __device__ __forceinline__ bool edge(std::int64_t key, int count) const {
    return key < all.begin || key + count > all.end;
  }
};

/// y and lse of a block of queries.
template <class T, int D, bool Drops>
__global__ void __launch_bounds__(128, 2) attend_tiles(attention_work const work, attention_dropout const dropout) {
  using tiled = tiled_attention<D>;
  constexpr int bands = tiled::bands;
  constexpr int warp_rows = 16 * bands;
  constexpr int block_rows = tiled::query_rows;
  constexpr int tile = tiled::rows;
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  auto& keys = block_shared<shared_rows<T, D>[2], 0>();
  auto& values = block_shared<shared_rows<T, D>[2], 1>();
  auto const lane = lane_place::here();
  int const width = static_cast<int>(work.width);
  auto const tiles = (work.rows + block_rows - 1) / block_rows;
  auto const block = tiles - 1 - blockIdx.x % tiles;
  auto const head = blockIdx.x / tiles % work.heads;
  std::int64_t const sample = blockIdx.x / tiles / work.heads;
  auto const block_row = block * block_rows;
  auto const first_row = block_row + lane.warp * warp_rows;  // of the warp
  auto const of_block = key_range_of_rows::of(work, sample, block_row, block_rows).some;
  auto const of_warp = key_range_of_rows::of(work, sample, first_row, warp_rows);
  auto const* const key_head = head_of<T>(work.key, sample, head, work.width);
  auto const* const value_head = head_of<T>(work.value, sample, head, work.width);
  float const slope = static_cast<float>(work.scale * log2_e);

  std::uint32_t queries[bands][D / 16][4];
  float result[bands][D / 8][4];
  float most[bands][2], mass[bands][2];  // of scores; of this lane's columns
  TRIREME_DEVICE_UNROLL
  for (int m = 0; m < bands; ++m) {
    load_operands<T, D>(queries[m], head_of<T>(work.queries, sample, head, work.width), work.queries.next_row,
                        first_row + 16 * m, work.rows, width, lane);
    TRIREME_DEVICE_UNROLL
    for (int n = 0; n < D / 8; ++n) {
      TRIREME_DEVICE_UNROLL
      for (int i = 0; i < 4; ++i) result[m][n][i] = 0;
    }
    most[m][0] = most[m][1] = -infinity;
    mass[m][0] = mass[m][1] = 0;
  }

  int stage = 0;
  if (of_block.begin < of_block.end) {
    start_rows<T, D>(keys[0], key_head, work.key.next_row, of_block.begin, work.keys, width);
    start_rows<T, D>(values[0], value_head, work.value.next_row, of_block.begin, work.keys, width);
  }
  for (auto key = of_block.begin; key < of_block.end; key += tile, stage ^= 1) {
    finish_copies();
    sync_block();  // this tile is there, and all warps are done with the one before
    if (key + tile < of_block.end) {
      start_rows<T, D>(keys[stage ^ 1], key_head, work.key.next_row, key + tile, work.keys, width);
      start_rows<T, D>(values[stage ^ 1], value_head, work.value.next_row, key + tile, work.keys, width);
    }
    if constexpr (Drops) {
      auto& drawn = block_shared<kept_tile<block_rows, tile>, 2>();
      drawn.draw(work, dropout, dropout.id_of(sample), head, block_row, key);
      sync_block();
    }
    if (of_warp.none(key, tile)) continue;

    float scores[tile / 16][bands][2][4];
    TRIREME_DEVICE_UNROLL
    for (int j = 0; j < tile / 16; ++j) multiply_rows<T, D, bands>(scores[j], queries, keys[stage], j * 16, lane);
    if (of_warp.edge(key, tile)) {
      TRIREME_DEVICE_UNROLL
      for (int m = 0; m < bands; ++m) {
        TRIREME_DEVICE_UNROLL
        for (int half = 0; half < 2; ++half) {
          auto const row = first_row + 16 * m + 8 * half + lane.high;
          auto const seen = keys_of(work, sample, row < work.rows ? row : work.rows - 1);
          int const from = static_cast<int>(seen.begin - key), to = static_cast<int>(seen.end - key);
          TRIREME_DEVICE_UNROLL
          for (int n = 0; n < tile / 8; ++n) {
            TRIREME_DEVICE_UNROLL
            for (int i = 0; i < 2; ++i) {
              int const column = n * 8 + lane.low + i;
              if (column < from || column >= to) scores[n / 2][m][n % 2][2 * half + i] = -infinity;
            }
          }
        }
      }
    }
    TRIREME_DEVICE_UNROLL
    for (int m = 0; m < bands; ++m) {
      TRIREME_DEVICE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float top = most[m][half];
        TRIREME_DEVICE_UNROLL
        for (int n = 0; n < tile / 8; ++n) {
          TRIREME_DEVICE_UNROLL
          for (int i = 0; i < 2; ++i) {
            float const score = scores[n / 2][m][n % 2][2 * half + i];
            top = score > top ? score : top;
          }
        }
        top = row_peak(top);
        float const base = top > -infinity ? product(top, slope) : 0.0F;
        float const shrunk = quick_exp2(fused(most[m][half], slope, -base));
        most[m][half] = top;
        float total = product(mass[m][half], shrunk);
        TRIREME_DEVICE_UNROLL
        for (int n = 0; n < tile / 8; ++n) {
          TRIREME_DEVICE_UNROLL
          for (int i = 0; i < 2; ++i) {
            float& score = scores[n / 2][m][n % 2][2 * half + i];
            score = quick_exp2(fused(score, slope, -base));
            total = sum(total, score);
          }
        }
        mass[m][half] = total;
        TRIREME_DEVICE_UNROLL
        for (int n = 0; n < D / 8; ++n) {
          result[m][n][2 * half] = product(result[m][n][2 * half], shrunk);
          result[m][n][2 * half + 1] = product(result[m][n][2 * half + 1], shrunk);
        }
      }
    }
    if constexpr (Drops) {
      auto const& drawn = block_shared<kept_tile<block_rows, tile>, 2>();
      TRIREME_DEVICE_UNROLL
      for (int m = 0; m < bands; ++m) {
        TRIREME_DEVICE_UNROLL
        for (int half = 0; half < 2; ++half) {
          int const row = lane.warp * warp_rows + 16 * m + 8 * half + lane.high;
          TRIREME_DEVICE_UNROLL
          for (int part = 0; part < tile / 32; ++part) {
            auto const kept = drawn.template word<std::uint32_t>(row, 4 * part) >> lane.low;
            TRIREME_DEVICE_UNROLL
            for (int n = 0; n < 4; ++n) {
              TRIREME_DEVICE_UNROLL
              for (int i = 0; i < 2; ++i)
                if ((kept >> (n * 8 + i) & 1) == 0) scores[2 * part + n / 2][m][n % 2][2 * half + i] = 0;
            }
          }
        }
      }
    }
    TRIREME_DEVICE_UNROLL
    for (int j = 0; j < tile / 16; ++j) {
      std::uint32_t shares[bands][4];
      TRIREME_DEVICE_UNROLL
      for (int m = 0; m < bands; ++m) operand_of<T>(shares[m], scores[j][m]);
      add_products<T, D, bands>(result, shares, values[stage], j * 16, lane);
    }
  }

  float const kept_factor = Drops ? static_cast<float>(dropout.kept) : 1.0F;
  TRIREME_DEVICE_UNROLL
  for (int m = 0; m < bands; ++m) {
    TRIREME_DEVICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      auto const row = first_row + 16 * m + 8 * half + lane.high;
      bool const valid = row < work.rows;
      float const total = row_sum(mass[m][half]);
      float const peak = product(product(most[m][half], slope), static_cast<float>(ln_2));
      auto* const lse = work.lse == nullptr
                            ? nullptr
                            : static_cast<float*>(work.lse) + (sample * work.heads + head) * work.lse_next_head + row;
      float here = total > 0 ? sum(peak, logarithm(total)) : -infinity;
      float factor = total > 0 ? quotient(kept_factor, total) : 0.0F;
      float kept = 0;
      bool written = valid;
      if (work.merges) {
        float const before = valid ? *lse : 0.0F;
        sync_warp();  // all lanes of the row have read it
        written = valid && total > 0;
        float const more = before > here ? before : here;
        float const both =
            sum(more, logarithm(sum(exponential(difference(before, more)), exponential(difference(here, more)))));
        factor = product(kept_factor, exponential(difference(peak, both)));
        kept = exponential(difference(before, both));
        here = both;
      }
      if (!written) continue;
      store_sums<T, D>(work.y, work.merges, sample, head, row, work.width, result[m], half, factor, kept, lane);
      if (lse != nullptr && lane.low == 0) *lse = here;
    }
  }
}

/// delta and dqueries of a block of queries; formulas: attend_backward_queries.
template <class T, int D, bool Drops>
__global__ void __launch_bounds__(128, 2)
    attend_tiles_backward_queries(attention_work const work, attention_dropout const dropout) {
  using tiled = tiled_attention<D>;
  constexpr int bands = tiled::bands;
  constexpr int warp_rows = 16 * bands;
  constexpr int block_rows = tiled::query_rows;
  constexpr int tile = tiled::rows;
  auto& keys = block_shared<shared_rows<T, D>[2], 0>();
  auto& values = block_shared<shared_rows<T, D>[2], 1>();
  auto const lane = lane_place::here();
  int const width = static_cast<int>(work.width);
  auto const tiles = (work.rows + block_rows - 1) / block_rows;
  auto const block = tiles - 1 - blockIdx.x % tiles;
  auto const head = blockIdx.x / tiles % work.heads;
  std::int64_t const sample = blockIdx.x / tiles / work.heads;
  auto const block_row = block * block_rows;
  auto const first_row = block_row + lane.warp * warp_rows;
  auto const of_block = key_range_of_rows::of(work, sample, block_row, block_rows).some;
  auto const of_warp = key_range_of_rows::of(work, sample, first_row, warp_rows);
  auto const of_head = sample * work.heads + head;
  auto const* const key_head = head_of<T>(work.key, sample, head, work.width);
  auto const* const value_head = head_of<T>(work.value, sample, head, work.width);
  float const slope = static_cast<float>(work.scale * log2_e);

  std::uint32_t queries[bands][D / 16][4], slopes[bands][D / 16][4];
  float result[bands][D / 8][4];
  float mass[bands][2], delta[bands][2];
  TRIREME_DEVICE_UNROLL
  for (int m = 0; m < bands; ++m) {
    auto const row = first_row + 16 * m;
    load_operands<T, D>(queries[m], head_of<T>(work.y, sample, head, work.width), work.y.next_row, row, work.rows,
                        width, lane);  // y, until delta is known
    load_operands<T, D>(slopes[m], head_of<T>(work.dy, sample, head, work.width), work.dy.next_row, row, work.rows,
                        width, lane);
    TRIREME_DEVICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float total = 0;
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < D / 16; ++k) {
        TRIREME_DEVICE_UNROLL
        for (int right = 0; right < 2; ++right) {
          auto const a = queries[m][k][half + 2 * right], b = slopes[m][k][half + 2 * right];
          total = fused(low_half<T>(a), low_half<T>(b), total);
          total = fused(high_half<T>(a), high_half<T>(b), total);
        }
      }
      total = row_sum(total);
      delta[m][half] = total;
      auto const at = row + 8 * half + lane.high;
      auto const clamped = at < work.rows ? at : work.rows - 1;
      mass[m][half] = product(static_cast<float const*>(work.lse)[of_head * work.lse_next_head + clamped],
                              static_cast<float>(log2_e));
      if (at < work.rows && lane.low == 0) static_cast<float*>(work.delta)[of_head * work.rows + at] = total;
    }
    load_operands<T, D>(queries[m], head_of<T>(work.queries, sample, head, work.width), work.queries.next_row, row,
                        work.rows, width, lane);
    TRIREME_DEVICE_UNROLL
    for (int n = 0; n < D / 8; ++n) {
      TRIREME_DEVICE_UNROLL
      for (int i = 0; i < 4; ++i) result[m][n][i] = 0;
    }
  }

  int stage = 0;
  if (of_block.begin < of_block.end) {
    start_rows<T, D>(keys[0], key_head, work.key.next_row, of_block.begin, work.keys, width);
    start_rows<T, D>(values[0], value_head, work.value.next_row, of_block.begin, work.keys, width);
  }
  for (auto key = of_block.begin; key < of_block.end; key += tile, stage ^= 1) {
    finish_copies();
    sync_block();
    if (key + tile < of_block.end) {
      start_rows<T, D>(keys[stage ^ 1], key_head, work.key.next_row, key + tile, work.keys, width);
      start_rows<T, D>(values[stage ^ 1], value_head, work.value.next_row, key + tile, work.keys, width);
    }
    if constexpr (Drops) {
      auto& drawn = block_shared<kept_tile<block_rows, tile>, 2>();
      drawn.draw(work, dropout, dropout.id_of(sample), head, block_row, key);
      sync_block();
    }
    if (of_warp.none(key, tile)) continue;
    bool const edge = of_warp.edge(key, tile);
    TRIREME_DEVICE_ROLLED
    for (int j = 0; j < tile / 16; ++j) {
      std::uint32_t dscores[bands][4];
      float scores[bands][2][4], dshares[bands][2][4];
      multiply_rows<T, D, bands>(scores, queries, keys[stage], j * 16, lane);
      multiply_rows<T, D, bands>(dshares, slopes, values[stage], j * 16, lane);
      TRIREME_DEVICE_UNROLL
      for (int m = 0; m < bands; ++m) {
        TRIREME_DEVICE_UNROLL
        for (int n = 0; n < 2; ++n) {
          TRIREME_DEVICE_UNROLL
          for (int i = 0; i < 4; ++i) {
            float const share = quick_exp2(fused(scores[m][n][i], slope, -mass[m][i / 2]));
            float dshare = dshares[m][n][i];
            if constexpr (Drops) {
              auto const& drawn = block_shared<kept_tile<block_rows, tile>, 2>();
              bool const kept = drawn.has(lane.warp * warp_rows + 16 * m + 8 * (i / 2) + lane.high,
                                          j * 16 + n * 8 + lane.low + i % 2);
              dshare = kept ? product(dshare, static_cast<float>(dropout.kept)) : 0.0F;
            }
            scores[m][n][i] = product(share, difference(dshare, delta[m][i / 2]));
          }
        }
        if (edge) {
          TRIREME_DEVICE_UNROLL
          for (int half = 0; half < 2; ++half) {
            auto const row = first_row + 16 * m + 8 * half + lane.high;
            auto const seen = keys_of(work, sample, row < work.rows ? row : work.rows - 1);
            int const from = static_cast<int>(seen.begin - key), to = static_cast<int>(seen.end - key);
            TRIREME_DEVICE_UNROLL
            for (int i = 0; i < 4; ++i) {
              int const column = j * 16 + i / 2 * 8 + lane.low + i % 2;
              if (column < from || column >= to) scores[m][i / 2][2 * half + i % 2] = 0;
            }
          }
        }
        operand_of<T>(dscores[m], scores[m]);
      }
      add_products<T, D, bands>(result, dscores, keys[stage], j * 16, lane);
    }
  }
  TRIREME_DEVICE_UNROLL
  for (int m = 0; m < bands; ++m) {
    TRIREME_DEVICE_UNROLL
    for (int half = 0; half < 2; ++half) {
      auto const row = first_row + 16 * m + 8 * half + lane.high;
      if (row < work.rows)
        store_sums<T, D>(work.dqueries, work.merges, sample, head, row, work.width, result[m], half,
                         static_cast<float>(work.scale), 1.0F, lane);
    }
  }
}

/// dkey and dvalue of a block of keys, after delta; formulas: attend_backward_keys. Scores are transposed: (keys,
/// queries).
template <class T, int D, bool Drops>
__global__ void __launch_bounds__(128, D == 64 ? 3 : 2)
    attend_tiles_backward_keys(attention_work const work, attention_dropout const dropout) {
  using tiled = tiled_attention<D>;
  constexpr int block_keys = tiled::key_rows;
  constexpr int tile = tiled::rows;
  struct query_numbers {  // of each query of a tile
    float mass, delta;
    int begin, end;  // of its keys
  };
  auto& queries = block_shared<shared_rows<T, D>[2], 0>();
  auto& slopes = block_shared<shared_rows<T, D>[2], 1>();
  auto& numbers = block_shared<query_numbers[2][tile], 3>();
  auto const lane = lane_place::here();
  int const width = static_cast<int>(work.width);
  auto const tiles = (work.keys + block_keys - 1) / block_keys;
  auto const block = blockIdx.x % tiles;
  auto const head = blockIdx.x / tiles % work.heads;
  std::int64_t const sample = blockIdx.x / tiles / work.heads;
  auto const block_key = block * block_keys;
  auto const first_key = block_key + lane.warp * 16;
  auto const rows =
      queries_of(work, sample, block_key, block_key + block_keys < work.keys ? block_key + block_keys : work.keys);
  auto const of_head = sample * work.heads + head;
  auto const* const query_head = head_of<T>(work.queries, sample, head, work.width);
  auto const* const slope_head = head_of<T>(work.dy, sample, head, work.width);
  auto const* const lse = static_cast<float const*>(work.lse) + of_head * work.lse_next_head;
  auto const* const delta = static_cast<float const*>(work.delta) + of_head * work.rows;
  float const slope = static_cast<float>(work.scale * log2_e);

  std::uint32_t keys[1][D / 16][4], values[1][D / 16][4];
  float dkey[1][D / 8][4], dvalue[1][D / 8][4];
  load_operands<T, D>(keys[0], head_of<T>(work.key, sample, head, work.width), work.key.next_row, first_key, work.keys,
                      width, lane);
  load_operands<T, D>(values[0], head_of<T>(work.value, sample, head, work.width), work.value.next_row, first_key,
                      work.keys, width, lane);
  TRIREME_DEVICE_UNROLL
  for (int n = 0; n < D / 8; ++n) {
    TRIREME_DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) dkey[0][n][i] = dvalue[0][n][i] = 0;
  }
  auto const start = [&](std::int64_t row, int to) {
    start_rows<T, D>(queries[to], query_head, work.queries.next_row, row, work.rows, width);
    start_rows<T, D>(slopes[to], slope_head, work.dy.next_row, row, work.rows, width);
  };
  // The numbers of a tile's queries, one in a thread: loaded before the products of the tile before, and stored after.
  bool const has_query = static_cast<int>(threadIdx.x) < tile;
  auto const numbers_of = [&](std::int64_t row) {
    auto const at = row + threadIdx.x;
    query_numbers mine{std::numeric_limits<float>::infinity(), 0.0F, 0, 0};  // a share of 0
    if (has_query && at < work.rows) {
      auto const seen = keys_of(work, sample, at);
      mine = {lse[at], delta[at], static_cast<int>(seen.begin), static_cast<int>(seen.end)};
    }
    return mine;
  };
  auto const keep = [&](query_numbers mine, int to) {
    mine.mass = product(mine.mass, static_cast<float>(log2_e));
    if (has_query) numbers[to][threadIdx.x] = mine;
  };

  int stage = 0;
  if (rows.begin < rows.end) {
    start(rows.begin, 0);
    keep(numbers_of(rows.begin), 0);
  }
  for (auto row = rows.begin; row < rows.end; row += tile, stage ^= 1) {
    finish_copies();
    sync_block();
    bool const more = row + tile < rows.end;
    query_numbers next{};
    if (more) {
      start(row + tile, stage ^ 1);
      next = numbers_of(row + tile);
    }
    if constexpr (Drops) {
      auto& drawn = block_shared<kept_tile<tile, block_keys>, 2>();
      drawn.draw(work, dropout, dropout.id_of(sample), head, row, block_key);
      sync_block();
    }
    int const last = static_cast<int>(row + tile < work.rows ? tile : work.rows - row) - 1;
    auto const& of_first = numbers[stage][0];
    auto const& of_last = numbers[stage][last];
    int const from = static_cast<int>(first_key);
    bool const some = from + 16 > of_first.begin && from < of_last.end;
    bool const edge = from < of_last.begin || from + 16 > of_first.end;
    TRIREME_DEVICE_ROLLED
    for (int j = 0; some && j < tile / 16; ++j) {
      float scores[1][2][4], dshares[1][2][4];
      multiply_rows<T, D, 1>(scores, keys, queries[stage], j * 16, lane);
      multiply_rows<T, D, 1>(dshares, values, slopes[stage], j * 16, lane);
      TRIREME_DEVICE_UNROLL
      for (int n = 0; n < 2; ++n) {
        TRIREME_DEVICE_UNROLL
        for (int c = 0; c < 2; ++c) {
          int const column = j * 16 + n * 8 + lane.low + c;
          auto const of_query = numbers[stage][column];
          TRIREME_DEVICE_UNROLL
          for (int half = 0; half < 2; ++half) {
            int const i = 2 * half + c;
            int const key = from + 8 * half + lane.high;
            float share = quick_exp2(fused(scores[0][n][i], slope, -of_query.mass));
            if (edge && (key < of_query.begin || key >= of_query.end)) share = 0;
            float dshare = dshares[0][n][i];
            scores[0][n][i] = share;
            if constexpr (Drops) {
              auto const& drawn = block_shared<kept_tile<tile, block_keys>, 2>();
              bool const kept = drawn.has(column, lane.warp * 16 + 8 * half + lane.high);
              dshare = kept ? product(dshare, static_cast<float>(dropout.kept)) : 0.0F;
              if (!kept) scores[0][n][i] = 0;
            }
            dshares[0][n][i] = product(share, difference(dshare, of_query.delta));
          }
        }
      }
      std::uint32_t shares[1][4], dscores[1][4];
      operand_of<T>(shares[0], scores[0]);
      operand_of<T>(dscores[0], dshares[0]);
      add_products<T, D, 1>(dvalue, shares, slopes[stage], j * 16, lane);
      add_products<T, D, 1>(dkey, dscores, queries[stage], j * 16, lane);
    }
    if (more) keep(next, stage ^ 1);
  }
  float const kept_factor = Drops ? static_cast<float>(dropout.kept) : 1.0F;
  TRIREME_DEVICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    auto const key = first_key + 8 * half + lane.high;
    if (key >= work.keys) continue;
    store_sums<T, D>(work.dkey, work.merges, sample, head, key, work.width, dkey[0], half,
                     static_cast<float>(work.scale), 1.0F, lane);
    store_sums<T, D>(work.dvalue, work.merges, sample, head, key, work.width, dvalue[0], half, kept_factor, 1.0F, lane);
  }
}

}  // namespace trireme::ops::detail::device
