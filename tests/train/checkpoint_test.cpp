// test-timeout: 300
#include "trireme/train/checkpoint.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "small_checkpoints.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/nn/mlp.hpp"

using namespace trireme;
using namespace checkpoints;

namespace {

using sparse = compression::error_feedback<compression::top_k>;

/// Runs `steps` steps of a training that resumes from `load` and saves to `save`, unless these are empty. @returns its
/// hash.
template <class... Policies>
std::uint64_t run(int ranks, std::string const& load, std::int64_t steps, std::string const& save,
                  Policies... policies) {
  return toy::twelve_steps.go_on(ranks, load, steps, save, toy::adaptive, policies...);
}

template <class... Policies>
void goes_on(int ranks, Policies... policies) {
  scratch folder;
  auto const saved = run(ranks, "", 4, folder.path(), policies...);
  CHECK(run(ranks, folder.path(), 4, "", policies...) == saved);
  CHECK(run(ranks, folder.path(), 9, "", policies...) == run(ranks, "", 9, "", policies...));
}

/// How some ranks hold tensors: boxes split along an axis of each, and flat ranges of every box.
struct cut {
  std::string name;
  int boxes = 1;
  int ranges = 1;
  int axis = 0;
  [[nodiscard]] int ranks() const { return boxes * ranges; }

  /// Calls f(info, first, view) for the tensors of one rank: a table; fused queries, keys and values, split by heads of
  /// two columns each; and a vector that every box has.
  template <class F>
  void for_each_range(int rank, std::vector<std::vector<float>>& memory, F&& f) const {
    group_rank const box{rank % boxes, boxes};
    group_rank const range{rank / boxes, ranges};
    std::vector<parameter_info> parts{{"table", {7, 5}}, {"fused", {4, 3, 6}}, {"vector", {5}}};
    parts[2].is_owner = box.rank == 0;
    if (boxes > 1) {
      parts[0] = shard_of(parts[0], axis, box.of(parts[0].extents[axis]));
      auto const heads = box.of(3);
      parts[1] =
          axis == 0 ? shard_of(parts[1], 0, box.of(4)) : shard_of(parts[1], 2, {heads.first * 2, heads.count * 2});
    }
    memory.resize(parts.size());
    for (std::size_t each = 0; each < parts.size(); ++each) {
      auto const here = range.of(parts[each].extents.size());
      memory[each].resize(static_cast<std::size_t>(here.count));
      f(parts[each], here.first, tensor_view<float>(memory[each]));
    }
  }
};

/// A rank's residual of four numbers, one of `parts` summands, and a tensor that the first rank saves.
struct held {
  std::vector<float> residual, whole{7, 8};
  checkpoint::run_description run{"a", "b", "c", "d"};
  std::vector<state_shard> shards;
  template <class Comm>
  held(Comm& world, std::vector<float> values, std::int64_t parts, bool pinned = false) : residual(std::move(values)) {
    state_location const place{info(), 0, true, parts};
    shard_collector const to{world.rank(), shards};
    to("residual/w", place, tensor_view<float>(residual));
    if (pinned) to("moment/w", state_location{info(), 0, true}, tensor_view<float>(residual));
    if (world.rank() == 0) to("value/v", state_location{both()}, tensor_view<float>(whole));
    run.of_ranks = checkpoint::detail::numbers_of_ranks(world, shards);
  }
  static parameter_info const& info() {
    static parameter_info const it{"w", {4}};
    return it;
  }
  static parameter_info const& both() {
    static parameter_info const it{"v", {2}};
    return it;
  }
  [[nodiscard]] std::int64_t elements() const {
    std::int64_t sum = 0;
    for (auto const& each : shards) sum += each.size();
    return sum;
  }
};

}  // namespace

TEST_CASE("a run resumes from its checkpoint as if it had not been stopped", "[train][checkpoint]") {
  goes_on(1);
  goes_on(3);
  goes_on(2, parallel::zero<1>{.bucket_bytes = 8192});
  goes_on(3, parallel::zero<1>{}, precision::bf16{});
  goes_on(2, precision::bf16{}, sparse{.inner = {.ratio = 0.1F}});
  goes_on(2, parallel::zero<1>{}, sparse{.inner = {.ratio = 0.1F}});
}

