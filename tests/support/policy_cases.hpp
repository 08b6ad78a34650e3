#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "plan_differences.hpp"
#include "sentence.hpp"
#include "shared_scratch.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/comm/decorate.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/data/function.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/train/make_trainer.hpp"
#include "trireme/train/plan.hpp"

/// What every policy with a run state shows, whoever wrote it: it learns, goes on bit for bit, sends and holds what its
/// plan says, and moves to another number of ranks or says why not. On any communicator that counts; each case returns
/// what it found wrong on this rank, or nothing.
namespace policy_cases {

using namespace trireme;

inline auto counting_threads(int ranks) { return comm::decorate(comm::threads{.ranks = ranks}, comm::counted{}); }

/// A run on some ranks that is saved there and loaded on others, by threads.
struct move_of_ranks {
  int from = 2, to = 3;
};
/// What of a run's state does not depend on its number of ranks: a hash of what ranks have together, and the sum of
/// what each has of its own, with that of its sizes.
struct state_of_all {
  std::uint64_t together = 0;
  double sum = 0, size = 0;
};
/// Collective.
template <class Trainer>
[[nodiscard]] state_of_all state_of_all_ranks(Trainer& trainer) {
  state_of_all out;
  trainer.for_each_state([&](std::string const& name, parameter_info const& info, std::int64_t first, auto view) {
    auto const dot = name.substr(0, name.find('/')).rfind('.');
    if (dot != std::string::npos && name.find_first_of("0123456789", dot) == dot + 1) {  // "residual.2/wte"
      for (std::int64_t i = 0; i < view.size(); ++i) {
        auto const value = static_cast<double>(view[i]);
        out.sum += info.is_owner || info.tied ? value : 0;
        out.size += std::abs(value);
      }
      return;
    }
    for_each_run(info, first, view.size(), [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
      out.together += ops::on<host>::hash(view.flat(in_part - first, n), hash_name(name), in_whole);
    });
  });
  auto& world = trainer.world();
  world.all_reduce(tensor_view<std::uint64_t>(&out.together, shape{1}), reduction::sum{});
  double sums[] = {out.sum, out.size};
  world.all_reduce(tensor_view<double>(sums, shape{2}), reduction::sum{});
  return {out.together, sums[0], sums[1]};
}

/// The cases on a model and samples for it.
template <class Model, class Data>
struct cases {
  Model model;
  Data data;
  std::int64_t batch = 16;  // divides the samples: all steps are as large as the one that is planned

  [[nodiscard]] fit_options until(std::int64_t step) const {
    return {.steps = 40, .batch = batch, .stop_after = step, .check_every = 0};
  }

  /// A run that is saved after 11 steps and abandoned after 13 is gone on with in another trainer: the state at 11 and
  /// at 30 is that of a run that nobody stopped, which learns.
  /// @param part  of the first loss, which is left at the most.
  /// @param hash  out: the state at 30.
  template <class Comm, class... Policies>
  [[nodiscard]] std::string learns_and_goes_on(Comm& world, double part, std::uint64_t& hash,
                                               Policies const&... policies) const {
    shared_scratch folder(world);
    std::string problem;
    std::uint64_t saved = 0;
    {
      auto whole = make_trainer(model, world, policies...);
      auto const report = whole.fit(data, until(30));
      if (!(report.last_loss < part * report.first_loss))
        problem += text("a loss of ", report.last_loss, " after ", report.first_loss, "; ");
      hash = whole.state_hash();
    }
    {
      auto stopped = make_trainer(model, world, policies...);
      stopped.fit(data, until(11));
      stopped.save(folder.path());
      saved = stopped.state_hash();
      stopped.fit(data, until(13));
    }
    auto resumed = make_trainer(model, world, policies...);
    resumed.initialise(9);
    resumed.fit(data, until(2));  // whatever it has now, it forgets
    resumed.load(folder.path());
    if (resumed.state_hash() != saved) problem += "not what was saved; ";
    resumed.fit(data, until(30));
    if (resumed.state_hash() != hash) problem += "the resumed run is another one; ";
    world.barrier();  // before the directory goes
    return problem;
  }

