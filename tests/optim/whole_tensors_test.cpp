#include <cmath>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp64>;

struct expected {
  std::string optimizer, tensor;
  std::vector<double> after;
};
std::vector<expected> const golden{
#include "../golden/optimizers.inl"
};

/// A tensor, and the moments that its optimizer gives it.
struct one_tensor {
  parameter_info info;
  std::vector<double> value, gradient;
  std::vector<std::vector<double>> moments;
  arena<host> scratch;

  explicit one_tensor(parameter_info what) : info(std::move(what)) {
    value.assign(static_cast<std::size_t>(info.extents.size()), 0.0);
    gradient = value;
  }
  template <class Optimizer>
  void step(Optimizer const& optimizer, std::int64_t step, double scale = 1) {
    std::vector<tensor_view<double>> views;
    if (moments.empty()) moments.resize(optimizer.moment_names.size());
    for (std::size_t m = 0; m < moments.size(); ++m) {
      auto const extents = optimizer.moment_shape(m, info);
      moments[m].resize(static_cast<std::size_t>(extents.size()));
      views.emplace_back(moments[m].data(), extents);
    }
    optimizer.update(
        tensor_update<env>{
            info, {value.data(), info.extents}, views, {gradient.data(), info.extents}, scale, {}, scratch},
        step);
    scratch.reset();
  }
};

/// As in golden/make_optimizers.py. @param scale  a clipping factor that is still to be applied.
template <class Optimizer>
void reaches_golden(std::string const& name, Optimizer const& optimizer, double scale = 1) {
  std::vector<parameter_info> const tensors{{"tall", {5, 3}}, {"wide", {2, 4}}, {"vector", {6}}};
  for (std::size_t salt = 0; salt < tensors.size(); ++salt) {
    one_tensor it(tensors[salt]);
    for (std::size_t i = 0; i < it.value.size(); ++i)
      it.value[i] = 0.5 * std::sin(1.7 * static_cast<double>(i) + static_cast<double>(salt)) + 0.1;
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::size_t i = 0; i < it.value.size(); ++i) {
        auto const x = static_cast<double>(i);
        it.gradient[i] = 0.3 / scale *
                         std::cos(0.9 * x * x + static_cast<double>(salt) +
                                  2.3 * static_cast<double>(t) * static_cast<double>(i % 3 + 1));
      }
      it.step(optimizer, t, scale);
    }
    bool found = false;
    for (auto const& each : golden) {
      if (each.optimizer != name || each.tensor != it.info.name) continue;
      found = true;
      for (std::size_t i = 0; i < it.value.size(); ++i) {
        INFO(name << ", " << it.info.name << ", element " << i);
        CHECK(it.value[i] == Approx(each.after[i]).epsilon(1e-11));
      }
    }
    CHECK(found);
  }
}

}  // namespace

TEST_CASE("lamb, muon and adafactor reach the values of their papers, with a clipped gradient too", "[optim]") {
  for (double const scale : {1.0, 0.25}) {
    reaches_golden("lamb", optim::lamb{.learning_rate = 0.01, .weight_decay = 0.1}, scale);
    reaches_golden("muon", optim::muon{.weight_decay = 0.1}, scale);
    reaches_golden("muon_outputs_first", optim::muon{.weight_decay = 0.1, .rows_are_outputs = true}, scale);
    reaches_golden("adafactor", optim::adafactor{.learning_rate = 0.05, .weight_decay = 0.1}, scale);
    reaches_golden("adafactor_momentum", optim::adafactor{.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.1},
                   scale);
  }
}

TEST_CASE("lamb's step is as long as the tensor times the rate, and unchanged where a norm is 0", "[optim]") {
  one_tensor it({"w", {2, 2}});
  it.value = {3, 0, 0, 4};
  it.gradient = {1e-3, 1e-3, -1e-3, 1e-3};
  it.step(optim::lamb{.learning_rate = 0.1, .weight_decay = 0}, 0);
  CHECK(std::hypot(it.value[0] - 3, it.value[1], it.value[2]) == Approx(0.1 * 5 * std::sqrt(0.75)).epsilon(1e-3));
  one_tensor zero({"w", {1}});
  zero.gradient = {5};
  zero.step(optim::lamb{.learning_rate = 0.1}, 0);
  CHECK(zero.value[0] == Approx(-0.1));
  one_tensor still({"w", {1}, {}, false});
  still.value = {2};
  still.step(optim::lamb{.learning_rate = 0.1}, 0);
  CHECK(still.value[0] == 2);
}

TEST_CASE("muon keeps one moment of hidden matrices, and leaves embeddings, the head and vectors to adamw", "[optim]") {
  optim::muon const muon;
  auto const sizes = [&](parameter_info const& info) {
    std::vector<std::int64_t> all;
    for (std::size_t m = 0; m < 3; ++m) all.push_back(muon.moment_shape(m, info).size());
    return all;
  };
  using list = std::vector<std::int64_t>;
  CHECK(sizes({"transformer.h.0.mlp.c_fc.weight", {4, 16}}) == list{64, 0, 0});
  CHECK(sizes({"transformer.wte.weight", {4, 16}}) == list{0, 64, 64});
  CHECK(sizes({"lm_head.weight", {4, 16}}) == list{0, 64, 64});
  CHECK(sizes({"transformer.h.0.ln_1.weight", {4}}) == list{0, 4, 4});
  CHECK(sizes({"experts.c_fc.weight", {2, 3, 4}}) == list{0, 24, 24});
}

