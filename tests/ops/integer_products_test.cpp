#include "trireme/ops/host/integer_products.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "tile_model.hpp"
#include "trireme/ops/ops.hpp"

using namespace trireme;
using ops::weight_form;
using ops::detail::integer_kernels;
using ops::detail::integer_layout;

namespace {

template <class T>
std::vector<T> wave(std::int64_t n, float salt) {
  std::vector<T> out;
  for (std::int64_t i = 0; i < n; ++i)
    out.push_back(T(std::sin(salt + 0.37F * static_cast<float>(i * i % 997)) * (i % 91 == 0 ? 9.0F : 1.0F)));
  return out;
}

struct block {
  std::vector<int> integers;
  float scale = 0;
};
/// As the header says, in plain loops; 8 bits: symmetric, 4 bits: the largest is -8.
block rounded(std::vector<float> const& from, bool eight) {
  block out;
  float most = 0;
  for (auto const x : from) most = std::abs(x) > std::abs(most) ? x : most;
  out.scale = eight ? std::abs(most) / 127 : most / -8;
  for (auto const x : from) {
    if (most == 0)
      out.integers.push_back(0);
    else if (eight)
      out.integers.push_back(static_cast<int>(std::nearbyint(x / out.scale)));
    else
      out.integers.push_back(static_cast<int>(std::min(7.0F, std::nearbyint(x / out.scale))));
  }
  return out;
}
/// A row of activations, which is multiplied by the inverse of the scale.
block rounded_row(std::vector<float> const& from) {
  float most = 0;
  for (auto const x : from) most = std::max(most, std::abs(x));
  block out{{}, most / 127};
  for (auto const x : from) out.integers.push_back(most == 0 ? 0 : static_cast<int>(std::nearbyint(x * (127 / most))));
  return out;
}

/// x (m, k) times w, (k, n) or (n, k), in plain loops.
template <class T>
std::vector<float> plain(std::vector<T> const& x, std::vector<T> const& w, bool transposed, std::int64_t m,
                         std::int64_t n, std::int64_t k, weight_form form) {
  bool const eight = form == weight_form::int8;
  std::int64_t const length = eight ? 128 : 64;
  std::vector<float> y(static_cast<std::size_t>(m * n));
  for (std::int64_t first = 0; first < k; first += length) {
    auto const count = std::min(length, k - first);
    std::vector<block> rows, columns;
    for (std::int64_t i = 0; i < m; ++i) {
      std::vector<float> some;
      for (std::int64_t j = 0; j < count; ++j)
        some.push_back(static_cast<float>(x[static_cast<std::size_t>(i * k + first + j)]));
      rows.push_back(rounded_row(some));
    }
    for (std::int64_t i = 0; i < n; ++i) {
      std::vector<float> some;
      for (std::int64_t j = first; j < first + count; ++j)
        some.push_back(static_cast<float>(w[static_cast<std::size_t>(transposed ? i * k + j : j * n + i)]));
      columns.push_back(rounded(some, eight));
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::size_t j = 0; j < columns.size(); ++j) {
        std::int64_t sum = 0;
        for (std::size_t e = 0; e < rows[i].integers.size(); ++e)
          sum += std::int64_t{rows[i].integers[e]} * columns[j].integers[e];
        auto& to = y[i * columns.size() + j];
        to = std::fma(static_cast<float>(sum), rows[i].scale * columns[j].scale, to);
      }
    }
  }
  return y;
}

template <class T>
std::vector<float> with(integer_kernels const& kernels, std::vector<T> const& x, std::vector<T> const& w,
                        bool transposed, std::int64_t m, integer_layout const& layout) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(layout.bytes()) + 64);
  auto* const at = packed.data() + (64 - reinterpret_cast<std::uintptr_t>(packed.data()) % 64);
  ops::detail::pack_integers(at, w.data(), transposed, layout);
  std::vector<T> y(static_cast<std::size_t>(m * layout.n), T(7.0F));
  ops::detail::store_rule<T> rule;
  rule.y = y.data();
  rule.ld = layout.n;
  ops::detail::multiply_integers(kernels, rule, x.data(), at, m, layout);
  return {y.begin(), y.end()};
}

