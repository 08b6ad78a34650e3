// Trireme 0.1.0: trireme/interop/torch_autocast.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ca2d4f92e8c34dca1b160e7745cfdbe72c38697d5487b42ddb1c5829404cbb2d
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/interop/torch_autocast.hpp
#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <torch/version.h>

namespace trireme::interop {

namespace detail {

/// Autocast for the CPU in this thread: LibTorch 2.4 has renamed the functions.
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

// Which types autocast has on the CPU.
inline constexpr bool casts_to_float16 = TORCH_VERSION_MAJOR > 2 ||
                                         (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4);

}  // namespace detail

/// While it lives, torch runs products of matrices and the like of this thread in another type, and what needs more
/// precision in float: torch.autocast("cpu", dtype) of Python. For forward and loss; let it end before backward.
///
/// Numerics parameters, gradients and what ranks exchange stay float. float16 needs a loss scale
///          (data_parallel_options::loss_scale, or precision::fp16 in a trainer), bfloat16 does
///          not.
/// Threads  of the thread that made it.
/// Errors   config_error for a type that this LibTorch's autocast does not have on the CPU: bfloat16 it has from 1.13
///          on, float16 from 2.4 on.
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
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();  // of parameters' casts
    before_.set();
  }

 private:
  detail::autocast_state before_;
};

}  // namespace trireme::interop
