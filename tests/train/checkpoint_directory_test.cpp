#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
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
/// A folder with files that must not be changed, and a check of this.
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

/// Samples with a file that a model needs with them.
struct table : data::function<float (*)(float)> {
  std::string content;
  explicit table(std::string text)
      : data::function<float (*)(float)>(+[](float x) { return x; }, {.samples = 32}), content(std::move(text)) {}
  [[nodiscard]] std::vector<formats::model_file> model_files() const { return {{"table.json", content}}; }
};

}  // namespace

TEST_CASE("a run refuses to save into the directory of another run, and changes nothing there", "[train][checkpoint]") {
  scratch folder;
  tiny first;
  first.go_to(5);
  first.trainer.save(folder.path());
  first.go_to(7);
  first.trainer.save(folder.path());
  auto const before = names(folder.path());
  auto const theirs = identity_of(folder / "step-0000000007");
  std::filesystem::create_directory(folder / ".saving");  // the other run may be saving at this moment
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

TEST_CASE("a resumed run keeps its identity, on any number of ranks; a restarted run has a new one",
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

TEST_CASE("a run refuses to save into a directory with later checkpoints of its own", "[train][checkpoint]") {
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

TEST_CASE("a checkpoint whose owner cannot be read is never removed", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  run.go_to(1);
  run.trainer.save(folder.path());
  overwrite(folder / "step-0000000001/manifest.json", {});
  tiny other;
  CHECK(contains(sentence_of([&] { other.trainer.save(folder.path()); }),
                 "holds a checkpoint that cannot be read, so its run is unknown ("));
  CHECK(names(folder / "step-0000000001").size() == 3);
  // Next to a run's own checkpoints it is ignored: never counted or removed.
  std::filesystem::rename(folder / "step-0000000001", folder / "kept");
  run.go_to(2);
  run.trainer.save(folder.path());
  std::filesystem::rename(folder / "kept", folder / "step-0000000001");
  run.go_to(3);
  run.trainer.save(folder.path());
  run.go_to(4);
  run.trainer.save(folder.path());
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000001", "step-0000000003", "step-0000000004"});
  // One with the name of the new checkpoint is renamed.
  std::filesystem::rename(folder / "step-0000000001", folder / "step-0000000005");
  run.go_to(5);
  run.trainer.save(folder.path());
  CHECK(names(folder.path()) ==
        std::vector<std::string>{"damaged-step-0000000005", "step-0000000004", "step-0000000005"});
}

TEST_CASE("checkpoints of versions without run identities belong to the run that they describe",
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

  // Files among the steps are neither written, nor removed, nor counted as this run's.
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

  // The directory itself, and the functions that read from it.
  std::filesystem::create_directory_symlink(precious.folder.path(), folder / "linked");
  auto const refused = folder / "linked" + ": is not a directory (a symbolic link to one is not followed here)";
  CHECK(sentence_of([&] { run.trainer.save(folder / "linked"); }) == refused);
  CHECK(sentence_of([&] { run.trainer.load(folder / "linked"); }) == refused);
  CHECK(sentence_of([&] { static_cast<void>(checkpoint::exists(folder / "linked")); }) == refused);
  CHECK(precious.untouched());
}

TEST_CASE("a special file within a checkpoint is damage, and a pipe does not block", "[train][checkpoint]") {
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

TEST_CASE("a run that may not save in a directory gets an error at the start, and changes nothing there",
          "[train][checkpoint]") {
  scratch folder;
  tiny first;
  first.go_to(5);
  first.trainer.save(folder.path());
  auto const before = names(folder.path());
  tiny other;
  CHECK(contains(sentence_of([&] { other.trainer.prepare_saves(folder.path()); }), " belongs to another run ("));
  CHECK(names(folder.path()) == before);
  tiny again;
  CHECK(again.trainer.load(folder / "step-0000000005").at.step == 5);
  first.go_to(7);
  first.trainer.save(folder.path());
  CHECK(contains(sentence_of([&] { again.trainer.prepare_saves(folder.path()); }), "step-0000000007"));
  formats::atomic_write(folder / "file", "no directory");
  CHECK(contains(sentence_of([&] { other.trainer.prepare_saves(folder / "file"); }), folder / "file"));

  auto const fresh = folder / "fresh";
  tiny run;
  run.trainer.prepare_saves(fresh);
  CHECK(names(fresh).empty());
  run.go_to(3);
  run.trainer.prepare_saves(fresh);
  run.trainer.save(fresh);
  run.trainer.prepare_saves(fresh);
  CHECK(names(fresh) == std::vector<std::string>{"step-0000000003"});
  tiny next;
  CHECK(contains(sentence_of([&] { next.trainer.prepare_saves(fresh); }), " belongs to another run ("));
}

TEST_CASE("resume_or_start() resumes the run of a directory, or starts it", "[train][checkpoint]") {
  watchdog const watch("go on or start");
  scratch folder;
  auto const run = [&](int ranks, std::string const& where) {
    std::atomic<std::int64_t> step{-1};
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto const data = data::function(+[](float x) { return x; }, {.samples = 32});
      auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::sgd{}, world);
      auto const found = checkpoint::resume_or_start(trainer, folder / where);
      if (world.rank() == 0) step = found ? found->at.step : 0;
      trainer.fit(data, {.steps = trainer.steps() + 2, .batch = 8});
      trainer.save(folder / where);
    });
    return step.load();
  };
  CHECK(run(2, "run") == 0);
  CHECK(run(3, "run") == 2);
  CHECK(run(1, "run") == 4);
  formats::atomic_write(folder / "file", "no directory");
  CHECK(contains(sentence_of([&] { run(2, "file"); }), folder / "file"));
  std::filesystem::remove(folder / "run/step-0000000006/manifest.json");
  std::filesystem::remove_all(folder / "run/step-0000000004");
  std::filesystem::remove_all(folder / "run/step-0000000002");
  CHECK(contains(sentence_of([&] { run(2, "run"); }), "no checkpoint here is whole"));

  comm::self_world alone;
  std::vector<float> value{1}, gradient{1};
  for (std::int64_t last = 0; last < 3; ++last) {
    auto exchange =
        make_exchange(std::vector<foreign_parameter<float>>{{"w", tensor_view{value}, tensor_view{gradient}}}, alone);
    optim::adamw const adamw{};
    auto const found = checkpoint::resume_or_start(exchange, folder / "loop", adamw);
    CHECK(found.has_value() == (last > 0));
    CHECK(exchange.steps() == last);
    exchange.begin();
    exchange.ready("w");
    exchange.step(adamw);
    checkpoint::save(exchange, folder / "loop");
  }
}

TEST_CASE("checkpoints keep the files that a model needs with its data, and an epoch goes on with the same ones",
          "[train][checkpoint]") {
  watchdog const watch("files of the data");
  scratch folder;
  auto const run = [&](int ranks, std::int64_t steps, std::string const& content) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      table const data(content);
      auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::sgd{}, world);
      static_cast<void>(checkpoint::resume_or_start(trainer, folder / "run"));
      auto const known = trainer.model_files();
      if (world.rank() == 0 && content == "one" && trainer.steps() > 0) CHECK(known == data.model_files());
      trainer.fit(data, {.steps = steps, .batch = 8});
      trainer.save(folder / "run");
    });
  };
  run(2, 2, "one");
  run(1, 3, "one");
  CHECK(contains(sentence_of([&] { run(2, 4, "two"); }), "with a table.json of the SHA-256 3fc4ccfe7458..., but"));
}