#if TRIREME_X86
/// An emulation of products of integer tiles: signed ones of the left tile, unsigned ones of the right one. After
/// [Intel, "Software Developer's Manual", volume 2, TDPBSUD].
struct integer_tile_model : tile_model {
  template <int Sums, int Left, int Right>
  static void multiply_integers() {
    auto& tiles = state().tiles;
    for (std::size_t m = 0; m < 16; ++m) {
      for (std::size_t n = 0; n < 16; ++n) {
        std::int32_t sum = 0;
        std::memcpy(&sum, tiles.at(Sums).at(m).data() + 4 * n, sizeof sum);
        for (std::size_t k = 0; k < 64; ++k)
          sum += static_cast<std::int8_t>(tiles.at(Left).at(m).at(k)) * tiles.at(Right).at(k / 4).at(4 * n + k % 4);
        std::memcpy(tiles.at(Sums).at(m).data() + 4 * n, &sum, sizeof sum);
      }
    }
  }
};
#endif

/// The kernels that this CPU has, and an emulation of those on tiles.
std::vector<integer_kernels> kernels_to_test() {
  auto all = ops::detail::all_integer_kernels();
#if TRIREME_X86
  for (auto const& each : ops::detail::all_integer_kernels()) {
    if (std::string(each.name) != "avx512_vnni") continue;
    auto tiles = each;
    tiles.name = "emulated tiles";
    tiles.rows = 32;
    tiles.pads = true;
    tiles.tile = ops::detail::avx512_vnni::integer_tiles<integer_tile_model>;
    tiles.begin = integer_tile_model::begin;
    tiles.end = integer_tile_model::end;
    all.push_back(tiles);
  }
#endif
  return all;
}

struct level_guard {
  ops::cpu_level before = ops::detected();
  ~level_guard() { ops::detected(before); }
};

}  // namespace

TEST_CASE("products of integers are those of plain loops at each level", "[ops]") {
  for (auto const& kernels : kernels_to_test()) {
    for (auto const form : {weight_form::int8, weight_form::int4}) {
      for (auto const& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
               {1, 5, 3}, {3, 33, 64}, {4, 64, 65}, {13, 31, 256}, {47, 70, 580}, {64, 32, 300}}) {
        for (bool const transposed : {false, true}) {
          INFO(kernels.name << ", " << name_of(form) << ", " << m << " rows, " << n << " columns, " << k
                            << (transposed ? " transposed" : ""));
          auto const x = wave<float>(m * k, 1), w = wave<float>(n * k, 2);
          CHECK(with(kernels, x, w, transposed, m, {form, k, n}) == plain(x, w, transposed, m, n, k, form));
        }
      }
    }
    auto const x = wave<bfloat16>(5 * 100, 1), w = wave<bfloat16>(33 * 100, 2);
    auto expected = plain(x, w, true, 5, 33, 100, weight_form::int8);
    for (auto& each : expected) each = static_cast<float>(bfloat16(each));
    CHECK(with(kernels, x, w, true, 5, {weight_form::int8, 100, 33}) == expected);
  }
}

TEST_CASE("the largest numbers do not overflow, and what is not finite stays so", "[ops]") {
  for (auto const& kernels : kernels_to_test()) {
    INFO(kernels.name);
    for (float const sign : {1.0F, -1.0F}) {
      std::vector<float> const x(2 * 512, sign), w(512 * 3, 1);
      for (auto const each : with(kernels, x, w, true, 2, {weight_form::int8, 512, 3}))
        CHECK(each == Approx(sign * 512));
    }
    constexpr auto infinity = std::numeric_limits<float>::infinity();
    for (float const bad : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
      auto x = wave<float>(2 * 70, 1), w = wave<float>(70 * 3, 2);
      x[1] = bad;
      auto y = with(kernels, x, w, true, 2, {weight_form::int8, 70, 3});
      CHECK(std::isnan(y[0]));
      CHECK(std::isfinite(y[3]));
      x[1] = 1;
      w[75] = bad;
      y = with(kernels, x, w, true, 2, {weight_form::int4, 70, 3});
      CHECK(std::isnan(y[1]));
      CHECK(std::isfinite(y[0]));
    }
    std::vector<float> const none(70), tiny(70, 1e-42F);
    CHECK(with(kernels, none, wave<float>(70, 1), true, 1, {weight_form::int8, 70, 1})[0] == 0);
    CHECK(with(kernels, tiny, wave<float>(70, 1), true, 1, {weight_form::int8, 70, 1})[0] == 0);
    CHECK(with(kernels, wave<float>(70, 1), none, true, 1, {weight_form::int4, 70, 1})[0] == 0);
  }
}

