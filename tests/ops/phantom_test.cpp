#include "trireme/ops/phantom.hpp"

#include "../catch.hpp"
#include "trireme/ops/ops.hpp"

using namespace trireme;

namespace {

// One step of a tiny network, written once for any space: it compiles for both, and never accesses phantom memory.
template <class Space, class T>
double a_step() {
  using kernels = ops::on<Space>;
  using A = ops::accumulate_t<T>;
  constexpr std::int64_t batch = 2, context = 5, channels = 8, classes = 11;
  shape const wide{batch * context, channels};
  tensor<T, Space> x(wide), y(wide), table(shape{classes, channels}), places(shape{context, channels});
  tensor<T, Space> gain(shape{channels}), bias(shape{channels}), qkv(shape{batch * context, 3 * channels});
  tensor<T, Space> logits(shape{batch * context, classes}), matrix(shape{channels, 3 * channels});
  tensor<A, Space> mean(shape{batch * context}), rstd(shape{batch * context}), lse(shape{batch, 2, context});
  tensor<A, Space> dgain(shape{channels}), dbias(shape{channels}), dtable(table.extents()), dmatrix(matrix.extents());
  tensor<A, Space> master(shape{channels}), moment(shape{channels}), velocity(shape{channels});
  tensor<std::int32_t, Space> tokens(shape{batch, context}), picked(shape{3});
  tensor<A, Space> values(shape{3});
  tensor<float, Space> wanted(wide);
  arena<Space> scratch;
  tensor<std::int64_t, Space> samples(shape{2});
  kernels::upload(samples.view(), std::vector<std::int64_t>{3, 4});
  sample_ids_in<Space> ids;
  if constexpr (std::is_same_v<Space, host>)
    ids = samples.span();
  else
    ids = samples.view();
  ops::dropout_site_in<Space> const drop{0.1, {1, 2}, 3, ids};
  ops::attention_shape const what{batch, context, 2, channels};

  for (auto* each : {&x, &y, &table, &places, &gain, &bias, &qkv, &matrix, &logits}) {
    kernels::initialise(each->view(), initial{initial::distribution::normal, 0.1}, 1, 2);
  }
  for (auto* each : {&dgain, &dbias, &dtable, &dmatrix, &master, &moment, &velocity}) kernels::fill(each->view(), 0.0);
  kernels::fill(wanted.view(), 0.0);
  kernels::upload(tokens.view(), std::vector<std::int32_t>(batch * context, 1));
  kernels::embed(x.view(), tokens, table, places);
  kernels::dropout(x.view(), drop);
  kernels::layer_norm(y.view(), mean, rstd, x, gain, bias, 1e-5);
  ops::weights<T, Space> weight(matrix, ops::orientation::in_out);
  weight.refresh(1);
  kernels::linear(qkv.view(), y, weight, {});
  tensor<A, Space> angles(shape{context, channels / 2});
  kernels::rotations(angles.view(), 0, 1e4);
  kernels::arrange_heads(qkv.view(), qkv, angles, {context, 2, 2, channels / 2});
  kernels::arrange_heads_backward(qkv.view(), qkv, angles, {context, 2, 2, channels / 2});
  tensor<T, Space> head_gain(shape{channels / 2});
  tensor<A, Space> of_heads(shape{batch * context, 4}), dhead_gain(shape{channels / 2});
  kernels::initialise(head_gain.view(), initial{initial::distribution::ones, 0}, 1, 2);
  kernels::fill(dhead_gain.view(), 0.0);
  kernels::normalise_heads(qkv.view(), of_heads, qkv, head_gain, head_gain, {context, 2, 2, channels / 2}, 1e-5);
  tensor<T, Space> dheads(qkv.extents());
  kernels::fill(dheads.view(), 1.0);
  kernels::normalise_heads_backward(dheads.view(), dhead_gain, dhead_gain, dheads, qkv, of_heads, head_gain, head_gain,
                                    {context, 2, 2, channels / 2});
  tensor<std::int32_t, Space> seen(shape{batch, context, 2});
  kernels::visible_keys(seen.view(), tokens, {.padding = 0});
  kernels::attention(y.view(), lse, qkv, what, scratch, drop, seen);
  kernels::activate(x.view(), y, ops::activation::gelu);
  ops::weights<T, Space> head(table, ops::orientation::out_in);
  kernels::linear(logits.view(), x, head, {});
  auto const loss = kernels::cross_entropy(logits.view(), tokens.view().flat(), 1.0, true);
  kernels::linear_backward_input(x.view(), logits, head, {});
  kernels::linear_backward_weight(dtable.view(), {}, y.view(), logits, ops::orientation::out_in);
  kernels::activate_backward(x.view(), x, y, ops::activation::gelu);
  tensor<T, Space> dqkv(qkv.extents());
  kernels::attention_backward(dqkv.view(), x, y, lse, qkv, what, scratch, drop);
  kernels::linear_backward_weight(dmatrix.view(), {}, y.view(), dqkv, ops::orientation::in_out);
  kernels::layer_norm_backward(x.view(), dgain, dbias, y, y, mean, rstd, gain, true);
  kernels::rms_norm(y.view(), rstd, x, gain, 1e-5);
  kernels::rms_norm_backward(x.view(), dgain, y, y, rstd, gain, true);
  kernels::elementwise_product(x.view(), x, y);
  kernels::each(x.view(), x.view(), y.view(), [](float a, float b) { return a - b; });
  kernels::activate(x.view(), y, ops::activation::silu);
  kernels::embed_backward(dtable.view(), {}, x.view(), tokens);
  kernels::squared_error(x.view(), y, wanted, 1.0);
  kernels::add(x.view(), y);
  kernels::scale(x.view(), 0.5);
  kernels::accumulate(dgain.view(), gain.view(), 1.0);
  kernels::copy(dgain.view(), gain.view());

  std::vector<tensor_view<A const, Space>> const terms{dgain, dbias};
  std::vector<tensor_view<A, Space>> const sums{dgain.view()};
  std::vector<tensor_view<T, Space>> const outputs{gain.view()};
  std::span<tensor_view<T, Space> const> const out(outputs);
  kernels::reduce(std::span<tensor_view<A, Space> const>(sums), terms, reduction::max{});
  ops::gradient_terms<A, Space> const gradient{terms, 1.0};
  kernels::adamw(master.view(), moment, velocity, gradient, out, ops::adamw_numbers{});
  kernels::sgd(master.view(), velocity, gradient, out, ops::sgd_numbers{});
  exact_sum squares;
  kernels::sum_of_squares(dgain.view(), squares);
  CHECK(kernels::finite(x.view()));
  static_cast<void>(kernels::hash(x.view(), 1, 0));
  static_cast<void>(kernels::read(x.view(), 0));
  kernels::select_largest(dgain.view(), picked.view(), values);
  kernels::scatter(dgain.view(), picked, values, false);
  std::vector<A> numbers(channels);
  kernels::download(std::span(numbers), dgain);
  CHECK(loss.count == batch * context);
  return loss.sum;
}

}  // namespace

TEST_CASE("a program written for one memory space runs in the other") {
  CHECK(a_step<host, float>() > 0);
  CHECK(a_step<host, double>() > 0);
  CHECK(a_step<host, bfloat16>() > 0);
  CHECK(a_step<phantom, float>() == 0);
  CHECK(a_step<phantom, double>() == 0);
  CHECK(a_step<phantom, bfloat16>() == 0);
}

TEST_CASE("phantom kernels notice sizes that do not fit") {
  tensor<float, phantom> a(shape{3}), b(shape{4});
  CHECK_THROWS_AS(ops::on<phantom>::add(a.view(), b), assertion_error);
  CHECK_THROWS_AS(ops::on<phantom>::copy(a.view(), b.view()), assertion_error);
}