TEST_CASE("foreign files among checkpoints are not changed", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  auto const note = [&](std::string const& at) {
    std::filesystem::create_directories(folder / at + "/notes/deep");
    formats::atomic_write(folder / at + "/notes/deep/plot.txt", "mine");
    formats::atomic_write(folder / at + "/README.md", "mine");
  };
  auto const has_note = [&](std::string const& at) {
    return std::filesystem::exists(folder / at + "/notes/deep/plot.txt") &&
           formats::read_text(folder / at + "/README.md") == "mine";
  };
  auto const alone = std::vector<std::string>{"README.md", "notes"};
  run.go_to(1);
  run.trainer.save(folder.path());
  note("step-0000000001"), note(".saving"), note("step-0000000003");
  for (std::int64_t const step : {2, 3, 4}) {  // 1 and 2 are removed, and 3 is saved into an existing directory
    run.go_to(step);
    run.trainer.save(folder.path());
    for (auto const* const at : {"step-0000000001", ".saving", "step-0000000003"}) CHECK(has_note(at));
  }
  CHECK(names(folder / "step-0000000001") == alone);
  CHECK(names(folder / ".saving") == alone);
  CHECK(names(folder / "step-0000000003").size() == 5);
  CHECK(names(folder.path()) ==
        std::vector<std::string>{".saving", "step-0000000001", "step-0000000003", "step-0000000004"});
  CHECK(checkpoint::kept_in(folder.path()).size() == 2);

  // The same step once more, in a directory that also has another file.
  note("step-0000000004");
  run.trainer.save(folder.path());
  CHECK(has_note("step-0000000004"));
  tiny other;
  CHECK(other.trainer.load(folder.path()).at.step == 4);
  CHECK(other.trainer.state_hash() == run.trainer.state_hash());

  // A damaged one is renamed without it.
  overwrite(folder / "step-0000000004/rank-0.safetensors", {});
  auto const found = other.trainer.load(folder.path());
  CHECK(found.at.step == 3);
  REQUIRE(found.damaged.size() == 1);
  CHECK(names(found.damaged[0].kept_as).size() == 3);
  CHECK(names(folder / "step-0000000004") == alone);
  CHECK(has_note("step-0000000004"));
  other.go_to(4);
  other.trainer.save(folder.path());
  CHECK(has_note("step-0000000004"));
  CHECK(other.trainer.load(folder.path()).at.step == 4);
  formats::atomic_write(folder / ".saving/rank-0.safetensors", "torn");
  checkpoint::remove_unfinished(folder.path());
  CHECK(names(folder / ".saving") == alone);
}

