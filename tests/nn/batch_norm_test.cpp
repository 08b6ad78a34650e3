#include "trireme/nn/batch_norm.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/plan_differences.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/nn/images.hpp"
#include "trireme/nn/sum.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

/// Norms of columns and of channels, one behind the other, in both terms of a sum, and in layers that run twice.
template <bool Synchronised, bool Says = Synchronised>
struct normed {
  using policy_category = slot::model;
  static constexpr bool synchronises = Says;
  friend bool operator==(normed const&, normed const&) = default;

  void units(auto&& emit) const {
    using namespace nn;
    linear const wide{.outputs = 8, .start = {initial::distribution::normal, 0.5}};
    batch_norm const norm{.epsilon = 0.1, .synchronised = Synchronised};
    emit(block{"in", 0, chain(features{6}, named("a", wide), named("n", norm), tanh())});
    emit(block{"middle", 8, checkpointed(image{2, 2, 2}, named("n", norm), tanh(), named("b", wide))});
    emit(block{"terms", 8,
               chain(sum(chain(named("c", wide), named("n", norm)), chain(named("d", wide), named("m", norm))))});
    emit(block{"out", 8, chain(named("e", linear{.outputs = 3}), named("n", norm), loss::cross_entropy{})});
  }
};
template <bool Synchronised, bool Says>
std::string to_string(normed<Synchronised, Says> const&) {
  return Synchronised ? "joint" : "apart";
}

struct points {
  std::vector<float> x;
  std::vector<std::int32_t> y;
  explicit points(std::int64_t n) {
    for (std::int64_t i = 0; i < 6 * n; ++i) x.push_back(std::sin(1.7F * static_cast<float>(i * i % 1009)));
    for (std::int64_t i = 0; i < n; ++i) y.push_back(static_cast<std::int32_t>(i * i % 3));
  }
  [[nodiscard]] samples part(std::int64_t first, std::int64_t n) const {
    return make_samples(tensor_view<float const>(x.data() + 6 * first, {n, 6}),
                        tensor_view<std::int32_t const>(y.data() + first, {n}));
  }
  [[nodiscard]] auto all() const {
    auto const n = static_cast<std::int64_t>(y.size());
    return data::in_memory(tensor_view<float const>(x.data(), {n, 6}), tensor_view<std::int32_t const>(y.data(), {n}));
  }
};

/// Which samples each replica brings to each of two micro-batches: those of one micro-batch lie behind each other.
struct cut {
  std::vector<std::vector<std::int64_t>> counts;  // of a micro-batch, of each replica
  [[nodiscard]] std::vector<samples> of(points const& all, std::size_t replica) const {
    std::vector<samples> out;
    std::int64_t at = 0;
    for (auto const& micro_batch : counts) {
      for (std::size_t r = 0; r < micro_batch.size(); ++r) {
        if (r == replica) out.push_back(all.part(at, micro_batch[r]));
        at += micro_batch[r];
      }
    }
    return out;
  }
  [[nodiscard]] std::vector<samples> joint(points const& all) const {
    std::vector<samples> out;
    std::int64_t at = 0;
    for (auto const& micro_batch : counts) {
      std::int64_t n = 0;
      for (auto const each : micro_batch) n += each;
      out.push_back(all.part(at, n));
      at += n;
    }
    return out;
  }
};

/// All parameters and running statistics after three steps, and behind them the last loss.
template <class Model, class Comm, class... Policies>
std::vector<double> train(Model const& model, Comm& world, std::vector<samples> const& own,
                          Policies const&... policies) {
  auto trainer = make_trainer(model, optim::sgd{.learning_rate = 0.3}, world, precision::fp64{}, policies...);
  double loss = 0;
  for (int step = 0; step < 3; ++step) loss = trainer.step(own).loss;
  std::vector<double> out;
  trainer.for_each_parameter(
      [&](auto const&, auto const&, auto values) { out.insert(out.end(), values.begin(), values.end()); });
  out.push_back(loss);
  return out;
}
double distance(std::vector<double> const& a, std::vector<double> const& b) {
  if (a.size() != b.size() || a.empty()) return 1;
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

normed<true> const joint;
normed<false> const apart;

}  // namespace

