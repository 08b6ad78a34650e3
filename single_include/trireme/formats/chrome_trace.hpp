// Trireme 0.1.0: trireme/formats/chrome_trace.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 6ca7e6fd863ce18b12bb8e7333af52354021a6358697a92cd52bb201505f1993
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

/// Nanoseconds as the format's microseconds, without rounding.
inline std::string microseconds(std::uint64_t ns) {
  auto const rest = std::to_string(1000 + ns % 1000);
  return text(ns / 1000, ".", std::string_view(rest).substr(1));
}

inline std::string quoted(std::string_view content) {
  std::string out;
  json::detail::print_string(out, content);
  return out;
}

inline std::string label(std::string_view what, int rank, std::size_t track, std::string_view name) {
  return text(R"({"ph":"M","name":")", what, R"(","pid":)", rank, R"(,"tid":)", track, R"(,"args":{"name":)",
              quoted(name), "}}");
}

}  // namespace detail

/// The events of some ranks as a trace for chrome://tracing and Perfetto: each rank is a process, each lane a thread.
///
/// Time starts at the earliest event. Text is written without conversion and should be UTF-8.
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
    for (std::size_t track = 0; track < rank.tracks.size(); ++track) {
      add(detail::label("thread_name", rank.rank, track, rank.tracks[track]));
    }
    for (auto const& event : rank.events) {
      auto const length = event.end_ns > event.begin_ns ? event.end_ns - event.begin_ns : 0;
      add(text(R"({"ph":"X","name":)", detail::quoted(event.name), R"(,"cat":)", detail::quoted(event.category),
               R"(,"pid":)", rank.rank, R"(,"tid":)", event.track, R"(,"ts":)",
               detail::microseconds(event.begin_ns - start), R"(,"dur":)", detail::microseconds(length), "}"));
    }
  }
  return out + "\n],\"displayTimeUnit\":\"ms\"}\n";
}

/// Writes that to a file, completely or not at all. Throws io_error.
inline void write(std::string const& path, std::span<trace_process const> ranks, file_system& files = real_files()) {
  atomic_write(path, to_string(ranks), files);
}

}  // namespace trireme::formats::chrome_trace
