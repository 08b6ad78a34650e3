#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/assertion.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/exact_sum.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/phantom/attention.hpp"
#include "trireme/ops/phantom/codes.hpp"
#include "trireme/ops/phantom/low_rank.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The kernels of memory without elements: the functions of on<host> under the same names, which check sizes and read
/// nothing.
///
/// A training in phantom memory spends no time in kernels, and crashes if code outside ops reads a tensor. Losses are 0
/// per row, numbers are finite, the largest elements are the first ones. Products count the operations they would take
/// (flops()), and attention allocates the same scratch memory as on<host>.
/// Errors   assertion_error (light) if sizes do not fit.
template <class Space>
struct phantom_kernels : phantom_attention<Space>, phantom_codes<Space>, phantom_low_rank<Space> {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, Space>>;
  using phantom_checks<Space>::same, phantom_checks<Space>::all_same;
  using tokens_view = tensor_view<std::int32_t const, Space>;

  // elementwise
  template <class T>
  static void fill(view<T> x, double) noexcept {
    note_kernel<Space>("fill", x);
  }
  template <class T, class U>
  static void copy(view<T> y, view<U> x) {
    note_kernel<Space>("copy", y, x);
    same("copy", y.size(), x.size());
  }
  template <class T, class U>
  static void copy_columns(view<T> y, std::int64_t, view<U> x, std::int64_t, std::int64_t) {
    note_kernel<Space>("copy_columns", y, x);
    same("copy_columns", y.extent(0), x.extent(0));
  }
  template <class T, class U>
  static void copy_blocks(view<T> y, block_places const& to, view<U> x, block_places const& from,
                          block_extents const& extents) {
    note_kernel<Space>("copy_blocks", y, x);
    detail::blocks_within("copy_blocks", y.size(), to, extents);
    detail::blocks_within("copy_blocks", x.size(), from, extents);
  }
  template <class T>
  static void copy_runs(view<T> y, input<T> x, std::span<element_run const> runs) {
    note_kernel<Space>("copy_runs", y, x);
    for (auto const& run : runs) {
      expects(assertion_level::light, run.to + run.count <= y.size() && run.from + run.count <= x.size(),
              [] { return std::string("trireme::ops::copy_runs: a run does not lie in its tensor"); });
    }
  }
  template <class T>
  static void add(view<T> y, input<T> x) {
    note_kernel<Space>("add", y, x);
    same("add", y.size(), x.size());
  }
  template <class T>
  static void scale(view<T> x, double) noexcept {
    note_kernel<Space>("scale", x);
  }
  template <class T, class U>
  static void accumulate(view<T> y, view<U> x, double) {
    note_kernel<Space>("accumulate", y, x);
    same("accumulate", y.size(), x.size());
  }
  template <class T>
  static void elementwise_product(view<T> y, input<T> a, input<T> b) {
    note_kernel<Space>("elementwise_product", y, a, b);
    same("elementwise_product", y.size(), a.size());
    same("elementwise_product", y.size(), b.size());
  }
  template <class T>
  static void activate(view<T> y, input<T> x, activation) {
    note_kernel<Space>("activate", y, x);
    same("activate", y.size(), x.size());
  }
  template <class T>
  static void activate_backward(view<T> dx, input<T> dy, input<T> x, activation) {
    note_kernel<Space>("activate_backward", dx, dy, x);
    same("activate_backward", dx.size(), dy.size());
    same("activate_backward", dx.size(), x.size());
  }
  template <class T>
  static void dropout(view<T> y, dropout_site_in<Space> const& site) {
    note_kernel<Space>("dropout", y, site.samples);
    auto const whole = site.whole > 0 ? site.whole : y.size();
    if (site.active()) same("dropout", whole % site.sample_count(), 0);
  }
  template <class T>
  static void dropout_part(view<T> y, dropout_site_in<Space> const& site, dropout_cut const& cut) {
    note_kernel<Space>("dropout_part", y, site.samples);
    if (site.active() && !y.empty()) same("dropout_part", y.size() % (cut.fused * cut.columns), 0);
  }
  template <class T>
  static void initialise(view<T> x, initial const&, std::uint64_t, std::uint64_t, std::int64_t = 0) noexcept {
    note_kernel<Space>("initialise", x);
  }
  template <class T>
  static void upload(view<T> y, std::type_identity_t<std::span<T const>> x) {
    note_kernel<Space>("upload", y);
    same("upload", y.size(), static_cast<std::int64_t>(x.size()));
  }
  template <class T>
  static void download(std::span<T> y, input<T> x) {
    note_kernel<Space>("download", x);
    same("download", static_cast<std::int64_t>(y.size()), x.size());
    for (auto& element : y) element = T{};
  }
  template <class T>
  [[nodiscard]] static std::remove_const_t<T> read(view<T> x, std::int64_t) noexcept {
    note_kernel<Space>("read", x);
    return {};
  }

