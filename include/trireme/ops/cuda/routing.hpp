#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/cuda/queued_losses.hpp"
#include "trireme/ops/cuda/routing_launch.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// Routing of rows to experts in CUDA memory: the set of ops/sets/experts.hpp, with the shapes and checks of
/// host_routing. Work is queued on cuda::stream() of the calling thread. sort_by_expert and imbalance wait for the
/// stream, because they give numbers to the host.
///
/// Numerics in the accumulate type. Sums over a row's choices are in their order, those over experts, channels and
///          elements in an order that depends on the shape alone; so probabilities differ from the host's by a few
///          units in the last place. sort_by_expert, add_excess, dispatch and combine have the host's bits (combine
///          where the host's compiler contracts no products and sums). A probability that is NaN is chosen last.
/// Bytes    device memory that the thread keeps: of sort_by_expert and add_excess, 8 bytes for each expert and 4 for
///          each expert and chunk of choices, of which there are at most 512; of imbalance, 4 bytes for each expert and
///          sample, and 8 KB.
/// Threads  thread-safe on different outputs; each thread has its own stream.
/// Errors   assertion_error (light) if sizes do not fit; config_error for more than 4096 experts in add_excess,
///          imbalance and sort_by_expert, or more than 256 groups of them in score; device_error with CUDA's message if
///          work cannot be queued or the device has failed; std::bad_alloc if the device's memory is used up.
struct cuda_routing {
  template <class T>
  using view = tensor_view<T, cuda>;
  template <class T>
  using input = std::type_identity_t<view<T const>>;
  template <class T>
  using sums = tensor_view<accumulate_t<std::remove_const_t<T>>, cuda>;

  /// Each row chooses the most probable experts; of equal ones, those with lower numbers. The weights of a row's
  /// choices are their probabilities divided by the sum of these; with a single choice, its probability.
  /// Shapes   logits, probabilities (M, E); chosen, weights (M, K), K <= E.
  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void route(sums<T> probabilities, view<std::int32_t> chosen, sums<T> weights, view<T> logits) {
    auto const experts = logits.extent(1);
    auto const choices = chosen.extent(1);
    detail::same_size("route", probabilities.size(), logits.size());
    detail::same_size("route", chosen.size(), weights.size());
    detail::same_size("route", chosen.size() * experts, logits.size() * choices);
    expects(assertion_level::light, choices <= experts, [&] {
      return text("trireme::ops::route: ", how_many(choices, "choice"), " of ", how_many(experts, "expert"));
    });
    detail::expect_cuda(
        "route", cuda_kernels::route(cuda::stream(), dtype_of<std::remove_const_t<T>>, raw(probabilities), raw(chosen),
                                     raw(weights), raw(logits), {logits.extent(0), experts, choices}));
  }

  /// The gradient of route by the logits, from those of the weights and of the probabilities (`slopes`, or empty).
  template <detail::cuda_float T>
  static void route_backward(view<T> dlogits, sums<T> dweights, sums<T> probabilities, view<std::int32_t const> chosen,
                             sums<T> weights, sums<T> slopes) {
    detail::same_size("route_backward", probabilities.size(), dlogits.size());
    detail::same_size("route_backward", chosen.size(), weights.size());
    detail::same_size("route_backward", chosen.size(), dweights.size());
    if (!slopes.empty()) detail::same_size("route_backward", slopes.size(), dlogits.size());
    detail::expect_cuda("route_backward",
                        cuda_kernels::route_backward(cuda::stream(), dtype_of<T>, raw(dlogits), raw(dweights),
                                                     raw(probabilities), raw(chosen), raw(weights),
                                                     slopes.empty() ? nullptr : raw(slopes), rows_of(dlogits, chosen)));
  }

