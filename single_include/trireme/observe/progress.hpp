// Trireme 0.1.0: trireme/observe/progress.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 2368d2b49640544737a92d63f30ede336c1503433c57ce3e6930c7b8ea1f55ca
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/observe/progress.hpp
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::observe {

/// The progress of a training.
struct progress_state {
  std::int64_t step = 0;   ///< steps done
  std::int64_t steps = 0;  ///< steps in all, 0 if unknown
  double loss = 0;
  double tokens_per_second = 0;  ///< 0 leaves it out
  double elapsed_seconds = 0;    ///< of this process
  std::int64_t first_step = 0;   ///< first step of this process: that of its checkpoint
  double seconds_per_step = 0;   ///< of recent steps; 0: elapsed time over the steps since first_step
  double waiting_share = -1;     ///< of the time, in which steps wait for data; negative: leaves it out
};

namespace detail {

using trireme::detail::fixed;

}  // namespace detail

/// "0:07", "12:34", "1:02:03", "2d 03:04:05"; "--:--" for invalid times.
[[nodiscard]] inline std::string format_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "--:--";
  auto const whole = static_cast<std::int64_t>(seconds + 0.5);
  auto const two = [](std::int64_t n) { return text(n < 10 ? "0" : "", n); };
  auto const days = whole / 86400;
  auto const hours = whole / 3600 % 24;
  auto const tail = text(two(whole / 60 % 60), ":", two(whole % 60));
  if (days > 0) return text(days, "d ", two(hours), ":", tail);
  if (hours > 0) return text(hours, ":", tail);
  return text(whole / 60, ":", two(whole % 60));
}

/// "950", "12.3k", "4.56M".
[[nodiscard]] inline std::string format_rate(double per_second) {
  auto const scaled = [](double value, std::string_view unit) {
    return text(detail::fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0), unit);
  };
  if (per_second >= 999.5e6) return scaled(per_second / 1e9, "G");
  if (per_second >= 999.5e3) return scaled(per_second / 1e6, "M");
  if (per_second >= 999.5) return scaled(per_second / 1e3, "k");
  return detail::fixed(per_second, per_second < 10 ? 2 : 0);
}

/// Seconds until the last step at the pace so far; NaN if unknown.
[[nodiscard]] inline double seconds_left(progress_state const& at) {
  auto const left = static_cast<double>(at.steps - at.step);
  if (left < 0) return std::nan("");
  if (at.seconds_per_step > 0) return at.seconds_per_step * left;
  auto const done = at.step - at.first_step;
  if (done <= 0) return std::nan("");
  return at.elapsed_seconds / static_cast<double>(done) * left;
}

/// The time of a step: a mean over the last steps, at least half of those counted. So the slow first steps (memory is
/// allocated, files are read) and steps before them soon have no influence.
///
/// Threads  one owner.
class step_pace {
 public:
  /// @param step     steps done, including those of earlier processes of the run.
  /// @param seconds  on any clock that does not go back.
  void add(std::int64_t step, double seconds) {
    if (!any_ || step < last_.step) {  // a reloaded run starts again
      any_ = true;
      first_ = since_ = next_ = last_ = {step, seconds};
      return;
    }
    last_ = {step, seconds};
    if (step - first_.step >= 2 * (next_.step - first_.step)) {
      since_ = next_;
      next_ = last_;
    }
  }
  /// 0 if unknown: after the first call, which is the end of the first step.
  [[nodiscard]] double seconds_per_step() const noexcept {
    if (last_.step == since_.step) return 0;
    return (last_.seconds - since_.seconds) / static_cast<double>(last_.step - since_.step);
  }

 private:
  struct mark {
    std::int64_t step = 0;
    double seconds = 0;
  };
  bool any_ = false;
  mark first_, since_, next_, last_;
};

/// "loss 3.1415  12.3k tokens/s  data 3%  0:10 < 1:30": the share of time that steps wait for data, the time used, and
/// the time left if it is known.
[[nodiscard]] inline std::string format_figures(progress_state const& at) {
  auto out = text("loss ", detail::fixed(at.loss, 4));
  if (at.tokens_per_second > 0) out += text("  ", format_rate(at.tokens_per_second), " tokens/s");
  if (at.waiting_share >= 0) out += text("  data ", detail::fixed(100 * at.waiting_share, 0), "%");
  out += text("  ", format_duration(at.elapsed_seconds));
  if (at.steps > 0) out += text(" < ", format_duration(seconds_left(at)));
  return out;
}

