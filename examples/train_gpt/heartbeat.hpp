#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"

/// DIRECTORY/heartbeat.json: tells a supervisor whether a run is progressing, and a resumed run how far the previous
/// one had come. Written when a phase begins and, in training, after a step, at most once per interval.
///
/// The file is replaced as a whole but not flushed to the device, which would cost too much. A heartbeat that cannot be
/// written is skipped: it does not end a run.
class heartbeat {
 public:
  /// The phases in their order. `ended` means that the run saved its state, also when it was asked to stop.
  enum class phase { starting, evaluating, training, finishing, ended };

  /// @param interval  the least time between two heartbeats of steps.
  heartbeat(std::string directory, int ranks, std::int64_t steps, std::chrono::duration<double> interval)
      : directory_(std::move(directory)), ranks_(ranks), steps_(steps), interval_(interval) {}

  void begin(phase now, std::int64_t step) {
    phase_ = now;
    step_ = step;
    write();
  }
  /// @param step  the number of steps done.
  void step(std::int64_t step, double loss, double seconds) {
    step_ = step;
    loss_ = loss;
    seconds_a_step_ = seconds;
    if (clock::now() - written_ >= interval_) write();
  }

  /// The steps of an interrupted run, or empty if it was not interrupted.
  [[nodiscard]] static std::optional<std::int64_t> steps_of_broken_run(std::string const& directory) {
    namespace json = trireme::formats::json;
    try {
      auto const path = directory + "/" + name;
      auto const last = json::parse(trireme::formats::read_text(path, 1 << 16), path);
      if (last.at("phase").as_string() == word(phase::ended)) return {};
      return last.at("step").as_int64();
    } catch (trireme::error const&) {
      return {};  // there is none, or a crash of the machine has damaged it
    }
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr char const* name = "heartbeat.json";

  static char const* word(phase which) noexcept {
    constexpr char const* words[] = {"starting", "evaluating", "training", "finishing", "ended"};
    return words[static_cast<int>(which)];
  }
  void write() {
    namespace json = trireme::formats::json;
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    auto const time = std::chrono::system_clock::now().time_since_epoch();
    auto const now = json::value::make({{"time", std::chrono::duration<double>(time).count()},
                                        {"process", static_cast<std::int64_t>(::getpid())},
                                        {"host", std::string(host)},
                                        {"phase", word(phase_)},
                                        {"step", step_},
                                        {"steps", steps_},
                                        {"ranks", ranks_},
                                        {"loss", loss_},
                                        {"seconds_a_step", seconds_a_step_}});
    try {
      trireme::formats::atomic_file to(trireme::formats::directory(directory_), name);
      auto const content = json::to_string(now, 2) + "\n";
      to.write(std::as_bytes(std::span(content)));
      to.publish_unsynchronised();
    } catch (trireme::io_error const&) {
    }
    written_ = clock::now();
  }

  std::string directory_;
  int ranks_;
  std::int64_t steps_;
  std::chrono::duration<double> interval_;
  phase phase_ = phase::starting;
  std::int64_t step_ = 0;
  double loss_ = 0;
  double seconds_a_step_ = 0;
  clock::time_point written_{};
};
