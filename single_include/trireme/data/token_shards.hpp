// Trireme 0.1.0: trireme/data/token_shards.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 236d79a3904131a0f83f60714451a3968ae6b6d7aad892a906be95ed15698005
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/formats/npy.hpp"
#include "trireme/formats/token_files.hpp"

// ---- trireme/data/token_shards.hpp
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef TRIREME_DATA_DETAIL_BEST_FIT_INCLUDED
#define TRIREME_DATA_DETAIL_BEST_FIT_INCLUDED

// ---- trireme/data/detail/best_fit.hpp
#include <map>

namespace trireme::data::detail {

/// Pieces in bins: bin b holds pieces[begins[b]], ..., pieces[begins[b + 1] - 1].
struct filled_bins {
  std::vector<std::int64_t> pieces;
  std::vector<std::int64_t> begins{0};
};

/// Puts pieces into as few bins as it can: the largest piece first, each into the fullest bin that has room for it
/// [Ding et al., "Fewer truncations improve language modeling", 2024]. The result depends on the sizes alone.
///
/// @param sizes  each from 1 to capacity.
[[nodiscard]] inline filled_bins best_fit(std::span<std::int32_t const> sizes, std::int32_t capacity) {
  auto const most = static_cast<std::size_t>(capacity);
  std::vector<std::int64_t> order(sizes.size()), at(most + 1);  // by size, the largest first; equal ones as they come
  for (auto const size : sizes) ++at[most - static_cast<std::size_t>(size)];
  std::int64_t sum = 0;
  for (auto& each : at) {
    auto const count = each;
    each = sum;
    sum += count;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    order[static_cast<std::size_t>(at[most - static_cast<std::size_t>(sizes[i])]++)] = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> bin_of(sizes.size());
  std::map<std::int32_t, std::vector<std::int64_t>> with_room;  // bins by what is left in them
  std::int64_t bins = 0;
  for (auto const piece : order) {
    auto const size = sizes[static_cast<std::size_t>(piece)];
    auto const found = with_room.lower_bound(size);
    auto left = capacity;
    auto bin = bins;
    if (found == with_room.end()) {
      ++bins;
    } else {
      left = found->first;
      bin = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) with_room.erase(found);
    }
    bin_of[static_cast<std::size_t>(piece)] = bin;
    if (left > size) with_room[left - size].push_back(bin);
  }
  filled_bins out;
  out.begins.assign(static_cast<std::size_t>(bins) + 1, 0);
  for (auto const bin : bin_of) ++out.begins[static_cast<std::size_t>(bin) + 1];
  for (std::size_t b = 1; b < out.begins.size(); ++b) out.begins[b] += out.begins[b - 1];
  auto next = out.begins;
  out.pieces.resize(sizes.size());
  for (auto const piece : order) {
    auto const bin = static_cast<std::size_t>(bin_of[static_cast<std::size_t>(piece)]);
    out.pieces[static_cast<std::size_t>(next[bin]++)] = piece;
  }
  return out;
}

}  // namespace trireme::data::detail

#endif  // TRIREME_DATA_DETAIL_BEST_FIT_INCLUDED

