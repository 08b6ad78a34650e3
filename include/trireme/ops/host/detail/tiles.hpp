#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/ops/host/detail/product_types.hpp"
#include "trireme/ops/host/simd.hpp"

// Products of tiles. A tile is 16 rows of 64 bytes: for a left operand 16 rows of 32 bfloat16, for a right operand 16
// pairs of rows in words of two, for sums 16 rows of 16 floats. All tiles have this one shape, with edges padded with
// zeros, so that a thread sets up the registers only once.
//
// The registers are a template parameter of the kernels, because tests use an emulation of the CPU's. Such a type has
// begin(), end(), zero<Tile>(), load<Tile>(from, stride), store<Tile>(to, stride) and multiply<Sums, Left, Right>(),
// strides in bytes.
namespace trireme::ops::detail {

/// Rows of a tile, and the words (of two bfloat16, or a float) in one of its rows.
inline constexpr int tile_extent = 16;

#if TRIREME_X86
/// The CPU's tile registers. Uses inline assembly: the compilers' intrinsics need literal register numbers, and g++
/// 12's do not declare that they read and write memory.
struct tile_registers {
  /// The configuration is per thread, and other libraries change it too: a product sets it at its start, and releases
  /// the registers at its end, so that they need not be saved when the thread is switched.
  static void begin() noexcept {
    struct alignas(64) {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } static constexpr shapes;
    asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  }
  static void end() noexcept { asm volatile("tilerelease" : : : "memory"); }

  template <int Tile>
  static TRIREME_INLINE void zero() noexcept {
    asm volatile("{tilezero\t%%tmm%c0|tilezero\ttmm%c0}" : : "i"(Tile));
  }
  template <int Tile>
  static TRIREME_INLINE void load(void const* from, std::ptrdiff_t stride) noexcept {
    asm volatile("{tileloadd\t(%0,%1,1), %%tmm%c2|tileloadd\ttmm%c2, [%0+%1*1]}"
                 :
                 : "r"(from), "r"(stride), "i"(Tile)
                 : "memory");
  }
  template <int Tile>
  static TRIREME_INLINE void store(void* to, std::ptrdiff_t stride) noexcept {
    asm volatile("{tilestored\t%%tmm%c2, (%0,%1,1)|tilestored\t[%0+%1*1], tmm%c2}"
                 :
                 : "r"(to), "r"(stride), "i"(Tile)
                 : "memory");
  }
  template <int Sums, int Left, int Right>
  static TRIREME_INLINE void multiply() noexcept {
    asm volatile("{tdpbf16ps\t%%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbf16ps\ttmm%c0, tmm%c1, tmm%c2}"
                 :
                 : "i"(Sums), "i"(Left), "i"(Right));
  }
};
#endif

/// A thread's use of the tile registers, for the length of one call.
template <class Tiles>
class tile_use {
 public:
  tile_use() noexcept { Tiles::begin(); }
  ~tile_use() { Tiles::end(); }
  tile_use(tile_use const&) = delete;
  tile_use& operator=(tile_use const&) = delete;
};

/// Prefetches some rows that the epilogue will access, during the k loop.
TRIREME_INLINE void fetch_ahead(char const*& address, std::ptrdiff_t row, int rows) noexcept {
  for (int r = 0; r < rows; ++r, address += row) {
    __builtin_prefetch(address);
    __builtin_prefetch(address + 64);
  }
}

/// c (16 or 32 rows, 32 columns) = or += a b. A step is a pair of bfloat16, and the number of steps is a multiple of
/// 16; b is packed, 32 words per step.
///
/// Numerics one step of an instruction sums the products of the first elements of its 16 pairs and those of the second
///          elements separately, adds the two sums, and adds the result to the accumulator; denormals count as zero. So
///          an element is summed in the order of k, by steps of 32, regardless of what is computed with it.
template <class Tiles, int Rows>
void tile_sums(tile_job const& job) {
  static_assert(Rows == 16 || Rows == 32);
  constexpr std::ptrdiff_t right_row = 2 * 64;
  std::ptrdiff_t const sums_row = job.c_row * static_cast<std::ptrdiff_t>(sizeof(float));
  float* const lower = job.c + tile_extent * job.c_row;
  if (job.accumulate) {
    Tiles::template load<0>(job.c, sums_row);
    Tiles::template load<1>(job.c + tile_extent, sums_row);
    if constexpr (Rows == 32) {
      Tiles::template load<2>(lower, sums_row);
      Tiles::template load<3>(lower + tile_extent, sums_row);
    }
  } else {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    if constexpr (Rows == 32) {
      Tiles::template zero<2>();
      Tiles::template zero<3>();
    }
  }
  char const* a = job.a;
  char const* b = job.b;
  char const* ahead[2] = {job.ahead[0], job.ahead[1]};
  int left_to_fetch = job.ahead[0] == nullptr ? 0 : Rows;
  for (std::int64_t step = 0; step < job.steps; step += tile_extent, a += 64, b += tile_extent * right_row) {
    Tiles::template load<4>(a, job.a_row);
    Tiles::template load<6>(b, right_row);
    Tiles::template multiply<0, 4, 6>();
    Tiles::template load<7>(b + 64, right_row);
    Tiles::template multiply<1, 4, 7>();
    if constexpr (Rows == 32) {
      Tiles::template load<5>(a + tile_extent * job.a_row, job.a_row);
      Tiles::template multiply<2, 5, 6>();
      Tiles::template multiply<3, 5, 7>();
    }
    if (left_to_fetch > 0) {
      constexpr int few = 4;
      fetch_ahead(ahead[0], job.ahead_row[0], few);
      if (job.ahead[1] != job.ahead[0]) fetch_ahead(ahead[1], job.ahead_row[1], few);
      left_to_fetch -= few;
    }
  }
  Tiles::template store<0>(job.c, sums_row);
  Tiles::template store<1>(job.c + tile_extent, sums_row);
  if constexpr (Rows == 32) {
    Tiles::template store<2>(lower, sums_row);
    Tiles::template store<3>(lower + tile_extent, sums_row);
  }
}

/// The kernels of products on tiles, together with the level's other functions.
template <class Tiles>
[[nodiscard]] constexpr product_kernels tile_product_kernels(void (*store_float)(store_job<float> const&),
                                                             void (*store_bfloat16)(store_job<bfloat16> const&),
                                                             void (*turn)(turn_job const&),
                                                             void (*panel_of)(panel_job const&)) {
  return {.level = cpu_level::amx,
          .rows = 2 * tile_extent,
          .columns = 2 * tile_extent,
          .small_rows = tile_extent,
          .panel = 2 * tile_extent,
          .pairs = true,
          .depth = tile_extent,
          .tile = tile_sums<Tiles, 2 * tile_extent>,
          .small_tile = tile_sums<Tiles, tile_extent>,
          .store_float = store_float,
          .store_bfloat16 = store_bfloat16,
          .begin = Tiles::begin,
          .end = Tiles::end,
          .turn = turn,
          .panel_of = panel_of};
}

}  // namespace trireme::ops::detail
