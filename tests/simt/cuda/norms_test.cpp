// layer_norm and rms_norm of ops::on<cuda> and their gradients, compared with sums in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "tensors.hpp"

using namespace trireme;

namespace {

using on_device::kernels;
using on_device::same;
using on_device::shifted;

/// Numbers between middle - span and middle + span.
template <class T>
std::vector<T> around(double middle, std::int64_t n, std::uint64_t seed, double span) {
  auto all = on_device::numbers<T>(n, seed, span);
  for (auto& each : all)
    each = static_cast<T>(static_cast<ops::accumulate_t<T>>(each) + static_cast<ops::accumulate_t<T>>(middle));
  return all;
}
template <class T>
double number(T x) {
  return static_cast<double>(static_cast<ops::accumulate_t<T>>(x));
}
template <class T>
double rounding() {
  return std::is_same_v<T, double> ? 1e-13 : std::is_same_v<T, float> ? 3e-6 : std::is_same_v<T, float16> ? 6e-4 : 5e-3;
}
template <class T>
void close(std::vector<T> const& got, std::vector<double> const& want, double tolerance, char const* what) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  std::size_t worst = 0;
  double most = -1;
  for (std::size_t i = 0; i < got.size(); ++i) {
    auto const off = std::abs(number(got[i]) - want[i]) / (1 + std::abs(want[i]));
    if (!(off <= most)) {
      most = off;
      worst = i;
    }
    if (std::isnan(off)) break;
  }
  if (got.empty()) return;
  INFO("element " << worst << ": " << number(got[worst]) << ", expected " << want[worst]);
  CHECK(most <= tolerance);
}
struct layout {
  std::int64_t rows, channels, offset = 0;
};

template <class T, bool Centred>
void check(layout const& at) {
  using real = ops::accumulate_t<T>;
  INFO(at.rows << " rows of " << at.channels << ", offset " << at.offset << ", " << sizeof(T) << " bytes, "
               << (Centred ? "layer_norm" : "rms_norm"));
  constexpr double epsilon = 1e-3;
  auto const n = at.rows * at.channels;
  auto const x = around<T>(0.5, n, 1, 1.5), dy = around<T>(0, n, 2, 1), old = around<T>(0, n, 3, 0.5);
  auto const gain = around<T>(1, at.channels, 4, 0.5), bias = around<T>(0, at.channels, 5, 0.5);
  auto const gain_before = around<real>(0, at.channels, 6, 0.5), bias_before = around<real>(0, at.channels, 7, 0.5);

  std::vector<double> y(x.size()), dx(x.size()), mean(static_cast<std::size_t>(at.rows)), rstd(mean.size());
  std::vector<double> dgain(gain.size()), dbias(gain.size());
  for (std::size_t c = 0; c < gain.size(); ++c) {
    dgain[c] = number(gain_before[c]);
    dbias[c] = number(bias_before[c]);
  }
  for (std::size_t row = 0; row < mean.size(); ++row) {
    auto const width = gain.size();
    auto const start = row * width;
    double total = 0, squares = 0, average = 0, along = 0;
    for (std::size_t c = 0; c < width; ++c) total += number(x[start + c]);
    auto const middle = mean[row] = Centred ? total / static_cast<double>(width) : 0;
    for (std::size_t c = 0; c < width; ++c)
      squares += (number(x[start + c]) - middle) * (number(x[start + c]) - middle);
    auto const factor = rstd[row] = 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (std::size_t c = 0; c < width; ++c) {
      auto const normal = (number(x[start + c]) - middle) * factor;
      auto const slope = number(dy[start + c]);
      y[start + c] = normal * number(gain[c]) + (Centred ? number(bias[c]) : 0);
      dgain[c] += slope * normal;
      dbias[c] += slope;
      average += slope * number(gain[c]) / static_cast<double>(width);
      along += slope * number(gain[c]) * normal / static_cast<double>(width);
    }
    for (std::size_t c = 0; c < width; ++c) {
      auto const normal = (number(x[start + c]) - middle) * factor;
      auto const g = number(dy[start + c]) * number(gain[c]);
      dx[start + c] = factor * (g - (Centred ? average : 0) - normal * along);
    }
  }

  shifted<T> const on_x(x, at.offset), on_dy(dy, at.offset), on_gain(gain, at.offset), on_bias(bias, at.offset);
  shifted<T> const on_y(old, at.offset), on_dx(old, at.offset), on_sum(old, at.offset);
  shifted<real> const on_mean(std::vector<real>(mean.size()), 0), on_rstd(std::vector<real>(mean.size()), 0);
  auto const forward = [&](tensor_view<T, cuda> to, tensor_view<T const, cuda> from) {
    if constexpr (Centred)
      kernels::layer_norm(to, on_mean.view, on_rstd.view, from, on_gain.view, on_bias.view, epsilon);
    else
      kernels::rms_norm(to, on_rstd.view, from, on_gain.view, epsilon);
  };
  auto const backward = [&](tensor_view<T, cuda> to, shifted<real> const& of_gain, shifted<real> const& of_bias,
                            tensor_view<T const, cuda> from, bool accumulate) {
    if constexpr (Centred)
      kernels::layer_norm_backward(to, of_gain.view, of_bias.view, from, on_x.view, on_mean.view, on_rstd.view,
                                   on_gain.view, accumulate);
    else
      kernels::rms_norm_backward(to, of_gain.view, from, on_x.view, on_rstd.view, on_gain.view, accumulate);
  };
  forward(on_y.view, on_x.view);
  close(on_y.here(), y, rounding<T>(), "y");
  if (Centred) close(on_mean.here(), mean, rounding<real>(), "mean");
  close(on_rstd.here(), rstd, rounding<real>(), "rstd");
  shifted<T> const in_place(x, at.offset);
  forward(in_place.view, in_place.view);
  CHECK(same(in_place.here(), on_y.here()));

  shifted<real> const on_dgain(gain_before, 0), on_dbias(bias_before, 0), again_dgain(gain_before, 0),
      again_dbias(bias_before, 0);
  backward(on_dx.view, on_dgain, on_dbias, on_dy.view, false);
  close(on_dx.here(), dx, 2 * rounding<T>(), "dx");
  close(on_dgain.here(), dgain, 4 * rounding<real>(), "dgain");
  if (Centred) close(on_dbias.here(), dbias, 4 * rounding<real>(), "dbias");
  backward(on_dy.view, again_dgain, again_dbias, on_dy.view, false);
  CHECK(same(on_dy.here(), on_dx.here()));
  CHECK(same(again_dgain.here(), on_dgain.here()));
  CHECK(same(again_dbias.here(), on_dbias.here()));

  shifted<T> const dy_again(dy, at.offset);
  backward(on_sum.view, again_dgain, again_dbias, dy_again.view, true);
  auto sum = dx;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += number(old[i]);
  close(on_sum.here(), sum, 2 * rounding<T>(), "dx, added to");
}

