#pragma once

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

// What the stand-ins for a GPU choose where CUDA leaves the order open, and what they leave out on purpose, to show
// that a test finds it. Both are for the whole program, and are changed while no other thread uses a stand-in.
namespace simt {

[[nodiscard]] inline int number_in(std::string_view text, char const* variable) {
  int number = 0;
  auto const [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || end != text.data() + text.size() || number < 0)
    throw std::invalid_argument(std::string(variable) + ": \"" + std::string(text) + "\" is not a number");
  return number;
}

/// Streams (tests/comm/stand_in):
///   0         all are lazy: work runs when the host waits for it, or what it waits for needs it. The default.
///   1, 2      each second stream of a host thread is eager, the others are lazy: its work runs when it is queued,
///             as soon as the events that it waits for have come
///   3         all are eager
///   4, 5, ... each is lazy, eager or in between, and queries say "not ready" a number of times; both are drawn
/// Threads of a block (tests/support/simt/threads.hpp): in odd orders one warp runs as far as it comes before another
/// one does, otherwise all take turns. The environment variable TRIREME_SIMT_ORDER sets it.
inline std::atomic<int>& order() {
  static std::atomic<int> chosen{[] {
    auto const* const value = std::getenv("TRIREME_SIMT_ORDER");
    return value == nullptr ? 0 : number_in(value, "TRIREME_SIMT_ORDER");
  }()};
  return chosen;
}

/// One call that the stand-ins ignore.
struct omission {
  enum class kind : std::uint8_t {
    nothing,
    wait,     ///< a cudaStreamWaitEvent, the n-th of each host thread
    record,   ///< a cudaEventRecord, the n-th of each host thread
    query,    ///< a wait of the host: the first cudaStreamQuery or cudaEventQuery of work that is not done says it is
    barrier,  ///< a sync_block, the n-th of each thread of the kernel
  };
  kind what = kind::nothing;
  int number = 0;  ///< from 1
  std::string kernel{};
};

/// The environment variable TRIREME_SIMT_LEAVE_OUT sets it: "wait:3", "barrier:1:layer_norm".
class omissions {
 public:
  using kind = omission::kind;

  void set(omission it) {
    now_ = std::move(it);
    ++generation_;
    count_ = 0;
  }
  [[nodiscard]] omission const& now() const { return now_; }
  /// How often something has been left out since set().
  [[nodiscard]] int count() const { return count_; }
  void add() { ++count_; }
  /// Whether this call of a host thread is the one.
  [[nodiscard]] bool leaves_out(kind what) {
    if (now_.what != what) return false;
    struct calls {
      int generation, number;
    };
    thread_local calls own{-1, 0};
    if (own.generation != generation_) own = {generation_, 0};
    if (++own.number != now_.number) return false;
    add();
    return true;
  }

  omissions() {
    auto const* const value = std::getenv("TRIREME_SIMT_LEAVE_OUT");
    if (value == nullptr) return;
    constexpr std::string_view names[] = {"", "wait", "record", "query", "barrier"};
    std::string_view const all(value);
    auto const first = all.find(':');
    auto const second = all.find(':', first == all.npos ? first : first + 1);
    omission found{.number = first == all.npos ? 0 : number_in(all.substr(first + 1, second - first - 1), variable)};
    for (int i = 1; i < 5; ++i)
      if (all.substr(0, first) == names[i]) found.what = static_cast<kind>(i);
    if (second != all.npos) found.kernel = all.substr(second + 1);
    bool const of_kernel = found.what == kind::barrier;
    if (found.what == kind::nothing || found.number < 1 || of_kernel == found.kernel.empty())
      throw std::invalid_argument(std::string(variable) + ": \"" + value + "\" is not like wait:3 or barrier:1:kernel");
    set(std::move(found));
  }

 private:
  static constexpr char const* variable = "TRIREME_SIMT_LEAVE_OUT";
  omission now_;
  std::atomic<int> generation_{0}, count_{0};
};
inline omissions& left_out() {
  static omissions all;
  return all;
}

}  // namespace simt
