// test-waits: 20
#include "trireme/train/patience.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
using namespace std::chrono_literals;

namespace {

/// A disk that takes this long to write or to open a file.
struct slow_files : formats::file_system {
  std::chrono::milliseconds takes{};
  int synchronise(int d) override {
    std::this_thread::sleep_for(takes);
    return file_system::synchronise(d);
  }
  int open(int at, char const* p, int f, ::mode_t m) override {
    if ((f & O_ACCMODE) == O_RDONLY && (f & O_DIRECTORY) == 0) std::this_thread::sleep_for(takes);
    return file_system::open(at, p, f, m);
  }
};

constexpr auto deadline = 250ms;
nn::mlp const model{.hidden = {4}};

/// Saves and loads on two ranks of a world whose collectives have a short deadline. Rank 1's disk is slower than that.
template <class World>
void save_and_load(World& world, std::string const& directory, checkpoint::patience const& patience) {
  auto trainer = make_trainer(model, optim::sgd{}, world);
  slow_files files;
  if (world.rank() == 1) files.takes = 3 * deadline;
  trainer.save(directory, patience, {}, files);
  trainer.load(directory, patience, files);
}

}  // namespace

TEST_CASE("saving and loading may take a rank longer than the deadline of its collectives", "[train][checkpoint]") {
  watchdog const guard("a slow disk");
  scratch folder;
  CHECK_NOTHROW(launch(comm::threads{.ranks = 2, .deadline = deadline},
                       [&](auto& world) { save_and_load(world, folder.path(), {.deadline = 30s}); }));
}

TEST_CASE("a checked world also waits longer while ranks save", "[train][checkpoint]") {
  watchdog const guard("a slow disk under a checked world");
  scratch folder;
  CHECK_NOTHROW(launch(comm::threads{.ranks = 2, .deadline = deadline}, [&](auto& world) {
    auto checked = comm::decorate(world, comm::checked{.patience = deadline});
    save_and_load(checked, folder.path(), {.deadline = 30s});
  }));
}

TEST_CASE("a save that exceeds its deadline is an error that names the rank", "[train][checkpoint]") {
  watchdog const guard("a disk that is too slow");
  scratch folder;
  auto const sentence = sentence_of<comm_error>([&] {
    launch(comm::threads{.ranks = 2},
           [&](auto& world) { save_and_load(world, folder.path(), {.deadline = deadline}); });
  });
  INFO(sentence);
  CHECK(contains(sentence, "waited 250ms for rank 1"));
  CHECK(sentence.ends_with("find out why it is late, or raise checkpoint::patience{.deadline}"));
  CHECK(checkpoint::exists(folder.path()) == false);
}

TEST_CASE("a deadline of zero for saving and loading is refused, and nothing is written", "[train][checkpoint]") {
  scratch folder;
  comm::self_world self;
  auto trainer = make_trainer(model, optim::sgd{}, self);
  for (auto const deadline : {0ms, -5ms}) {
    checkpoint::patience const none{.deadline = deadline};
    auto const sentence =
        text("trireme::checkpoint::patience: .deadline is ", deadline.count(), "ms; give the ranks at least 1ms");
    CHECK_THROWS_WITH(trainer.save(folder.path(), none), sentence);
    CHECK_THROWS_WITH(trainer.save_in_background(folder.path(), none), sentence);
    CHECK_THROWS_WITH(trainer.load(folder.path(), none), sentence);
  }
  CHECK(folder.entries() == 0);
}

TEST_CASE("progress of saving and loading is reported after each piece", "[train][checkpoint]") {
  scratch folder;
  std::atomic<int> told{0};
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(model, optim::sgd{}, world);
    for (bool const saves : {true, false}) {
      std::int64_t before = 0, whole = -1;
      checkpoint::patience patience;
      patience.on_progress = [&](std::int64_t done, std::int64_t all) {
        if (done < before || (whole >= 0 && all != whole)) told = -1000;
        before = done;
        whole = all;
        ++told;
      };
      if (saves)
        trainer.save(folder.path(), patience);
      else
        trainer.load(folder.path(), patience);
      if (whole >= 0 && before != whole) told = -1000;
    }
  });
  CHECK(told > 4);
}
