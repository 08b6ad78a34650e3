// Kernels of ops::on<cuda> in the shapes of a GPT-2 124M with 64 x 1024 tokens, timed by CUDA's events. Prints one JSON
// object per row: products with TFLOP/s, the others with GB/s, counting bytes read and written once, and the ratio to a
// copy by cudaMemcpyAsync in the same run.
//   kernels [only rows whose name contains this text]
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/hash.hpp"
#include "trireme/ops/cuda.hpp"

using namespace trireme;
using ops::activation;
using ops::orientation;
using kernels = ops::on<cuda>;

namespace {

void expect(::cudaError_t code, char const* what) { trireme::detail::expect_cuda(code, what); }

/// Microseconds of one call on this thread's stream: the median of 7 rounds, each at least 2 ms long.
double microseconds(std::function<void()> const& call) {
  ::cudaEvent_t begun = nullptr, ended = nullptr;
  expect(::cudaEventCreate(&begun), "making an event");
  expect(::cudaEventCreate(&ended), "making an event");
  auto const round = [&](int calls) {
    expect(::cudaEventRecord(begun, cuda::stream()), "recording an event");
    for (int k = 0; k < calls; ++k) call();
    expect(::cudaEventRecord(ended, cuda::stream()), "recording an event");
    cuda::finish();
    float milliseconds = 0;
    expect(::cudaEventElapsedTime(&milliseconds, begun, ended), "asking for a time");
    return 1e3 * static_cast<double>(milliseconds) / calls;
  };
  (void)round(2);
  auto const calls = std::clamp(static_cast<int>(2000 / round(2)), 2, 200);
  std::vector<double> rounds;
  for (int k = 0; k < 7; ++k) rounds.push_back(round(calls));
  std::ranges::nth_element(rounds, rounds.begin() + 3);
  (void)::cudaEventDestroy(begun);
  (void)::cudaEventDestroy(ended);
  return rounds[3];
}

/// Elements between -1 and 1, of which every 2^20 repeat: products of zeros would take less power, so less time.
template <class T>
tensor<T, cuda> random_elements(std::int64_t n) {
  static constexpr std::int64_t first = std::int64_t{1} << 20;
  tensor<T, cuda> made(shape{n});
  std::vector<T> some(static_cast<std::size_t>(std::min(n, first)));
  for (std::size_t i = 0; i < some.size(); ++i)
    some[i] = static_cast<T>(static_cast<float>(mix(i) % 65536) / 32768 - 1);
  kernels::upload(made.view().flat(0, static_cast<std::int64_t>(some.size())), some);
  for (std::int64_t have = first; have < n; have *= 2) {
    auto const more = std::min(have, n - have);
    kernels::copy(made.view().flat(have, more), tensor_view<T const, cuda>(made).flat(0, more));
  }
  return made;
}

class rows {
 public:
  explicit rows(std::string_view only) : only_(only) {
    auto const n = std::int64_t{1} << 30;
    tensor<std::byte, cuda> const from(shape{n}), to(shape{n});
    auto const time = microseconds([&] {
      expect(::cudaMemcpyAsync(to.view().address(), from.view().address(), static_cast<std::size_t>(n),
                               cudaMemcpyDeviceToDevice, cuda::stream()),
             "copying");
    });
    copy_ = 2 * static_cast<double>(n) / time / 1e3;
    std::printf("{\"kernel\": \"cudaMemcpyAsync on the device\", \"microseconds\": %.2f, \"gb_per_s\": %.0f}\n", time,
                copy_);
    std::fflush(stdout);
  }
  [[nodiscard]] bool wants(std::string_view kernel) const { return kernel.find(only_) != std::string_view::npos; }
  void memory(std::string const& kernel, double bytes, std::function<void()> const& call) const {
    if (!wants(kernel)) return;
    auto const time = microseconds(call);
    auto const rate = bytes / time / 1e3;
    std::printf("{\"kernel\": \"%s\", \"microseconds\": %.2f, \"gb_per_s\": %.0f, \"of_copy\": %.3f}\n", kernel.c_str(),
                time, rate, rate / copy_);
    std::fflush(stdout);
  }
  void product(std::string const& kernel, std::int64_t m, std::int64_t k, std::int64_t n,
               std::function<void()> const& call) const {
    if (!wants(kernel)) return;
    auto const time = microseconds(call);
    std::printf(
        "{\"kernel\": \"%s\", \"m\": %lld, \"k\": %lld, \"n\": %lld, \"microseconds\": %.2f, \"tflop_per_s\": "
        "%.1f}\n",
        kernel.c_str(), static_cast<long long>(m), static_cast<long long>(k), static_cast<long long>(n), time,
        2e-6 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n) / time);
    std::fflush(stdout);
  }

