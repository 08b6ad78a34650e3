#include "trireme/ops/host/losses.hpp"

#include "../catch.hpp"
#include "central_differences.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::host_losses;

namespace {

tensor<std::int32_t> some_targets(std::int64_t rows, std::int64_t classes) {
  tensor<std::int32_t> out(shape{rows});
  for (std::int64_t row = 0; row < rows; ++row) out[row] = static_cast<std::int32_t>(row * 7 % classes);
  if (rows > 2) out[1] = -1;
  return out;
}

ops::cross_entropy_terms const all_terms{.ignored = 7, .smoothing = 0.2, .z = 0.05};

template <class T>
void compare(std::int64_t rows, std::int64_t classes, ops::cross_entropy_terms const& terms = {}) {
  auto const targets = some_targets(rows, classes);
  auto exact = random_tensor<double>({rows, classes}, 1, 8);
  auto const exact_loss = kernels::cross_entropy(exact.view(), targets, 0.25, true, terms);
  at_each_level([&] {
    auto logits = random_tensor<T>({rows, classes}, 1, 8);
    auto const loss = kernels::cross_entropy(logits.view(), targets, 0.25, true, terms);
    CHECK(loss.count == exact_loss.count);
    CHECK(loss.count + loss.left_out == rows);
    CHECK(loss.sum == Approx(exact_loss.sum).epsilon(1e-5));
    CHECK(distance(logits, exact) < tolerance<T>);
  });
}

}  // namespace

TEST_CASE("cross_entropy of equal logits is the logarithm of their number") {
  auto logits = zeros<double>({3, 10});
  auto targets = some_targets(3, 10);
  auto const loss = kernels::cross_entropy(logits.view(), targets, 1, true);
  CHECK(loss.count == 2);
  CHECK(loss.sum == Approx(2 * std::log(10.0)));
  CHECK(logits[0] == Approx(0.1 - 1));
  CHECK(logits[1] == Approx(0.1));
  CHECK(logits[10] == 0);  // its target is negative
}

TEST_CASE("the gradient of cross_entropy agrees with central differences") {
  auto logits = random_tensor<double>({4, 9}, 2, 3);
  auto const targets = some_targets(4, 9);
  auto gradient = random_tensor<double>({4, 9}, 2, 3);
  kernels::cross_entropy(gradient.view(), targets, 0.5, true);
  CHECK(gradient_error(logits.span(), gradient.span(),
                       [&] { return 0.5 * kernels::cross_entropy(logits.view(), targets, 1, false).sum; }) < 1e-6);
}

TEST_CASE("cross_entropy with smoothing, z and an ignored target equals torch's, and so does its gradient") {
  // torch.nn.functional.cross_entropy(x, [2, 3, 1], ignore_index=3, label_smoothing=0.2) + 0.1 * the mean of
  // logsumexp(x)^2 over the rows that are counted, in double
  std::vector<double> const x{0.3, -1.2, 2.0, 0.7, 1.5, 0.1, -0.4, 0.2, 0.0, 0.9, -2.0, 1.1};
  tensor<std::int32_t> targets(shape{3});
  targets[0] = 2, targets[1] = 3, targets[2] = 1;
  ops::cross_entropy_terms const terms{.ignored = 3, .smoothing = 0.2, .z = 0.1};
  tensor<double> logits(shape{3, 4});
  std::copy(x.begin(), x.end(), logits.span().begin());
  auto const loss = kernels::cross_entropy(logits.view(), targets, 0.5, true, terms);
  CHECK(loss.count == 2);
  CHECK(loss.left_out == 1);
  CHECK(loss.mean() == Approx(1.406550436481585).epsilon(1e-14));
  std::vector<double> const gradient{
      0.065400149224521, -0.004829000226091, 0.069845661059314,  0.109861175283596, 0, 0, 0, 0,
      0.07936164529378,  -0.16831177254996,  -0.010876187175127, 0.288519708994725};
  for (std::size_t i = 0; i < 12; ++i)
    CHECK(logits[static_cast<std::int64_t>(i)] == Approx(gradient[i]).epsilon(1e-12).margin(1e-14));
}

