// test-timeout: 900
// test-takes: 30
#include "trireme/nn/expression.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "random_expressions.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/parallel/tensor.hpp"

using namespace trireme;
using namespace random_expressions;

namespace {

using in_double = environment<precision::fp64>;

/// How many expressions each test draws: 500, or what TRIREME_EXPRESSIONS says. A sanitizer takes fifteen times as long
/// for each; what it looks for shows in fewer.
std::uint64_t how_many() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::uint64_t usual = 60;
#else
  constexpr std::uint64_t usual = 500;
#endif
  auto const* const said = std::getenv("TRIREME_EXPRESSIONS");
  return said == nullptr ? usual : std::strtoull(said, nullptr, 10);
}
/// As many seeds of expressions that can stand.
std::vector<std::uint64_t> seeds(std::uint64_t count) {
  std::vector<std::uint64_t> all;
  for (std::uint64_t seed = 0; all.size() < count; ++seed) {
    if (stands<in_double>(seed)) all.push_back(seed);
  }
  return all;
}

double difference(double a, double b) { return std::abs(a - b) / std::max({1.0, std::abs(a), std::abs(b)}); }

/// The largest difference of gradients from central differences, relative to the larger of 1 and the gradient.
double worst_difference(trial<in_double>& one, outcome const& given) {
  double worst = 0;
  auto const slope = [&](double& at, double step) {
    double const before = at;
    at = before + step;
    double const above = one.loss();
    at = before - step;
    double const below = one.loss();
    at = before;
    return (above - below) / (2 * step);
  };
  auto const look = [&](double& at, double gradient) {
    auto off = difference(gradient, slope(at, 1e-5));
    // Where the loss is steep, without the error of second order [Richardson, 1911].
    if (!(off < 1e-8)) off = difference(gradient, (4 * slope(at, 5e-5) - slope(at, 1e-4)) / 3);
    if (!(off <= worst)) worst = std::isnan(off) ? 1e300 : off;
  };
  for (std::size_t p = 0; p < one.parameters().size(); ++p) {
    if (one.parameters()[p]->info.running > 0) continue;  // its gradient is none
    auto& values = one.values()[p];
    auto const& gradients = given.gradients.at(one.parameters()[p]->info.name);
    auto const stride = std::max<std::size_t>(1, values.size() / 2);
    for (std::size_t i = p % stride; i < values.size(); i += stride) look(values[i], gradients[i]);
  }
  for (int m = 0; m < micro_batches; ++m) {
    auto const& gradients = given.dx[static_cast<std::size_t>(m)];
    for (std::size_t i = static_cast<std::size_t>(m); i < gradients.size(); i += 11) look(one.x(m)[i], gradients[i]);
  }
  return worst;
}

template <class Env>
bool halves_are_whole(std::uint64_t seed) {
  trial<Env> one(seed, 2, 3);
  auto const whole = one.run(false);
  return one.run(true) == whole && one.untouched();
}

/// How far a rank of a group is from one rank alone; infinite if halves are not the whole.
double worst_of_rank(trial<in_double>& part, outcome const& alone) {
  auto const whole = part.run(false);
  if (!(part.run(true) == whole) || !part.untouched()) return 1e300;
  double worst = 0;
  auto const look = [&](double a, double b) {
    if (!(difference(a, b) <= worst)) worst = std::isnan(difference(a, b)) ? 1e300 : difference(a, b);
  };
  auto const first = static_cast<std::size_t>(part.rows_here().first * generator<in_double>::width);
  for (std::size_t m = 0; m < micro_batches; ++m) {
    for (std::size_t i = 0; i < whole.y[m].size(); ++i) look(whole.y[m][i], alone.y[m][first + i]);
    for (std::size_t i = 0; i < whole.dx[m].size(); ++i) look(whole.dx[m][i], alone.dx[m][first + i]);
  }
  for (auto const* each : part.parameters()) {
    auto const& here = whole.gradients.at(each->info.name);
    auto const& there = alone.gradients.at(each->info.name);
    for_each_run(each->info, 0, each->info.extents.size(),
                 [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
                   for (std::int64_t i = 0; i < n; ++i) {
                     look(here[static_cast<std::size_t>(in_part + i)], there[static_cast<std::size_t>(in_whole + i)]);
                   }
                 });
  }
  return worst;
}

/// How far results move when each weight moves by one rounding: what a sum in another order may change, too. Steep
/// expressions (norms of nearly equal numbers, within residuals) make 1e-11 of 1e-16.
double moved_by_rounding(std::uint64_t seed, outcome const& alone) {
  trial<in_double> moved(seed, 2, 5);
  for (auto& each : moved.values()) {
    for (auto& value : each) value = std::nextafter(value, 2 * value);
  }
  auto const other = moved.run(false);
  double worst = 0;
  auto const look = [&](std::vector<double> const& a, std::vector<double> const& b) {
    for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, difference(a[i], b[i]));
  };
  for (std::size_t m = 0; m < micro_batches; ++m) {
    look(alone.y[m], other.y[m]);
    look(alone.dx[m], other.dx[m]);
  }
  for (auto const& [name, gradient] : alone.gradients) look(gradient, other.gradients.at(name));
  return worst;
}

}  // namespace