  /// Each row chooses the experts with the largest scores + bias, in the groups that `how` permits; the scores are
  /// sigmoids of the logits. The weights of its choices are their scores divided by the sum of these, times how.scale.
  /// Shapes   logits, scores (M, E); chosen, weights (M, K); bias (E).
  template <class T>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void score(sums<T> scores, view<std::int32_t> chosen, sums<T> weights, view<T> logits, input<T> bias,
                    scored_choice const& how) {
    auto const experts = logits.extent(1), choices = chosen.extent(1);
    detail::same_size("score", scores.size(), logits.size());
    detail::same_size("score", chosen.size(), weights.size());
    detail::same_size("score", bias.size(), experts);
    expects(assertion_level::light,
            experts % how.groups == 0 && how.chosen_groups <= how.groups &&
                choices <= how.chosen_groups * (experts / how.groups),
            [&] {
              return text("trireme::ops::score: ", how_many(choices, "choice"), " of ", how.chosen_groups, " of ",
                          how.groups, " groups of ", how_many(experts, "expert"));
            });
    at_most("score", how.groups, cuda_kernels::most_expert_groups, "groups of experts");
    detail::expect_cuda(
        "score", cuda_kernels::score(cuda::stream(), dtype_of<std::remove_const_t<T>>, raw(scores), raw(chosen),
                                     raw(weights), raw(logits), raw(bias), {logits.extent(0), experts, choices}, how));
  }
  /// The gradient of score by the logits, from that of the weights.
  template <detail::cuda_float T>
  static void score_backward(view<T> dlogits, sums<T> dweights, sums<T> scores, view<std::int32_t const> chosen,
                             sums<T> weights, scored_choice const& how) {
    detail::same_size("score_backward", scores.size(), dlogits.size());
    detail::same_size("score_backward", chosen.size(), weights.size());
    detail::same_size("score_backward", chosen.size(), dweights.size());
    detail::expect_cuda("score_backward", cuda_kernels::score_backward(
                                              cuda::stream(), dtype_of<T>, raw(dlogits), raw(dweights), raw(scores),
                                              raw(chosen), raw(weights), rows_of(dlogits, chosen), how.scale));
  }
  /// Adds to excess[e] how much more often than the mean expert e is chosen, times the number of experts: an integer,
  /// rounded once when it is added.
  /// Shapes   excess (E); chosen (M, K).
  template <detail::cuda_float A>
  static void add_excess(view<A> excess, view<std::int32_t const> chosen) {
    auto const experts = excess.size();
    at_most("add_excess", experts, cuda_kernels::most_experts, "experts");
    auto* const scratch = detail::cuda_scratch("add_excess", cuda_kernels::expert_scratch(chosen.size(), experts));
    detail::expect_cuda("add_excess", cuda_kernels::add_excess(cuda::stream(), dtype_of<A>, raw(excess), raw(chosen),
                                                               chosen.size(), experts, scratch));
  }

  /// The imbalance of a sample's choices: the sum over samples of E sum_e f_e P_e, where f_e is the share of choices
  /// that expert e gets, and P_e its mean probability; 1 per sample if all experts get the same. `slopes` (or empty)
  /// gets `scale` times its gradient by the probabilities, with f taken as constant.
  /// Shapes   probabilities, slopes (M, E); chosen (M, K); each sample has `rows` of the rows.
  template <class A>
  requires(std::is_same_v<A, accumulate_t<A>>&& detail::cuda_float<A>) static queued_losses
      imbalance(view<A> slopes, input<A> probabilities, view<std::int32_t const> chosen, std::int64_t rows,
                double scale) {
    auto const all = rows_of(probabilities, chosen);
    if (all.rows == 0) return {};
    if (!slopes.empty()) detail::same_size("imbalance", slopes.size(), probabilities.size());
    detail::same_size("imbalance", chosen.size(), all.rows * all.choices);
    expects(assertion_level::light, rows > 0 && all.rows % rows == 0, [&] {
      return text("trireme::ops::imbalance: ", how_many(all.rows, "row"), " of samples of ", how_many(rows, "row"));
    });
    at_most("imbalance", all.experts, cuda_kernels::most_experts, "experts");
    auto* const scratch =
        detail::cuda_scratch("imbalance", cuda_kernels::imbalance_scratch(all.rows / rows, all.experts));
    return {"imbalance", 0, 1, 0, [&](cuda_kernels::loss_numbers* out) {
              return cuda_kernels::imbalance(cuda::stream(), dtype_of<A>, slopes.empty() ? nullptr : raw(slopes),
                                             raw(probabilities), raw(chosen), rows, scale, all, &out->sum, scratch);
            }};
  }