TEST_CASE("synchronised norms on several ranks are those of one rank with all their samples", "[nn][batch_norm]") {
  watchdog const guard("synchronised norms", std::chrono::seconds(100));
  points const some(32);
  comm::self_world alone;
  cut const two{{{5, 3}, {4, 6}}}, late{{{5, 3}, {0, 6}}}, four{{{5, 3, 4, 1}, {2, 3, 0, 5}}};
  auto const serial = [&](cut const& how) { return train(joint, alone, how.joint(some)); };
  auto const expect_two = serial(two), expect_late = serial(late), expect_four = serial(four);
  CHECK(distance(train(apart, alone, two.joint(some)), expect_two) == 0);  // one rank has nobody to meet

  std::vector<double> far(6, 1), not_joint(1);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto const me = static_cast<std::size_t>(world.rank());
    double const here[] = {distance(train(joint, world, two.of(some, me)), expect_two),
                           distance(train(joint, world, late.of(some, me)), expect_late),
                           distance(train(joint, world, two.of(some, me), parallel::zero<3>{}), expect_two)};
    auto const other = distance(train(apart, world, two.of(some, me)), expect_two);
    if (world.rank() == 0) std::copy(std::begin(here), std::end(here), far.begin()), not_joint[0] = other;
  });
  launch(comm::threads{.ranks = 4}, [&](auto& world) {
    using namespace parallel;
    auto const me = static_cast<std::size_t>(world.rank());
    auto const flat = distance(train(joint, world, four.of(some, me)), expect_four);
    auto const in_mesh = [&](auto const& mesh) {
      auto const replica = static_cast<std::size_t>(parallel::mesh_shape(mesh, 4).samples_of(world.rank()).rank);
      return distance(train(joint, world, late.of(some, replica), mesh), expect_late);
    };
    auto const staged = in_mesh(mesh{parallel::data{.ways = 2}, pipeline<schedule::zb_h1>{.stages = 2}});
    auto const rows = in_mesh(mesh{zero<1>{.ways = 2}, parallel::tensor{.ways = 2}, sequence{}});
    if (world.rank() == 0) far[3] = flat, far[4] = staged, far[5] = rows;
  });
  for (std::size_t i = 0; i < far.size(); ++i) {
    INFO("case " << i);
    CHECK(far[i] < 1e-10);
  }
  CHECK(not_joint[0] > 1e-3);
}

TEST_CASE("a plan knows what synchronised norms send, and the memory that they take", "[nn][batch_norm]") {
  watchdog const guard("a plan of synchronised norms");
  points const some(32);
  std::vector<std::string> found(2, "nothing");
  launch(comm::decorate(comm::threads{.ranks = 2}, comm::counted{}), [&](auto& world) {
    auto const data = some.all();
    auto trainer = make_trainer(joint, optim::sgd{.learning_rate = 0.3}, world);
    auto const planned = plan(trainer, data, {.samples = 8, .micro_batches = 4});
    comm::traffic_table before, after;
    trainer.on_step([&](step_report const& done) { (done.step < 2 ? before : after) = world.counts(); });
    trainer.fit(data, {.steps = 9, .batch = 8, .micro_batches = 4, .stop_after = 3});
    found[static_cast<std::size_t>(world.rank())] = plan_differences(trainer, planned, before, after);
  });
  CHECK(found == std::vector<std::string>{"", ""});
}

TEST_CASE("impossible synchronised norms are refused in one sentence", "[nn][batch_norm]") {
  comm::self_world alone;
  parallel::data exact;
  exact.reproducible = true;
  auto const sentence = sentence_of<config_error>(
      [&] { static_cast<void>(make_trainer(joint, optim::sgd{}, alone, precision::fp64{}, exact)); });
  CHECK(sentence ==
        "trireme::parallel::data: .reproducible promises the same bits on any number of ranks, but the model "
        "normalises over the micro-batches of all of them; leave one of the two out");
  std::vector<std::string> silent(2);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    silent[static_cast<std::size_t>(world.rank())] = sentence_of<config_error>(
        [&] { static_cast<void>(make_trainer(normed<true, false>{}, optim::sgd{}, world, precision::fp64{})); });
  });
  for (auto const& each : silent) {
    CHECK(each ==
          "trireme::nn::batch_norm in.n: .synchronised normalises over all data ranks, but the model does not say so; "
          "give it a static constexpr bool synchronises = true");
  }
}
