// Updates of whole tensors in CUDA memory: the host's bits where elements are alike, and the host's results to rounding
// errors where a norm or a mean is summed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "codec_tensors.hpp"
#include "trireme/ops/sets/whole_tensors.hpp"
#include "trireme/ops/whole_tensors.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace codec_tensors;

namespace {

using updates = ops::whole_tensors_on<cuda>;
using on_host = ops::whole_tensors_on<host>;

template <class Precision>
constexpr bool has_kernels =
    ops::lamb_kernels<cuda, environment<Precision, cuda>>&& ops::adafactor_kernels<cuda, environment<Precision, cuda>>&&
        ops::detail::updates_muon<updates, ops::detail::whole_tensor_views<cuda, environment<Precision, cuda>>>;
static_assert(has_kernels<precision::fp32> && has_kernels<precision::fp64> && has_kernels<precision::bf16> &&
              has_kernels<precision::fp16>);

#if defined(TRIREME_TEST_ON_GPU)
constexpr std::int64_t large = 3'000'017;
#else
constexpr std::int64_t large = 13'003;
#endif

/// Equal to some units in the last place of each number.
template <class M>
bool close(std::vector<M> const& a, std::vector<M> const& b) {
  double const unit = sizeof(M) == 4 ? 4e-7 : 1e-11;
  return std::ranges::equal(a, b, [&](M x, M y) {
    auto const want = static_cast<double>(y);
    return std::abs(static_cast<double>(x) - want) <= unit * (std::abs(want) + 1e-3);
  });
}
template <class M>
std::vector<M> positive(std::int64_t n, std::uint32_t seed) {
  auto x = numbers<M>(n, seed);
  for (auto& each : x) each = each * each + static_cast<M>(1e-6F);
  return x;
}

template <class M>
void compare_lamb(std::int64_t n, std::int64_t offset, ops::lamb_numbers const& how) {
  CAPTURE(n, offset, how.weight_decay, sizeof(M));
  auto w = numbers<M>(n, 1), m = numbers<M>(n, 2), v = positive<M>(n, 3);
  auto const g = numbers<M>(n, 4);
  there<M> const dw(w, offset), dm(m, offset), dv(v, offset), dg(g, offset);
  for (int step = 0; step < 2; ++step) {
    updates::lamb(dw.view(), dm.view(), dv.view(), dg.constant(), how);
    on_host::lamb(tensor_view(w), tensor_view(m), tensor_view(v), tensor_view<M const>(g), how);
  }
  CHECK(same_bits(dm.back(), m));
  CHECK(same_bits(dv.back(), v));
  CHECK(close(dw.back(), w));
}

template <class M>
void compare_adafactor(std::int64_t matrices, std::int64_t offset, ops::adafactor_numbers const& how) {
  auto const n = matrices * how.rows * how.columns;
  bool const whole = how.rows == 1;
  CAPTURE(matrices, how.rows, how.columns, offset, how.momentum, sizeof(M));
  auto w = numbers<M>(n, 1), u = numbers<M>(n, 2);
  auto const g = numbers<M>(n, 4);
  std::vector<double> sums(static_cast<std::size_t>(how.columns));
  auto rows = positive<M>(whole ? 0 : matrices * how.rows, 5),
       columns = positive<M>(whole ? 0 : matrices * how.columns, 6);
  auto second = positive<M>(whole ? n : 0, 7), first = numbers<M>(how.momentum > 0 ? n : 0, 8);
  there<M> const dw(w, offset), du(u, offset), dg(g, offset), d_rows(rows, offset), d_columns(columns, offset),
      d_second(second, offset), d_first(first, offset);
  there<double> const d_sums(sums);
  for (int step = 0; step < 2; ++step) {
    updates::adafactor(dw.view(), du.view(), d_sums.view(), d_rows.view(), d_columns.view(), d_second.view(),
                       d_first.view(), dg.constant(), how);
    on_host::adafactor(tensor_view(w), tensor_view(u), tensor_view(sums), tensor_view(rows), tensor_view(columns),
                       tensor_view(second), tensor_view(first), tensor_view<M const>(g), how);
  }
  CHECK(close(d_rows.back(), rows));
  CHECK(close(d_columns.back(), columns));
  CHECK(same_bits(d_second.back(), second));
  CHECK(close(du.back(), u));
  CHECK(close(d_first.back(), first));
  CHECK(close(dw.back(), w));
}

template <class M>
void compare_muon(std::int64_t n, std::int64_t offset) {
  CAPTURE(n, offset, sizeof(M));
  auto v = numbers<M>(n, 1), x = numbers<M>(n, 2), w = numbers<M>(n, 3);
  auto const g = numbers<M>(n, 4);
  there<M> const dv(v, offset), dx(x, offset), dw(w, offset), dg(g, offset);
  for (bool const nesterov : {true, false}) {
    updates::muon_momentum(dv.view(), dx.view(), dg.constant(), 0.95, 0.3, nesterov);
    on_host::muon_momentum(tensor_view(v), tensor_view(x), tensor_view<M const>(g), 0.95, 0.3, nesterov);
    CHECK(same_bits(dv.back(), v));
    CHECK(same_bits(dx.back(), x));
    for (double const of_y : {1.0, -4.775}) {
      updates::muon_mix(dx.view(), dg.constant(), 2.0315, of_y);
      on_host::muon_mix(tensor_view(x), tensor_view<M const>(g), 2.0315, of_y);
      CHECK(same_bits(dx.back(), x));
    }
    updates::muon_step(dw.view(), dx.constant(), 0.99, 0.02);
    on_host::muon_step(tensor_view(w), tensor_view<M const>(x), 0.99, 0.02);
    CHECK(same_bits(dw.back(), w));
    updates::muon_normalise(dx.view());
    on_host::muon_normalise(tensor_view(x));
    CHECK(close(dx.back(), x));
    kernels::upload(dx.view(), std::span<M const>(x));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("LAMB in CUDA memory is the host's", "[whole_tensors]", float, double) {
  ops::lamb_numbers how{
      .learning_rate = 0.01, .weight_decay = 0.1, .correction1 = 5.3, .correction2 = 300, .scale = 0.5};
  for (std::int64_t const n : {1, 37, 256, 4096, 4100}) compare_lamb<TestType>(n, n % 3, how);
  compare_lamb<TestType>(large, 0, how);
  how.weight_decay = 0;
  compare_lamb<TestType>(1000, 1, how);
  // A tensor of zeros moves by the rate.
  auto w = std::vector<TestType>(40);
  auto m = w, v = w;
  auto const g = numbers<TestType>(40, 4);
  there<TestType> const dw(w), dm(m), dv(v), dg(g), nothing(std::vector<TestType>{});
  updates::lamb(dw.view(), dm.view(), dv.view(), dg.constant(), how);
  on_host::lamb(tensor_view(w), tensor_view(m), tensor_view(v), tensor_view<TestType const>(g), how);
  CHECK(close(dw.back(), w));
  updates::lamb(nothing.view(), nothing.view(), nothing.view(), nothing.constant(), how);
}

TEMPLATE_TEST_CASE("Adafactor in CUDA memory is the host's", "[whole_tensors]", float, double) {
  ops::adafactor_numbers how{.learning_rate = 0.01, .keep = 0.7, .weight_decay = 0.1, .scale = 0.5};
  for (double const momentum : {0.0, 0.9}) {
    how.momentum = momentum;
    how.scaled = momentum > 0;
    for (auto const& [matrices, rows, columns] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 2, 3}, {1, 70, 65}, {3, 65, 5}, {2, 3, 300}}) {
      how.rows = rows;
      how.columns = columns;
      compare_adafactor<TestType>(matrices, rows % 2, how);
    }
    how.rows = 1;
    for (std::int64_t const columns : {std::int64_t{1}, std::int64_t{5}, std::int64_t{300}, large}) {
      how.columns = columns;
      compare_adafactor<TestType>(1, 1, how);
    }
  }
#if defined(TRIREME_TEST_ON_GPU)
  how.rows = 3072;
  how.columns = 768;
  compare_adafactor<TestType>(2, 0, how);
#endif
}

TEMPLATE_TEST_CASE("Muon's steps in CUDA memory are the host's", "[whole_tensors]", float, double) {
  for (std::int64_t const n : {1, 37, 4096, 4100}) compare_muon<TestType>(n, n % 3);
  compare_muon<TestType>(large, 0);
  auto zeros = std::vector<TestType>(5);
  there<TestType> const dx(zeros);
  updates::muon_normalise(dx.view());
  CHECK(dx.back() == zeros);
}

TEST_CASE("tensors that do not fit are refused in CUDA memory", "[whole_tensors]") {
  there<float> const x(numbers<float>(6, 1)), y(numbers<float>(5, 1));
  CHECK(sentence_of<assertion_error>([&] { updates::muon_mix(x.view(), y.constant(), 1, 1); }) ==
        "trireme::ops::muon_mix: a view has not the 6 elements of the tensor");
}