 private:
  std::string_view only_;
  double copy_ = 0;
};

/// The three products of a layer in bfloat16 with gradients in float: y (m, n) = x (m, k) w, whose rows are `row` long.
void layer(rows const& out, char const* name, std::int64_t m, std::int64_t k, std::int64_t n, activation act, bool adds,
           orientation way = orientation::in_out, std::int64_t row = 0) {
  auto const titled = [&](char const* what) { return text("product ", name, ' ', what); };
  if (!out.wants(titled("forward")) && !out.wants(titled("dX")) && !out.wants(titled("dX of GELU")) &&
      !out.wants(titled("dW")) && !out.wants(titled("dW and db")))
    return;
  if (row == 0) row = n;
  bool const in_out = way == orientation::in_out;
  auto const shape_of_w = in_out ? shape{k, n} : shape{n, k};
  auto const x = random_elements<bfloat16>(m * k), w = random_elements<bfloat16>(k * n);
  auto const bias = random_elements<bfloat16>(n), y = random_elements<bfloat16>(m * row);
  auto const other = random_elements<bfloat16>(m * std::max(row, k)), dx = random_elements<bfloat16>(m * k);
  auto const dw = random_elements<float>(k * n), db = random_elements<float>(n);
  ops::weights<bfloat16, cuda> weight(w.view().reshaped(shape_of_w), way);
  auto const like_y = other.view().flat(0, m * row), like_x = other.view().flat(0, m * k);
  ops::linear_epilogue<bfloat16, cuda> epilogue;
  epilogue.act = act;
  if (in_out) epilogue.bias = bias;
  if (act != activation::none) epilogue.before_activation = like_y;
  if (adds) epilogue.residual = like_y;
  out.product(titled("forward"), m, k, n, [&] { kernels::linear(y.view(), x, weight, epilogue); });
  out.product(titled("dX"), m, k, n, [&] { kernels::linear_backward_input(dx.view(), y, weight); });
  if (k == 3072) {
    out.product(titled("dX of GELU"), m, k, n, [&] {
      kernels::linear_backward_input(dx.view(), y, weight, {.act = activation::gelu, .before_activation = like_x});
    });
  }
  auto const x_read = tensor_view<bfloat16 const, cuda>(x);
  out.product(titled("dW"), m, k, n,
              [&] { kernels::linear_backward_weight(dw.view().reshaped(shape_of_w), {}, x_read, y, way); });
  if (in_out) {
    out.product(titled("dW and db"), m, k, n,
                [&] { kernels::linear_backward_weight(dw.view().reshaped(shape_of_w), db, x_read, y, way); });
  }
}

void products(rows const& out) {
  std::int64_t const m = 65536, c = 768;
  layer(out, "qkv", m, c, 3 * c, activation::none, false);
  layer(out, "attention output", m, c, c, activation::none, true);
  layer(out, "mlp up", m, c, 4 * c, activation::gelu, false);
  layer(out, "mlp down", m, 4 * c, c, activation::none, true);
  layer(out, "logits", 8192, c, 50257, activation::none, false, orientation::out_in, 50304);
  layer(out, "logits of 50256 words", 8192, c, 50256, activation::none, false, orientation::out_in, 50304);
  layer(out, "logits of 50304 words", 8192, c, 50304, activation::none, false, orientation::out_in);
  layer(out, "square", 8192, 8192, 8192, activation::none, false);
}

