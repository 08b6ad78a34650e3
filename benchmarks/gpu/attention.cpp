// Attention by cuDNN on a GPU: how far it is from the definition in double at a small shape, and how long it takes at
// the shape of GPT-2 124M (heads of 64 columns, context 1024, causal). One JSON object a line.
//
//   g++ -std=c++20 -O2 -I include -isystem /usr/local/cuda/include -isystem FRONTEND benchmarks/gpu/attention.cpp
//       include/trireme/ops/cuda/cudnn.cpp -L/usr/local/cuda/lib64 -lcudart -ldl -o attention
//   attention [BATCH...]     the batches that are timed: 64 16 4 unless given
//
// TFLOP/s count half of the products of a causal mask, and 2.5 times the forward pass for the backward pass.
#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../../tests/support/plain_attention.hpp"
#include "trireme/ops/cuda/cudnn_launch.hpp"

namespace {

namespace kernels = trireme::ops::cuda_kernels;
using trireme::dtype;

void expect(cudaError_t code, char const* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}
void expect_attention(int code, char const* what) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s (%s)\n", what, cudaGetErrorString(static_cast<cudaError_t>(code)),
               kernels::cudnn_refusal().c_str());
  std::exit(1);
}

/// Why cuDNN did not take a call, fit for a string of JSON.
std::string refusal() {
  auto why = kernels::cudnn_refusal();
  for (auto& each : why)
    if (each == '"' || each == '\\' || static_cast<unsigned char>(each) < ' ') each = ' ';
  return why;
}

