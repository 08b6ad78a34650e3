#include "trireme/ops/host/normalisation.hpp"

#include "../catch.hpp"
#include "central_differences.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::host_normalisation;

namespace {

template <class T>
struct problem {
  using A = ops::accumulate_t<T>;
  std::int64_t rows, channels;
  tensor<T> x = random_tensor<T>({rows, channels}, 1, 2);
  tensor<T> gain = random_tensor<T>({channels}, 2);
  tensor<T> bias = random_tensor<T>({channels}, 3);
  tensor<T> dy = random_tensor<T>({rows, channels}, 4);
  tensor<T> y = zeros<T>({rows, channels});
  tensor<T> dx = zeros<T>({rows, channels});
  tensor<A> mean = zeros<A>({rows});
  tensor<A> rstd = zeros<A>({rows});
  tensor<A> dgain = zeros<A>({channels});
  tensor<A> dbias = zeros<A>({channels});

  void forward() { kernels::layer_norm(y.view(), mean, rstd, x, gain, bias, 1e-5); }
  void backward(bool accumulate = false) {
    kernels::layer_norm_backward(dx.view(), dgain, dbias, dy, x, mean, rstd, gain, accumulate);
  }
};

template <class T>
void compare(std::int64_t rows, std::int64_t channels) {
  problem<double> exact{rows, channels};
  exact.forward();
  exact.backward();
  at_each_level([&] {
    problem<T> rounded{rows, channels};
    rounded.forward();
    rounded.backward();
    CHECK(distance(rounded.y, exact.y) < tolerance<T>);
    CHECK(distance(rounded.dx, exact.dx) < tolerance<T>);
    CHECK(distance(rounded.dgain, exact.dgain) < tolerance<T>);
    CHECK(distance(rounded.dbias, exact.dbias) < tolerance<T>);
  });
}

template <class T>
struct rms_problem : problem<T> {
  void forward() { kernels::rms_norm(this->y.view(), this->rstd, this->x, this->gain, 1e-5); }
  void backward(bool accumulate = false) {
    kernels::rms_norm_backward(this->dx.view(), this->dgain, this->dy, this->x, this->rstd, this->gain, accumulate);
  }
};

template <class T>
void compare_rms(std::int64_t rows, std::int64_t channels) {
  rms_problem<double> exact{{rows, channels}};
  exact.forward();
  exact.backward();
  at_each_level([&] {
    rms_problem<T> rounded{{rows, channels}};
    rounded.forward();
    rounded.backward();
    CHECK(distance(rounded.y, exact.y) < tolerance<T>);
    CHECK(distance(rounded.dx, exact.dx) < tolerance<T>);
    CHECK(distance(rounded.dgain, exact.dgain) < tolerance<T>);
  });
}

}  // namespace

TEST_CASE("layer_norm gives rows of mean 0 and variance 1, then gain and bias") {
  problem<double> p{2, 4};
  for (std::int64_t i = 0; i < 8; ++i) p.x[i] = static_cast<double>(i % 4);
  for (std::int64_t i = 0; i < 4; ++i) p.gain[i] = 2, p.bias[i] = 1;
  kernels::layer_norm(p.y.view(), p.mean, p.rstd, p.x, p.gain, p.bias, 0.0);
  CHECK(p.mean[0] == 1.5);
  CHECK(p.rstd[1] == Approx(1 / std::sqrt(1.25)));
  CHECK(p.y[3] == Approx(1 + 2 * 1.5 / std::sqrt(1.25)));
}

TEST_CASE("gradients of layer_norm agree with central differences") {
  problem<double> p{3, 7};
  p.forward();
  p.backward();
  auto const loss = [&] {
    p.forward();
    return inner(p.y.span(), p.dy.span());
  };
  CHECK(gradient_error(p.x.span(), p.dx.span(), loss) < 1e-6);
  CHECK(gradient_error(p.gain.span(), p.dgain.span(), loss) < 1e-6);
  CHECK(gradient_error(p.bias.span(), p.dbias.span(), loss) < 1e-6);
}

TEST_CASE("layer_norm in float and bfloat16 agrees with double at every CPU level") {
  for (std::int64_t const channels : {1, 15, 16, 33, 384}) {
    compare<float>(3, channels);
    compare<bfloat16>(3, channels);
  }
  compare<float>(0, 8);
}

TEST_CASE("layer_norm_backward adds to gradients if that is requested") {
  problem<float> p{2, 19};
  p.forward();
  p.backward();
  auto const once = p.dx[5];
  auto const gain_once = p.dgain[5];
  p.backward(true);
  CHECK(p.dx[5] == Approx(2 * once));
  CHECK(p.dgain[5] == Approx(2 * gain_once));
}

