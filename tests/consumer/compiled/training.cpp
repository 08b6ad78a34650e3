#include <cmath>
#include <cstdint>
#include <string_view>
#include <trireme/trireme.hpp>

namespace {

/// Numbers that no precision of the library has.
struct own_numbers {
  using policy_category = trireme::slot::precision;
  using param = trireme::bfloat16;
  using compute = trireme::bfloat16;
  using accumulate = float;
  using reduce = trireme::bfloat16;
  using master = double;
  static constexpr double tolerance = 5e-2;
  static constexpr std::string_view name = "own_numbers";
};

template <class Precision>
std::uint64_t trained(Precision precision) {
  using namespace trireme;
  std::uint64_t hash = 0;
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto data = data::function([](float x) { return std::sin(x); }, {.samples = 64});
    auto trainer = make_trainer(nn::mlp{.inputs = 1, .hidden = {24, 40}, .outputs = 1},
                                optim::adamw{.learning_rate = 3e-3}, world, precision);
    trainer.fit(data, {.steps = 20, .batch = 16});
    auto const mine = trainer.state_hash();
    if (world.rank() == 0) hash = mine;
  });
  return hash;
}

}  // namespace

std::uint64_t TRAINING(int kind) {
  if (kind == 0) return trained(trireme::precision::fp32{});
  if (kind == 1) return trained(trireme::precision::bf16{});
  return trained(own_numbers{});
}
