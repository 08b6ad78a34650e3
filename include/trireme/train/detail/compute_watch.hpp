#pragma once

#include <chrono>

#include "trireme/core/dialect.hpp"

namespace trireme::detail {

/// The time of a rank's own work in a stretch of its program, without what may wait for other ranks. It reads no clock
/// unless it measures.
class compute_watch {
 public:
  bool measures = false;
  double seconds = 0;  ///< of the last stretch

  /// Measures until its end.
  class stretch {
   public:
    explicit stretch(compute_watch& watch) : watch_(watch) {
      watch_.left_out_ = {};
      if (watch_.measures) begin_ = clock::now();
    }
    stretch(stretch const&) = delete;
    stretch& operator=(stretch const&) = delete;
    ~stretch() {
      if (watch_.measures)
        watch_.seconds = std::chrono::duration<double>(clock::now() - begin_ - watch_.left_out_).count();
    }

   private:
    compute_watch& watch_;
    std::chrono::steady_clock::time_point begin_{};
  };
  [[nodiscard]] stretch whole() { return stretch(*this); }

  template <class F>
  void leave_out(F&& f) {
    if (!measures) return f();
    auto const begin = clock::now();
    f();
    left_out_ += clock::now() - begin;
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::duration left_out_{};
};

}  // namespace trireme::detail
