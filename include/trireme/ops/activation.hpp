#pragma once

#include "trireme/core/dialect.hpp"

namespace trireme::ops {

/// gelu: GPT-2's approximation with tanh; gelu_erf: x times the normal distribution function, exact.
enum class activation { none, gelu, tanh, relu, silu, gelu_erf };

}  // namespace trireme::ops
