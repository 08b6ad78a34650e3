#pragma once

#include <concepts>
#include <string_view>

#include "trireme/core/tensor.hpp"

namespace trireme {

// The requirements of a precision policy, one by one.
template <class P>
concept has_param_type = requires {
  typename P::param;
};
template <class P>
concept has_compute_type = requires {
  typename P::compute;
};
template <class P>
concept has_accumulate_type = requires {
  typename P::accumulate;
};
template <class P>
concept has_reduce_type = requires {
  typename P::reduce;
};
template <class P>
concept has_master_type = requires {
  typename P::master;
};
template <class P>
concept has_tolerance = requires {
  { P::tolerance } -> std::convertible_to<double>;
};

/// The element types of a run.
///
/// Requires  types `param` (the working copy that layers read), `compute` (activations), `accumulate` (sums inside
///           kernels, and gradients), `reduce` (gradients on the wire), `master` (values and moments of the optimizer),
///           and a static `tolerance`: the largest relative difference between a distributed and a serial run.
template <class P>
concept precision_policy = has_param_type<P> && has_compute_type<P> && has_accumulate_type<P> && has_reduce_type<P> &&
    has_master_type<P> && has_tolerance<P>;

/// Precision and memory space: the only parameters of a layer's type.
template <precision_policy Precision, class Space = host>
struct environment {
  using precision = Precision;
  using space = Space;
  using param = typename Precision::param;
  using compute = typename Precision::compute;
  using accumulate = typename Precision::accumulate;
  using gradient = typename Precision::accumulate;
  using reduce = typename Precision::reduce;
  using master = typename Precision::master;
};

}  // namespace trireme