/// Microseconds that the host takes for one call; `calls` are fewer than a stream takes before a call waits.
void on_the_host(rows const& out, char const* what, int calls, std::function<void()> const& call) {
  if (!out.wants(text("host: ", what))) return;
  call();
  cuda::finish();
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    auto const begun = std::chrono::steady_clock::now();
    for (int k = 0; k < calls; ++k) call();
    std::chrono::duration<double, std::micro> const passed = std::chrono::steady_clock::now() - begun;
    least = std::min(least, passed.count() / calls);
    cuda::finish();
  }
  std::printf("{\"kernel\": \"host: %s\", \"microseconds\": %.2f}\n", what, least);
  std::fflush(stdout);
}

void queueing(rows const& out) {
  std::int64_t const m = 4096, c = 768;
  auto const x = random_elements<bfloat16>(m * c), w = random_elements<bfloat16>(c * c);
  auto const y = random_elements<bfloat16>(m * c), bias = random_elements<bfloat16>(c);
  ops::weights<bfloat16, cuda> weight(w.view().reshaped({c, c}), orientation::in_out);
  auto const small = x.view().flat(0, 64 * c);
  on_the_host(out, "asking for the stream", 500, [] { (void)cuda::stream(); });
  on_the_host(out, "queueing a kernel of 64 elements", 300,
              [&] { kernels::activate(y.view().flat(0, 64), x.view().flat(0, 64), activation::relu); });
  on_the_host(out, "queueing a product (4096, 768, 768)", 300, [&] { kernels::linear(y.view(), x, weight); });
  on_the_host(out, "queueing a product (4096, 768, 768) with bias", 300,
              [&] { kernels::linear(y.view(), x, weight, {bias}); });
  on_the_host(out, "queueing a product (64, 768, 768)", 300,
              [&] { kernels::linear(y.view().flat(0, 64 * c), small, weight); });
}

void sums_of_columns(rows const& out) {
  auto const of = [&](std::int64_t m, std::int64_t n, std::int64_t row) {
    auto const kernel = text("sums of columns (", m, ", ", n, ") bf16");
    if (!out.wants(kernel)) return;
    auto const dy = random_elements<bfloat16>(m * row);
    auto const db = random_elements<float>(n);
    auto* const scratch =
        ops::detail::cuda_scratch("column_sums", ops::cuda_kernels::column_sums_bytes(dtype::bf16, m, n));
    out.memory(kernel, 2.0 * static_cast<double>(m * n), [&] {
      ops::detail::expect_cuda(
          "column_sums", ops::cuda_kernels::column_sums(cuda::stream(), dtype::f32, db.view().address(), dtype::bf16,
                                                        dy.view().address(), m, n, row, scratch));
    });
  };
  for (std::int64_t const n : {768, 2304, 3072}) of(65536, n, n);
  of(8192, 50257, 50304);
}

template <class T>
void copies(rows const& out) {
  auto const kernel = text("copy ", name_of(dtype_of<T>));
  if (!out.wants(kernel)) return;
  std::int64_t const n = (std::int64_t{1} << 29) / static_cast<std::int64_t>(sizeof(T));
  auto const x = random_elements<T>(n), y = random_elements<T>(n);
  out.memory(kernel, 2.0 * static_cast<double>(n) * sizeof(T), [&] {
    ops::detail::expect_cuda("copy", ops::cuda_kernels::copy(cuda::stream(), dtype_of<T>, y.view().address(),
                                                             dtype_of<T>, x.view().address(), n));
  });
}

