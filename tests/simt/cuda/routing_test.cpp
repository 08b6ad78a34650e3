// Routing of rows to experts in CUDA memory gives what that in host memory gives: the same bits for integers, copies
// and sums in the same order; probabilities and sums over experts to a few units in the last place.
#include "trireme/ops/host/routing.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "compared.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/sets/experts.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using compared::made;

namespace {

using on_host = ops::host_routing;
using on_device = ops::on<cuda>;

template <class Precision>
constexpr bool complete =
    ops::detail::routes<on_device, ops::detail::set_views<cuda, environment<Precision, cuda>>, cuda>;
static_assert(complete<precision::fp32> && complete<precision::fp64> && complete<precision::bf16> &&
              complete<precision::fp16>);

/// For sums in the type of T's sums, and for elements of T that are rounded from them.
template <class T>
constexpr double of_sums = std::is_same_v<T, double> ? 1e-13 : 2e-6;
template <class T>
constexpr double of_elements = std::is_same_v<T, bfloat16>  ? 0.01
                               : std::is_same_v<T, float16> ? 0.001
                                                            : of_sums<T>;

struct setting {
  std::int64_t rows, experts, choices;
};
std::vector<setting> settings() {
  std::vector<setting> all{{5, 1, 1}, {37, 8, 1}, {64, 8, 2}, {19, 70, 40}, {7, 200, 6}, {0, 8, 2}};
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({16384, 256, 8});
#endif
  return all;
}

/// Choices of experts, some of which are not chosen at all.
compared::pair<std::int32_t> choices_of(setting const& how, std::uint32_t seed) {
  auto const random = compared::numbers<float>(how.rows * how.choices, seed);
  std::vector<std::int32_t> chosen;
  for (auto const each : random) {
    auto const share = (each + 3) / 6;
    chosen.push_back(static_cast<std::int32_t>(share * share * static_cast<float>(how.experts)));
  }
  return {shape{how.rows, how.choices}, chosen};
}
/// Different experts for each row.
compared::pair<std::int32_t> different_choices(setting const& how) {
  std::vector<std::int32_t> chosen;
  for (std::int64_t row = 0; row < how.rows; ++row)
    for (std::int64_t j = 0; j < how.choices; ++j)
      chosen.push_back(static_cast<std::int32_t>((row * 7 + how.choices - j) % how.experts));
  return {shape{how.rows, how.choices}, chosen};
}
template <class T>
compared::pair<T> above_zero(shape const& extents, std::uint32_t seed) {
  auto numbers = compared::numbers<T>(extents.size(), seed);
  for (auto& each : numbers) each = static_cast<T>(0.05F + static_cast<float>(each) * static_cast<float>(each));
  return {extents, numbers};
}

}  // namespace

TEMPLATE_TEST_CASE("rows choose experts on a device as on the host", "[routing]", float, double, bfloat16, float16) {
  using sums = ops::accumulate_t<TestType>;
  for (auto const& how : settings()) {
    auto const [rows, experts, choices] = how;
    CAPTURE(rows, experts, choices);
    auto logits = made<TestType>({rows, experts}, 1, rows % 2);
    auto p = made<sums>({rows, experts}, 2), weights = made<sums>({rows, choices}, 3);
    auto chosen = different_choices(how);
    on_host::route<TestType>(p.on_host(), chosen.on_host(), weights.on_host(), logits.on_host());
    on_device::route<TestType>(p.device(), chosen.device(), weights.device(), logits.device());
    CHECK(p.difference() <= of_sums<TestType>);
    if (experts < 100) CHECK(chosen.difference() <= 0);  // else some may differ by an error of exp
    if (experts < 100) CHECK(weights.difference() <= of_sums<TestType>);

    auto given = different_choices(how);
    auto q = above_zero<sums>({rows, experts}, 4), w = made<sums>({rows, choices}, 5),
         dw = made<sums>({rows, choices}, 6);
    auto slopes = made<sums>({rows, experts}, 7), nothing = made<sums>({0}, 8);
    auto dlogits = made<TestType>({rows, experts}, 9, rows % 2);
    for (bool const balanced : {false, true}) {
      auto& s = balanced ? slopes : nothing;
      on_host::route_backward<TestType>(dlogits.on_host(), dw.on_host(), q.on_host(), given.on_host(), w.on_host(),
                                        s.on_host());
      on_device::route_backward<TestType>(dlogits.device(), dw.device(), q.device(), given.device(), w.device(),
                                          s.device());
      // Errors of a row's sum, which all of its experts enter, are divided by the probability of those that it has
      // chosen.
      CHECK(dlogits.difference() <= 20 * of_elements<TestType> * std::max(1.0, static_cast<double>(experts) / 8));
    }
  }
}