  // layers
  template <class T>
  static void embed(view<T> y, tokens_view tokens, input<T> table, input<T> x, table_range = {}) {
    note_kernel<Space>("embed", y, tokens, table, x);
    same("embed", y.size(), tokens.size() * table.extent(1));
  }
  template <class G, class T>
  static void embed_backward(view<G> dtable, output<G> x, view<T> dy, tokens_view tokens, table_range = {}) {
    note_kernel<Space>("embed_backward", dtable, x, dy, tokens);
    same("embed_backward", dy.size(), tokens.size() * dtable.extent(1));
  }
  template <class T>
  static void embed_segments(view<T> y, tokens_view tokens, std::int32_t, input<T> table) {
    note_kernel<Space>("embed_segments", y, tokens, table);
    same("embed_segments", y.size(), tokens.size() * table.extent(1));
  }
  template <class G, class T>
  static void embed_segments_backward(view<G> dtable, view<T> dy, tokens_view tokens, std::int32_t) {
    note_kernel<Space>("embed_segments_backward", dtable, dy, tokens);
    same("embed_segments_backward", dy.size(), tokens.size() * dtable.extent(1));
  }
  template <class T>
  static void layer_norm(view<T> y, output<accumulate_t<T>> mean, output<accumulate_t<T>> rstd, input<T> x,
                         input<T> gain, input<T> bias, double) {
    note_kernel<Space>("layer_norm", y, mean, rstd, x, gain, bias);
    same("layer_norm", y.size(), x.size());
    same("layer_norm", x.size(), mean.size() * gain.size());
    same("layer_norm", mean.size(), rstd.size());
    same("layer_norm", gain.size(), bias.size());
  }
  template <class T>
  static void layer_norm_backward(view<T> dx, output<accumulate_t<T>> dgain, output<accumulate_t<T>> dbias, input<T> dy,
                                  input<T> x, input<accumulate_t<T>> mean, input<accumulate_t<T>> rstd, input<T> gain,
                                  bool) {
    note_kernel<Space>("layer_norm_backward", dx, dgain, dbias, dy, x, mean, rstd, gain);
    same("layer_norm_backward", dx.size(), x.size());
    same("layer_norm_backward", dy.size(), x.size());
    same("layer_norm_backward", x.size(), mean.size() * gain.size());
    same("layer_norm_backward", mean.size(), rstd.size());
    same("layer_norm_backward", dgain.size(), gain.size());
    same("layer_norm_backward", dbias.size(), gain.size());
  }
  template <class T>
  static void rms_norm(view<T> y, output<accumulate_t<T>> rstd, input<T> x, input<T> gain, double) {
    note_kernel<Space>("rms_norm", y, rstd, x, gain);
    same("rms_norm", y.size(), x.size());
    same("rms_norm", x.size(), rstd.size() * gain.size());
  }
  template <class T>
  static void rms_norm_backward(view<T> dx, output<accumulate_t<T>> dgain, input<T> dy, input<T> x,
                                input<accumulate_t<T>> rstd, input<T> gain, bool) {
    note_kernel<Space>("rms_norm_backward", dx, dgain, dy, x, rstd, gain);
    same("rms_norm_backward", dx.size(), x.size());
    same("rms_norm_backward", dy.size(), x.size());
    same("rms_norm_backward", x.size(), rstd.size() * gain.size());
    same("rms_norm_backward", dgain.size(), gain.size());
  }
  template <class T>
  static losses_in<Space> cross_entropy(view<T> logits, tokens_view targets, double, bool,
                                        cross_entropy_terms const& = {}) {
    note_kernel<Space>("cross_entropy", logits, targets);
    if (!targets.empty()) same("cross_entropy", logits.size() % targets.size(), 0);
    return loss_sum{0, targets.size()};
  }
  template <class T>
  static void row_peaks(view<T> logits, output<accumulate_t<std::remove_const_t<T>>> peaks) {
    note_kernel<Space>("row_peaks", logits, peaks);
    if (!peaks.empty()) same("row_peaks", logits.size() % peaks.size(), 0);
  }
  template <class T>
  static void row_masses(view<T> x, tokens_view targets, table_range, input<accumulate_t<std::remove_const_t<T>>> peaks,
                         output<accumulate_t<std::remove_const_t<T>>> masses,
                         output<accumulate_t<std::remove_const_t<T>>> chosen, cross_entropy_terms const& = {}) {
    note_kernel<Space>("row_masses", x, targets, peaks, masses, chosen);
    same("row_masses", peaks.size(), targets.size());
    same("row_masses", masses.size(), targets.size());
    same("row_masses", chosen.size(), targets.size());
  }
  template <class T>
  static losses_in<Space> cross_entropy_part(view<T> logits, tokens_view targets, table_range, input<accumulate_t<T>> x,
                                             input<accumulate_t<T>> y, input<accumulate_t<T>> z, double, bool gradient,
                                             cross_entropy_terms const& = {}) {
    note_kernel<Space>("cross_entropy_part", logits, targets, x, y, z);
    return cross_entropy(logits, targets, 0, gradient);
  }
  template <class T, class Target>
  static losses_in<Space> binary_cross_entropy(view<T> dy, input<T> y, view<Target> targets, double) {
    note_kernel<Space>("binary_cross_entropy", dy, y, targets);
    same("binary_cross_entropy", y.size(), targets.size());
    if (!dy.empty()) same("binary_cross_entropy", dy.size(), y.size());
    return loss_sum{0, y.extent(0)};
  }
  template <class T>
  static losses_in<Space> squared_error(view<T> dy, input<T> y, view<float const> targets, double) {
    note_kernel<Space>("squared_error", dy, y, targets);
    same("squared_error", y.size(), targets.size());
    if (!dy.empty()) same("squared_error", dy.size(), y.size());
    return loss_sum{0, y.empty() ? 0 : y.extent(0)};
  }
  static losses_in<Space> squared_error(view<double> dy, view<double const> y, view<double const> targets, double) {
    note_kernel<Space>("squared_error", dy, y, targets);
    same("squared_error", y.size(), targets.size());
    if (!dy.empty()) same("squared_error", dy.size(), y.size());
    return loss_sum{0, y.empty() ? 0 : y.extent(0)};
  }