void elements(rows const& out) {
  copies<float>(out);
  copies<bfloat16>(out);
  std::int64_t const n = 65536LL * 3072;
  if (out.wants("gelu bf16") || out.wants("gelu backward bf16") || out.wants("bias, gelu and residual bf16")) {
    auto const x = random_elements<bfloat16>(n), y = random_elements<bfloat16>(n), dx = random_elements<bfloat16>(n);
    auto const count = static_cast<double>(n);
    out.memory("gelu bf16", 4 * count, [&] { kernels::activate(y.view(), x, activation::gelu); });
    out.memory("gelu backward bf16", 6 * count, [&] { kernels::activate_backward(dx.view(), y, x, activation::gelu); });
    ops::cuda_kernels::product_finish rest;
    rest.of = rest.sums_type = dtype::bf16;
    rest.rows = 65536;
    rest.columns = rest.row = rest.sums_row = 3072;
    rest.sums = x.view().address();
    rest.to = dx.view().address();
    rest.bias = y.view().address();
    rest.act = activation::gelu;
    rest.residual = y.view().address();
    out.memory("bias, gelu and residual bf16", 6 * count, [&] {
      ops::detail::expect_cuda("finish_product", ops::cuda_kernels::finish_product(cuda::stream(), rest));
    });
  }
  if (!out.wants("adamw f32 with bf16 output, together")) return;
  std::int64_t const parameters = 124'439'808;
  auto const value = random_elements<float>(parameters), gradient = random_elements<float>(parameters);
  tensor<float, cuda> const first(shape{parameters}), second(shape{parameters});
  kernels::fill(first.view(), 0);
  kernels::fill(second.view(), 0);
  tensor<bfloat16, cuda> const copy(shape{parameters});
  tensor_view<float const, cuda> const terms[] = {gradient};
  tensor_view<bfloat16, cuda> const outputs[] = {copy};
  out.memory("adamw f32 with bf16 output", 30.0 * static_cast<double>(parameters), [&] {
    kernels::adamw(value.view(), first, second, gradient_terms<float, cuda>{terms, 1.0},
                   std::span<tensor_view<bfloat16, cuda> const>(outputs),
                   {.learning_rate = 1e-4, .weight_decay = 0.1, .correction1 = 0.1, .correction2 = 0.001});
  });

  // The same parameters as the 148 tensors of GPT-2, in one kernel.
  std::int64_t const c = 768;
  std::vector<std::int64_t> sizes = {50257 * c, 1024 * c, c, c};
  for (int k = 0; k < 12; ++k)
    for (auto const each : {c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c})
      sizes.push_back(each);
  out.memory("adamw f32 with bf16 output, together", 30.0 * static_cast<double>(parameters), [&] {
    ops::update_batch<cuda> batch;
    std::int64_t at = 0;
    for (auto const size : sizes) {
      tensor_view<float const, cuda> const term[] = {gradient.view().flat(at, size)};
      tensor_view<bfloat16, cuda> const output[] = {copy.view().flat(at, size)};
      kernels::adamw(value.view().flat(at, size), first.view().flat(at, size), second.view().flat(at, size),
                     gradient_terms<float, cuda>{term, 1.0}, std::span<tensor_view<bfloat16, cuda> const>(output),
                     {.learning_rate = 1e-4, .weight_decay = 0.1, .correction1 = 0.1, .correction2 = 0.001});
      at += size;
    }
    batch.finish();
  });
}

