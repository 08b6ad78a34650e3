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
  trainer.save_in_background("run");
  trainer.finish_save();
  trainer.on_save([](save_report const&) {});
  trainer.load("run");
  trainer.synchronise_buffers();
  trainer.change_parameters([](auto const&, auto const&, std::int64_t, auto const&) {});
  trainer.for_each_parameter([](auto const&, auto const&, auto const&) {});
  trainer.for_each_state([](auto const&, auto const&, std::int64_t, auto const&) {}, true);
  trainer.exchange().broadcast();
  static_cast<void>(trainer.exchange().hash_of_parameters() + trainer.state_hash() + trainer.seed());
  static_cast<void>(trainer.steps() + trainer.moment_bytes());
  static_cast<void>(trainer.world());
  static_cast<void>(trainer.described_model());
  std::vector<float> const inputs{1.0F};
  return report.last_loss + trainer.evaluate(data) + trainer.predict(tensor_view(inputs).reshaped({1, 1}))[0];
}
