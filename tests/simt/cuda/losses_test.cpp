// Losses in CUDA memory, against those of the host.
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "tensors.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/losses.hpp"
#include "trireme/ops/sets/dense.hpp"
#include "trireme/ops/sets/parts.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace on_device;

namespace {

using on_host = ops::host_losses;
using tokens = std::vector<std::int32_t>;

template <class Precision>
using views = ops::detail::set_views<cuda, environment<Precision, cuda>>;
template <class Precision>
constexpr bool has_losses =
    ops::detail::scores<kernels, views<Precision>, cuda>&& ops::detail::takes_parts<kernels, views<Precision>, cuda>;
static_assert(has_losses<precision::fp32> && has_losses<precision::fp64> && has_losses<precision::bf16> &&
              has_losses<precision::fp16>);
static_assert(ops::rows_of_logits<cuda>(50257) == 8192 && ops::row_of_logits<cuda>(50257) == 50304 &&
              ops::row_of_logits<cuda>(64) == 64);

/// A class for each row; some rows have none.
tokens some_targets(std::int64_t rows, std::int64_t classes, std::int32_t ignored) {
  tokens all(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(classes));
    if (i % 5 == 3) all[i] = i % 2 == 0 ? -4 : ignored;
  }
  if (rows > 1) all[1] = static_cast<std::int32_t>(classes - 1);
  return all;
}
tensor_view<std::int32_t const, cuda> ids(shifted<std::int32_t> const& it) { return it.view; }

struct row_shape {
  std::int64_t rows, classes, row_length, shift;
};

template <class T>
void compare_rows(row_shape const& at, ops::cross_entropy_terms const& terms, bool gradient) {
  CAPTURE(at.rows, at.classes, at.row_length, at.shift, terms.smoothing, terms.z, gradient, sizeof(T));
  constexpr double weight = 0.37;
  auto want = numbers<T>(at.rows * at.classes, static_cast<std::uint64_t>(at.classes), 6);
  auto const targets = some_targets(at.rows, at.classes, terms.ignored);
  std::vector<T> longer(static_cast<std::size_t>(at.rows * at.row_length), T(std::nanf("")));
  auto const each = [&](auto&& f) {
    for (std::int64_t row = 0; row < at.rows; ++row) {
      for (std::int64_t c = 0; c < at.row_length; ++c)
        f(static_cast<std::size_t>(row * at.row_length + c), static_cast<std::size_t>(row * at.classes + c),
          c < at.classes);
    }
  };
  each([&](std::size_t to, std::size_t from, bool counts) {
    if (counts) longer[to] = want[from];
  });
  shifted<T> const logits(longer, at.shift);
  shifted<std::int32_t> const classes(targets);
  auto const got = at.classes == at.row_length
                       ? kernels::cross_entropy(logits.view, ids(classes), weight, gradient, terms).read()
                       : kernels::cross_entropy(logits.view, ids(classes), weight, gradient, terms, at.classes).read();
  auto const loss = on_host::cross_entropy(tensor_view(want), tensor_view(targets), weight, gradient, terms);
  CHECK(got.count == loss.count);
  CHECK(got.left_out == loss.left_out);
  CHECK(got.sum == Approx(loss.sum).epsilon(sizeof(T) == 8 ? 1e-12 : 2e-6).margin(1e-6));
  auto const after = logits.here();
  std::vector<T> inside, wanted;
  bool zeros = true;
  each([&](std::size_t to, std::size_t from, bool counts) {
    if (counts) {
      inside.push_back(after[to]);
      wanted.push_back(want[from]);
    } else {
      zeros = zeros && static_cast<double>(after[to]) == 0.0;
    }
  });
  CHECK((at.classes == at.row_length || zeros == gradient));
  CHECK(close(inside, wanted, gradient ? step_of<T> : 0, gradient ? (sizeof(T) == 8 ? 1e-14 : 2e-7) : 0));
}

}  // namespace

TEST_CASE("a cross entropy and its gradient on a device are the host's", "[losses]") {
  std::vector<row_shape> shapes{{7, 5, 5, 0}, {7, 100, 104, 0}, {6, 131, 131, 3}, {3, 1000, 1003, 1}, {1, 1, 1, 0}};
  for_types([&]<class T>(T) {
    for (auto const& shape : shapes) {
      for (bool const gradient : {true, false}) {
        compare_rows<T>(shape, {}, gradient);
        compare_rows<T>(shape, {2, 0.1, 0}, gradient);
        compare_rows<T>(shape, {2, 0.1, 1e-3}, gradient);
      }
    }
  });
}

