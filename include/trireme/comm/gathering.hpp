#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/detail/file_gather.hpp"
#include "trireme/comm/rendezvous.hpp"

namespace trireme::comm {

/// Ranks that have found each other, for an engine that needs only that: who they are, a way to exchange a few bytes
/// at set-up, and, where there is one, a channel beside the engine's own that tells who is missing.
struct gathering {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  /// What every rank passed, in rank order. Collective; called once, while this object lives on all ranks.
  std::function<std::vector<std::string>(std::string const&)> all_gather{};
  /// Asked by every rank after a failure: a sentence about the rank that is missing, or nothing. May be empty.
  std::function<std::string()> who_is_missing{};
  /// Tells the other ranks that this one ends with an error. May be empty.
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

[[nodiscard]] inline bootstrap::place placed(std::string_view who) {
  auto const here = bootstrap::detect();
  if (here.size < 1)
    throw config_error(text(who, ": the environment (", here.because,
                            ") does not say how many ranks there are; set TRIREME_RANK and TRIREME_SIZE"));
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

/// Over TCP (comm/rendezvous.hpp), where the environment says.
inline constexpr meeting_method by_rendezvous{"comm::by_rendezvous", &detail::gather_by_rendezvous};
/// Through files PATH.0, PATH.1, ..., in a folder that all ranks reach; gone when all have met.
inline constexpr meeting_method by_file{"comm::by_file", &detail::gather_by_file};

}  // namespace trireme::comm
