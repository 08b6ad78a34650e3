// ops::on<cuda> in the stand-in for CUDA's runtime, whose streams run the kernels' source in the stand-in for a GPU's
// threads. elements_test, reduce_test and updates_test have each kernel with all types and shapes; here are the
// functions around them.
#include "site_there.hpp"
#include "trireme/ops/cuda.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/reductions.hpp"
#include "trireme/ops/host/target.hpp"
#include "trireme/ops/host/updates.hpp"
#include "trireme/ops/sets/dense.hpp"
#include "trireme/ops/sets/exchange.hpp"
#include "trireme/ops/sets/update.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using kernels = ops::on<cuda>;

template <class Precision>
constexpr bool has_what_a_plain_model_needs =
    ops::exchange_kernels<cuda, environment<Precision, cuda>>&& ops::update_kernels<cuda, environment<Precision, cuda>>;
static_assert(has_what_a_plain_model_needs<precision::fp32> && has_what_a_plain_model_needs<precision::fp64> &&
              has_what_a_plain_model_needs<precision::bf16> && has_what_a_plain_model_needs<precision::fp16>);
/// All sets that models and compressors need.
template <class Precision>
constexpr bool has_more = ops::dense_kernels<cuda, environment<Precision, cuda>>;
static_assert(has_more<precision::fp32> && has_more<precision::fp64> && has_more<precision::bf16> &&
              has_more<precision::fp16>);

template <class T>
std::vector<T> numbers(std::int64_t n, float first) {
  std::vector<T> all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<T>(first + 0.37F * static_cast<float>(i % 53) - 7.0F * static_cast<float>(i % 3));
  return all;
}
/// A tensor on the device with these elements.
template <class T>
tensor<T, cuda> there(std::vector<T> const& all) {
  tensor<T, cuda> made(shape{static_cast<std::int64_t>(all.size())});
  kernels::upload(made.view(), all);
  return made;
}
template <class T>
std::vector<T> here(tensor<T, cuda> const& from) {
  std::vector<T> all(static_cast<std::size_t>(from.size()));
  kernels::download(std::span<T>(all), from);
  return all;
}
/// The same bits; without FMA the host's kernels round more often.
template <class T>
bool same(std::vector<T> const& a, std::vector<T> const& b) {
  if (ops::detected() >= ops::cpu_level::avx2)
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
  return std::ranges::equal(a, b, [](T x, T y) {
    auto const want = static_cast<double>(y);
    return std::abs(static_cast<double>(x) - want) <= 1e-2 * (1 + std::abs(want));
  });
}
template <class T>
tensor_view<T const, cuda> read_only(tensor<T, cuda> const& it) {
  return it;
}
constexpr std::int64_t n = 1100;

}  // namespace

TEST_CASE("elements go to a device and back, and are changed there in the order of the calls", "[ops]") {
  auto const x = numbers<float>(n, 1), z = numbers<float>(n, -3);
  auto y = z;
  auto a = there(x), b = there(z);
  tensor<bfloat16, cuda> narrow(shape{n});
  kernels::scale(b.view(), 0.5);
  kernels::add(b.view(), a);
  kernels::accumulate(b.view(), read_only(a), -0.3);
  kernels::elementwise_product(b.view(), b, a);
  kernels::activate(b.view(), b, ops::activation::gelu);
  kernels::activate_backward(b.view(), b, a, ops::activation::silu);
  kernels::copy(narrow.view(), read_only(b));
  kernels::copy_columns(b.view().reshaped({10, 110}), 7, a.view().reshaped({10, 110}), 3, 5);
  ops::element_run const runs[] = {{.to = 0, .from = 50, .count = 20}, {.to = 1000, .from = 0, .count = 100}};
  kernels::copy_runs(b.view(), a, runs);
  kernels::fill(a.view().flat(3, 5), 2.5);

  using on_host = ops::host_elementwise;
  auto x_after = x;
  std::vector<bfloat16> y_narrow(x.size());
  tensor_view const yv(y), xv(x_after);
  on_host::scale(yv, 0.5);
  on_host::add(yv, xv);
  on_host::accumulate(yv, xv, -0.3);
  on_host::elementwise_product(yv, yv, xv);
  on_host::activate(yv, yv, ops::activation::gelu);
  on_host::activate_backward(yv, yv, xv, ops::activation::silu);
  on_host::copy(tensor_view(y_narrow), yv);
  on_host::copy_columns(yv.reshaped({10, 110}), 7, xv.reshaped({10, 110}), 3, 5);
  on_host::copy_runs(yv, xv, runs);
  on_host::fill(xv.flat(3, 5), 2.5);
  CHECK(same(here(b), y));
  CHECK(same(here(a), x_after));
  CHECK(same(here(narrow), y_narrow));
  CHECK(same<float>({kernels::read(b.view(), 1050)}, {y[1050]}));
}

TEST_CASE("initial values and dropout on a device are the host's", "[ops]") {
  for (auto const kind : {initial::distribution::zeros, initial::distribution::ones, initial::distribution::normal,
                          initial::distribution::uniform}) {
    tensor<float, cuda> made(shape{n});
    std::vector<float> want(static_cast<std::size_t>(n));
    kernels::initialise(made.view(), {kind, 0.02}, 42, 7, 3);
    ops::host_elementwise::initialise(tensor_view(want), {kind, 0.02}, 42, 7, 3);
    CHECK(same(here(made), want));
  }
  std::int64_t const samples[] = {5, 123456789012LL};
  dropout_site const site{0.3, {42, 7}, 5, samples};
  auto y = numbers<float>(n, 1);
  auto made = there(y);
  kernels::dropout(made.view(), on_device::site_there(site)());
  ops::host_elementwise::dropout(tensor_view(y), site);
  CHECK(same(here(made), y));
}