// ---- trireme/data/token_shards.hpp (goes on)
namespace trireme::data {

/// How token shards are stored.
enum class shard_kind {
  recognised,   ///< by an index beside the file, by a header, or by the name's ending
  u16,          ///< uint16 without a header: nanoGPT's files; never recognised, since they have nothing to recognise
  u32,          ///< uint32 without a header
  llm_c,        ///< llm.c's and modded-nanogpt's files, with their header of 1024 bytes
  megatron,     ///< Megatron-LM's NAME.bin with NAME.idx beside it
  npy,          ///< numpy's array of one axis, of integers
  safetensors,  ///< the only tensor of integers in the file, or `.tensor`
};

[[nodiscard]] constexpr std::string_view name_of(shard_kind kind) noexcept {
  constexpr std::string_view names[] = {"recognised", "u16", "u32", "llm_c", "megatron", "npy", "safetensors"};
  return names[static_cast<std::size_t>(kind)];
}

/// Which tokens a window of shards holds.
enum class shard_windows {
  packed,    ///< consecutive tokens, whatever documents they belong to
  apart,     ///< tokens of one document only: its last window is filled up, and has no targets there
  best_fit,  ///< whole documents, as many as fit; longer ones fill windows alone, and their rests are packed too
};

[[nodiscard]] constexpr std::string_view name_of(shard_windows kind) noexcept {
  constexpr std::string_view names[] = {"packed", "apart", "best_fit"};
  return names[static_cast<std::size_t>(kind)];
}

class token_shard_windows;
struct shard_split;

/// Tokens in files, as other programs write them, taken as one sequence: the files follow each other without a gap.
///
///     data::token_shards{.files = "data/train_*.bin", .context = 1024}.open()
///
/// open() returns windows to train on, open_held_out() windows to evaluate on, split() both. Files are not loaded: each
/// window is read when it is needed, and opening costs nothing for each token (of Megatron's files the index is checked
/// once, 20 bytes a document).
///
/// Documents   `.separator = s` says which token ends a document: the target of each is -1, which losses ignore, as in
///             text_tokens; with `nn::attend{.tokens = {.separator = s}}` documents do not attend to each other. With
///             `.documents = shard_windows::apart` no window holds tokens of two documents, and with `best_fit` no
///             document is cut that fits in a window: their ends are those in Megatron's index, else the separators,
///             which open() then finds by reading all tokens once. Numbers of windows of best_fit say nothing about
///             their place in the files.
/// Errors      open() and open_held_out() throw config_error if nothing matches `.files`, if the fields contradict each
///             other or if there are too few tokens for one window; format_error and io_error with the file and the
///             byte for a file that is damaged, empty or of an unknown kind.
struct token_shards {
  file_list files{};
  std::int64_t context = 1024;               ///< tokens of a window
  shard_kind kind = shard_kind::recognised;  ///< of all files
  std::int64_t vocabulary = 0;               ///< ids from it on are refused when they are read; 0: any is read
  std::int32_t separator = -1;               ///< the token after each document; -1: none
  shard_windows documents = shard_windows::packed;
  std::int64_t stride = 0;  ///< tokens between the beginnings of two windows; 0: context. 1: nanoGPT's windows, where
                            ///< sample i begins at token i. Only of packed windows
  std::int64_t first_token = 0;  ///< the beginning of the range that is used
  std::int64_t last_token = -1;  ///< the last token of the range; -1: the last one of all files
  std::string tensor{};          ///< the name in safetensors files; empty: the only tensor of integers
  [[nodiscard]] token_shard_windows open() const;
  [[nodiscard]] token_shard_windows open_held_out() const;
  /// Both, disjoint: the first tokens to train on, the rest held out. The range begins at floor(tokens * (1 -
  /// fraction)).
  [[nodiscard]] shard_split split(double held_out_fraction = 0.1) const;
  friend bool operator==(token_shards const&, token_shards const&) = default;
};

/// "trireme::data::token_shards{.files = "data/*.bin", .context = 1024, ...}"
[[nodiscard]] inline std::string to_string(token_shards const& from) {
  return text("trireme::data::token_shards{.files = ", to_string(from.files), ", .context = ", from.context,
              ", .kind = trireme::data::shard_kind::", name_of(from.kind), ", .vocabulary = ", from.vocabulary,
              ", .separator = ", from.separator,
              ", .documents = trireme::data::shard_windows::", name_of(from.documents), ", .stride = ", from.stride,
              ", .first_token = ", from.first_token, ", .last_token = ", from.last_token, ", .tensor = \"", from.tensor,
              "\"}");
}

namespace detail {

/// A file of a source of many. It stays open unless there are so many files that a process could not keep all of them
/// open; then each read() opens it again.
class shard_file {
 public:
  shard_file(std::string path, std::string who, bool stays_open) : path_(std::move(path)), who_(std::move(who)) {
    auto file = std::make_unique<stable_file>(path_, who_);
    size_ = file->size();
    if (stays_open) open_ = std::move(file);
  }
  [[nodiscard]] std::string const& path() const noexcept { return path_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  void read(std::int64_t at, std::span<unsigned char> to) const {
    if (open_) return open_->read(at, to);
    stable_file const again(path_, who_);
    if (again.size() != size_) {
      throw io_error(path_, text(who_, ": the file had ", how_many(size_, "byte"), " at first and has ", again.size(),
                                 " now; do not change files that are in use"));
    }
    again.read(at, to);
  }
  /// The first bytes, or all of a shorter file.
  [[nodiscard]] std::vector<std::byte> start(std::int64_t most) const {
    std::vector<std::byte> out(static_cast<std::size_t>(std::min(most, size_)));
    read(0, {reinterpret_cast<unsigned char*>(out.data()), out.size()});
    return out;
  }

 private:
  std::string path_, who_;
  std::int64_t size_ = 0;
  std::unique_ptr<stable_file> open_;
};

/// The tokens of one file.
struct shard {
  shard_file file;
  formats::token_files::number type;
  std::int64_t data_at;                   ///< the first token, in bytes
  std::int64_t count;                     ///< of tokens
  std::vector<std::int64_t> documents{};  ///< the first token of each, of Megatron's files if they are asked for
};

/// All tokens of some files, as one sequence.
class shard_sequence {
 public:
  explicit shard_sequence(token_shards const& from) : from_(from) {
    auto const names = names_of(from.files);
    for (auto const& name : names) {
      shards_.push_back(opened(name, names.size() <= most_open));
      begins_.push_back(count_);
      if (__builtin_add_overflow(count_, shards_.back().count, &count_)) {
        throw config_error(text(who, ": there are more than 2^63 - 1 tokens"));
      }
    }
    if (from.vocabulary < 0 || from.vocabulary > no_limit) {
      throw config_error(text(who, ": .vocabulary = ", from.vocabulary, ", but it must be from 1 to 2147483648, or 0"));
    }
  }