TEST_CASE("adafactor keeps means of rows and of columns of the last two extents", "[optim]") {
  optim::adafactor const plain;
  CHECK(plain.moment_shape(0, {"w", {5, 3}}) == shape{5});
  CHECK(plain.moment_shape(1, {"w", {5, 3}}) == shape{3});
  CHECK(plain.moment_shape(0, {"w", {2, 5, 3}}) == shape{2, 5});
  CHECK(plain.moment_shape(1, {"w", {2, 5, 3}}) == shape{2, 3});
  CHECK(plain.moment_shape(2, {"w", {5, 3}}).size() == 0);
  CHECK(plain.moment_shape(2, {"b", {3}}) == shape{3});
  CHECK(plain.moment_shape(3, {"b", {3}}).size() == 0);
  CHECK(optim::adafactor{.relative = true}.rate_at(39'999) == Approx(0.005));

  // Two experts are two matrices: each is updated as if it were alone, except that both are clipped together.
  optim::adafactor const unclipped{.scaled = false, .threshold = 1e9};
  one_tensor both({"w", {2, 2, 3}}), first({"w", {2, 3}});
  both.gradient = {1, 2, -3, 4, 5, 6, 7, 8, 9, 1, 1, 1};
  first.gradient = {1, 2, -3, 4, 5, 6};
  both.step(unclipped, 0);
  first.step(unclipped, 0);
  for (std::size_t i = 0; i < 6; ++i) CHECK(both.value[i] == first.value[i]);
}

TEST_CASE("groups change rate and weight decay of what their patterns match, and freeze it", "[optim]") {
  CHECK(matches("*.bias", "layers.0.bias"));
  CHECK(matches("layers.?.weight", "layers.7.weight"));
  CHECK(matches("*", ""));
  CHECK(matches("a*b*c", "a-b-b-c"));
  CHECK(!matches("*.bias", "layers.0.bias.x"));
  CHECK(!matches("layers.?.weight", "layers.10.weight"));
  CHECK(!matches("", "x"));
  CHECK(matches_any("a  *.bias b", "layers.0.bias"));
  CHECK(!matches_any(" ", ""));

  optim::groups const grouped{optim::sgd{.learning_rate = 0.1, .momentum = 0},
                              {{.names = "slow*", .learning_rate = 0.5},
                               {.names = "*", .weight_decay = 1.0},
                               {.names = "slow", .frozen = true}}};
  auto const after = [&](std::string const& name) {
    parameter_info const info{name, {1}, {}, false};
    double value = 1, gradient = 2;
    std::vector<double> velocity(1);
    std::vector<tensor_view<double>> const moments{tensor_view<double>(velocity)};
    tensor_view<double const> const term(&gradient, shape{1});
    grouped.update(update_segment<env>{{&value, shape{1}}, moments, {{&term, 1}, 1.0}, {}, false, &info}, 0);
    return value;
  };
  CHECK(after("slow") == Approx(1 - 0.05 * 2));
  CHECK(after("other") == Approx(1 - 0.1 * (2 + 1)));
  CHECK(!grouped.freezes({"slow", {1}}));  // the first matching group is used
  CHECK(optim::groups{optim::sgd{}, {{.names = "slow", .frozen = true}}}.freezes({"slow", {1}}));

  optim::groups const scheduled{optim::muon{.schedule = optim::cosine{.peak = 1, .total = 10, .floor = 0.5}},
                                {{.names = "w", .learning_rate = 0.5}}};
  optim::muon const half{.schedule = optim::cosine{.peak = 0.5, .total = 10, .floor = 0.25}};
  one_tensor one({"w", {2, 2}}), other({"w", {2, 2}});
  one.gradient = other.gradient = {1, 2, 3, 5};
  one.step(scheduled, 4);
  other.step(half, 4);
  CHECK(one.value == other.value);
}

TEST_CASE("optimizers of whole tensors, groups and any optimizer are printed as their source", "[optim]") {
  CHECK(to_string(optim::lamb{}) ==
        "optim::lamb{.learning_rate = 0.001, .schedule = {}, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-06, "
        ".weight_decay = 0.01, "
        ".clip = 0}");
  CHECK(to_string(optim::muon{.others = "*a* b"}) ==
        "optim::muon{.learning_rate = 0.02, .schedule = {}, .momentum = 0.95, .nesterov = true, .iterations = 5, "
        ".weight_decay = 0, "
        ".rows_are_outputs = false, .clip = 0, .others = \"*a* b\", .rest = " +
            to_string(optim::muon{}.rest) + "}");
  CHECK(to_string(optim::groups{optim::sgd{}, {{.names = "b*", .weight_decay = 0.5, .frozen = true}}}) ==
        "optim::groups<optim::sgd>{" + to_string(optim::sgd{}) +
            ", {{.names = \"b*\", .learning_rate = 1, .weight_decay = 0.5, .frozen = true}}, 0}");
  CHECK(to_string(optim::any<env>(optim::sgd{})) == to_string(optim::sgd{}));
  CHECK(!optim::any<env>(optim::sgd{}).whole_tensors);
  CHECK(optim::any<env>(optim::lamb{}).whole_tensors);
}
