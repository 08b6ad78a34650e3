#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/axis.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/rule.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/contract/stage_link.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/parallel/grid.hpp"
#include "trireme/parallel/schedules/check.hpp"
#include "trireme/parallel/schedules/cut_units.hpp"
#include "trireme/parallel/schedules/one_way.hpp"
#include "trireme/parallel/schedules/simulate.hpp"
#include "trireme/parallel/stage_assignment.hpp"

namespace trireme::parallel {

/// Pipeline parallelism: each stage has some consecutive units of the model, and micro-batches go through all stages.
///
/// Bytes    each activation and each gradient between two stages, once a micro-batch (schedule::step).
/// Needs    has_exchange; it opens routes between stages with neighbouring parts of the model (has_routes).
/// Errors   config_error if the model has fewer units than parts, or `cuts` do not increase within it.
template <class Schedule = schedule::one_f_one_b>
struct pipeline {
  using policy_category = slot::parallel;
  using schedule_type = Schedule;

  int stages = 0;                    ///< 0: the ranks that other axes leave
  int chunks = Schedule::chunks;     ///< chunks of the model a stage; for schedule::interleaved (0: two)
  std::vector<std::int64_t> cuts{};  ///< the first unit of each part but the first; empty: balanced by cost
  friend bool operator==(pipeline const&, pipeline const&) = default;

  void validate() const {
    expect_number("parallel::pipeline", ".stages", stages, not_negative);
    expect_number("parallel::pipeline", ".chunks", chunks, not_negative);
  }

  static constexpr std::string_view name = "pipeline";
  static constexpr std::string_view kind = name;
  static constexpr axis_facts facts{.parameters = axis_parameters::units};
  [[nodiscard]] constexpr int degree() const noexcept { return stages; }

  TRIREME_RULE(keeps_gradients, "pipeline-keeps-gradients",
               "parallel::zero<2> and zero<3> exchange every micro-batch, which a pipeline's schedule does not support",
               "use parallel::zero<1> beside parallel::pipeline", !C::shards_gradients);
  TRIREME_RULE(needs_exchange, "pipeline-needs-exchange",
               "parallel::pipeline needs exchange, which this communicator lacks", "use another communicator",
               has_exchange<typename C::comm, typename C::space>);
  using rules = rule_list<keeps_gradients, needs_exchange>;

