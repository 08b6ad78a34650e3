// test-sanitize: none
// A unit of your own with a missing sum over its tensor group is reported by name.
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/train/make_trainer.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

enum class slip { none, output, gradient, rows, residual };

constexpr std::int64_t channels = 8;

/// x + x w v: w is split by columns, v by rows, with the bare kernels of `ops`. The first unit reads the batch (whose
/// samples are rows), the last one's loss is the sum of its outputs. One of them has a missing sum.
struct pair_of_products {
  std::int64_t index = 0;
  std::int64_t count = 1;
  slip forgets = slip::none;

  template <class Env>
  class instance;
};

template <class Env>
class pair_of_products::instance {
  using kernels = ops::on<typename Env::space>;

 public:
  using view = tensor_view<typename Env::compute, typename Env::space>;
  struct saved {
    view x, inner;
  };

  instance(pair_of_products const& what, group_rank own)
      : what_(what),
        wide_{shard_of({text("unit.", what.index, ".wide"), {channels, 2 * channels}, start, true}, 1,
                       own.of(2 * channels)),
              {},
              {}},
        narrow_{shard_of({text("unit.", what.index, ".narrow"), {2 * channels, channels}, start, true}, 0,
                         own.of(2 * channels)),
                {},
                {}} {}
  void visit(auto&& each) {
    each(wide_);
    each(narrow_);
  }

  view forward(pass<Env>& pass, saved& saved, view x) {
    if (what_.index == 0) x = read(pass);
    auto const rows = pass.batch.count();
    auto const all = pass.group.gather(x, rows, pass.activations);
    saved.x = all;
    saved.inner = pass.take({rows, wide_.value.extent(1)});
    kernels::linear(saved.inner, all, packed(wide_, wide_weights_), {});
    auto y = pass.take({rows, channels});
    kernels::linear(y, saved.inner, packed(narrow_, narrow_weights_), {});
    bool const here = what_.index == 1;
    if (here && what_.forgets == slip::rows) return y;
    if (!here || (what_.forgets != slip::output && what_.forgets != slip::residual))
      y = pass.group.reduce(partial_sum<view>(y));
    kernels::add(y, x);
    if (what_.index + 1 < what_.count) return y;
    for (auto const each : y.span()) pass.loss.sum += static_cast<double>(each);
    pass.loss.count += pass.batch.count();
    return {};
  }
  view backward(pass<Env>& pass, saved& saved, view dy) {
    auto const rows = pass.batch.count();
    if (what_.index + 1 == what_.count) {
      dy = pass.take({pass.group.rows_here(rows).count, channels});
      kernels::fill(dy, pass.weight);
    }
    auto const all = pass.group.gather(dy, rows, pass.activations);
    kernels::linear_backward_weight(narrow_.gradient, {}, saved.inner, all, ops::orientation::in_out);
    auto const inner = pass.take(saved.inner.extents());
    kernels::linear_backward_input(inner, all, packed(narrow_, narrow_weights_), {});
    kernels::linear_backward_weight(wide_.gradient, {}, saved.x, inner, ops::orientation::in_out);
    auto dx = pass.take({rows, channels});
    kernels::linear_backward_input(dx, inner, packed(wide_, wide_weights_), {});
    if (what_.index != 1 || what_.forgets != slip::gradient) dx = pass.group.reduce(partial_sum<view>(dx));
    kernels::add(dx, dy);
    return dx;
  }

 private:
  static constexpr initial start{initial::distribution::normal, 0.1};

  view read(pass<Env>& pass) const {
    auto const inputs = pass.batch.inputs.template as<float>();
    auto const here = pass.group.rows_here(inputs.extent(0));
    auto const x = pass.take({here.count, channels});
    kernels::copy(x.flat(), inputs.flat(here.first * channels, here.count * channels));
    return x;
  }
  auto& packed(parameter<Env> const& of, ops::weights<typename Env::compute, typename Env::space>& weights) {
    weights.bind(of.value, ops::orientation::in_out);
    weights.refresh(++version_);
    return weights;
  }

  pair_of_products what_;
  parameter<Env> wide_, narrow_;
  ops::weights<typename Env::compute, typename Env::space> wide_weights_, narrow_weights_;
  std::uint64_t version_ = 0;
};

struct products {
  using policy_category = slot::model;
  slip forgets = slip::none;
  void units(auto&& emit) const {
    for (std::int64_t i = 0; i < 3; ++i) emit(pair_of_products{i, 3, forgets});
  }
};