TEST_CASE("rows longer than the registers of a block have the same cross entropy", "[losses]") {
  if (sanitizer() == "thread") return;  // blocks are smaller there
  compare_rows<double>({1, 17001, 17003, 1}, {2, 0.1, 1e-3}, true);
  compare_rows<float>({1, 33000, 33000, 0}, {}, true);
  if (!large) return;
  compare_rows<bfloat16>({300, 50257, 50304, 0}, {}, true);
  compare_rows<float16>({300, 50257, 50257, 0}, {}, true);
  compare_rows<bfloat16>({30, 150001, 150016, 0}, {}, true);
}

TEST_CASE("a cross entropy on a device keeps large logits, and passes NaN and infinity on", "[losses]") {
  std::vector<float> logits{1e4F, -1e4F, 9e3F, 0, -3e38F, 3e38F, 2, 1, 0};
  auto want = logits;
  tokens const targets{1, 2, 2};
  shifted<float> const there(logits);
  shifted<std::int32_t> const classes(targets);
  auto const got = kernels::cross_entropy(there.view, ids(classes), 1.0, true).read();
  auto const loss = on_host::cross_entropy(tensor_view(want), tensor_view(targets), 1.0, true);
  CHECK(got.sum == Approx(loss.sum));
  CHECK(close(there.here(), want, 1e-6, 1e-30));
  for (auto const bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    logits[4] = bad;
    shifted<float> const spoiled(logits);
    CHECK(std::isnan(kernels::cross_entropy(spoiled.view, ids(classes), 1.0, true).read().sum));
    auto const after = spoiled.here();
    CHECK(std::isnan(after[3]));
    CHECK(!std::isnan(after[0]));
  }
}

TEST_CASE("a cross entropy on a device refuses a target that is no class", "[losses]") {
  shifted<float> const logits(numbers<float>(20, 1));
  shifted<std::int32_t> const classes({0, 5, 4, 7});
  CHECK(sentence_of<config_error>([&] { (void)kernels::cross_entropy(logits.view, ids(classes), 1.0, true).read(); }) ==
        "trireme::ops::cross_entropy: target 5 is outside of 5 classes");
  CHECK(sentence_of<assertion_error>([&] {
          (void)kernels::cross_entropy(logits.view.flat(0, 19), ids(classes), 1.0, true).read();
        }) == "trireme::ops::cross_entropy: sizes 19 and 16 differ");
  CHECK(sentence_of<assertion_error>([&] {
          (void)kernels::cross_entropy(logits.view, ids(classes), 1.0, true, {}, 6).read();
        }) == "trireme::ops::cross_entropy: 6 classes in rows of 5 numbers");
  tensor_view<std::int32_t const, cuda> const nothing;
  CHECK(kernels::cross_entropy(logits.view.flat(0, 0), nothing, 1.0, true).read().count == 0);
}

TEST_CASE("a cross entropy whose classes are on several ranks is the host's", "[losses]") {
  for_types([]<class T>(T) {
    using real = ops::accumulate_t<T>;
    for (std::int64_t const shift : {0, 1}) {
      constexpr std::int64_t rows = 9, here = 71, first = 50;
      constexpr double weight = 0.5;
      ops::table_range const part{first, 200};
      auto logits = numbers<T>(rows * here, 3);
      auto const targets = some_targets(rows, part.whole, -1);
      for (auto const& terms : {ops::cross_entropy_terms{}, ops::cross_entropy_terms{-1, 0.2, 1e-3}}) {
        shifted<T> const there(logits, shift);
        shifted<std::int32_t> const classes(targets);
        std::vector<real> peaks(rows), masses(rows), chosen(rows);
        shifted<real> const there_peaks(peaks), there_masses(masses), there_chosen(chosen);
        kernels::row_peaks(there.view, there_peaks.view);
        on_host::row_peaks(tensor_view(logits), tensor_view(peaks));
        CHECK(same(there_peaks.here(), peaks));
        for (auto& each : peaks) each += real(0.25);  // the group's
        kernels::upload(there_peaks.view, peaks);
        kernels::row_masses(there.view, ids(classes), part, there_peaks.view, there_masses.view, there_chosen.view,
                            terms);
        on_host::row_masses(tensor_view(logits), tensor_view(targets), part, tensor_view(peaks), tensor_view(masses),
                            tensor_view(chosen), terms);
        constexpr double rounding = sizeof(T) == 8 ? 1e-13 : 2e-6;
        CHECK(close(there_masses.here(), masses, rounding, 0));
        CHECK(close(there_chosen.here(), chosen, rounding, rounding));
        for (bool const gradient : {false, true}) {
          auto want = logits;
          auto const got = kernels::cross_entropy_part(there.view, ids(classes), part, there_peaks.view,
                                                       there_masses.view, there_chosen.view, weight, gradient, terms)
                               .read();
          auto const loss =
              on_host::cross_entropy_part(tensor_view(want), tensor_view(targets), part, tensor_view(peaks),
                                          tensor_view(masses), tensor_view(chosen), weight, gradient, terms);
          CHECK(got.count == loss.count);
          CHECK(got.left_out == loss.left_out);
          CHECK(got.sum == Approx(loss.sum).epsilon(rounding));
          CHECK(close(there.here(), want, step_of<T>, gradient ? (sizeof(T) == 8 ? 1e-14 : 2e-7) : 0));
        }
      }
    }
  });
}

