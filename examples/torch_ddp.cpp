// torch_single.cpp on several ranks. Without an argument its launcher says which rank this process is.
//   torch_ddp 2                                            two threads of this process
//   mpirun -n 2 torch_ddp                                  processes of this machine, whoever starts them
//   torchrun --no-python --nproc-per-node 2 torch_ddp
// test: 2
#include <fmt/core.h>
#include <torch/torch.h>
#include <trireme/comm/processes.hpp>
#include <trireme/interop/torch.hpp>

struct cnn_impl : torch::nn::Module {
  cnn_impl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    linear = register_module("linear", torch::nn::Linear(8 * 4 * 4, 4));
  }
  torch::Tensor forward(torch::Tensor const& x) {
    return linear(torch::max_pool2d(torch::relu(norm(conv(x))), 2).flatten(1));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear linear{nullptr};
};

void train(auto& world) {
  trireme::interop::divide_threads(world);
  trireme::interop::manual_seed(world, 1);
  auto net = std::make_shared<cnn_impl>();
  auto ddp = trireme::interop::data_parallel(net, world);
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 1; step <= 100; ++step) {
    auto const y = torch::randint(4, {32}, torch::kLong);
    auto x = torch::randn({32, 1, 8, 8});
    for (int i = 0; i < 32; ++i) {
      auto const place = y[i].item<int>();
      x[i][0].slice(0, place / 2 * 4, place / 2 * 4 + 4).slice(1, place % 2 * 4, place % 2 * 4 + 4) += 1;
    }
    optimizer.zero_grad();
    torch::Tensor const loss = torch::cross_entropy_loss(ddp->forward(x), y);
    loss.backward();
    ddp.finish();
    optimizer.step();
    if (step % 20 == 0 && world.rank() == 0) fmt::print("step {} loss {:.4f}\n", step, loss.item<double>());
  }
}

int main(int argc, char** argv) {
  auto const body = [](auto& world) { train(world); };
  if (argc > 1) {
    trireme::launch(trireme::comm::threads{.ranks = std::atoi(argv[1])}, body);
  } else {
    trireme::launch(trireme::comm::processes{}, body);
  }
}
