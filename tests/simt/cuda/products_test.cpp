// Matrix products of ops::on<cuda> against sums in double. In the stand-in for a GPU cublas_stand_in.cpp multiplies; on
// a GPU cuBLASLt does.
#include "trireme/ops/cuda.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "tensors.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/tf32.hpp"

using namespace trireme;
using ops::activation;
using ops::orientation;

namespace {

using kernels = ops::on<cuda>;

/// Half a unit in the last place of 1.
template <class T>
constexpr double unit = std::is_same_v<T, double>     ? 1e-14
                        : std::is_same_v<T, float>    ? 6e-8
                        : std::is_same_v<T, bfloat16> ? 1.0 / 256
                                                      : 1.0 / 2048;

/// A matrix of rows that may be longer than its columns, at an address that may be `shift` elements behind an aligned
/// one. What is outside of the columns is NaN in the beginning and has to stay so.
template <class T>
struct matrix {
  std::int64_t rows, columns, row, shift;
  std::vector<double> numbers;  // what it should have, before rounding
  tensor<T, cuda> all;

  matrix(std::int64_t rows_, std::int64_t columns_, std::uint64_t seed, double scale = 1, std::int64_t row_ = 0,
         std::int64_t shift_ = 0)
      : rows(rows_),
        columns(columns_),
        row(std::max(row_, columns_)),
        shift(shift_),
        numbers(static_cast<std::size_t>(rows_ * columns_)),
        all(shape{rows * row + shift}) {
    std::vector<T> made(static_cast<std::size_t>(all.size()), nan());
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        auto const drawn =
            static_cast<double>(mix(seed * 1000003 + static_cast<std::uint64_t>(r * columns + c)) % 2001);
        auto const rounded = static_cast<T>(static_cast<float>(scale * (drawn - 1000) / 1000));
        made[static_cast<std::size_t>(shift + r * row + c)] = rounded;
        at(r, c) = static_cast<double>(rounded);
      }
    }
    kernels::upload(all.view(), made);
  }
  [[nodiscard]] double& at(std::int64_t r, std::int64_t c) {
    return numbers[static_cast<std::size_t>(r * columns + c)];
  }
  [[nodiscard]] double at(std::int64_t r, std::int64_t c) const {
    return numbers[static_cast<std::size_t>(r * columns + c)];
  }
  [[nodiscard]] tensor_view<T, cuda> view() const { return all.view().flat(shift, rows * row).reshaped({rows, row}); }
  [[nodiscard]] tensor_view<T const, cuda> read() const { return view(); }
  [[nodiscard]] tensor_view<T, cuda> line() const { return view().flat(0, rows * row); }
  [[nodiscard]] std::vector<T> elements() const {
    std::vector<T> got(static_cast<std::size_t>(all.size()));
    kernels::download(std::span<T>(got), all);
    return got;
  }
  /// Looks whether the elements are the numbers, each within `units` of its own size and `sizes` (rows, columns).
  void expect(std::string const& what, double units, std::vector<double> const& sizes) const {
    auto const got = elements();
    for (std::int64_t i = 0; i < all.size(); ++i) {
      auto const r = (i - shift) / row, c = (i - shift) % row;
      auto const value = static_cast<double>(got[static_cast<std::size_t>(i)]);
      if (i < shift || c >= columns) {
        if (!std::isnan(value)) FAIL(what << ": element " << i << " beside the matrix was written: " << value);
        continue;
      }
      auto const want = at(r, c);
      auto const size = sizes.empty() ? 1.0 : sizes[static_cast<std::size_t>(r * columns + c)];
      if (!(std::abs(value - want) <= units * unit<T> * (std::abs(want) + size)))
        FAIL(what << " in " << name_of(dtype_of<T>) << ": (" << r << ", " << c << ") of (" << rows << ", " << columns
                  << ") is " << value << " instead of " << want);
    }
  }

 private:
  static T nan() { return static_cast<T>(std::numeric_limits<float>::quiet_NaN()); }
};

double activated(activation act, double x) {
  switch (act) {
    case activation::gelu:
      return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    case activation::tanh:
      return std::tanh(x);
    case activation::relu:
      return x > 0 ? x : 0;
    case activation::silu:
      return x / (1 + std::exp(-x));
    case activation::gelu_erf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    default:
      return x;
  }
}
double slope(activation act, double x) {
  if (act == activation::relu) return x > 0 ? 1 : 0;
  return (activated(act, x + 1e-5) - activated(act, x - 1e-5)) / 2e-5;
}