TEST_CASE("squared errors on a device are the host's", "[losses]") {
  for_types([]<class T>(T) {
    for (auto const& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 37}, {3, 3000}}) {
      for (std::int64_t const shift : {0, 1}) {
        auto const y = numbers<T>(rows * columns, 4), seed = numbers<T>(rows * columns, 5);
        auto const targets = numbers<float>(rows * columns, 6);
        auto want = seed;
        shifted<T> const there(y, shift), dy(seed, shift);
        shifted<float> const wanted(targets, shift);
        auto const at = [&, rows = rows, columns = columns](auto view) { return view.reshaped({rows, columns}); };
        tensor_view<float const, cuda> const goal = at(wanted.view);
        auto const got = kernels::squared_error(at(dy.view), at(there.view), goal, 0.7).read();
        auto const loss =
            on_host::squared_error(at(tensor_view(want)), at(tensor_view(y)), at(tensor_view(targets)), 0.7);
        CHECK(got.count == rows);
        CHECK(got.sum == Approx(loss.sum).epsilon(1e-6));
        CHECK(same(dy.here(), want));
        CHECK(kernels::squared_error(tensor_view<T, cuda>(), at(there.view), goal, 0.7).read().sum == got.sum);
      }
    }
  });
  auto const y = numbers<double>(50, 4), targets = numbers<double>(50, 5);
  std::vector<double> want(50);
  shifted<double> const there(y), wanted(targets);
  auto const got = kernels::squared_error(there.view, there.view, wanted.view, 0.7).read();
  auto const loss = on_host::squared_error(tensor_view(want), tensor_view(y), tensor_view(targets), 0.7);
  CHECK(got.sum == Approx(loss.sum).epsilon(1e-14));
  CHECK(same(there.here(), want));
}

TEST_CASE("binary cross entropies on a device are the host's", "[losses]") {
  for_types([]<class T>(T) {
    for (auto const& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 37}, {3, 3000}}) {
      auto const at = [&, rows = rows, columns = columns](auto view) { return view.reshaped({rows, columns}); };
      auto const y = numbers<T>(rows * columns, 4, 20);
      auto targets = numbers<float>(rows * columns, 6, 0.5);
      for (auto& each : targets) each += 0.5F;
      auto want = y;
      shifted<T> const there(y);
      shifted<float> const wanted(targets);
      tensor_view<float const, cuda> const goal = at(wanted.view);
      auto const alone = kernels::binary_cross_entropy(tensor_view<T, cuda>(), at(there.view), goal, 0.7).read();
      auto const got = kernels::binary_cross_entropy(at(there.view), at(there.view), goal, 0.7).read();
      tensor_view<float const> const host_goal = at(tensor_view<float const>(targets));
      auto const loss = on_host::binary_cross_entropy(at(tensor_view(want)), at(tensor_view(y)), host_goal, 0.7);
      CHECK(got.count == rows);
      CHECK(got.sum == Approx(loss.sum).epsilon(1e-12));
      CHECK(got.sum == alone.sum);
      CHECK(close(there.here(), want, step_of<T>, 1e-12));
    }
  });
  std::vector<double> targets{0.5, 0, 1, 1.5, -2, 0.1};
  shifted<float> const there(numbers<float>(6, 4));
  shifted<double> const wanted(targets);
  tensor_view<double const, cuda> const goal = wanted.view.reshaped({3, 2});
  CHECK(
      sentence_of<config_error>([&] {
        (void)kernels::binary_cross_entropy(tensor_view<float, cuda>(), there.view.reshaped({3, 2}), goal, 1.0).read();
      }) == "trireme::nn::loss::binary_cross_entropy: target 1.5 is not a probability; targets lie in [0, 1]");
}
