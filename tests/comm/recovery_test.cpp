// test-sanitize: address
// test-timeout: 200
#include "trireme/comm/recovery.hpp"

#include <atomic>
#include <chrono>
#include <csignal>
#include <list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "child.hpp"
#include "trireme/comm/processes.hpp"

using namespace trireme;
using namespace std::chrono_literals;

namespace {

template <class World>
float sum_of_ranks(World& world) {
  float value = static_cast<float>(world.rank() + 1);
  world.all_reduce(tensor_view<float>(&value, shape{1}));
  return value;
}
scratch const folder;

/// Ranks as processes that a script has started: the final output of each ("" if it was killed).
template <class Body>
std::vector<std::string> processes(int size, comm::recovery const& how, Body const& body,
                                   std::chrono::milliseconds deadline = 20s) {
  static int runs = 0;
  auto const job = text("recovery.", ::getpid(), ".", ++runs);
  std::list<child> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      for (auto const& [name, value] : {std::pair{"TMPDIR", folder.path()}, std::pair{"TRIREME_RANK", text(rank)},
                                        std::pair{"TRIREME_SIZE", text(size)}, std::pair{"TRIREME_JOB", job}})
        ::setenv(name, value.c_str(), 1);
      return launch(comm::processes{.deadline = deadline}, how,
                    [&](comm::processes_world& world, int attempt) { return body(world, attempt, rank); });
    });
  std::vector<std::string> said;
  for (auto& each : ranks) said.push_back(each.result());
  return said;
}

}  // namespace

TEST_CASE("threads begin again after an exception on one of them", "[comm][recovery]") {
  watchdog const guard("threads that fail");
  for (int const min_ranks : {0, 2}) {
    std::vector<comm::recovered> told;
    auto const answer =
        launch(comm::threads{.ranks = 4},
               comm::recovery{
                   .attempts = 3, .min_ranks = min_ranks, .on_failure = [&](auto const& now) { told.push_back(now); }},
               [](auto& world, int attempt) {
                 world.barrier();
                 if (attempt < 3 && world.rank() == 1) throw std::runtime_error(text("attempt ", attempt));
                 world.barrier();
                 return text(attempt, ": ", sum_of_ranks(world));
               });
    CHECK(answer == (min_ranks == 0 ? "3: 10" : "3: 3"));
    REQUIRE(told.size() == 3);
    CHECK(told[0].attempt == 1);
    CHECK(told[0].reason == "attempt 0");
    CHECK(told[0].size == (min_ranks == 0 ? 4 : 3));
    CHECK(told[2].size == (min_ranks == 0 ? 4 : 2));  // not below .min_ranks
  }
}

TEST_CASE("a single rank begins again, too", "[comm][recovery]") {
  auto const answer = launch(comm::self{}, comm::recovery{.attempts = 2}, [](auto& world, int attempt) {
    if (attempt < 2) throw std::runtime_error("not yet");
    return attempt + world.size();
  });
  CHECK(answer == 3);
}

TEST_CASE("an error that would occur again is not retried, and attempts are counted", "[comm][recovery]") {
  watchdog const guard("threads that always fail");
  std::atomic<int> calls{0};
  auto const failing = [&](int attempts, auto const& problem) {
    calls = 0;
    return sentence_of<std::exception>([&] {
      launch(comm::threads{.ranks = 2}, comm::recovery{.attempts = attempts}, [&](auto& world, int) {
        ++calls;
        world.barrier();
        if (world.rank() == 0) throw problem;
        world.barrier();
      });
    });
  };
  CHECK(failing(2, std::runtime_error("always")) == "always");
  CHECK(calls == 6);
  CHECK(failing(0, std::runtime_error("at once")) == "at once");
  CHECK(calls == 2);
  CHECK(failing(5, config_error("wrong")) == "wrong");
  CHECK(calls == 2);
  CHECK(failing(5, numeric_error("not finite")) == "not finite");
  CHECK(calls == 2);
  CHECK(contains(sentence_of([] { launch(comm::threads{}, comm::recovery{.min_ranks = 3}, [](auto&, int) {}); }),
                 ".min_ranks is 3, but there are 2 ranks"));
  CHECK(contains(sentence_of([] { launch(comm::threads{}, comm::recovery{.attempts = -1}, [](auto&, int) {}); }),
                 ".attempts is -1"));
}

