// test-mutations: 20000
// A checkpoint in the hands of somebody who can compute hashes. An input is a byte of flags, the manifest, and the
// header of each rank's file, parted by zero bytes. By the flags, sizes and hashes are made right before it is read:
//   1 the manifest's own hash   2 sizes and hashes of files in it   4 places, data and hashes of pieces
//
// Besides not crashing: what is refused is refused with an error of trireme's, and the checkpoint before it is read
// instead, with its own numbers; what is accepted has places in the data that can be counted on from.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../support/memory_files.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/train/checkpoint.hpp"

namespace {

using namespace trireme;
namespace json = formats::json;
namespace st = formats::safetensors;

checkpoint::run_description const run{"a", "b", "c", "d"};
constexpr std::int64_t elements = 12 + 5;

/// What this rank takes: some columns of a table, and a vector.
std::vector<state_shard> parts_of(std::vector<float>& numbers) {
  return {{"value/table", shard_of({"table", {3, 4}}, 1, {1, 2}), 0, tensor_view<float>(numbers.data(), shape{6})},
          {"value/vector", parameter_info{"vector", {5}}, 2, tensor_view<float>(numbers.data() + 6, shape{3})}};
}
/// What a rank that has all of it saves.
std::vector<state_shard> whole_of(std::vector<float>& numbers) {
  return {{"value/table", parameter_info{"table", {3, 4}}, 0, tensor_view<float>(numbers.data(), shape{12})},
          {"value/vector", parameter_info{"vector", {5}}, 0, tensor_view<float>(numbers.data() + 12, shape{5})}};
}
std::vector<float> const older{1, 2, 5, 6, 9, 10, 14, 15, 16};  // of 0, 1, 2 ..., the numbers that parts_of takes

std::string_view text_of(std::vector<std::byte> const& bytes) {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}
std::vector<std::byte> some_bytes(std::uint64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

/// The bytes of a tensor; 0 if they are too many to count, or not whole.
std::uint64_t bytes_of(st::stored_type type, std::span<std::int64_t const> extents) {
  auto bits = static_cast<std::uint64_t>(type.bits());
  for (auto const extent : extents) {
    if (extent < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits)) return 0;
  }
  return bits % 8 == 0 ? bits / 8 : 0;
}

/// A rank's file of this header, with pieces laid out anew and their hashes made right if `seals`.
std::string file_of(std::string_view header, bool seals) {
  std::string text(header);
  std::uint64_t end = 0;
  try {
    auto const given = json::parse(header, "header");
    json::object entries;
    json::object notes;
    if (auto const* const all = given.find("__metadata__")) notes = all->as_object();
    std::erase_if(notes, [&](auto const& note) { return seals && note.key.starts_with("sha256:"); });
    for (auto const& [name, entry] : given.as_object()) {
      if (name == "__metadata__") continue;
      entries.push_back({name, entry});
      shape extents;
      for (auto const& extent : entry.at("shape").as_array()) extents.push_back(extent.as_int64());
      auto const type = st::stored_type::named(entry.at("dtype").as_string());
      if (!type || extents.size() > 1 << 12) continue;
      auto const bytes = bytes_of(*type, extents.extents());
      if (seals) {
        entries.back().content.set("data_offsets", json::array{end, end + bytes});
        notes.push_back({"sha256:" + name, checkpoint::detail::sha256_text(some_bytes(bytes))});
      }
      end += bytes;
    }
    if (seals) {
      entries.insert(entries.begin(), {"__metadata__", json::value(std::move(notes))});
      text = json::to_string(json::value(std::move(entries)));
    }
  } catch (error const&) {  // then it is read as it is
  }
  std::string out;
  for (int byte = 0; byte < 8; ++byte) out += static_cast<char>(text.size() >> (8 * byte) & 0xff);
  out += text;
  // Every piece has the same bytes from its start on, so that one hash is that of all pieces of a size.
  std::string data;
  try {
    std::vector<std::byte> const start(reinterpret_cast<std::byte const*>(out.data()),
                                       reinterpret_cast<std::byte const*>(out.data() + out.size()));
    for (auto const& each : st::parse_header(start, out.size() + end, "header").entries)
      data += text_of(some_bytes(each.bytes));
  } catch (error const&) {
    data.assign(static_cast<std::size_t>(end), '\0');
  }
  return out + data;
}

/// The manifest with the sizes and hashes of the files that are there.
std::string manifest_of(std::string_view given, std::vector<std::string> const& files) {
  try {
    auto manifest = json::parse(given, "manifest");
    auto records = manifest.at("files").as_array();
    for (std::size_t rank = 0; rank < std::min(records.size(), files.size()); ++rank) {
      auto const bytes = std::as_bytes(std::span(files[rank]));
      records[rank].set("bytes", files[rank].size());
      records[rank].set("header_sha256", checkpoint::detail::sha256_text(
                                             bytes.first(st::header_bytes(bytes, files[rank].size(), "header"))));
    }
    manifest.set("files", records);
    return json::to_string(manifest);
  } catch (error const&) {
    return std::string(given);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  if (size == 0) return 0;
  auto const flags = data[0];
  std::string_view rest(reinterpret_cast<char const*>(data) + 1, size - 1);
  auto const next = [&] {
    auto const zero = std::min(rest.find('\0'), rest.size());
    auto const part = rest.substr(0, zero);
    rest.remove_prefix(std::min(zero + 1, rest.size()));
    return part;
  };

  memory_files files;
  comm::self_world world;
  checkpoint::identity own;
  std::vector<float> numbers(static_cast<std::size_t>(elements));
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  checkpoint::save(world, "run", own, run, {.step = 1}, whole_of(numbers), files);

  std::string manifest(next());
  std::vector<std::string> ranks;
  while (!rest.empty() && ranks.size() < 4) ranks.push_back(file_of(next(), (flags & 4) != 0));
  if ((flags & 2) != 0) manifest = manifest_of(manifest, ranks);
  std::string const at = "run/step-0000000002";
  files.add_directory(at);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) files[text(at, "/rank-", rank, ".safetensors")] = ranks[rank];
  files[at + "/manifest.json"] = manifest;
  auto const sealed = (flags & 1) != 0 ? manifest : std::string();
  files[at + "/manifest.sha256"] =
      checkpoint::detail::sha256_text(std::as_bytes(std::span(sealed))) + "  manifest.json\n";

  std::vector<float> taken(older.size(), -1);
  try {
    auto const found = checkpoint::load(world, "run", own, run, parts_of(taken), elements, files);
    if (found.at.step == 1) {
      if (taken != older || found.damaged.size() != 1) std::abort();
    } else {
      auto const counted = found.at.step == 2 && found.damaged.empty() && found.at.updates <= 2;
      if (!counted || found.at.updates < 0 || found.at.position < 0) std::abort();
      if (std::ranges::count(taken, -1.0F) > 0) std::abort();
    }
  } catch (config_error const&) {  // of another run, or of another version: nothing to go back from
  }
  return 0;
}
