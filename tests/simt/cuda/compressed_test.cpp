// Compressed gradients, and optimizers that update whole tensors, in trainings in CUDA memory: the host's bits, or its
// results to rounding errors.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../../catch.hpp"
#include "../../watchdog.hpp"
#include "codec_tensors.hpp"
#include "trireme/comm/cuda.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/function.hpp"
#include "trireme/ops/host.hpp"
#include "trireme/ops/host/target.hpp"
#include "trireme/optim/adafactor.hpp"
#include "trireme/optim/lamb.hpp"
#include "trireme/optim/muon.hpp"
#include "trireme/optim/sgd.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

/// A plain model without layers: the loss is half the square of the distance of its values from others; its gradient is
/// multiplied by a number of the batch. Its kernels are those of the library, in either memory.
template <class Space>
class attracted {
 public:
  using policy_category = slot::model;
  using kernels = ops::on<Space>;

  attracted() {
    std::uint32_t number = 1;
    for (auto const& extents : {shape{40, 24}, shape{77}}) {
      values_.emplace_back(extents);
      gradients_.emplace_back(extents);
      targets_.emplace_back(extents);
      kernels::upload(values_.back().view(),
                      std::span<float const>(codec_tensors::numbers<float>(extents.size(), ++number)));
      kernels::upload(targets_.back().view(),
                      std::span<float const>(codec_tensors::numbers<float>(extents.size(), ++number)));
    }
  }
  void visit_parameters(auto&& visit) {
    for (std::size_t i = 0; i < 2; ++i) visit("w" + std::to_string(i), values_[i].view(), gradients_[i].view());
  }
  double forward(samples const& given) {
    stretch_ = 0.5 + std::abs(static_cast<double>(given.inputs.as<float>().span()[0]));
    double loss = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      auto const to = gradients_[i].view();
      kernels::copy(to, tensor_view<float const, Space>(values_[i].view()));
      kernels::accumulate(to, tensor_view<float const, Space>(targets_[i].view()), -1);
      std::vector<float> away(static_cast<std::size_t>(to.size()));
      kernels::download(std::span<float>(away), to);
      for (auto const each : away) loss += 0.5 * static_cast<double>(each) * static_cast<double>(each);
    }
    return loss;
  }
  void backward(auto&& ready) {
    for (std::size_t i = 2; i-- > 0;) {
      kernels::scale(gradients_[i].view(), stretch_);
      ready("w" + std::to_string(i));
    }
  }

 private:
  std::vector<tensor<float, Space>> values_, gradients_, targets_;
  double stretch_ = 1;
};

struct outcome {
  std::uint64_t hash = 0;
  double first_loss = 0, last_loss = 0;
};
auto const sine = data::function([](float x) { return std::sin(3 * x); }, {.samples = 96});

template <class Space, class World, class... Policies>
outcome train_in(World& world, Policies const&... policies) {
  auto trainer = make_trainer(attracted<Space>{}, world, policies...);
  auto const report = trainer.fit(sine, {.steps = 6, .batch = 12});
  return {trainer.state_hash(), report.first_loss, report.last_loss};
}
template <class Space, class... Policies>
outcome train(int ranks, Policies const&... policies) {
  watchdog const guard("a compressed training in CUDA memory");
  std::vector<outcome> all(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(60)}, [&](auto& world) {
    auto& mine = all[static_cast<std::size_t>(world.rank())];
    if constexpr (std::is_same_v<Space, host>) {
      mine = train_in<host>(world, policies...);
    } else {
      auto there = comm::in_space<cuda>(world);
      mine = train_in<cuda>(there, policies...);
    }
  });
  for (auto const& each : all) CHECK(each.hash == all[0].hash);
  return all[0];
}

template <class... Policies>
void has_the_hosts_bits(Policies const&... policies) {
  for (int const ranks : {1, 3}) {
    INFO(text(ranks, " ranks"));
    auto const here = train<host>(ranks, policies...);
    auto const there = train<cuda>(ranks, policies...);
    CHECK(here.last_loss < here.first_loss);
    CHECK(there.last_loss < there.first_loss);
    if (ops::detected() >= ops::cpu_level::avx2) CHECK(there.hash == here.hash);
  }
}
template <class... Policies>
void is_close_to_the_hosts(Policies const&... policies) {
  auto const here = train<host>(2, policies...);
  auto const there = train<cuda>(2, policies...);
  CHECK(here.last_loss < here.first_loss);
  CHECK(std::abs(there.last_loss - here.last_loss) <= 1e-4 * here.last_loss);
}

optim::sgd const slow{.learning_rate = 0.1};

}  // namespace

TEST_CASE("gradients are quantised in CUDA memory as in the host's", "[compressed]") {
  has_the_hosts_bits(slow, compression::quantise<8>{.block = 128});
  has_the_hosts_bits(slow, compression::error_feedback<compression::quantise<4>>{});
  has_the_hosts_bits(slow, compression::error_feedback<compression::sign>{});
}
TEST_CASE("elements of gradients are chosen in CUDA memory as in the host's", "[compressed]") {
  has_the_hosts_bits(slow, compression::error_feedback<compression::top_k>{{.ratio = 0.1F}});
  has_the_hosts_bits(slow, compression::error_feedback<compression::top_k_sampled>{{.ratio = 0.05F, .samples = 128}});
  has_the_hosts_bits(slow, compression::random_k{.ratio = 0.5F});
}
TEST_CASE("power_sgd in CUDA memory is close to the host's", "[compressed]") {
  is_close_to_the_hosts(slow, compression::power_sgd{.rank = 2});
}
TEST_CASE("optimizers of whole tensors in CUDA memory are close to the host's", "[compressed]") {
  is_close_to_the_hosts(optim::lamb{.learning_rate = 0.05});
  is_close_to_the_hosts(optim::adafactor{.learning_rate = 0.01, .relative = false, .momentum = 0.9});
  is_close_to_the_hosts(optim::muon{.learning_rate = 0.002});
}
