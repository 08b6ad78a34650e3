#include <algorithm>
#include <array>
#include <limits>

#include "trireme/core/plural.hpp"
#include "trireme/formats/detail/json_scanner.hpp"
#include "trireme/formats/safetensors.hpp"

namespace trireme::formats::safetensors {

TRIREME_BODY std::optional<stored_type> stored_type::named(std::string_view name) noexcept {
  static constexpr std::array known{
      stored_type("BOOL", 8),        stored_type("U8", 8),      stored_type("I8", 8),
      stored_type("U16", 16),        stored_type("I16", 16),    stored_type("U32", 32),
      stored_type("I32", 32),        stored_type("U64", 64),    stored_type("I64", 64),
      stored_type("F16", 16),        stored_type("BF16", 16),   stored_type("F32", 32),
      stored_type("F64", 64),        stored_type("C64", 64),    stored_type("F8_E5M2", 8),
      stored_type("F8_E4M3", 8),     stored_type("F8_E8M0", 8), stored_type("F8_E5M2FNUZ", 8),
      stored_type("F8_E4M3FNUZ", 8), stored_type("F6_E2M3", 6), stored_type("F6_E3M2", 6),
      stored_type("F4", 4)};
  for (auto const type : known) {
    if (type.name() == name) return type;
  }
  return std::nullopt;
}

namespace detail {

using trireme::formats::detail::json_scanner;

/// The bytes of a tensor; empty if the number does not fit into 64 bits or is not a whole number of bytes.
TRIREME_BODY std::optional<std::uint64_t> tensor_bytes(stored_type type,
                                                       std::span<std::int64_t const> extents) noexcept {
  std::uint64_t bits = static_cast<std::uint64_t>(type.bits());
  for (auto const extent : extents) {
    if (extent < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

/// Finds two entries with the same name; nullptr if there are none.
TRIREME_BODY entry const* duplicate(std::vector<entry> const& entries, std::vector<std::uint32_t>& by_name) {
  by_name.resize(entries.size());
  for (std::size_t i = 0; i < by_name.size(); ++i) by_name[i] = static_cast<std::uint32_t>(i);
  std::sort(by_name.begin(), by_name.end(), [&](auto a, auto b) { return entries[a].name < entries[b].name; });
  auto const twice = std::adjacent_find(by_name.begin(), by_name.end(),
                                        [&](auto a, auto b) { return entries[a].name == entries[b].name; });
  return twice == by_name.end() ? nullptr : &entries[twice[1]];
}

/// Parses the JSON of a header. The schema is fixed, so no tree is built and nothing is nested.
class header_parser {
 public:
  header_parser(std::string_view json, std::string const& path) : scan_(json, path, 8) {}

  [[nodiscard]] header parse() {
    for_each_member([&](std::string name, std::size_t at) {
      if (name == "__metadata__") {
        read_metadata(at);
      } else {
        read_entry(std::move(name), at);
      }
    });
    scan_.expect_end();
    if (auto const* twice = duplicate(out_.entries, by_name_)) {
      scan_.fail(0, text("two tensors are named \"", twice->name.substr(0, 80), "\""));
    }
    return std::move(out_);
  }

 private:
  /// Calls body(name, position of the name) at the value of each member of the object that comes next.
  template <class Body>
  void for_each_member(Body&& body) {
    scan_.expect('{');
    if (scan_.accept('}')) return;
    do {
      static_cast<void>(scan_.peek());
      auto const at = scan_.position();
      auto name = scan_.string(most_name_bytes);
      scan_.expect(':');
      body(std::move(name), at);
    } while (scan_.accept(','));
    scan_.expect('}');
  }

  void read_metadata(std::size_t at) {
    if (std::exchange(has_metadata_, true)) scan_.fail(at, "a second __metadata__");
    for_each_member([&](std::string name, std::size_t) {
      // A value is limited only by the size of the header: it is free text.
      out_.notes.emplace_back(std::move(name), scan_.string(most_header_bytes));
    });
    std::vector<std::string_view> names;
    for (auto const& note : out_.notes) names.push_back(note.first);
    std::sort(names.begin(), names.end());
    if (std::adjacent_find(names.begin(), names.end()) != names.end()) scan_.fail(at, "two metadata keys are equal");
  }

  void read_entry(std::string name, std::size_t at) {
    if (out_.entries.size() == most_tensors) scan_.fail(at, text("more than ", most_tensors, " tensors"));
    entry tensor{std::move(name), {}, {}, 0, 0};
    std::uint64_t end = 0;
    std::array<bool, 3> seen{};
    for_each_member([&](std::string const& key, std::size_t key_at) {
      auto const which = key == "dtype" ? 0U : key == "shape" ? 1U : key == "data_offsets" ? 2U : 3U;
      if (which == 3) scan_.fail(key_at, text("a tensor has no member \"", key.substr(0, 80), "\""));
      if (std::exchange(seen[which], true)) scan_.fail(key_at, text("a second member \"", key, "\""));
      if (which == 0) tensor.type = read_type();
      if (which == 1) tensor.extents = read_shape();
      if (which == 2) end = read_offsets(tensor);
    });
    for (std::size_t i = 0; i < 3; ++i) {
      constexpr std::array<std::string_view, 3> names{"dtype", "shape", "data_offsets"};
      if (!seen[i]) scan_.fail(at, text("a tensor without \"", names[i], "\""));
    }
    if (end < tensor.begin) scan_.fail(at, "data_offsets end before they begin");
    auto const bytes = tensor_bytes(tensor.type, tensor.extents.extents());
    if (!bytes) scan_.fail(at, "dtype times shape is too large, or not whole bytes");
    if (end - tensor.begin != *bytes) {
      scan_.fail(at,
                 text("data_offsets span ", how_many(end - tensor.begin, "byte"), ", dtype and shape need ", *bytes));
    }
    tensor.bytes = *bytes;
    out_.entries.push_back(std::move(tensor));
  }

  [[nodiscard]] stored_type read_type() {
    static_cast<void>(scan_.peek());
    auto const at = scan_.position();
    auto const type = stored_type::named(scan_.string(64));
    if (!type) scan_.fail(at, "an unknown dtype");
    return *type;
  }
  [[nodiscard]] shape read_shape() {
    shape out;
    scan_.expect('[');
    if (scan_.accept(']')) return out;
    do {
      static_cast<void>(scan_.peek());
      auto const at = scan_.position();
      auto const extent = scan_.unsigned_integer();
      if (extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        scan_.fail(at, "an extent of more than 63 bits");
      }
      if (out.rank() == shape::max_rank) scan_.fail(at, text("a shape of more than ", shape::max_rank, " extents"));
      if (!out.takes(static_cast<std::int64_t>(extent))) scan_.fail(at, "a shape that is too large");
      out.push_back(static_cast<std::int64_t>(extent));
    } while (scan_.accept(','));
    scan_.expect(']');
    return out;
  }
  [[nodiscard]] std::uint64_t read_offsets(entry& tensor) {
    scan_.expect('[');
    tensor.begin = scan_.unsigned_integer();
    scan_.expect(',');
    auto const end = scan_.unsigned_integer();
    scan_.expect(']');
    return end;
  }

  json_scanner scan_;
  header out_;
  std::vector<std::uint32_t> by_name_;
  bool has_metadata_ = false;
};

/// The tensors must cover the data exactly once, in order, up to the end of the file.
TRIREME_BODY void check_cover(header& head, std::uint64_t file_size, std::string const& path) {
  // Empty tensors have the same offset as the next one and must come first.
  std::stable_sort(head.entries.begin(), head.entries.end(), [](entry const& a, entry const& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.bytes < b.bytes;
  });
  std::uint64_t covered = 0;
  for (auto const& each : head.entries) {
    if (each.begin != covered) {
      throw format_error(path, head.data_offset,
                         text("tensor \"", each.name.substr(0, 80), "\" begins at ", each.begin,
                              each.begin < covered ? " and overlaps the one before, which ends at "
                                                   : " and leaves a gap after the one before, which ends at ",
                              covered));
    }
    covered += each.bytes;  // cannot overflow: begin + bytes was read as one 64-bit number
  }
  auto const data = file_size - head.data_offset;
  if (covered > data) {
    throw format_error(path, file_size,
                       text("the file ends, its tensors need ", how_many(covered - data, "byte"), " more"));
  }
  if (covered < data) {
    throw format_error(
        path, head.data_offset + covered,
        text(how_many(data - covered, "byte"), agreeing(data - covered, " follows", " follow"), " the last tensor"));
  }
}

}  // namespace detail

TRIREME_BODY std::uint64_t header_bytes(std::span<std::byte const> start, std::uint64_t file_size,
                                        std::string const& path) {
  if (file_size < 8 || start.size() < 8)
    throw format_error(path, file_size, "the file is shorter than the 8 bytes of the header's length");
  std::uint64_t json = 0;
  for (std::size_t i = 0; i < 8; ++i) json |= std::to_integer<std::uint64_t>(start[i]) << (8 * i);
  if (json > most_header_bytes)
    throw format_error(path, 0, text("a header of ", how_many(json, "byte"), ", more than 100 MB"));
  if (json > file_size - 8) {
    throw format_error(path, 0, text("a header of ", how_many(json, "byte"), " in a file of ", file_size));
  }
  return 8 + json;
}

TRIREME_BODY header parse_header(std::span<std::byte const> start, std::uint64_t file_size, std::string const& path) {
  auto const size = header_bytes(start, file_size, path);
  if (start.size() < size) throw format_error(path, start.size(), "the header is cut short");
  std::string_view const json(reinterpret_cast<char const*>(start.data()) + 8, size - 8);
  auto out = detail::header_parser(json, path).parse();
  out.data_offset = size;
  detail::check_cover(out, file_size, path);
  return out;
}

}  // namespace trireme::formats::safetensors
