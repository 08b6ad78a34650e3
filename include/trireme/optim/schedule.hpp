#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>
#include <variant>

#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"

namespace trireme::optim {

/// The same rate at every step, after `warmup` steps of linear growth.
struct constant {
  double peak = 0;
  std::int64_t warmup = 0;
  friend bool operator==(constant const&, constant const&) = default;
};

/// Linear growth over `warmup` steps, then a straight line from `peak` to `floor` at step `total`.
struct linear {
  double peak = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 0;
  double floor = 0;
  friend bool operator==(linear const&, linear const&) = default;
};

/// Linear growth over `warmup` steps, then half a cosine from `peak` to `floor` at step `total`.
struct cosine {
  double peak = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 0;
  double floor = 0;
  friend bool operator==(cosine const&, cosine const&) = default;
};

/// The learning rate of each step. An empty schedule means the optimizer's `learning_rate` at every step.
using schedule = std::variant<std::monostate, constant, linear, cosine>;

namespace detail {

inline double warm(double peak, std::int64_t warmup, std::int64_t step) {
  return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
}
/// The fraction of the steps from the end of warm-up to `total` that is done, in [0, 1].
inline double way(std::int64_t warmup, std::int64_t total, std::int64_t step) {
  if (total <= warmup) return 1;
  return std::clamp<double>(static_cast<double>(step - warmup) / static_cast<double>(total - warmup), 0, 1);
}

}  // namespace detail

/// Throws config_error for an invalid schedule. (An optimizer's validate() calls it.)
inline void expect_schedule(schedule const& plan) {
  struct {
    void operator()(std::monostate) const {}
    void operator()(constant const& s) const { common("optim::constant", s.peak, s.warmup); }
    void operator()(linear const& s) const { falling("optim::linear", s.peak, s.warmup, s.total, s.floor); }
    void operator()(cosine const& s) const { falling("optim::cosine", s.peak, s.warmup, s.total, s.floor); }
    static void common(std::string_view name, double peak, std::int64_t warmup) {
      expect_number(name, ".peak", peak, not_negative);
      expect_number(name, ".warmup", warmup, not_negative);
    }
    static void falling(std::string_view name, double peak, std::int64_t warmup, std::int64_t total, double floor) {
      common(name, peak, warmup);
      expect_number(name, ".total", total, at_least_one);
      expect_number(name, ".floor", floor, {.high = peak});
      if (total >= warmup) return;
      throw config_error(text("trireme::", name, ": .warmup is ", how_many(warmup, "step"), " of .total ", total,
                              "; .warmup must be at most .total, since the rate falls in the steps after it"));
    }
  } const check;
  std::visit(check, plan);
}

/// The rate of step `step` (counted from 0, skipped steps included, so that a schedule ends with its run); `base` if
/// the schedule is empty.
[[nodiscard]] inline double rate_at(schedule const& plan, double base, std::int64_t step) {
  struct {
    double base;
    std::int64_t step;
    double operator()(std::monostate) const { return base; }
    double operator()(constant const& s) const {
      return step < s.warmup ? detail::warm(s.peak, s.warmup, step) : s.peak;
    }
    double operator()(linear const& s) const {
      if (step < s.warmup) return detail::warm(s.peak, s.warmup, step);
      return s.peak + (s.floor - s.peak) * detail::way(s.warmup, s.total, step);
    }
    double operator()(cosine const& s) const {
      if (step < s.warmup) return detail::warm(s.peak, s.warmup, step);
      double const falling = 0.5 * (1 + std::cos(std::numbers::pi * detail::way(s.warmup, s.total, step)));
      return s.floor + (s.peak - s.floor) * falling;
    }
  } const at{base, step};
  return std::visit(at, plan);
}

/// The C++ source of the schedule.
[[nodiscard]] inline std::string to_string(schedule const& plan) {
  struct {
    std::string operator()(std::monostate) const { return "{}"; }
    std::string operator()(constant const& s) const {
      return text("optim::constant{.peak = ", s.peak, ", .warmup = ", s.warmup, "}");
    }
    std::string operator()(linear const& s) const { return full("linear", s.peak, s.warmup, s.total, s.floor); }
    std::string operator()(cosine const& s) const { return full("cosine", s.peak, s.warmup, s.total, s.floor); }
    static std::string full(std::string_view name, double peak, std::int64_t warmup, std::int64_t total, double floor) {
      return text("optim::", name, "{.peak = ", peak, ", .warmup = ", warmup, ", .total = ", total,
                  ", .floor = ", floor, "}");
    }
  } const print;
  return std::visit(print, plan);
}

}  // namespace trireme::optim