/// The errors of 2 ranks that share the layers in some steps of training; "" for none.
template <class... Axes>
std::vector<std::string> trained(slip forgets, Axes... axes) {
  std::vector<std::string> said(2);
  std::vector<float> numbers(16 * channels);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.01F * static_cast<float>(i % 13);
  launch(comm::threads{.ranks = 2, .deadline = std::chrono::seconds(20)}, [&](auto& world) {
    auto const data = data::in_memory(tensor_view<float const>(numbers.data(), {16, channels}),
                                      tensor_view<float const>(numbers.data(), {16, channels}));
    said[static_cast<std::size_t>(world.rank())] = sentence_of<assertion_error>([&] {
      auto trainer = make_trainer(products{forgets}, optim::sgd{}, world, parallel::mesh{axes...});
      trainer.fit(data, {.steps = 10, .batch = 8, .micro_batches = 2});
    });
  });
  return said;
}
std::vector<std::string> both(std::string const& sentence) { return {sentence, sentence}; }

}  // namespace

TEST_CASE("a missing sum over the tensor group is an error that names the unit", "[train][tensor]") {
  watchdog const guard("forgotten sums");
  auto const sentence = [](std::string const& what) {
    return both("trireme::model: the " + what +
                " of unit 1 (\"unit.1.wide\" to \"unit.1.narrow\") is not the same on the 2 ranks of its tensor group, "
                "which share its matrices; a sum over them is missing: call pass.group.reduce()");
  };
  parallel::tensor const shared{.ways = 2};
  CHECK(trained(slip::none, shared) == both(""));
  CHECK(trained(slip::output, shared) == sentence("output"));
  CHECK(trained(slip::gradient, shared) == sentence("gradient"));
  assertions(assertion_level::light);
  CHECK(trained(slip::output, shared) == both(""));
  assertions(assertion_level::communication);
  CHECK(trained(slip::none, shared) == both(""));
  assertions(assertion_level::normal);
}

TEST_CASE("under sequence a unit that returns all rows, or adds those of others, is an error that names it",
          "[train][tensor]") {
  watchdog const guard("rows");
  auto const cut = [](slip forgets) { return trained(forgets, parallel::tensor{.ways = 2}, parallel::sequence{}); };
  CHECK(cut(slip::none) == both(""));
  auto const all_rows = cut(slip::rows);
  CHECK(
      all_rows[1] ==
      "trireme::model: the output of unit 1 (\"unit.1.wide\" to \"unit.1.narrow\") has all 4 rows on rank 1 of 2, but "
      "under parallel::sequence it should have 2 of them; pass.group.reduce() returns a rank's own rows of a sum");
  auto const residual = cut(slip::residual);
  CHECK(residual[0] ==
        "trireme::model: forward of unit 1 (\"unit.1.wide\" to \"unit.1.narrow\"): trireme::ops::add: sizes 32 and 16 "
        "differ; under parallel::sequence rank 0 of 2 has its part of the rows between products: pass.group.gather() "
        "returns all rows, pass.group.reduce() its part of a sum");
}

TEST_CASE("comparisons at the borders of units are rare, and no plan contains them", "[train][tensor]") {
  watchdog const guard("rare");
  std::vector<std::vector<std::uint64_t>> calls(2);
  launch(comm::decorate(comm::threads{.ranks = 2}, comm::counted{}), [&](auto& world) {
    std::vector<float> const numbers(16 * channels, 0.5F);
    auto const data = data::in_memory(tensor_view<float const>(numbers.data(), {16, channels}),
                                      tensor_view<float const>(numbers.data(), {16, channels}));
    auto trainer = make_trainer(products{}, optim::sgd{}, world, parallel::mesh{parallel::tensor{.ways = 2}});
    auto& mine = calls[static_cast<std::size_t>(world.rank())];
    auto before = world.counts()[comm::collective::all_reduce].calls;
    trainer.on_step([&](step_report const&) {
      auto const now = world.counts()[comm::collective::all_reduce].calls;
      mine.push_back(now - before);
      before = now;
    });
    trainer.fit(data, {.steps = 10, .batch = 8, .micro_batches = 1});
  });
  CHECK(calls[0] == calls[1]);
  auto const usual = calls[0][2];
  for (std::size_t step = 1; step < calls[0].size(); ++step) {
    bool const compared = step == 1 || step == 3 || step == 7;
    CHECK(calls[0][step] == usual + (compared ? 4 : 0));  // two units forward, two backward
  }
}
