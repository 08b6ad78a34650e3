// What data_parallel refuses at compile time: each function has one mistake, which is one error with its sentence,
// although the loop goes on with what it gets. refused.sh compiles this and compares.
#include "trireme/interop/torch_data_parallel.hpp"
#include "trireme/optim/sgd.hpp"
#include "trireme/parallel/tensor.hpp"

using namespace trireme;

namespace {

void loop(auto& ddp) {
  auto const loss = ddp->forward(torch::ones({1, 2})).sum();
  loss.backward();
  auto const quiet = ddp.no_sync();
  if (ddp.finish().finite && ddp.step(optim::sgd{}).finite) ddp.abandon();
  while (auto const done = ddp.join()) static_cast<void>(done->norm);
  static_cast<void>(ddp.exchange().times().hidden() + ddp.loss_scale());
}

}  // namespace

// expected-error: the module comes first, and then the world: data_parallel(net, world)
void swapped(comm::threads_world& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(world, net);
  loop(ddp);
}
// expected-error: gradients are exchanged as float or double, whatever the parameters are
void element(comm::threads_world& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel<bfloat16>(net, world, {.unused_parameters = true});
  loop(ddp);
}
// expected-error: the first argument is a module: one derived from torch::nn::Module
void tensors(comm::threads_world& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(net->parameters(), world);
  loop(ddp);
}
// expected-error: the module is given as a pointer: write data_parallel(*net, world)
void pointer(comm::threads_world& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(net.get(), world);
  loop(ddp);
}
// expected-error: the module is a temporary, which ends before it is trained
void temporary(comm::threads_world& world) {
  auto ddp = interop::data_parallel(torch::nn::LinearImpl(2, 2), world);
  loop(ddp);
}
// expected-error: the second argument is a world: call launch(comm::threads{...}
void described(torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(net, comm::threads{.ranks = 2});
  loop(ddp);
}
// expected-error: the world is a temporary: keep it in a variable
void passing(comm::threads_world& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(net, world.duplicate());
  loop(ddp);
}
// expected-error: the world is const, but its calls are not: take it as [](auto& world)
void constant(comm::threads_world const& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(net, world);
  loop(ddp);
}
// expected-error: trireme::make_exchange: takes parameters, a world, and at most one parallel strategy, one compressor
void an_option(comm::threads_world& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(net, world, 3);
  loop(ddp);
}
// expected-error: trireme::make_exchange: the parallel strategy does not say how replicas are handled
void mesh(comm::threads_world& world, torch::nn::Linear const& net) {
  auto ddp = interop::data_parallel(net, world, interop::data_parallel_options{}, parallel::tensor{});
  loop(ddp);
}
