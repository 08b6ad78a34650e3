// elastic FOLDER [--join] [--strategy data|zero|diloco] [--steps N] [--batch N] [--save-every N] [--pause MS]
// elastic FOLDER --replay [--until N]
//
// A training whose ranks come and go. The first ranks are started by a launcher, or by a script that sets TRIREME_RANK,
// TRIREME_SIZE and TRIREME_JOB; each process that is started with --join later is one more rank. A rank that receives
// SIGTERM leaves; if all do, the run is saved and ends. Between two steps the state goes through shared memory. FOLDER
// has the checkpoints, every N steps (100), and in members/memberships.jsonl the record of all memberships. With
// --replay the program repeats a recorded run with threads: ranks are those of the record, the state goes through
// checkpoints, and the last line is the same; --until is the last step of a run that all ranks have left. diloco has
// two learners, so the number of its ranks is even. MS milliseconds of pause follow each step.
//
// test: run --steps 40
// test: run --steps 40 --strategy zero
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "trireme/comm/elastic.hpp"
#include "trireme/comm/lend.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
using steady = std::chrono::steady_clock;

namespace {

volatile std::sig_atomic_t asked_to_leave = 0;

struct options {
  std::string folder, strategy = "data";
  bool join = false, replay = false;
  std::int64_t steps = 200, batch = 24, save_every = 100, pause = 0, until = -1;
};

options parsed(std::vector<std::string> const& arguments) {
  options out;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto const& name = arguments[i];
    if (name == "--join") {
      out.join = true;
    } else if (name == "--replay") {
      out.replay = true;
    } else if (!name.starts_with("--")) {
      out.folder = name;
    } else {
      if (i + 1 == arguments.size()) throw config_error(text("elastic: ", name, " needs a value"));
      auto const& value = arguments[++i];
      std::int64_t* number = nullptr;
      if (name == "--steps") number = &out.steps;
      if (name == "--batch") number = &out.batch;
      if (name == "--save-every") number = &out.save_every;
      if (name == "--pause") number = &out.pause;
      if (name == "--until") number = &out.until;
      if (number != nullptr) {
        auto const read = std::from_chars(value.data(), value.data() + value.size(), *number);
        if (read.ec != std::errc() || read.ptr != value.data() + value.size())
          throw config_error(text("elastic: ", name, " ", value, "; give a whole number"));
      } else if (name == "--strategy" && (value == "data" || value == "zero" || value == "diloco")) {
        out.strategy = value;
      } else {
        throw config_error(text("elastic: ", name, " ", value, "; see the head of examples/elastic.cpp"));
      }
    }
  }
  if (out.folder.empty()) throw config_error("elastic: give the FOLDER of the run");
  return out;
}

template <class World, class Parallel>
auto trainer_of(World& world, Parallel const& parallel) {
  return make_trainer(nn::mlp{.inputs = 1, .hidden = {64, 64}, .outputs = 1}, optim::adamw{.learning_rate = 3e-3},
                      world, parallel);
}
auto samples_to_learn() {
  return data::function([](float x) { return std::sin(x); }, {.samples = 4096});
}

template <class Parallel>
void train(options const& given, Parallel const& parallel, int multiple) {
  auto const data = samples_to_learn();
  auto const begun = steady::now();
  double to_first_step = -1;
  auto const saved = given.folder + "/checkpoint";
  launch(comm::processes{},
         comm::elastic{.directory = given.folder + "/members", .join = given.join, .multiple = multiple},
         [&](comm::any_world& world, comm::membership& members) {
           auto trainer = trainer_of(world, parallel);
           members.take_over(trainer, [&] {
             if (checkpoint::exists(saved)) trainer.load(saved);
           });
           trainer.on_step([&](step_report const&) {
             if (to_first_step < 0) to_first_step = std::chrono::duration<double>(steady::now() - begun).count();
             if (given.pause > 0) std::this_thread::sleep_for(std::chrono::milliseconds(given.pause));
             if (trainer.steps() % given.save_every == 0) trainer.save(saved);
             if (asked_to_leave != 0) members.leave();
             if (members.is_due()) trainer.request_stop();
           });
           for (;;) {
             auto const report = trainer.fit(data, {.steps = given.steps, .batch = given.batch});
             if (!report.stopped || trainer.steps() == given.steps) break;
             if (members.hand_over(trainer)) return;
             if (members.is_over()) break;
           }
           if (trainer.steps() % given.save_every != 0) trainer.save(saved);
           auto const hash = trainer.state_hash();
           if (world.rank() == 0) fmt::print("{} steps, the last ones on {} ranks\n", trainer.steps(), world.size());
           if (world.rank() == 0) fmt::print("state {:016x}\n", hash);
         });
  if (given.join) fmt::print("joined: {:.3f} s to the first step\n", to_first_step);
}

struct stretch {
  std::int64_t first = 0;
  int ranks = 1;
};
/// What counts of a run: a membership that went on from a checkpoint has repeated what came after that step.
std::vector<stretch> recorded(std::string const& path) {
  std::vector<stretch> out;
  std::ifstream file(path);
  if (!file) throw io_error(path, "no run has written it");
  for (std::string line; std::getline(file, line);) {
    auto const each = formats::json::parse(line, path);
    auto const first = each.at("step").as_int64();
    std::erase_if(out, [&](stretch const& before) { return before.first >= first; });
    out.push_back({first, static_cast<int>(each.at("ranks").as_int64())});
  }
  return out;
}

template <class Parallel>
void replay(options const& given, Parallel const& parallel) {
  auto const data = samples_to_learn();
  auto const all = recorded(given.folder + "/members/memberships.jsonl");
  auto const saved = given.folder + "/replayed";
  std::filesystem::remove_all(saved);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const until = i + 1 < all.size() ? all[i + 1].first : given.until;
    launch(comm::threads{.ranks = all[i].ranks}, [&](comm::threads_world& lender) {
      auto world = comm::lend(lender);  // the type of world that processes have: one trainer is compiled
      auto trainer = trainer_of(world, parallel);
      if (i > 0) trainer.load(saved);
      trainer.fit(data, {.steps = given.steps, .batch = given.batch, .stop_after = until});
      trainer.save(saved);
      auto const hash = trainer.state_hash();
      if (world.rank() == 0 && i + 1 == all.size()) {
        fmt::print("{} steps again, on {} memberships\nstate {:016x}\n", trainer.steps(), all.size(), hash);
      }
    });
  }
}

template <class Parallel>
void run(options const& given, Parallel const& parallel, int multiple) {
  if (given.replay)
    replay(given, parallel);
  else
    train(given, parallel, multiple);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGTERM, [](int) { asked_to_leave = 1; });
  try {
    auto const given = parsed({argv + 1, argv + argc});
    std::filesystem::create_directories(given.folder);
    if (given.strategy == "data") run(given, parallel::data{}, 1);
    if (given.strategy == "zero") run(given, parallel::zero<2>{}, 1);
    if (given.strategy == "diloco")
      run(given, parallel::mesh{parallel::diloco{.period = 5, .ways = 2}, parallel::data{}}, 2);
    return 0;
  } catch (std::exception const& problem) {
    if (comm::reports(problem.what())) fmt::print(stderr, "elastic: {}\n", problem.what());
    return 1;
  }
}
