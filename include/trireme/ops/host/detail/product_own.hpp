#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "trireme/ops/host/detail/product_kernels.hpp"
#include "trireme/ops/host/detail/product_packing.hpp"

// The loops around this library's kernels. Word is what a kernel reads: float, or a pair of bfloat16 in a
// std::uint32_t.
namespace trireme::ops::detail {

/// Half of a core's L2 cache, the size of a block that is reused; 512 KiB if the system does not report it.
[[nodiscard]] inline std::int64_t cache_bytes() noexcept {
  static std::int64_t const bytes = [] {
    std::int64_t half = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
    half = sysconf(_SC_LEVEL2_CACHE_SIZE) / 2;
#endif
    return half > 0 ? std::clamp<std::int64_t>(half, 128 << 10, 1 << 20) : std::int64_t{512} << 10;
  }();
  return bytes;
}

template <class Word>
inline constexpr std::int64_t elements_of = std::is_same_v<Word, float> ? 1 : 2;

[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

/// The length of a sum over k elements, rounded up to whole steps of the kernels.
template <class Word>
[[nodiscard]] std::int64_t steps_of(product_kernels const& kernels, std::int64_t k) noexcept {
  return divide_up(divide_up(k, elements_of<Word>), kernels.depth) * kernels.depth;
}

/// Words of a packed right operand (k, n).
template <class Word>
[[nodiscard]] std::int64_t packed_words(product_kernels const& kernels, std::int64_t k, std::int64_t n) noexcept {
  return divide_up(n, kernels.columns) * kernels.columns * steps_of<Word>(kernels, k);
}

/// Packs the right operand (k, n) from row-major w, which is (k, n) itself or its transpose (n, k).
template <class Word, class T>
void pack_right(product_kernels const& kernels, Word* to, T const* w, bool transposed, std::int64_t k, std::int64_t n) {
  int const width = kernels.columns;
  auto const packed_steps = divide_up(k, elements_of<Word>);
  auto const panel = steps_of<Word>(kernels, k) * width;
  for (std::int64_t j = 0; j < n; j += width) {
    std::fill(to + j / width * panel + packed_steps * width, to + (j / width + 1) * panel, Word{0});
  }
  // Strips of at most 128 columns and 64 rows: whole rows would step through all panels, which share a cache set.
  std::int64_t const strip = 128 / width * width;
  std::int64_t const strip_rows = 64;
  for (std::int64_t first = 0; first < n; first += strip) {
    auto const end = std::min(n, first + strip);
    for (std::int64_t row = 0; row < k; row += transposed ? k : strip_rows) {
      for (std::int64_t j = first; j < end; j += width) {
        Word* const target = to + j / width * panel + row / elements_of<Word> * width;
        int const columns = static_cast<int>(std::min<std::int64_t>(width, n - j));
        if (transposed) {
          pack_along(target, w + j * k, k, k, width, columns);
        } else {
          pack_across(target, w + row * n + j, n, std::min(strip_rows, k - row), width, columns);
        }
      }
    }
  }
}

/// Copies `rows` rows of `words` words of a left operand into a tile of `all` rows of `to_ld` words.
template <class Word, class T>
void copy_left(Word* to, std::int64_t to_ld, T const* x, std::int64_t ld, int rows, int all, std::int64_t k,
               std::int64_t words) {
  for (int r = 0; r < all; ++r, to += to_ld, x += ld) {
    if (r >= rows) {
      std::fill(to, to + words, Word{0});
    } else if constexpr (std::is_same_v<Word, T> || !std::is_same_v<Word, float>) {
      std::fill(to + k / elements_of<Word>, to + words, Word{0});
      std::memcpy(to, x, static_cast<std::size_t>(k) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < k; ++i) to[i] = static_cast<float>(x[i]);
    }
  }
}

template <class T>
void store_tile(product_kernels const& kernels, store_job<T> const& job) {
  if constexpr (std::is_same_v<T, float>) {
    kernels.store_float(job);
  } else {
    kernels.store_bfloat16(job);
  }
}

/// y (m, n) = rule(x (m, k) w), w packed. Processes blocks of columns whose panels stay in L2 for all rows, and long
/// sums in parts, so that a panel's part and a tile's rows both stay in cache. The order of a row's sum depends on k
/// alone.
template <class Word, class T>
void own_multiply(product_kernels const& kernels, store_rule<T> const& rule, T const* x, Word const* packed,
                  std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr auto per_word = elements_of<Word>;
  thread_local growing_buffer left_buffer;
  thread_local growing_buffer partial_buffer;
  alignas(64) float tiles[2][32 * 32];
  kernel_calls const calls(kernels);

  int const width = kernels.columns;
  auto const steps = steps_of<Word>(kernels, k);
  bool const convert = sizeof(T) * per_word != sizeof(Word);
  // If a row's length is a multiple of the page size, all rows of a tile share one set of the L1 cache.
  bool const copy_all = convert || k * static_cast<std::int64_t>(sizeof(T)) % 4096 == 0;
  // A copy is used for one block of columns, so with copies the blocks of steps are short to make it wide.
  auto const step_blocks = divide_up(steps, copy_all ? 512 : 1152);
  std::int64_t const whole = std::max(8, kernels.depth);
  auto const steps_at_once = divide_up(divide_up(steps, step_blocks), whole) * whole;
  auto const block = std::max<std::int64_t>(1, cache_bytes() / (steps_at_once * width * 4)) * width;
  auto const partial_ld = block;
  auto const rows_at_once = step_blocks == 1 ? m : std::min<std::int64_t>(m, kernels.rows * 36);
  float* const partial =
      step_blocks == 1 ? nullptr : partial_buffer.take<float>((rows_at_once + kernels.rows) * partial_ld);
  auto const left_ld = steps_at_once + 16;
  Word* const left = left_buffer.take<Word>(left_ld * kernels.rows);

  for (std::int64_t column = 0; column < n; column += block) {
    auto const column_end = std::min(n, column + block);
    for (std::int64_t top = 0; top < m; top += rows_at_once) {
      auto const bottom = std::min(m, top + rows_at_once);
      for (std::int64_t step = 0; step < steps; step += steps_at_once) {
        auto const count = std::min(steps_at_once, steps - step);
        bool const last = step + count == steps;
        bool const copy = copy_all || (last && k % (per_word * kernels.depth) != 0);
        for (std::int64_t row = top; row < bottom;) {
          int const rows = static_cast<int>(std::min<std::int64_t>(kernels.rows, bottom - row));
          bool const small = rows <= kernels.small_rows;
          int const all = small ? kernels.small_rows : kernels.rows;
          tile_job job{};
          if (copy || rows < all) {
            auto const first = step * per_word;
            copy_left(left, left_ld, x + row * k + first, k, rows, all, std::min(k - first, count * per_word), count);
            job.a = reinterpret_cast<char const*>(left);
            job.a_row = left_ld * 4;
          } else {
            job.a = reinterpret_cast<char const*>(x + row * k + step * per_word);
            job.a_row = k * static_cast<std::int64_t>(sizeof(T));
          }
          job.a_step = sizeof(Word);
          job.steps = count;
          job.accumulate = step > 0;
          job.ahead_row[0] = job.ahead_row[1] = rule.ld * static_cast<std::int64_t>(sizeof(T));
          store_job<T> waiting{};  // stored while the next sums are formed
          for (std::int64_t j = column; j < column_end; j += width) {
            job.b = reinterpret_cast<char const*>(packed + j * steps + step * width);
            bool direct = false;
            if (step_blocks > 1) {
              job.c = partial + (row - top) * partial_ld + (j - column);
              job.c_row = partial_ld;
            } else {
              job.c = tiles[j / width % 2];
              job.c_row = width;
              if constexpr (std::is_same_v<T, float>) {
                direct = rule.plain() && rows == all && n - j >= width;
                if (direct) {
                  job.c = rule.y + row * rule.ld + j;
                  job.c_row = rule.ld;
                }
              }
            }
            auto const at = row * rule.ld + j;
            T const* const also = rule.slope_at != nullptr   ? rule.slope_at
                                  : rule.residual != nullptr ? rule.residual
                                                             : rule.keep;
            job.ahead[0] = reinterpret_cast<char const*>(rule.y + at);
            job.ahead[1] = also == nullptr ? job.ahead[0] : reinterpret_cast<char const*>(also + at);
            small ? kernels.small_tile(job) : kernels.tile(job);
            if (waiting.rule != nullptr) store_tile<T>(kernels, waiting);
            waiting.rule = nullptr;
            if (last && !direct) {
              waiting = {&rule, job.c, job.c_row, row, j, rows, std::min<std::int64_t>(width, n - j)};
            }
          }
          if (waiting.rule != nullptr) store_tile<T>(kernels, waiting);
          row += rows;
        }
      }
    }
  }
}

/// c (r, s) += u (m, r)^T v (m, s); u_sums += column sums of u, v_sums of v, if given.
///
/// Both operands are packed when they are used: a block of u into L2, then one panel of v at a time, which is used for
/// the whole block and so costs next to nothing. The tiles of c are prefetched while their sums are formed.
template <class Word, class T>
void own_multiply_transposed(product_kernels const& kernels, float* c, T const* u, T const* v, std::int64_t m,
                             std::int64_t r, std::int64_t s, float* u_sums, float* v_sums) {
  constexpr auto per_word = elements_of<Word>;
  thread_local growing_buffer left_buffer;
  thread_local growing_buffer right_buffer;
  alignas(64) float tile[16 * 32];

  int const width = kernels.columns;
  auto const all_steps = divide_up(m, per_word);
  auto const step_blocks = divide_up(all_steps, 256);
  auto const steps_at_once = divide_up(divide_up(all_steps, step_blocks), 8) * 8;
  auto const most_tiles = std::max<std::int64_t>(1, cache_bytes() / (steps_at_once * kernels.panel * 4));
  auto const all_tiles = divide_up(r, kernels.rows);
  auto const tiles = divide_up(all_tiles, divide_up(all_tiles, most_tiles));
  Word* const left = left_buffer.take<Word>(tiles * steps_at_once * kernels.panel);
  Word* const right = right_buffer.take<Word>(steps_at_once * width);
  store_rule<float> rule;
  rule.y = c;
  rule.ld = s;
  rule.accumulate = true;

  for (std::int64_t step = 0; step < all_steps; step += steps_at_once) {
    auto const steps = std::min(steps_at_once, all_steps - step);
    auto const first = step * per_word;
    auto const count = std::min(m - first, steps * per_word);
    for (std::int64_t top = 0; top < r; top += tiles * kernels.rows) {
      auto const bottom = std::min(r, top + tiles * kernels.rows);
      // A few rows of all panels at a time, so that memory is read along rows. A panel's unused columns hold what
      // follows.
      constexpr std::int64_t few = 16;
      for (std::int64_t at = 0; at < count; at += few) {
        for (std::int64_t row = top; row < bottom; row += kernels.rows) {
          Word* const panel = left + ((row - top) / kernels.rows * steps + at / per_word) * kernels.panel;
          int const columns = static_cast<int>(std::min<std::int64_t>(kernels.panel, r - row));
          pack_across(panel, u + (first + at) * r + row, r, std::min(few, count - at), kernels.panel, columns);
        }
      }
      for (std::int64_t row = top; row < bottom && u_sums != nullptr; row += kernels.rows) {
        Word const* const panel = left + (row - top) / kernels.rows * steps * kernels.panel;
        int const columns = static_cast<int>(std::min<std::int64_t>(kernels.rows, bottom - row));
        add_panel_columns(u_sums + row, panel, steps, kernels.panel, columns);
      }
      for (std::int64_t j = 0; j < s; j += width) {
        int const columns = static_cast<int>(std::min<std::int64_t>(width, s - j));
        pack_across(right, v + first * s + j, s, count, width, columns);
        if (v_sums != nullptr && top == 0) add_panel_columns(v_sums + j, right, steps, width, columns);
        for (std::int64_t row = top; row < bottom; row += kernels.rows) {
          int const rows = static_cast<int>(std::min<std::int64_t>(kernels.rows, bottom - row));
          bool const small = rows <= kernels.small_rows;
          bool const direct = columns == width && rows == (small ? kernels.small_rows : kernels.rows);
          tile_job job{};
          job.a = reinterpret_cast<char const*>(left + (row - top) / kernels.rows * steps * kernels.panel);
          job.a_row = sizeof(Word);
          job.a_step = kernels.panel * static_cast<std::ptrdiff_t>(sizeof(Word));
          job.b = reinterpret_cast<char const*>(right);
          job.steps = steps;
          job.c = direct ? c + row * s + j : tile;
          job.c_row = direct ? s : width;
          job.accumulate = direct;
          job.ahead[0] = reinterpret_cast<char const*>(c + row * s + j);
          job.ahead_row[0] = s * 4;
          // Each tile also prefetches some rows of the next panel of v.
          auto const next = std::min(j + width, s - 1);
          job.ahead[1] = reinterpret_cast<char const*>(v + std::min(first + row - top, m - 1) * s + next);
          job.ahead_row[1] = s * static_cast<std::int64_t>(sizeof(T));
          small ? kernels.small_tile(job) : kernels.tile(job);
          if (!direct) kernels.store_float({&rule, tile, width, row, j, rows, columns});
        }
      }
    }
  }
}

}  // namespace trireme::ops::detail