template <class F>
void for_types(F&& f) {
  f(float{});
  f(bfloat16{});
  f(float16{});
  f(double{});
}
struct sizes {
  std::int64_t m, k, n;
  std::int64_t longer = 0;  // columns of y and dy behind the N-th
  std::int64_t shift = 0;
};
std::vector<sizes> const shapes = {
    {1, 1, 1},      {5, 7, 3},         {33, 16, 24},        {8, 64, 40, 8},
    {9, 24, 13, 3}, {16, 8, 16, 0, 1}, {3, 5, 9, 6, 3},
#ifdef TRIREME_TEST_ON_GPU
    {96, 128, 264}, {33, 96, 1027, 5}, {520, 64, 72, 0, 8},
#endif
};
/// Float sums of k products, with an operand of 16 bits rounded now and then.
template <class T>
double units_of(std::int64_t k) {
  return 4 + (sizeof(T) >= 4 ? std::sqrt(static_cast<double>(k)) : 0);
}

}  // namespace

TEST_CASE("linear adds bias, activation and residual", "[products]") {
  for_types([]<class T>(T) {
    for (auto const& s : shapes) {
      for (auto const way : {orientation::in_out, orientation::out_in}) {
        bool const in_out = way == orientation::in_out;
        matrix<T> const x(s.m, s.k, 1, 1, 0, s.shift), bias(1, s.n, 3, 1, 0, s.shift);
        matrix<T> const w(in_out ? s.k : s.n, in_out ? s.n : s.k, 2, 2 / std::sqrt(static_cast<double>(s.k)));
        ops::weights<T, cuda> weight(w.read(), way);
        REQUIRE(weight.inputs() == s.k);
        REQUIRE(weight.outputs() == s.n);
        std::vector<double> product(static_cast<std::size_t>(s.m * s.n)), size(product.size());
        for (std::int64_t r = 0; r < s.m; ++r) {
          for (std::int64_t i = 0; i < s.k; ++i) {
            for (std::int64_t c = 0; c < s.n; ++c) {
              auto const term = x.at(r, i) * (in_out ? w.at(i, c) : w.at(c, i));
              product[static_cast<std::size_t>(r * s.n + c)] += term;
              size[static_cast<std::size_t>(r * s.n + c)] += std::abs(term);
            }
          }
        }
        for (auto& each : size) each = 2 + std::min(each, 4 + each / std::sqrt(static_cast<double>(s.k)));
        auto const try_one = [&](activation act, bool has_bias, bool keeps, bool adds, bool in_place) {
          matrix<T> y(s.m, s.n, 5, 1, s.n + s.longer, s.shift), before(s.m, s.n, 5, 1, s.n + s.longer, s.shift);
          matrix<T> residual(s.m, s.n, 6, 1, s.n + s.longer, s.shift);
          if (in_place) residual.numbers = y.numbers;
          for (std::int64_t r = 0; r < s.m; ++r) {
            for (std::int64_t c = 0; c < s.n; ++c) {
              auto const z = product[static_cast<std::size_t>(r * s.n + c)] + (has_bias ? bias.at(0, c) : 0);
              y.at(r, c) = activated(act, z) + (adds ? residual.at(r, c) : 0);
              if (keeps) before.at(r, c) = z;
            }
          }
          ops::linear_epilogue<T, cuda> epilogue;
          epilogue.act = act;
          if (has_bias) epilogue.bias = bias.line();
          if (keeps) epilogue.before_activation = before.view();
          if (adds) epilogue.residual = in_place ? y.read() : residual.read();
          kernels::linear(y.view(), x.read(), weight, epilogue);
          auto const what = text("linear with act ", static_cast<int>(act), has_bias ? ", bias" : "",
                                 keeps ? ", kept argument" : "", adds ? ", residual" : "", in_place ? " in place" : "");
          y.expect(what, units_of<T>(s.k), size);
          before.expect(what + ": the argument", units_of<T>(s.k), size);
        };
        bool const all = s.m * s.n * s.k < 100000;
        for (auto const act : {activation::none, activation::gelu, activation::silu}) {
          try_one(act, true, act != activation::none, false, false);
          try_one(act, false, false, false, false);
          try_one(act, true, false, true, false);
          if (!all) continue;
          try_one(act, true, true, true, true);
          try_one(act, true, false, true, true);
          try_one(act, false, true, false, false);
          try_one(act, false, true, true, false);
          try_one(act, false, false, true, true);
          try_one(act, true, false, false, false);
        }
        if (!all) continue;
        for (auto const act : {activation::tanh, activation::relu, activation::gelu_erf})
          try_one(act, true, true, false, false);
      }
    }
  });
}

