#pragma once

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <utility>

#include "trireme/comm/late.hpp"
#include "trireme/core/error.hpp"
#include "trireme/formats/file.hpp"

/// While it exists: calls for which ranks have waited half of --deadline are written to DIRECTORY/waiting.RANK, one
/// line each, and to standard error, before the deadline ends the run.
class late_calls {
 public:
  explicit late_calls(std::string directory) {
    trireme::comm::on_late([directory = std::move(directory)](trireme::comm::late_call const& call) {
      auto const sentence = to_string(call);
      std::fprintf(stderr, "waiting: rank %d: %s\n", call.rank, sentence.c_str());
      try {
        using trireme::formats::file;
        file to(trireme::formats::directory(directory), trireme::text("waiting.", call.rank), file::access::extend);
        auto const time = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
        std::tm utc{};
        ::gmtime_r(&time, &utc);
        char when[32] = {};
        std::strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ ", &utc);
        to.write(when + sentence + "\n");
        to.synchronise();
      } catch (trireme::error const&) {  // it was printed to standard error, too
      }
    });
  }
  late_calls(late_calls const&) = delete;
  late_calls& operator=(late_calls const&) = delete;
  ~late_calls() { trireme::comm::on_late({}); }
};