void norms(rows const& out) {
  auto const of = [&](std::int64_t m, std::int64_t c) {
    auto const titled = [&](char const* what) { return text(what, " (", m, ", ", c, ") bf16"); };
    if (!out.wants(titled("layer_norm")) && !out.wants(titled("layer_norm backward")) &&
        !out.wants(titled("layer_norm backward, added")) && !out.wants(titled("rms_norm")) &&
        !out.wants(titled("rms_norm backward")))
      return;
    auto const x = random_elements<bfloat16>(m * c), dy = random_elements<bfloat16>(m * c);
    auto const y = random_elements<bfloat16>(m * c);
    auto const gain = random_elements<bfloat16>(c), bias = random_elements<bfloat16>(c);
    tensor<float, cuda> const mean(shape{m}), rstd(shape{m});
    auto const dgain = random_elements<float>(c), dbias = random_elements<float>(c);
    auto const bytes = 2.0 * static_cast<double>(m * c);  // of one tensor
    out.memory(titled("layer_norm"), 2 * bytes,
               [&] { kernels::layer_norm(y.view(), mean, rstd, x, gain, bias, 1e-5); });
    out.memory(titled("layer_norm backward"), 3 * bytes,
               [&] { kernels::layer_norm_backward(y.view(), dgain, dbias, dy, x, mean, rstd, gain, false); });
    out.memory(titled("layer_norm backward, added"), 4 * bytes,
               [&] { kernels::layer_norm_backward(y.view(), dgain, dbias, dy, x, mean, rstd, gain, true); });
    out.memory(titled("rms_norm"), 2 * bytes, [&] { kernels::rms_norm(y.view(), rstd, x, gain, 1e-5); });
    out.memory(titled("rms_norm backward"), 3 * bytes,
               [&] { kernels::rms_norm_backward(y.view(), dgain, dy, x, rstd, gain, false); });
  };
  of(65536, 768);
  of(32768, 1600);
  of(16384, 4096);
  of(8192, 8192);
}

void embeddings(rows const& out) {
  std::int64_t const samples = 64, context = 1024, c = 768, words = 50257;
  std::int64_t const n = samples * context;
  if (!out.wants("embed") && !out.wants("embed backward, words as in text") &&
      !out.wants("embed backward, a third of the tokens one word"))
    return;
  auto const table = random_elements<bfloat16>(words * c), positions = random_elements<bfloat16>(context * c);
  auto const y = random_elements<bfloat16>(n * c);
  auto const dtable = random_elements<float>(words * c), dpositions = random_elements<float>(context * c);
  shape const of_table{words, c}, of_positions{context, c};
  // The k-th most frequent word is drawn about 1 / k as often as the first.
  std::vector<std::int32_t> drawn(static_cast<std::size_t>(n));
  auto const unit = [](std::size_t i) { return static_cast<double>(mix(i) >> 11) * 0x1p-53; };
  for (std::size_t i = 0; i < drawn.size(); ++i)
    drawn[i] = static_cast<std::int32_t>(std::pow(static_cast<double>(words), unit(i))) - 1;
  tensor<std::int32_t, cuda> const tokens(shape{samples, context});
  auto const bytes = 2.0 * static_cast<double>(n * c);  // of y
  auto const backward = [&](char const* kernel) {
    kernels::upload(tokens.view(), drawn);
    auto distinct = drawn;
    std::ranges::sort(distinct);
    auto const found = static_cast<double>(distinct.size() - std::ranges::unique(distinct).size());
    // dy is read for words and for positions; rows of gradients in float are read and written.
    out.memory(kernel, 2 * bytes + 8.0 * static_cast<double>(c) * (found + static_cast<double>(context)), [&] {
      kernels::embed_backward(dtable.view().reshaped(of_table), dpositions.view().reshaped(of_positions), y.view(),
                              tokens);
    });
  };
  kernels::upload(tokens.view(), drawn);
  out.memory("embed", 2 * bytes, [&] {
    kernels::embed(y.view(), tokens, table.view().reshaped(of_table), positions.view().reshaped(of_positions));
  });
  backward("embed backward, words as in text");
  for (std::size_t i = 0; i < drawn.size(); i += 3) drawn[i] = 13;
  backward("embed backward, a third of the tokens one word");
}