  [[nodiscard]] std::int64_t size() const noexcept { return count_; }

  /// Writes tokens [at, at + to.size()).
  void read(std::int64_t at, std::span<std::int32_t> to) const {
    auto which = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), at) - begins_.begin()) - 1;
    for (; !to.empty(); ++which) {
      auto const& from = shards_[which];
      auto const first = at - begins_[which];
      auto const here = std::min(static_cast<std::int64_t>(to.size()), from.count - first);
      read_shard(from, first, to.first(static_cast<std::size_t>(here)));
      to = to.subspan(static_cast<std::size_t>(here));
      at += here;
    }
  }

  /// Writes tokens [at, at + to.size()), and the next of each to `next`.
  void read_with_next(std::int64_t at, std::span<std::int32_t> to, std::int32_t* next) const {
    auto const which =
        static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), at) - begins_.begin()) - 1;
    auto& last = next[to.size() - 1];
    auto const first = at - begins_[which];
    bool const at_once = shards_[which].count - first > static_cast<std::int64_t>(to.size());
    if (!at_once || !read_shard(shards_[which], first, to, &last)) {
      read(at, to);
      read(at + static_cast<std::int64_t>(to.size()), {&last, 1});
    }
    std::copy(to.begin() + 1, to.end(), next);
  }

  /// Where documents begin, within tokens [first, end); `first` is one of them.
  [[nodiscard]] std::vector<std::int64_t> documents(std::int64_t first, std::int64_t end) const {
    std::vector<std::int64_t> out{first};
    auto const add = [&](std::int64_t begin) {
      if (begin > out.back() && begin < end) out.push_back(begin);
    };
    std::vector<std::int32_t> part;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      auto const& each = shards_[i];
      if (!each.documents.empty()) {
        for (auto const begin : each.documents) add(begins_[i] + begin);
        add(begins_[i] + each.count);
        continue;
      }
      if (from_.separator < 0) {
        throw config_error(text(who, ": ", each.file.path(),
                                " does not say where documents end; give .separator, or leave out "
                                ".documents = shard_windows::",
                                name_of(from_.documents)));
      }
      auto const last = std::min(end, begins_[i] + each.count);
      for (auto at = std::max(first, begins_[i]); at < last; at += static_cast<std::int64_t>(part.size())) {
        part.resize(static_cast<std::size_t>(std::min<std::int64_t>(last - at, 1 << 16)));
        read(at, part);
        for (std::size_t t = 0; t < part.size(); ++t) {
          if (part[t] == from_.separator) add(at + static_cast<std::int64_t>(t) + 1);
        }
      }
    }
    return out;
  }

  static constexpr char const* who = "trireme::data::token_shards";

 private:
  static constexpr std::size_t most_open = 256;  // a process may often have 1024 files open
  static constexpr std::int64_t no_limit = std::int64_t{1} << 31;
  using number = formats::token_files::number;

  [[nodiscard]] static bool ends_with(std::string const& name, std::string_view ending) {
    return name.ends_with(ending);
  }
  /// Megatron's index, NAME.idx of NAME.bin.
  [[nodiscard]] static std::string index_of(std::string const& name) {
    auto const stem = ends_with(name, ".bin") ? name.substr(0, name.size() - 4) : name;
    return stem + ".idx";
  }
  [[nodiscard]] static bool exists(std::string const& path) {
    struct ::stat about {};
    return ::stat(path.c_str(), &about) == 0;
  }
  /// A pattern may match both files of Megatron's pairs.
  [[nodiscard]] static std::vector<std::string> names_of(file_list const& files) {
    auto names = files.names(who, {".bin", ".npy", ".safetensors"});
    std::erase_if(names, [&](std::string const& name) {
      return ends_with(name, ".idx") &&
             std::find(names.begin(), names.end(), name.substr(0, name.size() - 4) + ".bin") != names.end();
    });
    return names;
  }

  [[nodiscard]] shard opened(std::string const& name, bool stays_open) const {
    shard_file file(name, who, stays_open);
    auto const bytes = static_cast<std::uint64_t>(file.size());
    auto const start = file.start(12);
    auto kind = from_.kind;
    if (kind == shard_kind::recognised) {
      kind = exists(index_of(name)) && !ends_with(name, ".idx") ? shard_kind::megatron
             : ends_with(name, ".npy")                          ? shard_kind::npy
             : ends_with(name, ".safetensors")                  ? shard_kind::safetensors
             : formats::token_files::is_llm_c(start)            ? shard_kind::llm_c
                                                                : shard_kind::recognised;
    }
    switch (kind) {
      case shard_kind::recognised:
        throw format_error(name, 0,
                           text(who,
                                ": nothing says how the tokens are stored (no header of llm.c, no .idx file); if "
                                "they are numbers without a header, give .kind = shard_kind::u16 (nanoGPT's "
                                "files) or shard_kind::u32"));
      case shard_kind::u16:
      case shard_kind::u32:
        return plain(std::move(file), kind == shard_kind::u16 ? number::u16 : number::u32, start);
      case shard_kind::llm_c: {
        auto const header = formats::token_files::parse_llm_c(start, bytes, name);
        return {std::move(file), header.type, formats::token_files::llm_c_header_bytes, header.count};
      }
      case shard_kind::megatron:
        return megatron(std::move(file), stays_open);
      case shard_kind::npy:
        return array(std::move(file));
      case shard_kind::safetensors:
        return tensor(std::move(file));
    }
    throw config_error(text(who, ": .kind is not a kind of shards"));
  }

  [[nodiscard]] static shard plain(shard_file file, number type, std::span<std::byte const> start) {
    auto const size = file.size(), width = std::int64_t{formats::token_files::bytes_of(type)};
    if (size % width != 0) {
      throw format_error(file.path(), static_cast<std::uint64_t>(size / width * width),
                         text(who, ": ", how_many(size, "byte"), " do not divide into numbers of ", width,
                              " bytes; the file is truncated or of another kind"));
    }
    if (formats::token_files::is_llm_c(start)) {
      throw format_error(file.path(), 0,
                         text(who,
                              ": the file begins with llm.c's header, which would be read as tokens; leave out "
                              ".kind, or give shard_kind::llm_c"));
    }
    return {std::move(file), type, 0, size / width};
  }

  [[nodiscard]] static shard array(shard_file file) {
    auto const bytes = static_cast<std::uint64_t>(file.size());
    auto const length = formats::npy::header_bytes(file.start(formats::npy::start_bytes), bytes, file.path());
    auto const header = formats::npy::parse_header(file.start(static_cast<std::int64_t>(length)), bytes, file.path());
    using from = formats::npy::number;
    auto const type = header.type == from::i8    ? std::optional(number::i8)
                      : header.type == from::i16 ? std::optional(number::i16)
                      : header.type == from::i32 ? std::optional(number::i32)
                      : header.type == from::i64 ? std::optional(number::i64)
                      : header.type == from::u8  ? std::optional(number::u8)
                      : header.type == from::u16 ? std::optional(number::u16)
                      : header.type == from::u32 ? std::optional(number::u32)
                                                 : std::nullopt;
    if (!type || header.extents.rank() != 1) {
      throw format_error(file.path(), 0,
                         text(who, ": the array is ", formats::npy::name_of(header.type), " of shape ",
                              to_string(header.extents), ", but tokens are one axis of integers of at most 64 bits"));
    }
    if (header.extents[0] == 0) throw format_error(file.path(), 0, text(who, ": the array holds no tokens"));
    return {std::move(file), *type, static_cast<std::int64_t>(header.data_at), header.extents[0]};
  }

  [[nodiscard]] shard tensor(shard_file file) const {
    formats::safetensors::reader const from(file.path());
    formats::safetensors::entry const* found = nullptr;
    auto type = number::u8;
    bool is_integer = false;
    int integers = 0;
    for (auto const& each : from.entries()) {
      auto const name = each.type.name();
      static constexpr std::string_view names[] = {"U8", "I8", "I16", "I32", "I64", "U16", "U32"};  // of `number`
      auto const* const here = std::find(std::begin(names), std::end(names), name);
      bool const integer = here != std::end(names);
      if (integer) ++integers;
      if (from_.tensor.empty() ? integer : each.name == from_.tensor) {
        found = &each;
        is_integer = integer;
        if (integer) type = static_cast<number>(here - std::begin(names));
      }
    }
    if (from_.tensor.empty() && integers != 1) {
      throw config_error(text(who, ": ", file.path(), " has ", how_many(integers, "tensor"),
                              " of integers; name the one that holds tokens by .tensor"));
    }
    if (found == nullptr || !is_integer) {
      throw config_error(
          text(who, ": ", file.path(), " has no tensor of integers with the name \"", from_.tensor, "\""));
    }
    if (found->extents.size() == 0) {
      throw format_error(file.path(), 0, text(who, ": the tensor \"", found->name, "\" holds no tokens"));
    }
    auto const begin = data_begin(file) + static_cast<std::int64_t>(found->begin);
    return {std::move(file), type, begin, found->extents.size()};
  }
  /// A safetensors file begins with the length of its header.
  [[nodiscard]] static std::int64_t data_begin(shard_file const& file) {
    std::uint64_t length = 0;
    auto const start = file.start(8);
    std::memcpy(&length, start.data(), sizeof(length));
    return 8 + static_cast<std::int64_t>(length);
  }

  [[nodiscard]] shard megatron(shard_file file, bool) const {
    if (ends_with(file.path(), ".idx")) {
      throw config_error(text(who, ": ", file.path(), " is an index; name the .bin file that lies beside it"));
    }
    stable_file const index(index_of(file.path()), who);
    auto const path = index_of(file.path());
    std::array<std::byte, formats::token_files::megatron_index::header_bytes> start{};
    auto const there = static_cast<std::size_t>(std::min<std::int64_t>(index.size(), start.size()));
    index.read(0, {reinterpret_cast<unsigned char*>(start.data()), there});
    auto const header = formats::token_files::parse_megatron(std::span(start).first(there),
                                                             static_cast<std::uint64_t>(index.size()), path);
    auto const width = std::int64_t{formats::token_files::bytes_of(header.type)};

    // Sequences follow each other without a gap, so that the .bin file is one sequence of tokens.
    std::int64_t bytes = 0;
    std::vector<std::int64_t> begins;  // of sequences, in tokens
    bool const keeps = from_.documents != shard_windows::packed;
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> pointers;
    for (std::int64_t first = 0; first < header.sequences; first += piece) {
      auto const count = std::min(piece, header.sequences - first);
      read_list(index, header.lengths_at(), first, count, lengths);
      read_list(index, header.pointers_at(), first, count, pointers);
      for (std::int64_t i = 0; i < count; ++i) {
        auto const length = lengths[static_cast<std::size_t>(i)];
        auto const pointer = pointers[static_cast<std::size_t>(i)];
        auto const sequence = first + i;
        if (length < 0) {
          throw format_error(path, header.lengths_at() + 4 * static_cast<std::uint64_t>(sequence),
                             text(who, ": sequence ", sequence, " has the length ", length));
        }
        if (pointer != bytes) {
          throw format_error(path, header.pointers_at() + 8 * static_cast<std::uint64_t>(sequence),
                             text(who, ": sequence ", sequence, " begins at byte ", pointer, " of the .bin file, but ",
                                  bytes, " is where the one before it ends"));
        }
        if (keeps) begins.push_back(bytes / width);
        bytes += length * width;
      }
      if (bytes > file.size()) break;
    }
    if (bytes != file.size()) {
      throw format_error(file.path(), static_cast<std::uint64_t>(std::min(bytes, file.size())),
                         text(who, ": the index says that there are ", bytes > file.size() ? "at least " : "",
                              how_many(bytes, "byte"), ", but the file has ", file.size()));
    }
    begins.push_back(bytes / width);
    std::vector<std::int64_t> documents;
    std::int64_t before = 0;
    for (std::int64_t first = 0; first < header.ends; first += piece) {
      auto const count = std::min(piece, header.ends - first);
      read_list(index, header.documents_at(), first, count, pointers);
      for (std::int64_t i = 0; i < count; ++i) {
        auto const at = pointers[static_cast<std::size_t>(i)];
        bool const last = first + i + 1 == header.ends;
        if (at < before || at > header.sequences || (first + i == 0 && at != 0) || (last && at != header.sequences)) {
          throw format_error(path, header.documents_at() + 8 * static_cast<std::uint64_t>(first + i),
                             text(who, ": number ", first + i, " in the list of documents is ", at,
                                  ", but the list ascends from 0 to the number of sequences, ", header.sequences));
        }
        before = at;
        if (keeps && !last) documents.push_back(begins[static_cast<std::size_t>(at)]);
      }
    }
    return {std::move(file), header.type, 0, bytes / width, std::move(documents)};
  }
  template <class T>
  static void read_list(stable_file const& index, std::uint64_t at, std::int64_t first, std::int64_t count,
                        std::vector<T>& to) {
    to.resize(static_cast<std::size_t>(count));
    index.read(static_cast<std::int64_t>(at) + first * static_cast<std::int64_t>(sizeof(T)),
               {reinterpret_cast<unsigned char*>(to.data()), to.size() * sizeof(T)});
  }

  // @param after  the token behind them, which is to be read too; null: none. @returns false if that is not possible
  //               with one read; then nothing was read.
  bool read_shard(shard const& from, std::int64_t first, std::span<std::int32_t> to,
                  std::int32_t* after = nullptr) const {
    using enum formats::token_files::number;
    switch (from.type) {
      case u8:
        return read_as<std::uint8_t>(from, first, to, after);
      case i8:
        return read_as<std::int8_t>(from, first, to, after);
      case i16:
        return read_as<std::int16_t>(from, first, to, after);
      case i32:
        return read_as<std::int32_t>(from, first, to, after);
      case i64:
        return read_as<std::int64_t>(from, first, to, after);
      case u16:
        return read_as<std::uint16_t>(from, first, to, after);
      case u32:
        return read_as<std::uint32_t>(from, first, to, after);
    }
    return false;
  }
  template <class Stored>
  bool read_as(shard const& from, std::int64_t first, std::span<std::int32_t> to, std::int32_t* after) const {
    std::array<Stored, 8192 / sizeof(Stored)> buffer;  // on the stack: several threads read
    std::size_t const more = after != nullptr ? 1 : 0;
    if (to.size() + more > buffer.size() && more > 0) return false;
    auto const limit = static_cast<std::uint64_t>(from_.vocabulary > 0 ? from_.vocabulary : no_limit);
    while (!to.empty()) {
      auto const count = std::min(to.size() + more, buffer.size());
      auto const at = from.data_at + first * static_cast<std::int64_t>(sizeof(Stored));
      from.file.read(at, {reinterpret_cast<unsigned char*>(buffer.data()), count * sizeof(Stored)});
      bool good = converted(buffer.data(), to.data(), count - more, limit);
      if (more > 0) good &= converted(buffer.data() + count - 1, after, 1, limit);
      if (!good) refuse(from, at, std::span<Stored const>(buffer).first(count), limit);
      first += static_cast<std::int64_t>(count);
      to = to.subspan(count - more);
    }
    return true;
  }
  // @returns whether all are below the limit.
  template <class Stored>
  [[nodiscard]] static bool converted(Stored const* from, std::int32_t* to, std::size_t count, std::uint64_t limit) {
    bool bad = false;
    std::size_t i = 0;
    constexpr std::size_t block = 64;  // loops of a fixed length become vectors
    if (std::is_unsigned_v<Stored> && limit > std::numeric_limits<Stored>::max()) {
      for (; i + block <= count; i += block) {
        for (std::size_t j = i; j < i + block; ++j) to[j] = static_cast<std::int32_t>(from[j]);
      }
    } else if constexpr (sizeof(Stored) <= 4) {
      // The highest bit of a number that is negative or not below the limit.
      auto const last = static_cast<std::uint32_t>(limit - 1);
      for (; i + block <= count; i += block) {
        std::uint32_t bits = 0;
        for (std::size_t j = i; j < i + block; ++j) {
          auto const value = static_cast<std::uint32_t>(from[j]);
          bits |= value | (last - value);
          to[j] = static_cast<std::int32_t>(value);
        }
        bad |= bits >> 31 != 0;
      }
    }
    for (; i < count; ++i) {
      bad |= static_cast<std::uint64_t>(static_cast<std::int64_t>(from[i])) >= limit;
      to[i] = static_cast<std::int32_t>(from[i]);
    }
    return !bad;
  }
  template <class Stored>
  [[noreturn]] static void refuse(shard const& from, std::int64_t at, std::span<Stored const> tokens,
                                  std::uint64_t limit) {
    std::size_t i = 0;
    while (static_cast<std::uint64_t>(static_cast<std::int64_t>(tokens[i])) < limit) ++i;
    throw format_error(from.file.path(), static_cast<std::uint64_t>(at) + i * sizeof(Stored),
                       text(who, ": the token is ", static_cast<std::int64_t>(tokens[i]), ", but ids are from 0 to ",
                            limit - 1, "; use the tokenizer's vocabulary, or the .kind in which the file was written"));
  }

  static constexpr std::int64_t piece = 1 << 16;  // numbers of an index that are read at once
  token_shards from_;
  std::vector<shard> shards_;
  std::vector<std::int64_t> begins_;  // the first token of each shard
  std::int64_t count_ = 0;
};

}  // namespace detail

