#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/token_shards.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "utf8.hpp"

/// What a run stores about its text, in text.json of its directory: state of the run like the checkpoint. Of token
/// shards `bytes` and `held_out_begin` count tokens, of conversations samples.
struct text_record {
  std::string path;
  std::int64_t bytes = 0;
  std::string sha256;
  std::int64_t held_out_begin = 0;  ///< the first byte that is never trained on
  std::string stamp;                ///< of the file that was read: its identity, and its last change
  std::string tokenizer{};          ///< the SHA-256 of its file; empty if tokens are bytes

  [[nodiscard]] bool same_text(text_record const& other) const {
    return bytes == other.bytes && sha256 == other.sha256;
  }

  void write(std::string const& file) const {
    namespace json = trireme::formats::json;
    trireme::formats::atomic_write(file, json::to_string(json::value::make({{"path", path},
                                                                            {"bytes", bytes},
                                                                            {"sha256", sha256},
                                                                            {"held_out_begin", held_out_begin},
                                                                            {"stamp", stamp},
                                                                            {"tokenizer", tokenizer}}),
                                                         2) +
                                             "\n");
  }
  /// Throws io_error or format_error.
  static text_record read(std::string const& file) {
    auto const saved = trireme::formats::json::parse(trireme::formats::read_text(file, 1 << 20), file);
    text_record out{saved.at("path").as_string(), saved.at("bytes").as_int64(), saved.at("sha256").as_string(),
                    saved.at("held_out_begin").as_int64(), saved.at("stamp").as_string()};
    if (auto const* const tokenizer = saved.find("tokenizer")) out.tokenizer = tokenizer->as_string();
    if (out.held_out_begin < 1 || out.held_out_begin >= out.bytes) {
      saved.at("held_out_begin").fail("the split is not inside the text");
    }
    return out;
  }
};

namespace detail {

/// Equal stamps mean equal contents: a program can set a file's modification time back, but not the time of its last
/// change.
inline std::string stamp_of(struct ::stat const& file) {
  auto const nanoseconds = [](::timespec const& at) { return trireme::text(at.tv_sec, ".", at.tv_nsec); };
  return trireme::text("device ", file.st_dev, ", inode ", file.st_ino, ", ", file.st_size, " bytes, modified ",
                       nanoseconds(file.st_mtim), ", changed ", nanoseconds(file.st_ctim));
}

/// Prints progress now and then if reading a text takes long.
class reading_progress {
 public:
  reading_progress(std::string const& path, std::uint64_t bytes, bool speaks)
      : path_(path), bytes_(bytes), speaks_(speaks) {}
  void update(std::uint64_t done) {
    auto const now = clock::now();
    if (!speaks_ || now - last_ < std::chrono::seconds(2)) return;
    last_ = now;
    fmt::print(stderr, "reading {}: {:.0f} % of {:.2f} GB\n", path_,
               100 * static_cast<double>(done) / static_cast<double>(bytes_), static_cast<double>(bytes_) / 1e9);
  }

 private:
  using clock = std::chrono::steady_clock;
  std::string path_;
  std::uint64_t bytes_;
  bool speaks_;
  clock::time_point last_ = clock::now();
};

/// What any run in a folder of runs stores about the file with this stamp.
inline std::optional<text_record> remembered(std::string const& runs, std::string const& stamp) {
  auto* const folder = ::opendir(runs.c_str());
  if (folder == nullptr) return std::nullopt;
  std::optional<text_record> found;
  while (auto const* entry = ::readdir(folder)) {
    auto const file = runs + "/" + entry->d_name + "/text.json";
    if (::access(file.c_str(), R_OK) != 0) continue;
    try {
      auto one = text_record::read(file);
      if (one.stamp == stamp) found = std::move(one);
    } catch (trireme::error const&) {  // a damaged run is skipped
    }
    if (found) break;
  }
  ::closedir(folder);
  return found;
}

}  // namespace detail

/// Reads a text to identify it, and to check that it is UTF-8. A file that some run in `runs` has read, and that has
/// not changed since, is not read again. The split is not decided here.
///
/// Throws io_error or format_error.
inline text_record examine_text(std::string const& path, std::string const& runs, bool speaks) {
  // Rejects anything but a regular file before it is opened, since opening a pipe would wait.
  static_cast<void>(trireme::data::token_file{.path = path, .context = 1}.open_held_out());
  trireme::formats::file const from(path, trireme::formats::file::access::read);
  auto const now = [&] {
    struct ::stat about {};
    if (::stat(path.c_str(), &about) != 0) throw trireme::formats::detail::io_failure(path, "examine", errno);
    return about;
  };
  ::timespec start{};
  ::clock_gettime(CLOCK_REALTIME, &start);
  auto const before = now();
  text_record out{path, static_cast<std::int64_t>(before.st_size), {}, 0, detail::stamp_of(before)};
  if (auto const known = detail::remembered(runs, out.stamp)) {
    out.sha256 = known->sha256;
    return out;
  }
  trireme::sha256 hash;
  utf8_check utf8(path);
  std::vector<std::byte> part(std::size_t{1} << 20);
  auto const size = static_cast<std::uint64_t>(out.bytes);
  detail::reading_progress progress(path, size, speaks);
  for (std::uint64_t at = 0; at < size; at += part.size()) {
    auto const bytes = std::span(part).first(static_cast<std::size_t>(std::min<std::uint64_t>(part.size(), size - at)));
    from.read(at, bytes);
    utf8.update(bytes);
    hash.update(bytes);
    progress.update(at);
  }
  out.sha256 = hash.hexadecimal();
  if (detail::stamp_of(now()) != out.stamp) {
    throw trireme::io_error(path, "the text was changed while it was read; start again when it is finished");
  }
  // Another change within the same tick of the clock would not be visible: so recent a file is read again next time.
  if (start.tv_sec - before.st_ctim.tv_sec < 2) out.stamp.clear();
  return out;
}

