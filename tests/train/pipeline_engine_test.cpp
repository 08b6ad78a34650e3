// test-sanitize: none
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../support/counted_allocations.hpp"
#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"
#include "trireme/train/staged_engine.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;
using kernels = ops::on<host>;

// Eight units: one for each chunk of the longest pipeline here.
auto const model = toy::with_layers(6);

/// y[r, c] = w[c] x[r, c], with a backward in halves; the first one reads the batch, the loss is the sum of the last.
struct scaling {
  int index = 0;
  bool first = false;
  bool last = false;

  template <class Env>
  class instance {
   public:
    using view = tensor_view<float>;
    struct saved {
      view x;
      view dy;
    };
    explicit instance(scaling const& description)
        : first_(description.first),
          last_(description.last),
          weight_{
              {.name = text("layer.", description.index), .extents = {4}, .start = {initial::distribution::ones, 0}},
              {},
              {}} {}
    void visit(auto&& each) { each(weight_); }
    view forward(pass<Env>& pass, saved& kept, view x) {
      if (first_) {
        auto const given = pass.batch.inputs.template as<float>();
        x = pass.take(given.extents());
        kernels::copy(x, given);
      }
      auto const y = pass.take(x.extents());
      for (std::int64_t i = 0; i < x.size(); ++i) y[i] = weight_.value[i % 4] * x[i];
      kept.x = x;
      if (!last_) return y;
      for (auto const each : y.span()) pass.loss.sum += static_cast<double>(each);
      pass.loss.count += pass.batch.count();
      return {};
    }
    view backward(pass<Env>& pass, saved& kept, view dy) {
      auto const dx = backward_input(pass, kept, dy);
      backward_weight(pass, kept);
      return dx;
    }
    view backward_input(pass<Env>& pass, saved& kept, view dy) {
      most_apart = std::max(most_apart, ++halves);
      if (last_) {
        dy = pass.take(kept.x.extents());
        kernels::fill(dy, pass.weight);
      }
      kept.dy = dy;
      auto const dx = pass.take(dy.extents());
      for (std::int64_t i = 0; i < dx.size(); ++i) dx[i] = weight_.value[i % 4] * dy[i];
      return dx;
    }
    void backward_weight(pass<Env>&, saved& kept) {
      --halves;
      for (std::int64_t i = 0; i < kept.x.size(); ++i) weight_.gradient[i % 4] += kept.dy[i] * kept.x[i];
    }
    static inline thread_local int halves = 0;  // backward_input done, backward_weight not
    static inline thread_local int most_apart = 0;

   private:
    bool first_;
    bool last_;
    parameter<Env> weight_;
  };
};
struct scalings {
  int layers = 4;
  void units(auto&& emit) const {
    for (int i = 0; i < layers; ++i) emit(scaling{i, i == 0, i + 1 == layers});
  }
};

/// Micro-batches of the sizes given.
class batches {
 public:
  explicit batches(std::vector<std::int64_t> const& sizes) {
    toy::text const text;
    std::int64_t total = 0;
    for (auto const size : sizes) total += size;
    for (std::int64_t id = 0; id < total; ++id) ids_.push_back(id);
    inputs_.resize(static_cast<std::size_t>(total) * 12);
    targets_.resize(inputs_.size());
    text.read(ids_, inputs_.data(), targets_.data());
    std::int64_t first = 0;
    auto const all = make_samples(tensor_view<std::int32_t const>(inputs_.data(), {total, 12}),
                                  tensor_view<std::int32_t const>(targets_.data(), {total, 12}), ids_);
    for (auto const size : sizes) {
      parts_.push_back(all.part(first, size));
      first += size;
    }
  }
  [[nodiscard]] std::vector<samples> const& parts() const { return parts_; }
  [[nodiscard]] double weight() const { return 1.0 / static_cast<double>(ids_.size()); }

 private:
  std::vector<std::int64_t> ids_;
  std::vector<std::int32_t> inputs_;
  std::vector<std::int32_t> targets_;
  std::vector<samples> parts_;
};