  template <class Env, class Comm>
  class instance;
};

template <class Schedule>
[[nodiscard]] std::string to_string(pipeline<Schedule> const& p) {
  std::string cuts;
  for (auto const cut : p.cuts) cuts += text(cuts.empty() ? "" : ", ", cut);
  return text("parallel::pipeline<schedule::", Schedule::name, ">{.stages = ", p.stages, ", .chunks = ", p.chunks,
              ", .cuts = {", cuts, "}}");
}

namespace detail {

/// The costs of a model's units: `unit_costs()` of the model, or equal ones.
template <staged_model Model>
[[nodiscard]] std::vector<double> costs_of_units(Model const& model) {
  if constexpr (requires { model.unit_costs(); }) {
    auto const costs = model.unit_costs();
    return {costs.begin(), costs.end()};
  } else {
    trireme::detail::counts_units count;
    model.units(count);
    return std::vector<double>(static_cast<std::size_t>(count.count), 1.0);
  }
}

/// The lists of a schedule for any number of micro-batches. If the schedule does not support that number (a short batch
/// at the end of the data), the lists of the next larger supported number, without the surplus micro-batches.
template <class Schedule>
[[nodiscard]] schedule::step_lists lists_for(schedule::size of) {
  constexpr int most_tries = 1 << 16;
  int const there = of.micro_batches;
  for (int more = 0; more < most_tries && Schedule::refuses(of) != nullptr; ++more) ++of.micro_batches;
  if (Schedule::refuses(of) != nullptr) of.micro_batches = there;
  auto full = schedule::make_lists<Schedule>(of);
  if (of.micro_batches == there) return full;
  schedule::step_lists some(full.where());
  for (int s = 0; s < of.stages; ++s) {
    for (auto const* each = full.of(s); each != full.of(s) + full.count(s); ++each) {
      if (each->micro_batch < there) some.add(s, *each);
    }
  }
  return some;
}

/// The most micro-batches that each stage holds at a time. A template, so that the simulator is not compiled into
/// programs without a pipeline.
template <class Lists>
[[nodiscard]] std::vector<int> peaks_of(Lists const& lists) {
  auto const run = schedule::simulate(lists);
  std::vector<int> peaks;
  for (int stage = 0; stage < lists.stages(); ++stage) peaks.push_back(run.stage(stage).peak);
  return peaks;
}

}  // namespace detail

/// The seat of `stage` in a pipeline of `stages` stages of a model's units.
template <class Schedule, staged_model Model>
[[nodiscard]] stage_assignment assignment_of(pipeline<Schedule> const& axis, Model const& model, int stage,
                                             int stages) {
  int const chunks = Schedule::chunks != 0 ? Schedule::chunks : axis.chunks != 0 ? axis.chunks : 2;
  schedule::stage_map const where{{stages, 0, chunks}, Schedule::where};
  auto const costs = detail::costs_of_units(model);
  int const parts_a_stage = where.virtual_stages() / stages;
  return {.stage = stage,
          .where = where,
          .cuts = axis.cuts.empty()
                      ? schedule::cut_units(costs, where)
                      : schedule::cut_units(static_cast<std::int64_t>(costs.size()), axis.cuts, stages, parts_a_stage),
          .lists =
              [=](int micro_batches) {
                return detail::lists_for<Schedule>({stages, micro_batches, chunks});
              },
          .peaks = [](schedule::step_lists const& lists) { return detail::peaks_of(lists); }};
}

/// Whether each chunk adds to its gradients one micro-batch after the other, in order, as sums in a fixed tree need.
/// The last part of a model adds to them already in its forward.
[[nodiscard]] inline bool adds_in_order(stage_assignment const& assignment) {
  if (assignment.where.where == schedule::placement::both_ways) return false;
  auto const lists = assignment.lists(2 * assignment.where.stages);
  for (int s = 0; s < lists.stages(); ++s) {
    std::vector<int> next(static_cast<std::size_t>(assignment.where.chunks), 0);
    for (auto const* each = lists.of(s); each != lists.of(s) + lists.count(s); ++each) {
      auto& expected = next[static_cast<std::size_t>(each->chunk)];
      bool const is_last = assignment.where.virtual_stage(s, each->chunk) + 1 == assignment.where.virtual_stages();
      if (each->kind == schedule::work::forward && !is_last) continue;
      if (each->micro_batch != expected) return false;
      if (each->kind == schedule::work::forward) continue;
      if (each->kind != schedule::work::backward) return false;  // a backward in two halves
      ++expected;
    }
  }
  return true;
}

/// The routes between the stages of a pipeline: where one part's activations go, and where their gradients come back.
[[nodiscard]] inline std::vector<route> routes_of(schedule::stage_map where) {
  where.micro_batches = 2;  // one enters at each end, if they enter at both
  std::vector<route> routes;
  auto const add = [&](route each) {
    if (each.from != each.to && std::find(routes.begin(), routes.end(), each) == routes.end()) routes.push_back(each);
  };
  for (int part = 0; part + 1 < where.virtual_stages(); ++part) {
    for (int micro_batch = 0; micro_batch < where.micro_batches; ++micro_batch) {
      int const stage = where.stage_of(part, micro_batch);
      int const next = where.stage_of(part + 1, micro_batch);
      add({stage, next});
      add({next, stage});
    }
  }
  return routes;
}

/// A link between stages that are the ranks of a communicator.
///
/// Threads  one owner; the communicator must outlive the link, and must not be used otherwise.
template <class Comm, class Space = typename space_of<Comm>::type>
requires has_exchange<Comm, Space>
class communicator_link final : public stage_link<Space> {
  using request = decltype(std::declval<Comm&>().exchange_async(std::span<transfer<Space> const>{}));

 public:
  explicit communicator_link(Comm& stages) : stages_(stages) {}

  [[nodiscard]] int start(std::span<transfer<Space> const> messages) override {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(pending_.size()));
      pending_.emplace_back();
    }
    int const ticket = free_.back();
    pending_[static_cast<std::size_t>(ticket)].emplace(stages_.exchange_async(messages));
    free_.pop_back();
    return ticket;
  }
  void wait(int ticket) override {
    finish_by(ticket, [](request& it) { it.wait(); });
  }
  void order(int ticket) override {
    finish_by(ticket, [](request& it) { trireme::order(it); });
  }

 private:
  template <class F>
  void finish_by(int ticket, F&& f) {
    auto& it = pending_[static_cast<std::size_t>(ticket)];
    f(*it);
    it.reset();
    free_.push_back(ticket);
  }

  Comm& stages_;
  std::vector<std::optional<request>> pending_;
  std::vector<int> free_;
};

