// Attention by the kernels of this library on a GPU, without cuDNN: how long a call takes, in milliseconds and TFLOP/s.
// One JSON object a line. TFLOP/s count half of the products of a causal mask, and 2.5 times those of the forward pass
// for the backward pass.
//   own_attention [only rows whose name contains this text]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/hash.hpp"
#include "trireme/ops/cuda.hpp"

using namespace trireme;
using kernels = ops::on<cuda>;

namespace {

void expect(::cudaError_t code, char const* what) { trireme::detail::expect_cuda(code, what); }

/// Milliseconds of one call on this thread's stream: the median of 7 rounds, each at least 3 ms long.
double milliseconds(std::function<void()> const& call) {
  ::cudaEvent_t begun = nullptr, ended = nullptr;
  expect(::cudaEventCreate(&begun), "making an event");
  expect(::cudaEventCreate(&ended), "making an event");
  auto const round = [&](int calls) {
    expect(::cudaEventRecord(begun, cuda::stream()), "recording an event");
    for (int k = 0; k < calls; ++k) call();
    expect(::cudaEventRecord(ended, cuda::stream()), "recording an event");
    cuda::finish();
    float time = 0;
    expect(::cudaEventElapsedTime(&time, begun, ended), "asking for a time");
    return static_cast<double>(time) / calls;
  };
  (void)round(1);
  auto const calls = std::clamp(static_cast<int>(3 / round(1)), 1, 50);
  std::vector<double> rounds;
  for (int k = 0; k < 7; ++k) rounds.push_back(round(calls));
  std::ranges::nth_element(rounds, rounds.begin() + 3);
  (void)::cudaEventDestroy(begun);
  (void)::cudaEventDestroy(ended);
  return rounds[3];
}

/// Elements between -1 and 1.
template <class T>
tensor<T, cuda> random_elements(std::int64_t n, std::uint64_t seed) {
  tensor<T, cuda> made(shape{n});
  std::vector<T> some(static_cast<std::size_t>(std::min<std::int64_t>(n, 1 << 20)));
  for (std::size_t i = 0; i < some.size(); ++i)
    some[i] = static_cast<T>(static_cast<float>(mix(i + seed) % 65536) / 32768 - 1);
  for (std::int64_t at = 0; at < n; at += static_cast<std::int64_t>(some.size())) {
    auto const count = std::min(n - at, static_cast<std::int64_t>(some.size()));
    kernels::upload(made.view().flat(at, count), std::span<T const>(some).first(static_cast<std::size_t>(count)));
  }
  return made;
}

std::string only;

template <class T>
void time_of(char const* name, ops::attention_shape const& what, double dropout = 0) {
  if (std::string(name).find(only) == std::string::npos) return;
  auto const rows = what.batch * what.context;
  auto const qkv = random_elements<T>(rows * 3 * what.channels, 1);
  auto const dy = random_elements<T>(rows * what.channels, 2);
  tensor<T, cuda> y(shape{rows * what.channels}), dqkv(shape{rows * 3 * what.channels});
  tensor<ops::accumulate_t<T>, cuda> lse(shape{rows * what.heads});
  std::vector<std::int64_t> ids(static_cast<std::size_t>(what.batch));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  tensor<std::int64_t, cuda> ids_there(shape{what.batch});
  kernels::upload(ids_there.view(), ids);
  dropout_site_in<cuda> const site{dropout, {1, 2}, 3, ids_there.view()};
  arena<cuda> scratch;
  auto const forward = milliseconds([&] { kernels::attention(y.view(), lse, qkv, what, scratch, site); });
  auto const backward =
      milliseconds([&] { kernels::attention_backward(dqkv.view(), dy, y, lse, qkv, what, scratch, site); });
  auto const products = (what.mask.causal ? 2.0 : 4.0) * static_cast<double>(rows * what.context * what.channels);
  std::printf(
      "{\"row\": \"%s\", \"batch\": %lld, \"context\": %lld, \"heads\": %lld, \"width\": %lld, \"causal\": %s, "
      "\"dropout\": %.2f, \"forward ms\": %.4f, \"TFLOP/s\": %.1f, \"backward ms\": %.4f, "
      "\"backward TFLOP/s\": %.1f}\n",
      name, static_cast<long long>(what.batch), static_cast<long long>(what.context),
      static_cast<long long>(what.heads), static_cast<long long>(what.head_channels()),
      what.mask.causal ? "true" : "false", dropout, forward, products / forward * 1e-9, backward,
      2.5 * products / backward * 1e-9);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  (void)::setenv("TRIREME_ATTENTION", "own", 1);
  if (argc > 1) only = argv[1];
  attention_mask const causal{true, 0}, none{false, 0};
  time_of<bfloat16>("bf16 gpt2", {.batch = 64, .context = 1024, .heads = 12, .channels = 768, .mask = causal});
  time_of<bfloat16>("bf16 gpt2", {.batch = 4, .context = 1024, .heads = 12, .channels = 768, .mask = causal});
  time_of<bfloat16>("bf16 gpt2", {.batch = 64, .context = 1024, .heads = 12, .channels = 768, .mask = none});
  time_of<bfloat16>("bf16 dropout", {.batch = 64, .context = 1024, .heads = 12, .channels = 768, .mask = causal}, 0.1);
  time_of<bfloat16>("bf16 wide", {.batch = 8, .context = 4096, .heads = 16, .channels = 2048, .mask = causal});
  time_of<float>("f32 gpt2", {.batch = 8, .context = 1024, .heads = 12, .channels = 768, .mask = causal});
  return 0;
}
