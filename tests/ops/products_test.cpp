#include "trireme/ops/host/products.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "trireme/core/hash.hpp"

using trireme::bfloat16;
using trireme::host;
using trireme::tensor_view;
using trireme::ops::activation;
using trireme::ops::cpu_level;
using trireme::ops::host_products;
using trireme::ops::orientation;
using trireme::ops::provider;
using trireme::ops::weights;

namespace {

/// Selects an implementation of products; restores the previous one at the end of the scope.
struct using_kernels {
  using_kernels(provider who, cpu_level level) {
    trireme::ops::product_provider(who);
    trireme::ops::detected(level);
  }
  ~using_kernels() {
    trireme::ops::product_provider(provider::own);
    trireme::ops::detected(before);
  }
  cpu_level before = trireme::ops::detected();
};

struct way_to_compute {
  provider who;
  cpu_level level;
};

std::vector<way_to_compute> ways() {
  std::vector<way_to_compute> all{{provider::eigen, cpu_level::baseline}, {provider::own, cpu_level::baseline}};
  for (auto const level : {cpu_level::avx2, cpu_level::avx512, cpu_level::avx512_bf16, cpu_level::amx}) {
    if (level <= trireme::ops::available()) all.push_back({provider::own, level});
  }
  return all;
}

/// A matrix of T with an exact copy in double. Unaligned in its block, with signalling values around it.
template <class T>
struct matrix {
  std::int64_t rows;
  std::int64_t columns;
  std::vector<T> block;
  std::vector<double> exact;

  matrix(std::int64_t r, std::int64_t c, std::uint64_t seed, double scale = 1) : rows(r), columns(c) {
    block.assign(static_cast<std::size_t>(r * c) + 2 * margin, static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
    exact.resize(static_cast<std::size_t>(r * c));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      auto const word = trireme::mix(seed * 1000003 + i);
      block[margin + i] = static_cast<T>(static_cast<float>(scale * (static_cast<double>(word >> 11) * 0x1p-52 - 1)));
      exact[i] = static_cast<double>(block[margin + i]);
    }
  }
  tensor_view<T> view() { return {block.data() + margin, {rows, columns}}; }
  tensor_view<T> line() { return {block.data() + margin, {rows * columns}}; }
  tensor_view<T const> constant() { return view(); }
  double operator()(std::int64_t i, std::int64_t j) const { return exact[static_cast<std::size_t>(i * columns + j)]; }
  /// Whether nothing outside was written.
  bool margins_hold() const {
    for (std::size_t i = 0; i < margin; ++i) {
      if (!std::isnan(static_cast<double>(block[i])) || !std::isnan(static_cast<double>(block[block.size() - 1 - i]))) {
        return false;
      }
    }
    return true;
  }
  static constexpr std::size_t margin = 19;
};

double reference_activation(activation act, double x) {
  double const u = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
  switch (act) {
    case activation::gelu:
      return 0.5 * x * (1 + std::tanh(u));
    case activation::tanh:
      return std::tanh(x);
    case activation::relu:
      return x > 0 ? x : 0;
    case activation::silu:
      return x / (1 + std::exp(-x));
    case activation::gelu_erf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case activation::none:
      break;
  }
  return x;
}

double reference_slope(activation act, double x) {
  double const root = std::sqrt(2 / 3.14159265358979323846);
  double const t = std::tanh(root * (x + 0.044715 * x * x * x));
  switch (act) {
    case activation::gelu:
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
    case activation::tanh:
      return 1 - std::tanh(x) * std::tanh(x);
    case activation::relu:
      return x > 0 ? 1 : 0;
    case activation::silu: {
      double const s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case activation::gelu_erf:
      return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) +
             x * std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979323846);
    case activation::none:
      break;
  }
  return 1;
}

/// The tolerance of a result of T: one rounding, and sums of k products below 1 in the accumulate type.
template <class T>
double tolerance(std::int64_t k) {
  if (std::is_same_v<T, double>) return 1e-13 * static_cast<double>(k);
  double const sums = 1e-6 * std::sqrt(static_cast<double>(k)) + 2e-6;
  return std::is_same_v<T, float> ? sums : sums + 0.02;
}