TEST_CASE("a step is saved again without an atomic exchange of names, whatever fails or is killed",
          "[train][checkpoint]") {
  for (bool const shared : {false, true}) {
    for (bool const for_ever : {false, true}) {
      for (int at = -1;; ++at) {
        INFO("operation " << at << (shared ? ", beside another's file" : "") << (for_ever ? ", killed" : ""));
        scratch folder;
        tiny run;
        run.go_to(1);
        run.trainer.save(folder.path());
        run.go_to(2);
        run.trainer.save(folder.path());
        auto const hash = run.trainer.state_hash();
        if (shared) formats::atomic_write(folder / "step-0000000002/mine", "mine");
        failing_files files;
        files.exchanges = false;
        files.fails_at = at;
        files.for_ever = for_ever;
        auto const sentence = sentence_of([&] { run.trainer.save(folder.path(), files); });
        CHECK((at >= 0 || sentence.empty()));
        CHECK(checkpoint::exists(folder.path()));
        auto const kept = checkpoint::kept_in(folder.path());
        REQUIRE_FALSE(kept.empty());
        if (!shared) CHECK(kept.back().step == 2);
        tiny after;
        auto const found = after.trainer.load(shared ? folder.path() : kept.back().path);
        if (found.at.step == 2) CHECK(after.trainer.state_hash() == hash);
        CHECK(found.at.step == 2);
        run.trainer.save(folder.path());
        CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000001", "step-0000000002"});
        if (shared) CHECK(formats::read_text(folder / "step-0000000002/mine") == "mine");
        if (at >= 0 && files.operations <= at) break;
      }
    }
  }
}

