// test-sanitize: address
// test-timeout: 200
#include "trireme/comm/recovery.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../comm/child.hpp"
#include "../formats/scratch.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/checkpoint.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;
using namespace std::chrono_literals;

namespace {

constexpr fit_options whole{.steps = 24, .batch = 16, .micro_batches = 8};
constexpr parallel::data same_on_any_ranks{.reproducible = true};

/// Trains to the end, from the newest checkpoint if there is one, and saves every four steps. `fails(step)` may throw.
template <class World, class Fails, class... Policies>
std::uint64_t train(World& world, std::string const& folder, Fails const& fails, Policies... policies) {
  auto trainer = make_trainer(toy::gpt, toy::adaptive, world, policies...);
  trainer.initialise(3);
  if (checkpoint::exists(folder)) trainer.load(folder);
  trainer.on_step([&](step_report const& done) {
    if (done.step % 4 == 3) trainer.save_in_background(folder);
    fails(done.step);
  });
  trainer.fit(toy::text{}, whole);
  return trainer.state_hash();
}
template <class... Policies>
std::uint64_t left_alone(int ranks, Policies... policies) {
  scratch folder;
  return launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    return train(
        world, folder.path(), [](std::int64_t) {}, policies...);
  });
}
/// Threads, of which one throws after several steps, later in each attempt.
template <class... Policies>
std::uint64_t with_failures(int ranks, int min_ranks, Policies... policies) {
  scratch folder;
  return launch(comm::threads{.ranks = ranks}, comm::recovery{.attempts = 3, .min_ranks = min_ranks},
                [&](auto& world, int attempt) {
                  return train(
                      world, folder.path(),
                      [&](std::int64_t step) {
                        if (world.rank() == attempt % world.size() && attempt < 3 && step == 2 + 6 * attempt)
                          throw std::runtime_error("this rank fails");
                      },
                      policies...);
                });
}

}  // namespace

TEST_CASE("after a thread throws, the run ends in the state of a run without failure", "[train][recovery]") {
  watchdog const guard("threads that throw");
  CHECK(with_failures(1, 0) == left_alone(1));
  CHECK(with_failures(3, 0) == left_alone(3));
  CHECK(with_failures(3, 0, parallel::zero<3>{}) == left_alone(3, parallel::zero<3>{}));
  CHECK(with_failures(2, 0, parallel::tensor{}) == left_alone(2, parallel::tensor{}));
  CHECK(with_failures(2, 0, parallel::pipeline{}) == left_alone(2, parallel::pipeline{}));
}

TEST_CASE("with one rank fewer after a failure the bits are the same where that is promised", "[train][recovery]") {
  watchdog const guard("fewer threads");
  CHECK(with_failures(2, 1, same_on_any_ranks) == left_alone(4, same_on_any_ranks));
}

TEST_CASE("after a process is killed, the run ends in the state of a run without failure", "[train][recovery]") {
  watchdog const guard("processes that are killed");
  auto const wanted = text(left_alone(2, same_on_any_ranks));
  auto const [size, victims] = GENERATE(table<int, std::vector<int>>({{2, {0}}, {2, {1}}, {4, {1, 2}}, {4, {0, 3}}}));
  auto const is_victim = [&, victims = victims](int rank) { return std::ranges::count(victims, rank) > 0; };
  auto const left = size - static_cast<int>(victims.size());
  scratch folder, meetings;
  std::list<child> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank, size = size] {
      for (auto const& [name, value] :
           {std::pair{"TMPDIR", meetings.path()}, std::pair{"TRIREME_RANK", text(rank)},
            std::pair{"TRIREME_SIZE", text(size)}, std::pair{"TRIREME_JOB", meetings.path()}})
        ::setenv(name, value.c_str(), 1);
      return launch(comm::processes{.deadline = 20s}, comm::recovery{.attempts = 1},
                    [&](comm::processes_world& world, int attempt) {
                      auto const fails = [&](std::int64_t step) {
                        if (attempt != 0 || step != 9) return;
                        world.barrier();  // so that they die at the same time
                        if (is_victim(rank)) ::raise(SIGKILL);
                      };
                      auto const hash = train(world, folder.path(), fails, same_on_any_ranks);
                      return text(world.size(), " ranks: ", hash);
                    });
    });
  int rank = 0;
  for (auto& each : ranks) CHECK(each.result() == (is_victim(rank++) ? "" : text(left, " ranks: ", wanted)));
}
