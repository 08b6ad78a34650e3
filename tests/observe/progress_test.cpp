#include "trireme/observe/progress.hpp"

#include <array>
#include <limits>
#include <string>

#include "../catch.hpp"

namespace {

namespace observe = trireme::observe;
using observe::progress_state;

/// The two ends of a pipe: what was written can be read.
class pipe_ends {
 public:
  pipe_ends() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("no pipe");
  }
  pipe_ends(pipe_ends const&) = delete;
  ~pipe_ends() {
    ::close(ends_[0]);
    if (ends_[1] >= 0) ::close(ends_[1]);
  }
  [[nodiscard]] int to() const { return ends_[1]; }
  [[nodiscard]] std::string all() {
    ::close(ends_[1]);
    ends_[1] = -1;
    std::string out;
    std::array<char, 4096> part{};
    for (::ssize_t got = 0; (got = ::read(ends_[0], part.data(), part.size())) > 0;) {
      out.append(part.data(), static_cast<std::size_t>(got));
    }
    return out;
  }

 private:
  std::array<int, 2> ends_{};
};

std::size_t count(std::string const& in, std::string const& what) {
  std::size_t out = 0;
  for (auto at = in.find(what); at != std::string::npos; at = in.find(what, at + 1)) ++out;
  return out;
}

}  // namespace

TEST_CASE("durations and rates are short and readable", "[observe][progress]") {
  CHECK(observe::format_duration(0) == "0:00");
  CHECK(observe::format_duration(7.4) == "0:07");
  CHECK(observe::format_duration(59.6) == "1:00");
  CHECK(observe::format_duration(754) == "12:34");
  CHECK(observe::format_duration(3723) == "1:02:03");
  CHECK(observe::format_duration(2 * 86400 + 3 * 3600 + 245) == "2d 03:04:05");
  CHECK(observe::format_duration(-1) == "--:--");
  CHECK(observe::format_duration(std::nan("")) == "--:--");
  CHECK(observe::format_duration(std::numeric_limits<double>::infinity()) == "--:--");
  CHECK(observe::format_rate(0.5) == "0.50");
  CHECK(observe::format_rate(950) == "950");
  CHECK(observe::format_rate(999.9) == "1.00k");
  CHECK(observe::format_rate(12345) == "12.3k");
  CHECK(observe::format_rate(4.56e6) == "4.56M");
  CHECK(observe::format_rate(7e9) == "7.00G");
}

TEST_CASE("a progress line contains step, loss, speed and times", "[observe][progress]") {
  CHECK(observe::format_line({50, 200, 3.14159, 12345, 10}) ==
        "step 50/200 (25%)  loss 3.1416  12.3k tokens/s  0:10 < 0:30");
  CHECK(observe::format_line({.step = 50, .steps = 200, .loss = 3, .elapsed_seconds = 10, .waiting_share = 0.123}) ==
        "step 50/200 (25%)  loss 3.0000  data 12%  0:10 < 0:30");
  CHECK(observe::format_line({50, 0, 3.14159, 0, 10}) == "step 50  loss 3.1416  0:10");
  CHECK(observe::format_line({0, 200, std::nan(""), 0, 0}) == "step 0/200 (0%)  loss nan  0:00 < --:--");
  CHECK(observe::format_line({1, 2, -std::numeric_limits<double>::infinity(), 0, 0}).find("loss -inf") !=
        std::string::npos);
}

TEST_CASE("a progress bar is never wider than the terminal", "[observe][progress]") {
  progress_state const half{100, 200, 2.5, 1000, 60};
  CHECK(observe::format_bar(half, 79) ==
        " 50% [###########           ] 100/200  loss 2.5000  1.00k tokens/s  1:00 < 1:00");
  CHECK(observe::format_bar({0, 200, 2.5, 0, 0}, 60).find("[   ") != std::string::npos);
  CHECK(observe::format_bar({200, 200, 2.5, 0, 1}, 60).find("#]") != std::string::npos);
  for (int width = -1; width < 200; ++width) {
    for (auto const& at : {half, progress_state{}, progress_state{300, 200, 1e300, 1e300, 1e300}}) {
      REQUIRE(static_cast<int>(observe::format_bar(at, width).size()) <= std::max(width, 0));
    }
  }
}