template <class T>
bool near(T got, double expected, std::int64_t k) {
  double const scale = std::is_same_v<T, bfloat16> ? std::max(1.0, std::abs(expected)) * 0.25 : 1 + std::abs(expected);
  return std::abs(static_cast<double>(got) - expected) <= tolerance<T>(k) * scale;
}

struct size {
  std::int64_t m, n, k;
};

template <class T>
int wrong_in_linear(size of, orientation way, activation act, bool bias, bool keep, bool residual) {
  auto const [m, n, k] = of;
  matrix<T> x(m, k, 1);
  matrix<T> w(way == orientation::in_out ? k : n, way == orientation::in_out ? n : k, 2);
  matrix<T> b(1, n, 3);
  matrix<T> r(m, n, 4);
  matrix<T> y(m, n, 5);
  matrix<T> before(m, n, 6);
  trireme::ops::linear_epilogue<T, host> epilogue{.act = act};
  if (bias) epilogue.bias = b.line();
  if (keep) epilogue.before_activation = before.view();
  if (residual) epilogue.residual = r.view();
  weights<T, host> packed(w.constant(), way);
  host_products::linear(y.view(), x.constant(), packed, epilogue);
  int wrong = y.margins_hold() && before.margins_hold() ? 0 : 1;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = bias ? b(0, j) : 0;
      for (std::int64_t l = 0; l < k; ++l) sum += x(i, l) * (way == orientation::in_out ? w(l, j) : w(j, l));
      if (keep && !near(before.view()[i * n + j], sum, k)) ++wrong;
      double const expected = reference_activation(act, sum) + (residual ? r(i, j) : 0);
      if (!near(y.view()[i * n + j], expected, k)) ++wrong;
    }
  }
  return wrong;
}

template <class T>
int wrong_in_backward_input(size of, orientation way, activation act, bool accumulate, bool in_place = false) {
  auto const [m, n, k] = of;
  matrix<T> dy(m, n, 11);
  matrix<T> w(way == orientation::in_out ? k : n, way == orientation::in_out ? n : k, 12);
  matrix<T> dx(m, k, 13);
  matrix<T> before(m, k, 14, 3);
  trireme::ops::input_epilogue<T, host> epilogue{.act = act, .accumulate = accumulate};
  if (act != activation::none) epilogue.before_activation = before.view();
  weights<T, host> packed(w.constant(), way);
  auto& written = in_place ? before : dx;
  host_products::linear_backward_input(written.view(), dy.constant(), packed, epilogue);
  int wrong = written.margins_hold() ? 0 : 1;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < k; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < n; ++l) sum += dy(i, l) * (way == orientation::in_out ? w(j, l) : w(l, j));
      double const expected = sum * reference_slope(act, before(i, j)) + (accumulate ? dx(i, j) : 0);
      if (!near(written.view()[i * k + j], expected, n)) ++wrong;
    }
  }
  return wrong;
}

template <class T>
int wrong_in_backward_weight(size of, orientation way, bool with_bias) {
  using G = trireme::ops::accumulate_t<T>;
  auto const [m, n, k] = of;
  matrix<T> dy(m, n, 21);
  matrix<T> x(m, k, 22);
  matrix<G> dw(way == orientation::in_out ? k : n, way == orientation::in_out ? n : k, 23);
  matrix<G> db(1, n, 24);
  host_products::linear_backward_weight(dw.view(), with_bias ? db.line() : tensor_view<G>{}, x.constant(),
                                        dy.constant(), way);
  int wrong = dw.margins_hold() && db.margins_hold() ? 0 : 1;
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      auto const at = way == orientation::in_out ? i * n + j : j * k + i;
      double sum = dw.exact[static_cast<std::size_t>(at)];
      for (std::int64_t l = 0; l < m; ++l) sum += x(l, i) * dy(l, j);
      if (!near<G>(dw.view()[at], sum, m)) ++wrong;
    }
  }
  for (std::int64_t j = 0; j < n; ++j) {
    double sum = db(0, j);
    for (std::int64_t l = 0; l < m && with_bias; ++l) sum += dy(l, j);
    if (!near<G>(db.view()[j], sum, m)) ++wrong;
  }
  return wrong;
}

