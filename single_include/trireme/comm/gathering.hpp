// Trireme 0.1.0: trireme/comm/gathering.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 2fc0661399d5de4413384f3a0869869d3d349cbdbf14ec49f2e6231bc704eadc
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/comm/rendezvous.hpp"

// ---- trireme/comm/gathering.hpp
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::comm {

/// Ranks that have met: their numbers, a function to exchange a few bytes at set-up, and, if available, a channel apart
/// from the engine's own that reports missing ranks. For engines that need no more than that.
struct gathering {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  /// The string that every rank passed, in rank order. Collective; called once, while this object lives on all ranks.
  std::function<std::vector<std::string>(std::string const&)> all_gather{};
  /// Called by every rank after a failure: a sentence about the missing rank, or nothing. May be empty.
  std::function<std::string()> who_is_missing{};
  /// Reports to the other ranks that this one ends with an error. May be empty.
  std::function<void(std::string const&)> abandon{};
};

/// How ranks find each other: by_rendezvous, by_file, or by_mpi (comm/mpi_gathering.hpp).
struct meeting_method {
  struct request {
    std::string_view who;  ///< begins every message: "trireme::comm::nccl"
    std::string file;
    std::chrono::milliseconds deadline;
  };
  std::string_view name;
  gathering (*gather)(request const&);
  friend bool operator==(meeting_method const& a, meeting_method const& b) noexcept { return a.gather == b.gather; }
};

namespace detail {

/// An all-gather through files PATH.0, PATH.1, ...: each rank writes its own atomically, and reads all.
///
/// A file holds its rank's nonce, the nonces that the rank has seen, and its data. A rank is done when every file
/// contains the current nonces of all ranks, which files of an earlier run cannot contain. Called once.
class file_gather {
 public:
  static constexpr std::size_t most_bytes = 1 << 16;  ///< of a rank's data

  file_gather(std::string_view who, std::string path, int rank, int size, std::chrono::milliseconds deadline)
      : who_(who), path_(std::move(path)), rank_(rank), size_(size), deadline_(deadline) {
    if (path_.empty())
      throw config_error(text(who, ": meeting by file needs .file; set it to a path that all ranks can reach"));
    if (::getrandom(&nonce_, sizeof nonce_, 0) != sizeof nonce_)
      throw config_error(text(who, ": the operating system returned no random numbers"));
    nonce_ |= 1U;  // 0 means: not seen
  }
  file_gather(file_gather const&) = delete;
  file_gather& operator=(file_gather const&) = delete;
  /// Called when all ranks are done, so that no rank reads the file any more.
  ~file_gather() {
    if (written_) ::unlink(name(rank_).c_str());
  }

  [[nodiscard]] std::vector<std::string> operator()(std::string const& own) {
    if (own.size() > most_bytes)
      throw config_error(
          text(who_, ": ", how_many(own.size(), "byte"), " are too many to exchange by file; send less than 64 KiB"));
    auto const ranks = static_cast<std::size_t>(size_);
    std::vector<std::uint64_t> seen(ranks);
    std::vector<record> all(ranks);
    auto const until = std::chrono::steady_clock::now() + deadline_;
    auto pause = std::chrono::microseconds(200);
    for (bool first = true;; first = false) {
      auto now = seen;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (static_cast<int>(rank) != rank_) all[rank] = read(static_cast<int>(rank));
        now[rank] = static_cast<int>(rank) == rank_ ? nonce_ : all[rank].nonce;
      }
      if (first || now != seen) write({nonce_, now, own});
      seen = std::move(now);
      all[static_cast<std::size_t>(rank_)] = {nonce_, seen, own};
      bool const complete = std::ranges::find(seen, std::uint64_t{0}) == seen.end() &&
                            std::ranges::all_of(all, [&](record const& each) { return each.seen == seen; });
      if (complete) break;
      if (std::chrono::steady_clock::now() > until) throw comm_error(lateness(all, seen));
      std::this_thread::sleep_for(pause);
      pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds(20));
    }
    std::vector<std::string> blobs;
    for (auto& each : all) blobs.push_back(std::move(each.blob));
    return blobs;
  }

 private:
  struct record {
    std::uint64_t nonce = 0;
    std::vector<std::uint64_t> seen{};
    std::string blob{};
  };

  [[nodiscard]] std::string name(int rank) const { return text(path_, ".", rank); }
  [[nodiscard]] std::string lateness(std::vector<record> const& all, std::vector<std::uint64_t> const& seen) const {
    std::string missing;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].seen != seen) missing += text(missing.empty() ? "" : ", ", rank);
    return text(who_, ": waited ", to_string(deadline_), " for rank ", missing, " of ", size_, " at the files ", path_,
                ".*; start it, and let all ranks reach this path");
  }

  /// The record of a rank; empty if the file is missing or incomplete.
  [[nodiscard]] record read(int rank) const {
    descriptor const file(::open(name(rank).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file.is_open()) return {};
    auto const head = (static_cast<std::size_t>(size_) + 1) * sizeof(std::uint64_t);
    std::string bytes(head + most_bytes + 1, '\0');
    std::size_t got = 0;
    while (got < bytes.size()) {
      auto const more = ::read(file.number(), bytes.data() + got, bytes.size() - got);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) break;
      got += static_cast<std::size_t>(more);
    }
    if (got < head || got == bytes.size()) return {};  // of a run with more ranks, or another program's file
    record out;
    out.seen.resize(static_cast<std::size_t>(size_));
    std::memcpy(&out.nonce, bytes.data(), sizeof out.nonce);
    std::memcpy(out.seen.data(), bytes.data() + sizeof out.nonce, head - sizeof out.nonce);
    out.blob = bytes.substr(head, got - head);
    return out;
  }

  void write(record const& it) {
    auto const draft = text(path_, ".", rank_, ".", nonce_);
    std::string bytes(reinterpret_cast<char const*>(&it.nonce), sizeof it.nonce);
    bytes.append(reinterpret_cast<char const*>(it.seen.data()), it.seen.size() * sizeof(std::uint64_t));
    bytes += it.blob;
    descriptor file(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    bool const made = file.is_open();
    bool good = made;
    for (std::size_t done = 0; good && done < bytes.size();) {
      auto const more = ::write(file.number(), bytes.data() + done, bytes.size() - done);
      if (more < 0 && errno == EINTR) continue;
      good = more > 0;
      if (good) done += static_cast<std::size_t>(more);
    }
    good = file.close() && good && ::rename(draft.c_str(), name(rank_).c_str()) == 0;
    if (!good) {
      auto const problem = errno;
      if (made) ::unlink(draft.c_str());
      throw config_error(text(who_, ": the file ", draft, " cannot be written: ", system_sentence(problem),
                              "; give .file a path in a folder that all ranks may write"));
    }
    written_ = true;
  }

  std::string who_, path_;
  int rank_, size_;
  std::chrono::milliseconds deadline_;
  std::uint64_t nonce_ = 0;
  bool written_ = false;
};

