// Trireme 0.1.0: trireme/formats/chrome_trace.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ad999570564bec84d8e38694055301c9541f66cb8bf8230d429abac5ba8e2c5f
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/chrome_trace.hpp
#include <algorithm>
#include <limits>
#include <span>
#include <string>

namespace trireme::formats::chrome_trace {

namespace detail {

/// Nanoseconds as the microseconds of the format, exactly.
inline std::string microseconds(std::uint64_t ns) {
  auto const rest = std::to_string(1000 + ns % 1000);
  return text(ns / 1000, ".", std::string_view(rest).substr(1));
}

inline std::string quoted(std::string_view content) {
  std::string out;
  json::detail::print_string(out, content);
  return out;
}

inline std::string label(std::string_view what, int rank, std::size_t lane, std::string_view name) {
  return text(R"({"ph":"M","name":")", what, R"(","pid":)", rank, R"(,"tid":)", lane, R"(,"args":{"name":)",
              quoted(name), "}}");
}

}  // namespace detail

/// The events of some ranks as a trace that chrome://tracing and Perfetto show: a rank is a process, a lane a thread.
///
/// Time starts at the earliest event. Text is written as it is and should be UTF-8.
[[nodiscard]] inline std::string to_string(std::span<trace_process const> ranks) {
  auto start = std::numeric_limits<std::uint64_t>::max();
  for (auto const& rank : ranks) {
    for (auto const& event : rank.events) start = std::min(start, event.begin_ns);
  }
  std::string out = "{\"traceEvents\":[";
  auto add = [&, first = true](std::string const& line) mutable {
    out += first ? "\n" : ",\n";
    out += line;
    first = false;
  };
  for (auto const& rank : ranks) {
    add(detail::label("process_name", rank.rank, 0, rank.name));
    for (std::size_t lane = 0; lane < rank.lanes.size(); ++lane) {
      add(detail::label("thread_name", rank.rank, lane, rank.lanes[lane]));
    }
    for (auto const& event : rank.events) {
      auto const length = event.end_ns > event.begin_ns ? event.end_ns - event.begin_ns : 0;
      add(text(R"({"ph":"X","name":)", detail::quoted(event.name), R"(,"cat":)", detail::quoted(event.category),
               R"(,"pid":)", rank.rank, R"(,"tid":)", event.lane, R"(,"ts":)",
               detail::microseconds(event.begin_ns - start), R"(,"dur":)", detail::microseconds(length), "}"));
    }
  }
  return out + "\n],\"displayTimeUnit\":\"ms\"}\n";
}

/// Writes that to a file, whole or not at all. Throws io_error.
inline void write(std::string const& path, std::span<trace_process const> ranks, file_system& files = real_files()) {
  atomic_write(path, to_string(ranks), files);
}

}  // namespace trireme::formats::chrome_trace
