#pragma once

#include <cmath>

#include "trireme/ops/cuda/formulas.cuh"
#include "trireme/ops/cuda/ordered_sums.cuh"

// Matrices of few columns.

namespace trireme::ops::detail::device {

/// y (m, n) = a (m, k) b (k, n) of row-major matrices, of which a or b may be stored transposed.
template <class T>
struct small_product_call {
  T* y;
  T const* a;
  T const* b;
  std::int64_t m, n, k;
  bool a_turned, b_turned;
};

/// A thread block makes one tile of y after another, each thread one element, which is summed in the order of k: the
/// host's bits. Tiles are as narrow as the matrix; Depth numbers of k are read at once, in multiples of 8.
template <class T, int Columns, int Depth>
__global__ void __launch_bounds__(block_threads) small_product(small_product_call<T> const call) {
  constexpr int rows = block_threads / Columns;
  using left_tile = T[rows][Depth + 1];  // one more, so that neighbouring rows lie in different banks
  using right_tile = T[Depth][Columns + 1];
  auto& left = block_shared<left_tile, 0>();
  auto& right = block_shared<right_tile, 1>();
  auto const t = static_cast<int>(threadIdx.x);
  auto const row = t / Columns;
  auto const column = t % Columns;
  auto const [y, a, b, m, n, k, a_turned, b_turned] = call;
  auto const across = (n + Columns - 1) / Columns;
  auto const tiles = (m + rows - 1) / rows * across;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    auto const first_row = tile / across * rows;
    auto const first_column = tile % across * Columns;
    T total = 0;
    for (std::int64_t at = 0; at < k; at += Depth) {
      auto const here = static_cast<int>(k - at < Depth ? k - at : Depth);
      // Neighbouring threads read neighbouring elements.
      TRIREME_DEVICE_UNROLL
      for (int e = t; e < rows * Depth; e += block_threads) {
        int const r = a_turned ? e % rows : e / Depth;
        int const l = a_turned ? e / rows : e % Depth;
        if (l < here && first_row + r < m)
          left[r][l] = a_turned ? a[(at + l) * m + first_row + r] : a[(first_row + r) * k + at + l];
      }
      TRIREME_DEVICE_UNROLL
      for (int e = t; e < Columns * Depth; e += block_threads) {
        int const c = b_turned ? e / Depth : e % Columns;
        int const l = b_turned ? e % Depth : e / Columns;
        if (l < here && first_column + c < n)
          right[l][c] = b_turned ? b[(first_column + c) * k + at + l] : b[(at + l) * n + first_column + c];
      }
      sync_block();
      if (first_row + row < m && first_column + column < n) {
        auto const add = [&](int which) { total = sum(total, product(left[row][which], right[which][column])); };
        int l = 0;
        for (; l + 8 <= here; l += 8) {
          TRIREME_DEVICE_UNROLL
          for (int next = 0; next < 8; ++next) add(l + next);
        }
        for (; l < here; ++l) add(l);
      }
      sync_block();
    }
    if (first_row + row < m && first_column + column < n) y[(first_row + row) * n + first_column + column] = total;
  }
}

inline constexpr int orthonormal_threads = 512;

/// Gram-Schmidt in double, each column made orthogonal twice; one block. Thread t does rows t, t + 512, ... of all
/// columns, so only the sums pass between threads. `column` (n) is scratch.
template <class T>
__global__ void __launch_bounds__(orthonormal_threads)
    orthonormalise(T* x, double* column, std::int64_t n, std::int64_t r) {
  std::int64_t const t = threadIdx.x;
  // column += by * x[., before] if before >= 0; then the inner product of the column with x[., next], or with itself.
  auto const step = [&](std::int64_t before, double by, std::int64_t next) {
    double own = 0;
    for (auto i = t; i < n; i += orthonormal_threads) {
      double value = column[i];
      if (before >= 0) {
        value = sum(value, product(by, static_cast<double>(x[i * r + before])));
        column[i] = value;
      }
      own = sum(own, product(value, next >= 0 ? static_cast<double>(x[i * r + next]) : value));
    }
    return ordered_sum_of_block<orthonormal_threads>(own);
  };
  // Makes the column orthogonal to the first c columns; returns its square.
  auto const made_orthogonal = [&](std::int64_t c) {
    if (c == 0) return step(-1, 0, -1);
    double along = step(-1, 0, 0);
    for (std::int64_t done = 0; done < 2 * c; ++done)
      along = step(done % c, -along, done + 1 == 2 * c ? -1 : (done + 1) % c);
    return along;
  };
  constexpr double lost = 1e-10;  // of its square: below this the rest of the column is rounding error
  for (std::int64_t c = 0; c < r; ++c) {
    for (auto i = t; i < n; i += orthonormal_threads) column[i] = static_cast<double>(x[i * r + c]);
    double const whole = step(-1, 0, -1);
    double left = made_orthogonal(c);
    bool const stands = left > lost * whole && left <= whole * 2;  // false for NaN too
    for (std::int64_t axis = 0; !stands && axis < n; ++axis) {
      for (auto i = t; i < n; i += orthonormal_threads) column[i] = i == (c + axis) % n ? 1 : 0;
      left = made_orthogonal(c);
      if (2 * static_cast<double>(n) * left >= 1) break;  // holds for at least one axis
    }
    double const factor = quotient(1.0, root(left));
    for (auto i = t; i < n; i += orthonormal_threads) x[i * r + c] = static_cast<T>(product(column[i], factor));
  }
}

}  // namespace trireme::ops::detail::device
