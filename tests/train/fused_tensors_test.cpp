// test-timeout: 300
// test-sanitize: none
// Optimizers of whole tensors split fused products and stacks of experts. All of them as optim::any, so that one
// trainer is compiled for each strategy.
#include "trireme/train/optimizer_state.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../support/small_gpt.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/llama.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/train/make_exchange.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

using any_optimizer = optim::any<environment<precision::fp32>>;

struct expected {
  std::string optimizer, tensor;
  std::vector<double> after;
};
std::vector<expected> const golden{
#include "../golden/optimizers.inl"
};

nn::llama const grouped{
    .vocabulary = 37, .context = 12, .layers = 1, .heads = 4, .key_heads = 2, .channels = 16, .hidden = 24};
nn::gpt const mixture{.vocabulary = 37, .context = 12, .layers = 1, .heads = 2, .channels = 8, .experts = 4};

struct outcome {
  std::uint64_t hash = 0;
  std::map<std::string, std::vector<float>> values;
  std::vector<std::string> moments;  // names of those of the projections
};
struct plan_of_run {
  int ranks = 1;
  std::int64_t steps = 4;
  std::string load{}, save{};
};

template <class Model, class Strategy>
outcome run(Model const& model, any_optimizer const& optimizer, Strategy strategy, plan_of_run const& how) {
  outcome out;
  watchdog const watch("fused tensors");
  launch(comm::threads{.ranks = how.ranks}, [&](auto& world) {
    auto trainer = make_trainer(model, optimizer, world, strategy);
    trainer.initialise(3);
    if (!how.load.empty()) trainer.load(how.load);
    if (how.steps > trainer.steps())
      trainer.fit(toy::text{.samples = 16}, {.steps = 8, .batch = 8, .micro_batches = 4, .stop_after = how.steps});
    if (!how.save.empty()) trainer.save(how.save);
    auto const hash = trainer.state_hash();
    trainer.for_each_parameter([&](std::string const& name, shape const&, std::span<float const> values) {
      if (world.rank() == 0) out.values[name].assign(values.begin(), values.end());
    });
    if (world.rank() > 0) return;
    out.hash = hash;
    trainer.for_each_state([&](std::string const& name, auto const&, std::int64_t, auto) {
      if (contains(name, "qkv_proj") && !contains(name, "value/")) out.moments.push_back(name);
    });
  });
  return out;
}