void losses_and_heads(rows const& out) {
  // The kernels alone, without the host's wait for the loss.
  auto const cross_entropy = [&](std::int64_t words, std::int64_t row, bool gradient) {
    std::int64_t const n = 8192;
    auto const kernel = text("cross_entropy (", n, ", ", words, " of ", row, ") bf16", gradient ? "" : ", loss only");
    if (!out.wants(kernel)) return;
    auto const logits = random_elements<bfloat16>(n * row);
    std::vector<std::int32_t> classes(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < classes.size(); ++i)
      classes[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(words));
    tensor<std::int32_t, cuda> const targets(shape{n});
    kernels::upload(targets.view(), classes);
    tensor<double, cuda> const losses(shape{n});
    tensor<std::uint64_t, cuda> const sums(shape{3});
    kernels::fill(sums.view(), 0);
    ops::cuda_kernels::cross_entropy_call call;
    call.of = dtype::bf16;
    call.logits = logits.view().address();
    call.rows = n;
    call.row_length = row;
    call.classes = words;
    call.targets = targets.view().address();
    call.weight = 1.0 / 65536;
    call.gradient = gradient;
    call.losses = losses.view().address();
    call.out = reinterpret_cast<ops::cuda_kernels::loss_numbers*>(sums.view().address());
    out.memory(kernel, (gradient ? 4.0 : 2.0) * static_cast<double>(n * words), [&] {
      ops::detail::expect_cuda("cross_entropy", ops::cuda_kernels::cross_entropy(cuda::stream(), call));
    });
  };
  cross_entropy(50257, 50304, true);
  cross_entropy(50257, 50304, false);
  cross_entropy(50257, 50257, true);
  cross_entropy(128256, 128256, true);

  std::int64_t const rows = 16384;
  ops::head_layout const how{1024, 32, 8, 128};
  auto const title = [&](char const* kernel) { return text(kernel, " (16 x 1024, 32 and 8 heads of 128) bf16"); };
  if (out.wants(title("arrange_heads")) || out.wants(title("arrange_heads_backward")) ||
      out.wants(title("normalise_heads")) || out.wants(title("normalise_heads_backward"))) {
    auto const x = random_elements<bfloat16>(rows * how.columns()), y = random_elements<bfloat16>(x.size());
    auto const qkv = random_elements<bfloat16>(rows * 3 * how.heads * how.width);
    auto const table = random_elements<float>(how.context * how.width);
    auto const rstd = random_elements<float>(rows * (how.heads + how.key_heads));
    auto const gain = random_elements<bfloat16>(how.width);
    auto const dgain = random_elements<float>(2 * how.width);
    auto const size = static_cast<double>(x.size());
    auto const arranged = 2 * (size + static_cast<double>(qkv.size()));
    out.memory(title("arrange_heads"), arranged, [&] { kernels::arrange_heads(qkv.view(), x, table, how); });
    out.memory(title("arrange_heads_backward"), arranged,
               [&] { kernels::arrange_heads_backward(y.view(), qkv, table, how); });
    out.memory(title("normalise_heads"), 4 * size,
               [&] { kernels::normalise_heads(y.view(), rstd, x, gain, gain, how, 1e-5); });
    out.memory(title("normalise_heads_backward"), 6 * size, [&] {
      kernels::normalise_heads_backward(y.view(), dgain.view().flat(0, how.width),
                                        dgain.view().flat(how.width, how.width), y, x, rstd, gain, gain, how);
    });
  }
  if (!out.wants("dropout (64 x 1024, 768) bf16")) return;
  std::int64_t const numbers = 65536 * 768;
  auto const y = random_elements<bfloat16>(numbers);
  std::vector<std::int64_t> samples(64);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<std::int64_t>(i);
  tensor<std::int64_t, cuda> ids(shape{64});
  kernels::upload(ids.view(), samples);
  out.memory("dropout (64 x 1024, 768) bf16", 4.0 * static_cast<double>(numbers), [&] {
    kernels::dropout(y.view(), ops::dropout_site_in<cuda>{0.1, {42, 7}, 5, ids.view()});
  });
}

}  // namespace

int main(int count, char** words) {
  int devices = 0;
  if (auto const code = ::cudaGetDeviceCount(&devices); code != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU: %s\n", code == cudaSuccess ? "there is no device" : ::cudaGetErrorString(code));
    return 77;
  }
  rows const out(count > 1 ? words[1] : "");
  products(out);
  queueing(out);
  sums_of_columns(out);
  norms(out);
  embeddings(out);
  elements(out);
  losses_and_heads(out);
}
