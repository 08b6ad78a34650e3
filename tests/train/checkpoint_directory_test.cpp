#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "small_checkpoints.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/train/checkpoint.hpp"

using namespace trireme;
using namespace checkpoints;

namespace {

std::string identity_of(std::string const& step_directory) {
  auto const path = step_directory + "/manifest.json";
  return formats::json::parse(formats::read_text(path), path).at("identity").as_string();
}
/// A folder with files that nobody may touch, and a way to ask whether somebody did.
struct elsewhere {
  scratch folder;
  elsewhere() {
    for (auto const* const name : {"manifest.json", "rank-0.safetensors", "precious"}) write(name);
  }
  void write(std::string const& name) const { formats::atomic_write(folder / name, "precious"); }
  [[nodiscard]] bool untouched() const {
    auto const all = names(folder.path());
    return all.size() == 3 &&
           std::ranges::all_of(all, [&](auto const& name) { return formats::read_text(folder / name) == "precious"; });
  }
};

}  // namespace

TEST_CASE("a run does not save where another run's checkpoints are, and nothing there is touched",
          "[train][checkpoint]") {
  scratch folder;
  tiny first;
  first.go_to(5);
  first.trainer.save(folder.path());
  first.go_to(7);
  first.trainer.save(folder.path());
  auto const before = names(folder.path());
  auto const theirs = identity_of(folder / "step-0000000007");
  std::filesystem::create_directory(folder / ".saving");  // the other run may be saving just now
  for (std::int64_t const step : {0, 6, 7, 9}) {
    INFO("step " << step);
    tiny other;
    other.go_to(step);
    auto const sentence = sentence_of([&] { other.trainer.save(folder.path()); });
    CHECK(contains(sentence, "trireme::checkpoint: " + folder.path() +
                                 " belongs to another run (step-0000000005 is of run " + theirs + ", this is run "));
    CHECK(contains(sentence, "); load() it to go on with that run, or save into another directory"));
    CHECK(names(folder / ".saving").empty());
    std::filesystem::create_directory(folder / ".saving");
  }
  std::filesystem::remove(folder / ".saving");
  CHECK(names(folder.path()) == before);
  tiny again;
  CHECK(again.trainer.load(folder.path()).at.step == 7);
  CHECK(again.trainer.state_hash() == first.trainer.state_hash());
}

TEST_CASE("a run that goes on keeps its identity, on any number of ranks; one that starts over is another",
          "[train][checkpoint]") {
  scratch folder;
  std::atomic<int> wrong{0};
  auto const run = [&](int ranks, bool loads, std::int64_t steps) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto data = data::function([](float x) { return x; }, {.samples = 64});
      auto trainer = make_trainer(nn::mlp{.inputs = 1, .hidden = {4}, .outputs = 1}, optim::adamw{}, world);
      if (loads) trainer.load(folder.path());
      trainer.fit(data, {.steps = steps, .batch = 8});
      trainer.save(folder.path());
      trainer.initialise(1);
      auto const sentence = sentence_of([&] { trainer.save(folder.path()); });
      if (!contains(sentence, " belongs to another run (")) ++wrong;
    });
  };
  run(3, false, 1);
  auto const identity = identity_of(folder / "step-0000000001");
  run(2, true, 2);
  CHECK(identity_of(folder / "step-0000000002") == identity);
  run(1, true, 3);
  CHECK(identity_of(folder / "step-0000000003") == identity);
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000002", "step-0000000003"});
  CHECK(wrong == 0);
  scratch copy;
  tiny one;
  one.trainer.save(copy / "a");
  one.trainer.save(copy / "b");  // a run may save in several places
  CHECK(identity_of(copy / "a/step-0000000000") == identity_of(copy / "b/step-0000000000"));
}

TEST_CASE("a run does not save before its own later checkpoints", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  run.go_to(2);
  run.trainer.save(folder / "early");
  run.go_to(4);
  run.trainer.save(folder / "late");
  tiny back;
  back.trainer.load(folder / "early");
  CHECK(contains(sentence_of([&] { back.trainer.save(folder / "late"); }),
                 "late holds step-0000000004 of this run, which is later than step 2; load() goes on from there"));
  CHECK(names(folder / "late") == std::vector<std::string>{"step-0000000004"});
  back.go_to(4);
  back.trainer.save(folder / "late");  // the same step again
  back.trainer.load(folder / "late");
  CHECK(back.trainer.state_hash() == run.trainer.state_hash());
}

TEST_CASE("a checkpoint whose owner cannot be read is nobody's to remove", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  run.go_to(1);
  run.trainer.save(folder.path());
  overwrite(folder / "step-0000000001/manifest.json", {});
  tiny other;
  CHECK(contains(sentence_of([&] { other.trainer.save(folder.path()); }),
                 "holds a checkpoint that cannot be read, so that nobody knows whose it is ("));
  CHECK(names(folder / "step-0000000001").size() == 3);
  // Beside one's own it stays out of the way, and is never counted or removed.
  std::filesystem::rename(folder / "step-0000000001", folder / "kept");
  run.go_to(2);
  run.trainer.save(folder.path());
  std::filesystem::rename(folder / "kept", folder / "step-0000000001");
  run.go_to(3);
  run.trainer.save(folder.path());
  run.go_to(4);
  run.trainer.save(folder.path());
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000001", "step-0000000003", "step-0000000004"});
  // One that has the name of what is saved steps aside.
  std::filesystem::rename(folder / "step-0000000001", folder / "step-0000000005");
  run.go_to(5);
  run.trainer.save(folder.path());
  CHECK(names(folder.path()) ==
        std::vector<std::string>{"damaged-step-0000000005", "step-0000000004", "step-0000000005"});
}

