#include "trireme/optim/pruned.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/optim/lamb.hpp"
#include "trireme/optim/muon.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;
using numbers = std::vector<float>;

tensor_view<float> view_of(numbers& of) { return {of.data(), {static_cast<std::int64_t>(of.size())}}; }

/// A tensor, the moments that its optimizer gives it, and what layers read.
struct one_tensor {
  parameter_info info;
  numbers value, gradient, read;
  std::vector<numbers> moments;
  arena<host> scratch;

  explicit one_tensor(parameter_info what) : info(std::move(what)) {
    auto const n = static_cast<std::size_t>(info.extents.size());
    gradient.resize(n);
    read.resize(n);
    for (std::size_t i = 0; i < n; ++i) value.push_back(std::sin(1.7F * static_cast<float>(i + 1)));
  }
  template <class Optimizer>
  void step(Optimizer const& optimizer, std::int64_t step) {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = std::cos(static_cast<float>(i * i) + 2.3F * static_cast<float>(step));
    std::vector<tensor_view<float>> views;
    if (moments.empty()) moments.resize(optimizer.moment_names.size());
    for (std::size_t m = 0; m < moments.size(); ++m) {
      auto const extents = optimizer.moment_shape(m, info);
      moments[m].resize(static_cast<std::size_t>(extents.size()));
      views.emplace_back(moments[m].data(), extents);
    }
    std::vector<tensor_view<float>> const outputs{{read.data(), info.extents}};
    optimizer.update(
        tensor_update<env>{
            info, {value.data(), info.extents}, views, {gradient.data(), info.extents}, 1, outputs, scratch},
        step);
    scratch.reset();
  }
};

/// Whether exactly the elements of `mask` are +0 in both.
void zeros_are(std::vector<bool> const& mask, one_tensor const& in) {
  for (std::size_t i = 0; i < mask.size(); ++i) {
    INFO("element " << i);
    CHECK((in.value[i] == 0) == mask[i]);
    CHECK_FALSE((mask[i] && std::signbit(in.value[i])));
    CHECK(in.read[i] == in.value[i]);
  }
}

}  // namespace

TEST_CASE("the smallest elements are chosen, earlier ones first", "[optim]") {
  numbers value{3, -1, 0, 1, -5, 1, 2, 0}, mask(8, 7);
  ops::pruning_on<host>::smallest(view_of(mask), view_of(value), 4);
  CHECK(mask == numbers{0, 1, 1, 1, 0, 0, 0, 1});
  ops::pruning_on<host>::smallest(view_of(mask), view_of(value), 0);
  CHECK(mask == numbers(8, 0));
  ops::pruning_on<host>::smallest(view_of(mask), view_of(value), 9);
  CHECK(mask == numbers(8, 1));
  ops::pruning_on<host>::clear(view_of(value), view_of(mask));
  CHECK(value == numbers(8, 0));
}

TEST_CASE("two of four are chosen along either axis", "[optim]") {
  numbers value{4, -1, 0, 1, -5, 1, 2, 0}, mask(8);
  ops::pruning_on<host>::two_of_four(view_of(mask), view_of(value), 1);
  CHECK(mask == numbers{0, 1, 1, 0, 0, 1, 0, 1});
  ops::pruning_on<host>::two_of_four(view_of(mask), view_of(value), 2);  // columns 4 0 -5 2 and -1 1 1 0
  CHECK(mask == numbers{0, 1, 1, 0, 0, 0, 1, 1});
  CHECK_THROWS_AS(ops::pruning_on<host>::two_of_four(view_of(mask), view_of(value), 4), assertion_error);
}

TEST_CASE("chosen elements stay zero under each kind of optimizer, and the others do what they did", "[optim]") {
  auto const stays = [](auto const& base) {
    optim::pruned const optimizer{base, {{.names = "m*", .ratio = 0.25}, {.names = "*", .two_of_four = true}}};
    for (auto const* const name : {"m", "n"}) {
      INFO(name << " under " << to_string(optimizer));
      one_tensor it({name, {8, 4}});
      numbers mask(32), before = it.value;
      if (*name == 'm')
        ops::pruning_on<host>::smallest(view_of(mask), view_of(before), 8);
      else
        ops::pruning_on<host>::two_of_four(view_of(mask), view_of(before), 4);
      std::vector<bool> const expected(mask.begin(), mask.end());
      for (std::int64_t t = 0; t < 3; ++t) {
        it.step(optimizer, t);
        zeros_are(expected, it);
      }
    }
  };
  stays(optim::adamw{.learning_rate = 0.1});
  stays(optim::lamb{.learning_rate = 0.1});
  stays(optim::muon{});

  optim::adamw const adamw{.learning_rate = 0.1};
  optim::pruned const optimizer{adamw, {{.names = "m", .ratio = 0.5, .after = 1}}};
  one_tensor plain({"m", {8, 4}}), pruned({"m", {8, 4}}), bias({"m", {5}});
  optim::pruned const dense{adamw, {}};
  for (std::int64_t t = 0; t < 4; ++t) {
    plain.step(dense, t);
    pruned.step(optimizer, t);
    bias.step(optimizer, t);
    int zeros = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      if (pruned.value[i] == 0)
        ++zeros;
      else
        CHECK(pruned.value[i] == plain.value[i]);
    }
    CHECK(zeros == (t < 1 ? 0 : 16));
    for (auto const each : bias.value) CHECK(each != 0);
  }
  CHECK(bias.moments.back().empty());
}

TEST_CASE("a run that begins with pruned values chooses the same zeros", "[optim]") {
  optim::pruned const optimizer{optim::adamw{.learning_rate = 0.1},
                                {{.names = "*", .two_of_four = true, .rows_are_outputs = true}}};
  one_tensor first({"w", {4, 8}});
  for (std::int64_t t = 0; t < 3; ++t) first.step(optimizer, t);
  one_tensor second({"w", {4, 8}});
  second.value = first.value;
  second.step(optimizer, 0);
  zeros_are(std::vector<bool>(first.moments.back().begin(), first.moments.back().end()), second);
  CHECK(second.moments.back() == first.moments.back());
}

TEST_CASE("what cannot be pruned is refused", "[optim]") {
  optim::pruned const fours{optim::adamw{}, {{.names = "*", .two_of_four = true}}};
  CHECK(
      sentence_of<config_error>([&] {
        static_cast<void>(fours.moment_shape(2, {"h.weight", {6, 4}}));
      }) ==
      "trireme::optim::pruned: h.weight has 6 inputs, which do not divide by four; leave it out of .names, or prune it "
      "by .ratio");
  CHECK(fours.moment_shape(2, {"h.bias", {6}}) == shape{0});
  CHECK_THROWS_AS((optim::pruned{optim::adamw{}, {{.names = "*", .ratio = 1}}}.validate()), config_error);
  CHECK_THROWS_AS((optim::pruned{optim::adamw{}, {{.names = "*", .after = -1}}}.validate()), config_error);
  CHECK(to_string(optim::pruned{optim::adamw{}, {{.names = "a b", .two_of_four = true}}})
            .find("optim::pruned<optim::adamw>{optim::adamw{.learning_rate = 0.001") == 0);
}
