#pragma once

#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "trireme/comm/detail/mpi_driver.hpp"
#include "trireme/comm/detail/shares.hpp"
#include "trireme/comm/detail/thread_ranks.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

class mpi_world;

/// Ranks are the processes that mpirun has started.
///
/// Ranks    all of MPI_COMM_WORLD with launch; those of somebody's communicator with borrow().
/// Threads  MPI_THREAD_SERIALIZED. While requests are in flight a thread of ours is inside MPI: own MPI calls need
///          MPI_THREAD_MULTIPLE then. With none in flight MPI is the caller's alone.
/// Errors   launch and borrow throw config_error if MPI lacks MPI_THREAD_SERIALIZED, or is finalised.
struct mpi {
  using policy_category = slot::communicator;

  std::chrono::milliseconds deadline = std::chrono::seconds(60);

  /// A world on the ranks of `theirs`, which is duplicated (so: collective) and never freed. MPI must be initialised.
  [[nodiscard]] static mpi_world borrow(MPI_Comm theirs, std::chrono::milliseconds deadline = std::chrono::seconds(60));

  friend bool operator==(mpi const&, mpi const&) = default;
};

[[nodiscard]] inline std::string to_string(mpi const& it) {
  return text("comm::mpi{.deadline = ", detail::to_string(it.deadline), "}");
}

/// A pending collective of comm::mpi. It proceeds by itself; `test()` and `wait()` help.
///
/// Threads  the rank that started it.   Errors  comm_error as mpi_world; the destructor waits and swallows it.
class mpi_request {
 public:
  mpi_request() = default;
  mpi_request(std::shared_ptr<detail::mpi_driver> driver, detail::mpi_operation& op) noexcept
      : driver_(std::move(driver)), op_(&op) {}
  mpi_request(mpi_request&& other) noexcept
      : driver_(std::move(other.driver_)), op_(std::exchange(other.op_, nullptr)) {}
  mpi_request& operator=(mpi_request&& other) noexcept {
    if (this != &other) {
      finish();
      driver_ = std::move(other.driver_);
      op_ = std::exchange(other.op_, nullptr);
    }
    return *this;
  }
  ~mpi_request() { finish(); }

  [[nodiscard]] bool test() {
    if (op_ == nullptr) return true;
    try {
      if (!driver_->test(*op_)) return false;
    } catch (...) {
      release();
      throw;
    }
    release();
    return true;
  }
  void wait() {
    if (op_ == nullptr) return;
    try {
      driver_->wait(*op_);
    } catch (...) {
      release();
      throw;
    }
    release();
  }

 private:
  void release() { driver_->release(*std::exchange(op_, nullptr)); }
  void finish() noexcept {
    try {
      wait();
    } catch (...) {  // every later call throws it again
    }
  }

  std::shared_ptr<detail::mpi_driver> driver_;
  detail::mpi_operation* op_ = nullptr;
};

/// One rank of comm::mpi.
///
/// Sums are formed here, in rank order, not by MPI: small messages go to every rank whole, large ones as slices that
/// are reduced and then spread, between each pair of ranks directly. So the bits are those of comm::threads.
///
/// Bytes    counted as comm::bytes_sent says; announcements of 16 bytes and messages under 16 KiB may send more.
/// Ranks    every rank calls the same collectives in the same order; what differs in kind, type, count, reduction or
/// root
///          is an error on every rank (level normal).
/// Numerics in rank order; bfloat16 is summed in float and rounded once. The same bits as comm::threads.
/// Threads  one caller a rank. A view must outlive its request.
/// Errors   comm_error if MPI reports one, or a rank is late past the deadline or announces its failure, with its name.
///          After an error MPI is not finalised, so that mpirun ends the other ranks when this one ends.
class mpi_world {
 public:
  using policy_category = slot::communicator;
  using request = mpi_request;
  static constexpr std::string_view name = "mpi";
  static constexpr bool progresses = true;  // a request travels while its rank computes

