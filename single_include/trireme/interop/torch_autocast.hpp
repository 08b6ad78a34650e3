// Trireme 0.1.0: trireme/interop/torch_autocast.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 3d24f3ff742988411617d557d838ccb81c6259906a5494c8c21c48a04206d0b0
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_autocast.hpp
#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <torch/version.h>

namespace trireme::interop {

namespace detail {

/// This thread's autocast settings for the CPU. LibTorch 2.4 has renamed the functions.
struct autocast_state {
  bool enabled;
  at::ScalarType type;

  [[nodiscard]] static autocast_state now() {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    return {at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU)};
#else
    return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
#endif
  }
  void set() const {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, type);
#else
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(type);
#endif
  }
};

// Whether autocast on the CPU supports float16.
inline constexpr bool casts_to_float16 = TORCH_VERSION_MAJOR > 2 ||
                                         (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4);

}  // namespace detail

/// While it exists, torch computes matrix products and similar operations of this thread in `type`, and operations that
/// need more precision in float, like Python's torch.autocast("cpu", dtype). Use it for forward and loss, and let it
/// end before backward.
///
/// Numerics parameters, gradients and messages between ranks stay float. float16 needs a loss scale
///          (data_parallel_options::loss_scale, or precision::fp16 in a trainer); bfloat16 needs none.
/// Threads  affects the thread that made it.
/// Errors   config_error for a type that this LibTorch's autocast does not support on the CPU: bfloat16 needs LibTorch
///          1.13 or later, float16 2.4 or later.
class autocast {
 public:
  explicit autocast(at::ScalarType type = at::kBFloat16) : before_(detail::autocast_state::now()) {
    if (type != at::kBFloat16 && !(type == at::kHalf && detail::casts_to_float16)) {
      throw config_error(text("trireme::interop::autocast: LibTorch ", TORCH_VERSION, " does not cast to ",
                              c10::toString(type), " on the CPU; use at::kBFloat16 (in a trainer precision::bf16)"));
    }
    detail::autocast_state{true, type}.set();
    at::autocast::increment_nesting();
  }
  autocast(autocast const&) = delete;
  autocast& operator=(autocast const&) = delete;
  ~autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();  // the cache of cast parameters
    before_.set();
  }

 private:
  detail::autocast_state before_;
};

}  // namespace trireme::interop
