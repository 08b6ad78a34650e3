// A torch::nn::Module of CUDA tensors in data_parallel: comm::threads (ranks of this process share one device), or with
// the argument `nccl FILE` comm::nccl (TRIREME_RANK, TRIREME_SIZE; one rank if they say nothing, which meet at FILE).
#include <atomic>

#include "support.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/nccl.hpp"
#include "trireme/interop/torch.hpp"
#include "trireme/interop/torch_cuda.hpp"

namespace comm = trireme::comm;
namespace interop = trireme::interop;
using torch::Tensor;
using trireme::cuda;

namespace {

struct cnn_impl : torch::nn::Module {
  cnn_impl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)));
    norm = register_module("norm", torch::nn::GroupNorm(2, 8));
    linear = register_module("linear", torch::nn::Linear(8 * 4 * 4, 4));
    register_buffer("seen", torch::zeros({1}));
  }
  Tensor forward(Tensor const& x) { return linear(torch::max_pool2d(torch::relu(norm(conv(x))), 2).flatten(1)); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Linear linear{nullptr};
};

/// The same numbers in each run and on each rank.
Tensor numbers(at::IntArrayRef sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed)).to(at::kCUDA);
}
std::shared_ptr<cnn_impl> made(int seed) {
  auto net = std::make_shared<cnn_impl>();
  net->to(at::kCUDA);
  torch::NoGradGuard const guard;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  for (auto& each : net->parameters()) each.copy_(torch::randn(each.sizes(), generator) * 0.2);
  return net;
}
Tensor values_of(torch::nn::Module const& module) {
  std::vector<Tensor> rows;
  for (auto const& each : module.parameters()) rows.push_back(each.detach().flatten());
  return torch::cat(rows).cpu();
}

/// Trains on rows [rank] of `ranks` parts of a batch; end() ends the exchange of a step.
template <class Forward, class End>
Tensor trained(std::shared_ptr<cnn_impl> const& net, int rank, int ranks, Forward&& forward, End&& end) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto const x = numbers({48, 1, 8, 8}, 1).chunk(ranks)[static_cast<std::size_t>(rank)];
  auto const y = numbers({48, 4}, 2).argmax(1).chunk(ranks)[static_cast<std::size_t>(rank)];
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    torch::cross_entropy_loss(forward(x), y).backward();
    if (end()) optimizer.step();
  }
  return values_of(*net);
}