  /// Takes `own`, a communicator of this world alone, and frees it at the end.
  mpi_world(std::shared_ptr<detail::mpi_driver> driver, MPI_Comm own, std::chrono::milliseconds deadline)
      : driver_(std::move(driver)), group_(new detail::mpi_group, [driver = driver_](detail::mpi_group* group) {
          driver->alone([&] {
            if (group->handle != MPI_COMM_NULL && !detail::mpi_session::is_over()) MPI_Comm_free(&group->handle);
          });
          delete group;
        }) {
    group_->handle = own;
    group_->deadline = deadline;
    driver_->alone([&] {
      MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
      MPI_Comm_rank(own, &group_->rank);
      MPI_Comm_size(own, &group_->size);
      void* bound = nullptr;
      int known = 0;
      MPI_Comm_get_attr(own, MPI_TAG_UB, static_cast<void*>(&bound), &known);
      group_->window = static_cast<std::uint64_t>((known != 0 ? *static_cast<int*>(bound) : 32767) - 4) / 3;
    });
  }
  mpi_world(mpi_world&&) = default;
  mpi_world& operator=(mpi_world&&) = default;
  ~mpi_world() {
    // Freeing is collective: after a failure the others may not come.
    if (group_ != nullptr && driver_->failed()) group_->handle = MPI_COMM_NULL;
  }

  [[nodiscard]] int rank() const noexcept { return group_->rank; }
  [[nodiscard]] int size() const noexcept { return group_->size; }
  [[nodiscard]] traffic_counters traffic() const noexcept { return traffic_; }

  void barrier() { start<std::uint8_t, host>(false, {detail::collective::barrier}, {}, {}, nullptr, 0).wait(); }

  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  void all_reduce(tensor_view<T, Space> values, Op how = {}) {
    start_all_reduce(false, values, how).wait();
  }
  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  [[nodiscard]] request all_reduce_async(tensor_view<T, Space> values, Op how = {}) {
    return start_all_reduce(true, values, how);
  }

  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  void reduce_scatter(tensor_view<T, Space> values, Op how = {}) {
    start_reduce_scatter(false, values, how).wait();
  }
  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  [[nodiscard]] request reduce_scatter_async(tensor_view<T, Space> values, Op how = {}) {
    return start_reduce_scatter(true, values, how);
  }

  template <element T, class Space>
  void all_gather(tensor_view<T, Space> values) {
    start_all_gather(false, values).wait();
  }
  template <element T, class Space>
  [[nodiscard]] request all_gather_async(tensor_view<T, Space> values) {
    return start_all_gather(true, values);
  }

  template <class From, element T, class Space>
  requires std::same_as<std::remove_const_t<From>, T>
  void all_to_all(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    start_all_to_all<T, Space>(false, from, to).wait();
  }
  template <class From, element T, class Space>
  requires std::same_as<std::remove_const_t<From>, T>
  [[nodiscard]] request all_to_all_async(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    return start_all_to_all<T, Space>(true, from, to);
  }

  template <element T, class Space>
  void broadcast(tensor_view<T, Space> values, int root) {
    start_broadcast(false, values, root).wait();
  }
  template <element T, class Space>
  [[nodiscard]] request broadcast_async(tensor_view<T, Space> values, int root) {
    return start_broadcast(true, values, root);
  }

  /// The group of the ranks that pass the same color, in the order of (key, rank). color >= 0. Its traffic starts at 0.
  [[nodiscard]] mpi_world split(int color, int key) {
    detail::expect_color(who, color);
    // MPI_Comm_split knows no deadline: once all have arrived here, all will call it.
    start<std::uint8_t, host>(false, {detail::collective::split}, {}, {}, nullptr, 0).wait();
    MPI_Comm part = MPI_COMM_NULL;
    auto const code = driver_->alone([&] { return MPI_Comm_split(group_->handle, color, key, &part); });
    if (code != MPI_SUCCESS)
      throw comm_error(text("trireme::comm::mpi: split failed: ", detail::mpi_sentence(code)), {rank(), "split"});
    return {driver_, part, group_->deadline};
  }

  /// Tells the other ranks that this one ends with an error, which ends their waits.
  void abandon(std::string const& sentence) noexcept {
    try {
      driver_->announce_failure(*group_, text("trireme::comm::mpi: rank ", rank(), " ended with an error: ", sentence));
    } catch (...) {  // without memory for a sentence their deadlines end the waits
    }
  }

 private:
  static constexpr std::string_view who = "trireme::comm::mpi";

