#pragma once

#include <algorithm>
#include <concepts>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "trireme/comm/detail/failure.hpp"
#include "trireme/comm/launch.hpp"

namespace trireme::comm {

/// What is told before the body is called again.
struct recovered {
  int attempt = 0;         ///< 1 for the first recovery
  int rank = 0, size = 0;  ///< of this process in the new world; of threads rank 0 is told
  std::string reason;      ///< the sentence of what ended the attempt before
};

/// How a launch goes on, in the same processes, after a rank has failed.
///
/// `attempts`   further calls of the body at most.
/// `min_ranks`  threads: each attempt has one rank fewer than the one before, but so many at least; 0: as many as
///              before. Processes cannot be brought back, so those that are left go on, if they are so many.
/// `on_failure` is told, where it is not empty, on each process before the body is called again.
struct recovery {
  int attempts = 3;
  int min_ranks = 0;
  std::function<void(recovered const&)> on_failure{};
};

namespace detail {

/// Whether another attempt may succeed. Not after a wrong configuration, a failed assertion, or non-finite numbers.
[[nodiscard]] inline bool may_recover(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (config_error const&) {
    return false;
  } catch (numeric_error const&) {
    return false;
  } catch (assertion_error const&) {
    return false;
  } catch (...) {
    return true;
  }
}
inline void check(recovery const& how, int ranks) {
  if (how.attempts < 0)
    throw config_error(text("trireme::comm::recovery: .attempts is ", how.attempts, "; 0 is the least"));
  if (how.min_ranks < 0 || how.min_ranks > ranks)
    throw config_error(text("trireme::comm::recovery: .min_ranks is ", how.min_ranks, ", but there are ", ranks,
                            " ranks; choose 0 to ", ranks));
}

}  // namespace detail

/// How trireme::launch recovers in this process, with comm::self and comm::threads: an exception on one rank ends the
/// attempt on all of them.
template <class Description, class Body>
requires std::same_as<Description, self> || std::same_as<Description, threads>
auto recover_ranks(Description description, recovery const& how, Body& body) {
  constexpr bool has_ranks = std::same_as<Description, threads>;
  int ranks = 1;
  if constexpr (has_ranks) {
    detail::check(description);
    ranks = description.ranks;
  }
  detail::check(how, ranks);
  for (int attempt = 0;; ++attempt) {
    auto once = [&](auto& world) { return std::invoke(body, world, attempt); };
    try {
      return launch_ranks(description, once);
    } catch (...) {
      auto const failure = std::current_exception();
      if (attempt == how.attempts || !detail::may_recover(failure)) throw;
      if constexpr (has_ranks)
        if (how.min_ranks > 0) description.ranks = ranks = std::max(how.min_ranks, ranks - 1);
      if (how.on_failure) how.on_failure({attempt + 1, 0, ranks, detail::sentence_of(failure)});
    }
  }
}

}  // namespace trireme::comm

namespace trireme {

/// Runs `body(world, attempt)` on every rank, as launch does; if a rank fails, again in a new world of the ranks that
/// are left, with attempt 1, 2, ... The body loads the newest checkpoint then, and goes on from there:
///
///     launch(comm::threads{.ranks = 4}, comm::recovery{.attempts = 3}, [&](auto& world, int) {
///       auto trainer = make_trainer(model, optim::adamw{}, world);
///       if (checkpoint::exists("run")) trainer.load("run");
///       trainer.on_step([&](auto const& done) { if (done.step % 50 == 49) trainer.save_in_background("run"); });
///       trainer.fit(data, options);
///     });
///
/// Ranks    comm::threads: a rank fails by an exception, and a thread takes its place. comm::processes: by its end (it
///          was killed, or has thrown), and the others go on; also comm::mpi where torchrun or a script has started the
///          ranks. What mpirun has started ends with it: then the body is called once.
/// Errors   as launch, when the attempts are used up or fewer than .min_ranks are left; at once what would fail again
///          (config_error, numeric_error, assertion_error). A rank that stands still is an error: it might wake up.
///          A process that dies while the others meet again ends the launch.
template <class Description, class Body>
decltype(auto) launch(Description const& description, comm::recovery const& how, Body&& body) {
  constexpr bool described = requires { recover_ranks(description, how, body); };
  static_assert(described,
                "trireme::launch: comm::recovery goes with comm::self{}, comm::threads{...}, comm::processes{...} "
                "(trireme/comm/processes.hpp) or comm::mpi{...} (trireme/comm/mpi.hpp).");
  if constexpr (described) return recover_ranks(description, how, body);
}

}  // namespace trireme
