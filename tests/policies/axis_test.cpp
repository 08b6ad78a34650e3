// test-sanitize: none
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <trireme/comm/counted.hpp>
#include <trireme/train/plan.hpp>
#include <trireme/trireme.hpp>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/plan_differences.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"

// Two axes of parallelism as a user writes them, with public headers only: one that offers a group of its own to a unit
// of the user's, and one that only says what it does to samples.

using namespace trireme;

namespace {

// What the unit wants of the other ranks.
template <class Env>
class committee_group : public rank_group<committee_group<Env>> {
 public:
  using view = tensor_view<typename Env::compute, typename Env::space>;
  static committee_group& one() {
    static committee_group alone({});
    return alone;
  }
  explicit committee_group(trireme::group_rank own) : rank_group<committee_group<Env>>(own) {}
  virtual void sum(view) {}
};

/// The ranks along it see the same samples, and share out the members of a committee.
struct committee {
  using policy_category = slot::parallel;
  int ways = 0;

  static constexpr std::string_view name = "committee";
  static constexpr std::string_view kind = name;
  static constexpr axis_facts facts{.parameters = axis_parameters::distributed};

  TRIREME_RULE(needs_all_reduce, "committee-needs-all-reduce",
               "a committee sums what its members say with all_reduce, which this communicator lacks",
               "use another communicator",
               has_all_reduce<typename C::comm, typename C::env::compute, reduction::sum, typename C::space>);
  using rules = rule_list<needs_all_reduce>;

  template <class Env, class Comm>
  class instance {
    class members final : public committee_group<Env> {
     public:
      explicit members(Comm& ranks) : committee_group<Env>({ranks.rank(), ranks.size()}), ranks_(ranks) {}
      void sum(typename committee_group<Env>::view values) override { ranks_.all_reduce(values, reduction::sum{}); }

     private:
      Comm& ranks_;
    };

   public:
    instance(committee const&, parallel::grid<Comm>& grid) : group_(*grid.along(kind)) {}
    void offer(rank_groups<Env>& groups) { groups.offer(group_); }

   private:
    members group_;
  };
};
std::string to_string(committee const& c) { return text("committee{.ways = ", c.ways, "}"); }

/// Splits samples as parallel::data does, beside it.
struct lanes {
  using policy_category = slot::parallel;
  int ways = 0;

  static constexpr std::string_view kind = "lanes";
  static constexpr axis_facts facts{.samples = axis_samples::split};
};
std::string to_string(lanes const& l) { return text("lanes{.ways = ", l.ways, "}"); }

/// y = sum over members of tanh(x w1 + b1) w2 + b2, each with numbers of its own.
struct members {
  std::int64_t count = 0, channels = 0, hidden = 0;

  template <class Env>
  class instance {
    using member = nn::expression<Env>;
    using kernels = ops::on<typename Env::space>;

   public:
    using view = tensor_view<typename Env::compute, typename Env::space>;
    struct saved {
      std::vector<typename member::saved> members;
    };

    instance(members const& what, rank_groups<Env> const& groups) {
      auto const own = committee_group<Env>::of(groups).coordinate();
      auto const here = own.of(what.count);
      initial const start{initial::distribution::normal, 0.3};
      auto const layers = nn::chain(nn::named("in", nn::linear{.outputs = what.hidden, .start = start}), nn::tanh(),
                                    nn::named("out", nn::linear{.outputs = what.channels, .start = start}));
      for (auto m = here.first; m < here.first + here.count; ++m)
        members_.emplace_back(nn::block{text("member.", m), what.channels, layers});
      if (own.size > 1) visit([](parameter<Env>& each) { each.info.distributed = committee::kind; });
    }
    void visit(auto&& each) {
      for (auto& one : members_) one.visit(each);
    }
    view forward(pass<Env>& pass, saved& kept, view x) {
      kept.members.resize(members_.size());
      auto const y = pass.take(x.extents());
      kernels::fill(y, 0.0);
      auto alone = whole(pass);
      for (std::size_t m = 0; m < members_.size(); ++m) kernels::add(y, members_[m].forward(alone, kept.members[m], x));
      committee_group<Env>::of(pass).sum(y);
      return y;
    }
    view backward(pass<Env>& pass, saved& kept, view dy) {
      auto const dx = pass.take(dy.extents());
      kernels::fill(dx, 0.0);
      auto alone = whole(pass);
      for (std::size_t m = 0; m < members_.size(); ++m) {
        auto const d = pass.take(dy.extents());  // a member may write to what it is given
        kernels::copy(d, dy);
        kernels::add(dx, members_[m].backward(alone, kept.members[m], d));
      }
      committee_group<Env>::of(pass).sum(dx);
      return dx;
    }

