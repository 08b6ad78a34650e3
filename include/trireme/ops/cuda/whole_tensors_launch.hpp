#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/whole_tensors.hpp"

// The kernels of updates of whole tensors behind plain functions, as in ops/cuda/launch.hpp; ops/cuda/whole_tensors.cu
// has their bodies. All tensors of a call are of the type `of`, float or double, and have n elements unless noted.

namespace trireme::ops::cuda_kernels {

/// Bytes of scratch memory, aligned to 16, of lamb and muon_normalise.
[[nodiscard]] std::size_t whole_tensor_bytes(std::int64_t n);
[[nodiscard]] int lamb(void* stream, void* scratch, dtype of, void* value, void* first, void* second,
                       void const* gradient, std::int64_t n, lamb_numbers const& how);

/// The tensors of one step of Adafactor; row_means (matrices, rows), column_means (matrices, columns).
struct adafactor_call {
  void* value = nullptr;
  void* direction = nullptr;     ///< scratch memory
  void* row_means = nullptr;     ///< of matrices
  void* column_means = nullptr;  ///< of matrices
  void* second = nullptr;        ///< of a vector; nullptr: matrices
  void* first = nullptr;         ///< nullptr: without momentum
  void const* gradient = nullptr;
  std::int64_t n = 0;
  std::int64_t matrices = 0;
};
[[nodiscard]] std::size_t adafactor_bytes(adafactor_call const& call, adafactor_numbers const& how);
[[nodiscard]] int adafactor(void* stream, void* scratch, dtype of, adafactor_call const& call,
                            adafactor_numbers const& how);

[[nodiscard]] int muon_momentum(void* stream, dtype of, void* velocity, void* direction, void const* gradient,
                                std::int64_t n, double momentum, double scale, bool nesterov);
[[nodiscard]] int muon_normalise(void* stream, void* scratch, dtype of, void* x, std::int64_t n);
[[nodiscard]] int muon_mix(void* stream, dtype of, void* y, void const* x, std::int64_t n, double of_x, double of_y);
[[nodiscard]] int muon_step(void* stream, dtype of, void* value, void const* direction, std::int64_t n, double keep,
                            double by);

}  // namespace trireme::ops::cuda_kernels
