#include "trireme/comm/recorded.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"

using namespace std::chrono_literals;
using namespace trireme;

namespace {

std::string content(std::string const& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}
bool says(std::string const& told, char const* pattern) { return std::regex_search(told, std::regex(pattern)); }
long lines(std::string const& all) { return std::count(all.begin(), all.end(), '\n'); }

/// Files of this test alone, removed at its end.
struct files {
  std::string path = text("flight_", ::getpid());
  ~files() {
    for (int rank = 0; rank < 4; ++rank) std::remove(of(rank).c_str());
  }
  [[nodiscard]] std::string of(int rank) const { return text(path, ".", rank); }
};

}  // namespace

static_assert(communicator<comm::recorded_world<comm::threads_world>>);

TEST_CASE("recorded is printed as its source, and keeps at least one call", "[comm][recorded]") {
  CHECK(to_string(comm::recorded{.path = "a"}) == "comm::recorded{.last = 256, .path = \"a\", .signal = 0}");
  comm::self_world alone;
  CHECK_THROWS_AS(comm::decorate(alone, comm::recorded{.last = 0}), config_error);
  CHECK_THROWS_AS(comm::decorate(alone, comm::recorded{.signal = SIGKILL}), config_error);
  CHECK_THROWS_AS(comm::decorate(alone, comm::recorded{.signal = 1000}), config_error);
}

TEST_CASE("the record has one line a call, with number, call, bytes, times and state", "[comm][recorded]") {
  std::string text;
  launch(comm::decorate(comm::threads{.ranks = 2}, comm::recorded{.last = 6}), [&](auto& world) {
    std::vector<float> values(1024);
    std::vector<std::int64_t> const counts = {1000, 24};
    for (int i = 0; i < 3; ++i) world.barrier();
    world.all_reduce(tensor_view{values});
    auto part = world.split(0, 0);
    part.all_gather(tensor_view{values}, counts);
    part.reduce(tensor_view{values}, 1, reduction::mean{});
    auto pending = world.all_reduce_async(tensor_view{values}, reduction::max{});
    std::vector<float> ours(1024);
    auto sent = world.exchange_async(std::vector{send_to(1 - world.rank(), tensor_view{ours})});
    if (world.rank() == 1) text = world.dump();
    std::vector<float> theirs(1024);
    world.exchange({receive_from(1 - world.rank(), tensor_view{theirs})});
    sent.wait();
    pending.wait();
  });
  CAPTURE(text);
  CHECK(lines(text) == 7);
  CHECK(says(text, "^trireme flight recorder: rank 1 of 2, the last 6 of 9 calls, at [0-9]+\\.[0-9]{6} s\n"));
  auto const times = [](std::string const& line) {
    return line + ", from [0-9]+\\.[0-9]{6} s to [0-9]+\\.[0-9]{6} s, done\n";
  };
  CHECK(says(text, times("\n4 world 1 of 2 ranks: all_reduce\\(F32, 1024 elements, sum\\), 4096 bytes").c_str()));
  CHECK(says(text, times("\n5 world 1 of 2 ranks: split, 0 bytes").c_str()));
  CHECK(says(text, times("\n6 world 2 of 2 ranks: all_gather\\(F32, ragged, 1024 elements\\), 96 bytes").c_str()));
  CHECK(says(text, times("\n7 world 2 of 2 ranks: reduce\\(F32, 1024 elements, mean, root 1\\), 0 bytes").c_str()));
  CHECK(says(text, "\n8 world 1 of 2 ranks: all_reduce\\(F32, 1024 elements, max\\), 4096 bytes, from [0-9.]+ s"));
}

TEST_CASE("an error thrown by a call writes the record of each rank to its file, also after a hang",
          "[comm][recorded]") {
  watchdog dog("a hang on record");
  files const here;
  bool const waits = GENERATE(false, true);
  CHECK_THROWS_AS(
      launch(comm::decorate(comm::threads{.ranks = 2, .deadline = 100ms}, comm::recorded{.path = here.path}),
             [&](auto& world) {
               std::vector<double> values(100);
               world.barrier();
               if (world.rank() == 1) std::this_thread::sleep_for(300ms);
               if (waits)
                 world.all_reduce_async(tensor_view{values}).wait();
               else
                 world.all_reduce(tensor_view{values});
             }),
      comm_error);
  for (int rank = 0; rank < 2; ++rank) {
    auto const text = content(here.of(rank));
    CAPTURE(text);
    CHECK(lines(text) == 3);
    CHECK(says(text, "\n1 world 1 of 2 ranks: barrier, 0 bytes, from .* done\n"));
    CHECK(says(text, "\n2 world 1 of 2 ranks: all_reduce\\(F64, 100 elements, sum\\), [0-9]+ bytes, from .* failed\n"));
  }
}

TEST_CASE("a signal dumps the records of all ranks of the process, while they wait", "[comm][recorded]") {
  watchdog dog("a signal");
  files const here;
  std::atomic<bool> dumped{false};
  launch(comm::decorate(comm::threads{.ranks = 3}, comm::recorded{.path = here.path, .signal = SIGUSR1}),
         [&](auto& world) {
           std::vector<float> values(10);
           world.all_reduce(tensor_view{values});
           if (world.rank() == 2) {
             std::this_thread::sleep_for(50ms);  // by now the others wait in the second call, most likely
             std::raise(SIGUSR1);
             dumped = true;
           }
           world.barrier();
         });
  CHECK(dumped);
  for (int rank = 0; rank < 3; ++rank) {
    auto const text = content(here.of(rank));
    CAPTURE(text);
    CHECK(says(text, "flight recorder: rank [0-2] of 3"));
    CHECK(says(text, "\n1 world 1 of 3 ranks: all_reduce\\(F32, 10 elements, sum\\), [0-9]+ bytes, from .* done\n"));
  }
  // After the last recorded world the signal is what it was before.
  struct sigaction now {};
  ::sigaction(SIGUSR1, nullptr, &now);
  CHECK(now.sa_handler == SIG_DFL);
}

TEST_CASE("signals at any time, while calls are made and worlds come and go, do no harm", "[comm][recorded]") {
  watchdog dog("many signals");
  files const here;
  std::signal(SIGUSR2, SIG_IGN);
  std::atomic<bool> over{false};
  std::thread sender([&] {
    while (!over) {
      ::kill(::getpid(), SIGUSR2);
      std::this_thread::sleep_for(1ms);
    }
  });
  for (int round = 0; round < 5; ++round) {
    launch(comm::decorate(comm::threads{.ranks = 2}, comm::recorded{.last = 8, .path = here.path, .signal = SIGUSR2}),
           [](auto& world) {
             std::vector<int> values(16);
             for (int i = 0; i < 300; ++i) world.all_reduce(tensor_view{values});
           });
  }
  over = true;
  sender.join();
  std::signal(SIGUSR2, SIG_DFL);
}

TEST_CASE("the record is written to a FILE too", "[comm][recorded]") {
  comm::self_world alone;
  auto world = comm::decorate(alone, comm::recorded{});
  world.barrier();
  auto* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  world.dump(file);
  std::rewind(file);
  std::string text(200, ' ');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  CHECK(says(text, "rank 0 of 1, the last 1 of 1 calls.*\n1 world 1 of 1 ranks: barrier"));
}
