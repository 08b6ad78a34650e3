// test-compilers: g++ clang++
// expected-error: trireme::trainer: two policies for one slot: remove one of the optimizers
#include "trireme/train/generate.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

float train(comm::threads_world& world) {
  auto const data = data::function([](float x) { return x; }, {.samples = 8});
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, optim::sgd{}, world, parallel::zero<1>{});
  checkpoint::resume_or_start(trainer, "run");
  trainer.prepare_saves("run");
  std::vector<float> const x{1, 2}, y{3, 4};
  samples const batch = make_samples(tensor_view(x).reshaped({2, 1}), tensor_view(y).reshaped({2, 1}));
  step_report const taken = trainer.step(batch);
  auto const again = trainer.step(std::array{batch, batch});
  static_cast<void>(trainer.step(x, y));
  trainer.start_epoch();
  auto const [table] = trainer.evaluate(data, 64, metric::confusion(10));
  auto const outputs = trainer.predict(batch);
  auto const slopes = trainer.input_gradient(batch);
  if (trainer.request_stop(); trainer.steps() > 3) trainer.broadcast();
  trainer.save("run", {}, {.last = 2});
  broadcast_parameters(trainer, world);
  generate(trainer, {1, 2}, 8, 16, {}, [](std::int32_t) { return true; });
  auto const memory = memory_of(trainer);
  exchange_times const times = trainer.exchange().times();
  return taken.loss + again.norm + outputs[0] + slopes[0] + static_cast<float>(memory.total()) +
         static_cast<float>(table.accuracy() + times.exposed);
}
