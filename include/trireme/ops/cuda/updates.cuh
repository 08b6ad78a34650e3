#pragma once

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
