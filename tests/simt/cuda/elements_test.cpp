// Kernels that treat all elements alike, in CUDA memory, against those of the host.
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "site_there.hpp"
#include "tensors.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/elementwise.hpp"
#include "trireme/ops/host/reductions.hpp"
#include "trireme/ops/sets/dense.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace on_device;

namespace {

using on_host = ops::host_elementwise;
template <class Precision>
constexpr bool has_elements =
    ops::detail::activates<kernels, ops::detail::set_views<cuda, environment<Precision, cuda>>, cuda>;
static_assert(has_elements<precision::fp32> && has_elements<precision::fp64> && has_elements<precision::bf16> &&
              has_elements<precision::fp16>);

/// Calls f(n, shift) for odd and empty sizes, also of tensors that begin where no vector does.
template <class F>
void for_shapes(F&& f) {
  for (std::int64_t const n : {0, 1, 37, 2050})
    for (std::int64_t const shift : {0, 1}) f(n, shift);
}

std::vector<std::int64_t> samples_of(std::int64_t n) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i * 123456789012ULL + 5);
  return all;
}

}  // namespace

TEST_CASE("fill, scale and elementwise_product on a device have the host's bits", "[elements]") {
  for_types([]<class T>(T) {
    for_shapes([](std::int64_t n, std::int64_t shift) {
      CAPTURE(dtype_of<T>, n, shift);
      auto filled = mixed_numbers<T>(n, 1), scaled = mixed_numbers<T>(n, 2), multiplied = mixed_numbers<T>(n, 3);
      shifted<T> const a(filled, shift), b(scaled, shift), y(multiplied, shift);
      kernels::fill(a.view, 1.25);
      on_host::fill(tensor_view(filled), 1.25);
      CHECK(equal_to_host(a.here(), filled));
      kernels::scale(b.view, 0.3);
      on_host::scale(tensor_view(scaled), 0.3);
      CHECK(equal_to_host(b.here(), scaled));
      kernels::elementwise_product(y.view, y.view, b.view);
      on_host::elementwise_product(tensor_view(multiplied), tensor_view(multiplied), tensor_view(scaled));
      CHECK(equal_to_host(y.here(), multiplied));
    });
  });
}

TEST_CASE("copies and accumulate between all types on a device have the host's bits", "[elements]") {
  for_types([]<class T>(T) {
    for_types([]<class U>(U) {
      for_shapes([](std::int64_t n, std::int64_t shift) {
        CAPTURE(dtype_of<T>, dtype_of<U>, n, shift);
        auto x = mixed_numbers<U>(n, 4);
        auto y = mixed_numbers<T>(n, 5);
        shifted<U> const from(x, shift);
        shifted<T> const to(y, shift);
        kernels::accumulate(to.view, from.view, 0.7);
        on_host::accumulate(tensor_view(y), tensor_view(x), 0.7);
        CHECK(equal_to_host(to.here(), y, std::is_same_v<T, double> || std::is_same_v<U, double>));
        kernels::copy(to.view, from.view);
        on_host::copy(tensor_view(y), tensor_view(x));
        CHECK(equal_to_host(to.here(), y));
      });
      auto x = mixed_numbers<U>(7 * 11, 6);
      auto y = mixed_numbers<T>(7 * 9, 7);
      shifted<U> const from(x);
      shifted<T> const to(y);
      kernels::copy_columns(to.view.reshaped({7, 9}), 2, from.view.reshaped({7, 11}), 3, 5);
      on_host::copy_columns(tensor_view(y).reshaped({7, 9}), 2, tensor_view(x).reshaped({7, 11}), 3, 5);
      CHECK(equal_to_host(to.here(), y));
    });
  });
}

TEST_CASE("every number of 16 bits is widened and narrowed on a device as on the host", "[elements]") {
  auto const check = []<class T>(T) {
    std::vector<T> all(0x10000);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<std::uint16_t>(i);
    shifted<T> const from(all), back(std::vector<T>(all.size()));
    shifted<float> const wide(std::vector<float>(all.size()));
    kernels::copy(wide.view, from.view);
    kernels::copy(back.view, wide.view);
    CHECK(equal_to_host(back.here(), all));
    std::vector<float> want(all.size());
    on_host::copy(tensor_view(want), tensor_view(all));
    CHECK(equal_to_host(wide.here(), want));
  };
  check(bfloat16{});
  check(float16{});
}

TEST_CASE("activations and their derivatives on a device have the host's bits", "[elements]") {
  using ops::activation;
  for_types([]<class T>(T) {
    for (auto const act : {activation::none, activation::gelu, activation::tanh, activation::relu, activation::silu,
                           activation::gelu_erf})
      for_shapes([&](std::int64_t n, std::int64_t shift) {
        CAPTURE(dtype_of<T>, act, n, shift);
        bool const nearly = std::is_same_v<T, double>;  // exp, tanh and erf are the C library's
        auto x = mixed_numbers<T>(n, 8), dx = mixed_numbers<T>(n, 9), y = x;
        shifted<T> const from(x, shift), to(x, shift), slope(dx, shift);
        kernels::activate(to.view, from.view, act);
        on_host::activate(tensor_view(y), tensor_view(x), act);
        CHECK(equal_to_host(to.here(), y, nearly));
        kernels::activate_backward(slope.view, slope.view, from.view, act);
        on_host::activate_backward(tensor_view(dx), tensor_view(dx), tensor_view(x), act);
        CHECK(equal_to_host(slope.here(), dx, nearly));
      });
  });
}