TEST_CASE("the gradient of cross_entropy with terms agrees with central differences") {
  auto logits = random_tensor<double>({4, 9}, 2, 3);
  auto const targets = some_targets(4, 9);
  auto gradient = random_tensor<double>({4, 9}, 2, 3);
  kernels::cross_entropy(gradient.view(), targets, 0.5, true, all_terms);
  CHECK(gradient_error(logits.span(), gradient.span(), [&] {
          return 0.5 * kernels::cross_entropy(logits.view(), targets, 1, false, all_terms).sum;
        }) < 1e-6);
}

TEST_CASE("cross_entropy in float and bfloat16 agrees with double at every CPU level") {
  for (std::int64_t const classes : {1, 2, 15, 16, 33, 257, 5000}) {
    for (auto const& terms : {ops::cross_entropy_terms{}, all_terms}) {
      compare<float>(5, classes, terms);
      compare<bfloat16>(5, classes, terms);
    }
  }
  compare<float>(1, 40);
  compare<float>(0, 40);
}

TEST_CASE("cross_entropy without a gradient leaves the logits alone") {
  auto const targets = some_targets(3, 20);
  auto logits = random_tensor<float>({3, 20}, 3);
  auto const before = random_tensor<float>({3, 20}, 3);
  auto const loss = kernels::cross_entropy(logits.view(), targets, 1, false);
  CHECK(same_bits<float>(logits.span(), before.span()));
  CHECK(kernels::cross_entropy(logits.view(), targets, 1, true).sum == loss.sum);
}

TEST_CASE("cross_entropy is stable for large logits, and NaN comes out as NaN") {
  at_each_level([] {
    auto logits = zeros<float>({1, 40});
    logits[3] = 3e38F;
    logits[4] = -3e38F;
    tensor<std::int32_t> target(shape{1});
    target[0] = 3;
    CHECK(kernels::cross_entropy(logits.view(), target, 1, false).sum == 0);
    logits[7] = std::nanf("");
    CHECK(std::isnan(kernels::cross_entropy(logits.view(), target, 1, false).sum));
  });
}

TEMPLATE_TEST_CASE("cross_entropy in parts of the classes is cross_entropy", "", float, double, bfloat16) {
  using T = TestType;
  using A = ops::accumulate_t<T>;
  constexpr std::int64_t rows = 4;
  constexpr std::int64_t classes = 61;
  tensor<std::int32_t> targets(shape{rows});
  targets[0] = 3, targets[1] = -1, targets[2] = 60, targets[3] = 20;
  interval const parts[] = {{0, 20}, {20, 41}};
  auto const terms = GENERATE(ops::cross_entropy_terms{}, all_terms);
  at_each_level([&] {
    auto whole = random_tensor<T>({rows, classes}, 1, 4);
    std::vector<tensor<T>> part;
    for (auto const& range : parts) {
      part.emplace_back(shape{rows, range.count});
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(whole.span().data() + row * classes + range.first, range.count,
                    part.back().span().data() + row * range.count);
      }
    }
    auto const loss = kernels::cross_entropy(whole.view(), targets, 0.5, true, terms);
    tensor<A> peaks[] = {tensor<A>(shape{rows}), tensor<A>(shape{rows})};
    for (std::size_t p = 0; p < 2; ++p) kernels::row_peaks(part[p].view(), peaks[p]);
    for (std::int64_t row = 0; row < rows; ++row) peaks[0][row] = std::max(peaks[0][row], peaks[1][row]);
    auto masses = zeros<A>({rows});
    auto chosen = zeros<A>({rows});
    for (std::size_t p = 0; p < 2; ++p) {
      tensor<A> mass(shape{rows});
      tensor<A> here(shape{rows});
      kernels::row_masses(part[p].view(), targets, {parts[p].first, classes}, peaks[0], mass, here, terms);
      for (std::int64_t row = 0; row < rows; ++row) masses[row] += mass[row], chosen[row] += here[row];
    }
    for (std::size_t p = 0; p < 2; ++p) {
      auto const& range = parts[p];
      auto const same = kernels::cross_entropy_part(part[p].view(), targets, {range.first, classes}, peaks[0], masses,
                                                    chosen, 0.5, true, terms);
      CHECK(same.count == loss.count);
      CHECK(same.sum == Approx(loss.sum).epsilon(1e-6));
      double far = 0;
      for (std::int64_t i = 0; i < part[p].size(); ++i) {
        auto const at = i / range.count * classes + range.first + i % range.count;
        far = std::max(far, std::fabs(static_cast<double>(part[p][i]) - static_cast<double>(whole[at])));
      }
      CHECK(far <= (sizeof(T) == 2 ? 2e-3 : 1e-7));
    }
  });
}