template <class Check>
void everywhere(Check check) {
  for (auto const& way : ways()) {
    using_kernels const active(way.who, way.level);
    for (auto const stored : {orientation::in_out, orientation::out_in}) {
      INFO((way.who == provider::eigen ? "eigen, " : "own, ")
           << trireme::ops::name_of(way.level) << (stored == orientation::in_out ? ", in_out" : ", out_in"));
      check(stored);
    }
  }
}

// Sizes of one; edges in every direction; whole tiles; more than one block of columns; row lengths of 2048 and 4096
// bytes; long sums in parts.
// sums in parts.
std::vector<size> const sizes{{1, 1, 1},      {2, 3, 5},      {7, 33, 17},   {14, 32, 64}, {13, 31, 3},
                              {15, 65, 129},  {4, 40, 66},    {29, 100, 70}, {64, 64, 96}, {30, 16, 1024},
                              {17, 520, 300}, {33, 31, 2048}, {9, 45, 2501}};

}  // namespace

TEMPLATE_TEST_CASE("linear equals a plain sum in double on every CPU level", "[ops][products]", float, bfloat16,
                   double) {
  everywhere([](orientation way) {
    for (auto const of : sizes) {
      INFO("m " << of.m << ", n " << of.n << ", k " << of.k);
      CHECK(wrong_in_linear<TestType>(of, way, activation::none, false, false, false) == 0);
      CHECK(wrong_in_linear<TestType>(of, way, activation::gelu, true, true, false) == 0);
      CHECK(wrong_in_linear<TestType>(of, way, activation::none, true, false, true) == 0);
      CHECK(wrong_in_linear<TestType>(of, way, activation::tanh, false, true, true) == 0);
      CHECK(wrong_in_linear<TestType>(of, way, activation::relu, true, false, false) == 0);
      CHECK(wrong_in_linear<TestType>(of, way, activation::silu, true, false, false) == 0);
    }
  });
}

TEMPLATE_TEST_CASE("linear_backward_input equals a plain sum in double on every CPU level", "[ops][products]", float,
                   bfloat16, double) {
  everywhere([](orientation way) {
    for (auto const of : sizes) {
      size const turned{of.m, of.k, of.n};
      INFO("m " << of.m << ", n " << of.n << ", k " << of.k);
      CHECK(wrong_in_backward_input<TestType>(of, way, activation::none, false) == 0);
      CHECK(wrong_in_backward_input<TestType>(turned, way, activation::none, true) == 0);
      CHECK(wrong_in_backward_input<TestType>(turned, way, activation::gelu, false) == 0);
      CHECK(wrong_in_backward_input<TestType>(turned, way, activation::gelu, false, true) == 0);
      CHECK(wrong_in_backward_input<TestType>(of, way, activation::gelu, true) == 0);
      CHECK(wrong_in_backward_input<TestType>(of, way, activation::relu, false) == 0);
      CHECK(wrong_in_backward_input<TestType>(of, way, activation::silu, false) == 0);
    }
  });
}

TEMPLATE_TEST_CASE("linear_backward_weight equals a plain sum in double on every CPU level", "[ops][products]", float,
                   bfloat16, double) {
  everywhere([](orientation way) {
    for (auto const of : sizes) {
      INFO("m " << of.m << ", n " << of.n << ", k " << of.k);
      CHECK(wrong_in_backward_weight<TestType>(of, way, true) == 0);
      CHECK(wrong_in_backward_weight<TestType>({of.k, of.n, of.m}, way, true) == 0);
      CHECK(wrong_in_backward_weight<TestType>({of.n, of.m, of.k}, way, false) == 0);
    }
  });
}

