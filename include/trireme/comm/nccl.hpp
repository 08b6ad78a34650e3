#pragma once

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/any_world.hpp"
#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/comm/cuda.hpp"
#include "trireme/comm/gathering.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/nccl/engine.hpp"
#include "trireme/comm/sum_order.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm {

/// Ranks have one CUDA device each; NCCL carries their messages.
///
/// Ranks    without a launcher one thread of this process for each device that it sees. Under torchrun, mpirun or srun
///          the launcher's processes (comm/bootstrap.hpp), each on the device with its number on the machine, or on the
///          only one that it sees. `.meet` is how they find each other: by_rendezvous, by_file
///          (then `.file` is a path that all of them reach), or by_mpi (comm/mpi_gathering.hpp).
/// Numerics NCCL's own: sums in an order that depends on the number of ranks and the size, bfloat16 and float16 rounded
///          at every step. With `.order = sum_order::ranks` sums are in rank order and rounded once, with the same bits
///          as comm::threads and comm::mpi: each rank collects its slice from all (size() slices of scratch memory),
///          reduces it with kernels of this library, and sends it to all. The same number of bytes travels, without
///          NCCL's rings and trees. Sums with reduction::pairwise are always formed that way. NCCL also decides what
///          max and min give for NaN and for zeros of both signs, unless the order is that of the ranks.
/// Errors   launch throws config_error if there is no device for this rank, comm_error if the ranks have not met by the
///          deadline.
struct nccl {
  using policy_category = slot::communicator;

  meeting_method meet = by_rendezvous;
  std::string file{};
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  sum_order order = sum_order::any;
  int device = -1;  ///< of this process, which is then one rank; -1: as above

  friend bool operator==(nccl const&, nccl const&) = default;
};

[[nodiscard]] inline std::string to_string(nccl const& it) {
  auto out = text("comm::nccl{.meet = ", it.meet.name);
  if (!it.file.empty()) out += text(", .file = \"", it.file, "\"");
  out += text(", .deadline = ", to_string(it.deadline));
  if (it.order == sum_order::ranks) out += ", .order = sum_order::ranks";
  if (it.device >= 0) out += text(", .device = ", it.device);
  return out + "}";
}

/// A pending collective of comm::nccl. The device runs it without the host; `test()` and `wait()` query it, `order()`
/// makes this thread's stream wait for it.
using nccl_request = engine_request<detail::nccl_communicator, detail::nccl_operation>;

/// One rank of comm::nccl: every collective on CUDA memory, on a stream of its own.
///
/// A collective begins when all work that this thread has queued on cuda::stream() is done. A call, or order() of its
/// request, returns when that stream waits for the result, and so does what this thread queues there afterwards; wait()
/// and barrier() return when the collective is done. Collectives on host memory go through pinned and device memory,
/// and are done when they return: they are meant for votes and counts.
///
/// Bytes    counted by the formulas of comm::bytes_sent, whatever NCCL sends.
/// Ranks    every rank calls the same collectives in the same order, also over several communicators of a launch: they
///          share a stream, so that two NCCL kernels never wait for each other to leave a device. NCCL does not detect
///          differing calls: comm::checked does. What a rank sends to itself is matched with a receive of the same
///          exchange. Exchanges wait for earlier ones, too, unless their messages are on routes (open_routes()): each
///          has an NCCL communicator of two ranks and a stream.
/// Numerics see comm::nccl.
/// Threads  one caller a rank, on the device that was chosen at launch. A view must outlive its request.
/// Errors   no call, and no cuda::finish() of a thread whose stream waits for a collective, waits longer than the
///          deadline. comm_error if a rank is later than the deadline or NCCL reports an
///          error on any rank: then NCCL is aborted, work on the device ends, and every further call on a communicator
///          of the launch throws. The error names the operation, and also the missing rank if the ranks have met by
///          MPI.
class nccl_world : public collectives<nccl_world> {
 public:
  using request = nccl_request;
  using space = cuda;
  static constexpr std::string_view name = "nccl";
  static constexpr bool carries_device_memory = true;
  static constexpr bool progresses = true;
  static constexpr bool ordered = false;  // unless .order is sum_order::ranks
  static constexpr bool one_order = true;

  /// Collective over `ranks`, each with a device of its own.
  nccl_world(nccl const& description, gathering const& ranks) {
    if (description.deadline.count() < 1)
      throw config_error(
          text(detail::nccl_who, ": .deadline is ", to_string(description.deadline), "; give the ranks at least 1ms"));
    bool const in_rank_order = description.order == sum_order::ranks;
    if (in_rank_order && ranks.size > detail::most_cuda_terms)
      throw config_error(text(detail::nccl_who, ": .order is sum_order::ranks with ", how_many(ranks.size, "rank"),
                              "; one kernel reduces at most ", detail::most_cuda_terms, ": leave .order out"));
    detail::choose_device(description.device, ranks.local_rank);
    auto const launch = std::make_shared<detail::nccl_launch>(in_rank_order, ranks.who_is_missing);
    auto const id = detail::agree_on_id(ranks);
    at_ = std::make_shared<detail::nccl_communicator>(
        launch, description.deadline, [&](ncclComm_t* made, ncclConfig_t* config) {
          return ncclCommInitRankConfig(made, ranks.size, id, ranks.rank, config);
        });
  }

