#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// A span of time on one rank. The names must outlive it.
struct trace_event {
  std::string_view name;
  std::string_view category;
  std::uint64_t begin_ns = 0;  ///< of the steady clock, which all processes of a machine share
  std::uint64_t end_ns = 0;
  std::uint32_t track = 0;  ///< the row of the rank in which it is drawn
};

/// The events of one rank, and how to label its rows.
struct trace_process {
  int rank = 0;
  std::string name;                 ///< "rank 0"
  std::vector<std::string> tracks;  ///< "compute", "exchange"
  std::span<trace_event const> events;
};

}  // namespace trireme
