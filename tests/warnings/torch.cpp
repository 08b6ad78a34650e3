#include "trireme/interop/torch.hpp"
#include "trireme/trireme.hpp"

// What programs with LibTorch instantiate.

using namespace trireme;

void torch_in_a_loop(comm::threads_world& world) {
  auto const net = std::make_shared<torch::nn::LinearImpl>(4, 1);
  interop::divide_threads(world);
  interop::manual_seed(world, 1);
  auto ddp = interop::data_parallel(net, world, {.unused_parameters = true, .buffers = interop::step_buffers::mean});
  auto const x = torch::randn({16, 4});
  {
    auto const guard = ddp.no_sync();
    ddp->forward(x).sum().backward();
  }
  ddp->forward(x).sum().backward();
  static_cast<void>(ddp.finish());
  while (ddp.join()) ddp.abandon();
  auto own = interop::data_parallel<double>(net, world, parallel::zero<1>{});
  own.step(optim::sgd{});
  torch::nn::AnyModule any(net);
  auto several = interop::data_parallel(any, world, {.backwards = interop::step_backwards::any, .left_alone = "bias"});
  static_cast<void>(several.join(interop::early_end::raise));
  torch::jit::Module scripted("scripted");
  interop::data_parallel(scripted, world).finish();
  interop::all_reduce(world, interop::broadcast(world, interop::all_gather(world, x)), reduction::mean{});
}

void torch_in_a_trainer(comm::threads_world& world) {
  torch::nn::Sequential net(torch::nn::Linear(1, 8), torch::nn::Linear(8, 1));
  interop::broadcast(net, world);
  auto const data = data::function([](float x) { return x; }, {.samples = 64});
  auto trainer =
      make_trainer(interop::torch_model(net, torch::nn::MSELoss()), optim::sgd{}, world, parallel::zero<1>{});
  trainer.fit(data, {.steps = 1});
  auto units = make_trainer(interop::torch_sequential(net, torch::nn::MSELoss()), optim::sgd{}, world,
                            precision::bf16{}, parallel::zero<3>{});
  units.fit(data, {.steps = 1});
  interop::take_values(units, net);
  interop::save_safetensors(net, "net", world);
  interop::load_safetensors(net, "net", world);
}
