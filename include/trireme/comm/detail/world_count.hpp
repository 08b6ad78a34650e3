#pragma once

#include <atomic>
#include <string_view>

namespace trireme::comm::detail {

/// The number of a rank's worlds of one launch or one borrow(). If the last of them is destroyed while an exception
/// unwinds the stack, this rank leaves, and the others must be informed. Within a launch the launch informs them, which
/// has the exception; a destructor has not.
class world_count {
 public:
  static constexpr std::string_view sentence =
      "it left its world because of an exception; see its own output, or pass the message to abandon()";

  void add() noexcept { ++worlds_; }
  /// Removes one world; returns whether the other ranks must be informed of an exception on this rank.
  [[nodiscard]] bool remove(bool unwinds) noexcept { return --worlds_ == 0 && unwinds && !in_launch_; }
  void leave_it_to_the_launch() noexcept { in_launch_ = true; }

 private:
  std::atomic<int> worlds_{0};
  std::atomic<bool> in_launch_{false};
};

}  // namespace trireme::comm::detail
