// The bodies of the functions of ops/cuda/routing_launch.hpp, a part of trireme::cuda.
#include "trireme/ops/cuda/routing_launch.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "trireme/ops/cuda/routing.cuh"

namespace trireme::ops::cuda_kernels {

namespace device = detail::device;

int route(void* stream, dtype of, void* probabilities, std::int32_t* chosen, void* weights, void const* logits,
          routed_rows const& all) {
  if (all.rows == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    return device::run("route", &device::route_rows<T>, device::blocks_for(all.rows * device::warp_width),
                       device::block_threads, stream, static_cast<real*>(probabilities), chosen,
                       static_cast<real*>(weights), static_cast<T const*>(logits), all);
  });
}
int route_backward(void* stream, dtype of, void* dlogits, void const* dweights, void const* probabilities,
                   std::int32_t const* chosen, void const* weights, void const* slopes, routed_rows const& all) {
  if (all.rows == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    return device::run("route_backward", &device::route_rows_backward<T>,
                       device::blocks_for(all.rows * device::warp_width), device::block_threads, stream,
                       static_cast<T*>(dlogits), static_cast<real const*>(dweights),
                       static_cast<real const*>(probabilities), chosen, static_cast<real const*>(weights),
                       static_cast<real const*>(slopes), all);
  });
}
int score(void* stream, dtype of, void* scores, std::int32_t* chosen, void* weights, void const* logits,
          void const* bias, routed_rows const& all, scored_choice const& how) {
  if (how.groups > most_expert_groups) return device::launch_refused;
  if (all.rows == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    return device::run("score", &device::score_rows<T>, device::blocks_for(all.rows * device::warp_width),
                       device::block_threads, stream, static_cast<real*>(scores), chosen, static_cast<real*>(weights),
                       static_cast<T const*>(logits), static_cast<T const*>(bias), all, how);
  });
}
int score_backward(void* stream, dtype of, void* dlogits, void const* dweights, void const* scores,
                   std::int32_t const* chosen, void const* weights, routed_rows const& all, double scale) {
  if (all.rows == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    return device::run("score_backward", &device::score_rows_backward<T>,
                       device::blocks_for(all.rows * device::warp_width), device::block_threads, stream,
                       static_cast<T*>(dlogits), static_cast<real const*>(dweights), static_cast<real const*>(scores),
                       chosen, static_cast<real const*>(weights), all, static_cast<real>(scale));
  });
}

std::size_t expert_scratch(std::int64_t n, std::int64_t experts) noexcept {
  auto const all = device::choice_chunks::of(n, experts);
  return static_cast<std::size_t>(experts) *
         (sizeof(std::int64_t) + static_cast<std::size_t>(all.chunks) * sizeof(unsigned));
}
int add_excess(void* stream, dtype of, void* excess, std::int32_t const* chosen, std::int64_t n, std::int64_t experts,
               void* scratch) {
  if (experts > most_experts) return device::launch_refused;
  if (experts == 0 || n == 0) return device::launch_succeeded;
  auto const all = device::choice_chunks::of(n, experts);
  auto* const counts = static_cast<unsigned*>(scratch);
  if (auto const code = device::run("count_choices", &device::count_choices, all.chunks, device::block_threads, stream,
                                    chosen, counts, all);
      code != device::launch_succeeded)
    return code;
  return device::for_floats(of, [&]<class T>(T) {
    return device::run("add_excess", &device::add_excess_counts<T>, device::blocks_for(experts * device::warp_width),
                       device::block_threads, stream, static_cast<T*>(excess), counts, all);
  });
}

namespace {

constexpr std::int64_t most_partial_sums = 1024;

}  // namespace