template <class T>
void check_all() {
  std::vector<layout> all = {{3, 1},    {5, 7},    {0, 8},      {9, 48},      {37, 64},  {5, 256},
                             {6, 264},  {11, 768}, {5, 768, 1}, {3, 1024},    {2, 1032}, {7, 2048},
                             {2, 2056}, {6, 4096}, {5, 8192},   {2, 8192, 1}, {2, 8200}};
  // One of each way through a row: not by packs; nothing; in the registers of a warp; not aligned; in those of a block.
  if (on_device::sanitizer() == "thread") all = {{5, 7}, {0, 8}, {7, 264}, {5, 264, 1}, {2, 1032}};
  if (on_device::sanitizer() == "address") all = {{3, 1}, {5, 7}, {0, 8}, {7, 264}, {5, 768, 1}, {2, 2056}, {1, 8200}};
#if defined(TRIREME_TEST_ON_GPU)
  for (layout const& each : {layout{1500, 768}, {300, 1600}, {200, 4096}, {160, 8192}}) all.push_back(each);
#endif
  for (auto const& each : all) {
    check<T, true>(each);
    check<T, false>(each);
  }
}

}  // namespace

TEST_CASE("norms and their gradients in CUDA memory are those of sums in double", "[norms]") {
  SECTION("float") { check_all<float>(); }
  SECTION("bfloat16") { check_all<bfloat16>(); }
  SECTION("float16") { check_all<float16>(); }
  SECTION("double") { check_all<double>(); }
}

TEST_CASE("views that do not fit a norm are refused", "[norms]") {
  tensor<float, cuda> const x(shape{12}), y(shape{12}), gain(shape{4}), stats(shape{3}), other(shape{5});
  auto const said = [](auto&& call) { return sentence_of<assertion_error>(call); };
  CHECK(said([&] { kernels::layer_norm(other.view(), stats, stats, x, gain, gain, 1e-5); }) ==
        "trireme::ops::layer_norm: sizes 5 and 12 differ");
  CHECK(said([&] { kernels::layer_norm(y.view(), stats, stats, x, gain, other, 1e-5); }) ==
        "trireme::ops::layer_norm: sizes 5 and 4 differ");
  CHECK(said([&] { kernels::rms_norm_backward(y.view(), other, x, x, stats, gain, false); }) ==
        "trireme::ops::rms_norm_backward: sizes 5 and 4 differ");
}
