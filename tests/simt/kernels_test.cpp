// test-sanitize: thread address
// test-alone: the stand-in is included before the kernels
#include "../support/simt/threads.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "trireme/ops/cuda/kernels.cu"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/reductions.hpp"
#include "trireme/ops/host/target.hpp"
#include "trireme/ops/host/updates.hpp"

// Each kernel against ops::on<host>: the same bits in float, bfloat16 and float16 (on a CPU with FMA, whose levels the
// kernels share their formulas with), and in double where no function of the C library takes part.
namespace {

using namespace trireme;
namespace kernels = ops::cuda_kernels;

bool host_has_fma() { return ops::detected() >= ops::cpu_level::avx2; }

template <class T>
using view = tensor_view<T, host>;

/// n numbers between -12 and 12, some of them 0, subnormal, large or (if `all`) not finite.
template <class T>
std::vector<T> numbers(std::size_t n, std::uint64_t seed, bool all = true) {
  std::vector<T> x(n);
  for (std::size_t i = 0; i < n; ++i) {
    auto const bits = static_cast<std::uint32_t>(mix(seed * 1000003 + i));
    auto v = (static_cast<float>(bits % 24001) - 12000) / 1000;
    if (i % 23 == 5) v = -0.0F;
    if (i % 29 == 7) v *= 1e-40F;
    if (i % 31 == 9) v *= 20;
    if (all && i % 97 == 11) v = std::numeric_limits<float>::infinity();
    if (all && i % 101 == 3) v = std::numeric_limits<float>::quiet_NaN();
    x[i] = static_cast<T>(v);
  }
  return x;
}
template <class T>
bool same(T a, T b) {
  auto const x = static_cast<double>(a), y = static_cast<double>(b);
  if (x != x || y != y) return x != x && y != y;  // a NaN's payload depends on the processor
  return std::memcmp(&a, &b, sizeof a) == 0;
}
/// The same bits; `nearly`: within a few units in the last place, for functions of the C library.
template <class T>
void compare(char const* kernel, std::span<T const> got, std::span<T const> want, bool nearly = false) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (same(got[i], want[i])) continue;
    auto const a = static_cast<double>(got[i]), b = static_cast<double>(want[i]);
    if ((nearly || !host_has_fma()) && std::abs(a - b) <= 1e-6 * (1 + std::abs(b))) continue;
    FAIL(kernel << ": element " << i << " of " << want.size() << " in " << name_of(dtype_of<T>) << " is " << a
                << " instead of " << b);
  }
}

std::size_t const sizes[] = {0, 1, 37, 2050};
/// Calls f(n, shift) for odd and empty sizes, with tensors that begin at an element that no vector begins at, too.
template <class F>
void for_shapes(F&& f) {
  for (auto const n : sizes)
    for (std::size_t const shift : {0, 1}) f(n, shift);
}
template <class F>
void for_types(F&& f) {
  f(float{});
  f(bfloat16{});
  f(float16{});
  f(double{});
}
template <class T>
std::span<T const> part(std::vector<T> const& x, std::size_t shift) {
  return std::span<T const>(x).subspan(shift);
}
template <class T>
view<T> on(std::vector<T>& x, std::size_t shift = 0) {
  return view<T>(x.data() + shift, shape{static_cast<std::int64_t>(x.size() - shift)});
}
constexpr auto none = nullptr;

}  // namespace

TEST_CASE("fill, scale and elementwise_product have the host's bits") {
  for_types([]<class T>(T) {
    for_shapes([](std::size_t n, std::size_t shift) {
      auto const count = static_cast<std::int64_t>(n);
      auto a = numbers<T>(n + shift, 1), b = numbers<T>(n + shift, 2), c = a, d = b;
      auto const value = static_cast<T>(1.25F);
      std::uint64_t bits = 0;
      std::memcpy(&bits, &value, sizeof value);
      REQUIRE(kernels::fill(none, a.data() + shift, sizeof(T), bits, count) == 0);
      ops::host_elementwise::fill(on(c, shift), 1.25);
      compare("fill", part(a, 0), part(c, 0));
      REQUIRE(kernels::scale(none, dtype_of<T>, b.data() + shift, count, 0.3) == 0);
      ops::host_elementwise::scale(on(d, shift), 0.3);
      compare("scale", part(b, 0), part(d, 0));
      auto y = numbers<T>(n + shift, 3), z = y;
      REQUIRE(kernels::elementwise_product(none, dtype_of<T>, y.data() + shift, y.data() + shift, b.data() + shift,
                                           count) == 0);
      ops::host_elementwise::elementwise_product(on(z, shift), on(z, shift), on(d, shift));
      compare("elementwise_product", part(y, 0), part(z, 0));
    });
  });
}

