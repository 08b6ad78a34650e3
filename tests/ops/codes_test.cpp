#include "trireme/ops/host/codes.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "../catch.hpp"
#include "support.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/host/reductions.hpp"

using namespace trireme;
using kernels = ops::host_codes;
using ops::code_form;
using ops::random_stream;

namespace {

template <class G>
tensor<G> normal(std::int64_t n, unsigned seed = 3) {
  std::mt19937 generate(seed);
  std::normal_distribution<float> draw;
  tensor<G> x(shape{n});
  for (auto& each : x.span()) each = static_cast<G>(draw(generate));
  return x;
}

struct encoded {
  tensor<float> scales;
  tensor<std::uint8_t> codes;
};
template <class G>
encoded encode(tensor<G> const& x, code_form const& form, random_stream const* rounding = nullptr) {
  encoded out{tensor<float>(shape{form.scales(x.size())}), tensor<std::uint8_t>(shape{form.code_bytes(x.size())})};
  kernels::encode_codes(out.scales.view(), out.codes.view(), x.view(), form, rounding);
  return out;
}
template <class G>
tensor<G> decode(encoded const& from, std::int64_t n, code_form const& form) {
  tensor<G> y(shape{n});
  for (auto& each : y.span()) each = 77;
  kernels::decode_codes(y.view(), from.scales, from.codes, form, false);
  return y;
}
template <class G>
tensor<G> through(tensor<G> const& x, code_form const& form, random_stream const* rounding = nullptr) {
  return decode<G>(encode(x, form, rounding), x.size(), form);
}

constexpr code_form forms[] = {{8, 256}, {8, 64}, {4, 256}, {2, 512}, {1, 512}};

}  // namespace

TEMPLATE_TEST_CASE("codes of few bits are within their scale of the numbers, for every size", "[ops]", float, double) {
  for (auto const& form : forms) {
    for (std::int64_t const n : {0, 1, 63, 64, 65, 255, 257, 1000, 5003}) {
      auto const x = normal<TestType>(n);
      auto const kept = encode(x, form);
      auto const y = decode<TestType>(kept, n, form);
      bool right = true;
      for (std::int64_t i = 0; i < n; ++i) {
        auto const scale = static_cast<double>(kept.scales[i / form.block]);
        auto const error = std::fabs(static_cast<double>(y[i]) - static_cast<double>(x[i]));
        if (form.bits > 1) right = right && error <= 0.5001 * scale;
        if (form.bits == 1) right = right && static_cast<double>(y[i]) == (x[i] < 0 ? -scale : scale);
      }
      INFO(form.bits << " bits, " << n << " numbers");
      CHECK(right);
    }
  }
  auto const x = normal<float>(512);
  double mean = 0;
  for (auto const each : x.span()) mean += std::fabs(static_cast<double>(each)) / 512;
  CHECK(static_cast<double>(encode(x, {1, 512}).scales[0]) == Approx(mean).epsilon(1e-6));
}

TEST_CASE("codes and decoded sums are the same bits at every CPU level", "[ops]") {
  random_stream const random{{5, 17}, 1, 2};
  for (auto const& form : forms) {
    auto const x = normal<float>(4097);
    auto const first = normal<float>(4097, 9);
    std::vector<std::uint8_t> codes;
    std::vector<float> scales, sums;
    at_each_level([&] {
      auto const kept = encode(x, form, &random);
      auto sum = normal<float>(4097, 9);
      kernels::decode_codes(sum.view(), kept.scales, kept.codes, form, true);
      if (codes.empty()) {
        codes.assign(kept.codes.span().begin(), kept.codes.span().end());
        scales.assign(kept.scales.span().begin(), kept.scales.span().end());
        sums.assign(sum.span().begin(), sum.span().end());
      }
      CHECK(same_bits<std::uint8_t>(kept.codes.span(), codes));
      CHECK(same_bits<float>(kept.scales.span(), scales));
      CHECK(same_bits<float>(sum.span(), sums));
    });
    auto const y = through(x, form, &random);
    bool exact = true;
    for (std::size_t i = 0; i < 4097; ++i) {
      auto const at = static_cast<std::int64_t>(i);
      exact = exact && sums[i] == first[at] + y[at];
    }
    CHECK(exact);
  }
}