/// Windows of token shards.
///
/// Shapes   inputs (T) int32; targets (T) int32: the next token of each, or -1 after a separator. In packed windows to
///          evaluate on the last target is -1 too, so that nothing outside a window is used. In windows of whole
///          documents (apart, best_fit) the target of a document's last token and those behind the last document are
///          -1, and inputs there are the separator, or 0.
/// Bytes    nothing for each token; of whole documents 16 for each document, and with best_fit 16 more for each that
///          does not fill windows; while it packs, 40. Copies share the open files.
/// Threads  read() is const: any number of callers.
/// Errors   read() throws format_error, with file and byte, for an id beyond the vocabulary (or beyond 2^31 - 1), and
///          io_error if a file was truncated since, or cannot be read.
/// @models trireme::dataset          @see token_shards
class token_shard_windows {
 public:
  enum class kind { training, held_out };

  explicit token_shard_windows(token_shards from, kind use = kind::training) : from_(std::move(from)), use_(use) {
    auto const refuse = [](auto const&... parts) {
      return config_error(text(detail::shard_sequence::who, ": ", parts...));
    };
    if (from_.context < 1) throw refuse(".context = ", from_.context, ", but at least 1 is needed");
    if (from_.stride < 0) throw refuse(".stride = ", from_.stride, ", but it must be at least 1, or 0 for .context");
    if (by_document() && from_.stride != 0) throw refuse(".stride is only of packed windows; leave it out");
    if (from_.documents == shard_windows::best_fit && from_.context >= std::int64_t{1} << 30) {
      throw refuse(".context = ", from_.context, ", but shard_windows::best_fit takes less than 2^30");
    }
    tokens_ = std::make_shared<detail::shard_sequence const>(from_);
    auto const last = from_.last_token == -1 ? tokens_->size() - 1 : from_.last_token;
    if (from_.first_token < 0 || last >= tokens_->size() || last < from_.first_token) {
      throw refuse("tokens ", from_.first_token, " to ", last, " are not a range of the files, which have ",
                   how_many(tokens_->size(), "token"));
    }
    count_ = last - from_.first_token + 1;
    if (by_document()) {
      find_documents(last + 1);
    } else {
      auto const more = use_ == kind::training ? 1 : 0;
      if (count_ - more < from_.context) {
        throw refuse("the range has ", how_many(count_, "token"), ", but one window of .context = ", from_.context,
                     " needs ", more == 0 ? "" : "one more than ",
                     "that many: choose a shorter context or give more files");
      }
      size_ = (count_ - more - from_.context) / stride() + 1;
    }
    if (size_ < 1) throw refuse("no document has two tokens, so that there is nothing to predict");
  }