TEST_CASE("copy, copy_columns and accumulate between all types have the host's bits") {
  for_types([]<class T>(T) {
    for_types([]<class U>(U) {
      for_shapes([](std::size_t n, std::size_t shift) {
        auto const count = static_cast<std::int64_t>(n);
        auto x = numbers<U>(n + shift, 4);
        auto y = numbers<T>(n + shift, 5), z = y;
        REQUIRE(kernels::accumulate(none, dtype_of<T>, y.data() + shift, dtype_of<U>, x.data() + shift, count, 0.7) ==
                0);
        ops::host_elementwise::accumulate(on(z, shift), on(x, shift), 0.7);
        compare("accumulate", part(y, 0), part(z, 0), std::is_same_v<T, double> || std::is_same_v<U, double>);
        REQUIRE(kernels::copy(none, dtype_of<T>, y.data() + shift, dtype_of<U>, x.data() + shift, count) == 0);
        ops::host_elementwise::copy(on(z, shift), on(x, shift));
        compare("copy", part(y, 0), part(z, 0));
      });
      auto x = numbers<U>(7 * 11, 6);
      auto y = numbers<T>(7 * 9, 7), z = y;
      REQUIRE(kernels::copy_columns(none, dtype_of<T>, y.data() + 2, 9, dtype_of<U>, x.data() + 3, 11, 7, 5) == 0);
      ops::host_elementwise::copy_columns(on(z).reshaped({7, 9}), 2, on(x).reshaped({7, 11}), 3, 5);
      compare("copy_columns", part(y, 0), part(z, 0));
    });
  });
}

TEST_CASE("activations and their derivatives have the host's bits") {
  using ops::activation;
  for_types([]<class T>(T) {
    for (auto const act : {activation::none, activation::gelu, activation::tanh, activation::relu, activation::silu,
                           activation::gelu_erf})
      for_shapes([&](std::size_t n, std::size_t shift) {
        auto const count = static_cast<std::int64_t>(n);
        bool const nearly = std::is_same_v<T, double>;
        auto x = numbers<T>(n + shift, 8), dy = numbers<T>(n + shift, 9), y = x, z = x, dx = dy, dz = dy;
        REQUIRE(kernels::activate(none, dtype_of<T>, y.data() + shift, x.data() + shift, count, act) == 0);
        ops::host_elementwise::activate(on(z, shift), on(x, shift), act);
        compare("activate", part(y, 0), part(z, 0), nearly);
        REQUIRE(kernels::activate_backward(none, dtype_of<T>, dx.data() + shift, dx.data() + shift, x.data() + shift,
                                           count, act) == 0);
        ops::host_elementwise::activate_backward(on(dz, shift), on(dy, shift), on(x, shift), act);
        compare("activate_backward", part(dx, 0), part(dz, 0), nearly);
      });
  });
}

TEST_CASE("dropout drops the host's numbers, also in a part of a sample") {
  for_types([]<class T>(T) {
    for (std::int64_t const first : {0, 3, 38})
      for (auto const n : sizes) {
        auto y = numbers<T>(n, 10, false), z = y;
        std::int64_t const sample[] = {123456789012LL};
        dropout_site const site{0.3, {42, 7}, 5, sample, first, first + static_cast<std::int64_t>(n)};
        kernels::dropout_call const call{dtype_of<T>, site.probability, site.key, site.site, sample};
        auto const count = static_cast<std::int64_t>(n);
        REQUIRE(kernels::dropout(none, call, y.data(), first, count, site.whole) == 0);
        ops::host_elementwise::dropout(on(z), site);
        compare("dropout", part(y, 0), part(z, 0));
      }
  });
}