std::size_t imbalance_scratch(std::int64_t samples, std::int64_t experts) noexcept {
  return static_cast<std::size_t>(most_partial_sums) * sizeof(double) +
         static_cast<std::size_t>(samples * experts) * sizeof(unsigned);
}
int imbalance(void* stream, dtype of, void* slopes, void const* probabilities, std::int32_t const* chosen,
              std::int64_t rows_of_sample, double scale, routed_rows const& all, double* total, void* scratch) {
  if (all.experts > most_experts) return device::launch_refused;
  if (all.rows == 0 || all.experts == 0) return device::launch_succeeded;
  auto const choices_of_sample = rows_of_sample * all.choices;
  device::choice_chunks const samples{all.rows * all.choices, choices_of_sample, all.rows / rows_of_sample,
                                      static_cast<int>(all.experts)};
  auto* const partial = static_cast<double*>(scratch);
  auto* const counts = reinterpret_cast<unsigned*>(partial + most_partial_sums);
  if (auto const code = device::run("count_choices", &device::count_choices, samples.chunks, device::block_threads,
                                    stream, chosen, counts, samples);
      code != device::launch_succeeded)
    return code;
  auto const numbers = all.rows * all.experts;
  auto const wanted = (numbers + 2047) / 2048;  // blocks; of the shape alone, so that the order of the sum is, too
  auto const blocks = wanted < most_partial_sums ? wanted : most_partial_sums;
  auto const load = static_cast<double>(all.experts) / static_cast<double>(rows_of_sample * choices_of_sample);
  auto const launch = [&]<class Real>(Real) {
    return device::run("imbalance", &device::sum_imbalance<Real>, blocks, device::block_threads, stream,
                       static_cast<Real*>(slopes), static_cast<Real const*>(probabilities), counts, partial, samples,
                       rows_of_sample, load, scale, numbers);
  };
  auto const code = of == dtype::f32   ? launch(float{})
                    : of == dtype::f64 ? launch(double{})
                                       : static_cast<int>(device::launch_refused);
  if (code != device::launch_succeeded) return code;
  return device::run("imbalance", &device::add_partial_sums, 1, device::block_threads, stream, partial, blocks, total);
}

int sort_by_expert(void* stream, std::int32_t* positions, std::int32_t const* chosen, std::int64_t n,
                   std::int64_t experts, void* scratch) {
  if (experts > most_experts) return device::launch_refused;
  if (experts == 0) return device::launch_succeeded;
  auto const all = device::choice_chunks::of(n, experts);
  auto* const totals = static_cast<std::int64_t*>(scratch);
  auto* const counts = reinterpret_cast<unsigned*>(totals + experts);
  if (n > 0) {
    if (auto const code = device::run("count_choices", &device::count_choices, all.chunks, device::block_threads,
                                      stream, chosen, counts, all);
        code != device::launch_succeeded)
      return code;
  }
  if (auto const code =
          device::run("add_up_chunks", &device::add_up_chunks, device::blocks_for(experts * device::warp_width),
                      device::block_threads, stream, counts, totals, all);
      code != device::launch_succeeded || n == 0)
    return code;
  auto const bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(experts)));
  return device::run("sort_by_expert", &device::place_choices, all.chunks, device::warp_width, stream, positions,
                     chosen, counts, totals, all, bits);
}

int dispatch(void* stream, dtype of, void* to, void const* from, std::int32_t const* positions, std::int64_t n,
             std::int64_t choices, std::int64_t channels) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const y = static_cast<T*>(to);
    auto const* const x = static_cast<T const*>(from);
    return device::with_pack_width<device::pack_width<T>>(
        channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::dispatching<T, Width> const work{y, x, positions, choices, channels / Width};
          return device::launch_elements("dispatch", work, {}, n * channels / Width, stream);
        },
        y, x);
  });
}
int combine_choices(void* stream, dtype of, void* to, void const* from, std::int32_t const* positions,
                    void const* weights, std::int64_t rows, std::int64_t choices, std::int64_t channels) {
  return device::for_floats(of, [&]<class T>(T) {
    auto* const y = static_cast<T*>(to);
    auto const* const x = static_cast<T const*>(from);
    return device::with_pack_width<device::pack_width<T>>(
        channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          device::combining<T, Width> const work{
              y, x, positions, static_cast<device::sum_type<T> const*>(weights), choices, channels / Width};
          return device::launch_elements("combine", work, {}, rows * channels / Width, stream);
        },
        y, x);
  });
}
int combine_choices_backward(void* stream, dtype of, void* dfrom, void* dweights, void const* dto, void const* from,
                             std::int32_t const* positions, void const* weights, std::int64_t n, std::int64_t choices,
                             std::int64_t channels) {
  if (n == 0) return device::launch_succeeded;
  return device::for_floats(of, [&]<class T>(T) {
    using real = device::sum_type<T>;
    auto* const dx = static_cast<T*>(dfrom);
    auto const* const dy = static_cast<T const*>(dto);
    auto const* const x = static_cast<T const*>(from);
    return device::with_pack_width<device::pack_width<T>>(
        channels,
        [&]<int Width>(std::integral_constant<int, Width>) {
          return device::run("combine_backward", &device::combine_rows_backward<T, Width>,
                             device::blocks_for(n * device::warp_width), device::block_threads, stream, dx,
                             static_cast<real*>(dweights), dy, x, positions, static_cast<real const*>(weights), n,
                             choices, channels);
        },
        dx, dy, x);
  });
}

}  // namespace trireme::ops::cuda_kernels