/// One line for a log: "step 50/200 (25%)  loss 3.1415  12.3k tokens/s  0:10 < 0:30".
[[nodiscard]] inline std::string format_line(progress_state const& at) {
  if (at.steps <= 0) return text("step ", at.step, "  ", format_figures(at));
  return text("step ", at.step, "/", at.steps, " (", at.step * 100 / at.steps, "%)  ", format_figures(at));
}

/// One line for a terminal of `width` columns, never longer: " 25% [#####     ] 50/200  loss ...". The bar gets the
/// columns that the figures leave, and is left out if these are too few.
[[nodiscard]] inline std::string format_bar(progress_state const& at, int width) {
  auto const columns = static_cast<std::size_t>(std::max(width, 0));
  if (at.steps <= 0) return format_line(at).substr(0, columns);
  auto const step = std::clamp<std::int64_t>(at.step, 0, at.steps);
  auto const percent = text(step * 100 / at.steps, "%");
  auto const head = std::string(4 - std::min<std::size_t>(percent.size(), 4), ' ') + percent;
  auto const rest = text(" ", at.step, "/", at.steps, "  ", format_figures(at));
  auto const taken = head.size() + rest.size() + 3;
  if (columns < taken + 5) return (head + rest).substr(0, columns);
  auto const cells = std::min<std::size_t>(columns - taken, 40);
  auto const full =
      static_cast<std::size_t>(static_cast<double>(step) / static_cast<double>(at.steps) * static_cast<double>(cells));
  return text(head, " [", std::string(full, '#'), std::string(cells - full, ' '), "]", rest);
}

/// Shows the progress of a training: a bar that is redrawn in place on a terminal, occasional lines elsewhere. The
/// remaining time is estimated from the last steps of this process (step_pace), whatever checkpoint it began with.
///
/// Threads  one owner; made on the rank that reports (rank 0).
/// Errors   none: failures to write are ignored.
class progress {
 public:
  enum class style { automatic, bar, lines, silent };

  struct options {
    style how = style::automatic;  ///< automatic: a bar if `descriptor` is a terminal, else lines
    int descriptor = STDERR_FILENO;
    double redraw_seconds = 0.1;  ///< the shortest time between two bars
    double line_seconds = 30;     ///< the longest time between two lines; also a line
    int line_percent = 10;        ///< each time that this percentage has been added
  };

  progress() : progress(options{}) {}
  explicit progress(options how) : options_(how) {
    if (options_.how == style::automatic) options_.how = ::isatty(how.descriptor) == 1 ? style::bar : style::lines;
    options_.line_percent = std::max(options_.line_percent, 1);
  }

  /// Call it after every step: it writes only when an output is due.
  void update(progress_state at) {
    pace_.add(at.step, at.elapsed_seconds);
    if (at.seconds_per_step <= 0) at.seconds_per_step = pace_.seconds_per_step();
    if (at.seconds_per_step <= 0) at.first_step = at.step;  // the first step is the slowest: no estimate from it
    bool const last = at.steps > 0 && at.step >= at.steps;
    if (options_.how == style::bar) {
      if (shown_ && !last && at.elapsed_seconds - shown_at_ < options_.redraw_seconds) return;
      draw(at);
    } else if (options_.how == style::lines) {
      auto const part = at.steps > 0 ? at.step * 100 / at.steps / options_.line_percent : 0;
      if (shown_ && part == part_ && at.elapsed_seconds - shown_at_ < options_.line_seconds) return;
      part_ = part;
      put(format_line(at) + "\n");
    } else {
      return;
    }
    shown_ = true;
    shown_at_ = at.elapsed_seconds;
  }

  /// Writes a line of its own, above the bar if there is one.
  void message(std::string_view line) {
    if (options_.how == style::silent) return;
    put(text(open_ ? "\r\x1b[K" : "", line, "\n"));
    if (std::exchange(open_, false)) draw(drawn_);
  }

  /// Ends the line of the bar.
  void finish() {
    if (std::exchange(open_, false)) put("\n");
  }
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;
  ~progress() { finish(); }

 private:
  void draw(progress_state const& at) {
    ::winsize size{};
    bool const known = ::ioctl(options_.descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    // One column is left free: a full line would wrap on some terminals.
    put(text("\r\x1b[K", format_bar(at, known ? size.ws_col - 1 : 79)));
    open_ = true;
    drawn_ = at;
  }
  void put(std::string const& characters) const noexcept {
    // A closed terminal must not end a training.
    [[maybe_unused]] auto const ignored = ::write(options_.descriptor, characters.data(), characters.size());
  }

  options options_;
  step_pace pace_;
  progress_state drawn_;
  bool open_ = false;
  bool shown_ = false;
  double shown_at_ = 0;
  std::int64_t part_ = 0;
};

}  // namespace trireme::observe
