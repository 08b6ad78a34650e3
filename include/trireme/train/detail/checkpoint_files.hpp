#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/sha256.hpp"
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
[[nodiscard]] inline std::string rank_file(std::string const& directory, int rank) {
  return text(directory, "/rank-", rank, ".safetensors");
}

/// The names in a directory, without "." and ".."; none if it cannot be read.
[[nodiscard]] inline std::vector<std::string> names_in(std::string const& directory) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> const open(::opendir(directory.c_str()), ::closedir);
  if (!open) return names;
  while (auto const* const entry = ::readdir(open.get())) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}
/// The checkpoints of a directory, oldest first.
[[nodiscard]] inline std::vector<std::string> steps_in(std::string const& directory) {
  auto names = names_in(directory);
  std::erase_if(names, [](std::string const& name) { return !name.starts_with(step_prefix); });
  return names;
}
[[nodiscard]] inline std::string newest(std::string const& directory) {
  auto const steps = steps_in(directory);
  if (steps.empty())
    throw io_error(directory,
                   "there is no checkpoint here; name the directory that save() was given (checkpoint::exists() tells "
                   "whether there is one), or do not load");
  return directory + "/" + steps.back();
}

/// Removes a directory and the files in it; what cannot be removed stays.
inline void remove_tree(std::string const& path, formats::file_system& files) {
  for (auto const& name : names_in(path)) files.unlink((path + "/" + name).c_str());
  files.remove_directory(path.c_str());
}

inline void make_directory(std::string const& path, formats::file_system& files) {
  if (files.make_directory(path.c_str(), 0777) == 0) return;
  struct ::stat status {};
  if (errno == EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  throw formats::detail::io_failure(path, "make the directory", errno);
}
/// Makes `directory` (with its parents) and an empty `temporary` in it.
inline void make_empty(std::string const& directory, std::string const& temporary, formats::file_system& files) {
  for (std::size_t at = directory.find('/', 1); at != std::string::npos; at = directory.find('/', at + 1)) {
    make_directory(directory.substr(0, at), files);
  }
  make_directory(directory, files);
  remove_tree(temporary, files);
  make_directory(temporary, files);
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

[[nodiscard]] inline file_record record_of(std::string const& path, formats::file_system& files) {
  formats::file const from(path, formats::file::access::read, files);
  file_record record{.bytes = from.size()};
  std::array<std::byte, 8> start{};
  if (record.bytes < start.size()) throw format_error(path, record.bytes, "the file ends within its first 8 bytes");
  from.read(0, start);
  std::vector<std::byte> header(formats::safetensors::header_bytes(start, record.bytes, path));
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

/// Two directories change their names in one step.
inline void exchange_names(std::string const& one, std::string const& other) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return;
  throw formats::detail::io_failure(other, "put the new checkpoint in its place", errno);
}

/// Completes a temporary directory with its manifest, gives it its name, and removes all but the one before it.
inline void publish(std::string const& directory, std::string const& temporary, std::string const& name,
                    formats::json::value const& manifest, formats::file_system& files) {
  auto const content = formats::json::to_string(manifest) + "\n";
  formats::atomic_write(temporary + "/manifest.json", content, files);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  formats::atomic_write(temporary + "/manifest.sha256", digest + "  manifest.json\n", files);
  formats::synchronise_directory(temporary, files);
  auto const target = directory + "/" + name;
  // A run that went back and came to the same step again: the two change places, so that one of them is always there.
  bool const again = std::ranges::binary_search(steps_in(directory), name);
  if (again) {
    exchange_names(temporary, target);
  } else {
    formats::rename(temporary, target, files);
  }
  formats::synchronise_directory(directory, files);
  if (again) remove_tree(temporary, files);
  auto const steps = steps_in(directory);
  for (std::size_t index = 0; index + 2 < steps.size(); ++index) remove_tree(directory + "/" + steps[index], files);
}

/// The manifest of a checkpoint, once its own hash is right.
[[nodiscard]] inline formats::json::value read_manifest(std::string const& path, formats::file_system& files) {
  auto const manifest_path = path + "/manifest.json";
  auto const content = formats::read_text(manifest_path, std::uint64_t{16} << 20, files);
  auto const expected = formats::read_text(path + "/manifest.sha256", 4096, files);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  if (expected != digest + "  manifest.json\n") {
    throw format_error(manifest_path, 0,
                       "its SHA-256 is not the one in manifest.sha256: the checkpoint is damaged; remove "
                       "its directory to go on from the one before it");
  }
  auto manifest = formats::json::parse(content, manifest_path);
  auto const version = manifest.at("format").as_int64();
  if (version != format_version) {
    throw format_error(manifest_path, 0, text("format ", version, "; this version reads format ", format_version));
  }
  return manifest;
}

}  // namespace trireme::checkpoint::detail
