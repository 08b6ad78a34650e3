#include "trireme/train/kept_checkpoints.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "small_checkpoints.hpp"
#include "trireme/nn/mlp.hpp"

using namespace trireme;
using namespace checkpoints;

namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> steps(std::initializer_list<int> which) {
  std::vector<std::string> out;
  for (int const each : which) out.push_back(checkpoint::detail::step_name(each));
  return out;
}
/// Saves at steps 1, 2, ... with these held-out losses.
void save_all(tiny& run, std::string const& folder, std::vector<double> const& losses, checkpoint::keeping keep) {
  for (std::size_t i = 0; i < losses.size(); ++i) {
    run.go_to(static_cast<std::int64_t>(i) + 1);
    keep.held_out = losses[i];
    if (i % 2 == 0) {
      run.trainer.save(folder, {}, keep);
    } else {
      run.trainer.save_in_background(folder, {}, keep);
      run.trainer.finish_save();
    }
  }
}

}  // namespace

TEST_CASE("the newest checkpoints are kept, and those of the lowest held-out loss", "[train][checkpoint]") {
  std::vector<double> const losses{3, 1, 4, 1, 5, 9, 2, 6};
  auto const left = [&](checkpoint::keeping const& keep) {
    scratch folder;
    tiny run;
    save_all(run, folder.path(), losses, keep);
    return names(folder.path());
  };
  CHECK(left({}) == steps({7, 8}));
  CHECK(left({.last = 1}) == steps({8}));
  CHECK(left({.last = 5}) == steps({4, 5, 6, 7, 8}));
  CHECK(left({.last = 100}) == steps({1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK(left({.last = 1, .best = 1}) == steps({4, 8}));  // of equal ones the newer
  CHECK(left({.last = 2, .best = 3}) == steps({2, 4, 7, 8}));
  CHECK(left({.last = 1, .best = 100}) == steps({1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_CASE("a checkpoint without a finite loss is never among the best", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  save_all(run, folder.path(), {none, 7, none, std::numeric_limits<double>::infinity(), none}, {.last = 1, .best = 3});
  CHECK(names(folder.path()) == steps({2, 5}));
  CHECK(checkpoint::best_in(folder.path())->step == 2);
}

TEST_CASE("the best checkpoint is found, and loaded by its name; the newest without one", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  std::vector<std::uint64_t> hashes{0};
  for (int step = 1; step <= 5; ++step) {
    run.go_to(step);
    hashes.push_back(run.trainer.state_hash());
    run.trainer.save(folder.path(), {}, {.last = 1, .best = 2, .held_out = std::abs(step - 2.25)});
  }
  CHECK(names(folder.path()) == steps({2, 3, 5}));
  auto const all = checkpoint::kept_in(folder.path());
  REQUIRE(all.size() == 3);
  CHECK(all[0].held_out == 0.25);
  CHECK(all[2].held_out == 2.75);
  auto const best = checkpoint::best_in(folder.path());
  REQUIRE(best.has_value());
  CHECK(best->step == 2);
  tiny other;
  CHECK(other.trainer.load(best->path).path == best->path);
  CHECK(other.trainer.state_hash() == hashes[2]);
  CHECK(other.trainer.load(folder.path()).at.step == 5);
  CHECK(other.trainer.state_hash() == hashes[5]);

  // It continues in a directory of its own: this one has later steps of its run.
  other.trainer.load(best->path);
  CHECK(contains(sentence_of([&] { other.trainer.save(folder.path()); }), "which is later than step 2"));
  scratch branch;
  other.trainer.save(branch.path());
  CHECK(names(branch.path()) == steps({2}));
}

TEST_CASE("a checkpoint requested by name is loaded or is an error", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  save_all(run, folder.path(), {1, 2, 3}, {.last = 3});
  auto const two = folder / "step-0000000002";
  overwrite(two + "/rank-0.safetensors", {});
  tiny other;
  CHECK(contains(sentence_of([&] { other.trainer.load(two); }), two + ": this checkpoint is damaged ("));
  CHECK(names(folder.path()) == steps({1, 2, 3}));  // nothing was renamed
  CHECK(contains(sentence_of([&] { other.trainer.load(folder / "step-0000000009"); }), "there is no checkpoint here"));
  overwrite(two + "/manifest.json", {});
  CHECK(checkpoint::kept_in(folder.path()).size() == 2);
}

TEST_CASE("a step that is saved twice counts once", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  save_all(run, folder.path(), {1, 2, 3}, {.last = 2, .best = 1});
  run.trainer.save(folder.path(), {}, {.last = 2, .best = 1, .held_out = 0.5});
  CHECK(names(folder.path()) == steps({2, 3}));
  CHECK(checkpoint::best_in(folder.path())->held_out == 0.5);
}

TEST_CASE("impossible numbers of checkpoints to keep are refused before anything is changed", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  CHECK(contains(sentence_of([&] { run.trainer.save(folder.path(), {}, {.last = 0}); }),
                 "checkpoint::keeping: .last is 0; keep at least the newest one"));
  CHECK(contains(sentence_of([&] { run.trainer.save(folder.path(), {}, {.best = -1}); }), ".best is -1"));
  CHECK(names(folder.path()).empty());
  run.trainer.save(folder.path(), {}, {.held_out = 1});
  change_manifest(folder / "step-0000000000", "\"held_out\":1", "\"held_out\":[]");
  CHECK(checkpoint::kept_in(folder.path()).empty());
}

TEST_CASE("several ranks keep the same checkpoints", "[train][checkpoint]") {
  watchdog const guard("checkpoints of three ranks");
  scratch folder;
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto data = data::function([](float x) { return x; }, {.samples = 64});
    auto trainer = make_trainer(nn::mlp{.inputs = 1, .hidden = {4}, .outputs = 1}, optim::adamw{}, world);
    for (int step = 1; step <= 4; ++step) {
      trainer.fit(data, {.steps = step, .batch = 6});
      trainer.save(folder.path(), {}, {.last = 1, .best = 1, .held_out = static_cast<double>(step)});
    }
  });
  CHECK(names(folder.path()) == steps({1, 4}));
}
