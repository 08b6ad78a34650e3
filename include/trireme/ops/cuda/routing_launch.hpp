#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dtype.hpp"
#include "trireme/ops/types.hpp"

// The kernels of routing of a CUDA device behind plain functions (ops/cuda/launch.hpp says how they behave);
// ops/cuda/routing.cu has their bodies, ops/host/routing.hpp says what they compute. Probabilities, scores and weights
// are of the type of sums: double for elements of double, else float.

namespace trireme::ops::cuda_kernels {

/// The most experts that the functions take which count choices, and the most groups of score().
inline constexpr std::int64_t most_experts = 4096;
inline constexpr std::int64_t most_expert_groups = 256;

/// Rows that choose some of the experts.
struct routed_rows {
  std::int64_t rows = 0, experts = 0, choices = 0;
};
[[nodiscard]] int route(void* stream, dtype of, void* probabilities, std::int32_t* chosen, void* weights,
                        void const* logits, routed_rows const& all);
/// Slopes may be null.
[[nodiscard]] int route_backward(void* stream, dtype of, void* dlogits, void const* dweights, void const* probabilities,
                                 std::int32_t const* chosen, void const* weights, void const* slopes,
                                 routed_rows const& all);
[[nodiscard]] int score(void* stream, dtype of, void* scores, std::int32_t* chosen, void* weights, void const* logits,
                        void const* bias, routed_rows const& all, scored_choice const& how);
[[nodiscard]] int score_backward(void* stream, dtype of, void* dlogits, void const* dweights, void const* scores,
                                 std::int32_t const* chosen, void const* weights, routed_rows const& all, double scale);

/// The bytes of memory that the functions need that take `scratch`, for n choices.
[[nodiscard]] std::size_t expert_scratch(std::int64_t n, std::int64_t experts) noexcept;
/// The same for imbalance(), for so many samples.
[[nodiscard]] std::size_t imbalance_scratch(std::int64_t samples, std::int64_t experts) noexcept;
[[nodiscard]] int add_excess(void* stream, dtype of, void* excess, std::int32_t const* chosen, std::int64_t n,
                             std::int64_t experts, void* scratch);
/// *total = the imbalance. Probabilities, and slopes or null, are of the type `of`, float or double.
[[nodiscard]] int imbalance(void* stream, dtype of, void* slopes, void const* probabilities, std::int32_t const* chosen,
                            std::int64_t rows_of_sample, double scale, routed_rows const& all, double* total,
                            void* scratch);
/// The scratch memory then begins with the number of choices of each expert, in 64 bits.
[[nodiscard]] int sort_by_expert(void* stream, std::int32_t* positions, std::int32_t const* chosen, std::int64_t n,
                                 std::int64_t experts, void* scratch);

/// to[positions[i]] = from[i / choices], for n choices.
[[nodiscard]] int dispatch(void* stream, dtype of, void* to, void const* from, std::int32_t const* positions,
                           std::int64_t n, std::int64_t choices, std::int64_t channels);
/// Weights may be null.
[[nodiscard]] int combine_choices(void* stream, dtype of, void* to, void const* from, std::int32_t const* positions,
                                  void const* weights, std::int64_t rows, std::int64_t choices, std::int64_t channels);
[[nodiscard]] int combine_choices_backward(void* stream, dtype of, void* dfrom, void* dweights, void const* dto,
                                           void const* from, std::int32_t const* positions, void const* weights,
                                           std::int64_t n, std::int64_t choices, std::int64_t channels);

}  // namespace trireme::ops::cuda_kernels