/// Memory for all uses of an engine's parameters: initial values computed from names, gradients of zero.
class memory {
 public:
  explicit memory(std::vector<parameter<env>*> const& uses) {
    for (auto* const use : uses) {
      auto& value = values_.emplace_back(use->info.extents);
      kernels::initialise(value.view(), use->info.start, 3, hash_name(use->info.name));
      use->value = value.view();
      use->gradient = gradients_.emplace_back(use->info.extents).view();
    }
    clear();
  }
  void clear() {
    for (auto const& each : gradients_) kernels::fill(each.view(), 0);
  }

 private:
  std::vector<tensor<float>> values_;
  std::vector<tensor<float>> gradients_;
};

/// The results of a step: the loss, and the gradient of every use of a parameter, over all stages.
struct outcome {
  std::map<std::string, std::vector<float>> gradients;
  double loss = 0;
  std::int64_t count = 0;
  double evaluated = 0;
  std::vector<float> predicted;
  long allocated = 0;
  bool reported = true;  // the last report for each use came once, and at the end
};

std::map<std::string, std::vector<float>> gradients_of(staged_engine<env> const& engine) {
  auto const& where = engine.assignment().where;
  bool seen_table = true;  // the embeddings' use of the token table comes before the head's
  for (int c = 0; c < where.chunks; ++c)
    seen_table = seen_table && where.virtual_stage(engine.assignment().stage, c) != 0;
  std::map<std::string, std::vector<float>> out;
  for (auto const* const use : engine.uses()) {
    bool const table = use->info.name == "transformer.wte.weight";
    auto const name = use->info.name + (table && std::exchange(seen_table, true) ? " in the head" : "");
    out[name].assign(use->gradient.span().begin(), use->gradient.span().end());
  }
  return out;
}

/// Some steps on one engine, each starting from zero gradients; the last one counts.
outcome steps_of(staged_engine<env>& engine, batches const& data, auto&& barrier) {
  outcome out;
  memory parameters(engine.uses());
  std::vector<int> reports(engine.uses().size());
  std::vector<int> lasts(engine.uses().size());
  long before = 0;
  for (int step = 0; step < 5; ++step) {
    parameters.clear();
    std::fill(reports.begin(), reports.end(), 0);
    std::fill(lasts.begin(), lasts.end(), 0);
    barrier();
    if (step == 2) before = allocations.load();
    barrier();
    auto const loss = engine.train_step(data.parts(), data.weight(), {3, 5}, [&](int use, bool last) {
      auto const u = static_cast<std::size_t>(use);
      ++reports[u];
      if (last) lasts[u] += reports[u];
    });
    out.loss = loss.sum;
    out.count = loss.count;
    barrier();
  }
  out.allocated = allocations.load() - before;
  barrier();
  for (std::size_t u = 0; u < reports.size(); ++u)
    out.reported = out.reported && reports[u] > 0 && lasts[u] == reports[u];
  for (auto const& part : data.parts()) out.evaluated += engine.evaluate(part).sum;
  auto const logits = engine.predict(data.parts().front());
  for (auto const value : logits.span()) out.predicted.push_back(value);
  out.gradients = gradients_of(engine);
  return out;
}

outcome serial(batches const& data) {
  staged_engine<env> engine(model);
  return steps_of(engine, data, [] {});
}

template <class Schedule>
outcome pipelined(Schedule const&, int stages, batches const& data) {
  watchdog dog(text("a pipeline of ", stages, " stages, ", Schedule::name));
  outcome all;
  std::mutex mutex;
  launch(comm::threads{.ranks = stages}, [&](auto& world) {
    auto channel = world.duplicate();
    parallel::communicator_link<comm::threads_world> link(channel);
    auto const assignment = parallel::assignment_of(parallel::pipeline<Schedule>{}, model, world.rank(), stages);
    staged_engine<env> engine(model, tensor_group<env>::one(), assignment, &link);
    auto const mine = steps_of(engine, data, [&] { world.barrier(); });
    std::lock_guard const lock(mutex);
    all.loss += mine.loss;
    all.count += mine.count;
    all.evaluated += mine.evaluated;
    all.reported = all.reported && mine.reported;
    if (!mine.predicted.empty()) all.predicted = mine.predicted;
    if (world.rank() == 0) all.allocated = mine.allocated;
    for (auto const& [name, values] : mine.gradients) {
      auto& sum = all.gradients[name];
      sum.resize(values.size(), 0);
      for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  });
  return all;
}

/// The largest difference, relative to the largest number of each tensor.
double distance(outcome const& a, outcome const& b) {
  if (a.gradients.size() != b.gradients.size()) return 1;
  double most = 0;
  for (auto const& [name, values] : a.gradients) {
    auto const& others = b.gradients.at(name);
    if (values.size() != others.size()) return 1;
    float largest = 1e-30F;
    float difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - others[i]));
    }
    most = std::max(most, static_cast<double>(difference / largest));
  }
  return most;
}