TEST_CASE("hash, finite and sum_of_squares are the host's") {
  for_types([]<class T>(T) {
    for_shapes([](std::size_t n, std::size_t shift) {
      auto const count = static_cast<std::int64_t>(n);
      auto x = numbers<T>(n + shift, 11, n == 37);
      unsigned long long total = 5;
      REQUIRE(kernels::hash(none, sizeof(T), x.data() + shift, count, 99, 1000, &total) == 0);
      CHECK(total == 5 + ops::host_reductions::hash(on(x, shift), 99, 1000));
      unsigned flag = 0;
      REQUIRE(kernels::find_non_finite(none, dtype_of<T>, x.data() + shift, count, &flag) == 0);
      CHECK((flag == 0) == ops::host_reductions::finite(on(x, shift)));
      if constexpr (sizeof(T) >= 4) {
        exact_sum want, got;
        want.add(0.5);
        got.add(0.5);
        ops::host_reductions::sum_of_squares(on(x, shift), want);
        REQUIRE(kernels::sum_of_squares(none, dtype_of<T>, x.data() + shift, count, got.state().data()) == 0);
        CHECK(got == want);
      }
    });
  });
  std::vector<float> all(20000, 1.5F);
  all.back() = std::numeric_limits<float>::infinity();
  unsigned flag = 0;
  REQUIRE(kernels::find_non_finite(none, dtype::f32, all.data(), 20000, &flag) == 0);
  CHECK(flag == 1);
}

namespace {

template <class M, class G, class P>
void check_updates(std::size_t n, int terms) {
  std::vector<std::vector<G>> gradients;
  std::vector<view<G const>> host_terms;
  std::vector<void const*> device_terms;
  for (int t = 0; t < terms; ++t) gradients.push_back(numbers<G>(n, 20 + static_cast<std::uint64_t>(t), false));
  for (auto& each : gradients) {
    host_terms.push_back(on(each));
    device_terms.push_back(each.data());
  }
  auto value = numbers<M>(n, 30, false), first = numbers<M>(n, 31, false), second = numbers<M>(n, 32, false);
  for (auto& each : second) each = std::abs(each);
  auto host_value = value, host_first = first, host_second = second;
  auto output = numbers<P>(n, 33), host_output = output;
  view<P> const host_outputs[] = {on(host_output)};
  void* const device_outputs[] = {output.data()};
  gradient_terms<G, host> const gradient{host_terms, 0.37};
  kernels::update_call const call{dtype_of<M>,
                                  value.data(),
                                  static_cast<std::int64_t>(n),
                                  dtype_of<G>,
                                  device_terms.data(),
                                  terms,
                                  0.37,
                                  dtype_of<P>,
                                  device_outputs,
                                  1};
  ops::adamw_numbers const how{.learning_rate = 0.01, .weight_decay = 0.1, .correction1 = 0.19, .correction2 = 0.002};
  REQUIRE(kernels::adamw(none, call, first.data(), second.data(), how) == 0);
  std::span<view<P> const> const outputs(host_outputs);
  ops::host_updates::adamw(on(host_value), on(host_first), on(host_second), gradient, outputs, how);
  bool const nearly = std::is_same_v<M, double>;  // the host's double has no FMA at its baseline
  compare("adamw: value", part(value, 0), part(host_value, 0), nearly);
  compare("adamw: first", part(first, 0), part(host_first, 0), nearly);
  compare("adamw: second", part(second, 0), part(host_second, 0), nearly);
  compare("adamw: output", part(output, 0), part(host_output, 0), nearly);
  for (bool const nesterov : {false, true})
    for (double const momentum : {0.0, 0.9}) {
      ops::sgd_numbers const step{0.1, momentum, nesterov, 0.01};
      REQUIRE(kernels::sgd(none, call, first.data(), step) == 0);
      ops::host_updates::sgd(on(host_value), on(host_first), gradient, outputs, step);
      compare("sgd: value", part(value, 0), part(host_value, 0), nearly);
      compare("sgd: velocity", part(first, 0), part(host_first, 0), nearly);
      compare("sgd: output", part(output, 0), part(host_output, 0), nearly);
    }
}

}  // namespace

TEST_CASE("adamw and sgd have the host's bits") {
  for (auto const n : sizes)
    for (int const terms : {1, 3}) {
      check_updates<float, float, float>(n, terms);
      check_updates<float, float, bfloat16>(n, terms);
      check_updates<double, double, double>(n, terms);
    }
}
