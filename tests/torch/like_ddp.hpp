#pragma once

#include "trireme/interop/torch.hpp"

#include <cstdint>
#include <vector>

/// Two small models and 50 steps of training, by two ranks with half of each batch: what data_parallel is compared with
/// DDP by. Names and order are those of against_ddp_test.py.
namespace like_ddp {

using torch::Tensor;

struct cnn : torch::nn::Module {
  cnn() {
    using namespace torch::nn;
    conv1 = register_module("conv1", Conv2d(Conv2dOptions(1, 4, 3).padding(1)));
    norm1 = register_module("norm1", BatchNorm2d(4));
    conv2 = register_module("conv2", Conv2d(Conv2dOptions(4, 8, 3).padding(1)));
    norm2 = register_module("norm2", BatchNorm2d(8));
    linear = register_module("linear", Linear(8 * 7 * 7, 10));
  }
  Tensor forward(Tensor const& x) {
    auto h = torch::max_pool2d(torch::relu(norm1(conv1(x))), 2);
    h = torch::max_pool2d(torch::relu(norm2(conv2(h))), 2);
    return linear(h.flatten(1));
  }
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear linear{nullptr};
};

struct transformer : torch::nn::Module {
  transformer() {
    using namespace torch::nn;
    table = register_module("table", Embedding(32, 16));
    block = register_module(
        "block", TransformerEncoderLayer(TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0)));
    head = register_module("head", Linear(16, 32));
  }
  Tensor forward(Tensor const& x) {  // (batch, positions) -> (batch * positions, 32)
    return head(block(table(x).transpose(0, 1)).transpose(0, 1)).flatten(0, 1);
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::TransformerEncoderLayer block{nullptr};
  torch::nn::Linear head{nullptr};
};

/// Parameters, then floating-point buffers.
inline std::vector<Tensor> state_of(torch::nn::Module const& module) {
  auto all = module.parameters();
  for (auto const& each : module.buffers())
    if (each.is_floating_point()) all.push_back(each);
  return all;
}

/// SGD with momentum: this rank's half of each batch, whose steps are the first dimension.
template <class Module, class Ddp>
void train(Module& own, Ddp& ddp, Tensor const& inputs, Tensor const& targets, int rank) {
  auto const steps = inputs.size(0), share = inputs.size(1) / 2;
  auto const rows = targets.reshape({steps, 2, -1});
  torch::optim::SGD optimizer(own.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  for (std::int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto const x = inputs[step].slice(0, rank * share, (rank + 1) * share);
    torch::cross_entropy_loss(ddp->forward(x), rows[step][rank]).backward();
    ddp.finish();
    optimizer.step();
  }
}

}  // namespace like_ddp