/// The two parts of a run's text. A resumed run keeps its split, even if the text has changed.
///
/// Throws config_error if a resumed run had another text, unless that is accepted.
inline trireme::data::token_split cut_text(text_record& text, std::optional<text_record> const& before,
                                           std::int64_t context, bool accept_new_text) {
  using namespace trireme;
  if (!before) {
    auto parts = data::split_text(text.path, context);
    text.held_out_begin = parts.held_out_begin;
    return parts;
  }
  if (!before->same_text(text) && !accept_new_text) {
    throw config_error(
        trireme::text("--text ", text.path, " has ", trireme::how_many(text.bytes, "byte"), " with the SHA-256 ",
                      text.sha256.substr(0, 12), "..., but the run was trained on ", before->path, " of ",
                      trireme::how_many(before->bytes, "byte"), " with the SHA-256 ", before->sha256.substr(0, 12),
                      "...; restore that text, or give --accept-new-text to continue with this one, split at byte ",
                      before->held_out_begin, " as before"));
  }
  auto const cut = before->held_out_begin;
  if (text.bytes - cut < context) {
    throw config_error(trireme::text(
        "--text ", text.path, " has ", trireme::how_many(text.bytes, "byte"), ", but its held-out part begins at byte ",
        cut, " and needs at least one window of ", context, "; give a longer text, or start another run"));
  }
  text.held_out_begin = cut;
  return {
      data::token_windows({.path = text.path, .context = context, .first_byte = 0, .last_byte = cut - 1}),
      data::held_out_windows({.path = text.path, .context = context, .first_byte = cut, .last_byte = text.bytes - 1}),
      text.bytes, cut};
}

/// Identifies the tokens of shards, in whatever files and layout they are: the SHA-256 of their number and of all of
/// them or, of more than 2^24, of 4096 pieces of 4096 tokens at equal distances, so that starting does not read
/// terabytes.
///
/// Throws what opening and reading shards throws.
inline text_record examine_shards(trireme::data::token_shards from) {
  from.context = 1;
  auto const all = from.open_held_out();
  text_record out{to_string(from.files), all.token_count(), {}, 0, {}};
  if (from.files.patterns.size() == 1) out.path = from.files.patterns.front();
  constexpr std::int64_t piece = 4096, pieces = 4096;
  trireme::sha256 hash;
  hash.update(std::as_bytes(std::span(&out.bytes, 1)));
  std::vector<std::int32_t> tokens;
  bool const whole = out.bytes <= piece * pieces;
  auto const turns = whole ? (out.bytes + piece - 1) / piece : pieces;
  for (std::int64_t i = 0; i < turns; ++i) {
    auto const at = whole ? i * piece : (out.bytes - piece) / (pieces - 1) * i;
    tokens.resize(static_cast<std::size_t>(std::min(piece, out.bytes - at)));
    all.read_tokens(at, tokens);
    hash.update(std::as_bytes(std::span(tokens)));
  }
  out.sha256 = hash.hexadecimal();
  return out;
}

/// The two parts of a run's shards. A resumed run keeps its split.
///
/// Throws config_error if a resumed run had other tokens, unless that is accepted.
inline trireme::data::shard_split cut_shards(trireme::data::token_shards const& from, text_record& shards,
                                             std::optional<text_record> const& before, bool accept_new) {
  using namespace trireme;
  if (!before) {
    auto parts = from.split();
    shards.held_out_begin = parts.held_out_begin;
    return parts;
  }
  if (!before->same_text(shards) && !accept_new) {
    throw config_error(
        trireme::text("--data ", shards.path, " has ", trireme::how_many(shards.bytes, "token"), " with the SHA-256 ",
                      shards.sha256.substr(0, 12), "..., but the run was trained on ", before->path, " of ",
                      before->bytes, " with the SHA-256 ", before->sha256.substr(0, 12),
                      "...; restore those files, or give --accept-new-text to continue with these, split at token ",
                      before->held_out_begin, " as before"));
  }
  auto const cut = before->held_out_begin;
  if (shards.bytes - cut < from.context) {
    throw config_error(trireme::text("--data ", shards.path, " has ", trireme::how_many(shards.bytes, "token"),
                                     ", but its held-out part begins at token ", cut,
                                     " and needs at least one window of ", from.context,
                                     "; give more files, or start another run"));
  }
  shards.held_out_begin = cut;
  auto training = from, held_out = from;
  training.last_token = cut - 1;
  held_out.first_token = cut;
  return {training.open(), held_out.open_held_out(), shards.bytes, cut};
}
