#pragma once

#include <algorithm>
#include <bit>
#include <optional>

#include "trireme/formats/crc32c.hpp"
#include "trireme/formats/detail/protobuf.hpp"
#include "trireme/formats/tensorboard.hpp"

namespace trireme::formats::tensorboard {

namespace detail {

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
namespace field {
inline constexpr std::uint32_t event_wall_time = 1;
inline constexpr std::uint32_t event_step = 2;
inline constexpr std::uint32_t event_file_version = 3;
inline constexpr std::uint32_t event_summary = 5;
inline constexpr std::uint32_t event_session_log = 7;
inline constexpr std::uint32_t summary_value = 1;
inline constexpr std::uint32_t value_tag = 1;
inline constexpr std::uint32_t value_simple_value = 2;
inline constexpr std::uint32_t session_status = 1;
}  // namespace field
inline constexpr std::uint64_t session_start = 1;

using namespace protobuf;  // NOLINT(google-build-using-namespace)

inline std::optional<scalar> decode_value(std::span<std::byte const> content, std::string const& path,
                                          std::uint64_t offset) {
  message_reader reader(content, path, offset);
  scalar out;
  bool has_number = false;
  for (message_reader::message_field it; reader.next(it);) {
    if (is(reader, it, field::value_tag, wire::bytes)) out.tag = text_of(it.content);
    if (is(reader, it, field::value_simple_value, wire::fixed32)) {
      out.value = std::bit_cast<float>(static_cast<std::uint32_t>(it.value));
      has_number = true;
    }
  }
  return has_number ? std::optional(out) : std::nullopt;
}

/// The masked checksum in records.
inline std::uint32_t masked_crc(std::span<std::byte const> content) noexcept {
  return std::rotr(crc32c(content), 15) + 0xa282ead8U;
}

inline bool only_zeros(std::span<std::byte const> content) noexcept {
  return std::all_of(content.begin(), content.end(), [](auto byte) { return byte == std::byte{}; });
}

}  // namespace detail

inline std::string encode(event const& what) {
  using namespace detail;
  std::string out;
  append_key(out, field::event_wall_time, wire::fixed64);
  append_little_endian(out, std::bit_cast<std::uint64_t>(what.wall_time));
  if (what.step != 0) {
    append_key(out, field::event_step, wire::varint);
    append_varint(out, static_cast<std::uint64_t>(what.step));
  }
  if (!what.file_version.empty()) append_bytes(out, field::event_file_version, what.file_version);
  if (!what.scalars.empty()) {
    std::string summary;
    for (auto const& each : what.scalars) {
      std::string value;
      append_bytes(value, field::value_tag, each.tag);
      append_key(value, field::value_simple_value, wire::fixed32);
      append_little_endian(value, std::bit_cast<std::uint32_t>(each.value));
      append_bytes(summary, field::summary_value, value);
    }
    append_bytes(out, field::event_summary, summary);
  }
  if (what.restart) {
    std::string session;
    append_key(session, field::session_status, wire::varint);
    append_varint(session, session_start);
    append_bytes(out, field::event_session_log, session);
  }
  return out;
}

inline event decode(std::span<std::byte const> bytes, std::string const& path, std::uint64_t offset) {
  using namespace detail;
  message_reader reader(bytes, path, offset);
  event out;
  for (message_reader::message_field it; reader.next(it);) {
    if (is(reader, it, field::event_wall_time, wire::fixed64)) out.wall_time = std::bit_cast<double>(it.value);
    if (is(reader, it, field::event_step, wire::varint)) out.step = static_cast<std::int64_t>(it.value);
    if (is(reader, it, field::event_file_version, wire::bytes)) out.file_version = text_of(it.content);
    if (is(reader, it, field::event_summary, wire::bytes)) {
      message_reader summary(it.content, path, it.offset);
      for (message_reader::message_field value; summary.next(value);) {
        if (!is(summary, value, field::summary_value, wire::bytes)) continue;
        if (auto number = decode_value(value.content, path, value.offset)) out.scalars.push_back(std::move(*number));
      }
    }
    if (is(reader, it, field::event_session_log, wire::bytes)) {
      message_reader session(it.content, path, it.offset);
      for (message_reader::message_field status; session.next(status);) {
        if (is(session, status, field::session_status, wire::varint)) out.restart = status.value == session_start;
      }
    }
  }
  return out;
}

inline std::string frame(std::string_view content) {
  std::string out;
  out.reserve(content.size() + 16);
  detail::append_little_endian(out, std::uint64_t{content.size()});
  detail::append_little_endian(out, detail::masked_crc(std::as_bytes(std::span(out).first(8))));
  out += content;
  detail::append_little_endian(out, detail::masked_crc(std::as_bytes(std::span(content))));
  return out;
}

inline record_list split_records(std::span<std::byte const> bytes) {
  using namespace detail;
  record_list out;
  while (!bytes.empty()) {
    // A crash leaves a record that ends beyond the file, or whose last bytes were not written: zeros up to the end.
    out.tail = tail::torn;
    if (bytes.size() < 12) break;
    auto const length = little_endian<std::uint64_t>(bytes);
    if (little_endian<std::uint32_t>(bytes.subspan(8)) != masked_crc(bytes.first(8))) {
      out.tail = only_zeros(bytes.subspan(12)) ? tail::torn : tail::corrupt;
      break;
    }
    if (length > bytes.size() - 12 || bytes.size() - 12 - length < 4) break;
    auto const content = bytes.subspan(12, static_cast<std::size_t>(length));
    auto const rest = bytes.subspan(12 + content.size() + 4);
    auto const good = little_endian<std::uint32_t>(bytes.subspan(12 + content.size())) == masked_crc(content);
    if (!good) {
      out.tail = only_zeros(rest) ? tail::torn : tail::corrupt;
      break;
    }
    out.tail = tail::whole;
    out.records.push_back(content);
    out.valid_bytes += 16 + content.size();
    bytes = rest;
  }
  return out;
}

inline std::vector<event> parse_events(std::span<std::byte const> bytes, std::string const& path) {
  auto const list = split_records(bytes);
  if (list.tail == tail::corrupt) throw format_error(path, list.valid_bytes, "a record with a wrong checksum");
  std::vector<event> out;
  for (auto const record : list.records) {
    out.push_back(decode(record, path, static_cast<std::uint64_t>(record.data() - bytes.data())));
  }
  return out;
}

inline std::vector<event> read_events(std::string const& path) { return parse_events(read_file(path), path); }

}  // namespace trireme::formats::tensorboard