TEST_CASE("checkpoints of a version that knew no identities belong to the run that they describe",
          "[train][checkpoint]") {
  scratch folder;
  tiny run;
  for (std::int64_t const step : {1, 2}) {
    run.go_to(step);
    run.trainer.save(folder.path());
  }
  auto const identity = identity_of(folder / "step-0000000002");
  for (auto const* const name : {"step-0000000001", "step-0000000002"})
    change_manifest(folder / name, "\"identity\":\"" + identity + "\",", "");
  tiny other;
  CHECK(contains(sentence_of([&] { other.trainer.save(folder.path()); }), "belongs to another run"));
  other.trainer.load(folder.path());
  CHECK(other.trainer.state_hash() == run.trainer.state_hash());
  other.go_to(3);
  other.trainer.save(folder.path());
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000002", "step-0000000003"});
  CHECK(identity_of(folder / "step-0000000003") != identity);
}

TEST_CASE("saving follows no symbolic link below the directory, and removes nothing outside", "[train][checkpoint]") {
  scratch folder;
  elsewhere const precious;
  tiny run;
  run.go_to(1);
  std::filesystem::create_directory_symlink(precious.folder.path(), folder / ".saving");
  run.trainer.save(folder.path());
  CHECK(precious.untouched());
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000001"});

  // Among the steps: neither written, nor pruned, nor taken for this run's.
  std::filesystem::create_directory_symlink(precious.folder.path(), folder / "step-0000000000");
  for (std::int64_t const step : {2, 3, 4}) {
    run.go_to(step);
    run.trainer.save(folder.path());
  }
  std::filesystem::create_directory_symlink(precious.folder.path(), folder / "step-0000000005");
  run.go_to(5);
  run.trainer.save(folder.path());
  CHECK(precious.untouched());
  CHECK(names(folder.path()) ==
        std::vector<std::string>{"damaged-step-0000000005", "step-0000000000", "step-0000000004", "step-0000000005"});

  // The directory itself, and what reads from it.
  std::filesystem::create_directory_symlink(precious.folder.path(), folder / "linked");
  auto const refused = folder / "linked" + ": is not a directory (a symbolic link to one is not followed here)";
  CHECK(sentence_of([&] { run.trainer.save(folder / "linked"); }) == refused);
  CHECK(sentence_of([&] { run.trainer.load(folder / "linked"); }) == refused);
  CHECK(sentence_of([&] { static_cast<void>(checkpoint::exists(folder / "linked")); }) == refused);
  CHECK(precious.untouched());
}

TEST_CASE("what is no regular file within a checkpoint is damage, and nobody waits for a pipe", "[train][checkpoint]") {
  watchdog const guard("pipes in checkpoints");
  for (auto const* const name : {"manifest.json", "manifest.sha256", "rank-0.safetensors"}) {
    for (bool const link : {false, true}) {
      INFO(name << (link ? ", a link" : ", a pipe"));
      scratch folder;
      tiny run;
      run.go_to(1);
      run.trainer.save(folder.path());
      auto const path = folder / "step-0000000001/" + name;
      if (link) {
        std::filesystem::rename(path, folder / "moved");
        std::filesystem::create_symlink(folder / "moved", path);
      } else {
        std::filesystem::remove(path);
        REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
      }
      auto const sentence = sentence_of([&] { run.trainer.load(folder.path()); });
      CHECK(contains(sentence,
                     path + (link ? ": is a symbolic link, which is not followed here" : ": is not a regular file")));
    }
  }
}

TEST_CASE("a directory without a checkpoint and one that cannot be read are errors, not a start",
          "[train][checkpoint]") {
  scratch folder;
  tiny run;
  auto const none = ": there is no checkpoint here; name the directory that a run has saved into";
  CHECK(sentence_of([&] { run.trainer.load(folder / "nowhere"); }) == folder / "nowhere" + none);
  CHECK(sentence_of([&] { run.trainer.load(folder.path()); }) == folder.path() + none);
  CHECK_FALSE(checkpoint::exists(folder / "nowhere"));
  CHECK_FALSE(checkpoint::exists(folder.path()));
  overwrite(folder / "file", {});
  CHECK(contains(sentence_of([&] { run.trainer.load(folder / "file"); }), "file: is not a directory"));
  CHECK(contains(sentence_of([&] { static_cast<void>(checkpoint::exists(folder / "file")); }), "is not a directory"));
  run.trainer.save(folder / "some");
  failing_files closed;
  closed.fails_at = 0;
  closed.number = EACCES;
  CHECK(sentence_of([&] { run.trainer.load(folder / "some", closed); }) ==
        folder / "some" + ": cannot open the directory: permission denied");
}