  // routing: every expert gets the same number of rows
  template <class T>
  static void route(output<accumulate_t<T>> probabilities, view<std::int32_t> chosen, output<accumulate_t<T>> weights,
                    view<T> logits) {
    note_kernel<Space>("route", probabilities, chosen, weights, logits);
    same("route", probabilities.size(), logits.size());
    same("route", chosen.size(), weights.size());
  }
  template <class T>
  static void route_backward(view<T> dlogits, output<accumulate_t<T>> dweights, output<accumulate_t<T>> probabilities,
                             tokens_view chosen, output<accumulate_t<T>> weights, output<accumulate_t<T>> x) {
    note_kernel<Space>("route_backward", dlogits, dweights, probabilities, chosen, weights, x);
    same("route_backward", probabilities.size(), dlogits.size());
    same("route_backward", chosen.size(), weights.size());
    same("route_backward", chosen.size(), dweights.size());
  }
  template <class T>
  static void score(output<accumulate_t<T>> scores, view<std::int32_t> chosen, output<accumulate_t<T>> weights,
                    view<T> logits, input<T> bias, scored_choice const&) {
    note_kernel<Space>("score", scores, chosen, weights, logits, bias);
    same("score", scores.size(), logits.size());
    same("score", chosen.size(), weights.size());
    same("score", bias.size(), logits.extent(1));
  }
  template <class T>
  static void score_backward(view<T> dlogits, output<accumulate_t<T>> dweights, output<accumulate_t<T>> scores,
                             tokens_view chosen, output<accumulate_t<T>> weights, scored_choice const&) {
    note_kernel<Space>("score_backward", dlogits, dweights, scores, chosen, weights);
    route_backward(dlogits, dweights, scores, chosen, weights, {});
  }
  template <class A>
  static void add_excess(view<A> x, tokens_view y) noexcept {
    note_kernel<Space>("add_excess", x, y);
  }
  template <class A>
  static losses_in<Space> imbalance(view<A> x, input<A> y, tokens_view z, std::int64_t, double) noexcept {
    note_kernel<Space>("imbalance", x, y, z);
    return {};
  }
  static void sort_by_expert(view<std::int32_t> positions, std::span<std::int64_t> counts, tokens_view chosen) {
    note_kernel<Space>("sort_by_expert", positions, chosen);
    same("sort_by_expert", positions.size(), chosen.size());
    auto const experts = static_cast<int>(counts.size());
    for (int e = 0; e < experts; ++e)
      counts[static_cast<std::size_t>(e)] = group_rank{e, experts}.of(chosen.size()).count;
  }
  template <class T>
  static void dispatch(view<T> to, input<T> x, tokens_view positions) {
    note_kernel<Space>("dispatch", to, x, positions);
    same("dispatch", to.extent(0), positions.size());
  }
  template <class T>
  static void combine(view<T> x, input<T> from, tokens_view positions, output<accumulate_t<T>> y) {
    note_kernel<Space>("combine", x, from, positions, y);
    same("combine", from.extent(0), positions.size());
  }
  template <class T>
  static void combine_backward(view<T> dfrom, output<accumulate_t<T>> dweights, input<T> x, input<T> from,
                               tokens_view positions, output<accumulate_t<T>> weights) {
    note_kernel<Space>("combine_backward", dfrom, dweights, x, from, positions, weights);
    same("combine_backward", from.size(), dfrom.size());
    same("combine_backward", weights.size(), positions.size());
    same("combine_backward", dweights.size(), positions.size());
  }