TEST_CASE("a checkpoint is read by another number of ranks under another strategy", "[train][checkpoint]") {
  scratch folder;
  auto const saved = run(3, "", 4, folder.path(), parallel::zero<1>{.bucket_bytes = 8192});
  CHECK(run(2, folder.path(), 4, "", parallel::data{}) == saved);
  CHECK(run(1, folder.path(), 4, folder.path(), parallel::data{.bucket_bytes = 4096}) == saved);
  CHECK(run(4, folder.path(), 4, "", parallel::zero<1>{}) == saved);
  CHECK(run(2, folder.path(), 9, "", parallel::data{}) == run(2, folder.path(), 9, "", parallel::zero<1>{}));
}

TEST_CASE("checkpoints are read bit for bit however writer and reader cut tensors into boxes and ranges",
          "[train][checkpoint]") {
  watchdog const guard("checkpoints of cuts");
  std::vector<cut> const cuts{{"whole"},
                              {"ranges 2", 1, 2},
                              {"ranges 3", 1, 3},
                              {"rows 2", 2, 1, 0},
                              {"rows 3", 3, 1, 0},
                              {"columns 2", 2, 1, 1},
                              {"columns 3", 3, 1, 1},
                              {"columns 2, ranges 2", 2, 2, 1},
                              {"columns 3, ranges 2", 3, 2, 1},
                              {"columns 2, ranges 3", 2, 3, 1},
                              {"rows 2, ranges 3", 2, 3, 0}};
  checkpoint::run_description const run{"a", "b", "c", "d"};
  auto const expected = [](parameter_info const& part, std::int64_t whole) {
    return static_cast<float>(whole) + (part.extents.rank() == 3 ? 0.5F : part.extents.rank() == 1 ? 0.25F : 0);
  };
  std::atomic<int> wrong{0};
  for (auto const& from : cuts) {
    scratch folder;
    launch(comm::threads{.ranks = from.ranks()}, [&](auto& world) {
      std::vector<std::vector<float>> memory;
      checkpoint::identity own;
      std::vector<state_shard> shards;
      from.for_each_range(world.rank(), memory, [&](parameter_info const& part, std::int64_t first, auto view) {
        if (!part.is_owner) return;
        for_each_run(part, first, view.size(), [&](std::int64_t whole, std::int64_t here, std::int64_t n) {
          for (std::int64_t i = 0; i < n; ++i) view[here - first + i] = expected(part, whole + i);
        });
        shards.emplace_back("value/" + part.name, part, first, view);
      });
      checkpoint::save(world, folder.path(), own, run, {.step = 1}, shards);
    });
    for (auto const& to : cuts) {
      INFO("from " << from.name << " to " << to.name);
      launch(comm::threads{.ranks = to.ranks()}, [&](auto& world) {
        std::vector<std::vector<float>> memory;
        std::int64_t owned = 0;
        std::vector<state_shard> shards;
        to.for_each_range(world.rank(), memory, [&](parameter_info const& part, std::int64_t first, auto view) {
          owned += part.is_owner ? view.size() : 0;
          shards.emplace_back("value/" + part.name, part, first, view);
        });
        checkpoint::identity own;
        checkpoint::load(world, folder.path(), own, run, shards, owned);
        to.for_each_range(world.rank(), memory, [&](parameter_info const& part, std::int64_t first, auto view) {
          for_each_run(part, first, view.size(), [&](std::int64_t whole, std::int64_t here, std::int64_t n) {
            for (std::int64_t i = 0; i < n; ++i) wrong += view[here - first + i] != expected(part, whole + i) ? 1 : 0;
          });
        });
      });
      REQUIRE(wrong == 0);
    }
  }
}