TEST_CASE("sums, hashes and looks for infinity on a device are the host's", "[ops]") {
  auto x = numbers<float>(5000, 1);
  auto const a = there(x);
  using on_host = ops::host_reductions;
  CHECK(kernels::hash(read_only(a), 3, 17) == on_host::hash(tensor_view(x), 3, 17));
  exact_sum got, want;
  kernels::sum_of_squares(read_only(a), got);
  kernels::sum_of_squares(read_only(a), got);
  on_host::sum_of_squares(tensor_view(x), want);
  on_host::sum_of_squares(tensor_view(x), want);
  CHECK(got == want);
  CHECK(kernels::finite(read_only(a)));
  kernels::fill(a.view().flat(4321, 1), std::nan(""));
  CHECK(!kernels::finite(read_only(a)));
  tensor_view<float const, cuda> const nothing;
  CHECK(kernels::finite(nothing));
  CHECK(kernels::hash(nothing, 3, 17) == 0);

  auto const p = numbers<float>(n, 1), q = numbers<float>(n, 4), r = numbers<float>(n, -2);
  auto const dp = there(p), dq = there(q), dr = there(r);
  tensor<float, cuda> to[] = {tensor<float, cuda>(shape{n}), tensor<float, cuda>(shape{n})};
  tensor_view<float, cuda> const outputs[] = {to[0], to[1]};
  tensor_view<float const, cuda> const terms[] = {dp, dq, dr};
  std::vector<float> sums(p.size());
  tensor_view<float> const sums_view[] = {tensor_view(sums)};
  tensor_view<float const> const host_terms[] = {tensor_view<float const>(p), tensor_view<float const>(q),
                                                 tensor_view<float const>(r)};
  auto const compare = [&](auto op, int divisor) {
    kernels::reduce(std::span<tensor_view<float, cuda> const>(outputs), terms, op, divisor);
    on_host::reduce(std::span<tensor_view<float> const>(sums_view), host_terms, op, divisor);
    CHECK(same(here(to[0]), sums));
    CHECK(same(here(to[1]), sums));
  };
  compare(reduction::sum{}, 1);
  compare(reduction::mean{}, 3);
  compare(reduction::max{}, 1);
  compare(reduction::min{}, 1);
}

TEST_CASE("an update writes more outputs than one kernel takes", "[ops]") {
  auto const g = numbers<float>(n, 1);
  auto value = numbers<float>(n, 2), first = numbers<float>(n, 0), second = numbers<float>(n, 50);
  auto const dg = there(g);
  auto const dv = there(value), d1 = there(first), d2 = there(second);
  std::vector<tensor<bfloat16, cuda>> copies;
  std::vector<tensor_view<bfloat16, cuda>> outputs;
  for (int i = 0; i < 19; ++i) outputs.push_back(copies.emplace_back(shape{n}));
  tensor_view<float const, cuda> const terms[] = {dg, dg};
  ops::adamw_numbers const how{.learning_rate = 0.01, .weight_decay = 0.1, .correction1 = 0.19, .correction2 = 0.002};
  kernels::adamw(dv.view(), d1, d2, gradient_terms<float, cuda>{terms, 0.5},
                 std::span<tensor_view<bfloat16, cuda> const>(outputs), how);
  std::vector<bfloat16> narrow(value.size());
  tensor_view<bfloat16> const host_outputs[] = {tensor_view(narrow)};
  tensor_view<float const> const host_terms[] = {tensor_view<float const>(g), tensor_view<float const>(g)};
  ops::host_updates::adamw(tensor_view(value), tensor_view(first), tensor_view(second),
                           gradient_terms<float, host>{host_terms, 0.5},
                           std::span<tensor_view<bfloat16> const>(host_outputs), how);
  CHECK(same(here(dv), value));
  CHECK(same(here(d2), second));
  for (auto const& each : copies) CHECK(same(here(each), narrow));
}

TEST_CASE("views that do not fit are refused", "[ops]") {
  auto const a = there(numbers<float>(n, 1));
  auto const part = read_only(a).flat(0, 5);
  auto const said = [](auto&& call) { return sentence_of<assertion_error>(call); };
  CHECK(said([&] { kernels::copy(a.view(), part); }) == "trireme::ops::copy: sizes 1100 and 5 differ");
  CHECK(said([&] { kernels::add(a.view(), part); }) == "trireme::ops::add: sizes 1100 and 5 differ");
  CHECK(said([&] { kernels::upload(a.view(), std::span<float const>()); }) ==
        "trireme::ops::upload: sizes 1100 and 0 differ");
  CHECK(said([&] { kernels::copy(a.view().flat(1, 5), part); }) ==
        "trireme::ops::copy: the views overlap, which a copy within CUDA memory does not support");
  CHECK_NOTHROW(kernels::copy(a.view(), read_only(a)));
  std::vector<tensor_view<float const, cuda>> const terms(257, part);
  tensor_view<float, cuda> const outputs[] = {a.view().flat(0, 5)};
  CHECK(
      sentence_of<config_error>([&] { kernels::reduce(std::span<tensor_view<float, cuda> const>(outputs), terms); }) ==
      "trireme::ops::reduce: one kernel in CUDA memory takes at most 256 terms, and here are 257; use fewer "
      "ranks on one device");
}