TEST_CASE("weights that are made meanwhile are multiplied as integers, with what is around a product", "[ops]") {
  static constexpr std::int64_t m = 20, n = 48, k = 200;
  auto const x = wave<float>(m * k, 1), w = wave<float>(n * k, 2), bias = wave<float>(n, 3),
             residual = wave<float>(m * n, 4);
  tensor_view<float const> const values(w.data(), {k, n}), left(x.data(), {m, k});
  ops::weights<float, host> before(values, ops::orientation::in_out);
  auto const product = [&](ops::weights<float, host>& by, std::int64_t rows = 20) {
    std::vector<float> y(static_cast<std::size_t>(rows * n));
    ops::on<host>::linear(tensor_view<float>(y.data(), {rows, n}), left.rows(m - rows, rows), by,
                          {.bias = {bias.data(), {n}},
                           .act = ops::activation::relu,
                           .residual = tensor_view<float const>(residual.data(), {m, n}).rows(m - rows, rows)});
    return y;
  };
  auto const exact = product(before);
  for (auto const& [form, most] : {std::pair{weight_form::int8, 0.02}, std::pair{weight_form::int4, 0.4}}) {
    std::vector<float> rounded;
    {
      ops::integer_products const scope(form);
      ops::weights<float, host> inside(values, ops::orientation::in_out);
      rounded = product(inside);
      CHECK(product(before) == exact);
      CHECK(rounded != exact);
      CHECK(inside.packed_bytes() < (form == weight_form::int8 ? 2 : 1) * n * 256);
      CHECK(product(inside, 1) == std::vector<float>(rounded.end() - n, rounded.end()));
      CHECK(product(inside, 7) == std::vector<float>(rounded.end() - 7 * n, rounded.end()));
      level_guard const guard;
      for (auto const level : {ops::cpu_level::baseline, ops::cpu_level::avx2, ops::cpu_level::avx512}) {
        ops::detected(level);
        CHECK(product(inside) == rounded);
      }
      // Gradients are those of the weight itself.
      std::vector<float> one(m * k), other(m * k);
      tensor_view<float const> const dy(residual.data(), {m, n});
      ops::on<host>::linear_backward_input(tensor_view<float>(one.data(), {m, k}), dy, inside);
      ops::on<host>::linear_backward_input(tensor_view<float>(other.data(), {m, k}), dy, before);
      CHECK(one == other);
    }
    double squares = 0, errors = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      squares += double{exact[i]} * exact[i];
      errors += std::pow(double{exact[i]} - rounded[i], 2);
    }
    INFO(name_of(form) << " relative error " << std::sqrt(errors / squares));
    CHECK(std::sqrt(errors / squares) < most);
    {
      ops::integer_products const scope(weight_form::int4);  // tables of words have 8 bits
      ops::weights<float, host> table(values.reshaped({n, k}), ops::orientation::out_in);
      static_cast<void>(product(table));
      CHECK(table.packed_bytes() > n * k);
    }
    ops::weights<float, host> after(values, ops::orientation::in_out);
    CHECK(product(after) == exact);
  }
  CHECK(ops::weight_form_of("int4") == weight_form::int4);
  CHECK_THROWS_WITH(ops::weight_form_of("int3"), "trireme::ops::weight_form: \"int3\" is unknown; take int8 or int4");
}