   private:
    // Members are made without groups, so they also run without: each tensor rank computes them whole.
    static pass<Env> whole(pass<Env>& of) {
      return {.activations = of.activations,
              .scratch = of.scratch,
              .batch = of.batch,
              .key = of.key,
              .version = of.version,
              .weight = of.weight,
              .purpose = of.purpose,
              .saved_index = of.saved_index,
              .rows_of_sample = of.rows_of_sample,
              .precision = of.precision};
    }
    std::vector<member> members_;
  };
};

/// A layer, the members, and a layer with the loss.
struct panel {
  using policy_category = slot::model;
  std::int64_t inputs = 1, outputs = 1;
  void units(auto&& emit) const {
    emit(nn::mlp_layer<true>{{.inputs = 1, .outputs = 8}, 0, ops::activation::tanh});
    emit(members{.count = 5, .channels = 8, .hidden = 4});
    emit(nn::mlp_layer<false, nn::loss::squared_error>{{.inputs = 8, .outputs = 1}, 1});
  }
};
std::string to_string(panel const&) { return "panel{}"; }

auto const sine = data::function([](float x) { return std::sin(x); }, {.samples = 96});
constexpr std::int64_t all_steps = 20;

struct outcome {
  double loss = 0;
  std::uint64_t hash = 0;
};

template <class Parallel>
outcome run(int ranks, Parallel const& how, std::int64_t stop_after, std::string const& load = "",
            std::string const& save = "") {
  outcome out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(panel{}, optim::adamw{.learning_rate = 1e-2}, world, how);
    if (!load.empty()) trainer.load(load);
    if (trainer.steps() < stop_after)
      trainer.fit(sine, {.steps = all_steps, .batch = 16, .stop_after = stop_after, .check_every = 1});
    if (!save.empty()) trainer.save(save);
    auto const loss = trainer.evaluate(sine);
    auto const hash = trainer.state_hash();
    if (world.rank() == 0) out = {loss, hash};
  });
  return out;
}

template <class Parallel>
void trains_and_goes_on(int ranks, Parallel const& how, double serial) {
  watchdog const guard("an axis of a user's own");
  INFO(to_string(how) << " on " << ranks << " ranks");
  scratch folder;
  auto const whole = run(ranks, how, all_steps);
  CHECK(whole.loss == Approx(serial).epsilon(1e-4));
  auto const saved = run(ranks, how, 7, "", folder.path());
  CHECK(run(ranks, how, 7, folder.path()).hash == saved.hash);
  CHECK(run(ranks, how, all_steps, folder.path()).hash == whole.hash);
  CHECK(run(1, parallel::data{}, 7, folder.path()).hash == saved.hash);  // one rank reads what several have saved
  CHECK(run(1, parallel::data{}, all_steps, folder.path()).loss == Approx(serial).epsilon(1e-4));
}

template <class Parallel>
void plan_is_found(int ranks, Parallel const& how) {
  INFO(to_string(how) << " on " << ranks << " ranks");
  launch(comm::decorate(comm::threads{.ranks = ranks}, comm::counted{}), [&](auto& world) {
    auto trainer = make_trainer(panel{}, optim::adamw{.learning_rate = 1e-2}, world, how);
    auto const planned = plan(trainer, sine, {.samples = 16});
    comm::traffic_table before, after;
    trainer.on_step([&](step_report const& done) { (done.step < 2 ? before : after) = world.counts(); });
    trainer.fit(sine, {.steps = all_steps, .batch = 16, .stop_after = 3});
    auto const differences = plan_differences(trainer, planned, before, after);
    if (!differences.empty()) throw error(text("rank ", world.rank(), ": ", differences));
  });
}

}  // namespace

TEST_CASE("a user's axis with a group of its own equals serial training, is saved, resumed and cut differently",
          "[policies]") {
  auto const serial = run(1, parallel::data{}, all_steps).loss;
  CHECK(serial < 0.7 * run(1, parallel::data{}, 0).loss);
  using parallel::mesh;
  for (int const ranks : {1, 2, 3, 4}) trains_and_goes_on(ranks, committee{}, serial);
  trains_and_goes_on(4, mesh{parallel::zero<1>{}, committee{.ways = 2}}, serial);
  trains_and_goes_on(4, mesh{committee{.ways = 2}, parallel::zero<3>{}}, serial);
  trains_and_goes_on(4, mesh{parallel::pipeline<>{.stages = 2}, committee{.ways = 2}}, serial);
  trains_and_goes_on(4, mesh{committee{.ways = 2}, parallel::tensor{.ways = 2}}, serial);
}

TEST_CASE("a user's axis that splits samples trains like parallel::data on more ranks", "[policies]") {
  auto const serial = run(1, parallel::data{}, all_steps).loss;
  using parallel::mesh;
  for (int const ranks : {1, 2, 3, 4}) {
    CHECK(run(ranks, lanes{}, all_steps).hash == run(ranks, parallel::data{}, all_steps).hash);
  }
  CHECK(run(4, mesh{parallel::data{}, lanes{.ways = 2}}, all_steps).hash == run(4, parallel::data{}, all_steps).hash);
  trains_and_goes_on(4, mesh{parallel::zero<2>{}, lanes{.ways = 2}}, serial);
  trains_and_goes_on(4, mesh{lanes{.ways = 2}, committee{.ways = 2}}, serial);
}

TEST_CASE("bytes and memory of a user's axes equal the plan", "[policies]") {
  for (int const ranks : {1, 2, 3, 4}) {
    plan_is_found(ranks, committee{});
    plan_is_found(ranks, lanes{});
  }
  plan_is_found(4, parallel::mesh{parallel::zero<1>{}, committee{.ways = 2}});
  plan_is_found(4, parallel::mesh{parallel::pipeline<>{.stages = 2}, committee{.ways = 2}});
}

TEST_CASE("errors of a mesh with a user's axes are those of other axes", "[policies]") {
  auto const how = parallel::mesh{lanes{.ways = 2}, committee{.ways = 3}};
  CHECK(to_string(how) == "parallel::mesh{lanes{.ways = 2}, committee{.ways = 3}}");
  CHECK(sentence_of<config_error>([&] { parallel::mesh_shape(how, 4); }) ==
        "trireme::parallel::mesh: lanes=2, committee=3 takes 6 ranks, but the world has 4; change a degree or the "
        "number of ranks");
}
