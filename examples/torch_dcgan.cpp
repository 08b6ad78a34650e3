// The form of a public example, pytorch/examples' dcgan, on several ranks: a generator and a discriminator of
// convolutions, whose loop has two backward() of the discriminator and one of the generator through it. The pictures,
// bright discs, are made. Lines that one process does not need end in // +, and those that it has otherwise in // *.
//   torch_dcgan 2                        two threads of this process
//   mpirun -n 2 torch_dcgan              processes of this machine, whoever starts them
// test: 2
#include <fmt/core.h>
#include <torch/torch.h>
#include <trireme/comm/processes.hpp>  // +
#include <trireme/interop/torch.hpp>   // +

namespace nn = torch::nn;
using torch::Tensor;

struct generator_impl : nn::Module {
  explicit generator_impl(int noise)
      : conv1(nn::ConvTranspose2dOptions(noise, 16, 4).bias(false)),
        norm1(16),
        conv2(nn::ConvTranspose2dOptions(16, 8, 4).stride(2).padding(1).bias(false)),
        norm2(8),
        conv3(nn::ConvTranspose2dOptions(8, 1, 4).stride(2).padding(1).bias(false)) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("conv3", conv3);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
  }
  Tensor forward(Tensor x) {  // (n, noise, 1, 1) -> (n, 1, 16, 16)
    x = torch::relu(norm1(conv1(x)));
    x = torch::relu(norm2(conv2(x)));
    return torch::tanh(conv3(x));
  }
  nn::ConvTranspose2d conv1;
  trireme::interop::sync_batch_norm norm1;  // *
  nn::ConvTranspose2d conv2;
  trireme::interop::sync_batch_norm norm2;  // *
  nn::ConvTranspose2d conv3;
};
TORCH_MODULE_IMPL(generator, generator_impl);

nn::Sequential make_discriminator() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 8, 4).stride(2).padding(1).bias(false)),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Conv2d(nn::Conv2dOptions(8, 16, 4).stride(2).padding(1).bias(false)),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Conv2d(nn::Conv2dOptions(16, 1, 4).bias(false)), nn::Sigmoid());
}

/// Discs of a radius of their own: 1 inside, -1 outside.
Tensor made_pictures(std::int64_t count) {
  auto const at = torch::arange(16, torch::kFloat) - 7.5;
  auto const distance = at.square().unsqueeze(1) + at.square();
  auto const radius = torch::rand({count, 1, 1, 1}) * 2 + 4;
  return torch::tanh(radius.square() - distance);
}

void run(auto& world) {                     // *
  trireme::interop::divide_threads(world);  // +
  trireme::interop::manual_seed(world, 1);  // *
  int const noise_size = 8, batch = 16;
  generator generator_net(noise_size);
  auto discriminator_net = make_discriminator();
  using trireme::interop::step_backwards;                                                                      // +
  trireme::interop::synchronize(generator_net, world);                                                         // +
  auto ddp_g = trireme::interop::data_parallel(generator_net, world);                                          // +
  auto ddp_d = trireme::interop::data_parallel(discriminator_net, world, {.backwards = step_backwards::any});  // +
  torch::optim::Adam generator_optimizer(generator_net->parameters(),
                                         torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
  torch::optim::Adam discriminator_optimizer(discriminator_net->parameters(),
                                             torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}));
  for (int step = 1; step <= 60; ++step) {
    // The discriminator, with real pictures and with fake ones.
    discriminator_optimizer.zero_grad();
    auto const real_labels = torch::empty(batch).uniform_(0.8, 1.0);
    Tensor const real_output = ddp_d->forward(made_pictures(batch)).reshape(real_labels.sizes());  // *
    auto const loss_real = torch::binary_cross_entropy(real_output, real_labels);
    loss_real.backward();
    auto const fake = ddp_g->forward(torch::randn({batch, noise_size, 1, 1}));  // *
    auto const fake_labels = torch::zeros(batch);
    Tensor const fake_output = ddp_d->forward(fake.detach()).reshape(fake_labels.sizes());  // *
    auto const loss_fake = torch::binary_cross_entropy(fake_output, fake_labels);
    loss_fake.backward();
    ddp_d.finish();  // +
    discriminator_optimizer.step();
    // The generator.
    generator_optimizer.zero_grad();
    Tensor const judged = ddp_d->forward(fake).reshape(fake_labels.sizes());  // *
    auto const loss_generator = torch::binary_cross_entropy(judged, torch::ones(batch));
    loss_generator.backward();
    ddp_g.finish();  // +
    generator_optimizer.step();
    if (step % 20 != 0 || world.rank() != 0) continue;  // *
    auto const loss = (loss_real + loss_fake).template item<float>();
    fmt::print("step {} losses {:.4f} {:.4f}\n", step, loss, loss_generator.template item<float>());
  }
  auto const shown = generator_net->forward(torch::randn({64, noise_size, 1, 1})).mean(0)[0];
  auto const contrast = shown.slice(0, 6, 10).slice(1, 6, 10).mean() - shown.slice(0, 0, 2).mean();
  using mean = trireme::reduction::mean;                                                       // +
  auto const of_all = trireme::interop::all_reduce(world, contrast.detach().clone(), mean{});  // +
  if (world.rank() != 0) return;                                                               // +
  fmt::print("discs are {:.2f} brighter than corners\n", of_all.template item<float>());       // *
}

int main(int argc, char** argv) {                                                                      // *
  auto const body = [](auto& world) { run(world); };                                                   // +
  if (argc > 1) return trireme::launch(trireme::comm::threads{.ranks = std::atoi(argv[1])}, body), 0;  // +
  trireme::launch(trireme::comm::processes{}, body);                                                   // *
}