TEST_CASE("a run directory may have any name: spaces, letters of any script, slashes at its end, dots",
          "[train][checkpoint]") {
  scratch folder;
  for (std::string const name : {"with spaces", "\xe6\x97\xa5\xe6\x9c\xac \xc3\xbc", "-n", "it's \"100 %\"", "a\nline",
                                 "deep/er", "./here", "step", "\xff not UTF-8"}) {
    INFO(name);
    auto const plain = folder / name;
    tiny run;
    run.go_to(3);
    run.trainer.save(plain + "/");
    run.go_to(5);
    run.trainer.save(plain);
    run.go_to(7);
    run.trainer.save_in_background(plain + "//");
    run.trainer.finish_save();
    CHECK(names(plain) == std::vector<std::string>{"step-0000000005", "step-0000000007"});
    for (auto const& path : {plain, plain + "/", plain + "/step-0000000007", plain + "/step-0000000007/"}) {
      INFO(path);
      tiny other;
      CHECK(other.trainer.load(path).at.step == 7);
      CHECK(other.trainer.state_hash() == run.trainer.state_hash());
    }
  }
}

TEST_CASE("a save ends in the directory where it began if the program changes its working directory",
          "[train][checkpoint]") {
  scratch folder;
  auto const before = std::filesystem::current_path();
  for (auto const* const each : {"first", "second"}) std::filesystem::create_directory(folder / each);
  tiny run;
  run.go_to(3);
  std::filesystem::current_path(folder / "first");
  run.trainer.save_in_background("run");
  std::filesystem::current_path(folder / "second");
  run.trainer.finish_save();
  run.go_to(5);
  run.trainer.save("run");
  std::filesystem::current_path(before);
  CHECK(names(folder / "first/run") == std::vector<std::string>{"step-0000000003"});
  CHECK(names(folder / "second/run") == std::vector<std::string>{"step-0000000005"});
  CHECK(tiny().trainer.load(folder / "first/run").at.step == 3);
  CHECK(tiny().trainer.load(folder / "second/run").at.step == 5);
}

TEST_CASE("on a full device a save is an error of one sentence, and earlier checkpoints stay", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  run.go_to(3);
  run.trainer.save(folder.path());
  run.go_to(5);
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  auto const handler = std::signal(SIGXFSZ, SIG_IGN);  // otherwise the system ends the program
  for (::rlim_t const bytes : {0, 1, 100}) {
    INFO(bytes << " bytes");
    ::rlimit const little{bytes, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &little) == 0);
    auto const sentence = sentence_of<io_error>([&] { run.trainer.save(folder.path()); });
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    CHECK(contains(sentence, folder.path()));
    CHECK(sentence.find('\n') == sentence.npos);
    CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000003"});
  }
  std::signal(SIGXFSZ, handler);
  CHECK(tiny().trainer.load(folder.path()).at.step == 3);
  run.trainer.save(folder.path());
  CHECK(tiny().trainer.load(folder.path()).at.step == 5);
}

TEST_CASE("in a read-only directory a save is an error of one sentence, and a load works", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  run.go_to(3);
  run.trainer.save(folder / "run");
  run.go_to(5);
  // Root may write everywhere, so the test becomes the user nobody for a while.
  bool const root = ::geteuid() == 0;
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  for (auto const& each : std::filesystem::recursive_directory_iterator(folder.path()))
    std::filesystem::permissions(each.path(), std::filesystem::perms(each.is_directory() ? 0555 : 0444));
  if (root) REQUIRE(::seteuid(65534) == 0);
  auto const sentence = sentence_of<io_error>([&] { run.trainer.save(folder / "run"); });
  auto const made = sentence_of<io_error>([&] { run.trainer.save("/proc/trireme"); });
  auto const loaded = tiny().trainer.load(folder / "run").at.step;
  if (root) REQUIRE(::seteuid(0) == 0);
  for (auto const& each : std::filesystem::recursive_directory_iterator(folder.path()))
    if (each.is_directory()) std::filesystem::permissions(each.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(folder / "run", std::filesystem::perms(0755));
  INFO(sentence);
  CHECK(contains(sentence, folder / "run"));
  CHECK(contains(sentence, "permission denied"));
  CHECK(contains(made, "/proc/trireme"));
  CHECK(loaded == 3);
  CHECK(names(folder / "run") == std::vector<std::string>{"step-0000000003"});
}