TEST_CASE("a checkpoint with a missing or repeated part, or surplus numbers, is refused", "[train][checkpoint]") {
  checkpoint::run_description const run{"a", "b", "c", "d"};
  comm::self_world world;
  std::vector<float> numbers(12, 1.0F);
  auto const loading = [&](std::vector<interval> const& written, std::int64_t elements) {
    scratch folder;
    parameter_info const whole{"table", {3, 4}};
    checkpoint::identity own;
    std::vector<state_shard> shards;
    for (auto const& range : written) {
      tensor_view<float> const view(numbers.data(), shape{range.count});
      shards.emplace_back("value/table", whole, range.first, view);
    }
    checkpoint::save(world, folder.path(), own, run, {.step = 1}, shards);
    auto const part = shard_of(whole, 1, {1, 2});
    std::vector<float> out(6);
    std::vector const taken{state_shard("value/table", part, 0, tensor_view<float>(out))};
    return sentence_of([&] { checkpoint::load(world, folder.path(), own, run, taken, elements); });
  };
  CHECK(loading({{0, 7}, {7, 5}}, 12) == "");
  auto const element = std::string("of this rank's part of \"value/table\" is in ");
  CHECK(contains(loading({{0, 5}, {7, 5}}, 10), "element 2 " + element + "none of its shards"));
  CHECK(contains(loading({{0, 7}, {6, 6}}, 13), "element 3 " + element + "several of its shards"));
  CHECK(contains(loading({{0, 7}, {7, 5}}, 13), "the checkpoint holds 12 numbers, but this run takes 13"));
}

TEST_CASE("what ranks have not sent yet is divided anew among another number of ranks", "[train][checkpoint]") {
  std::string folder;
  auto const save = [&](int ranks, std::int64_t parts, bool pinned = false) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto const r = static_cast<float>(world.rank() + 1);
      held mine(world, {r, 10 * r, 0, -r}, parts, pinned);
      checkpoint::identity each;
      checkpoint::save(world, folder, each, mine.run, {.step = 1}, mine.shards);
    });
  };
  auto const load = [&](int ranks, std::int64_t parts) {
    std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks));
    std::vector<std::string> sentences(all.size());
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto const rank = static_cast<std::size_t>(world.rank());
      held mine(world, {9, 9, 9, 9}, parts);
      checkpoint::identity each;
      sentences[rank] =
          sentence_of([&] { checkpoint::load(world, folder, each, mine.run, mine.shards, mine.elements()); });
      all[rank] = mine.residual;
    });
    if (!sentences[0].empty()) throw error(sentences[0]);
    return all;
  };
  using rows = std::vector<std::vector<float>>;
  scratch first, second, third;
  folder = first.path();
  save(2, 2);
  CHECK(load(2, 2) == rows{{1, 10, 0, -1}, {2, 20, 0, -2}});  // the same ranks: each its own
  CHECK(load(3, 3) == rows(3, {1, 10, 0, -1}));
  CHECK(load(1, 1) == rows{{3, 30, 0, -3}});
  folder = second.path();
  save(4, 2);  // two ranks of a tensor group hold copies: the sum is 5, not 10
  CHECK(load(1, 1) == rows{{5, 50, 0, -5}});
  CHECK(load(2, 1) == rows(2, {5, 50, 0, -5}));
  folder = third.path();
  save(2, 2, true);
  CHECK(
      contains(sentence_of([&] { load(3, 3); }),
               "holds numbers that belong to each of 2 ranks, and this run has 3 ranks; numbers of ranks of which not "
               "only the sum counts need the same number of ranks under the same mesh"));
}

TEST_CASE("the newest two checkpoints are kept", "[train][checkpoint]") {
  scratch folder;
  tiny run;
  for (std::int64_t const step : {3, 5, 7}) {
    run.go_to(step);
    run.trainer.save(folder.path());
  }
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000005", "step-0000000007"});
  auto const hash = run.trainer.state_hash();
  run.trainer.save(folder.path());  // the same step again
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000005", "step-0000000007"});
  tiny other;
  other.trainer.load(folder.path());
  CHECK(other.trainer.state_hash() == hash);
  CHECK(other.model.knots == run.model.knots);
}