[[nodiscard]] inline bootstrap::launch_info placed(std::string_view who) {
  auto const here = bootstrap::detect();
  if (here.size < 1)
    throw config_error(text(who, ": the environment (", here.because,
                            ") does not give the number of ranks; set TRIREME_RANK and TRIREME_SIZE"));
  return here;
}

[[nodiscard]] inline gathering gather_by_rendezvous(meeting_method::request const& it) {
  auto const here = placed(it.who);
  gathering out{here.rank, here.size, here.local_rank};
  if (here.size == 1) {
    out.all_gather = [](std::string const& own) { return std::vector<std::string>{own}; };
    return out;
  }
  auto where = rendezvous::from(here);
  if (!it.file.empty()) where.file = it.file;
  where.deadline = it.deadline;
  auto const met = std::make_shared<meeting>(where, here.rank, here.size, it.who);
  out.all_gather = [met](std::string const& own) { return met->all_gather(own); };
  return out;
}

[[nodiscard]] inline gathering gather_by_file(meeting_method::request const& it) {
  auto const here = placed(it.who);
  gathering out{here.rank, here.size, here.local_rank};
  auto const files = std::make_shared<file_gather>(it.who, it.file, here.rank, here.size, it.deadline);
  out.all_gather = [files](std::string const& own) { return (*files)(own); };
  return out;
}

}  // namespace detail

/// Over TCP (comm/rendezvous.hpp), at the address that the environment gives.
inline constexpr meeting_method by_rendezvous{"comm::by_rendezvous", &detail::gather_by_rendezvous};
/// Through files PATH.0, PATH.1, ..., in a folder that all ranks can reach; removed when all have met.
inline constexpr meeting_method by_file{"comm::by_file", &detail::gather_by_file};

}  // namespace trireme::comm