  /// Each kind of message in a period, and what is held, is as planned.
  template <class Comm, class... Policies>
  [[nodiscard]] std::string is_as_planned(Comm& world, Policies const&... policies) const {
    auto trainer = make_trainer(model, world, policies...);
    auto const planned = plan(trainer, data, {.samples = batch});
    auto const first = trainer.exchange().settles_after() + planned.steps;
    comm::traffic_table before, after;
    std::int64_t seen = 0;
    trainer.on_step([&](step_report const& done) {
      if (done.step + 1 == first) before = world.counts();
      if (done.step + 1 == first + planned.steps) after = world.counts(), ++seen;
    });
    trainer.fit(data, until(40));
    std::string problem;
    if (seen != 1) problem += "the counters were not read; ";
    problem += plan_differences(trainer, planned, before, after);
    return problem;
  }

  /// @returns "" if the state is the same there, but for the sums of what each rank has of its own, which are equal up
  ///          to rounding, and training goes on; else what load() says.
  template <class... Policies>
  [[nodiscard]] std::string moves(move_of_ranks const& move, Policies const&... policies) const {
    scratch folder;
    state_of_all saved;
    launch(counting_threads(move.from), [&](auto& world) {
      auto trainer = make_trainer(model, world, policies...);
      trainer.fit(data, until(7));
      trainer.save(folder.path());
      auto const state = state_of_all_ranks(trainer);
      if (world.rank() == 0) saved = state;
    });
    std::string problem;
    launch(counting_threads(move.to), [&](auto& world) {
      auto trainer = make_trainer(model, world, policies...);
      auto mine = sentence_of([&] { trainer.load(folder.path()); });
      if (mine.empty()) {
        auto const found = state_of_all_ranks(trainer);
        if (found.together != saved.together) mine += "another state";
        if (!(std::abs(found.sum - saved.sum) <= 1e-6 * saved.size))
          mine += text("ranks' own numbers have the sum ", found.sum, ", and had ", saved.sum, "; ");
        auto const report = trainer.fit(data, until(40));
        if (!(report.last_loss < report.first_loss)) mine += "it does not go on learning";
      }
      if (world.rank() == 0) problem = mine;
    });
    return problem;
  }

  /// All cases that need one world: on each rank what is wrong.
  template <class Comm, class... Policies>
  [[nodiscard]] std::string holds(Comm& world, double part, std::uint64_t& hash, Policies const&... policies) const {
    return learns_and_goes_on(world, part, hash, policies...) + is_as_planned(world, policies...);
  }
  /// The same on so many threads.
  template <class... Policies>
  [[nodiscard]] std::string holds_by_threads(int ranks, double part, Policies const&... policies) const {
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    std::vector<std::uint64_t> hashes(found.size());
    launch(counting_threads(ranks), [&](auto& world) {
      auto const rank = static_cast<std::size_t>(world.rank());
      found[rank] = holds(world, part, hashes[rank], policies...);
    });
    std::string all;
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      if (hashes[rank] != hashes.front()) found[rank] += "another hash than rank 0's; ";
      if (!found[rank].empty()) all += text("rank ", rank, ": ", found[rank]);
    }
    return all;
  }
  /// The state after 30 steps on so many threads.
  template <class... Policies>
  [[nodiscard]] std::uint64_t state_by_threads(int ranks, Policies const&... policies) const {
    std::uint64_t hash = 0;
    launch(counting_threads(ranks), [&](auto& world) {
      auto trainer = make_trainer(model, world, policies...);
      trainer.fit(data, until(30));
      auto const mine = trainer.state_hash();
      if (world.rank() == 0) hash = mine;
    });
    return hash;
  }
};

template <class Model, class Data>  // clang 14 deduces no aggregates
cases(Model, Data)->cases<Model, Data>;
template <class Model, class Data>
cases(Model, Data, std::int64_t) -> cases<Model, Data>;

inline auto const on_mlp =
    cases{nn::mlp{.hidden = {24, 16}}, data::function([](float x) { return std::sin(x); }, {.samples = 96})};

}  // namespace policy_cases