TEST_CASE("a checkpoint of another model, optimizer or precision is refused with both names", "[train][checkpoint]") {
  scratch folder;
  comm::self_world world;
  nn::mlp const one{.hidden = {4}};
  nn::mlp const other{.hidden = {5}};
  make_trainer(one, optim::sgd{}, world).save(folder.path());
  auto const loading = [&](auto const& model, auto const& optimizer, auto... policies) {
    return sentence_of([&] { make_trainer(model, optimizer, world, policies...).load(folder.path()); });
  };
  auto const model = loading(other, optim::sgd{});
  CHECK(contains(model,
                 "was made with the model " + to_string(one) + ", but this run has the model " + to_string(other)));
  CHECK(contains(loading(one, optim::adamw{}),
                 "was made with the optimizer optim::sgd, but this run has the optimizer optim::adamw"));
  CHECK(contains(loading(one, optim::sgd{}, precision::bf16{}),
                 "the precision precision::fp32{}, but this run has the precision precision::bf16{}"));
  CHECK(contains(loading(one, optim::sgd{}, sparse{}), "the compression compression::none{}, but this run has"));
  CHECK(loading(one, optim::sgd{.learning_rate = 0.5}) == "");
  scratch empty;
  CHECK(sentence_of([&] { make_trainer(one, optim::sgd{}, world).load(empty.path()); }) ==
        empty.path() + ": there is no checkpoint here; name the directory that a run has saved into");
}

TEST_CASE("whichever file operation fails, the last checkpoint stays and no temporary file", "[train][checkpoint]") {
  tiny run;
  run.go_to(1);
  auto const first = run.trainer.state_hash();
  failing_files counting;
  {
    scratch folder;
    run.trainer.save(folder.path());
    run.go_to(2);
    run.trainer.save(folder.path(), counting);
  }
  auto const second = run.trainer.state_hash();
  REQUIRE(counting.operations > 20);
  for (bool const same_step : {false, true}) {
    for (int at = 0; at < counting.operations; ++at) {
      INFO("operation " << at << (same_step ? ", the same step again" : ""));
      scratch folder;
      tiny before;
      before.go_to(1);
      before.trainer.save(folder.path());
      failing_files files;
      files.fails_at = at;
      if (!same_step) before.go_to(2);
      auto const sentence = sentence_of([&] { before.trainer.save(folder.path(), files); });
      tiny after;
      after.trainer.load(folder.path());
      auto const hash = after.trainer.state_hash();
      CHECK((hash == first || (!same_step && hash == second)));
      if (sentence != "") CHECK(contains(sentence, ": no space left on device"));
      if (files.kept_something) before.trainer.save(folder.path());
      for (auto const& name : names(folder.path())) CHECK(name.starts_with("step-"));
    }
  }
}

TEST_CASE("whenever a save is killed, the last checkpoint stays and the next save removes the rest",
          "[train][checkpoint]") {
  tiny run;
  run.go_to(2);
  auto const second = run.trainer.state_hash();
  for (int at = 0;; ++at) {
    INFO("operation " << at);
    scratch folder;
    tiny before;
    before.go_to(1);
    before.trainer.save(folder.path());
    auto const first = before.trainer.state_hash();
    before.go_to(2);
    failing_files files;
    files.fails_at = at;
    files.for_ever = true;
    bool const killed = sentence_of([&] { before.trainer.save(folder.path(), files); }) != "";
    tiny after;
    after.trainer.load(folder.path());
    auto const hash = after.trainer.state_hash();
    CHECK((hash == first || hash == second));
    after.go_to(3);
    after.trainer.save(folder.path());
    for (auto const& name : names(folder.path())) CHECK(name.starts_with("step-"));
    CHECK(names(folder.path()).back() == "step-0000000003");
    if (!killed && files.operations <= at) break;
  }
}

TEST_CASE("an error of writing on one rank ends the save on every rank with its sentence", "[train][checkpoint]") {
  scratch folder;
  std::atomic<int> told{0};
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{.hidden = {4}}, optim::sgd{}, world);
    failing_files files;
    if (world.rank() == 1) files.fails_at = 1;
    auto const sentence = sentence_of([&] { trainer.save(folder.path(), files); });
    bool const own = world.rank() == 1;
    told += contains(sentence, "no space left on device") && sentence.starts_with("rank 1 failed: ") != own ? 1 : 0;
    world.barrier();
    trainer.save(folder.path());
  });
  CHECK(told == 3);
  CHECK(names(folder.path()) == std::vector<std::string>{"step-0000000000"});
}