  // loops of your own
  template <class T, class... Rest>
  static void each(view<T> y, Rest const&... rest) {
    note_kernel<Space>("each", y, rest...);
    (same_if_a_view(y.size(), rest), ...);
  }
  template <class F, class... T>
  static void with_values(F&&, view<T>... x) noexcept {
    note_kernel<Space>("with_values", x...);
  }

  // updates
  template <class M, class G, class P>
  static void adamw(view<M> value, output<M> first, output<M> second, gradient_terms<G, Space> const& gradient,
                    std::span<view<P> const> outputs, adamw_numbers const&) {
    note_kernel<Space>("adamw", value, first, second, gradient, outputs);
    same("adamw", value.size(), first.size());
    same("adamw", value.size(), second.size());
    all_same("adamw", value.size(), gradient.terms);
    all_same("adamw", value.size(), outputs);
  }
  template <class M, class G, class P>
  static void sgd(view<M> value, output<M> velocity, gradient_terms<G, Space> const& gradient,
                  std::span<view<P> const> outputs, sgd_numbers const& numbers) {
    note_kernel<Space>("sgd", value, velocity, gradient, outputs);
    if (!exactly_equal(numbers.momentum, 0)) same("sgd", value.size(), velocity.size());
    all_same("sgd", value.size(), gradient.terms);
    all_same("sgd", value.size(), outputs);
  }

  template <class M, class G>
  static void step_against_sign(view<M> value, view<G> measured, double) {
    note_kernel<Space>("step_against_sign", value, measured);
    same("step_against_sign", value.size(), measured.size());
  }

  // reductions
  template <class T, class Op = reduction::sum>
  static void reduce(std::span<view<T> const> outputs, std::type_identity_t<std::span<view<T const> const>> terms,
                     Op = {}, int = 1) {
    note_kernel<Space>("reduce", outputs, terms);
    if (outputs.empty()) return;
    all_same("reduce", outputs[0].size(), outputs);
    all_same("reduce", outputs[0].size(), terms);
  }
  template <class G>
  static void sum_of_squares(view<G> x, exact_sum&) noexcept {
    note_kernel<Space>("sum_of_squares", x);
  }
  template <class T>
  [[nodiscard]] static bool finite(view<T> x) noexcept {
    note_kernel<Space>("finite", x);
    return true;
  }
  template <class T>
  [[nodiscard]] static std::uint64_t hash(view<T> x, std::uint64_t name, std::int64_t) noexcept {
    note_kernel<Space>("hash", x);
    return name;
  }
  template <class G>
  static void select_largest(view<G> x, view<std::int32_t> indices, output<std::remove_const_t<G>> values) {
    note_kernel<Space>("select_largest", x, indices, values);
    same("select_largest", indices.size(), values.size());
    expects(assertion_level::light, indices.size() <= x.size(),
            [] { return std::string("trireme::ops::select_largest: more elements asked for than there are"); });
  }
  template <class G>
  static void scatter(view<G> x, tokens_view indices, input<G> values, bool) {
    note_kernel<Space>("scatter", x, indices, values);
    same("scatter", indices.size(), values.size());
  }

 private:
  template <class Any>
  static void same_if_a_view([[maybe_unused]] std::int64_t size, [[maybe_unused]] Any const& any) {
    if constexpr (requires { any.size(); }) same("each", size, any.size());
  }
};

template <class Space>
requires without_elements<Space>
struct on<Space> : phantom_kernels<Space> {
};

}  // namespace trireme::ops
