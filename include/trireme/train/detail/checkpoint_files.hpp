#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/safetensors.hpp"

namespace trireme::checkpoint::detail {

inline constexpr std::int64_t format_version = 2;
inline constexpr char const* temporary_name = ".saving";
inline constexpr std::string_view step_prefix = "step-";

/// "step-0000000500": names sort as steps do.
[[nodiscard]] inline std::string step_name(std::int64_t step) {
  auto digits = text(step);
  return std::string(step_prefix) + std::string(10 - std::min<std::size_t>(10, digits.size()), '0') + digits;
}
/// The step that step_name() has made this name of.
[[nodiscard]] inline std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  std::int64_t step = 0;
  auto const* const end = name.data() + name.size();
  auto const [at, problem] = std::from_chars(name.data() + step_prefix.size(), end, step);
  if (problem != std::errc{} || at != end || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}
[[nodiscard]] inline std::string rank_file(std::size_t rank) { return text("rank-", rank, ".safetensors"); }

/// The directory that checkpoints lie in. It must not be a link: nothing is removed but where it was named.
[[nodiscard]] inline formats::directory open_home(std::string const& path, formats::file_system& files) {
  return formats::directory(path, files, formats::directory::links::refused);
}
[[nodiscard]] inline io_error no_checkpoint(std::string const& path) {
  return {path, "there is no checkpoint here; name the directory that a run has saved into", ENOENT};
}
/// The same for a directory that is there to be read.
[[nodiscard]] inline formats::directory home_of_checkpoints(std::string const& path, formats::file_system& files) {
  try {
    return open_home(path, files);
  } catch (io_error const& problem) {
    if (problem.number() == ENOENT) throw no_checkpoint(path);
    throw;
  }
}
/// The steps of a directory's checkpoints, whole or not, oldest first. Other names are not looked at.
[[nodiscard]] inline std::vector<std::int64_t> steps_in(formats::directory const& home) {
  std::vector<std::int64_t> steps;
  for (auto const& name : home.names()) {
    if (auto const step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

[[nodiscard]] inline std::string sha256_text(std::span<std::byte const> bytes) {
  return sha256().update(bytes).hexadecimal();
}

/// What the manifest knows of a rank's file.
struct file_record {
  std::array<char, 64> header_sha256{};
  std::uint64_t bytes = 0;
};
static_assert(sizeof(file_record) == 72);

[[nodiscard]] inline file_record record_of(formats::directory const& in, std::string const& name) {
  formats::file const from(in, name, formats::file::access::read);
  file_record record{.bytes = from.size()};
  std::array<std::byte, 8> start{};
  if (record.bytes < start.size())
    throw format_error(from.path(), record.bytes, "the file ends within its first 8 bytes");
  from.read(0, start);
  std::vector<std::byte> header(formats::safetensors::header_bytes(start, record.bytes, from.path()));
  from.read(0, header);
  std::ranges::copy(sha256_text(header), record.header_sha256.begin());
  return record;
}

/// Collective. Every rank's record, in rank order.
template <class Comm>
std::vector<file_record> gather(Comm& world, file_record const& own) {
  std::vector<file_record> records(static_cast<std::size_t>(world.size()));
  records[static_cast<std::size_t>(world.rank())] = own;
  world.all_gather(tensor_view<std::uint8_t>(reinterpret_cast<std::uint8_t*>(records.data()),
                                             shape{static_cast<std::int64_t>(records.size() * sizeof(file_record))}));
  return records;
}
[[nodiscard]] inline formats::json::value to_json(std::vector<file_record> const& records) {
  formats::json::array all;
  for (auto const& each : records) {
    all.push_back(formats::json::value::make(
        {{"bytes", each.bytes},
         {"header_sha256", std::string_view(each.header_sha256.data(), each.header_sha256.size())}}));
  }
  return all;
}

/// The manifest of a checkpoint, once its own hash is right.
[[nodiscard]] inline formats::json::value read_manifest(formats::directory const& in) {
  auto const path = in.path_of("manifest.json");
  auto const content = formats::read_text(in, "manifest.json", std::uint64_t{16} << 20);
  auto const expected = formats::read_text(in, "manifest.sha256", 4096);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  if (expected != digest + "  manifest.json\n") {
    throw format_error(path, 0, "its SHA-256 is not the one in manifest.sha256");
  }
  auto manifest = formats::json::parse(content, path);
  auto const version = manifest.at("format").as_int64();
  if (version != format_version) {
    throw config_error(text("trireme::checkpoint: ", path, " is of format ", version,
                            ", but this version reads format ", format_version,
                            "; go on with the version that wrote it"));
  }
  return manifest;
}

/// Which run a manifest belongs to. One that does not say so was written by a version that knew no identities: what all
/// checkpoints of its run have in common stands for it.
[[nodiscard]] inline std::string identity_in(formats::json::value const& manifest) {
  auto const* const said = manifest.find("identity");
  if (said == nullptr) {
    auto const common =
        formats::json::to_string(manifest.at("run")) + text(manifest.at("progress").at("seed").as_uint64());
    return sha256_text(std::as_bytes(std::span(common))).substr(0, 32);
  }
  auto const& digits = said->as_string();
  if (digits.size() != 32 || digits.find_first_not_of("0123456789abcdef") != digits.npos) {
    said->fail("this is no identity of a run: 32 hexadecimal digits");
  }
  return digits;
}

/// Whether a file that cannot be read is a damaged one. Otherwise it may be whole, and is out of reach for now: no
/// permission, or too many open files.
[[nodiscard]] inline bool means_damage(io_error const& problem) noexcept {
  auto const number = problem.number();
  return number == 0 || number == ENOENT || number == ENOTDIR || number == EISDIR || number == ELOOP ||
         number == ENXIO || number == EIO || number == EBADMSG || number == EUCLEAN;
}
/// Runs f. @returns why the checkpoint that it reads is damaged, or nothing if it is whole; what else it throws passes.
template <class F>
std::string damage_in(F&& f) {
  try {
    f();
    return {};
  } catch (format_error const& problem) {
    return problem.what();
  } catch (io_error const& problem) {
    if (!means_damage(problem)) throw;
    return problem.what();
  }
}

/// "damaged-step-0000000500", or ".2" and so on behind it: a name under which nothing is looked for.
[[nodiscard]] inline std::string aside_name(std::string const& name, int number) {
  return "damaged-" + name + (number > 1 ? text('.', number) : std::string());
}
/// Gives a damaged checkpoint such a name. @returns its number; 0 if it has to stay where it is.
inline int set_aside(formats::directory const& home, std::string const& name) {
  try {
    int number = 1;
    while (home.has(aside_name(name, number))) ++number;
    home.rename(name, aside_name(name, number));
    home.synchronise();
    return number;
  } catch (io_error const&) {  // a file system that cannot be written, say: reading goes on
    return 0;
  }
}

}  // namespace trireme::checkpoint::detail