namespace detail {

/// A tensor that several stages of a pipeline use.
struct tied_tensor {
  std::string name;
  std::vector<int> stages;  ///< ascending
  int uses = 0;             ///< uses by units of the model
};

/// The tensors that several stages use: a token table at both ends, and all tensors if each part of the model is on two
/// stages. In the order of the model.
template <class Env, staged_model Model>
[[nodiscard]] std::vector<tied_tensor> tied_tensors(Model const& model, stage_assignment const& assignment) {
  std::map<std::string, tied_tensor> users;
  std::vector<std::string> order;
  std::int64_t unit = 0;
  auto where = assignment.where;
  where.micro_batches = 2;  // one enters at each end, if they enter at both
  auto const note = [&]<class Description>(Description const& description) {
    int part = 0;
    while (unit >= assignment.cuts[static_cast<std::size_t>(part) + 1]) ++part;
    ++unit;
    boxed_unit<Env, Description> box(description);
    for (auto const* const use : box.parameters()) {
      auto& [name, stages, uses] = users[use->info.name];
      if (uses++ == 0) order.push_back(name = use->info.name);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        int const stage = where.stage_of(part, micro_batch);
        auto const at = std::lower_bound(stages.begin(), stages.end(), stage);
        if (at == stages.end() || *at != stage) stages.insert(at, stage);
      }
    }
  };
  model.units(note);
  std::vector<tied_tensor> tied;
  for (auto const& name : order) {
    if (users[name].stages.size() > 1) tied.push_back(users[name]);
  }
  return tied;
}

/// The communicators of a pipeline's rank: the link to the other stages, and the groups of stages that use one tensor.
template <class Axis, class Env, class Comm>
class pipeline_stages {
 public:
  pipeline_stages(Axis const& what, grid<Comm>& grid) : what_(what), grid_(grid), link_(*grid.along(Axis::kind)) {}

  template <staged_model Model>
  [[nodiscard]] stage_assignment assignment(Model const& model) {
    auto const at = grid_.coordinate(Axis::kind);
    assignment_ = assignment_of(what_, model, at.rank, at.size);
    if constexpr (has_routes<Comm>) grid_.along(Axis::kind)->open_routes(routes_of(assignment_.where));
    tied_ = tied_tensors<Env>(model, assignment_);
    return assignment_;
  }
  [[nodiscard]] stage_link<typename Env::space>& link() noexcept { return link_; }
  [[nodiscard]] std::string refuses_tree() const {
    for (auto const& each : tied_) {
      if (each.uses > 2 && adds_in_order(assignment_)) {
        return text("adds the gradients of the ", how_many(each.uses, "use"), " of \"", each.name,
                    "\" in their order, but a pipeline those of each stage first; leave one of them out");
      }
    }
    if (adds_in_order(assignment_)) return {};
    return text("adds the gradients of one micro-batch after the other, which ", to_string(what_),
                " does not; use the schedule 1f1b or interleaved");
  }
  /// The first of several stages that use a tensor owns it.
  void mark(std::vector<parameter<Env>*> const& uses) const {
    for (auto const& each : tied_) {
      for (auto* const use : uses) {
        if (use->info.name != each.name) continue;
        use->info.tied = true;
        use->info.is_owner = use->info.is_owner && assignment_.stage == each.stages.front();
      }
    }
  }
  template <class Exchange>
  void join(Exchange& exchange) {
    for (auto const& each : tied_) {
      auto* const others = grid_.join(Axis::kind, each.stages);
      if (others != nullptr) exchange.sum_also(each.name, *others);
    }
  }

 private:
  Axis what_;
  grid<Comm>& grid_;
  communicator_link<Comm, typename Env::space> link_;
  stage_assignment assignment_;
  std::vector<tied_tensor> tied_;
};

}  // namespace detail

template <class Schedule>
template <class Env, class Comm>
class pipeline<Schedule>::instance : public detail::pipeline_stages<pipeline<Schedule>, Env, Comm> {
  using detail::pipeline_stages<pipeline<Schedule>, Env, Comm>::pipeline_stages;
};

}  // namespace trireme::parallel
