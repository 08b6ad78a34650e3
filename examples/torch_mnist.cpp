// The form of a public example, pytorch/examples' mnist, on several ranks: digits that this program makes, a network
// that is held by its name, torch's data loader, training and evaluation in functions. Lines that one process does not
// need end in // +, and those that it has otherwise in // *.
//   torch_mnist 2                        two threads of this process
//   mpirun -n 2 torch_mnist              processes of this machine, whoever starts them
// test: 2
#include <fmt/core.h>
#include <torch/torch.h>
#include <trireme/comm/processes.hpp>  // +
#include <trireme/interop/torch.hpp>   // +

struct digit_net : torch::nn::Module {
  digit_net() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("drop", drop);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(drop(conv2(x)), 2));
    x = torch::relu(fc1(x.flatten(1)));
    return torch::log_softmax(fc2(x), 1);
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 10, 5)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(10, 20, 3)};
  torch::nn::Dropout2d drop{};
  torch::nn::Linear fc1{80, 50}, fc2{50, 10};
};

/// Pictures of ten signs, each under its own noise.
struct made_digits : torch::data::datasets::Dataset<made_digits> {
  explicit made_digits(std::size_t count, std::uint64_t first) : count_(count), first_(first) {
    signs_ = torch::randn({10, 1, 16, 16}, at::detail::createCPUGenerator(1));
  }
  torch::data::Example<> get(std::size_t index) override {
    auto const label = static_cast<std::int64_t>(index % 10);
    auto const noise = torch::randn({1, 16, 16}, at::detail::createCPUGenerator(first_ + index));
    return {signs_[label] + noise / 2, torch::tensor(label)};
  }
  [[nodiscard]] torch::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_;
  std::uint64_t first_;
  torch::Tensor signs_{};
};

template <class Ddp, class Loader>                                                                   // *
void train(int epoch, Ddp& model, Loader& loader, torch::optim::Optimizer& optimizer, bool tells) {  // *
  model->train();
  float last = 0;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    auto const loss = torch::nll_loss(model->forward(batch.data), batch.target);
    last = loss.template item<float>();
    if (std::isnan(last)) throw std::runtime_error("the loss is not a number");
    loss.backward();
    model.finish();  // +
    optimizer.step();
  }
  if (tells) fmt::print("epoch {} loss {:.4f}\n", epoch, last);  // *
}

template <class Loader>
double test(digit_net& model, Loader& loader, std::size_t samples) {
  torch::NoGradGuard const no_grad;
  model.eval();
  std::int64_t correct = 0;
  for (auto const& batch : loader)
    correct += model.forward(batch.data).argmax(1).eq(batch.target).sum().template item<std::int64_t>();
  return static_cast<double>(correct) / static_cast<double>(samples);
}

template <class World>                      // +
void run(World& world) {                    // *
  trireme::interop::divide_threads(world);  // +
  torch::manual_seed(1);
  digit_net model;
  auto ddp = trireme::interop::data_parallel(model, world);  // +
  std::size_t const samples = 1280, tested = 100;
  auto train_set = made_digits(samples, 1000).map(torch::data::transforms::Stack<>());
  trireme::interop::distributed_sampler sampler(samples, world);                         // *
  auto train_loader = torch::data::make_data_loader(std::move(train_set), sampler, 16);  // *
  auto test_set = made_digits(tested, 9000).map(torch::data::transforms::Stack<>());
  auto test_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(std::move(test_set), 50);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.03).momentum(0.9));
  for (int epoch = 1; epoch <= 4; ++epoch) {
    train(epoch, ddp, *train_loader, optimizer, world.rank() == 0);  // *
    if (world.rank() != 0) continue;                                 // +
    auto const right = test(model, *test_loader, tested);
    fmt::print("epoch {} accuracy {:.2f}\n", epoch, right);
    if (epoch == 4 && right < 0.8) throw std::runtime_error("nothing was learnt");
  }
}

int main(int argc, char** argv) {                                                                      // *
  auto const body = [](auto& world) { run(world); };                                                   // +
  if (argc > 1) return trireme::launch(trireme::comm::threads{.ranks = std::atoi(argv[1])}, body), 0;  // +
  trireme::launch(trireme::comm::processes{}, body);                                                   // *
}
