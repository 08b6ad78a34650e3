// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

double train(comm::self_world& world) {
  auto const data = data::function([](float x) { return x; }, {.samples = 8});
  auto trainer = make_trainer(nn::mlp{}, optim::adamw{}, world);
  trainer.initialise(1);
  trainer.on_step([](step_report const&) {});
  auto const report = trainer.fit(data, {.steps = 1});
  trainer.save("run");
  std::vector<float> const inputs{1.0F};
  return report.last_loss + trainer.evaluate(data) + trainer.predict(tensor_view(inputs).reshaped({1, 1}))[0];
}
