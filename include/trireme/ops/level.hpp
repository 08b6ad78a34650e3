#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/host/target.hpp"

namespace trireme::ops {

/// What decides the bits of the kernels on this machine, a line for each memory space that has such a choice: "CPU
/// level avx2". Ranks that train one model compare it.
///
/// Numerics The levels avx512 and avx512_bf16 have the same float kernels and differ only for bfloat16, so they are
///          told apart only if Compute is bfloat16.
/// @tparam Compute  the element type of activations.
template <class Compute>
[[nodiscard]] std::string level_text() {
  auto const level = std::same_as<Compute, bf16> ? detected() : std::min(detected(), cpu_level::avx512);
  return text("CPU level ", name_of(level), '\n');
}

/// The values that the environment variable TRIREME_CPU accepts.
[[nodiscard]] inline std::vector<std::string_view> level_words() {
  std::vector<std::string_view> words{name_of(cpu_level::baseline)};
  // A number that is not a level has the name of the first one.
  for (int next = 1; name_of(static_cast<cpu_level>(next)) != words.front(); ++next) {
    words.push_back(name_of(static_cast<cpu_level>(next)));
  }
  return words;
}

}  // namespace trireme::ops