TEST_CASE("a block with NaN or infinity arrives as NaN, and its neighbours do not change", "[ops]") {
  for (auto const& form : forms) {
    for (float const bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      auto x = normal<float>(3 * form.block);
      auto const clean = through(x, form);
      x[form.block + 7] = bad;
      at_each_level([&] {
        auto const y = through(x, form);
        bool right = true;
        for (std::int64_t i = 0; i < x.size(); ++i)
          right = right && (i / form.block == 1 ? std::isnan(y[i]) : y[i] == clean[i]);
        CHECK(right);
      });
    }
  }
}

TEST_CASE("huge numbers stay finite, and denormal ones become zeros", "[ops]") {
  random_stream const random{{1, 2}, 3, 4};
  constexpr float most = std::numeric_limits<float>::max();
  for (auto const& form : forms) {
    auto x = normal<float>(form.block);
    for (std::int64_t i = 0; i < x.size(); ++i) x[i] = x[i] < 0 ? -most : most;
    auto const y = through(x, form, &random);
    bool near = true;
    for (std::int64_t i = 0; i < x.size(); ++i)
      near = near && std::isfinite(y[i]) && std::fabs(y[i] / x[i] - 1) < 1e-3F;
    CHECK(near);
    for (float const tiny : {std::numeric_limits<float>::denorm_min(), 1e-38F, 0x1p-101F}) {
      for (auto& each : x.span()) each = tiny;
      auto const zeros_of = through(x, form, &random);
      CHECK(std::all_of(zeros_of.span().begin(), zeros_of.span().end(), [](float each) { return each == 0; }));
    }
    for (auto& each : x.span()) each = 0x1p-90F;
    auto const small = through(x, form, &random);
    CHECK(small[3] == Approx(0x1p-90F).epsilon(1e-2));
    for (auto& each : x.span()) each = 0;
    CHECK(through(x, form, &random)[5] == 0);
  }
}

TEST_CASE("stochastic rounding is unbiased, with the variance of independent draws", "[ops]") {
  constexpr std::int64_t n = 512;
  constexpr int draws = 4000;
  auto const x = normal<float>(n);
  for (auto const& form : {code_form{8, 256}, code_form{4, 256}, code_form{2, 256}}) {
    std::vector<double> sum(n), squares(n);
    double neighbours = 0, steps = 0, expected = 0;
    std::vector<double> before(n);
    auto const scales = encode(x, form).scales;
    for (int draw = 0; draw < draws; ++draw) {
      random_stream const random{{8, static_cast<std::uint64_t>(draw)}, 1, 2};
      auto const y = through(x, form, &random);
      double last = 0;
      for (std::size_t i = 0; i < n; ++i) {
        auto const at = static_cast<std::int64_t>(i);
        auto const error =
            (static_cast<double>(y[at]) - static_cast<double>(x[at])) / static_cast<double>(scales[at / form.block]);
        sum[i] += error;
        squares[i] += error * error;
        neighbours += error * last;
        steps += error * before[i];
        before[i] = last = error;
      }
    }
    double worst = 0, all = 0, variance = 0;
    for (std::size_t i = 0; i < n; ++i) {
      auto const at = static_cast<std::int64_t>(i);
      double const place = static_cast<double>(x[at]) / static_cast<double>(scales[at / form.block]);
      double const p = place - std::floor(place);
      worst = std::max(worst, std::fabs(sum[i]) / std::sqrt(draws * std::max(p * (1 - p), 1e-3)));
      all += sum[i];
      variance += squares[i] / draws;
      expected += p * (1 - p);
    }
    INFO(form.bits << " bits");
    CHECK(worst < 4.6);  // standard deviations, the largest of 512
    CHECK(std::fabs(all) / std::sqrt(draws * expected) < 4);
    CHECK(variance == Approx(expected).epsilon(0.02));
    CHECK(std::fabs(neighbours) < 4 * expected / n * std::sqrt(double{n} * draws));
    CHECK(std::fabs(steps) < 4 * expected / n * std::sqrt(double{n} * draws));
  }
}

TEST_CASE("equal streams give equal codes, and others differ", "[ops]") {
  auto const x = normal<float>(10000);
  code_form const form{4, 256};
  auto const coded = [&](random_stream const& random) {
    auto const kept = encode(x, form, &random);
    return std::vector<std::uint8_t>(kept.codes.span().begin(), kept.codes.span().end());
  };
  auto const first = coded({{1, 2}, 3, 4});
  CHECK(coded({{1, 2}, 3, 4}) == first);
  CHECK(coded({{2, 2}, 3, 4}) != first);
  CHECK(coded({{1, 3}, 3, 4}) != first);
  CHECK(coded({{1, 2}, 3, 5}) != first);
}

