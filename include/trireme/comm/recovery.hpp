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

/// What is reported before the body is called again.
struct recovered {
  int attempt = 0;         ///< 1 for the first recovery
  int rank = 0, size = 0;  ///< of this process in the new world; rank 0 for threads
  std::string reason;      ///< the error that ended the previous attempt
};

/// How a launch goes on, in the same processes, after a rank has failed.
///
/// `attempts`   the most further calls of the body.
/// `min_ranks`  threads: each attempt has one rank fewer than the last, but at least this many; 0: the number of
///              ranks stays. Processes cannot be restarted: the remaining ones go on if there are at least this many.
/// `on_failure` if not empty, is called on each process before the body is called again.
struct recovery {
  int attempts = 3;
  int min_ranks = 0;
  std::function<void(recovered const&)> on_failure{};
};

namespace detail {

/// Whether another attempt may succeed: false after a wrong configuration, a failed assertion, or non-finite numbers.
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
    throw config_error(text("trireme::comm::recovery: .attempts is ", how.attempts, "; it must be at least 0"));
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

/// Runs `body(world, attempt)` on every rank, as launch does. If a rank fails, the body runs again in a new world of
/// the remaining ranks, with attempt 1, 2, ... It should then load the newest checkpoint and continue:
///
///     launch(comm::threads{.ranks = 4}, comm::recovery{.attempts = 3}, [&](auto& world, int) {
///       auto trainer = make_trainer(model, optim::adamw{}, world);
///       if (checkpoint::exists("run")) trainer.load("run");
///       trainer.on_step([&](auto const& done) { if (done.step % 50 == 49) trainer.save_in_background("run"); });
///       trainer.fit(data, options);
///     });
///
/// Ranks    comm::threads: a rank fails by an exception, and a new thread takes its rank. comm::processes, and
///          comm::mpi if torchrun or a script has started the ranks: a rank fails when its process ends (killed, or by
///          an exception), and the others go on. mpirun ends all its ranks with the first: then the body is called
///          once.
/// Errors   as launch, when the attempts are used up or fewer than .min_ranks are left; at once for errors that would
///          recur (config_error, numeric_error, assertion_error). A rank that hangs is an error, because it may
///          continue later. If a process dies while the others meet again, the launch ends.
template <class Description, class Body>
decltype(auto) launch(Description const& description, comm::recovery const& how, Body&& body) {
  constexpr bool described = requires { recover_ranks(description, how, body); };
  static_assert(described,
                "trireme::launch: comm::recovery needs comm::self{}, comm::threads{...}, comm::processes{...} "
                "(trireme/comm/processes.hpp) or comm::mpi{...} (trireme/comm/mpi.hpp).");
  if constexpr (described) return recover_ranks(description, how, body);
}

}  // namespace trireme