TEST_CASE("GELU of 16-bit products is the one with tanh", "[products]") {
  auto const look = []<class T>(T) {
    std::int64_t const n = 64;
    matrix<T> x(n, n, 1), w(n, n, 2), y(n, n, 3), before(n, n, 4), dx(n, n, 5), dy(n, n, 6);
    std::vector<T> at(static_cast<std::size_t>(n * n), T(-3.0F)), one(at.size(), T(0.0F));
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) one[i * static_cast<std::size_t>(n) + i] = T(1.0F);
    kernels::upload(x.all.view(), at);
    kernels::upload(w.all.view(), one);
    kernels::upload(dy.all.view(), std::vector<T>(at.size(), T(1.0F)));
    ops::weights<T, cuda> weight(w.read(), orientation::in_out);
    kernels::linear(y.view(), x.read(), weight, {.act = activation::gelu, .before_activation = before.view()});
    kernels::linear_backward_input(dx.view(), dy.read(), weight,
                                   {.act = activation::gelu, .before_activation = before.read()});
    // With erf they are -0.00405 and -0.0119.
    for (auto const each : y.elements()) REQUIRE(static_cast<double>(each) == Approx(-0.003637).epsilon(0.03));
    for (auto const each : dx.elements()) REQUIRE(static_cast<double>(each) == Approx(-0.01158).epsilon(0.015));
    for (auto const each : before.elements()) REQUIRE(static_cast<double>(each) == Approx(-3));
  };
  look(bfloat16{});
  look(float16{});
}

TEST_CASE("linear_backward_input multiplies by the derivative and adds", "[products]") {
  for_types([]<class T>(T) {
    for (auto const& s : shapes) {
      for (auto const way : {orientation::in_out, orientation::out_in}) {
        bool const in_out = way == orientation::in_out;
        matrix<T> const dy(s.m, s.n, 1, 1, s.n + s.longer, s.shift);
        matrix<T> const w(in_out ? s.k : s.n, in_out ? s.n : s.k, 2, 2 / std::sqrt(static_cast<double>(s.n)));
        ops::weights<T, cuda> weight(w.read(), way);
        std::vector<double> product(static_cast<std::size_t>(s.m * s.k));
        for (std::int64_t r = 0; r < s.m; ++r)
          for (std::int64_t i = 0; i < s.k; ++i)
            for (std::int64_t c = 0; c < s.n; ++c)
              product[static_cast<std::size_t>(r * s.k + i)] += dy.at(r, c) * (in_out ? w.at(i, c) : w.at(c, i));
        std::vector<double> const size(product.size(), 4);
        auto const try_one = [&](activation act, bool slopes, bool accumulates, bool in_place) {
          matrix<T> dx(s.m, s.k, 5, 1, 0, s.shift);
          matrix<T> const before(s.m, s.k, in_place ? 5 : 6, 1, 0, s.shift);
          for (std::int64_t r = 0; r < s.m; ++r) {
            for (std::int64_t i = 0; i < s.k; ++i) {
              auto const z = product[static_cast<std::size_t>(r * s.k + i)];
              dx.at(r, i) = (accumulates ? dx.at(r, i) : 0) + z * (slopes ? slope(act, before.at(r, i)) : 1);
            }
          }
          ops::input_epilogue<T, cuda> epilogue;
          epilogue.act = act;
          epilogue.accumulate = accumulates;
          if (slopes) epilogue.before_activation = in_place ? dx.read() : before.read();
          kernels::linear_backward_input(dx.view(), dy.read(), weight, epilogue);
          // Finite differences have about eleven digits.
          auto const units = units_of<T>(s.n) + (slopes && std::is_same_v<T, double> ? 1e4 : 0);
          dx.expect(text("linear_backward_input with act ", static_cast<int>(act), slopes ? ", derivative" : "",
                         accumulates ? ", added" : "", in_place ? ", in place" : ""),
                    units, size);
        };
        try_one(activation::none, false, false, false);
        try_one(activation::none, false, true, false);
        try_one(activation::gelu, true, false, false);
        if (s.m * s.n * s.k >= 100000) continue;
        for (auto const act : {activation::gelu, activation::silu, activation::tanh, activation::none}) {
          try_one(act, true, false, false);
          try_one(act, true, true, false);
          try_one(act, true, false, true);
          try_one(act, true, true, true);
        }
      }
    }
  });
}