  template <class T, class Space, class Op>
  request start_all_reduce(bool helped, tensor_view<T, Space> values, Op) {
    return start<T, Space>(helped, {detail::collective::all_reduce, dtype_of<T>, detail::reduction_of<Op>}, values,
                           values, &detail::combine_bytes<T, Op>,
                           bytes_sent::all_reduce(values.size(), sizeof(T), rank(), size()));
  }
  template <class T, class Space, class Op>
  request start_reduce_scatter(bool helped, tensor_view<T, Space> values, Op) {
    detail::expect_slices(who, detail::collective::reduce_scatter, values.size(), size());
    return start<T, Space>(helped, {detail::collective::reduce_scatter, dtype_of<T>, detail::reduction_of<Op>}, values,
                           values, &detail::combine_bytes<T, Op>,
                           bytes_sent::reduce_scatter(values.size(), sizeof(T), size()));
  }
  template <class T, class Space>
  request start_all_gather(bool helped, tensor_view<T, Space> values) {
    detail::expect_slices(who, detail::collective::all_gather, values.size(), size());
    return start<T, Space>(helped, {detail::collective::all_gather, dtype_of<T>}, values, values, nullptr,
                           bytes_sent::all_gather(values.size(), sizeof(T), size()));
  }
  template <class T, class Space>
  request start_all_to_all(bool helped, tensor_view<T const, Space> from, tensor_view<T, Space> to) {
    detail::expect_equal_sizes(who, from.size(), to.size());
    detail::expect_slices(who, detail::collective::all_to_all, from.size(), size());
    return start<T, Space>(helped, {detail::collective::all_to_all, dtype_of<T>}, from, to, nullptr,
                           bytes_sent::all_to_all(from.size(), sizeof(T), size()));
  }
  template <class T, class Space>
  request start_broadcast(bool helped, tensor_view<T, Space> values, int root) {
    detail::expect_root(who, root, size());
    return start<T, Space>(helped, {detail::collective::broadcast, dtype_of<T>, {}, false, root}, values, values,
                           nullptr, bytes_sent::broadcast(values.size(), sizeof(T), rank(), root, size()));
  }

  template <class T, class Space>
  request start(bool helped, detail::call what, tensor_view<T const, Space> from, tensor_view<T, Space> to,
                detail::mpi_combine combine, std::uint64_t bytes) {
    what.count = from.size();
    auto& begun = driver_->begin(helped, [&](detail::mpi_operation& op) {
      constexpr bool touched = detail::touches<Space>;
      op.what = what;
      op.where = group_;
      op.from = touched ? reinterpret_cast<std::byte const*>(from.address()) : nullptr;
      op.to = touched ? reinterpret_cast<std::byte*>(to.address()) : nullptr;
      op.element_bytes = sizeof(T);
      op.combine = combine;
    });
    traffic_.bytes_sent += bytes;
    traffic_.messages_sent += bytes == 0 ? 0U : static_cast<unsigned>(size() - 1);
    ++traffic_.collectives;
    return {driver_, begun};
  }

  std::shared_ptr<detail::mpi_driver> driver_;
  std::shared_ptr<detail::mpi_group> group_;
  traffic_counters traffic_;
};

inline mpi_world mpi::borrow(MPI_Comm theirs, std::chrono::milliseconds deadline) {
  if (deadline.count() < 1) throw config_error("trireme::comm::mpi: the deadline must be at least 1ms");
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun == 0)
    throw config_error(
        "trireme::comm::mpi: borrow needs an initialised MPI; call MPI_Init_thread first, or use launch");
  detail::mpi_session::instance().begin();
  auto driver = detail::mpi_driver::shared();
  MPI_Comm own = MPI_COMM_NULL;
  auto const code = driver->alone([&] { return MPI_Comm_dup(theirs, &own); });
  if (code != MPI_SUCCESS)
    throw comm_error(text("trireme::comm::mpi: duplicating the communicator failed: ", detail::mpi_sentence(code)));
  return {std::move(driver), own, deadline};
}

/// How trireme::launch runs a body on comm::mpi: in this process, as the rank that it is.
template <class Body>
auto launch_ranks(mpi const& description, Body& body) {
  detail::mpi_session::instance().begin();
  auto world = mpi::borrow(MPI_COMM_WORLD, description.deadline);
  try {
    return std::invoke(body, world);
  } catch (...) {
    world.abandon(detail::sentence_of(std::current_exception()));
    throw;
  }
}

}  // namespace trireme::comm