/// Everything, on a world in CUDA memory.
template <class World>
void expect_all(gpu::cases& cases, World& world, std::string const& on) {
  auto const rank = world.rank(), size = world.size();
  auto const same = [&](Tensor const& values) {
    auto const row = values.contiguous();
    std::vector<std::uint64_t> all(static_cast<std::size_t>(size));
    auto const count = static_cast<std::size_t>(row.numel()) * sizeof(float);
    all[static_cast<std::size_t>(rank)] = trireme::hash_name({static_cast<char const*>(row.data_ptr()), count});
    world.all_gather(trireme::tensor_view<std::uint64_t>(all));
    for (auto const each : all) ladder::expect(each == all[0], "ranks have different weights");
  };
  for (bool const in_buckets : {false, true}) {
    cases.run("data_parallel trains as one process does" + on + (in_buckets ? ", gradients in buckets" : ""), [&] {
      auto const alone = made(3);
      auto const expected = trained(
          alone, 0, 1, [&](Tensor const& x) { return alone->forward(x); }, [] { return true; });
      auto const net = made(3 + rank);  // those of rank 0 count
      net->named_buffers()["seen"].fill_(rank + 1);
      auto ddp = interop::data_parallel(net, world, {.gradients_in_buckets = in_buckets});
      auto const found = trained(
          net, rank, size, [&](Tensor const& x) { return ddp->forward(x); }, [&] { return ddp.finish().finite; });
      auto const off = (found - expected).abs().max().template item<float>();
      ladder::expect(off < 1e-3F, "weights are ", off, " from those of one process");
      ladder::expect(net->named_buffers()["seen"].template item<float>() == 1, "buffers are not those of rank 0");
      same(found);
    });
  }
  cases.run("gradients follow what torch has queued, and torch what the exchange has queued" + on, [&] {
    torch::nn::Linear net(4096, 512);
    net->to(at::kCUDA);
    auto ddp = interop::data_parallel(net, world);
    auto const x = torch::full({2048, 4096}, static_cast<double>(rank + 1), at::kCUDA);
    for (int round = 0; round < 10; ++round) {
      net->zero_grad();
      (ddp->forward(x).sum() * static_cast<double>(round + 1)).backward();
      ddp.finish();
      auto const mean = 2048.0 * (round + 1) * (size + 1) / 2;
      auto const off = (net->weight.grad() - mean).abs().max().template item<double>();
      ladder::expect(off < 1e-3 * mean, "round ", round, ": a gradient is ", off, " from ", mean);
    }
  });
  cases.run("accumulation, unused parameters, buffers' mean and NaN" + on, [&] {
    auto const net = made(3);
    net->named_buffers()["seen"].fill_(rank + 1);
    auto ddp = interop::data_parallel(net, world, {.unused_parameters = true, .buffers = interop::step_buffers::mean});
    net->named_buffers()["seen"].fill_(rank + 1);
    auto const x = numbers({4, 1, 8, 8}, static_cast<std::uint64_t>(rank) + 5);
    {
      auto const quiet = ddp.no_sync();
      ddp->conv->forward(x).sum().backward();
    }
    ddp->conv->forward(x).sum().backward();
    auto const done = ddp.finish();
    ladder::expect(done.finite && done.norm > 0, "the norm is ", done.norm);
    ladder::expect(!net->linear->weight.grad().defined(), "a parameter that no rank has used has a gradient");
    same(net->conv->weight.grad().cpu());
    auto const seen = net->named_buffers()["seen"].template item<float>();
    ladder::expect(seen == static_cast<float>(size + 1) / 2, "the mean of a buffer is ", seen);
    net->zero_grad();
    (ddp->conv->forward(x).sum() * (rank == size - 1 ? NAN : 1.0)).backward();
    ladder::expect(!ddp.finish().finite, "a NaN was not seen");
  });
  cases.run("a module on the CPU is refused" + on, [&] {
    auto const sentence = sentence_of<trireme::config_error>([&] {
      torch::nn::Linear net(2, 2);
      static_cast<void>(interop::data_parallel(net, world));
    });
    ladder::expect(sentence.find("is a tensor of cpu") != std::string::npos, sentence);
  });
}

}  // namespace

int main(int count, char** words) {
  bool const over_nccl = count > 1;
  if (auto const reason = gpu::reason_to_skip(); !reason.empty()) {
    std::printf("skipped: data_parallel of CUDA tensors, %s: %s\n", over_nccl ? "comm::nccl" : "comm::threads",
                reason.c_str());
    return 77;
  }
  at::globalContext().setAllowTF32CuDNN(false);
  if (over_nccl) {
    auto const place = comm::bootstrap::detect();
    gpu::cases cases(place.rank == 0);
    trireme::launch(comm::nccl{.meet = comm::by_file, .file = words[1]}, [&](comm::nccl_world& world) {
      expect_all(cases, world, trireme::text(" on ", place.size, " ranks of NCCL"));
    });
    return cases.exit_code();
  }
  std::atomic<int> exit_code = 0;
  for (int const ranks : {1, 2}) {
    trireme::launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      gpu::cases cases(world.rank() == 0);
      auto on_device = comm::in_space<cuda>(world);
      expect_all(cases, on_device, trireme::text(" on ", ranks, " threads in CUDA memory"));
      if (cases.exit_code() != 0) exit_code = 1;
    });
  }
  return exit_code;
}
