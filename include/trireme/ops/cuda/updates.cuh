#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/ops/cuda/formulas.cuh"
#include "trireme/ops/cuda/launch.hpp"

// Optimizer steps in one pass over memory: the terms of a gradient are summed when they are read, and the new value is
// rounded and written to every output.

namespace trireme::ops::detail::device {

using cuda_kernels::most_gradient_terms;
using cuda_kernels::most_update_outputs;

struct update_tensors {
  void const* terms[most_gradient_terms];
  void* outputs[most_update_outputs];
  int term_count;
  int output_count;
  double scale;  ///< of the sum of the terms
};

template <class Real, class G>
__device__ __forceinline__ lane<Real> summed_gradient(update_tensors const& all, std::int64_t i) {
  lane<Real> g{0};
  for (int t = 0; t < all.term_count; ++t) {
    auto const next = opened_lane<Real>(static_cast<G const*>(all.terms[t])[i]);
    g = t == 0 ? next : g + next;
  }
  return g * lane<Real>{static_cast<Real>(all.scale)};
}
template <class P, class Real>
__device__ __forceinline__ void write_outputs(update_tensors const& all, std::int64_t i, lane<Real> x) {
  for (int o = 0; o < all.output_count; ++o) static_cast<P*>(all.outputs[o])[i] = narrow<P>(x.v);
}

template <class M, class G, class P>
__global__ void __launch_bounds__(block_threads)
    adamw(M* value, M* first, M* second, std::int64_t n, update_tensors const all, adamw_constants<M> const constants) {
  using F = lane<M>;
  adamw_step<F> const step(constants);
  for (auto i = first_task(); i < n; i += all_tasks()) {
    F const g = summed_gradient<M, G>(all, i);
    F m{first[i]};
    F v{second[i]};
    F const next = step.next(F{value[i]}, m, v, g);
    first[i] = m.v;
    second[i] = v.v;
    value[i] = next.v;
    write_outputs<P>(all, i, next);
  }
}

template <class M, class G, class P>
__global__ void __launch_bounds__(block_threads)
    sgd(M* value, M* velocity, std::int64_t n, update_tensors const all, sgd_constants<M> const constants) {
  using F = lane<M>;
  sgd_step<F> const step(constants);
  for (auto i = first_task(); i < n; i += all_tasks()) {
    F const before{value[i]};
    F const g = step.decayed(before, summed_gradient<M, G>(all, i));
    F next;
    if (constants.moving) {
      F v{velocity[i]};
      next = step.moved(before, v, g, constants.nesterov);
      velocity[i] = v.v;
    } else {
      next = step.next(before, g);
    }
    value[i] = next.v;
    write_outputs<P>(all, i, next);
  }
}

/// Tensors that are updated together, in pieces of `piece` elements of which each lies in one tensor.
template <class M, class G, class P>
struct adamw_tensors {
  static constexpr int most = 48;
  static constexpr int piece = 1024;
  M* value[most];
  M* first[most];
  M* second[most];
  G const* gradient[most];
  P* output[most];
  std::int64_t n[most];
  std::int64_t end[most];  ///< number of the first piece after the tensor
  std::uint64_t decays;    ///< bit t: the second constants are those of tensor t
  std::uint64_t aligned;   ///< bit t: packs of four begin at all addresses of tensor t
  adamw_constants<M> constants[2];
  M scale;
  int count;
};

template <class M, class G, class P>
__global__ void __launch_bounds__(block_threads) adamw_of_tensors(adamw_tensors<M, G, P> const all) {
  using F = lane<M>;
  constexpr int width = 4;
  adamw_step<F> const plain(all.constants[0]), decaying(all.constants[1]);
  int t = 0;
  for (std::int64_t p = blockIdx.x; p < all.end[all.count - 1]; p += gridDim.x) {
    while (p >= all.end[t]) ++t;
    auto const from = (p - (t == 0 ? 0 : all.end[t - 1])) * all.piece;
    auto const step = (all.decays >> t & 1U) != 0 ? decaying : plain;
    M* const value = all.value[t];
    M* const first = all.first[t];
    M* const second = all.second[t];
    G const* const gradient = all.gradient[t];
    P* const output = all.output[t];
    auto const n = all.n[t];
    auto const packs = [&]<int Width>(std::int64_t i, std::integral_constant<int, Width>) {
      auto x = load<Width>(value + i);
      auto m = load<Width>(first + i);
      auto v = load<Width>(second + i);
      auto const g = load<Width>(gradient + i);
      pack<P, Width> out;
      TRIREME_DEVICE_UNROLL
      for (int k = 0; k < Width; ++k) {
        F next_m{m.values[k]}, next_v{v.values[k]};
        F const next =
            step.next(F{x.values[k]}, next_m, next_v, opened_lane<M>(g.values[k]) * F{all.scale});
        x.values[k] = next.v;
        m.values[k] = next_m.v;
        v.values[k] = next_v.v;
        out.values[k] = narrow<P>(next.v);
      }
      store(value + i, x);
      store(first + i, m);
      store(second + i, v);
      if (output != nullptr) store(output + i, out);
    };
    auto const end = from + all.piece < n ? from + all.piece : n;
    if ((all.aligned >> t & 1U) != 0) {
      auto const i = from + static_cast<std::int64_t>(threadIdx.x) * width;
      if (i + width <= end)
        packs(i, std::integral_constant<int, width>{});
      else
        for (auto rest = i; rest < end; ++rest) packs(rest, std::integral_constant<int, 1>{});
    } else {
      for (auto i = from + threadIdx.x; i < end; i += block_threads) packs(i, std::integral_constant<int, 1>{});
    }
  }
}

/// value[i] -= by * (-1, 0 or 1: the sign of measured[i])
template <class M, class G>
struct stepping_against_sign {
  static constexpr int width = 1;
  M* value;
  G const* measured;
  double by;
  template <int Width>
  __device__ void at(std::int64_t i) const {
    value[i] = stepped_against_sign(value[i], opened_lane<real_for<G>>(measured[i]).v, by);
  }
};

}  // namespace trireme::ops::detail::device