  /// Sorts all choices by expert, those of one expert in the order of rows: positions[i] is the index of choice i,
  /// counts the number of choices of each expert, in memory of this process. Waits for the stream.
  static void sort_by_expert(view<std::int32_t> positions, std::span<std::int64_t> counts,
                             view<std::int32_t const> chosen) {
    detail::same_size("sort_by_expert", positions.size(), chosen.size());
    if (counts.empty()) return;
    auto const experts = static_cast<std::int64_t>(counts.size());
    at_most("sort_by_expert", experts, cuda_kernels::most_experts, "experts");
    auto* const scratch = detail::cuda_scratch("sort_by_expert", cuda_kernels::expert_scratch(chosen.size(), experts));
    detail::expect_cuda("sort_by_expert", cuda_kernels::sort_by_expert(cuda::stream(), raw(positions), raw(chosen),
                                                                       chosen.size(), experts, scratch));
    static_assert(cuda_kernels::most_experts * sizeof(std::int64_t) <= detail::cuda_results::bytes);
    auto* const here = detail::cuda_results::of_thread("sort_by_expert").on_host();
    detail::expect_cuda("sort_by_expert",
                        ::cudaMemcpyAsync(here, scratch, counts.size_bytes(), cudaMemcpyDeviceToHost, cuda::stream()));
    cuda::finish();
    std::memcpy(counts.data(), here, counts.size_bytes());
  }

  /// to[positions[m, k]] = from[m]: copies each row to the positions of its choices.
  /// Shapes   from (M, C); positions (M, K); to (M * K, C).
  template <detail::cuda_float T>
  static void dispatch(view<T> to, input<T> from, view<std::int32_t const> positions) {
    detail::same_size("dispatch", to.extent(0), positions.size());
    detail::expect_cuda("dispatch",
                        cuda_kernels::dispatch(cuda::stream(), dtype_of<T>, raw(to), raw(from), raw(positions),
                                               positions.size(), positions.extent(1), to.extent(1)));
  }
  /// to[m] = sum_k weights[m, k] from[positions[m, k]]; without weights they are 1.
  /// Shapes   those of dispatch with from and to exchanged; weights (M, K), or empty.
  template <detail::cuda_float T>
  static void combine(view<T> to, input<T> from, view<std::int32_t const> positions, sums<T> weights) {
    detail::same_size("combine", from.extent(0), positions.size());
    detail::expect_cuda("combine",
                        cuda_kernels::combine_choices(cuda::stream(), dtype_of<T>, raw(to), raw(from), raw(positions),
                                                      weights.empty() ? nullptr : raw(weights), to.extent(0),
                                                      positions.extent(1), to.extent(1)));
  }
  /// The gradients of combine: dfrom[positions[m, k]] = weights[m, k] dto[m]; dweights[m, k] = dto[m] .
  /// from[positions[m, k]].
  template <detail::cuda_float T>
  static void combine_backward(view<T> dfrom, sums<T> dweights, input<T> dto, input<T> from,
                               view<std::int32_t const> positions, sums<T> weights) {
    detail::same_size("combine_backward", from.size(), dfrom.size());
    detail::same_size("combine_backward", weights.size(), positions.size());
    detail::same_size("combine_backward", dweights.size(), positions.size());
    detail::expect_cuda("combine_backward",
                        cuda_kernels::combine_choices_backward(cuda::stream(), dtype_of<T>, raw(dfrom), raw(dweights),
                                                               raw(dto), raw(from), raw(positions), raw(weights),
                                                               positions.size(), positions.extent(1), dfrom.extent(1)));
  }

 private:
  template <class T>
  static cuda_kernels::routed_rows rows_of(view<T> of_experts, view<std::int32_t const> chosen) {
    return {of_experts.extent(0), of_experts.extent(1), chosen.extent(1)};
  }
  static void at_most(char const* who, std::int64_t count, std::int64_t most, char const* what) {
    if (count <= most) return;
    throw config_error(text("trireme::ops::", who, ": a kernel in CUDA memory takes at most ", most, ' ', what,
                            ", and here are ", count));
  }
};

}  // namespace trireme::ops
