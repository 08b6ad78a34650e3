#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "trireme/comm/detail/failure.hpp"
#include "trireme/comm/detail/process_start.hpp"
#include "trireme/comm/recovery.hpp"

namespace trireme::comm::detail {

/// Calls `body(world, attempt)` until it succeeds. After a failure the processes that are left agree in shared memory
/// on who goes on (node_launch::survivors). They meet again, and get new ranks in the order of the old ones.
template <class World, class Body>
auto recover_processes(std::string_view who, bootstrap::place here, std::chrono::milliseconds deadline,
                       recovery const& how, Body& body) {
  check(how, here.size);
  last_report() = report::unsettled;
  auto engine = engine_by_rendezvous(who, here, deadline);
  for (int attempt = 0;; ++attempt) {
    std::exception_ptr failure;
    try {
      World world(engine);
      return std::invoke(body, world, attempt);
    } catch (comm_error const&) {  // of this rank, because of another one
      failure = std::current_exception();
    } catch (...) {
      end_with_error(*engine, std::current_exception());
      throw;
    }
    auto const reason = sentence_of(failure);
    engine->abandon(reason);  // in case this rank has found the failure first
    auto const left = attempt == how.attempts ? std::vector<int>{} : engine->survivors();
    if (left.empty() || static_cast<int>(left.size()) < how.min_ranks) {
      end_with_error(*engine, failure);
      std::rethrow_exception(failure);
    }
    here.rank = here.local_rank = static_cast<int>(std::ranges::find(left, engine->rank()) - left.begin());
    here.size = here.local_size = static_cast<int>(left.size());
    if (!here.job.empty()) here.job += ".again";  // not the meeting of the attempt before, for which a rank may be late
    // The old engine stays until all have met: others would take its end for the end of this rank.
    engine = engine_by_rendezvous(who, here, deadline);
    if (how.on_failure) how.on_failure({attempt + 1, here.rank, here.size, reason});
  }
}

}  // namespace trireme::comm::detail
