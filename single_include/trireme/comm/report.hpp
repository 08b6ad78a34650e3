// Trireme 0.1.0: trireme/comm/report.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b0e69ed770785ed2637ceb0d7f2266eb712bcf0346ea523485f886f37332cc4a
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/comm/report.hpp
#include <atomic>
#include <cstdint>
#include <string_view>

namespace trireme::comm {

namespace detail {

/// Which process prints the error of the last launch.
enum class report : std::uint8_t { unsettled, by_this_process, by_another };

inline std::atomic<report>& last_report() noexcept {
  static std::atomic<report> last{report::unsettled};
  return last;
}

}  // namespace detail

/// Whether this process should print the error that it ends with. Of the processes of a failed launch, the lowest rank
/// that still runs prints it, so a user sees the error once, also if rank 0 was killed or hangs.
///
/// After comm::mpi or comm::processes the ranks have agreed on it. A rank waits half a second for lower ranks that also
/// end with the error, unless they have died. An error before there was a world is printed by rank 0; an error that
/// rank 0 was not found, by every rank.
///
/// Ranks    local; the result is the same until the next launch.
/// @param sentence  the error's what().
/// @example catch (std::exception const& e) { if (comm::reports(e.what())) std::fprintf(stderr, "%s\n", e.what()); }
[[nodiscard]] inline bool reports(std::string_view sentence) noexcept {
  auto const settled = detail::last_report().load();
  if (settled != detail::report::unsettled) return settled == detail::report::by_this_process;
  try {
    return bootstrap::detect().rank == 0 || sentence.find("for rank 0;") != sentence.npos ||
           sentence.find("did not find rank 0") != sentence.npos;
  } catch (...) {  // the environment is inconsistent, or there is no memory
    return true;
  }
}

}  // namespace trireme::comm