TEST_CASE("the processes that remain after a kill go on as a smaller world", "[comm][recovery]") {
  watchdog const guard("processes that are killed");
  for (int const victim : {0, 1, 3}) {
    auto const said = processes(4, {.attempts = 2}, [&](auto& world, int attempt, int started_as) {
      world.barrier();
      if (attempt == 0 && started_as == victim) ::raise(SIGKILL);
      auto twice = world.duplicate();  // fails in the first attempt
      twice.barrier();
      return text(attempt, ", rank ", world.rank(), " of ", world.size(), ": ", sum_of_ranks(world));
    });
    int rank = 0;
    for (int each = 0; each < 4; ++each) {
      auto const wanted = each == victim ? std::string() : text("1, rank ", rank++, " of 3: 6");
      CHECK(said[static_cast<std::size_t>(each)] == wanted);
    }
  }
}

TEST_CASE("processes are killed one by one, until one is left or there are too few", "[comm][recovery]") {
  watchdog const guard("processes that are killed one after another");
  for (int const min_ranks : {0, 2}) {
    auto const said =
        processes(3, {.attempts = 5, .min_ranks = min_ranks}, [](auto& world, int attempt, int started_as) {
          world.barrier();
          if (attempt == started_as && started_as < 2) ::raise(SIGKILL);
          world.barrier();
          return text(attempt, ", rank ", world.rank(), " of ", world.size());
        });
    CHECK(said[0].empty());
    CHECK(said[1].empty());
    INFO(said[2]);
    if (min_ranks == 0) {
      CHECK(said[2] == "2, rank 0 of 1");
    } else {
      CHECK(contains(said[2], "trireme::comm::processes: rank 0 has died"));
    }
  }
}

TEST_CASE("a process that fails by itself leaves, and the others go on without it", "[comm][recovery]") {
  watchdog const guard("a process that throws");
  auto const said = processes(3, {.attempts = 1}, [](auto& world, int attempt, int started_as) {
    world.barrier();
    if (started_as == 1) throw io_error("disk", "is full");
    world.barrier();
    return text(attempt, ", rank ", world.rank(), " of ", world.size());
  });
  CHECK(said == std::vector<std::string>{"1, rank 0 of 2", "failed: disk: is full", "1, rank 1 of 2"});
}

TEST_CASE("a process that was only late goes on with the others", "[comm][recovery]") {
  watchdog const guard("a late process");
  auto const said = processes(
      2, {.attempts = 1},
      [](auto& world, int attempt, int started_as) {
        world.barrier();
        if (attempt == 0 && started_as == 1) std::this_thread::sleep_for(1500ms);
        world.barrier();
        return text(attempt, ", rank ", world.rank(), " of ", world.size());
      },
      1s);
  CHECK(said == std::vector<std::string>{"1, rank 0 of 2", "1, rank 1 of 2"});
}

TEST_CASE("no process goes on without one that is stopped", "[comm][recovery]") {
  watchdog const guard("a process that stands still");
  auto const said = processes(
      2, {.attempts = 3},
      [](auto& world, int, int started_as) -> std::string {
        world.barrier();
        if (started_as == 1) std::this_thread::sleep_for(5s);
        world.barrier();
        return "went on";
      },
      1s);
  INFO(said[0]);
  CHECK(contains(said[0], "failed: "));
  CHECK(contains(said[0], "waited 1s for rank 1"));
  CHECK(contains(said[1], "failed: "));
}