TEST_CASE("random expressions have the gradients of central differences, and by halves the same bits", "[nn][random]") {
  for (auto const seed : seeds(how_many())) {
    trial<in_double> one(seed, 2, 3);
    INFO("seed " << seed << ": " << one.source());
    auto const whole = one.run(false);
    CHECK(one.run(true) == whole);
    CHECK(one.untouched());
    CHECK(worst_difference(one, whole) < 2e-8);
  }
}

TEST_CASE("random expressions have in float and bfloat16 the gradients of double, and by halves the same bits",
          "[nn][random]") {
  for (auto const seed : seeds(how_many() / 5)) {
    INFO("seed " << seed);
    CHECK(halves_are_whole<environment<precision::fp32>>(seed));
    CHECK(halves_are_whole<environment<precision::bf16>>(seed));
  }
}

TEST_CASE("random expressions are the same on the ranks of a tensor group, with rows cut and without", "[nn][random]") {
  auto const all = seeds(how_many());
  std::vector<outcome> alone;
  for (auto const seed : all) alone.push_back(trial<in_double>(seed, 2, 5).run(false));
  for (int const ranks : {2, 3}) {
    for (bool const cuts_rows : {false, true}) {
      watchdog const guard("random expressions on a tensor group", std::chrono::seconds(90 + how_many() / 10));
      std::vector<std::vector<double>> worst(static_cast<std::size_t>(ranks), std::vector<double>(all.size()));
      launch(comm::threads{.ranks = ranks}, [&](auto& world) {
        parallel::communicator_group<in_double, std::remove_reference_t<decltype(world)>> group(world, cuts_rows);
        for (std::size_t i = 0; i < all.size(); ++i) {
          trial<in_double> part(all[i], 2, 5, group);
          worst[static_cast<std::size_t>(world.rank())][i] = worst_of_rank(part, alone[i]);
        }
      });
      for (std::size_t i = 0; i < all.size(); ++i) {
        INFO(ranks << " ranks, rows " << (cuts_rows ? "cut" : "whole") << ", seed " << all[i] << ": "
                   << trial<in_double>(all[i], 1, 1).source());
        double far = 0;
        for (auto const& each : worst) far = std::max(far, each[i]);
        CHECK(far < (far < 1e-11 ? 1e-11 : 10 * moved_by_rounding(all[i], alone[i])));
      }
    }
  }
}

TEST_CASE("a unit that was made without groups is refused in the pass of a tensor group", "[nn]") {
  using namespace nn;
  watchdog const guard("a unit in the pass of a tensor group");
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    parallel::communicator_group<in_double, std::remove_reference_t<decltype(world)>> group(world, false);
    expression<in_double> unit("unit", 4, nodes_of<in_double>(linear{.outputs = 4}), rank_groups<in_double>::none());
    arena<host> activations, scratch;
    samples const batch{};
    pass<in_double> pass{.activations = activations, .scratch = scratch, .batch = batch, .key = {}, .groups = group};
    typename expression<in_double>::saved saved;
    std::string said;
    try {
      unit.forward(pass, saved, {});
    } catch (config_error const& refused) {
      said = refused.what();
    }
    if (said.find("made for a tensor group of 1 rank, but the group of its pass has 2") == said.npos)
      throw std::runtime_error("said: " + said);
  });
}

TEST_CASE("concatenated and repeated layers have names and widths of their own", "[nn]") {
  using namespace nn;
  auto const layers =
      named("stem", chain(concat(named("a", linear{.outputs = 3}), named("b", chain(linear{.outputs = 5}, gelu()))),
                          repeat(2, residual(named("norm", layer_norm{}), linear{.outputs = 8}))));
  STATIC_REQUIRE(nn::detail::check<std::remove_const_t<decltype(layers)>>::fits_unit());
  rank_groups<in_double> const alone;
  expression<in_double> unit("unit", 6, nodes_of<in_double>(layers), alone);
  std::vector<std::string> names;
  unit.visit([&](parameter<in_double> const& each) {
    if (each.info.extents.rank() == 2) names.push_back(text(each.info.name, " ", to_string(each.info.extents)));
  });
  CHECK(names == std::vector<std::string>{"unit.stem.a.weight (6, 3)", "unit.stem.b.weight (6, 5)",
                                          "unit.stem.0.weight (8, 8)", "unit.stem.1.weight (8, 8)"});
  CHECK_THROWS_WITH(nodes_of<in_double>(repeat(0, layer_norm{})),
                    "trireme::nn::repeat: 0 layers; repeat a layer once or more");
}
