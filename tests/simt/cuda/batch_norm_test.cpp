// The kernels of batch normalisation in CUDA memory give what those in host memory give: the same bits, but for sums
// over rows, whose order differs and which are rounded once from double.
#include "trireme/ops/cuda/batch_norm.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "compared.hpp"
#include "trireme/ops/sets/batch_norm.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using compared::made;

namespace {

using on_host = ops::batch_norm_on<host>;
using on_device = ops::batch_norm_on<cuda>;

template <class Precision>
constexpr bool complete =
    ops::detail::normalises_columns<on_device, ops::detail::set_views<cuda, environment<Precision, cuda>>>;
static_assert(complete<precision::fp32> && complete<precision::fp64> && complete<precision::bf16> &&
              complete<precision::fp16>);

struct setting {
  std::int64_t rows, channels, offset;
};
std::vector<setting> settings() {
  std::vector<setting> all{{0, 5, 0}, {1, 1, 0}, {37, 3, 0}, {37, 8, 1}, {600, 16, 0}, {300, 70, 0}, {90, 264, 0}};
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({200'704, 64, 0});
  all.push_back({3'136, 2048, 0});
  all.push_back({1'000'003, 3, 1});
#endif
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("batch normalisation on a device is the host's", "[batch_norm]", float, double, bfloat16, float16) {
  using sums = ops::accumulate_t<TestType>;
  double const tolerance = std::is_same_v<sums, double> ? 1e-10 : 2e-7;
  for (auto const& [rows, channels, offset] : settings()) {
    CAPTURE(rows, channels, offset);
    auto x = made<TestType>({rows, channels}, 1, offset), dy = made<TestType>({rows, channels}, 2, offset);
    auto mean = made<sums>({channels}, 3), rstd = made<sums>({channels}, 4);
    auto of_dy = made<sums>({channels}, 5), of_both = made<sums>({channels}, 6);
    auto gain = made<TestType>({channels}, 7), bias = made<TestType>({channels}, 8);

    on_host::column_sums(of_dy.on_host(), x.on_host());
    on_device::column_sums(of_dy.device(), x.device());
    on_host::column_squares(of_both.on_host(), x.on_host(), mean.on_host());
    on_device::column_squares(of_both.device(), x.device(), mean.device());
    CHECK(of_dy.difference() <= tolerance);
    CHECK(of_both.difference() <= tolerance);

    auto squares = made<sums>({channels}, 9), deviation = made<sums>({channels}, 10);
    for (auto& each : squares.on_host().span()) each = each * each;
    ops::on<cuda>::upload(squares.device(), squares.on_host().span());
    on_host::inverse_deviation(deviation.on_host(), squares.on_host(), 1e-5);
    on_device::inverse_deviation(deviation.device(), squares.device(), 1e-5);
    CHECK(deviation.difference() <= 0);

    auto y = made<TestType>({rows, channels}, 11, offset);
    on_host::normalise(y.on_host(), x.on_host(), mean.on_host(), rstd.on_host(), gain.on_host(), bias.on_host());
    on_device::normalise(y.device(), x.device(), mean.device(), rstd.device(), gain.device(), bias.device());
    CHECK(y.difference() <= compared::of_contraction<TestType>);

    auto sum = made<sums>({channels}, 12), both = made<sums>({channels}, 13);
    on_host::column_gradients(sum.on_host(), both.on_host(), dy.on_host(), x.on_host(), mean.on_host(), rstd.on_host());
    on_device::column_gradients(sum.device(), both.device(), dy.device(), x.device(), mean.device(), rstd.device());
    CHECK(sum.difference() <= tolerance);
    CHECK(both.difference() <= tolerance);

    for (bool const accumulate : {false, true}) {  // with the same sums on both sides
      auto of_sum = made<sums>({channels}, 14), of_product = made<sums>({channels}, 15);
      on_host::normalise_backward(y.on_host(), dy.on_host(), x.on_host(), mean.on_host(), rstd.on_host(),
                                  gain.on_host(), of_sum.on_host(), of_product.on_host(), 2 * rows + 1, accumulate);
      on_device::normalise_backward(y.device(), dy.device(), x.device(), mean.device(), rstd.device(), gain.device(),
                                    of_sum.device(), of_product.device(), 2 * rows + 1, accumulate);
      CHECK(y.difference() <= compared::of_contraction<TestType>);
    }
  }
}

TEST_CASE("sums over rows in CUDA memory are the same in each call", "[batch_norm]") {
  auto const x = made<float>({1000, 12}, 1);
  auto const first = made<float>({12}, 2), second = made<float>({12}, 3);
  on_device::column_sums(first.device(), x.device());
  on_device::column_sums(second.device(), x.device());
  CHECK(first.result() == second.result());
}

TEST_CASE("columns in CUDA memory that do not fit are refused", "[batch_norm]") {
  auto const x = made<float>({4, 3}, 1), sum = made<float>({2}, 2);
  CHECK(sentence_of<assertion_error>([&] { on_device::column_sums(sum.device(), x.device()); }) ==
        "trireme::ops::column_sums: sizes do not fit rows of shape (4, 3)");
}
