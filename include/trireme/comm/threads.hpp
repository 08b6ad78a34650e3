#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/any_world.hpp"
#include "trireme/comm/collectives.hpp"
#include "trireme/comm/detail/answer.hpp"
#include "trireme/comm/space_kernels.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/compiled.hpp"

namespace trireme::comm {

/// Ranks are threads of this process, which access each other's memory directly.
///
/// Ranks    `ranks` of them, at most 256. The operating system schedules them, and threads that they start, on the
///          cores available to the process; other programs, nested launches and threads of loaders, OpenMP or LibTorch
///          may compete for the same cores. With `pin` each rank stays on a core of its own, if there are as many ranks
///          as cores; threads that a rank starts then inherit its core.
/// Errors   launch throws config_error if `ranks` or `deadline` is out of range.
struct threads {
  using policy_category = slot::communicator;

  int ranks = 2;
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  bool pin = false;

  friend bool operator==(threads const&, threads const&) = default;
};

[[nodiscard]] inline std::string to_string(threads const& it) {
  return text("comm::threads{.ranks = ", it.ranks, ", .deadline = ", to_string(it.deadline),
              it.pin ? ", .pin = true}" : "}");
}

/// One rank of comm::threads.
///
/// The engine is that of processes on one machine (docs/adr/0023), but each rank can access all memory: in an
/// all_reduce each combines its slice of all buffers, in rank order, and writes the result to all of them. All ranks
/// have the same bits, on every run. Values of up to 1 KiB travel with the announcement of their call. A broadcast of
/// up to 16 KiB waits for its root only. Every memory space with kernels (space_kernels.hpp) is supported.
///
/// Bytes    counted as comm::bytes_sent says. Memory traffic of a large all_reduce is 2 * size * n bytes in all.
/// Ranks    every rank calls the same collectives in the same order; calls that differ in kind, type, count, reduction
///          or root are an error on every rank (level normal).
/// Numerics in rank order; bfloat16 and float16 are summed in float and rounded once. The same bits as comm::processes,
///          and as comm::mpi in its default order.
/// Threads  one caller a rank. A view must outlive its request. A rank makes progress while it tests, waits, or is in a
///          blocking collective.
/// Errors   comm_error if a rank fails, is later than the deadline, or has returned; it names that rank by its rank in
///          the launch. After an error every further call on a communicator of the launch throws. config_error for
///          sizes that cannot be divided among the ranks.
class threads_world : public engine_world<threads_world> {
 public:
  static constexpr std::string_view name = "threads";
  static constexpr bool carries_device_memory = true;

  explicit threads_world(std::shared_ptr<detail::collective_engine> engine) noexcept
      : engine_world<threads_world>(std::move(engine)) {}

  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind op) noexcept {
    return requires { &space_kernels<Space>::copy; }
    &&detail::can_combine<Space>(op);
  }

  /// The views that all ranks passed, in rank order. They may differ in shape. Allocates the vector.
  template <class T, class Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) {
    static_assert(std::is_trivially_copyable_v<tensor_view<T, Space>>, "views travel as bytes");
    std::vector<tensor_view<T, Space>> all(static_cast<std::size_t>(size()));
    command it;
    it.what = {.kind = collective::peers, .type = dtype_of<std::remove_const_t<T>>, .count = sizeof view};
    it.from = &view;
    it.to = all.data();
    engine_->run(it);
    return all;
  }
  /// True: every rank can access all memory.
  template <element T>
  [[nodiscard]] tensor<T> allocate(shape extents) const {
    return tensor<T>(extents);
  }
};

namespace detail {

/// Errors   config_error if `ranks` or `deadline` is out of range.
void check(threads const& description);
/// Runs `body(rank, world)` in one thread a rank, joins all, and rethrows the first error.
void run_ranks(threads const& description, std::function<void(int, threads_world&)> const& body);

}  // namespace detail

/// How trireme::launch runs a body on comm::threads; returns the result of rank 0's body.
template <class Body>
auto launch_ranks(threads const& description, Body& body) {
  using result = std::decay_t<std::invoke_result_t<Body&, threads_world&>>;
  return detail::returned_by<result>([&](auto const& keep) {
    detail::run_ranks(description, [&](int rank, threads_world& world) {
      if (rank == 0)
        keep([&]() -> decltype(auto) { return std::invoke(body, world); });
      else
        static_cast<void>(std::invoke(body, world));
    });
  });
}

}  // namespace trireme::comm

#ifndef TRIREME_COMPILED
#include "trireme/comm/threads.ipp"
#endif