TEMPLATE_TEST_CASE("a row has the same bits whichever rows are computed with it", "[ops][products]", float, bfloat16,
                   double) {
  everywhere([](orientation way) {
    for (auto const of : {size{37, 70, 33}, size{33, 40, 2500}, size{31, 5, 3}, size{9, 33, 1024}}) {
      matrix<TestType> x(of.m, of.k, 31);
      matrix<TestType> w(way == orientation::in_out ? of.k : of.n, way == orientation::in_out ? of.n : of.k, 32);
      matrix<TestType> b(1, of.n, 33);
      weights<TestType, host> packed(w.constant(), way);
      matrix<TestType> all(of.m, of.n, 34);
      trireme::ops::linear_epilogue<TestType, host> const epilogue{.bias = b.line(), .act = activation::gelu};
      host_products::linear(all.view(), x.constant(), packed, epilogue);
      int different = 0;
      for (std::int64_t count = 1; count < of.m; count = count * 3 - 1 + count % 2) {
        for (std::int64_t first = 0; first < of.m; first += count) {
          auto const rows = std::min(count, of.m - first);
          matrix<TestType> part(rows, of.n, 35);
          host_products::linear(part.view(), x.constant().rows(first, rows), packed, epilogue);
          different +=
              std::memcmp(part.view().address(), all.view().rows(first, rows).address(), part.view().bytes()) != 0;
        }
      }
      INFO("m " << of.m << ", n " << of.n << ", k " << of.k);
      CHECK(different == 0);
    }
  });
}

TEST_CASE("the gradients of linear are its central differences in double", "[ops][products]") {
  everywhere([](orientation way) {
    std::int64_t const m = 5;
    std::int64_t const n = 7;
    std::int64_t const k = 6;
    matrix<double> x(m, k, 41);
    matrix<double> w(way == orientation::in_out ? k : n, way == orientation::in_out ? n : k, 42);
    matrix<double> b(1, n, 43);
    matrix<double> z(m, k, 44);   // x = gelu(z), so that the derivative factor is tested too
    matrix<double> dy(m, n, 45);  // the loss is the sum of dy * y
    auto const loss = [&] {
      weights<double, host> fresh(w.constant(), way);
      for (std::int64_t i = 0; i < m * k; ++i) x.view()[i] = reference_activation(activation::gelu, z.view()[i]);
      matrix<double> y(m, n, 46);
      host_products::linear(y.view(), x.constant(), fresh, {.bias = b.line()});
      double sum = 0;
      for (std::int64_t i = 0; i < m * n; ++i) sum += dy.view()[i] * y.view()[i];
      return sum;
    };
    loss();
    matrix<double> dz(m, k, 47);
    matrix<double> dw(w.rows, w.columns, 48, 0);
    matrix<double> db(1, n, 49, 0);
    weights<double, host> packed(w.constant(), way);
    host_products::linear_backward_input(dz.view(), dy.constant(), packed,
                                         {.act = activation::gelu, .before_activation = z.constant()});
    host_products::linear_backward_weight(dw.view(), db.line(), x.constant(), dy.constant(), way);
    auto const worst = [&](matrix<double>& of, matrix<double>& gradient) {
      double most = 0;
      for (std::int64_t i = 0; i < of.view().size(); ++i) {
        double const h = 1e-5;
        double const kept = of.view()[i];
        of.view()[i] = kept + h;
        double const above = loss();
        of.view()[i] = kept - h;
        double const below = loss();
        of.view()[i] = kept;
        double const slope = (above - below) / (2 * h);
        most = std::max(most, std::abs(slope - gradient.view()[i]) / std::max(1e-2, std::abs(slope)));
      }
      return most;
    };
    CHECK(worst(z, dz) <= 1e-6);
    CHECK(worst(w, dw) <= 1e-6);
    CHECK(worst(b, db) <= 1e-6);
  });
}

TEST_CASE("packed weights follow refresh and bind, and are allocated once", "[ops][products]") {
  everywhere([](orientation way) {
    matrix<float> x(3, 20, 51);
    matrix<float> w(way == orientation::in_out ? 20 : 50, way == orientation::in_out ? 50 : 20, 52);
    matrix<float> y(3, 50, 53);
    weights<float, host> packed(w.constant(), way);
    packed.refresh(1);
    host_products::linear(y.view(), x.constant(), packed);
    float const before = y.view()[7];
    auto const bytes = packed.packed_bytes();
    for (auto& value : w.view().span()) value *= 2;
    packed.refresh(2);
    packed.bind(w.constant(), way);
    host_products::linear(y.view(), x.constant(), packed);
    CHECK(y.view()[7] == 2 * before);
    CHECK(packed.packed_bytes() == bytes);
    matrix<float> other(w.rows, w.columns, 52, 4);
    packed.bind(other.constant(), way);
    host_products::linear(y.view(), x.constant(), packed);
    CHECK(y.view()[7] == 4 * before);
    CHECK(packed.packed_bytes() == bytes);
  });
}

