// cuda_own_kernel: a training loop of the program's own, with kernels and a stream of its own, on several ranks.
//
//   scripts/example cuda_own_kernel [RANKS]         on a GPU, which all ranks share
//   scripts/example cuda_own_kernel_simt [RANKS]    without one: the same kernels in a simulator of a GPU's threads
//
// The model, its kernels (regression.cu) and the memory are the program's. Trireme sums the gradients over the ranks
// and updates the weights, both in CUDA memory. Lines that are Trireme's have a "+". Ranks are threads here; with
// launch(comm::nccl{}, f) each has a device of its own, and train() stays as it is.
//
// At the end the same training runs once more, on the host and without ranks. Exit code: 0 if both have the same
// weights, 1 if not, or after an error, and 77 if there is no GPU.
//
// test: 1
// test: 3
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>
#include <vector>

#include <fmt/core.h>

#include "regression.hpp"
#include "trireme/comm/cuda.hpp"  // +
#include "trireme/ops/cuda.hpp"   // +
#include "trireme/trireme.hpp"    // +

using regression::inputs;

namespace {

constexpr int samples = 1000, steps = 40;
constexpr double rate = 0.1;

void expect(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

/// The samples [first, last) of all.
struct table {
  std::vector<float> x, y;
  table(int first, int last) {
    for (int s = first; s < last; ++s) {
      float target = 0.5F + 0.05F * std::sin(17 * static_cast<float>(s));
      for (int i = 0; i < inputs; ++i) {
        x.push_back(std::sin(0.37F * static_cast<float>((s + 1) * (i + 1))));
        target += static_cast<float>(i - 3) * x.back();
      }
      y.push_back(target);
    }
  }
};
struct outcome {
  std::array<float, inputs + 1> values{};  // the weights and the bias
  double loss = 0;                         // before the last step
};

/// The program's own stream. Trireme works on another one, trireme::cuda::stream(): each waits for the other by an
/// event, and the host goes on.
class own_stream {
 public:
  own_stream() {
    expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    expect(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  own_stream(own_stream const&) = delete;
  own_stream& operator=(own_stream const&) = delete;
  ~own_stream() {
    (void)cudaEventDestroy(event_);
    (void)cudaStreamDestroy(stream_);
  }
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  /// What Trireme queues from now on begins after what is queued here.
  void before_trireme() { order(stream_, trireme::cuda::stream()); }  // +
  /// What is queued here from now on begins after what Trireme has queued.
  void after_trireme() { order(trireme::cuda::stream(), stream_); }  // +

 private:
  void order(cudaStream_t first, cudaStream_t then) {
    expect(cudaEventRecord(event_, first));
    expect(cudaStreamWaitEvent(then, event_, 0));
  }
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

template <class World>
outcome train(World& world) {
  using kernels = trireme::ops::on<trireme::cuda>;
  using device_tensor = trireme::tensor<float, trireme::cuda>;
  // This rank's samples: more of them on later ranks, because ranks need not have equal numbers.
  auto const begin_of = [&](int rank) { return samples * rank * rank / (world.size() * world.size()); };
  int const first = begin_of(world.rank()), last = begin_of(world.rank() + 1);
  table const mine(first, last);
  int const n = last - first;
  device_tensor x({n, inputs}), y({n}), errors({n}), loss({1});
  device_tensor weights({inputs}), bias({1}), of_weights({inputs}), of_bias({1});
  own_stream own;
  kernels::upload(x.view(), mine.x);
  kernels::upload(y.view(), mine.y);
  kernels::fill(weights.view(), 0);
  kernels::fill(bias.view(), 0);
  regression::batch const batch{x.view().address(), y.view().address(), errors.view().address(), n};
  regression::model const values{weights.view().address(), bias.view().address()};
  regression::model const gradients{of_weights.view().address(), of_bias.view().address()};

  std::vector<trireme::foreign_parameter<float, trireme::cuda>> parameters{
      {"weights", weights.view(), of_weights.view()}, {"bias", bias.view(), of_bias.view()}};  // +
  auto exchange = trireme::make_exchange(parameters, world);                                   // +
  trireme::optim::sgd const sgd{.learning_rate = rate, .momentum = 0};                         // +
  for (int step = 0; step < steps; ++step) {
    exchange.begin(n);    // + gradients become the mean over the samples of all ranks
    own.after_trireme();  // the kernels read the new values
    expect(regression::find_gradients(batch, values, gradients, loss.view().address(), own.get()));
    own.before_trireme();       // the exchange reads the gradients
    exchange.ready("weights");  // +
    exchange.ready("bias");     // +
    exchange.step(sgd);         // + waits for the sums, and updates the values
  }
  world.all_reduce(loss.view());  // + any tensor in CUDA memory
  outcome done;
  float sum = 0;
  kernels::download(std::span(done.values).first(inputs), weights.view());
  kernels::download(std::span(done.values).last(1), bias.view());
  kernels::download(std::span(&sum, 1), loss.view());
  done.loss = static_cast<double>(sum) / samples;
  return done;
}

/// The same on the host, without ranks, in double.
outcome train_on_host() {
  table const all(0, samples);
  std::array<double, inputs + 1> values{};
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    std::array<double, inputs + 1> gradients{};
    loss = 0;
    for (int s = 0; s < samples; ++s) {
      auto const* const x = all.x.data() + s * inputs;
      double error = values[inputs] - static_cast<double>(all.y[static_cast<std::size_t>(s)]);
      for (int i = 0; i < inputs; ++i) error += values[static_cast<std::size_t>(i)] * static_cast<double>(x[i]);
      for (int i = 0; i < inputs; ++i)
        gradients[static_cast<std::size_t>(i)] += 2 * error * static_cast<double>(x[i]) / samples;
      gradients[inputs] += 2 * error / samples;
      loss += error * error / samples;
    }
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= rate * gradients[i];
  }
  outcome done{.loss = loss};
  for (std::size_t i = 0; i < values.size(); ++i) done.values[i] = static_cast<float>(values[i]);
  return done;
}

int run(int ranks) {
  outcome there;
  trireme::launch(trireme::comm::threads{.ranks = ranks}, [&](auto& threads) {  // +
    auto world = trireme::comm::in_space<trireme::cuda>(threads);               // +
    auto const mine = train(world);
    if (world.rank() == 0) there = mine;
  });
  auto const here = train_on_host();
  double off = 0;
  bool same = std::abs(there.loss - here.loss) < 1e-4 * here.loss;
  for (std::size_t i = 0; i < here.values.size(); ++i) {
    auto const by = std::abs(static_cast<double>(there.values[i]) - static_cast<double>(here.values[i]));
    same = same && by < 1e-5;  // not so if it is NaN
    off = std::max(off, by);
  }
  fmt::print("{}: loss {:.6f}, on the host {:.6f}; weights differ by at most {:.1e}{}\n",
             trireme::how_many(ranks, "rank"), there.loss, here.loss, off, same ? "" : ", which is too much");
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int devices = 0;
  auto const code = cudaGetDeviceCount(&devices);
  if (code != cudaSuccess || devices == 0) {
    fmt::print(stderr, "cuda_own_kernel: there is no GPU here ({}); cuda_own_kernel_simt runs without one\n",
               code == cudaSuccess ? "CUDA finds no device" : cudaGetErrorString(code));
    return 77;
  }
  int const ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  if (ranks < 1 || ranks > 16) {
    fmt::print(stderr, "cuda_own_kernel: the number of ranks is 1 to 16, not \"{}\"\n", argv[1]);
    return 1;
  }
  try {
    return run(ranks);
  } catch (std::exception const& problem) {
    fmt::print(stderr, "cuda_own_kernel: {}\n", problem.what());
    return 1;
  }
}
