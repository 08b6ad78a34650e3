// Times of the kernels other than matrix products: one JSON object per row, medians.
//   kernels_layers [rounds] [substring of the kernels to run]
// Attention counts the causal half: 4 D T (T + 1) / 2 operations per head forward, 2.5 times that backward.
// GB/s count the necessary traffic: each view once, in each direction in which it is used.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/ops/host.hpp"

using namespace trireme;
using kernels = ops::on<host>;

namespace {

int rounds = 11;
std::string_view only;

template <class Body>
double median_seconds(Body&& body) {
  using clock = std::chrono::steady_clock;
  body();
  // Short kernels run several times per round, so that the clock's resolution does not matter.
  auto const start = clock::now();
  body();
  double const once = std::chrono::duration<double>(clock::now() - start).count();
  int const times = std::max(1, static_cast<int>(2e-3 / std::max(once, 1e-7)));
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    auto const from = clock::now();
    for (int i = 0; i < times; ++i) body();
    seconds.push_back(std::chrono::duration<double>(clock::now() - from).count() / times);
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[static_cast<std::size_t>(rounds) / 2];
}

template <class T>
tensor<T> numbers(shape extents) {
  tensor<T> out(extents);
  kernels::initialise(out.view(), initial{initial::distribution::normal, 1.0}, 1, 2);
  return out;
}

template <class Body>
void report(std::string_view kernel, std::string const& size, dtype precision, std::string_view unit, double amount,
            Body&& body) {
  if (kernel.find(only) == std::string_view::npos) return;
  double const seconds = median_seconds(body);
  std::printf("{\"kernel\": \"%.*s\", \"shape\": \"%s\", \"precision\": \"%.*s\", \"%.*s\": %.1f, \"ms\": %.4f}\n",
              static_cast<int>(kernel.size()), kernel.data(), size.c_str(), static_cast<int>(name_of(precision).size()),
              name_of(precision).data(), static_cast<int>(unit.size()), unit.data(), amount / seconds * 1e-9,
              seconds * 1e3);
  std::fflush(stdout);
}

template <class T>
void attention(ops::attention_shape what, double dropped = 0) {
  using A = ops::accumulate_t<T>;
  auto const rows = what.batch * what.context;
  auto const qkv = numbers<T>({rows, 3 * what.channels});
  auto const dy = numbers<T>({rows, what.channels});
  tensor<T> y(shape{rows, what.channels});
  tensor<T> dqkv(shape{rows, 3 * what.channels});
  tensor<A> lse(shape{what.batch, what.heads, what.context});
  arena<host> scratch;
  std::vector<std::int64_t> const samples(static_cast<std::size_t>(what.batch), 5);
  ops::dropout_site const drop{dropped, {1, 2}, 3, samples};
  double const forward = 2.0 * static_cast<double>(rows * what.channels * (what.context + 1));
  auto const size = text("B=", what.batch, " T=", what.context, " H=", what.heads, " D=", what.head_channels(),
                         dropped > 0 ? " dropout" : "");
  report("attention forward", size, dtype_of<T>, "gflops", forward,
         [&] { kernels::attention(y.view(), lse, qkv, what, scratch, drop); });
  report("attention backward", size, dtype_of<T>, "gflops", 2.5 * forward,
         [&] { kernels::attention_backward(dqkv.view(), dy, y, lse, qkv, what, scratch, drop); });
}

template <class T>
void layers(std::int64_t rows, std::int64_t channels) {
  using A = ops::accumulate_t<T>;
  auto const x = numbers<T>({rows, channels});
  auto const dy = numbers<T>({rows, channels});
  auto const gain = numbers<T>({channels});
  auto const dx = numbers<T>({rows, channels});
  auto const dgain = numbers<A>({channels});
  auto const mean = numbers<A>({rows});
  auto const rstd = numbers<A>({rows});
  auto const size = text("(", rows, ", ", channels, ")");
  auto const bytes = static_cast<double>(rows * channels) * sizeof(T);
  report("gelu", size, dtype_of<T>, "gbps", 2 * bytes, [&] { kernels::activate(dx.view(), x, ops::activation::gelu); });
  report("gelu backward", size, dtype_of<T>, "gbps", 3 * bytes,
         [&] { kernels::activate_backward(dx.view(), dy, x, ops::activation::gelu); });
  report("layer norm forward", size, dtype_of<T>, "gbps", 2 * bytes,
         [&] { kernels::layer_norm(dx.view(), mean, rstd, x, gain, gain, 1e-5); });
  report("layer norm backward", size, dtype_of<T>, "gbps", 3 * bytes,
         [&] { kernels::layer_norm_backward(dx.view(), dgain, dgain, dy, x, mean, rstd, gain, false); });
  std::vector<std::int64_t> const samples{1, 2};
  report("dropout", size, dtype_of<T>, "gbps", 2 * bytes, [&] {
    kernels::dropout(dx.view(), {0.1, {1, 2}, 3, samples});
  });
}

template <class T>
void losses(std::int64_t rows, std::int64_t classes) {
  auto const logits = numbers<T>({rows, classes});
  tensor<std::int32_t> targets(shape{rows});
  kernels::fill(targets.view(), 7);
  report("cross-entropy", text("(", rows, ", ", classes, ")"), dtype_of<T>, "gbps",
         2.0 * static_cast<double>(rows * classes) * sizeof(T),
         [&] { kernels::cross_entropy(logits.view(), targets, 1e-3, true); });
}

void memory(std::int64_t n) {
  auto const value = numbers<float>({n});
  auto const first = numbers<float>({n});
  auto const second = numbers<float>({n});
  kernels::fill(second.view(), 1.0);
  auto const g0 = numbers<float>({n});
  auto const g1 = numbers<float>({n});
  auto const size = text(n);
  auto const count = static_cast<double>(n);
  ops::adamw_numbers const how{.learning_rate = 1e-9, .correction1 = 1, .correction2 = 1};
  std::vector<tensor_view<float const>> const one{g0};
  std::vector<tensor_view<float const>> const two{g0, g1};
  std::span<tensor_view<float> const> const nowhere;
  report("adamw", size, dtype::f32, "gbps", 28 * count, [&] {
    kernels::adamw(value.view(), first, second, ops::gradient_terms<float, host>{one, 1.0}, nowhere, how);
  });
  std::vector<tensor_view<float>> const both{value.view(), g1.view()};
  report("adamw of 2 terms to 1 more output", size, dtype::f32, "gbps", 36 * count, [&] {
    kernels::adamw(value.view(), first, second, ops::gradient_terms<float, host>{two, 1.0}, std::span(both).subspan(1),
                   how);
  });
  report("sgd with momentum", size, dtype::f32, "gbps", 20 * count, [&] {
    kernels::sgd(value.view(), first, ops::gradient_terms<float, host>{one, 1.0}, nowhere,
                 {.learning_rate = 1e-9, .momentum = 0.9});
  });
  for (auto const* each : {&g0, &g1}) kernels::fill(each->view(), 0.0);  // doubled repeatedly below
  std::vector<tensor_view<float>> const in_place{g0.view(), g1.view()};
  report("reduce 2 to 2 in place", size, dtype::f32, "gbps", 16 * count,
         [&] { kernels::reduce(std::span<tensor_view<float> const>(in_place), two); });
  auto const h0 = numbers<bfloat16>({n});
  auto const h1 = numbers<bfloat16>({n});
  std::vector<tensor_view<bfloat16 const>> const halves{h0, h1};
  std::vector<tensor_view<bfloat16>> const halves_out{h0.view(), h1.view()};
  report("reduce 2 to 2 in place", size, dtype::bf16, "gbps", 8 * count,
         [&] { kernels::reduce(std::span<tensor_view<bfloat16> const>(halves_out), halves); });
  report("convert", size, dtype::bf16, "gbps", 6 * count, [&] { kernels::copy(h0.view(), g0.view()); });
  exact_sum squares;
  report("sum of squares", size, dtype::f32, "gbps", 4 * count, [&] { kernels::sum_of_squares(g0.view(), squares); });
  bool all = true;
  report("finite", size, dtype::f32, "gbps", 4 * count, [&] { all = all && kernels::finite(g0.view()); });
  std::uint64_t hashes = 0;
  report("hash", size, dtype::f32, "gbps", 4 * count, [&] { hashes += kernels::hash(g0.view(), 1, 0); });
  tensor<std::int32_t> indices(shape{n / 100});
  tensor<float> values(shape{n / 100});
  report("select largest 1 %", size, dtype::f32, "gbps", 4 * count,
         [&] { kernels::select_largest(second.view(), indices.view(), values); });
  report("initialise", size, dtype::f32, "gbps", 4 * count, [&] {
    kernels::initialise(second.view(), initial{initial::distribution::normal, 1.0}, 1, 2);
  });
  if (!all || hashes == 0) std::puts("{\"note\": \"a kernel gave an impossible answer\"}");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) rounds = std::max(1, std::atoi(argv[1]));
  if (argc > 2) only = argv[2];
  attention<float>({8, 256, 6, 384});
  attention<float>({1, 1024, 12, 768});
  attention<bfloat16>({8, 256, 6, 384});
  attention<bfloat16>({1, 1024, 12, 768});
  attention<float>({8, 256, 6, 384}, 0.1);
  attention<double>({1, 256, 6, 384});
  layers<float>(2048, 384);
  layers<bfloat16>(2048, 384);
  losses<float>(512, 256);
  losses<float>(64, 50304);
  losses<bfloat16>(64, 50304);
  memory(1 << 18);
  memory(25 << 20);
}