TEST_CASE("linear_backward_weight adds to the gradients", "[products]") {
  auto const look = []<class T, class G>(T, G) {
    for (auto const& s : shapes) {
      for (auto const way : {orientation::in_out, orientation::out_in}) {
        bool const in_out = way == orientation::in_out;
        matrix<T> const x(s.m, s.k, 1, 1, 0, s.shift), dy(s.m, s.n, 2, 1, s.n + s.longer, s.shift);
        matrix<G> dw(in_out ? s.k : s.n, in_out ? s.n : s.k, 3), db(1, s.n, 4, 1, 0, s.shift);
        for (std::int64_t r = 0; r < s.m; ++r) {
          for (std::int64_t c = 0; c < s.n; ++c) {
            db.at(0, c) += dy.at(r, c);
            for (std::int64_t i = 0; i < s.k; ++i) (in_out ? dw.at(i, c) : dw.at(c, i)) += x.at(r, i) * dy.at(r, c);
          }
        }
        kernels::linear_backward_weight(dw.view(), db.line(), x.read(), dy.read(), way);
        auto const size = 2 + std::sqrt(static_cast<double>(s.m));
        dw.expect("dw", units_of<G>(s.m), std::vector<double>(dw.numbers.size(), size));
        db.expect("db", units_of<G>(s.m), std::vector<double>(db.numbers.size(), size));
        auto const first = db.elements();
        kernels::linear_backward_weight(dw.view(), {}, x.read(), dy.read(), way);
        auto const after = db.elements();
        CHECK(std::memcmp(first.data(), after.data(), first.size() * sizeof(G)) == 0);
      }
    }
  };
  look(float{}, float{});
  look(bfloat16{}, float{});
  look(float16{}, float{});
  look(bfloat16{}, bfloat16{});
  look(float16{}, float16{});
  look(double{}, double{});
}

TEST_CASE("a product forms sums of its operands' columns", "[products]") {
  using ops::cuda_kernels::product_epilogue;
  std::int64_t const m = 256, k = 64, n = 96;
  for (bool const of_left : {false, true}) {
    matrix<bfloat16> const x(m, k, 1), dy(m, n, 2);
    matrix<float> dw(of_left ? n : k, of_left ? k : n, 3), db(1, n, 4);
    for (auto& each : db.numbers) each = 0;
    for (std::int64_t r = 0; r < m; ++r) {
      for (std::int64_t c = 0; c < n; ++c) {
        db.at(0, c) += dy.at(r, c);
        for (std::int64_t i = 0; i < k; ++i) (of_left ? dw.at(c, i) : dw.at(i, c)) += x.at(r, i) * dy.at(r, c);
      }
    }
    ops::cuda_kernels::product_call call;
    call.of = dtype::bf16;
    call.rows = of_left ? n : k;
    call.columns = call.right_row = call.to_row = of_left ? k : n;
    call.inner = m;
    call.left = of_left ? dy.view().address() : x.view().address();
    call.left_row = call.rows;
    call.left_transposed = true;
    call.right = of_left ? x.view().address() : dy.view().address();
    call.to = dw.view().address();
    call.added = call.to;
    call.epilogue = of_left ? product_epilogue::left_sums : product_epilogue::right_sums;
    call.sums = db.line().address();
    auto const outcome = ops::cuda_kernels::multiply(cuda::stream(), call);
    INFO(outcome.call << ": " << outcome.reason);
    REQUIRE(outcome.is != ops::cuda_kernels::product_outcome::state::failed);
    if (outcome.is == ops::cuda_kernels::product_outcome::state::unsupported) continue;
    dw.expect("dw", 1000, {});
    db.expect("the sums", 1000, {});
  }
}

TEST_CASE("sums of columns of many rows have one order", "[products]") {
  auto const look = []<class T>(T, std::int64_t m, std::int64_t n, std::int64_t row) {
    using G = ops::accumulate_t<T>;
    matrix<T> const x(m, 1, 1), dy(m, n, 2, 1, row);
    matrix<G> dw(1, n, 3), db(1, n, 4), again(1, n, 4);
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t c = 0; c < n; ++c) db.at(0, c) += dy.at(r, c);
    kernels::linear_backward_weight(dw.view(), db.line(), x.read(), dy.read(), orientation::in_out);
    kernels::linear_backward_weight(dw.view(), again.line(), x.read(), dy.read(), orientation::in_out);
    db.expect("db", 4, std::vector<double>(static_cast<std::size_t>(n), 4 * std::sqrt(static_cast<double>(m))));
    CHECK(std::memcmp(db.elements().data(), again.elements().data(), static_cast<std::size_t>(n) * sizeof(G)) == 0);
  };
  for_types([&]<class T>(T type) {
    look(type, 1000, 40, 40);
    look(type, 300, 300, 304);
    look(type, 70, 257, 261);
#ifdef TRIREME_TEST_ON_GPU
    look(type, 65536, 40, 40);
#endif
  });