TEST_CASE("of equal experts a device chooses those with lower numbers, and NaN last", "[routing]") {
  auto const nan = std::nanf("");
  std::vector<float> logits(80, -1);
  for (auto const at : {70, 3, 35}) logits[static_cast<std::size_t>(at)] = 2;
  compared::pair<float> x(shape{1, 80}, logits);
  auto p = made<float>({1, 80}, 1), weights = made<float>({1, 5}, 2);
  compared::pair<std::int32_t> chosen(shape{1, 5}, std::vector<std::int32_t>(5));
  on_device::route(p.device(), chosen.device(), weights.device(), x.device());
  CHECK(chosen.result() == std::vector<std::int32_t>{3, 35, 70, 0, 1});
  compared::pair<float> no_number(shape{1, 80}, std::vector<float>(80, nan));
  on_device::route(p.device(), chosen.device(), weights.device(), no_number.device());
  CHECK(chosen.result() == std::vector<std::int32_t>{0, 1, 2, 3, 4});
  CHECK(std::isnan(weights.result()[0]));
}

TEMPLATE_TEST_CASE("rows choose experts by scores on a device as on the host", "[routing]", float, double, bfloat16,
                   float16) {
  using sums = ops::accumulate_t<TestType>;
  struct grouped {
    setting of;
    ops::scored_choice how;
  };
  std::vector<grouped> all{{{9, 12, 3}, {1, 1, 1.0}},   {{9, 12, 3}, {4, 2, 2.5}}, {{9, 12, 2}, {12, 3, 1.5}},
                           {{6, 160, 6}, {40, 3, 1.0}}, {{5, 64, 8}, {8, 8, 2.5}}, {{0, 64, 8}, {8, 4, 2.5}}};
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({{16384, 256, 8}, {8, 4, 2.5}});
#endif
  for (auto const& [of, how] : all) {
    auto const [rows, experts, choices] = of;
    CAPTURE(rows, experts, choices, how.groups, how.chosen_groups);
    auto logits = made<TestType>({rows, experts}, 1), bias = made<TestType>({experts}, 2);
    auto scores = made<sums>({rows, experts}, 3), weights = made<sums>({rows, choices}, 4);
    auto chosen = different_choices(of);
    on_host::score<TestType>(scores.on_host(), chosen.on_host(), weights.on_host(), logits.on_host(), bias.on_host(),
                             how);
    on_device::score<TestType>(scores.device(), chosen.device(), weights.device(), logits.device(), bias.device(), how);
    CHECK(scores.difference() <= of_sums<TestType>);
    if (rows < 100) CHECK(chosen.difference() <= 0);  // else some may differ by an error of exp
    if (rows < 100) CHECK(weights.difference() <= of_sums<TestType>);

    auto given = different_choices(of);
    auto s = above_zero<sums>({rows, experts}, 5), w = made<sums>({rows, choices}, 6),
         dw = made<sums>({rows, choices}, 7);
    auto dlogits = made<TestType>({rows, experts}, 8);
    on_host::score_backward<TestType>(dlogits.on_host(), dw.on_host(), s.on_host(), given.on_host(), w.on_host(), how);
    on_device::score_backward<TestType>(dlogits.device(), dw.device(), s.device(), given.device(), w.device(), how);
    CHECK(dlogits.difference() <= of_elements<TestType>);
  }
}

TEST_CASE("choices are counted and sorted by expert on a device as on the host", "[routing]") {
  std::vector<setting> all{{1, 1, 1}, {50, 5, 2}, {333, 40, 3}, {700, 100, 1}, {0, 5, 2}, {3, 4096, 2}};
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({65536, 256, 8});
#endif
  for (auto const& how : all) {
    CAPTURE(how.rows, how.experts, how.choices);
    auto chosen = choices_of(how, 1);
    auto positions = different_choices(how);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(how.experts), -1), want(counts);
    on_host::sort_by_expert(positions.on_host(), want, chosen.on_host());
    on_device::sort_by_expert(positions.device(), counts, chosen.device());
    CHECK(counts == want);
    CHECK(positions.result() ==
          std::vector<std::int32_t>(positions.on_host().span().begin(), positions.on_host().span().end()));

    compared::pair<float> excess(shape{how.experts}, std::vector<float>(counts.size(), 3));
    on_host::add_excess(excess.on_host(), chosen.on_host());
    on_device::add_excess(excess.device(), chosen.device());
    CHECK(excess.difference() <= 0);
  }
}