TEST_CASE("hash, finite and sum_of_squares on a device are the host's", "[elements]") {
  using sums_of_host = ops::host_reductions;
  for_types([]<class T>(T) {
    for_shapes([](std::int64_t n, std::int64_t shift) {
      CAPTURE(dtype_of<T>, n, shift);
      auto x = mixed_numbers<T>(n, 11, n != 37);
      shifted<T> const there(x, shift);
      tensor_view<T const, cuda> const view = there.view;
      CHECK(kernels::hash(view, 99, 1000) == sums_of_host::hash(tensor_view(x), 99, 1000));
      CHECK(kernels::finite(view) == sums_of_host::finite(tensor_view(x)));
      if constexpr (sizeof(T) >= 4) {
        exact_sum want, got;
        want.add(0.5);
        got.add(0.5);
        sums_of_host::sum_of_squares(tensor_view(x), want);
        kernels::sum_of_squares(view, got);
        CHECK(got == want);
      }
    });
  });
  std::vector<float> all(20000, 1.5F);
  all.back() = std::numeric_limits<float>::infinity();
  CHECK(!kernels::finite(shifted<float>(all).view));
}

TEST_CASE("dropout on a device drops the host's numbers of all samples, and of a range of them", "[elements]") {
  for_types([]<class T>(T) {
    for (auto const& [count, each] :
         {std::array<std::int64_t, 2>{1, 37}, {3, 96}, {3, 41}, {300, 8}, {300, 5}, {2, large ? 8000000 : 4000}}) {
      auto const samples = samples_of(count);
      dropout_site site{0.3, {42, 7}, 5, samples};
      auto const all = count * each;
      for (auto const& [first, n] :
           {std::array<std::int64_t, 2>{0, all}, {0, 0}, {3, all - 5}, {8, 8}, {all - 9, 9}, {8, all / 16 * 8}}) {
        for (std::int64_t const shift : {0, 1}) {
          CAPTURE(count, each, first, n, shift, sizeof(T));
          if (first + n > all || first < 0) continue;
          site.first = first;
          site.whole = all;
          auto y = numbers<T>(n, 1);
          shifted<T> const there(y, shift);
          kernels::dropout(there.view, site_there(site)());
          on_host::dropout(tensor_view(y), site);
          CHECK(same(there.here(), y));
        }
      }
    }
  });
  auto const samples = samples_of(3);
  shifted<float> const there(numbers<float>(10, 1));
  CHECK(sentence_of<assertion_error>([&] {
          kernels::dropout(there.view, site_there({0.3, {42, 7}, 5, samples})());
        }) == "trireme::ops::dropout: 10 elements from 0 on, of 10, do not divide into 3 samples");
}

TEST_CASE("dropout of parts of samples on a device drops the host's numbers", "[elements]") {
  for_types([]<class T>(T) {
    for (auto const& cut : {
             ops::dropout_cut{0, 6, 6, {0, 0}, 20, 1, 0, 20},   // whole rows
             ops::dropout_cut{2, 6, 4, {8, 30}, 20, 1, 0, 20},  // positions in two stretches
             ops::dropout_cut{1, 6, 4, {8, 30}, 21, 3, 2, 3},   // some columns of each of three matrices
             ops::dropout_cut{0, 6, 3, {0, 3}, 32, 1, 8, 16},
             ops::dropout_cut{3, 1, 1, {2, 0}, 10, 2, 1, 4},  // a row a sample
         }) {
      auto const samples = samples_of(400);
      dropout_site const site{0.4, {42, 9}, 3, samples};
      auto const rows = cut.context == 1 ? 390 : 22;
      auto y = numbers<T>(rows * cut.fused * cut.columns, 1);
      shifted<T> const there(y);
      kernels::dropout_part(there.view, site_there(site)(), cut);
      on_host::dropout_part(tensor_view(y), site, cut);
      CHECK(same(there.here(), y));
    }
  });
}

TEST_CASE("blocks of rows are copied on a device as on the host", "[elements]") {
  struct copy {
    ops::block_places to, from;
    ops::block_extents extents;
  };
  for_types([&]<class T>(T) {
    for_types([&]<class U>(U) {
      for (auto const& each : {
               copy{{0, 64, 16}, {8, 128, 32}, {4, 3, 16}},  // packs
               copy{{3, 50, 11}, {1, 70, 13}, {3, 4, 7}},
               copy{{0, 40, 8}, {0, 40, 8}, {5, 5, 8}},  // rows side by side
               copy{{0, 8, 8}, {0, 16, 8}, {2, 0, 8}},   // nothing
               copy{{5, 0, 0}, {7, 0, 0}, {1, 1, 90}},
           }) {
        auto y = numbers<T>(600, 1);
        auto const x = numbers<U>(700, 2);
        shifted<T> const there(y);
        shifted<U> const from(x);
        tensor_view<U const, cuda> const source = from.view;
        kernels::copy_blocks(there.view, each.to, source, each.from, each.extents);
        on_host::copy_blocks(tensor_view(y), each.to, tensor_view(x), each.from, each.extents);
        CHECK(same(there.here(), y));
      }
    });
  });
  shifted<float> const there(numbers<float>(20, 1));
  CHECK(sentence_of<assertion_error>([&] {
          kernels::copy_blocks(there.view, {0, 0, 5}, there.view, {2, 0, 5}, {1, 4, 5});
        }) == "trireme::ops::copy_blocks: blocks of elements 2 to 22 of a tensor of 20");
}