/// Memory of the device.
class memory {
 public:
  explicit memory(std::size_t bytes) : bytes_(bytes) {
    expect(cudaMalloc(&address_, bytes > 0 ? bytes : 1), "cudaMalloc");
    expect(cudaMemset(address_, 0xFF, bytes), "cudaMemset");  // NaN, so that what is not written shows
  }
  memory(memory const&) = delete;
  memory& operator=(memory const&) = delete;
  ~memory() { (void)cudaFree(address_); }
  [[nodiscard]] void* get() const { return address_; }
  template <class T>
  void put(std::vector<T> const& from) {
    expect(cudaMemcpy(address_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
  }
  template <class T>
  [[nodiscard]] std::vector<T> copy() const {
    std::vector<T> to(bytes_ / sizeof(T));
    expect(cudaMemcpy(to.data(), address_, to.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
    return to;
  }

 private:
  void* address_ = nullptr;
  std::size_t bytes_;
};

template <class T>
std::vector<T> normal(std::size_t n, double width, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> number(0, static_cast<float>(width));
  std::vector<T> made(n);
  for (auto& each : made) each = T(number(bits));
  return made;
}

/// A call with its memory.
struct problem {
  kernels::attention_call call;
  std::size_t rows, channels;
  memory qkv, y, lse, dy, dqkv;

  problem(dtype of, plain::attention_shape const& shape)
      : rows(static_cast<std::size_t>(shape.batch * shape.context)),
        channels(static_cast<std::size_t>(shape.heads * shape.width)),
        qkv(rows * channels * 6),
        y(rows * channels * 2),
        lse(rows * static_cast<std::size_t>(shape.heads) * 4),
        dy(rows * channels * 2),
        dqkv(rows * channels * 6) {
    call.of = of;
    call.batch = shape.batch;
    call.context = shape.context;
    call.heads = shape.heads;
    call.width = shape.width;
    call.causal = shape.causal;
    call.window = shape.window;
    call.scale = shape.scale;
    call.qkv = qkv.get();
    call.y = y.get();
    call.lse = static_cast<float*>(lse.get());
    call.dy = dy.get();
    call.dqkv = dqkv.get();
  }
};

/// ||a - b|| / ||b||, of `columns` numbers of each row of `row` numbers, from its number `first` on.
template <class T>
double distance(std::vector<T> const& a, std::vector<double> const& b, std::size_t row, std::size_t first,
                std::size_t columns) {
  double off = 0, all = 0;
  for (std::size_t from = first; from < a.size(); from += row) {
    for (auto at = from; at < from + columns; ++at) {
      auto const by = static_cast<double>(a[at]) - b[at];
      off += by * by;
      all += b[at] * b[at];
    }
  }
  return std::sqrt(off / all);
}

template <class T>
bool compare(dtype type, char const* name, plain::attention_shape const& shape) {
  problem on_device(type, shape);
  auto const qkv = normal<T>(on_device.rows * on_device.channels * 3, 1, 1);
  auto const dy = normal<T>(on_device.rows * on_device.channels, 1, 2);
  on_device.qkv.put(qkv);
  on_device.dy.put(dy);
  auto const channels = on_device.channels;
  std::vector<double> y(on_device.rows * channels), lse(on_device.rows * static_cast<std::size_t>(shape.heads)),
      dqkv(qkv.size());
  plain::attention(shape, qkv.data(), y.data(), lse.data());
  plain::attention_backward(shape, qkv.data(), y.data(), lse.data(), dy.data(), dqkv.data());

  bool right = true;
  for (bool const ordered : {true, false}) {
    auto& call = on_device.call;
    call.ordered = ordered;
    if (!kernels::cudnn_takes(call)) {
      std::printf("{\"error of\": \"%s\", \"type\": \"%s\", \"ordered\": %s, \"refused\": \"%s\"}\n", name,
                  type == dtype::bf16 ? "bf16" : "f16", ordered ? "true" : "false", refusal().c_str());
      std::fflush(stdout);
      return false;
    }
    memory const forward(kernels::cudnn_workspace(call, false)), backward(kernels::cudnn_workspace(call, true));
    expect_attention(kernels::cudnn_attention(call, forward.get()), "forward");
    expect_attention(kernels::cudnn_attention_backward(call, backward.get()), "backward");
    expect(cudaDeviceSynchronize(), "cuDNN");
    auto const got = on_device.dqkv.copy<T>();
    expect_attention(kernels::cudnn_attention_backward(call, backward.get()), "backward");
    expect(cudaDeviceSynchronize(), "cuDNN");
    auto const again = on_device.dqkv.copy<T>();
    bool const same = std::memcmp(got.data(), again.data(), got.size() * sizeof(T)) == 0;
    auto const heads = static_cast<std::size_t>(shape.heads);
    double const errors[] = {distance(on_device.y.copy<T>(), y, channels, 0, channels),
                             distance(on_device.lse.copy<float>(), lse, heads, 0, heads),
                             distance(got, dqkv, 3 * channels, 0, channels),
                             distance(got, dqkv, 3 * channels, channels, channels),
                             distance(got, dqkv, 3 * channels, 2 * channels, channels)};
    std::printf(
        "{\"error of\": \"%s\", \"type\": \"%s\", \"ordered\": %s, \"y\": %.2e, \"lse\": %.2e, \"dq\": %.2e, "
        "\"dk\": %.2e, \"dv\": %.2e, \"twice the same bits\": %s}\n",
        name, type == dtype::bf16 ? "bf16" : "f16", ordered ? "true" : "false", errors[0], errors[1], errors[2],
        errors[3], errors[4], same ? "true" : "false");
    std::fflush(stdout);
    for (double const each : errors) right = right && each < 0.02;  // false for NaN too
    right = right && (same || !ordered);
  }
  return right;
}

/// Milliseconds a call of f(), the mean of `rounds` after three that do not count.
template <class F>
double milliseconds(cudaStream_t stream, int rounds, F f) {
  cudaEvent_t from, to;
  expect(cudaEventCreate(&from), "event");
  expect(cudaEventCreate(&to), "event");
  for (int i = 0; i < 3; ++i) f();
  expect(cudaEventRecord(from, stream), "event");
  for (int i = 0; i < rounds; ++i) f();
  expect(cudaEventRecord(to, stream), "event");
  expect(cudaEventSynchronize(to), "cuDNN");
  float time = 0;
  expect(cudaEventElapsedTime(&time, from, to), "event");
  (void)cudaEventDestroy(from);
  (void)cudaEventDestroy(to);
  return static_cast<double>(time) / rounds;
}

void time_of(std::int64_t batch) {
  plain::attention_shape const shape{
      .batch = batch, .context = 1024, .heads = 12, .width = 64, .causal = true, .window = 0, .scale = 0.125};
  problem on_device(dtype::bf16, shape);
  on_device.qkv.put(normal<trireme::bfloat16>(on_device.rows * on_device.channels * 3, 1, 3));
  on_device.dy.put(normal<trireme::bfloat16>(on_device.rows * on_device.channels, 1, 4));
  cudaStream_t stream = nullptr;
  expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  on_device.call.stream = stream;
  auto const products = static_cast<double>(batch * shape.heads * shape.context * shape.context * shape.width);
  auto const print = [&](char const* pass, bool ordered, double flops, double plan, auto run) {
    auto const bytes = kernels::cudnn_workspace(on_device.call, pass[0] == 'b');
    memory const workspace(bytes);
    auto const ms = milliseconds(stream, 20, [&] { expect_attention(run(on_device.call, workspace.get()), pass); });
    std::printf(
        "{\"pass\": \"%s\", \"ordered\": %s, \"type\": \"bf16\", \"batch\": %lld, \"heads\": 12, \"context\": 1024, "
        "\"width\": 64, \"causal\": true, \"ms\": %.4f, \"TFLOP/s\": %.1f, \"workspace MB\": %.1f, "
        "\"both plans s\": %.2f}\n",
        pass, ordered ? "true" : "false", static_cast<long long>(batch), ms, flops / ms * 1e-9,
        static_cast<double>(bytes) * 1e-6, plan);
    std::fflush(stdout);
  };
  for (bool const ordered : {true, false}) {
    on_device.call.ordered = ordered;
    auto const start = std::chrono::steady_clock::now();
    if (!kernels::cudnn_takes(on_device.call)) {
      std::printf("{\"pass\": \"both\", \"ordered\": %s, \"batch\": %lld, \"refused\": \"%s\"}\n",
                  ordered ? "true" : "false", static_cast<long long>(batch), refusal().c_str());
      continue;
    }
    auto const plan = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (ordered) print("forward", ordered, 2 * products, plan, kernels::cudnn_attention);
    print("backward", ordered, 5 * products, plan, kernels::cudnn_attention_backward);
  }
  (void)cudaStreamDestroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  int device = 0;
  cudaDeviceProp of_device{};
  expect(cudaGetDevice(&device), "no GPU");
  expect(cudaGetDeviceProperties(&of_device, device), "no GPU");
  std::printf("{\"device\": \"%s\", \"cuDNN\": %lld, \"refusal\": \"%s\"}\n", of_device.name,
              static_cast<long long>(kernels::cudnn_version()), refusal().c_str());
  std::fflush(stdout);
  using trireme::bfloat16, trireme::float16;
  plain::attention_shape const small{
      .batch = 2, .context = 128, .heads = 4, .width = 64, .causal = true, .window = 0, .scale = 0.125};
  auto window = small, both = small, odd = small;
  window.window = 40;
  both.causal = false;
  odd.context = 192;
  bool right = compare<bfloat16>(dtype::bf16, "causal", small);
  right = compare<float16>(dtype::f16, "causal", small) && right;
  right = compare<bfloat16>(dtype::bf16, "window of 40", window) && right;
  right = compare<bfloat16>(dtype::bf16, "no mask", both) && right;
  right = compare<bfloat16>(dtype::bf16, "context of 192", odd) && right;
  if (argc > 1) {
    for (int i = 1; i < argc; ++i) time_of(std::atoll(argv[i]));
  } else {
    for (std::int64_t const batch : {64, 16, 4}) time_of(batch);
  }
  if (!right) std::fprintf(stderr, "cuDNN is too far from the definition, or refuses a shape\n");
  return right ? 0 : 1;
}
