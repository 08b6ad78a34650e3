// test-sanitize: thread
// If one rank of a mesh finds an error, all ranks give up the step.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "meshes.hpp"
#include "trireme/comm/threads.hpp"

using namespace trireme;

namespace {

/// y = w x; the first unit reads the batch, the loss is the sum of the last one's outputs. The rank in `spoilt` gets an
/// infinite gradient.
struct scaling {
  std::int64_t index = 0;
  std::int64_t count = 1;
  int const* rank = nullptr;
  int const* spoilt = nullptr;

  template <class Env>
  class instance;
};

template <class Env>
class scaling::instance {
 public:
  using view = tensor_view<float>;
  struct saved {
    view x;
  };
  explicit instance(scaling const& what)
      : what_(what),
        weight_{
            {.name = text("layer.", what.index), .extents = {1}, .start = {initial::distribution::ones, 0}}, {}, {}} {}
  void visit(auto&& each) { each(weight_); }
  view forward(pass<Env>& pass, saved& kept, view x) {
    if (what_.index == 0) {
      auto const given = pass.batch.inputs.template as<float>();
      x = pass.take(given.extents());
      for (std::int64_t i = 0; i < x.size(); ++i) x[i] = given[i];
    }
    kept.x = x;
    auto const y = pass.take(x.extents());
    for (std::int64_t i = 0; i < x.size(); ++i) y[i] = weight_.value[0] * x[i];
    if (what_.index + 1 < what_.count) return y;
    for (auto const each : y.span()) pass.loss.sum += static_cast<double>(each);
    pass.loss.count += pass.batch.count();
    return {};
  }
  view backward(pass<Env>& pass, saved& kept, view dy) {
    auto const dx = pass.take(kept.x.extents());
    for (std::int64_t i = 0; i < dx.size(); ++i) {
      auto const slope = what_.index + 1 < what_.count ? dy[i] : static_cast<float>(pass.weight);
      weight_.gradient[0] += slope * kept.x[i];
      dx[i] = slope * weight_.value[0];
    }
    if (*what_.spoilt == *what_.rank) weight_.gradient[0] = std::numeric_limits<float>::infinity();
    return dx;
  }

 private:
  scaling what_;
  parameter<Env> weight_;
};

struct scalings {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  int const* rank;
  int const* spoilt;
  void units(auto&& emit) const {
    for (std::int64_t i = 0; i < 4; ++i) emit(scaling{i, 4, rank, spoilt});
  }
};

/// The parameters and moments on this rank.
template <class Trainer>
std::vector<double> values(Trainer& trainer) {
  std::vector<double> all;
  trainer.for_each_state(
      [&](std::string const&, parameter_info const&, std::int64_t, auto view) {
        for (std::int64_t i = 0; i < view.size(); ++i) all.push_back(static_cast<double>(view[i]));
      },
      true);
  return all;
}

}  // namespace

TEST_CASE("an infinite gradient on any rank of a mesh makes all ranks skip the step", "[train][mesh]") {
  watchdog dog("votes");
  std::vector<float> numbers(16 * 8);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.01F * static_cast<float>(i % 11);
  auto const data = data::in_memory(tensor_view<float const>(numbers.data(), {16, 8}),
                                    tensor_view<float const>(numbers.data(), {16, 8}));
  auto const check = [&](std::string const& name, auto const& policy) {
    dog.now(name);
    INFO(name);
    constexpr int ranks = 8;
    std::vector<std::string> wrong(ranks);
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      int const rank = world.rank();
      int spoilt = -1;
      auto trainer = make_trainer(scalings{&rank, &spoilt}, optim::sgd{.learning_rate = 0.01}, world, policy);
      trainer.initialise(1);
      std::vector<step_report> done;
      trainer.on_step([&](step_report const& step) { done.push_back(step); });
      auto& says = wrong[static_cast<std::size_t>(rank)];
      for (int step = 0; step < ranks + 2; ++step) {
        spoilt = step == 0 || step == ranks + 1 ? -1 : step - 1;
        auto const before = values(trainer);
        trainer.fit(data, {.steps = ranks + 2, .batch = 16, .micro_batches = 8, .stop_after = step + 1});
        std::int64_t changed = values(trainer) != before ? 1 : 0;  // a rank may hold none of so few
        world.all_reduce(tensor_view<std::int64_t>(&changed, shape{1}), reduction::max{});
        if (done.back().skipped != (spoilt >= 0)) says += text("step ", step, " skipped: ", done.back().skipped, "; ");
        if ((changed != 0) != (spoilt < 0)) says += text("step ", step, " changed the state: ", changed, "; ");
      }
    });
    for (auto const& each : wrong) CHECK(each == "");
  };
  using meshes::any;
  using parallel::zero;
  check("data=2,pipeline=2,tensor=2", any(parallel::data{}, 2, 2, "1f1b", {.tensor = 2}));
  check("data=2,pipeline=2:zbv,context=2", any(parallel::data{}, 2, 2, "zbv", {.context = 2}));
  check("zero1=2,pipeline=4", any(zero<1>{}, 2, 4, "gpipe"));
  check("zero3=2,context=2,tensor=2", meshes::without_pipeline(zero<3>{}, 2, {.context = 2, .tensor = 2}));
  check("data=2,expert=4", parallel::mesh{parallel::data{.ways = 2}, parallel::expert{.ways = 4}});
}
