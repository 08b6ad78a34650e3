#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
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
#include "trireme/formats/model_files.hpp"
#include "trireme/formats/safetensors.hpp"

namespace trireme::checkpoint::detail {

inline constexpr std::int64_t format_version = 2;
inline constexpr char const* temporary_name = ".saving";
inline constexpr std::string_view step_prefix = "step-";
inline constexpr std::string_view replaced_prefix =
    ".replaced-";  ///< of a step that is being replaced by another save of the same step
inline constexpr std::string_view model_files_file = "model_files.safetensors";

/// "step-0000000500": the names sort in the order of the steps.
[[nodiscard]] inline std::string step_name(std::int64_t step) {
  auto digits = text(step);
  return std::string(step_prefix) + std::string(10 - std::min<std::size_t>(10, digits.size()), '0') + digits;
}
/// The step in a name that step_name() made.
[[nodiscard]] inline std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  std::int64_t step = 0;
  auto const* const end = name.data() + name.size();
  auto const [at, problem] = std::from_chars(name.data() + step_prefix.size(), end, step);
  if (problem != std::errc{} || at != end || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}
[[nodiscard]] inline std::string rank_file(std::size_t rank) { return text("rank-", rank, ".safetensors"); }

/// The directory of the checkpoints. It must not be a link, so that nothing outside the named directory is removed.
[[nodiscard]] inline formats::directory open_home(std::string const& path, formats::file_system& files) {
  return formats::directory(path, files, formats::directory::links::refused);
}
[[nodiscard]] inline io_error no_checkpoint(std::string const& path) {
  return {path, "there is no checkpoint here; name the directory that a run has saved into", ENOENT};
}
/// The same for a directory that must exist and is read.
[[nodiscard]] inline formats::directory home_of_checkpoints(std::string const& path, formats::file_system& files) {
  try {
    return open_home(path, files);
  } catch (io_error const& problem) {
    if (problem.number() == ENOENT) throw no_checkpoint(path);
    throw;
  }
}
/// Whether a checkpoint has a file of this name. Other files in its directory are the user's.
[[nodiscard]] inline bool is_ours(std::string_view name) noexcept {
  constexpr std::string_view unfinished = ".partial", rank = "rank-", end = ".safetensors";  // see atomic_file
  if (name.ends_with(unfinished)) name.remove_suffix(unfinished.size());
  if (name == "manifest.json" || name == "manifest.sha256" || name == model_files_file) return true;
  if (!name.starts_with(rank) || !name.ends_with(end) || name.size() <= rank.size() + end.size()) return false;
  auto const digits = name.substr(rank.size(), name.size() - rank.size() - end.size());
  return digits.find_first_not_of("0123456789") == digits.npos;
}
/// The contents of a directory.
struct contents {
  bool is_directory = false;
  std::vector<std::string> ours;  ///< sorted
  bool others = false;
};
/// Empty if it is not a directory, is a link to one, or does not exist. Errors: io_error if it cannot be read now.
[[nodiscard]] inline contents contents_of(formats::directory const& home, std::string const& name) {
  contents out;
  try {
    for (auto& each : home.below(name).names())
      is_ours(each) ? out.ours.push_back(std::move(each)) : void(out.others = true);
    out.is_directory = true;
  } catch (io_error const& problem) {
    if (problem.number() != ENOENT && problem.number() != ENOTDIR && problem.number() != ELOOP) throw;
  }
  return out;
}

/// The steps of a directory's checkpoints, whole or not, oldest first. Other names are ignored, and so is a directory
/// that holds only the user's files.
[[nodiscard]] inline std::vector<std::int64_t> steps_in(formats::directory const& home) {
  std::vector<std::int64_t> steps;
  for (auto const& name : home.names()) {
    auto const replaced = name.starts_with(replaced_prefix);
    auto const step = step_of(replaced ? std::string_view(name).substr(replaced_prefix.size()) : name);
    if (!step) continue;
    try {
      auto const has = contents_of(home, name);
      if ((has.others && has.ours.empty()) || (replaced && !has.is_directory)) continue;
    } catch (io_error const&) {  // reported when the checkpoint is read
    }
    steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

/// Removes a checkpoint's files, and its directory if it is then empty; if the name is not a directory, removes the
/// name. What cannot be removed stays.
inline void remove_ours(formats::directory const& home, std::string const& name) {
  try {
    auto const has = contents_of(home, name);
    if (!has.is_directory) return void(home.remove(name));
    auto const in = home.below(name);
    for (auto const& each : has.ours) in.files().unlink(in.descriptor(), each.c_str());
  } catch (io_error const&) {  // the next save tries again
    return;
  }
  home.files().remove_directory(home.descriptor(), name.c_str());
}

/// Renames a checkpoint: the directory if it holds nothing else, else file by file. So the user's files stay where they
/// are, in `from` and in `to`.
/// @param arrives  whether `to` becomes a valid checkpoint when the last file arrives; else `from` stops being one when
///                 the first file leaves.
inline void rename_ours(formats::directory const& home, std::string const& from, std::string const& to, bool arrives) {
  auto const has = contents_of(home, from);
  if (!has.is_directory || (!has.others && !home.has(to))) return home.rename(from, to);
  auto const source = home.below(from), target = home.make(to);
  auto const move = [&](bool hash) {
    for (auto const& each : has.ours) {
      if (hash == (each == "manifest.sha256")) source.move(each, target);
    }
    target.synchronise(), source.synchronise();
  };
  move(!arrives), move(arrives);
  home.files().remove_directory(home.descriptor(), from.c_str());  // fails if something is left in it
}

[[nodiscard]] inline std::string sha256_text(std::span<std::byte const> bytes) {
  return sha256().update(bytes).hexadecimal();
}

/// What the manifest records about a rank's file.
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
  auto const digest = sha256_text(header);
  std::copy(digest.begin(), digest.end(), record.header_sha256.begin());
  return record;
}

/// Collective. Every rank's record, in rank order.
template <class Comm>
std::vector<file_record> gather(Comm& world, file_record const& own) {
  constexpr auto words = sizeof(file_record) / sizeof(std::uint64_t);
  std::vector<file_record> records(static_cast<std::size_t>(world.size()));
  std::vector<std::uint64_t> table(words * records.size());
  std::memcpy(table.data() + words * static_cast<std::size_t>(world.rank()), &own, sizeof own);
  world.all_gather(tensor_view<std::uint64_t>(table));
  std::memcpy(static_cast<void*>(records.data()), table.data(), records.size() * sizeof(file_record));
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

/// Writes the files that came with a model as one file. @returns its record for the manifest.
[[nodiscard]] inline formats::json::value write_model_files(formats::directory const& in,
                                                            std::vector<formats::model_file> const& all) {
  std::vector<formats::safetensors::entry> entries;
  for (auto const& each : all)
    entries.push_back({each.name, dtype::u8, shape{static_cast<std::int64_t>(each.content.size())}});
  sha256 digest;
  formats::safetensors::writer to(in, std::string(model_files_file), std::move(entries), {}, {.digest = &digest});
  for (auto const& each : all) to.write(std::as_bytes(std::span(each.content)));
  to.finish();
  return formats::json::value::make({{"bytes", to.file_bytes()}, {"sha256", digest.hexadecimal()}});
}
/// Reads those files; empty if the checkpoint was saved without them.
[[nodiscard]] inline std::vector<formats::model_file> read_model_files(formats::directory const& in,
                                                                       formats::json::value const& manifest) {
  std::vector<formats::model_file> out;
  auto const* const said = manifest.find("model_files");
  if (said == nullptr) return out;
  std::string const name(model_files_file);
  auto const content = formats::read_text(in, name, said->at("bytes").as_uint64());
  if (sha256_text(std::as_bytes(std::span(content))) != said->at("sha256").as_string())
    throw format_error(in.path_of(name), 0, "its SHA-256 is not the one in manifest.json");
  formats::safetensors::reader const from(in, name);
  for (auto const& each : from.entries()) {
    std::string bytes(static_cast<std::size_t>(each.bytes), '\0');
    from.read(each, 0, std::as_writable_bytes(std::span(bytes)));
    out.push_back({each.name, std::move(bytes)});
  }
  return out;
}

/// Reads the manifest of a checkpoint after checking its hash.
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

/// The run that a manifest belongs to. Older versions wrote no identity: then what all checkpoints of the run have in
/// common is used instead.
[[nodiscard]] inline std::string identity_in(formats::json::value const& manifest) {
  auto const* const said = manifest.find("identity");
  if (said == nullptr) {
    auto const common =
        formats::json::to_string(manifest.at("run")) + text(manifest.at("progress").at("seed").as_uint64());
    return sha256_text(std::as_bytes(std::span(common))).substr(0, 32);
  }
  auto const& digits = said->as_string();
  if (digits.size() != 32 || digits.find_first_not_of("0123456789abcdef") != digits.npos) {
    said->fail("not a run's identity, which has 32 hexadecimal digits");
  }
  return digits;
}

/// Whether a file that cannot be read counts as damaged. Otherwise it may be whole and is unreadable for now: no
/// permission, or too many open files.
[[nodiscard]] inline bool means_damage(io_error const& problem) noexcept {
  auto const number = problem.number();
  return number == 0 || number == ENOENT || number == ENOTDIR || number == EISDIR || number == ELOOP ||
         number == ENXIO || number == EIO || number == EBADMSG || number == EUCLEAN;
}
/// Runs f. @returns why the checkpoint that it reads is damaged, or an empty string if it is whole. Other exceptions
/// pass.
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

/// If a save was killed while it replaced a checkpoint of the same step, one of the two is whole; it gets the step's
/// name. Errors   io_error if the earlier one cannot be renamed back.
inline void finish_replacing(formats::directory const& home) {
  for (auto const& name : home.names()) {
    if (!name.starts_with(replaced_prefix)) continue;
    auto const step = name.substr(replaced_prefix.size());
    if (!step_of(step)) continue;
    bool whole = false;
    try {
      whole = home.has(step) && damage_in([&] { static_cast<void>(read_manifest(home.below(step))); }).empty();
    } catch (config_error const&) {  // of another version, not of this save
    }
    whole ? remove_ours(home, name) : rename_ours(home, name, step, true);
    home.synchronise();
  }
}

/// "damaged-step-0000000500", then with ".2" and so on: a name that load() ignores.
[[nodiscard]] inline std::string kept_name(std::string const& name, int number) {
  return "damaged-" + name + (number > 1 ? text('.', number) : std::string());
}
/// Renames a damaged checkpoint so. @returns its number; 0 if it cannot be renamed.
inline int set_aside(formats::directory const& home, std::string const& name) {
  try {
    int number = 1;
    while (home.has(kept_name(name, number))) ++number;
    rename_ours(home, name, kept_name(name, number), false);
    home.synchronise();
    return number;
  } catch (io_error const&) {  // a read-only file system, say: reading goes on
    return 0;
  }
}

}  // namespace trireme::checkpoint::detail