TEST_CASE("weights whose values pass keep nothing packed, and have the same products", "[ops][products]") {
  everywhere([](orientation way) {
    matrix<float> x(3, 20, 51);
    matrix<float> w(way == orientation::in_out ? 20 : 50, way == orientation::in_out ? 50 : 20, 52);
    matrix<float> other(w.rows, w.columns, 54);
    matrix<float> expected(3, 50, 53);
    matrix<float> y(3, 50, 53);
    weights<float, host> kept(w.constant(), way);
    weights<float, host> passing(w.constant(), way);
    weights<float, host> neighbour(other.constant(), way);
    kept.refresh(1);
    host_products::linear(y.view(), x.constant(), passing);  // packed, and released
    neighbour.refresh(trireme::ops::passing_values + 1);
    for (std::uint64_t version = 1; version <= 3; ++version) {
      kept.refresh(version);
      passing.refresh(trireme::ops::passing_values + version);
      host_products::linear(expected.view(), x.constant(), kept);
      for (int again = 0; again < 2; ++again) {
        host_products::linear(y.view(), x.constant(), passing);
        CHECK(std::memcmp(y.view().address(), expected.view().address(), y.view().bytes()) == 0);
        if (again == 0) host_products::linear(y.view(), x.constant(), neighbour);
      }
      CHECK(passing.packed_bytes() == 0);
      for (auto& value : w.view().span()) value *= 2;
    }
  });
}

TEST_CASE("linear may overwrite its residual", "[ops][products]") {
  everywhere([](orientation way) {
    for (auto const of : {size{20, 50, 30}, size{20, 50, 2400}}) {
      matrix<float> x(of.m, of.k, 61);
      matrix<float> w(way == orientation::in_out ? of.k : of.n, way == orientation::in_out ? of.n : of.k, 62);
      matrix<float> y(of.m, of.n, 63);
      matrix<float> apart(of.m, of.n, 64);
      weights<float, host> packed(w.constant(), way);
      host_products::linear(apart.view(), x.constant(), packed, {.residual = y.view()});
      host_products::linear(y.view(), x.constant(), packed, {.residual = y.view()});
      CHECK(std::memcmp(y.view().address(), apart.view().address(), y.view().bytes()) == 0);
    }
  });
}

TEST_CASE("threads multiply at once without disturbing each other", "[ops][products][threads]") {
  matrix<float> x(64, 96, 71);
  matrix<float> w(96, 80, 72);
  matrix<float> alone(64, 80, 73);
  weights<float, host> packed(w.constant(), orientation::in_out);
  host_products::linear(alone.view(), x.constant(), packed, {.act = activation::gelu});
  std::vector<int> different(3);
  std::vector<std::thread> ranks;
  for (auto& count : different) {
    ranks.emplace_back([&] {
      weights<float, host> own(w.constant(), orientation::in_out);
      matrix<float> y(64, 80, 74);
      for (int round = 0; round < 20; ++round) {
        own.refresh(static_cast<std::uint64_t>(round));
        host_products::linear(y.view(), x.constant(), own, {.act = activation::gelu});
        count += std::memcmp(y.view().address(), alone.view().address(), y.view().bytes()) != 0;
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  for (int const count : different) CHECK(count == 0);
}

TEST_CASE("shapes that do not fit are named", "[ops][products]") {
  matrix<float> x(3, 4, 81);
  matrix<float> w(4, 5, 82);
  matrix<float> y(3, 6, 83);
  weights<float, host> packed(w.constant(), orientation::in_out);
  CHECK_THROWS_WITH(host_products::linear(y.view(), x.constant(), packed),
                    "trireme::ops::linear: y has 18 elements, expected 15");
}
