#pragma once

#include "trireme/core/dtype.hpp"
#include "trireme/ops/cuda/device.hpp"

namespace trireme::ops::detail::device {

/// Calls f(T{}) with the floating-point type.
template <class F>
int for_floats(dtype of, F&& f) {
  switch (of) {
    case dtype::f64:
      return f(double{});
    case dtype::f32:
      return f(float{});
    case dtype::bf16:
      return f(bfloat16{});
    case dtype::f16:
      return f(float16{});
    default:
      return launch_refused;
  }
}

}  // namespace trireme::ops::detail::device