/// The squares of the rows (columns of the parameter) of Muon's step for a tensor of files, and how far its rows are
/// from orthogonal.
struct spread {
  double least = 1e9, most = 0, across = 0;
};
spread spread_of(nn::file_tensor const& tensor, outcome const& before, outcome const& after, double rate) {
  auto const& a = before.values.at(tensor.parameter);
  auto const& b = after.values.at(tensor.parameter);
  auto const rows = tensor.extents[0], inputs = tensor.extents[1];
  std::vector<double> x;
  for (std::int64_t i = 0; i < rows * inputs; ++i) {
    auto const at = static_cast<std::size_t>(tensor.place(i));
    x.push_back((static_cast<double>(a[at]) - static_cast<double>(b[at])) / rate);
  }
  spread out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s <= r; ++s) {
      double product = 0;
      for (std::int64_t i = 0; i < inputs; ++i)
        product += x[static_cast<std::size_t>(r * inputs + i)] * x[static_cast<std::size_t>(s * inputs + i)];
      if (s < r) {
        out.across = std::max(out.across, std::abs(product));
      } else {
        out.least = std::min(out.least, product);
        out.most = std::max(out.most, product);
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("bands of a fused tensor are updated as separate tensors, with torch's numbers for Muon", "[train]") {
  using optimizer_of_doubles = optim::any<environment<precision::fp64>>;
  struct {
    char const* name;
    optimizer_of_doubles optimizer;
  } const cases[] = {{"lamb", optim::lamb{.learning_rate = 0.01, .weight_decay = 0.1}},
                     {"muon", optim::muon{.weight_decay = 0.1}},
                     {"adafactor", optim::adafactor{.learning_rate = 0.05, .weight_decay = 0.1}}};
  for (auto const& [name, optimizer] : cases) {
    comm::self_world alone;
    std::vector<double> value(96), gradient(96);
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = 0.5 * std::sin(1.7 * static_cast<double>(i)) + 0.1;
    std::vector<foreign_parameter<double>> const mine{{"qkv",
                                                       tensor_view<double>(value.data(), {6, 16}),
                                                       tensor_view<double>(gradient.data(), {6, 16}),
                                                       {},
                                                       {4, 2, 2}}};
    auto exchange = make_exchange(mine, alone, optimizer);
    for (int t = 0; t < 4; ++t) {
      exchange.begin();
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        auto const x = static_cast<double>(i);
        gradient[i] = 0.3 * std::cos(0.9 * x * x + 2.3 * t * static_cast<double>(i % 3 + 1));
      }
      exchange.ready("qkv");
      exchange.step(optimizer);
    }
    auto const found = std::find_if(golden.begin(), golden.end(),
                                    [&](auto const& each) { return each.optimizer == name && each.tensor == "fused"; });
    REQUIRE(found != golden.end());
    for (std::size_t i = 0; i < value.size(); ++i) {
      INFO(name << ", element " << i);
      CHECK(value[i] == Approx(found->after[i]).epsilon(1e-10));
    }
  }
}

TEST_CASE("muon's change of queries, keys and values is orthogonal for each of them, on 1, 2 and 4 ranks", "[train]") {
  any_optimizer const muon = optim::muon{.learning_rate = 0.02};
  auto const start = run(grouped, muon, parallel::data{}, {.steps = 0});
  auto const layout = grouped.in_files();
  auto const check = [&](outcome const& found) {
    for (auto const& tensor : layout.tensors) {
      if (!contains(tensor.parameter, "qkv_proj")) continue;
      auto const is = spread_of(tensor, start, found, 0.02 * std::sqrt(std::max(1.0, tensor.extents[0] / 16.0)));
      INFO(tensor.name << ": squares " << is.least << " to " << is.most << ", across " << is.across);
      CHECK(is.least > 0.4);
      CHECK(is.most < 1.6);
      CHECK(is.across < 0.5);
    }
  };
  for (int const ranks : {1, 2, 4}) {
    check(run(grouped, muon, parallel::data{.reproducible = true}, {.ranks = ranks, .steps = 1}));
    check(run(grouped, muon, parallel::zero<2>{.reproducible = true}, {.ranks = ranks, .steps = 1}));
  }
}

TEST_CASE("moments of bands and of stacks resume under another strategy and number of ranks", "[train]") {
  for (any_optimizer const& optimizer :
       {any_optimizer(optim::muon{}), any_optimizer(optim::lamb{}), any_optimizer(optim::adafactor{.momentum = 0.9})}) {
    INFO(to_string(optimizer));
    auto const check = [&](auto const& model) {
      auto const straight = run(model, optimizer, parallel::data{.reproducible = true}, {});
      scratch const folder;
      run(model, optimizer, parallel::zero<2>{.reproducible = true}, {.ranks = 4, .steps = 2, .save = folder.path()});
      auto const later =
          run(model, optimizer, parallel::data{.reproducible = true}, {.ranks = 2, .load = folder.path()});
      CHECK(later.hash == straight.hash);
      return straight;
    };
    auto const found = check(grouped);
    CHECK(std::any_of(found.moments.begin(), found.moments.end(),
                      [](auto const& name) { return name.ends_with("/model.layers.0.self_attn.qkv_proj.weight[2]"); }));
    check(mixture);
  }
}

TEST_CASE("each expert's matrix is updated separately, also if experts are distributed over ranks", "[train]") {
  for (any_optimizer const& optimizer : {any_optimizer(optim::muon{}), any_optimizer(optim::lamb{})}) {
    auto const serial = run(mixture, optimizer, parallel::data{}, {});
    auto const dealt =
        run(mixture, optimizer, parallel::mesh{parallel::data{}, parallel::expert{.ways = 2}}, {.ranks = 2});
    for (auto const& [name, values] : serial.values) {
      INFO(name);
      auto const& others = dealt.values.at(name);
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(others[i] == Approx(values[i]).margin(2e-3));
    }
  }
}

TEST_CASE("the tensors declared within a parameter must fit its extents", "[train]") {
  parameter_info info{"w", {3, 8}};
  info.fused = {2, 1, 1};
  tensors_within const all(info);
  CHECK(all.bands() == 3);
  CHECK(all.info(0).extents == shape{3, 4});
  CHECK(all.info(2).extents == shape{3, 2});
  info.stacked = true;
  CHECK(tensors_within(info).info(0).extents == shape{4});
  info.fused = {3, 3};
  CHECK(sentence_of([&] { tensors_within const wrong(info); }) ==
        "trireme::parameter \"w\": (3, 8) does not divide into tensors of widths (3, 3) along its last axis, for each "
        "index "
        "of its first axis; the widths must fill the last axis once or several times");
}
