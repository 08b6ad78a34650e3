// test-sanitize: none
#include "trireme/nn/checkpointed.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/compression/none.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/staged_engine.hpp"

using namespace trireme;

namespace {

struct outcome {
  double loss = 0;
  std::vector<float> gradients;
  std::size_t peak_bytes = 0;
};

/// Two steps' gradients, the same numbers each time.
template <class Precision, class Model, class Comm>
outcome gradients(Model const& model, samples const& batch, Comm& world, bool cuts_rows = false) {
  using env = environment<Precision>;
  parallel::communicator_group<env, Comm> group(world, cuts_rows);
  staged_engine<env> engine(model, group);
  comm::self_world alone;
  basic_exchange<env, comm::self_world, parallel::data, compression::none> exchange(engine.uses(), alone, {}, {});
  exchange.initialise(3);
  outcome out;
  for (int step = 0; step < 2; ++step) {
    exchange.begin();
    out.loss = engine.train(batch, 1.0 / static_cast<double>(batch.count()), {1, 2}, [](int) {}).sum;
    exchange.abandon();  // gradients are looked at, not exchanged
  }
  for (auto const* use : engine.uses()) {
    for (auto const each : use->gradient.span()) out.gradients.push_back(static_cast<float>(each));
  }
  out.peak_bytes = engine.peak_bytes();
  return out;
}

struct tokens {
  std::vector<std::int32_t> inputs = std::vector<std::int32_t>(4 * 32);
  std::vector<std::int32_t> targets = std::vector<std::int32_t>(4 * 32);
  samples batch = make_samples(tensor_view<std::int32_t const>(inputs.data(), shape{4, 32}),
                               tensor_view<std::int32_t const>(targets.data(), shape{4, 32}));
  tokens() {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<std::int32_t>(i * 7 % 37);
      targets[i] = static_cast<std::int32_t>(i * 5 % 37);
    }
  }
};

nn::gpt const whole{.vocabulary = 37, .context = 32, .layers = 6, .heads = 3, .channels = 24, .dropout = 0.1};
nn::gpt again() {
  auto model = whole;
  model.checkpointed = true;
  return model;
}

/// A unit whose input's gradient is not in the memory of its output's.
struct perceptron {
  bool checkpointed = false;
  void units(auto&& emit) const {
    nn::linear const layer{.inputs = 8, .outputs = 8, .start = start};
    emit(nn::mlp_layer<true>{layer, 0, ops::activation::tanh});
    for (std::int64_t index = 1; index < 4; ++index) {
      nn::mlp_layer<> const inner{layer, index, ops::activation::tanh};
      if (checkpointed) {
        emit(nn::checkpointed_unit{inner});
      } else {
        emit(inner);
      }
    }
    emit(nn::mlp_layer<false, nn::loss::squared_error>{{.inputs = 8, .outputs = 1, .start = start}, 4});
  }
  static constexpr initial start{initial::distribution::uniform, 0.3};
};

/// Layers within a block that save their input only; the block around them does not.
struct partly {
  bool checkpointed = false;
  void units(auto&& emit) const {
    using namespace nn;
    nn::gpt_shape const shape{.vocabulary = 37, .context = 32, .layers = 2, .heads = 3, .channels = 24, .dropout = 0.1};
    emit(gpt_embedding{shape});
    for (std::uint32_t i = 0; i < 2; ++i) {
      auto const attention =
          chain(named("q", linear{.outputs = 72}), attend{3, 0.1}, named("o", linear{.outputs = 24}));
      auto const mlp = chain(named("norm", layer_norm{}), named("up", linear{.outputs = 96}), gelu(),
                             named("down", linear{.outputs = 24}), dropout{0.1});
      auto const whole = [&](auto const& first, auto const& second) {
        emit(block{text("layers.", i), 24, chain(residual(layer_norm{}, first), second)});
      };
      if (checkpointed) {
        whole(nn::checkpointed(attention), nn::checkpointed(residual(mlp), nn::tanh()));
      } else {
        whole(attention, chain(residual(mlp), nn::tanh()));
      }
    }
    emit(gpt_head{shape});
  }
};

}  // namespace

TEST_CASE("checkpointed layers have the gradients of the others bit for bit, and save less", "[nn][checkpointed]") {
  watchdog const guard("checkpointed layers on three ranks");
  tokens const text;
  comm::self_world world;
  auto const compare = [&](outcome const& once, outcome const& twice) {
    CHECK(twice.loss == once.loss);
    CHECK(twice.gradients == once.gradients);
    CHECK(twice.peak_bytes < once.peak_bytes * 3 / 4);
  };
  compare(gradients<precision::fp32>(partly{}, text.batch, world),
          gradients<precision::fp32>(partly{true}, text.batch, world));
  compare(gradients<precision::bf16>(partly{}, text.batch, world),
          gradients<precision::bf16>(partly{true}, text.batch, world));
  for (bool const cuts_rows : {false, true}) {
    std::vector<int> same(3);
    launch(comm::threads{.ranks = 3}, [&](auto& group) {
      auto const once = gradients<precision::fp32>(partly{}, text.batch, group, cuts_rows);
      auto const twice = gradients<precision::fp32>(partly{true}, text.batch, group, cuts_rows);
      same[static_cast<std::size_t>(group.rank())] = once.gradients == twice.gradients && once.loss == twice.loss;
    });
    CHECK(same == std::vector<int>{1, 1, 1});
  }
}

TEST_CASE("checkpointed blocks have the same gradients bit for bit, and save less", "[nn][checkpointed]") {
  tokens const text;
  comm::self_world world;
  auto const compare = [&](outcome const& once, outcome const& twice) {
    CHECK(twice.loss == once.loss);
    CHECK(twice.gradients == once.gradients);
    CHECK(twice.peak_bytes < once.peak_bytes / 2);
  };
  compare(gradients<precision::fp32>(whole, text.batch, world), gradients<precision::fp32>(again(), text.batch, world));
  compare(gradients<precision::bf16>(whole, text.batch, world), gradients<precision::bf16>(again(), text.batch, world));
  CHECK(to_string(again()) == to_string(whole).substr(0, to_string(whole).size() - 1) + ", .checkpointed = true}");
}

TEST_CASE("checkpointed blocks whose matrices are shared have the same gradients too", "[nn][checkpointed]") {
  watchdog const guard("checkpointed blocks on three ranks");
  tokens const text;
  for (bool const cuts_rows : {false, true}) {
    std::vector<int> same(3);
    launch(comm::threads{.ranks = 3}, [&](auto& world) {
      auto const once = gradients<precision::fp32>(whole, text.batch, world, cuts_rows);
      auto const twice = gradients<precision::fp32>(again(), text.batch, world, cuts_rows);
      same[static_cast<std::size_t>(world.rank())] = once.gradients == twice.gradients && once.loss == twice.loss;
    });
    CHECK(same == std::vector<int>{1, 1, 1});
  }
}

TEST_CASE("a checkpointed unit may give its input's gradient in other memory", "[nn][checkpointed]") {
  std::vector<float> const inputs{1, 2, 3, 4, 5, 6, 7, 8, -1, -2, -3, -4, -5, -6, -7, -8};
  std::vector<float> const targets{1, -1};
  auto const batch =
      make_samples(tensor_view<float const>(inputs.data(), shape{2, 8}), tensor_view<float const>(targets));
  comm::self_world world;
  auto const once = gradients<precision::fp64>(perceptron{}, batch, world);
  auto const twice = gradients<precision::fp64>(perceptron{.checkpointed = true}, batch, world);
  CHECK(twice.gradients == once.gradients);
  CHECK(twice.loss == once.loss);
}