TEST_CASE("a target outside of the classes is refused") {
  auto logits = zeros<float>({2, 4});
  tensor<std::int32_t> target(shape{2});
  target[0] = 0;
  target[1] = 4;
  CHECK_THROWS_AS(kernels::cross_entropy(logits.view(), target, 1, false), config_error);
}

TEST_CASE("squared_error is the mean of squares over columns, summed over rows") {
  auto y = zeros<double>({2, 2});
  y[0] = 1, y[1] = 3, y[2] = -1, y[3] = 0;
  auto const targets = zeros<float>({2, 2});
  auto dy = zeros<double>({2, 2});
  auto const loss = kernels::squared_error(dy.view(), y, targets, 2);
  CHECK(loss.count == 2);
  CHECK(loss.sum == 5.5);
  CHECK(dy[1] == 6);
  CHECK(kernels::squared_error(tensor_view<double, host>{}, y, targets, 1).sum == 5.5);
}

TEMPLATE_TEST_CASE("squared_error agrees with double at every CPU level", "", float, bfloat16) {
  for (std::int64_t const columns : {1, 5, 16, 100}) {
    auto const targets = random_tensor<float>({3, columns}, 4);
    auto const exact_y = random_tensor<double>({3, columns}, 5);
    auto exact_dy = zeros<double>({3, columns});
    auto const exact = kernels::squared_error(exact_dy.view(), exact_y, targets, 0.5);
    at_each_level([&] {
      auto const y = random_tensor<TestType>({3, columns}, 5);
      auto dy = zeros<TestType>({3, columns});
      CHECK(kernels::squared_error(dy.view(), y, targets, 0.5).sum == Approx(exact.sum));
      CHECK(distance(dy, exact_dy) < tolerance<TestType>);
    });
  }
}

TEST_CASE("binary_cross_entropy is the mean over columns of the logarithms of the answers' probabilities") {
  auto y = random_tensor<double>({3, 4}, 1, 4);
  auto const x = y.view();
  tensor<float> targets(shape{3, 4});
  for (std::int64_t i = 0; i < 12; ++i) targets[i] = static_cast<float>(i % 3) / 2;
  double expected = 0;
  auto slopes = zeros<double>({3, 4});
  for (std::int64_t i = 0; i < 12; ++i) {
    double const yes = 1 / (1 + std::exp(-x[i])), t = static_cast<double>(targets[i]);
    expected -= (t * std::log(yes) + (1 - t) * std::log(1 - yes)) / 4;
    slopes[i] = 0.5 * (yes - t) / 4;
  }
  auto dy = zeros<double>({3, 4});
  tensor_view<float const> const wanted = targets;
  auto const loss = kernels::binary_cross_entropy(dy.view(), y, wanted, 0.5);
  CHECK(loss.count == 3);
  CHECK(loss.sum == Approx(expected));
  CHECK(distance(dy, slopes) < 1e-12);
  CHECK(kernels::binary_cross_entropy(tensor_view<double>{}, y, wanted, 0.5).sum == loss.sum);
  kernels::binary_cross_entropy(y.view(), y, wanted, 0.5);  // in place
  CHECK(distance(y, slopes) < 1e-12);
  targets[5] = 1.5F;
  CHECK_THROWS_AS(kernels::binary_cross_entropy(dy.view(), slopes, wanted, 0.5), config_error);
}