TEST_CASE("a row of layer_norm does not depend on the other rows") {
  at_each_level([] {
    problem<float> all{5, 37};
    all.forward();
    all.backward();
    for (std::int64_t row = 0; row < 5; ++row) {
      problem<float> one{1, 37};
      std::copy_n(all.x.span().data() + row * 37, 37, one.x.span().data());
      std::copy_n(all.dy.span().data() + row * 37, 37, one.dy.span().data());
      one.forward();
      one.backward();
      CHECK(same_bits<float>(one.y.span(), all.y.span().subspan(static_cast<std::size_t>(row) * 37, 37)));
      CHECK(same_bits<float>(one.dx.span(), all.dx.span().subspan(static_cast<std::size_t>(row) * 37, 37)));
    }
  });
}

TEST_CASE("layer_norm refuses views that do not fit") {
  problem<float> p{2, 8};
  CHECK_THROWS_AS(kernels::layer_norm(p.y.view(), p.mean, p.rstd, p.x, p.gain, p.dy, 1e-5), assertion_error);
}

TEST_CASE("rms_norm gives rows whose squares have the average 1, times gain") {
  rms_problem<double> p{{2, 4}};
  for (std::int64_t i = 0; i < 8; ++i) p.x[i] = static_cast<double>(i % 4);
  for (std::int64_t i = 0; i < 4; ++i) p.gain[i] = 2;
  kernels::rms_norm(p.y.view(), p.rstd, p.x, p.gain, 0.0);
  CHECK(p.rstd[1] == Approx(1 / std::sqrt(3.5)));
  CHECK(p.y[7] == Approx(2 * 3 / std::sqrt(3.5)));
}

TEST_CASE("gradients of rms_norm agree with central differences, and are added if that is requested") {
  rms_problem<double> p{{3, 7}};
  p.forward();
  p.backward();
  auto const loss = [&] {
    p.forward();
    return inner(p.y.span(), p.dy.span());
  };
  CHECK(gradient_error(p.x.span(), p.dx.span(), loss) < 1e-6);
  CHECK(gradient_error(p.gain.span(), p.dgain.span(), loss) < 1e-6);
  auto const once = p.dx[5];
  auto const gain_once = p.dgain[5];
  p.backward(true);
  CHECK(p.dx[5] == Approx(2 * once));
  CHECK(p.dgain[5] == Approx(2 * gain_once));
}

TEST_CASE("rms_norm in float and bfloat16 agrees with double at every CPU level") {
  for (std::int64_t const channels : {1, 15, 16, 33, 384}) {
    compare_rms<float>(3, channels);
    compare_rms<bfloat16>(3, channels);
  }
  compare_rms<float>(0, 8);
}

TEST_CASE("rms_norm works in place, and a row does not depend on the other rows") {
  at_each_level([] {
    rms_problem<float> all{{5, 37}};
    all.forward();
    all.backward();
    auto y = zeros<float>({5, 37});
    auto dx = zeros<float>({5, 37});
    std::copy_n(all.x.span().data(), 5 * 37, y.span().data());
    kernels::rms_norm(y.view(), all.rstd, y, all.gain, 1e-5);
    CHECK(same_bits<float>(y.span(), all.y.span()));
    std::copy_n(all.dy.span().data(), 5 * 37, dx.span().data());
    kernels::rms_norm_backward(dx.view(), all.dgain, dx, all.x, all.rstd, all.gain, false);
    CHECK(same_bits<float>(dx.span(), all.dx.span()));
    for (std::int64_t row = 0; row < 5; ++row) {
      rms_problem<float> one{{1, 37}};
      std::copy_n(all.x.span().data() + row * 37, 37, one.x.span().data());
      std::copy_n(all.dy.span().data() + row * 37, 37, one.dy.span().data());
      one.forward();
      one.backward();
      CHECK(same_bits<float>(one.y.span(), all.y.span().subspan(static_cast<std::size_t>(row) * 37, 37)));
      CHECK(same_bits<float>(one.dx.span(), all.dx.span().subspan(static_cast<std::size_t>(row) * 37, 37)));
    }
  });
}

TEST_CASE("rms_norm refuses views that do not fit") {
  rms_problem<float> p{{2, 8}};
  CHECK_THROWS_AS(kernels::rms_norm(p.y.view(), p.rstd, p.x, p.dy, 1e-5), assertion_error);
  CHECK_THROWS_AS(kernels::rms_norm_backward(p.dx.view(), p.dx.view().flat(0, 7), p.dy, p.x, p.rstd, p.gain, false),
                  assertion_error);
}