TEMPLATE_TEST_CASE("the imbalance on a device is the host's", "[routing]", float, double) {
  std::vector<setting> all{{1, 1, 1}, {60, 5, 2}, {12, 300, 7}, {0, 5, 2}};
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({24000, 256, 8});
#endif
  for (auto const& how : all) {
    auto const rows = how.rows % 3 == 0 && how.rows > 0 ? how.rows / 3 : 1;  // of a sample
    CAPTURE(how.rows, how.experts, how.choices);
    auto chosen = choices_of(how, 1);
    auto p = above_zero<TestType>({how.rows, how.experts}, 2), slopes = made<TestType>({how.rows, how.experts}, 3);
    auto const want = on_host::imbalance(slopes.on_host(), p.on_host(), chosen.on_host(), rows, 0.3).sum;
    auto const got = on_device::imbalance(slopes.device(), p.device(), chosen.device(), rows, 0.3).read().sum;
    CHECK(std::abs(got - want) <= 1e-11 * (1 + std::abs(want)));
    CHECK(slopes.difference() <= 0);
    CHECK(
        std::abs(on_device::imbalance(tensor_view<TestType, cuda>{}, p.device(), chosen.device(), rows, 0).read().sum -
                 got) <= 0);
  }
}

TEMPLATE_TEST_CASE("rows go to experts and are combined on a device as on the host", "[routing]", float, double,
                   bfloat16, float16) {
  using sums = ops::accumulate_t<TestType>;
  struct dispatched {
    setting of;
    std::int64_t channels, offset;
  };
  std::vector<dispatched> all{
      {{11, 4, 2}, 5, 0}, {{11, 4, 2}, 64, 0}, {{7, 6, 3}, 48, 1}, {{20, 3, 1}, 300, 0}, {{0, 4, 2}, 8, 0}};
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({{4096, 64, 6}, 2048, 0});
#endif
  for (auto const& [of, channels, offset] : all) {
    auto const n = of.rows * of.choices;
    CAPTURE(of.rows, of.choices, channels, offset);
    auto chosen = choices_of(of, 1), positions = choices_of(of, 2);
    std::vector<std::int64_t> counts(static_cast<std::size_t>(of.experts));
    on_host::sort_by_expert(positions.on_host(), counts, chosen.on_host());
    on_device::sort_by_expert(positions.device(), counts, chosen.device());
    auto x = made<TestType>({of.rows, channels}, 3, offset), to = made<TestType>({n, channels}, 4, offset);
    on_host::dispatch(to.on_host(), x.on_host(), positions.on_host());
    on_device::dispatch(to.device(), x.device(), positions.device());
    CHECK(to.difference() <= 0);

    auto results = made<TestType>({n, channels}, 5, offset), y = made<TestType>({of.rows, channels}, 6, offset);
    auto weights = made<sums>({of.rows, of.choices}, 7), dweights = made<sums>({of.rows, of.choices}, 8);
    on_host::combine(y.on_host(), results.on_host(), positions.on_host(), weights.on_host());
    on_device::combine(y.device(), results.device(), positions.device(), weights.device());
    CHECK(y.difference() <= compared::of_contraction<TestType>);
    on_host::combine(y.on_host(), results.on_host(), positions.on_host(), tensor_view<sums, host>{});
    on_device::combine(y.device(), results.device(), positions.device(), tensor_view<sums, cuda>{});
    CHECK(y.difference() <= compared::of_contraction<TestType>);

    on_host::combine_backward(to.on_host(), dweights.on_host(), x.on_host(), results.on_host(), positions.on_host(),
                              weights.on_host());
    on_device::combine_backward(to.device(), dweights.device(), x.device(), results.device(), positions.device(),
                                weights.device());
    CHECK(to.difference() <= 0);
    CHECK(dweights.difference() <= of_sums<TestType> * static_cast<double>(1 + channels));
  }
}

TEST_CASE("what kernels of routing do not take is refused", "[routing]") {
  auto const logits = made<float>({2, 3}, 1), p = made<float>({2, 3}, 2), weights = made<float>({2, 4}, 3);
  auto const chosen = different_choices({2, 3, 4});
  CHECK(sentence_of<assertion_error>([&] {
          on_device::route(p.device(), chosen.device(), weights.device(), logits.device());
        }) == "trireme::ops::route: 4 choices of 3 experts");
  std::vector<std::int64_t> counts(5000);
  CHECK(sentence_of<config_error>([&] { on_device::sort_by_expert(chosen.device(), counts, chosen.device()); }) ==
        "trireme::ops::sort_by_expert: a kernel in CUDA memory takes at most 4096 experts, and here are 5000");
}
