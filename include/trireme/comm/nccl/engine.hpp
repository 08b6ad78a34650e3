#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "trireme/comm/gathering.hpp"
#include "trireme/comm/nccl/calls.hpp"

namespace trireme::comm::detail {

[[nodiscard]] inline std::string describe(nccl_operation const& op) {
  return op.what.kind == collective::exchange ? text("exchange, call number ", op.number)
                                              : text(to_string(op.what), " number ", op.number);
}

/// Fails the launch if `op` has waited longer than its communicator's deadline.
inline void check_patience(nccl_operation& op) {
  if (++op.polls % 16 != 0) return;
  auto const now = std::chrono::steady_clock::now();
  if (op.since == std::chrono::steady_clock::time_point{}) op.since = now;
  if (now - op.since > op.where->deadline)
    op.where->fail(text(describe(op), " waited ", to_string(op.where->deadline),
                        " and is not done; look at what is keeping the other ranks, or raise comm::nccl{.deadline}"));
}

/// Makes the progress that is possible now; true once the operation is done. Throws if the launch has failed.
inline bool advance(nccl_operation& op) {
  auto& where = *op.where;
  auto& launch = where.launch();
  if (op.at == nccl_operation::stage::finished) return true;
  launch.throw_if_failed(name_of(op.what.kind));
  if (op.at == nccl_operation::stage::launching) {
    if (!where.settled(describe(op))) {
      check_patience(op);
      return false;
    }
    if (op.staged) op.staging.fetch(launch.stream());
    trireme::detail::expect_cuda(::cudaEventRecord(op.done, launch.stream()),
                                 "trireme::comm::nccl: recording an event");
    op.at = nccl_operation::stage::running;
    if (launch.launching == &op) launch.launching = nullptr;
  }
  auto const code = ::cudaEventQuery(op.done);
  if (code == cudaErrorNotReady) {
    (void)::cudaGetLastError();
    if (op.polls % 64 == 0) (void)where.settled(describe(op));  // an error elsewhere ends the wait
    check_patience(op);
    return false;
  }
  if (code != cudaSuccess) where.fail(text(describe(op), " failed: CUDA says: ", trireme::detail::cuda_sentence(code)));
  if (op.staged) op.staging.deliver();
  op.at = nccl_operation::stage::finished;
  return true;
}

inline void release(nccl_operation& op) noexcept {
  auto const where = std::move(op.where);  // what it belongs to may end with it
  auto& launch = where->launch();
  if (launch.launching == &op) launch.launching = nullptr;
  launch.unused.push_back(&op);
}

/// Begins a command on the device; the operation goes back with release().
[[nodiscard]] inline nccl_operation& begin(std::shared_ptr<nccl_communicator> const& where, command const& it) {
  auto& launch = where->launch();
  launch.throw_if_failed(name_of(it.what.kind));
  // What was issued before is queued first, so that all ranks queue in one order.
  if (auto* const before = launch.launching; before != nullptr)
    trireme::detail::poll_until([&] {
      (void)advance(*before);
      return before->at != nccl_operation::stage::launching;
    });
  if (launch.unused.empty()) {
    launch.unused.reserve(launch.owned.size() + 1);
    launch.owned.push_back(std::make_unique<nccl_operation>());
    launch.unused.push_back(launch.owned.back().get());
  }
  auto& op = *launch.unused.back();
  launch.unused.pop_back();
  op.where = where;
  op.what = it.what;
  op.number = ++where->calls;
  op.at = nccl_operation::stage::launching;
  op.staged = it.elements != nullptr && it.elements->touchable;
  op.polls = 0;
  op.since = {};
  try {
    launch.follow_thread();
    auto const there = op.staged ? op.staging.on_device(it, where->rank(), where->size(), launch.stream()) : it;
    nccl_issue(*where, op, there, [&] {
      trireme::detail::poll_until([&] {
        if (where->settled(describe(op))) return true;
        check_patience(op);
        return false;
      });
    });
  } catch (config_error const&) {  // nothing has been issued
    release(op);
    throw;
  } catch (std::exception const& problem) {
    auto const sentence = text(describe(op), ": ", problem.what());
    release(op);
    launch.throw_if_failed(name_of(it.what.kind));
    where->fail(sentence);
  }
  launch.launching = &op;
  return op;
}

/// The id by which ranks form a communicator, from rank 0.
[[nodiscard]] inline ncclUniqueId agree_on_id(gathering const& ranks) {
  ncclUniqueId id;
  std::string own;
  if (ranks.rank == 0) {
    auto const code = ncclGetUniqueId(&id);
    if (code == ncclSuccess) own.assign(id.internal, sizeof id.internal);
  }
  auto const of_all = ranks.all_gather(own);
  if (of_all.empty() || of_all.front().size() != sizeof id.internal)
    throw comm_error(text(nccl_who, ": rank 0 could not make an id for the communicator; NCCL_DEBUG=WARN says why"));
  std::memcpy(id.internal, of_all.front().data(), sizeof id.internal);
  return id;
}

/// Makes `device` this thread's device; -1 is the one of its place on the machine.
inline void choose_device(int device, int local_rank) {
  int devices = 0;
  auto const code = ::cudaGetDeviceCount(&devices);
  (void)::cudaGetLastError();
  if (code != cudaSuccess || devices == 0)
    throw config_error(text(nccl_who,
                            ": there is no CUDA device here (CUDA says: ", trireme::detail::cuda_sentence(code),
                            "); run on a machine with one, or use another "
                            "communicator"));
  auto const chosen = device < 0 ? local_rank : device;
  if (chosen >= devices)
    throw config_error(text(nccl_who, ": this rank asks for device ", chosen, " of ", devices,
                            "; give every rank a device of its own (several ranks share one with comm::threads)"));
  trireme::detail::expect_cuda(::cudaSetDevice(chosen), text(nccl_who, ": choosing device ", chosen));
}

}  // namespace trireme::comm::detail
