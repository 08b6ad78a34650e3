// test-timeout: 300
#include "trireme/train/detail/background_save.hpp"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "small_checkpoints.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/train/any_trainer.hpp"

using namespace trireme;
using namespace checkpoints;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t last = 12, saved_at = 4;
fit_options until(std::int64_t step) { return {.steps = last, .batch = 10, .micro_batches = 6, .stop_after = step}; }

/// A disk on which every write takes a while.
struct slow_files : formats::file_system {
  int synchronise(int d) override {
    std::this_thread::sleep_for(20ms);
    return file_system::synchronise(d);
  }
};

/// Saves the state after `saved_at` steps during the next ones. It equals the state of a run that stopped there, and
/// the run itself ends like one that saved nothing.
template <class... Policies>
void saves_beside_training(int ranks, Policies... policies) {
  scratch folder;
  std::atomic<std::uint64_t> undisturbed{0}, stopped{0}, model_files{0}, loaded{0};
  std::atomic<std::int64_t> told_at{-1}, told_of{-1};
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto const made = [&] {
      auto trainer = make_any_trainer(toy::gpt, toy::adaptive, world, policies...);
      trainer->initialise(5);
      return trainer;
    };
    auto one = made();
    one->fit(toy::text{}, until(saved_at));
    stopped = one->state_hash();
    one->fit(toy::text{}, until(last));
    undisturbed = one->state_hash();
    auto other = made();
    other->on_step([&](step_report const& done) {
      if (done.step + 1 == saved_at) other->save_in_background(folder.path());
    });
    other->on_save([&](save_report const& done) {
      told_of = done.failure.empty() ? done.step : -1;
      told_at = other->steps();
    });
    other->fit(toy::text{}, until(last));
    model_files = other->state_hash();
    auto third = made();
    third->load(folder.path());
    loaded = third->state_hash();
  });
  CHECK(model_files == undisturbed);
  CHECK(loaded == stopped);
  CHECK(told_of == saved_at);
  CHECK(told_at > saved_at);
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000004"});
}

}  // namespace

TEST_CASE("a checkpoint written in the background contains the state at its step", "[train][checkpoint]") {
  saves_beside_training(1);
  saves_beside_training(3);
  saves_beside_training(3, parallel::zero<1>{.bucket_bytes = 8192});
  saves_beside_training(2, parallel::zero<3>{}, precision::bf16{});
  saves_beside_training(4, parallel::mesh{parallel::data{.ways = 2}, parallel::tensor{.ways = 2}});
  saves_beside_training(2, compression::error_feedback<compression::top_k>{.inner = {.ratio = 0.1F}});
}

TEST_CASE("steps are taken while a slow disk writes, and a later save waits for the one before",
          "[train][checkpoint]") {
  scratch folder;
  std::atomic<int> right{0};
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::sgd{}, world);
    slow_files slow;
    bool model_files = false;
    std::vector<std::int64_t> begun, done;
    trainer.on_step([&](step_report const& step) {
      if (step.step != 0 && step.step != 40) return;
      begun.push_back(trainer.steps());
      trainer.save_in_background(folder.path(), {}, {}, slow);
    });
    trainer.on_save([&](save_report const& report) {
      if (report.failure.empty() && report.seconds > 0.02) done.push_back(report.step);
      if (report.step == 1) model_files = trainer.steps() > 2;
    });
    data::function const square(+[](float x) { return x * x; }, {.samples = 64});
    trainer.fit(square, {.steps = 60, .batch = 4});
    right += model_files && begun == std::vector<std::int64_t>{1, 41} && done == begun ? 1 : 0;
  });
  CHECK(right == 2);
  CHECK(names(folder.path()).size() == 2);
}

TEST_CASE("whatever file operation fails in the background, training goes on and the last checkpoint stays",
          "[train][checkpoint]") {
  tiny alone;
  alone.go_to(1);
  auto const first = alone.trainer.state_hash();
  alone.go_to(2);
  auto const second = alone.trainer.state_hash();
  alone.go_to(4);
  auto const fourth = alone.trainer.state_hash();
  bool failed = true;
  for (bool const for_ever : {false, true}) {
    for (int at = 0; at < 200; ++at) {
      INFO("operation " << at << (for_ever ? " and all later ones" : ""));
      scratch folder;
      tiny run;
      failing_files files;
      files.fails_at = at;
      files.for_ever = for_ever;
      std::vector<save_report> reports;
      run.trainer.on_step([&](step_report const& done) {
        if (done.step == 1) run.trainer.save_in_background(folder.path(), {}, {}, files);
      });
      run.trainer.on_save([&](save_report const& report) { reports.push_back(report); });
      run.go_to(1);
      run.trainer.save(folder.path());
      run.go_to(4);
      CHECK(run.trainer.state_hash() == fourth);
      REQUIRE(reports.size() == 1);
      CHECK(reports[0].step == 2);
      failed = !reports[0].failure.empty();
      if (failed) CHECK(contains(reports[0].failure, ": no space left on device"));
      tiny after;
      after.trainer.load(folder.path());
      auto const hash = after.trainer.state_hash();
      CHECK((hash == second || (failed && hash == first)));
      run.trainer.save(folder.path());  // removes left-over files
      for (auto const& name : names(folder.path())) CHECK(name.starts_with("step-"));
      if (files.operations <= at) break;
    }
    CHECK(!failed);  // the last one succeeded
  }
}

TEST_CASE("a failed background save of one rank is reported on all ranks, or thrown if there is no callback",
          "[train][checkpoint]") {
  scratch folder;
  std::atomic<int> told{0}, thrown{0};
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::sgd{}, world);
    auto const save = [&] {
      failing_files files;
      if (world.rank() == 1) files.fails_at = 1;
      trainer.save_in_background(folder.path(), {}, {}, files);
      trainer.finish_save();
    };
    thrown += contains(sentence_of(save), "no space left on device") ? 1 : 0;
    trainer.on_save(
        [&](save_report const& report) { told += contains(report.failure, "no space left on device") ? 1 : 0; });
    save();
    trainer.save(folder.path());
  });
  CHECK(thrown == 3);
  CHECK(told == 3);
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000000"});
}

TEST_CASE("a trainer destroyed before its save is published abandons the save, and leaves no files",
          "[train][checkpoint]") {
  scratch folder;
  slow_files slow;
  {
    tiny run;
    run.trainer.save(folder.path());
    run.trainer.save_in_background(folder.path(), {}, {}, slow);
  }
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000000"});
}