  [[nodiscard]] int rank() const noexcept { return at_->rank(); }
  [[nodiscard]] int size() const noexcept { return at_->size(); }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return at_->deadline; }

  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind op) noexcept {
    return (std::derived_from<Space, cuda> || touchable<Space>)&&op != reduction_kind::own;
  }
  void run(command const& it) {
    auto pending = start(it);
    it.what.kind == collective::barrier ? pending.wait() : pending.order();
  }
  [[nodiscard]] request start(command const& it) { return {at_, detail::begin(at_, it)}; }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] nccl_world split(int color, int key) {
    detail::expect_color(who(), color);
    return part(color, key, deadline());
  }
  /// The same ranks again, with counters of its own.
  [[nodiscard]] nccl_world duplicate() { return duplicate(deadline()); }
  [[nodiscard]] nccl_world duplicate(std::chrono::milliseconds deadline) { return part(0, rank(), deadline); }

  /// Messages of exchanges along these routes wait from now on only for earlier ones on the same route. A pipeline
  /// opens those between its stages.
  ///
  /// Bytes    buffers of NCCL, about 10 MiB for each of at most 4 channels of a route, mostly on the receiving device.
  /// Ranks    collective, with the same list on all ranks. What is split or duplicated from here has no routes.
  void open_routes(std::span<route const> routes) {
    barrier();  // so that everything before it is queued
    detail::open_routes(*at_, routes);
  }

  /// Ends this rank with an error: work on its device ends, and no communicator of the launch waits any longer.
  void abandon(std::string const& sentence) noexcept {
    try {
      at_->launch().fail(sentence);
    } catch (...) {  // no memory for the sentence
    }
  }

 private:
  explicit nccl_world(std::shared_ptr<detail::nccl_communicator> at) noexcept : at_(std::move(at)) {}

  [[nodiscard]] nccl_world part(int color, int key, std::chrono::milliseconds deadline) {
    barrier();  // so that everything before it is queued
    auto const parent = at_;
    return nccl_world(std::make_shared<detail::nccl_communicator>(
        parent->shared_launch(), deadline, [&](ncclComm_t* made, ncclConfig_t* config) {
          parent->expect(ncclCommSplit(parent->handle(), color, key, made, config), "splitting a communicator");
          parent->wait_until_settled("splitting a communicator");
          return ncclSuccess;
        }));
  }

  std::shared_ptr<detail::nccl_communicator> at_;
};

namespace detail {

/// Whether the ranks are threads of this process, one for each of several devices.
[[nodiscard]] inline bool ranks_are_threads(nccl const& description) {
  return description.device < 0 && description.file.empty() && description.meet == by_rendezvous &&
         bootstrap::detect().started_by == bootstrap::launcher::single && visible_devices() > 1;
}
/// One rank of them: it meets the others through a world of threads.
template <class Body>
decltype(auto) run_in_thread(nccl const& description, threads_world& others, Body& body) {
  auto const all_gather = [&](std::string const& own) {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(others.size()));
    sizes[static_cast<std::size_t>(others.rank())] = static_cast<std::int64_t>(own.size());
    others.all_gather(tensor_view<std::int64_t>(sizes));
    auto const most = *std::max_element(sizes.begin(), sizes.end());
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(most) * sizes.size());
    std::copy(own.begin(), own.end(), bytes.begin() + others.rank() * most);
    others.all_gather(tensor_view<std::uint8_t>(bytes));
    std::vector<std::string> all;
    for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
      auto const first = bytes.begin() + static_cast<std::ptrdiff_t>(rank) * most;
      all.emplace_back(first, first + sizes[rank]);
    }
    return all;
  };
  nccl_world world(
      description,
      {.rank = others.rank(), .size = others.size(), .local_rank = others.rank(), .all_gather = all_gather});
  try {
    return std::invoke(body, world);
  } catch (std::exception const& problem) {
    world.abandon(text(nccl_who, ": rank ", others.rank(), " ended with an error: ", problem.what()));
    throw;
  }
}

}  // namespace detail

/// How trireme::launch runs a body on comm::nccl: each rank runs it once. Each process gets the result of its (first)
/// rank.
template <class Body>
auto launch_ranks(nccl const& description, Body& body) {
  if (detail::ranks_are_threads(description)) {
    auto in_thread = [&](threads_world& others) { return detail::run_in_thread(description, others, body); };
    return launch_ranks(threads{.ranks = detail::visible_devices(), .deadline = description.deadline}, in_thread);
  }
  auto ranks = description.meet.gather({detail::nccl_who, description.file, description.deadline});
  nccl_world world(description, ranks);
  ranks.all_gather = {};  // all have met
  auto const abandon = [&](std::string const& why) {
    auto const sentence = text(detail::nccl_who, ": rank ", ranks.rank, " ended with an error: ", why);
    if (ranks.abandon) ranks.abandon(sentence);
    world.abandon(sentence);
  };
  try {
    return std::invoke(body, world);
  } catch (std::exception const& problem) {
    abandon(problem.what());
    throw;
  } catch (...) {
    abandon("an exception that is not a std::exception");
    throw;
  }
}

}  // namespace trireme::comm
