// A small network beside the same network written with Eigen alone, in turns in one program: microseconds (of processor
// time; one thread) of a step on 10 and 100 samples, and of predicting 1, 10 and 1000 samples. One JSON object a row:
// {"what", "samples", "trireme_us", "eigen_us", "ratio"}; medians of the rounds.
//   small_network [ROUNDS (31) [ROW]]   ROW, for example predict-1, runs only that row, and nothing of Eigen
// The network is 4 - 16 - 16 - 1 with tanh, squared errors and AdamW, on one rank. Eigen's program does only what its
// author needs: it neither checks its input, nor counts samples, nor looks for non-finite gradients.

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "trireme/trireme.hpp"

namespace {

using namespace trireme;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The network as a user of Eigen writes it.
struct eigen_network {
  struct layer {
    matrix w, gw, mw, vw;
    Eigen::RowVectorXf b, gb, mb, vb;
    matrix out, gradient;
    layer(int in, int width)
        : w(matrix::Random(width, in) / std::sqrt(static_cast<float>(in))),
          gw(width, in),
          mw(matrix::Zero(width, in)),
          vw(matrix::Zero(width, in)),
          b(Eigen::RowVectorXf::Zero(width)),
          gb(width),
          mb(Eigen::RowVectorXf::Zero(width)),
          vb(Eigen::RowVectorXf::Zero(width)) {}
  };
  std::array<layer, 3> layers{layer(4, 16), layer(16, 16), layer(16, 1)};
  int steps = 0;

  template <class X>
  matrix const& predict(X const& x) {
    layers[0].out.noalias() = x * layers[0].w.transpose();
    layers[0].out = (layers[0].out.rowwise() + layers[0].b).array().tanh();
    layers[1].out.noalias() = layers[0].out * layers[1].w.transpose();
    layers[1].out = (layers[1].out.rowwise() + layers[1].b).array().tanh();
    layers[2].out.noalias() = layers[1].out * layers[2].w.transpose();
    layers[2].out.rowwise() += layers[2].b;
    return layers[2].out;
  }
  template <class X, class Y>
  float step(X const& x, Y const& y) {
    predict(x);
    auto& last = layers[2];
    last.gradient = last.out - y;
    float const loss = last.gradient.squaredNorm() / static_cast<float>(x.rows());
    last.gradient *= 2.0F / static_cast<float>(x.rows());
    for (int i = 2; i >= 0; --i) {
      auto& l = layers[static_cast<std::size_t>(i)];
      if (i > 0) {
        auto& below = layers[static_cast<std::size_t>(i - 1)];
        l.gw.noalias() = l.gradient.transpose() * below.out;
        below.gradient.noalias() = l.gradient * l.w;
        below.gradient.array() *= 1 - below.out.array().square();
      } else {
        l.gw.noalias() = l.gradient.transpose() * x;
      }
      l.gb = l.gradient.colwise().sum();
    }
    ++steps;
    float const first = 1 - std::pow(0.9F, static_cast<float>(steps));
    float const second = 1 - std::pow(0.999F, static_cast<float>(steps));
    for (auto& l : layers) {
      update(l.w, l.gw, l.mw, l.vw, first, second);
      update(l.b, l.gb, l.mb, l.vb, first, second);
    }
    return loss;
  }
  template <class P>
  static void update(P& w, P const& g, P& m, P& v, float first, float second) {
    m = 0.9F * m + 0.1F * g;
    v.array() = 0.999F * v.array() + 0.001F * g.array().square();
    w.array() -= 1e-3F * (m.array() / first / ((v.array() / second).sqrt() + 1e-8F));
  }
};

int rounds = 31;
std::string only;

template <class Body>
double microseconds_of(int times, Body&& body) {
  auto const began = std::clock();
  for (int i = 0; i < times; ++i) body();
  return 1e6 * static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC / times;
}

template <class Ours, class Theirs>
void report(char const* what, std::int64_t samples, int times, Ours&& ours, Theirs&& theirs) {
  if (!only.empty()) {  // for a profiler
    if (only == text(what, "-", samples)) microseconds_of(rounds * times, ours);
    return;
  }
  std::vector<double> here, there, ratios;
  for (int i = 0; i < rounds; ++i) {
    here.push_back(microseconds_of(times, ours));
    there.push_back(microseconds_of(times, theirs));
    ratios.push_back(here.back() / there.back());
  }
  auto const median = [](std::vector<double>& of) {
    std::ranges::sort(of);
    return of[of.size() / 2];
  };
  std::printf(R"({"what": "%s", "samples": %lld, "trireme_us": %.3f, "eigen_us": %.3f, "ratio": %.2f})"
              "\n",
              what, static_cast<long long>(samples), median(here), median(there), median(ratios));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) rounds = std::max(1, std::atoi(argv[1]));
  if (argc > 2) only = argv[2];
  comm::self_world world;
  auto trainer = make_trainer(nn::mlp{.inputs = 4, .hidden = {16, 16}}, optim::adamw{.learning_rate = 1e-3}, world);
  eigen_network network;
  std::vector<float> features(4000), targets(1000);
  for (std::size_t i = 0; i < features.size(); ++i) features[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = features[4 * i] * features[4 * i + 1];
  float sink = 0;
  for (std::int64_t n : {10, 100}) {
    tensor_view<float const> const x(features.data(), shape{n, 4}), y(targets.data(), shape{n, 1});
    Eigen::Map<matrix const> const ex(features.data(), n, 4), ey(targets.data(), n, 1);
    report(
        "step", n, 2000, [&] { trainer.step(x, y); }, [&] { sink += network.step(ex, ey); });
  }
  for (std::int64_t n : {1, 10, 1000}) {
    tensor_view<float const> const x(features.data(), shape{n, 4});
    Eigen::Map<matrix const> const ex(features.data(), n, 4);
    report(
        "predict", n, n == 1000 ? 200 : 5000, [&] { sink += trainer.predict(x)[0]; },
        [&] { sink += network.predict(ex)(0, 0); });
  }
  return std::isnan(sink) ? 1 : 0;
}
