#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "trireme/core/space.hpp"
#include "trireme/ops/host/target.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops::detail {

/// Memory that only grows, so that it is large enough from the second step of a training on.
class growing_buffer {
 public:
  growing_buffer() = default;
  growing_buffer(growing_buffer&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  growing_buffer& operator=(growing_buffer&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~growing_buffer() { release(); }

  /// At least `count` elements; the previous contents may be lost.
  template <class T>
  [[nodiscard]] T* take(std::int64_t count) {
    auto const bytes = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes > bytes_) {
      release();
      address_ = host::allocate(bytes);
      bytes_ = bytes;
    }
    return static_cast<T*>(address_);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void release() noexcept {
    if (address_ != nullptr) host::deallocate(address_, bytes_);
    address_ = nullptr;
    bytes_ = 0;
  }
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

/// One inner kernel call: c (rows of a kernel, columns of a kernel) = or += a b, without edges.
struct tile_job {
  char const* a;         // word (row, step) is at a + row * a_row + step * a_step; one of them is 4, a word's size
  std::ptrdiff_t a_row;  // bytes
  std::ptrdiff_t a_step;
  char const* b;       // packed: `columns` elements per step
  std::int64_t steps;  // of one element, or of a pair of bfloat16
  float* c;
  std::int64_t c_row;  // elements
  bool accumulate;
  char const* ahead[2];  // tiles that the epilogue will access: prefetched during the k loop
  std::ptrdiff_t ahead_row[2];
};

/// What is done with a tile of sums before it is stored. Matrices are those of the whole product; `ld` is their row
/// length.
template <class T>
struct store_rule {
  T* y = nullptr;
  std::int64_t ld = 0;
  T const* bias = nullptr;
  activation act = activation::none;
  T* keep = nullptr;            // receives the value before the activation
  T const* residual = nullptr;  // added last
  T const* slope_at = nullptr;  // multiplies by act' there (then act is not applied)
  bool accumulate = false;
  [[nodiscard]] bool plain() const noexcept {
    return bias == nullptr && act == activation::none && keep == nullptr && residual == nullptr && !accumulate;
  }
};

/// Sums (rows, columns) for position (row, column) of the product.
template <class T>
struct store_job {
  store_rule<T> const* rule;
  accumulate_t<T> const* sums;
  std::int64_t sums_row;
  std::int64_t row;
  std::int64_t column;
  std::int64_t rows;
  std::int64_t columns;
};

/// Transposes a matrix: to (columns, to_row) from (rows, from_row), zeros from `rows` up to `padded_rows` and from
/// `columns` up to `padded_columns`.
struct turn_job {
  bfloat16* to;
  std::int64_t to_row;
  bfloat16 const* from;
  std::int64_t from_row;
  std::int64_t rows;
  std::int64_t padded_rows;  // a multiple of 32
  std::int64_t columns;
  std::int64_t padded_columns;  // a multiple of 16
};

/// Packs a panel of 32 columns of a matrix (rows, ld), two rows per step, zeros around it up to `steps`; adds the
/// columns' sums to `sums` if given.
struct panel_job {
  std::uint32_t* to;
  bfloat16 const* from;
  std::int64_t ld;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t steps;
  float* sums;
};

/// The kernels of one CPU level, for the loops around them.
struct product_kernels {
  cpu_level level;
  int rows;
  int columns;
  int small_rows;  // of a second kernel, for the remaining rows of a matrix
  int panel;       // elements per step of packed left operands: `rows` rounded up to whole cache lines or halves
  bool pairs;      // operands are pairs of bfloat16 along k, not floats
  int depth;       // the number of steps is padded with zeros to a multiple of this
  void (*tile)(tile_job const&);
  void (*small_tile)(tile_job const&);
  void (*store_float)(store_job<float> const&);
  void (*store_bfloat16)(store_job<bfloat16> const&);
  // Only for kernels on tiles: two functions set up and release the registers around the calls of a product, the others
  // pack the left and right operands of transposed products.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
  void (*turn)(turn_job const&) = nullptr;
  void (*panel_of)(panel_job const&) = nullptr;
};

/// The kernel calls of one product; sets up and releases tile registers.
class kernel_calls {
 public:
  explicit kernel_calls(product_kernels const& kernels) : end_(kernels.end) {
    if (kernels.begin != nullptr) kernels.begin();
  }
  ~kernel_calls() {
    if (end_ != nullptr) end_();
  }
  kernel_calls(kernel_calls const&) = delete;
  kernel_calls& operator=(kernel_calls const&) = delete;

 private:
  void (*end_)();
};

}  // namespace trireme::ops::detail