void compare(outcome const& alone, outcome const& together, bool one_order) {
  CHECK(together.count == alone.count);
  CHECK(together.reported);
  CHECK(together.predicted == alone.predicted);
  CHECK(together.evaluated == alone.evaluated);
  if (one_order) {
    CHECK(together.loss == alone.loss);
    CHECK((together.gradients == alone.gradients));
  } else {  // each of two stages has the gradients of half of the micro-batches
    CHECK(together.loss == Approx(alone.loss).epsilon(1e-12));
    CHECK(distance(alone, together) < 1e-6);
  }
}

}  // namespace

TEST_CASE("every schedule gives the losses and the gradients of serial training", "[train][pipeline]") {
  for (int const stages : {2, 4}) {
    batches const data(std::vector<std::int64_t>(static_cast<std::size_t>(2 * stages), 2));
    auto const alone = serial(data);
    REQUIRE(alone.reported);
    schedule::for_each_schedule([&]<class Schedule>(Schedule const& each) {
      INFO(Schedule::name << " on " << stages << " stages");
      auto const together = pipelined(each, stages, data);
      compare(alone, together, Schedule::where != schedule::placement::both_ways);
      if (stages == 2) CHECK(together.allocated == 0);  // from the third step on, on all stages
    });
  }
}

TEST_CASE("micro-batches of several sizes, and numbers without a list of the schedule, train equally",
          "[train][pipeline]") {
  batches const data({2, 1, 3, 2, 1});
  auto const alone = serial(data);
  schedule::for_each_schedule([&]<class Schedule>(Schedule const& each) {
    INFO(Schedule::name);
    compare(alone, pipelined(each, 4, data), Schedule::where != schedule::placement::both_ways);
  });
  batches const one({3});
  compare(serial(one), pipelined(schedule::zb_v{}, 4, one), true);
}

TEST_CASE("weight gradients are postponed if a unit's backward has two halves", "[train][pipeline]") {
  watchdog dog("backward in halves");
  constexpr int micro_batches = 4;
  std::vector<float> inputs(static_cast<std::size_t>(micro_batches) * 2 * 4);
  for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<float>(i % 7);
  std::vector<samples> parts;
  for (std::size_t m = 0; m < micro_batches; ++m) {
    parts.push_back(make_samples(tensor_view<float const>(inputs.data() + 8 * m, {2, 4}), tensor_view<float const>{}));
  }
  std::vector<std::vector<float>> gradients(4, std::vector<float>(4));
  std::vector<int> apart(2);
  std::vector<int> in_order(2);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    parallel::communicator_link<comm::threads_world> link(world);
    auto const assignment =
        parallel::assignment_of(parallel::pipeline<schedule::zb_h1>{.cuts = {1}}, scalings{}, world.rank(), 2);
    staged_engine<env> engine(scalings{}, tensor_group<env>::one(), assignment, &link);
    memory parameters(engine.uses());
    std::vector<schedule::step> taken;
    engine.watch([&](schedule::step const& step, bool begins) {
      if (begins) taken.push_back(step);
    });
    engine.train_step(parts, 1, {}, [](int, bool) {});
    auto const lists = schedule::make_lists<schedule::zb_h1>({2, micro_batches});
    auto const* const own = lists.of(world.rank());
    in_order[static_cast<std::size_t>(world.rank())] =
        std::equal(taken.begin(), taken.end(), own, own + lists.count(world.rank()));
    for (auto const* const use : engine.uses()) {
      auto& out = gradients[static_cast<std::size_t>(use->info.name.back() - '0')];
      out.assign(use->gradient.span().begin(), use->gradient.span().end());
    }
    apart[static_cast<std::size_t>(world.rank())] = scaling::instance<env>::most_apart;
  });
  for (auto const& gradient : gradients) {  // all weights are 1
    for (std::size_t c = 0; c < 4; ++c) {
      float sum = 0;
      for (std::size_t i = c; i < inputs.size(); i += 4) sum += inputs[i];
      CHECK(gradient[c] == sum);
    }
  }
  CHECK(in_order == std::vector<int>{1, 1});
  CHECK(apart[0] == 1);  // one unit, whose weights' half follows at once
  CHECK(apart[1] == 6);  // three units, two micro-batches each
}

