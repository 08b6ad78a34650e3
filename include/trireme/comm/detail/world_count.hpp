#pragma once

#include <atomic>
#include <string_view>

namespace trireme::comm::detail {

/// How many worlds a rank has of one launch or one borrow(). If the last of them ends while an exception unwinds the
/// stack, this rank takes part in nothing any more, and the others must hear of it. Within a launch they hear it from
/// the launch, which knows the exception; a destructor does not.
class world_count {
 public:
  static constexpr std::string_view sentence =
      "it left its world while an exception unwound; its own output says which, as abandon(what) does";

  void add() noexcept { ++worlds_; }
  /// One world less; whether the others must hear of an exception from this rank.
  [[nodiscard]] bool remove(bool unwinds) noexcept { return --worlds_ == 0 && unwinds && !in_launch_; }
  void leave_it_to_the_launch() noexcept { in_launch_ = true; }

 private:
  std::atomic<int> worlds_{0};
  std::atomic<bool> in_launch_{false};
};

}  // namespace trireme::comm::detail
