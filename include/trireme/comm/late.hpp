#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/command.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm {

/// A collective that has waited for half of its deadline on this rank. At its deadline the launch fails.
struct late_call {
  int rank = 0;         ///< the waiting rank, numbered as in the launch
  std::string what;     ///< "all_reduce(F32, 1024 elements, sum) number 12"
  std::uint64_t bytes;  ///< of the caller's buffer; 0 if that differs between ranks
  std::string missing;  ///< "ranks 1, 3": the ranks that it waits for
  std::chrono::milliseconds waited{}, deadline{};
};

/// "all_reduce(F32, 1024 elements, sum) number 12, 4096 bytes, has waited 30s of 60s for rank 1"
[[nodiscard]] inline std::string to_string(late_call const& it) {
  return text(it.what, it.bytes > 0 ? text(", ", how_many(it.bytes, "byte")) : std::string(), ", has waited ",
              to_string(it.waited), " of ", to_string(it.deadline), " for ", it.missing);
}

namespace detail {

/// The function that is called for late collectives. Callers hold it by shared_ptr, so it may be replaced during a
/// call.
class late_listener {
 public:
  using function = std::function<void(late_call const&)>;
  static late_listener& of_process() {
    static late_listener only;
    return only;
  }
  void set(function f) {
    auto made = f ? std::make_shared<function>(std::move(f)) : nullptr;
    std::lock_guard const lock(mutex_);
    listener_ = std::move(made);
  }
  [[nodiscard]] std::shared_ptr<function> get() {
    std::lock_guard const lock(mutex_);
    return listener_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<function> listener_;
};

/// The failure of an operation at its deadline. @param missing  ranks; empty: not known. @param offence  ", which ..."
[[nodiscard]] inline std::string too_late(std::string_view who, std::string_view what,
                                          std::chrono::milliseconds deadline, std::vector<int> const& missing,
                                          std::string_view offence = {}) {
  return text(who, ": ", what, " waited ", to_string(deadline), " for ",
              missing.empty() ? "the others" : list_of("rank", missing), offence, "; find out why ",
              agreeing(missing.size(), "it is", "they are"), " late, or raise ", who.substr(who.find("comm::")),
              "{.deadline}");
}

/// Reports an operation once, when half of its deadline is over. @param describe  returns the late_call; its list of
/// missing ranks is empty if all ranks have arrived meanwhile.
template <class Describe>
void report_if_late(bool& reported, std::chrono::steady_clock::duration waited, std::chrono::milliseconds deadline,
                    Describe&& describe) {
  if (reported || waited < deadline / 2) return;
  auto const listener = late_listener::of_process().get();
  if (listener == nullptr) return;
  try {
    late_call call = describe();
    if (call.missing.empty()) return;
    reported = true;
    call.waited = std::chrono::duration_cast<std::chrono::milliseconds>(waited);
    call.deadline = deadline;
    (*listener)(call);
  } catch (...) {  // an exception of the listener does not end the collective
    reported = true;
  }
}

}  // namespace detail

/// Registers f, which is called once for each collective of this process that has waited for half of its deadline, for
/// example to log what it waits for before the launch fails. An empty f removes the current one.
///
/// Threads  any caller. f is called by the waiting thread, by several at a time, inside the communicator: it must not
///          call a collective, and must return soon.
/// Errors   exceptions of f are ignored. comm::threads, comm::processes and comm::mpi call f; comm::nccl does not.
inline void on_late(std::function<void(late_call const&)> f) { detail::late_listener::of_process().set(std::move(f)); }

}  // namespace trireme::comm
