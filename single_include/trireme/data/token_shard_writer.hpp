// Trireme 0.1.0: trireme/data/token_shard_writer.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 2c9c9ed50df9f07c38642cff662ee88db182f1867f72b6e798a0c0052424cd70
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/documents.hpp"
#include "trireme/formats/token_files.hpp"

// ---- trireme/data/token_shard_writer.hpp
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::data {

/// What token_shard_writer has written so far.
struct tokens_written {
  std::int64_t documents = 0;
  std::int64_t empty = 0;   ///< documents without text, of which nothing is written
  std::int64_t tokens = 0;  ///< with the separators
  std::int64_t shards = 0;
  std::int64_t bytes = 0;     ///< of the files that were read; more than that within a compressed file
  std::int64_t of_bytes = 0;  ///< of all files
  bool resumed = false;       ///< an earlier call was interrupted, and this one continued its work
};

/// Turns text into tokens; each thread has one.
using document_encoder = std::function<std::vector<std::int32_t>(std::string_view)>;

/// Writes the tokens of text files as shards that token_shards reads: files of llm.c, of uint16 or, for a vocabulary of
/// more than 65536, uint32.
///
///     data::token_shard_writer{.from = {.files = "text/*.jsonl"}, .out = "tokens", .vocabulary = words.vocabulary()}
///         .write([&] { return [&](std::string_view text) { return words.encode(text); }; });
///
/// The shards `out`/tokens_000000.bin, ... hold the documents in the order of the files, each with the separator after
/// it; a document may begin in one shard and end in the next. `out`/tokens.json says what they were made from. The
/// directory appears when it is complete; until then it is `out`.partial. If write() is interrupted, by SIGKILL too,
/// the same call continues where the last one saved its place, and the files are the same bytes as without the
/// interruption. They do not depend on the number of threads.
///
/// Bytes    three MiB and the tokens of one for each thread, whatever the size of the files; more if a document is
///          longer than one MiB.
/// Threads  write() starts `.workers` threads. Two processes must not write to one `out` at once.
/// Errors   write() throws config_error if a field is out of range, if `out` exists, if `out`.partial was begun with
///          other files, fields or tokens, or if there are no documents; format_error, with file and byte, for text
///          that is not UTF-8, JSON that is not valid, and ids that are not below `.vocabulary`; io_error if a file
///          cannot be read or written.
struct token_shard_writer {
  document_files from{};
  std::string out{};                        ///< a directory, which must not exist
  std::int64_t vocabulary = 0;              ///< one more than the largest id
  std::int32_t separator = -1;              ///< the token after each document; -1: none
  std::int64_t shard_tokens = 100'000'000;  ///< of each shard but the last
  std::string encoder{};                    ///< identifies what makes the tokens: the SHA-256 of a tokenizer's file
  int workers = 0;                          ///< threads that encode; 0: one for each usable core
  std::chrono::milliseconds save_every{10'000};  ///< how often the place is saved from which another call can continue

  /// @param make_encoder  makes a document_encoder for each thread; called by that thread.
  /// @param progress      called after each block of about a MiB.
  /// @param can_read      for compressed files: {formats::gunzip, formats::unzstd}.
  tokens_written write(std::function<document_encoder()> const& make_encoder,
                       std::function<void(tokens_written const&)> const& progress = {},
                       formats::file_system& files = formats::real_files(),
                       std::vector<formats::decompressor> const& can_read = {}) const;
  friend bool operator==(token_shard_writer const&, token_shard_writer const&) = default;
};

/// "trireme::data::token_shard_writer{.from = ..., .out = "tokens", ...}"
[[nodiscard]] inline std::string to_string(token_shard_writer const& of) {
  return text("trireme::data::token_shard_writer{.from = ", to_string(of.from), ", .out = \"", of.out,
              "\", .vocabulary = ", of.vocabulary, ", .separator = ", of.separator,
              ", .shard_tokens = ", of.shard_tokens, ", .encoder = \"", of.encoder, "\", .workers = ", of.workers,
              ", .save_every = std::chrono::milliseconds(", of.save_every.count(), ")}");
}

namespace detail {

inline constexpr char const* shard_writer_name = "trireme::data::token_shard_writer";

/// Encodes blocks of documents by several threads, and returns them in order.
class block_encoder {
 public:
  struct encoded {
    document_block block;
    document_place end;             ///< where the next block begins
    std::vector<std::byte> tokens;  ///< as they are stored
    std::int64_t documents = 0, empty = 0;
  };

  block_encoder(token_shard_writer const& of, document_reader& from, int workers,
                std::function<document_encoder()> const& make)
      : of_(&of), from_(&from), make_(&make), slots_(2 * static_cast<std::size_t>(workers) + 1) {
    threads_.reserve(static_cast<std::size_t>(workers));
    try {
      for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  block_encoder(block_encoder const&) = delete;
  block_encoder& operator=(block_encoder const&) = delete;
  ~block_encoder() { stop(); }

  /// The next block, valid until the next call; nullptr at the end. Throws what reading or encoding it threw.
  [[nodiscard]] encoded const* next() {
    while (!ended_ && filled_ - returned_ < slots_.size()) {
      auto& into = slots_[filled_ % slots_.size()];
      if (!from_->next(into.content.block)) {
        ended_ = true;
        break;
      }
      into.content.end = from_->place();
      into.failure = nullptr;
      std::lock_guard const lock(mutex_);
      into.done = false;
      ++filled_;
      ready_.notify_one();
    }
    if (returned_ == filled_) return nullptr;
    auto& first = slots_[returned_ % slots_.size()];
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return first.done; });
    if (first.failure != nullptr) std::rethrow_exception(first.failure);
    ++returned_;
    return &first.content;
  }

 private:
  struct slot {
    encoded content;
    std::exception_ptr failure;
    bool done = false;
  };

  void stop() {
    {
      std::lock_guard const lock(mutex_);
      stopping_ = true;
    }
    ready_.notify_all();
    for (auto& each : threads_) each.join();
    threads_.clear();
  }

  void work() {
    document_encoder encode;
    std::unique_lock lock(mutex_);
    while (true) {
      ready_.wait(lock, [this] { return stopping_ || taken_ < filled_; });
      if (stopping_) return;
      auto& mine = slots_[taken_++ % slots_.size()];
      lock.unlock();
      std::exception_ptr failure;
      try {
        if (!encode) encode = (*make_)();
        encode_block(mine.content, encode);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      mine.failure = std::move(failure);
      mine.done = true;
      done_.notify_one();
    }
  }

  void encode_block(encoded& to, document_encoder const& encode) const {
    to.tokens.clear();
    to.documents = to.empty = 0;
    auto const& name = from_->names()[static_cast<std::size_t>(to.block.begin.file)];
    bool const wide = of_->vocabulary > most_narrow;
    for_each_document(of_->from, to.block, name, [&](std::string_view document, std::uint64_t at) {
      if (document.empty()) {
        ++to.empty;
        return;
      }
      ++to.documents;
      auto ids = encoded_at(encode, document, name, at);
      if (of_->separator >= 0) ids.push_back(of_->separator);
      for (auto const id : ids) {
        if (id >= 0 && id < of_->vocabulary) continue;
        throw format_error(name, at,
                           text(shard_writer_name, ": the document that begins here has the token ", id,
                                ", but .vocabulary = ", of_->vocabulary));
      }
      wide ? append<std::uint32_t>(to.tokens, ids) : append<std::uint16_t>(to.tokens, ids);
    });
  }
  static std::vector<std::int32_t> encoded_at(document_encoder const& encode, std::string_view document,
                                              std::string const& name, std::uint64_t at) {
    try {
      return encode(document);
    } catch (format_error const& error) {  // its offset is in the document; strings of JSON are UTF-8 already
      throw format_error(name, at + error.offset(), reason_of(error));
    } catch (config_error const& error) {
      throw format_error(name, at, text("the document that begins here cannot be encoded: ", error.what()));
    }
  }
  template <class Stored>
  static void append(std::vector<std::byte>& to, std::vector<std::int32_t> const& ids) {
    auto const before = to.size();
    to.resize(before + ids.size() * sizeof(Stored));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto const stored = static_cast<Stored>(ids[i]);
      std::memcpy(to.data() + before + i * sizeof(Stored), &stored, sizeof(Stored));
    }
  }

  static constexpr std::int64_t most_narrow = 1 << 16;
  token_shard_writer const* of_;
  document_reader* from_;
  std::function<document_encoder()> const* make_;
  std::vector<slot> slots_;   // slot i % slots is a worker's from filled_ > i until it is done
  std::size_t returned_ = 0;  // the caller's alone
  bool ended_ = false;

  std::mutex mutex_;  // guards what follows, and `done` and `failure` of the slots
  std::condition_variable ready_, done_;
  std::size_t filled_ = 0, taken_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

/// The directory `out`.partial: shards, and in tokens.json the place up to which they are complete.
class shards_in_progress {
 public:
  shards_in_progress(token_shard_writer const& of, std::vector<std::string> const& names, formats::file_system& files)
      : of_(of),
        parent_(made(formats::directory_of(of.out), files)),
        name_(formats::name_of(of.out)),
        type_(of.vocabulary > 1 << 16 ? formats::token_files::number::u32 : formats::token_files::number::u16) {
    if (name_.empty() || name_ == "." || name_ == "..")
      throw refused(".out = \"", of.out, "\" is not a directory's name");
    if (parent_.has(name_)) throw refused(of.out, " exists already; remove it, or give another .out");
    describe(names);
    in_.emplace(parent_.make(name_ + ".partial"));
    if (in_->has(record)) {
      take_up();
    } else {
      if (!in_->names().empty() && !only_shards()) {
        throw refused(in_->path(), " was not written here; remove it, or give another .out");
      }
      save(false);
    }
  }

  [[nodiscard]] tokens_written& written() noexcept { return written_; }
  [[nodiscard]] document_place place() const noexcept { return place_; }
  [[nodiscard]] bool complete() const noexcept { return complete_; }

  /// Appends the tokens of a block.
  void append(std::span<std::byte const> tokens, document_place end) {
    auto const width = std::int64_t{formats::token_files::bytes_of(type_)};
    while (!tokens.empty()) {
      if (!shard_) open_shard();
      auto const room = of_.shard_tokens - written_.tokens % of_.shard_tokens;
      auto const count = std::min(room, static_cast<std::int64_t>(tokens.size()) / width);
      shard_->write(tokens.first(static_cast<std::size_t>(count * width)));
      tokens = tokens.subspan(static_cast<std::size_t>(count * width));
      written_.tokens += count;
      if (count == room) close_shard();
    }
    place_ = end;
    count();
  }
  /// Stores the place, so that another process can continue here.
  void save(bool complete) {
    if (shard_) shard_->synchronise();
    if (in_) in_->synchronise();
    namespace json = formats::json;
    auto all = json::value::make({{"made_from", description_},
                                  {"complete", complete},
                                  {"tokens", written_.tokens},
                                  {"documents", written_.documents},
                                  {"empty_documents", written_.empty}});
    if (!complete) all.set("file", place_.file), all.set("offset", place_.offset);
    formats::atomic_write(*in_, record, json::to_string(all, 2) + "\n");
  }
  /// Gives the last shard its number of tokens, and the directory its name.
  void finish() {
    if (!complete_) {
      if (written_.tokens == 0) {
        parent_.remove(name_ + ".partial");
        throw refused("the files have no documents");
      }
      if (shard_) {
        shard_->synchronise();
        shard_.reset();
        set_header(written_.tokens / of_.shard_tokens, written_.tokens % of_.shard_tokens);
      }
      save(true);
    }
    count();
    written_.bytes = written_.of_bytes;
    parent_.rename(name_ + ".partial", name_);
    parent_.synchronise();
  }

 private:
  static constexpr char const* record = "tokens.json";

  template <class... Parts>
  static config_error refused(Parts const&... parts) {
    return config_error(text(shard_writer_name, ": ", parts...));
  }
  static formats::directory made(std::string const& path, formats::file_system& files) {
    formats::make_directories(path, files);
    return formats::directory(path, files);
  }
  static std::string shard_name(std::int64_t number) {
    auto const digits = text(number);
    return text("tokens_", std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0'), digits, ".bin");
  }
  void count() {
    written_.shards = (written_.tokens + of_.shard_tokens - 1) / of_.shard_tokens;
    auto const of = static_cast<std::size_t>(place_.file);
    // Of a compressed file: the size of its content is not known before its end.
    written_.bytes = complete_ ? written_.of_bytes : of < sizes_.size() ? std::min(place_.offset, sizes_[of]) : 0;
    for (std::int64_t i = 0; !complete_ && i < place_.file; ++i) {
      written_.bytes += sizes_[static_cast<std::size_t>(i)];
    }
  }
  [[nodiscard]] bool only_shards() const {
    auto const all = in_->names();
    return std::all_of(all.begin(), all.end(), [](std::string const& name) {
      return name == text(record, ".partial") || (name.starts_with("tokens_") && name.ends_with(".bin"));
    });
  }

  /// What decides the tokens: a partial directory that was begun with anything else is not continued.
  void describe(std::vector<std::string> const& names) {
    namespace json = formats::json;
    json::array list;
    for (auto const& name : names) {
      struct ::stat about {};
      if (::stat(name.c_str(), &about) != 0) throw formats::detail::io_failure(name, "examine", errno);
      if (about.st_size == 0) throw io_error(name, text(shard_writer_name, ": the file is empty; leave it out"));
      written_.of_bytes += about.st_size;
      sizes_.push_back(about.st_size);
      list.push_back(json::value::make({{"name", name},
                                        {"bytes", std::int64_t{about.st_size}},
                                        {"modified", text(about.st_mtim.tv_sec, ".", about.st_mtim.tv_nsec)}}));
    }
    description_ = json::value::make({{"files", std::move(list)},
                                      {"documents", name_of(of_.from.documents)},
                                      {"key", of_.from.key},
                                      {"encoder", of_.encoder},
                                      {"vocabulary", of_.vocabulary},
                                      {"separator", std::int64_t{of_.separator}},
                                      {"shard_tokens", of_.shard_tokens}});
  }

  /// Continues where the last save was.
  void take_up() {
    namespace json = formats::json;
    auto const path = in_->path_of(record);
    auto const saved = json::parse(formats::read_text(*in_, record, 1 << 28), path);
    if (saved.at("made_from") != description_) {
      throw refused(in_->path(),
                    " was begun with other or changed files, another tokenizer or other options; repeat that call, or "
                    "remove the directory to begin again");
    }
    complete_ = saved.at("complete").as_bool();
    written_.tokens = saved.at("tokens").as_int64();
    written_.documents = saved.at("documents").as_int64();
    written_.empty = saved.at("empty_documents").as_int64();
    written_.resumed = true;
    if (complete_) return;
    place_ = {saved.at("file").as_int64(), saved.at("offset").as_int64()};
    if (written_.tokens < 0) saved.at("tokens").fail("a negative number of tokens");
    if (place_.file < 0 || place_.file > static_cast<std::int64_t>(sizes_.size()) || place_.offset < 0) {
      saved.at("file").fail("not a place in the files");
    }
    count();
    auto const in_last = written_.tokens % of_.shard_tokens;
    if (in_last == 0) return;
    auto const name = shard_name(written_.tokens / of_.shard_tokens);
    auto const bytes =
        formats::token_files::llm_c_header_bytes +
        static_cast<std::uint64_t>(in_last) * static_cast<std::uint64_t>(formats::token_files::bytes_of(type_));
    shard_.emplace(*in_, name, formats::file::access::extend);
    if (shard_->size() < bytes) {
      throw io_error(in_->path_of(name), text("has ", how_many(shard_->size(), "byte"), ", but ", record, " says ",
                                              bytes, "; remove the directory to begin again"));
    }
    shard_->truncate(bytes);
  }

  void open_shard() {
    shard_.emplace(*in_, shard_name(written_.tokens / of_.shard_tokens), formats::file::access::create);
    shard_->write(formats::token_files::llm_c_bytes({type_, of_.shard_tokens}));
  }
  void close_shard() {
    shard_->synchronise();
    shard_->close();
    shard_.reset();
  }
  void set_header(std::int64_t number, std::int64_t tokens) {
    auto const name = shard_name(number);
    auto const path = in_->path_of(name);
    auto& files = in_->files();
    auto const header = formats::token_files::llm_c_bytes({type_, tokens});
    auto const to = formats::detail::checked(path, "open for writing", [&] {
      return files.open(in_->descriptor(), name.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0);
    });
    struct closes {
      formats::file_system& files;
      int descriptor;
      ~closes() { files.close(descriptor); }
    } const guard{files, to};
    for (auto left = std::span<std::byte const>(header); !left.empty();) {
      auto const put =
          formats::detail::checked(path, "write", [&] { return files.write(to, left.data(), left.size()); });
      if (put == 0) throw io_error(path, "cannot write: the device accepts no more bytes");
      left = left.subspan(static_cast<std::size_t>(put));
    }
    formats::detail::checked(path, "synchronise", [&] { return files.synchronise(to); });
  }

  token_shard_writer of_;
  formats::directory parent_;
  std::string name_;
  formats::token_files::number type_;
  formats::json::value description_;
  std::vector<std::int64_t> sizes_;  // of the files that are read
  std::optional<formats::directory> in_;
  std::optional<formats::file> shard_;
  document_place place_;
  tokens_written written_;
  bool complete_ = false;
};

}  // namespace detail

inline tokens_written token_shard_writer::write(std::function<document_encoder()> const& make_encoder,
                                                std::function<void(tokens_written const&)> const& progress,
                                                formats::file_system& files,
                                                std::vector<formats::decompressor> const& can_read) const {
  auto const refuse = [](auto const&... parts) {
    return config_error(text(detail::shard_writer_name, ": ", parts...));
  };
  auto const most = std::int64_t{1} << 31;
  if (vocabulary < 1 || vocabulary > most) {
    throw refuse(".vocabulary = ", vocabulary, ", but it must be from 1 to ", most);
  }
  if (separator < -1 || separator >= vocabulary) {
    throw refuse(".separator = ", separator, ", but it must be a token below ", vocabulary, ", or -1 for none");
  }
  if (shard_tokens < 1 || shard_tokens >= most) {
    throw refuse(".shard_tokens = ", shard_tokens, ", but it must be from 1 to ", most - 1);
  }
  if (workers < 0 || workers > 1024) throw refuse(".workers = ", workers, ", but it must be from 0 to 1024");
  detail::shards_in_progress to(*this, detail::names_of(from, detail::shard_writer_name, can_read), files);
  auto& written = to.written();
  if (!to.complete()) {
    detail::document_reader reader(from, detail::shard_writer_name, to.place(), can_read);
    detail::block_encoder blocks(*this, reader, workers == 0 ? usable_cores() : workers, make_encoder);
    auto saved = std::chrono::steady_clock::now();
    while (auto const* const block = blocks.next()) {
      written.documents += block->documents;
      written.empty += block->empty;
      to.append(block->tokens, block->end);
      if (progress) progress(written);
      if (std::chrono::steady_clock::now() - saved < save_every) continue;
      to.save(false);
      saved = std::chrono::steady_clock::now();
    }
  }
  to.finish();
  return written;
}

}  // namespace trireme::data