namespace {

/// The times of the units of the next test, in a simulated clock that only they advance.
constexpr schedule::costs of_unit{.forward = 3, .backward_input = 4, .backward_weight = 2};
thread_local std::int64_t clock_of_stage = 0;

struct taking_time {
  bool last = false;

  template <class Env>
  class instance {
   public:
    using view = tensor_view<float>;
    struct saved {};
    explicit instance(taking_time const& description) : last_(description.last) {}
    void visit(auto&&) {}
    view forward(pass<Env>& pass, saved&, view) { return after(of_unit.forward, pass, last_); }
    view backward_input(pass<Env>& pass, saved&, view) { return after(of_unit.backward_input, pass, false); }
    void backward_weight(pass<Env>&, saved&) { clock_of_stage += of_unit.backward_weight; }
    view backward(pass<Env>& pass, saved& kept, view dy) {
      auto const dx = backward_input(pass, kept, dy);
      backward_weight(pass, kept);
      return dx;
    }

   private:
    static view after(std::int64_t time, pass<Env>& pass, bool nothing) {
      clock_of_stage += time;
      if (nothing) return {};
      auto const it = pass.take(shape{1});
      it[0] = 0;
      return it;
    }
    bool last_;
  };
};
struct takers {
  void units(auto&& emit) const {
    for (int u = 1; u <= 8; ++u) emit(taking_time{.last = u == 8});
  }
};

/// A link that also transfers the time: a rank that has waited for a message is not earlier than its sending.
class link_with_time final : public stage_link<host> {
 public:
  struct times {
    std::mutex mutex;
    std::map<std::pair<int, int>, std::vector<std::int64_t>> sent;  // from, to: of each message
  };
  template <class Comm>
  link_with_time(Comm& stages, times& all) : inner_(stages), rank_(stages.rank()), all_(all) {}

  [[nodiscard]] int start(std::span<transfer<host> const> messages) override {
    std::vector<std::pair<int, std::size_t>> received;
    {
      std::lock_guard const lock(all_.mutex);
      for (auto const& each : messages) {
        if (each.way == transfer<host>::direction::send)
          all_.sent[{rank_, each.peer}].push_back(clock_of_stage);
        else
          received.emplace_back(each.peer, received_[each.peer]++);
      }
    }
    int const ticket = inner_.start(messages);
    pending_[ticket] = received;
    return ticket;
  }
  void wait(int ticket) override {
    inner_.wait(ticket);
    std::lock_guard const lock(all_.mutex);
    for (auto const& [peer, nth] : pending_[ticket])
      clock_of_stage = std::max(clock_of_stage, all_.sent.at({peer, rank_}).at(nth));
  }

 private:
  parallel::communicator_link<comm::threads_world> inner_;
  int rank_;
  times& all_;
  std::map<int, std::size_t> received_;
  std::map<int, std::vector<std::pair<int, std::size_t>>> pending_;
};

}  // namespace

