#pragma once

#include <cstring>

#include "trireme/core/error.hpp"
#include "trireme/observe/timeline.hpp"

namespace trireme::observe {

namespace detail {

inline void put_number(std::vector<std::byte>& out, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) out.push_back(static_cast<std::byte>(value >> shift & 0xff));
}
inline void put_text(std::vector<std::byte>& out, std::string_view content) {
  put_number(out, content.size());
  auto const bytes = std::as_bytes(std::span(content));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// Reads numbers and texts from the front; every length is checked against the remaining bytes.
class unpacker {
 public:
  explicit unpacker(std::span<std::byte const> bytes) : left_(bytes) {}

  [[nodiscard]] std::uint64_t number() {
    std::uint64_t out = 0;
    auto const bytes = take(8);
    for (std::size_t i = 0; i < 8; ++i) out |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    return out;
  }
  [[nodiscard]] std::string_view words() {
    auto const bytes = take(number());
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
  }
  /// A count of items that take at least `each` bytes.
  [[nodiscard]] std::size_t count(std::size_t each) {
    auto const out = number();
    if (out > left_.size() / each) fail();
    return static_cast<std::size_t>(out);
  }
  [[noreturn]] static void fail() {
    throw config_error(
        "trireme::observe::unpack: these bytes are not a packed timeline; pass the bytes that pack() returned");
  }

 private:
  [[nodiscard]] std::span<std::byte const> take(std::uint64_t size) {
    if (size > left_.size()) fail();
    auto const out = left_.first(size);
    left_ = left_.subspan(out.size());
    return out;
  }
  std::span<std::byte const> left_;
};

}  // namespace detail

/// A timeline as bytes, to send to the rank that writes the trace. Times are only comparable on one machine.
[[nodiscard]] inline std::vector<std::byte> pack(timeline const& from) {
  auto const process = from.process();
  std::vector<std::string_view> names;
  auto const index = [&](std::string_view name) {
    auto const place = static_cast<std::uint64_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (place == names.size()) names.push_back(name);
    return place;
  };
  std::vector<std::byte> events;
  for (auto const& each : process.events) {
    for (auto const value :
         {index(each.name), index(each.category), each.begin_ns, each.end_ns, std::uint64_t{each.track}}) {
      detail::put_number(events, value);
    }
  }
  std::vector<std::byte> out;
  detail::put_number(out, static_cast<std::uint64_t>(process.rank));
  detail::put_number(out, process.tracks.size());
  for (auto const& track : process.tracks) detail::put_text(out, track);
  detail::put_number(out, names.size());
  for (auto const name : names) detail::put_text(out, name);
  detail::put_number(out, process.events.size());
  out.insert(out.end(), events.begin(), events.end());
  return out;
}

/// A rank's timeline that arrived as bytes; owns the data to which its process() points.
class unpacked_timeline {
 public:
  explicit unpacked_timeline(std::span<std::byte const> bytes) {
    detail::unpacker from(bytes);
    process_.rank = static_cast<int>(from.number());
    process_.name = text("rank ", process_.rank);
    for (auto tracks = from.count(8); tracks > 0; --tracks) process_.tracks.emplace_back(from.words());
    for (auto names = from.count(8); names > 0; --names) names_.emplace_back(from.words());
    for (auto events = from.count(40); events > 0; --events) {
      auto const name = from.number();
      auto const category = from.number();
      auto const begin = from.number();
      auto const end = from.number();
      auto const track = from.number();
      if (name >= names_.size() || category >= names_.size()) detail::unpacker::fail();
      events_.push_back({names_[static_cast<std::size_t>(name)], names_[static_cast<std::size_t>(category)], begin, end,
                         static_cast<std::uint32_t>(track)});
    }
  }
  unpacked_timeline(unpacked_timeline&&) noexcept = default;  // names and events keep their addresses

  [[nodiscard]] trace_process process() const {
    auto out = process_;
    out.events = events_;
    return out;
  }

 private:
  trace_process process_;
  std::deque<std::string> names_;
  std::vector<trace_event> events_;
};

/// Reads what pack() made. Throws config_error if it is something else.
[[nodiscard]] inline unpacked_timeline unpack(std::span<std::byte const> bytes) { return unpacked_timeline(bytes); }

}  // namespace trireme::observe