  /// The first `windows` windows, or all if there are fewer.
  [[nodiscard]] token_shard_windows first(std::int64_t windows) const {
    auto out = *this;
    out.size_ = std::clamp<std::int64_t>(windows, 1, size_);
    return out;
  }
  [[nodiscard]] token_shards const& description() const noexcept { return from_; }
  [[nodiscard]] std::int64_t token_count() const noexcept { return count_; }  ///< of the range
  /// Of windows of whole documents; 0 if windows are packed.
  [[nodiscard]] std::int64_t document_count() const noexcept {
    return by_document() ? static_cast<std::int64_t>(documents_->size()) - 1 : 0;
  }
  /// The places of all windows that hold no token; 0 if windows are packed.
  [[nodiscard]] std::int64_t filler_count() const noexcept { return filler_; }
  /// Writes tokens [at, at + to.size()) of the range.
  void read_tokens(std::int64_t at, std::span<std::int32_t> to) const { tokens_->read(from_.first_token + at, to); }

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {from_.context}; }
  [[nodiscard]] shape target_shape() const { return {from_.context}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    auto const context = static_cast<std::size_t>(from_.context);
    for (auto const id : ids) {
      if (!by_document()) {
        read_packed(id, in, out);
      } else if (id < whole_windows_) {
        read_apart(id, in, out);
      } else {
        read_bin(static_cast<std::size_t>(id - whole_windows_), in, out);
      }
      in += context;
      out += context;
    }
  }

 private:
  struct document {
    std::int64_t first_token, first_window;
  };
  /// The end of a document that does not fill a window.
  struct rest {
    std::int64_t first_token;
    std::int32_t length;
  };
  struct packed_rests {
    std::vector<rest> rests;  // those of one window after the other
    std::vector<std::int64_t> begins;
  };
  [[nodiscard]] bool by_document() const noexcept { return from_.documents != shard_windows::packed; }
  [[nodiscard]] std::int64_t stride() const noexcept { return from_.stride == 0 ? from_.context : from_.stride; }

  void find_documents(std::int64_t end) {
    auto found = std::make_shared<std::vector<document>>();
    auto const begins = tokens_->documents(from_.first_token, end);
    std::vector<rest> rests;
    std::vector<std::int32_t> lengths;
    bool const apart = from_.documents == shard_windows::apart;
    for (std::size_t i = 0; i < begins.size(); ++i) {
      found->push_back({begins[i], whole_windows_});
      auto const length = (i + 1 < begins.size() ? begins[i + 1] : end) - begins[i];
      auto const all = (length - 1 + from_.context - 1) / from_.context;  // one target fewer than tokens
      auto const filled = std::min(all, length / from_.context);
      whole_windows_ += apart ? all : filled;
      if (filled == all) continue;
      auto const left = length - filled * from_.context;
      if (apart) {
        filler_ += from_.context - left;
      } else {
        rests.push_back({begins[i] + filled * from_.context, static_cast<std::int32_t>(left)});
        lengths.push_back(static_cast<std::int32_t>(left));
      }
    }
    found->push_back({end, whole_windows_});
    documents_ = std::move(found);
    size_ = whole_windows_;
    if (rests.empty()) return;
    auto const bins = detail::best_fit(lengths, static_cast<std::int32_t>(from_.context));
    auto packed = std::make_shared<packed_rests>();
    packed->begins = bins.begins;
    packed->rests.reserve(rests.size());
    for (auto const piece : bins.pieces) packed->rests.push_back(rests[static_cast<std::size_t>(piece)]);
    size_ += static_cast<std::int64_t>(bins.begins.size()) - 1;
    filler_ = (size_ - whole_windows_) * from_.context;
    for (auto const length : lengths) filler_ -= length;
    rests_ = std::move(packed);
  }

  void read_packed(std::int64_t id, std::int32_t* in, std::int32_t* out) const {
    auto const context = static_cast<std::size_t>(from_.context);
    auto const at = from_.first_token + id * stride();
    if (use_ == kind::training) {
      tokens_->read_with_next(at, {in, context}, out);
    } else {
      tokens_->read(at, {in, context});
      std::copy(in + 1, in + context, out);
      out[context - 1] = -1;
    }
    hide_after_separators(in, out, context);
  }
  void read_apart(std::int64_t id, std::int32_t* in, std::int32_t* out) const {
    auto const context = static_cast<std::size_t>(from_.context);
    auto const next =
        std::upper_bound(documents_->begin(), documents_->end(), id,
                         [](std::int64_t window, document const& each) { return window < each.first_window; });
    auto const& of = *(next - 1);
    auto const at = of.first_token + (id - of.first_window) * from_.context;
    auto const left = next->first_token - at;  // in the document, at least two
    auto const here = static_cast<std::size_t>(std::min(left, from_.context));
    tokens_->read(at, {in, here});
    std::copy(in + 1, in + here, out);
    if (left > from_.context) {
      tokens_->read(at + from_.context, {out + here - 1, 1});
    } else {
      out[here - 1] = -1;
    }
    fill_up(in + here, out + here, context - here);
    hide_after_separators(in, out, here);
  }
  void read_bin(std::size_t bin, std::int32_t* in, std::int32_t* out) const {
    auto left = static_cast<std::size_t>(from_.context);
    auto const last = static_cast<std::size_t>(rests_->begins[bin + 1]);
    for (auto i = static_cast<std::size_t>(rests_->begins[bin]); i < last; ++i) {
      auto const& each = rests_->rests[i];
      auto const length = static_cast<std::size_t>(each.length);
      tokens_->read(each.first_token, {in, length});
      std::copy(in + 1, in + length, out);
      out[length - 1] = -1;
      hide_after_separators(in, out, length);
      in += length;
      out += length;
      left -= length;
    }
    fill_up(in, out, left);
  }
  void fill_up(std::int32_t* in, std::int32_t* out, std::size_t count) const {
    std::fill_n(in, count, std::max(from_.separator, 0));
    std::fill_n(out, count, -1);
  }
  void hide_after_separators(std::int32_t const* in, std::int32_t* out, std::size_t count) const {
    if (from_.separator < 0) return;
    for (std::size_t t = 0; t < count; ++t) {
      if (in[t] == from_.separator) out[t] = -1;
    }
  }

  token_shards from_;
  kind use_;
  std::shared_ptr<detail::shard_sequence const> tokens_;
  std::shared_ptr<std::vector<document> const> documents_;  // and one past the last
  std::shared_ptr<packed_rests const> rests_;               // in the windows from whole_windows_ on
  std::int64_t count_ = 0;
  std::int64_t whole_windows_ = 0;  // of one document alone
  std::int64_t filler_ = 0;
  std::int64_t size_ = 0;
};

/// Token shards split in two, with the numbers for a run's summary.
struct shard_split {
  token_shard_windows training;
  token_shard_windows held_out;
  std::int64_t tokens = 0;          ///< of the range
  std::int64_t held_out_begin = 0;  ///< the first held-out token, counted from the beginning of all files
};

inline token_shard_windows token_shards::open() const {
  return token_shard_windows(*this, token_shard_windows::kind::training);
}
inline token_shard_windows token_shards::open_held_out() const {
  return token_shard_windows(*this, token_shard_windows::kind::held_out);
}
inline shard_split token_shards::split(double held_out_fraction) const {
  detail::training_part const kept(held_out_fraction, "trireme::data::token_shards");
  auto part = *this;
  part.context = 1;
  part.stride = 0;
  part.documents = shard_windows::packed;
  auto const tokens = part.open_held_out().token_count();
  auto const begin = first_token + kept.of(tokens);
  auto training = *this, held_out = *this;
  training.last_token = std::max(begin - 1, first_token);
  held_out.first_token = begin;
  return {training.open(), held_out.open_held_out(), tokens, begin};
}

}  // namespace trireme::data
