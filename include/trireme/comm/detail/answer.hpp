#pragma once

#include <optional>
#include <type_traits>
#include <utility>

namespace trireme::comm::detail {

/// Returns what a body returns that a launch runs: `run(keep)` calls `keep(call)` on the rank whose result is wanted.
/// The results of several calls, after failures, replace each other.
///
/// @tparam Result  of the body, decayed; may be void.
template <class Result, class Run>
Result returned_by(Run const& run) {
  if constexpr (std::is_void_v<Result>) {
    run([](auto const& call) { call(); });
  } else {
    std::optional<Result> result;
    run([&](auto const& call) { result.emplace(call()); });
    return std::move(*result);
  }
}

}  // namespace trireme::comm::detail