TEST_CASE("each step of each schedule begins and ends in the engine as in the simulator", "[train][pipeline]") {
  watchdog dog("the engine beside the simulator");
  constexpr int stages = 4, micro_batches = 8;
  schedule::for_each_schedule([&]<class Schedule>(Schedule const&) {
    INFO(Schedule::name);
    link_with_time::times times;
    std::vector<std::vector<schedule::step_time>> ran(stages);
    float const input = 0;
    auto const batch = make_samples(tensor_view<float const>(&input, {1, 1}), tensor_view<float const>{});
    std::vector<samples> const batches(micro_batches, batch);
    launch(comm::threads{.ranks = stages}, [&](auto& world) {
      auto channel = world.duplicate();
      link_with_time link(channel, times);
      auto const assignment = parallel::assignment_of(parallel::pipeline<Schedule>{}, takers{}, world.rank(), stages);
      staged_engine<env> engine(takers{}, tensor_group<env>::one(), assignment, &link);
      auto& own = ran[static_cast<std::size_t>(world.rank())];
      engine.watch([&](schedule::step const&, bool begins) {
        if (begins)
          own.push_back({clock_of_stage, clock_of_stage});
        else
          own.back().end = clock_of_stage;
      });
      for (int round = 0; round < 2; ++round) {  // the first round also sends shapes
        own.clear();
        clock_of_stage = 0;
        world.barrier();
        engine.train_step(batches, 1, {}, [](int, bool) {});
        world.barrier();
      }
    });
    auto const assignment = parallel::assignment_of(parallel::pipeline<Schedule>{}, takers{}, 0, stages);
    auto const lists = assignment.lists(micro_batches);
    auto const units = 8 / lists.where().virtual_stages();
    auto const paper = schedule::simulate(lists, {.forward = units * of_unit.forward,
                                                  .backward_input = units * of_unit.backward_input,
                                                  .backward_weight = units * of_unit.backward_weight});
    REQUIRE(paper.finished);
    std::int64_t span = 0;
    for (int s = 0; s < stages; ++s) {
      auto const& own = ran[static_cast<std::size_t>(s)];
      REQUIRE(static_cast<int>(own.size()) == lists.count(s));
      bool same = true;
      for (int i = 0; i < lists.count(s); ++i) {
        auto const& said = paper.steps[static_cast<std::size_t>(s * lists.longest() + i)];
        auto const& was = own[static_cast<std::size_t>(i)];
        same = same && said.start == was.start && said.end == was.end;
        span = std::max(span, was.end);
      }
      CHECK(same);
    }
    auto const work = micro_batches * 8 / stages * (of_unit.forward + of_unit.of(schedule::work::backward));
    CHECK(paper.waiting() == span - work);
  });
}

TEST_CASE("more stages than units, and cuts that do not fit, are refused", "[train][pipeline]") {
  auto const sentence = [](auto const& axis, int stages) {
    return sentence_of<config_error>([&] { static_cast<void>(parallel::assignment_of(axis, model, 0, stages)); });
  };
  CHECK(sentence(parallel::pipeline<schedule::one_f_one_b>{}, 8) == "");
  CHECK(sentence(parallel::pipeline<schedule::one_f_one_b>{}, 9) ==
        "trireme::schedule::cut_units: 9 stages of 1 chunk need at least 9 units, but the model has 8; use fewer "
        "stages, or a model of more layers");
  CHECK(sentence(parallel::pipeline<schedule::zb_v>{}, 5) ==
        "trireme::schedule::cut_units: 5 stages of 2 chunks need at least 10 units, but the model has 8; use fewer "
        "stages, or a model of more layers");
  CHECK(sentence(parallel::pipeline<schedule::dual_pipe>{}, 8) == "");
  CHECK(sentence(parallel::pipeline<schedule::gpipe>{.cuts = {3, 8}}, 3) ==
        "trireme::schedule::cut_units: a cut at unit 8 after one at unit 3; cuts must increase, and lie inside a model "
        "of 8 units");
  CHECK(to_string(parallel::pipeline<schedule::interleaved>{.stages = 4, .chunks = 2, .cuts = {}}) ==
        "parallel::pipeline<schedule::interleaved>{.stages = 4, .chunks = 2, .cuts = {}}");
}
