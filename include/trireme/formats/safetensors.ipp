#pragma once

#include <algorithm>
#include <limits>

#include "trireme/core/plural.hpp"
#include "trireme/formats/detail/json_print.hpp"
#include "trireme/formats/detail/safetensors_header.inl"
#include "trireme/formats/safetensors.hpp"

namespace trireme::formats::safetensors {

namespace detail {

TRIREME_BODY header read_header(file const& from) {
  auto const size = from.size();
  std::vector<std::byte> start(static_cast<std::size_t>(std::min<std::uint64_t>(8, size)));
  from.read(0, start);
  start.resize(header_bytes(start, size, from.path()));
  from.read(8, std::span(start).subspan(8));
  return parse_header(start, size, from.path());
}

/// Sets the position of each entry's data, and returns the end of the last one.
TRIREME_BODY std::uint64_t assign_offsets(std::vector<entry>& entries, std::string const& path) {
  if (entries.size() > most_tensors) throw config_error(text(path, ": more than ", most_tensors, " tensors"));
  std::uint64_t end = 0;
  for (auto& each : entries) {
    auto const bytes = tensor_bytes(each.type, each.extents.extents());
    auto const fits = bytes && *bytes < std::uint64_t{1} << 62 && end < std::uint64_t{1} << 62;
    if (!fits || each.name.size() > most_name_bytes || each.name == "__metadata__") {
      throw config_error(text("trireme::formats::safetensors: ", path, ": no tensor can be named \"",
                              each.name.substr(0, 80), "\" with dtype ", each.type.name(), " and shape ",
                              to_string(each.extents)));
    }
    each.begin = end;
    each.bytes = *bytes;
    end += *bytes;
  }
  std::vector<std::uint32_t> scratch;
  if (auto const* twice = duplicate(entries, scratch)) {
    throw config_error(text("trireme::formats::safetensors: ", path, ": two tensors are named \"", twice->name, "\""));
  }
  return end;
}

/// The beginning of a file, with the length, padded with spaces to a multiple of eight.
TRIREME_BODY std::string print_header(std::vector<entry> const& entries, metadata const& notes,
                                      std::string const& path) {
  using json::detail::print_string;
  std::string out(8, '\0');
  out += '{';
  auto const next = [&] {
    if (out.back() != '{') out += ',';
  };
  if (!notes.empty()) {
    out += "\"__metadata__\":{";
    for (auto const& [key, content] : notes) {
      next();
      print_string(out, key);
      out += ':';
      print_string(out, content);
    }
    out += '}';
  }
  for (auto const& each : entries) {
    next();
    print_string(out, each.name);
    out += text(":{\"dtype\":\"", each.type.name(), "\",\"shape\":[");
    for (int axis = 0; axis < each.extents.rank(); ++axis) out += text(axis == 0 ? "" : ",", each.extents[axis]);
    out += text("],\"data_offsets\":[", each.begin, ",", each.begin + each.bytes, "]}");
  }
  out += '}';
  out.append((8 - out.size() % 8) % 8, ' ');
  auto const json = out.size() - 8;
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(json >> (8 * i) & 0xff);
  // The reader must accept the header: this finds duplicate keys, text that is not UTF-8, and a header that is too
  // large.
  auto const end = entries.empty() ? 0 : entries.back().begin + entries.back().bytes;
  try {
    static_cast<void>(parse_header(std::as_bytes(std::span(out)), out.size() + end, path));
  } catch (format_error const& error) {
    throw config_error(text("trireme::formats::safetensors: cannot write this header: ", error.what()));
  }
  return out;
}

}  // namespace detail

TRIREME_BODY reader::reader(std::string path, file_system& files)
    : reader(file(std::move(path), file::access::read, files)) {}
TRIREME_BODY reader::reader(directory const& in, std::string const& name)
    : reader(file(in, name, file::access::read)) {}
TRIREME_BODY reader::reader(file from) : file_(std::move(from)), header_(detail::read_header(file_)) {
  static_cast<void>(detail::duplicate(header_.entries, by_name_));
  by_key_.resize(header_.notes.size());
  for (std::size_t i = 0; i < by_key_.size(); ++i) by_key_[i] = static_cast<std::uint32_t>(i);
  std::sort(by_key_.begin(), by_key_.end(),
            [&](auto a, auto b) { return header_.notes[a].first < header_.notes[b].first; });
}

TRIREME_BODY std::string const* reader::note(std::string_view key) const noexcept {
  auto const found = std::lower_bound(by_key_.begin(), by_key_.end(), key, [&](auto index, std::string_view wanted) {
    return header_.notes[index].first < wanted;
  });
  if (found == by_key_.end() || header_.notes[*found].first != key) return nullptr;
  return &header_.notes[*found].second;
}

TRIREME_BODY entry const* reader::find(std::string_view name) const noexcept {
  auto const found = std::lower_bound(by_name_.begin(), by_name_.end(), name, [&](auto index, std::string_view wanted) {
    return header_.entries[index].name < wanted;
  });
  if (found == by_name_.end() || header_.entries[*found].name != name) return nullptr;
  return &header_.entries[*found];
}

TRIREME_BODY entry const& reader::at(std::string_view name) const {
  auto const* found = find(name);
  if (found == nullptr) {
    throw config_error(text("trireme::formats::safetensors: ", path(), " has no tensor named \"", name, "\""));
  }
  return *found;
}

TRIREME_BODY void reader::read(entry const& from, std::uint64_t first, std::span<std::byte> to) const {
  std::uint64_t bits = 0;
  bool const fits = !__builtin_mul_overflow(first, static_cast<std::uint64_t>(from.type.bits()), &bits) &&
                    bits % 8 == 0 && bits / 8 <= from.bytes && to.size() <= from.bytes - bits / 8;
  if (!fits) {
    throw config_error(text("trireme::formats::safetensors: ", path(), ": tensor \"", from.name, "\" has ", from.bytes,
                            " bytes; asked for ", to.size(), " from element ", first, " on"));
  }
  file_.read(header_.data_offset + from.begin + bits / 8, to);
}

TRIREME_BODY void reader::require_type(entry const& which, dtype wanted) const {
  if (which.type == stored_type(wanted)) return;
  throw config_error(text("trireme::formats::safetensors: ", path(), ": tensor \"", which.name, "\" is ",
                          which.type.name(), ", not ", name_of(wanted)));
}

TRIREME_BODY writer::writer(std::string const& path, std::vector<entry> entries, safetensors::metadata notes,
                            writer_options options)
    : writer(directory(directory_of(path), options.files == nullptr ? real_files() : *options.files), name_of(path),
             std::move(entries), std::move(notes), options) {}

TRIREME_BODY writer::writer(directory const& in, std::string const& name, std::vector<entry> entries,
                            safetensors::metadata notes, writer_options options)
    : path_(in.path_of(name)),
      entries_(std::move(entries)),
      options_(options),
      left_(detail::assign_offsets(entries_, path_)),
      header_(detail::print_header(entries_, notes, path_)),
      file_bytes_(header_.size() + left_),
      file_(in, name) {
  put(std::as_bytes(std::span(header_)));
  header_ = {};
}

TRIREME_BODY void writer::put(std::span<std::byte const> bytes) {
  file_.write(bytes);
  if (options_.digest != nullptr) options_.digest->update(bytes);
}

TRIREME_BODY void writer::write(std::span<std::byte const> bytes) {
  if (bytes.size() > left_) {
    throw config_error(text("trireme::formats::safetensors: ", path_, ": ", bytes.size() - left_,
                            " bytes more than its tensors have"));
  }
  put(bytes);
  left_ -= bytes.size();
}

TRIREME_BODY void writer::expect_all() const {
  if (left_ == 0) return;
  throw config_error(text("trireme::formats::safetensors: ", path_, ": ", how_many(left_, "byte"),
                          agreeing(left_, " has", " have"), " not been written"));
}

TRIREME_BODY void writer::finish() {
  expect_all();
  file_.publish();
}

TRIREME_BODY atomic_file writer::content() {
  expect_all();
  return std::move(file_);
}

}  // namespace trireme::formats::safetensors