#ifdef TRIREME_TEST_ON_GPU
  look(bfloat16{}, 8192, 768, 768);
#endif
}

TEST_CASE("16-bit products with an odd vocabulary in longer rows are cut in two", "[products]") {
  std::int64_t const m = 64, k = 64, n = 1027, row = 1032;
  matrix<bfloat16> const x(m, k, 1), w(n, k, 2, 0.25), dy(m, n, 3, 1, row);
  matrix<bfloat16> y(m, n, 4, 1, row), dx(m, k, 5), more(m, k, 5);
  matrix<float> dw(n, k, 6);
  std::vector<double> const nothing(static_cast<std::size_t>(m * k));
  dx.numbers = nothing;
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      y.at(r, c) = 0;
      for (std::int64_t i = 0; i < k; ++i) {
        y.at(r, c) += x.at(r, i) * w.at(c, i);
        dx.at(r, i) += dy.at(r, c) * w.at(c, i);
        more.at(r, i) += dy.at(r, c) * w.at(c, i);
        dw.at(c, i) += dy.at(r, c) * x.at(r, i);
      }
    }
  }
  ops::weights<bfloat16, cuda> weight(w.read(), orientation::out_in);
  kernels::linear(y.view(), x.read(), weight);
  kernels::linear_backward_input(dx.view(), dy.read(), weight);
  kernels::linear_backward_input(more.view(), dy.read(), weight, {.accumulate = true});
  kernels::linear_backward_weight(dw.view(), {}, x.read(), dy.read(), orientation::out_in);
  y.expect("linear", 2, {});
  dx.expect("dx", 2, {});
  more.expect("dx, added to", 3, {});
  dw.expect("dw", 100, {});
}

TEST_CASE("a result that is an operand of its epilogue is formed in pieces", "[products]") {
  std::int64_t const m = 4200, n = 4096, k = 2;  // more than 64 MiB of sums
  matrix<float> const x(m, k, 1), w(k, n, 2);
  matrix<float> y(m, n, 3);
  for (std::int64_t r = 0; r < m; ++r)
    for (std::int64_t c = 0; c < n; ++c)
      y.at(r, c) += activated(activation::relu, x.at(r, 0) * w.at(0, c) + x.at(r, 1) * w.at(1, c));
  ops::weights<float, cuda> weight(w.read(), orientation::in_out);
  kernels::linear(y.view(), x.read(), weight, {.act = activation::relu, .residual = y.read()});
  y.expect("linear", 8, {});
}

namespace {

/// The nearest number with 10 bits behind the point, of two the larger.
double as_tf32(double x) {
  if (std::fpclassify(x) == FP_ZERO) return x;
  auto const step = std::ldexp(1.0, std::ilogb(x) - 10);
  return step * std::round(x / step);
}
/// y, dx and dw of one layer, one after the other.
template <class T>
std::vector<T> three_products(matrix<T> const& x, matrix<T> const& w, matrix<T> const& dy) {
  matrix<T> y(x.rows, w.columns, 4), dx(x.rows, x.columns, 5), dw(w.rows, w.columns, 6, 0);
  ops::weights<T, cuda> weight(w.read(), orientation::in_out);
  kernels::linear(y.view(), x.read(), weight);
  kernels::linear_backward_input(dx.view(), dy.read(), weight);
  kernels::linear_backward_weight(dw.view(), {}, x.read(), dy.read(), orientation::in_out);
  auto all = y.elements();
  for (auto const* const more : {&dx, &dw}) {
    auto const elements = more->elements();
    all.insert(all.end(), elements.begin(), elements.end());
  }
  return all;
}

}  // namespace