TEST_CASE("progress without a terminal writes a line for every tenth of the steps and after some time",
          "[observe][progress]") {
  pipe_ends pipe;
  {
    observe::progress bar({.descriptor = pipe.to()});
    for (int step = 1; step <= 1000; ++step) bar.update({step, 1000, 1, 0, step * 0.01});
    bar.message("saved");
  }
  auto const out = pipe.all();
  CHECK(count(out, "\n") == 12);
  CHECK(out.find("step 1/1000") == 0);
  CHECK(count(out, "step 1000/1000 (100%)") == 1);
  CHECK(count(out, "\nsaved\n") == 1);
  CHECK(count(out, "\r") == 0);

  pipe_ends slow;
  {
    observe::progress bar({.descriptor = slow.to(), .line_seconds = 5});
    for (int step = 1; step <= 9; ++step) bar.update({step, 1000, 1, 0, step * 2.0});
  }
  CHECK(count(slow.all(), "\n") == 3);  // at 2, 8 and 14 seconds
}

TEST_CASE("progress on a terminal redraws in place, at most ten times a second", "[observe][progress]") {
  pipe_ends pipe;
  {
    observe::progress bar({.how = observe::progress::style::bar, .descriptor = pipe.to()});
    for (int step = 1; step <= 1000; ++step) bar.update({step, 1000, 1, 0, step * 0.001});
    bar.message("saved");
  }
  auto const out = pipe.all();
  CHECK(count(out, "\r") >= 11);
  CHECK(count(out, "\r") <= 14);
  CHECK(count(out, "\n") == 2);
  CHECK(count(out, "\r\x1b[Ksaved\n") == 1);
  CHECK(out.find("100%") != std::string::npos);
}

TEST_CASE("silent progress writes nothing, and a closed descriptor is not an error", "[observe][progress]") {
  pipe_ends pipe;
  {
    observe::progress bar({.how = observe::progress::style::silent, .descriptor = pipe.to()});
    bar.update({1, 1, 1, 1, 1});
    bar.message("x");
  }
  CHECK(pipe.all().empty());
  observe::progress gone({.how = observe::progress::style::bar, .descriptor = -1});
  gone.update({1, 1, 1, 1, 1});
}

TEST_CASE("the remaining time follows this process's latest steps, after a resume and after slow first steps",
          "[observe][progress]") {
  // A run of 1000 steps of 0.1 s goes on from step 900: 90 steps are left after ten.
  observe::step_pace resumed;
  for (int step = 901; step <= 910; ++step) resumed.add(step, 3 + (step - 900) * 0.1);
  progress_state const at{910, 1000, 1, 0, 4, 900, resumed.seconds_per_step()};
  CHECK(observe::seconds_left(at) == Approx(9));
  CHECK(observe::seconds_left({910, 1000, 1, 0, 4, 900}) == Approx(36));  // without a pace: all that has elapsed
  CHECK(std::isnan(observe::seconds_left({900, 1000, 1, 0, 4, 900})));

  // The first step takes 6 s, the others 0.5 s, of 240: two minutes, and never 25 of them.
  pipe_ends pipe;
  {
    observe::progress lines({.descriptor = pipe.to(), .line_seconds = 0});
    for (int step = 1; step <= 8; ++step) lines.update({step, 240, 1, 0, 5.5 + step * 0.5});
  }
  auto const out = pipe.all();
  CHECK(out.find("step 1/240 (0%)  loss 1.0000  0:06 < --:--\n") != std::string::npos);
  CHECK(out.find("step 2/240 (0%)  loss 1.0000  0:07 < 1:59\n") != std::string::npos);
  CHECK(out.find("step 8/240 (3%)  loss 1.0000  0:10 < 1:56\n") != std::string::npos);

  observe::step_pace pace;
  pace.add(1, 6);
  CHECK(pace.seconds_per_step() == 0);
  for (int step = 2; step <= 100; ++step) pace.add(step, 10.0 * step);
  CHECK(pace.seconds_per_step() == Approx(10));
  for (int step = 101; step <= 400; ++step) pace.add(step, 1000 + (step - 100));  // ten times as fast from here
  CHECK(pace.seconds_per_step() == Approx(1));
  pace.add(50, 2000);  // loaded again
  CHECK(pace.seconds_per_step() == 0);
  pace.add(52, 2004);
  CHECK(pace.seconds_per_step() == Approx(2));
}