TEST_CASE("sizes of codes that do not fit are refused", "[ops]") {
  tensor<float> x(shape{100}), scales(shape{1});
  tensor<std::uint8_t> codes(shape{64});
  CHECK_THROWS_WITH(kernels::encode_codes(scales.view(), codes.view(), x.view(), {8, 256}, nullptr),
                    "trireme::ops::encode_codes: 1 scales and 64 bytes of codes for 100 numbers; they have 1 and 128");
}

TEMPLATE_TEST_CASE("drawn elements are one of each stratum, each equally often", "[ops]", float, bfloat16) {
  constexpr std::int64_t n = 100, k = 20;
  tensor<float> x(shape{n});
  std::iota(x.span().begin(), x.span().end(), 1.0F);
  std::vector<int> seen(n);
  for (std::uint64_t step = 0; step < 2000; ++step) {
    random_stream const drawn{{4, step}, 1, 0};
    tensor<TestType> values(shape{k});
    kernels::gather_drawn(values.view(), x.view(), drawn, false);
    auto y = zeros<float>({n});
    kernels::scatter_drawn(y.view(), values.view(), drawn);
    for (std::int64_t i = 0; i < k; ++i) {
      int written = 0;
      for (std::int64_t j = 5 * i; j < 5 * (i + 1); ++j) {
        if (y[j] == 0) continue;
        ++written;
        ++seen[static_cast<std::size_t>(j)];
        if (y[j] != x[j]) written = 99;
      }
      if (written != 1) FAIL("stratum " << i << " in step " << step);
    }
  }
  auto const [least, most] = std::minmax_element(seen.begin(), seen.end());
  CHECK((*least > 400 - 90 && *most < 400 + 90));  // 5 standard deviations
  for (std::int64_t const some : {0, 1, 3, 7}) {   // uneven strata, and weights that make the sum that of 1s on average
    auto ones = zeros<float>({7});
    for (auto& each : ones.span()) each = 1;
    tensor<float> values(shape{some});
    kernels::gather_drawn(values.view(), ones.view(), {{1, 1}, 1, 0}, true);
    CHECK(std::accumulate(values.span().begin(), values.span().end(), 0.0F) == (some == 0 ? 0 : 7));
  }
}

TEMPLATE_TEST_CASE("select_sampled finds what select_largest finds", "[ops]", float, double) {
  using exact = ops::host_reductions;
  for (std::int64_t const n : {0, 1, 100, 5000, 100'000}) {
    auto const x = normal<TestType>(n, 21);
    auto const k = (n + 99) / 100;
    tensor<std::int32_t> found(shape{k}), wanted(shape{k});
    tensor<TestType> values(shape{k}), best(shape{k});
    kernels::select_sampled(x.view(), 4096, found.view(), values.view());
    exact::select_largest(x.view(), wanted.view(), best.view());
    INFO(n << " elements");
    CHECK(std::equal(wanted.span().begin(), wanted.span().end(), found.span().begin()));
    CHECK(std::equal(best.span().begin(), best.span().end(), values.span().begin()));
  }
}

TEST_CASE("select_sampled keeps NaN, bears equal magnitudes, and leaves the rest of a payload empty", "[ops]") {
  tensor<std::int32_t> indices(shape{100});
  tensor<float> values(shape{100});
  auto x = normal<float>(10'000);
  x[7777] = std::numeric_limits<float>::quiet_NaN();
  kernels::select_sampled(x.view(), 500, indices.view(), values.view());
  CHECK(std::count(indices.span().begin(), indices.span().end(), 7777) == 1);

  for (auto& each : x.span()) each = 1;
  kernels::select_sampled(x.view(), 500, indices.view(), values.view());
  for (std::int64_t i = 0; i < 100; ++i) CHECK((indices[i] == i && values[i] == 1));

  // A sample that holds all large elements overestimates: what is missing has index 0 and value 0, at the beginning.
  x = normal<float>(10'000);
  std::vector<std::int32_t> large;
  for (std::int64_t i = 0; i < 20; ++i) {
    large.push_back(
        static_cast<std::int32_t>(20 * i + static_cast<std::int64_t>(mix(static_cast<std::uint64_t>(i)) % 20)));
    x[large.back()] = 100;
  }
  kernels::select_sampled(x.view(), 500, indices.view(), values.view());
  bool right = true;
  for (std::size_t i = 0; i < 100; ++i) {
    auto const at = static_cast<std::int64_t>(i);
    right = right && indices[at] == (i < 80 ? 0 : large[i - 80]) && values[at] == (i < 80 ? 0.0F : 100.0F);
  }
  CHECK(right);
}