TEST_CASE("products of float round to TF32 only in a scope of ops::tf32_products", "[products]") {
  std::int64_t const m = on_device::large ? 256 : 24, n = on_device::large ? 128 : 16, k = on_device::large ? 512 : 40;
  matrix<float> const x(m, k, 1), w(k, n, 2), dy(m, n, 3);
  std::vector<double> rounded, exact, sizes;
  auto const add = [&](std::int64_t rows, std::int64_t columns, std::int64_t inner, auto&& left, auto&& right) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c) {
        double as_rounded = 0, as_is = 0, size = 0;
        for (std::int64_t i = 0; i < inner; ++i) {
          as_rounded += as_tf32(left(r, i)) * as_tf32(right(i, c));
          as_is += left(r, i) * right(i, c);
          size += std::abs(left(r, i) * right(i, c));
        }
        rounded.push_back(as_rounded);
        exact.push_back(as_is);
        sizes.push_back(size);
      }
  };
  auto const at = [](matrix<float> const& a) { return [&a](auto r, auto c) { return a.at(r, c); }; };
  auto const turned = [](matrix<float> const& a) { return [&a](auto r, auto c) { return a.at(c, r); }; };
  add(m, n, k, at(x), at(w));
  add(m, k, n, at(dy), turned(w));
  add(k, n, m, turned(x), at(dy));
  // The largest difference, as a share of what each sum adds up.
  auto const off = [&](std::vector<float> const& got, std::vector<double> const& want) {
    REQUIRE(got.size() == want.size());
    double worst = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]) / sizes[i]);
    return worst;
  };

  auto const strict = three_products(x, w, dy);
  CHECK(off(strict, exact) < 1e-6);
  CHECK_FALSE(ops::tf32_products::allowed());
  {
    ops::tf32_products const named;
    auto const fast = three_products(x, w, dy);
    CHECK(off(fast, exact) < 0x1p-9);
    if (!on_device::large) {  // a GPU's library may choose an algorithm that rounds nothing, or that cuts bits off
      CHECK(off(fast, exact) > 1e-5);
      CHECK(off(fast, rounded) < 1e-6);
    }
    ops::tf32_products const not_here(false);
    CHECK(three_products(x, w, dy) == strict);
  }
  CHECK(three_products(x, w, dy) == strict);

  // Other types are not rounded.
  auto const same_in_a_scope = [&]<class T>(T) {
    matrix<T> const some(9, 16, 1), weight(16, 8, 2), gradient(9, 8, 3);
    auto const before = three_products(some, weight, gradient);
    ops::tf32_products const named;
    CHECK(three_products(some, weight, gradient) == before);
  };
  same_in_a_scope(double{});
  same_in_a_scope(bfloat16{});
  same_in_a_scope(float16{});
}

TEST_CASE("products of no rows do nothing, and views that do not fit are refused", "[products]") {
  matrix<float> const w(4, 6, 1), x(5, 4, 2), bias(1, 7, 3);
  matrix<float> y(5, 6, 4), dw(4, 6, 5);
  ops::weights<float, cuda> weight(w.read(), orientation::in_out);
  CHECK(weight.packed_bytes() == 0);
  CHECK(weight.view().address() == w.view().address());
  CHECK(weight.way() == orientation::in_out);
  weight.refresh(3);
  tensor_view<float, cuda> const nothing;
  kernels::linear(nothing, nothing, weight);
  kernels::linear_backward_input(nothing, nothing, weight);
  kernels::linear_backward_weight(dw.view(), {}, tensor_view<float const, cuda>(nothing), nothing, orientation::in_out);
  dw.expect("dw", 1, {});

  auto const said = [](auto&& call) { return sentence_of<config_error>(call); };
  CHECK(said([&] { kernels::linear(y.line().flat(0, 29), x.read(), weight); }) ==
        "trireme::ops::linear: y has 29 elements, expected 30");
  CHECK(said([&] { kernels::linear(y.line().flat(0, 25), x.read(), weight); }) ==
        "trireme::ops::linear: y has 25 elements, expected 30");
  CHECK(said([&] { kernels::linear(y.view(), x.line().flat(0, 19), weight); }) ==
        "trireme::ops::linear: the left operand has 19 elements, expected 16");
  CHECK(said([&] { kernels::linear(y.view(), x.read(), weight, {bias.line()}); }) ==
        "trireme::ops::linear: bias has 7 elements, expected 6");
  CHECK(said([&] { kernels::linear_backward_input(x.view(), y.line().flat(0, 29), weight); }) ==
        "trireme::ops::linear_backward_input: the left operand has 29 elements, expected 30");
  CHECK(said([&] {
          kernels::linear_backward_weight(dw.view(), bias.line(), x.read(), y.read(), orientation::in_out);
        }) == "trireme::ops::linear_backward_weight: db has 7 elements, expected 6");
}
