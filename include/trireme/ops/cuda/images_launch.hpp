#pragma once

#include <cstdint>

#include "trireme/core/dtype.hpp"

// The kernels of images of a CUDA device behind plain functions (ops/cuda/launch.hpp says how they behave);
// ops/cuda/images.cu has their bodies, ops/images.hpp says what they compute.

namespace trireme::ops::cuda_kernels {

/// A window that moves over images, and its number of positions down and across.
struct image_window {
  std::int64_t height = 0, width = 0, channels = 0;
  std::int64_t kernel = 1, stride = 1, padding = 0;
  std::int64_t rows = 0, columns = 0;
};

[[nodiscard]] int patches(void* stream, dtype of, void* y, void const* x, image_window const& at, std::int64_t images,
                          std::int64_t gap);
[[nodiscard]] int patches_backward(void* stream, dtype of, void* dx, void const* dy, image_window const& at,
                                   std::int64_t images, std::int64_t gap);
/// y[row] = x[row] + table[(first + row) % positions]; with a token (or null) in place of the rows of position 0.
[[nodiscard]] int add_positions(void* stream, dtype of, void* y, void const* x, void const* table, void const* token,
                                std::int64_t rows, std::int64_t width, std::int64_t positions, std::int64_t first);
/// dtable and dtoken (or null) are of the type of sums.
[[nodiscard]] int add_positions_backward(void* stream, dtype of, void* dx, void const* dy, void* dtable, void* dtoken,
                                         std::int64_t rows, std::int64_t width, std::int64_t positions,
                                         std::int64_t first, bool accumulate);
[[nodiscard]] int max_pool(void* stream, dtype of, void* y, void const* x, image_window const& at, std::int64_t images);
[[nodiscard]] int max_pool_backward(void* stream, dtype of, void* dx, void const* dy, void const* x,
                                    image_window const& at, std::int64_t images);
[[nodiscard]] int average_pool(void* stream, dtype of, void* y, void const* x, image_window const& at,
                               std::int64_t images);
[[nodiscard]] int average_pool_backward(void* stream, dtype of, void* dx, void const* dy, image_window const& at,
                                        std::int64_t images);

}  // namespace trireme::ops::cuda_kernels
