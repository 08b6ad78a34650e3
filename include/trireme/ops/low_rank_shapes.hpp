#pragma once

#include <cstdint>

#include "trireme/core/assertion.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops::detail {

/// The extents of y (m, n) = a (m, k) b (k, n).
struct product_sizes {
  std::int64_t m = 0, n = 0, k = 0;
};
[[nodiscard]] inline product_sizes sizes_of_product(shape const& y, shape const& a, transposed of_a, shape const& b,
                                                    transposed of_b) {
  bool const matrices = y.rank() == 2 && a.rank() == 2 && b.rank() == 2;
  auto const axis = [&](shape const& of, transposed turned, int which) {
    return matrices ? of[turned == transposed::yes ? 1 - which : which] : 0;
  };
  product_sizes const sizes{axis(y, transposed::no, 0), axis(y, transposed::no, 1), axis(a, of_a, 1)};
  expects(assertion_level::light,
          matrices && axis(a, of_a, 0) == sizes.m && axis(b, of_b, 1) == sizes.n && axis(b, of_b, 0) == sizes.k, [&] {
            return text("trireme::ops::small_product: ", to_string(y), " is not the shape of ", to_string(a),
                        of_a == transposed::yes ? " transposed" : "", " times ", to_string(b),
                        of_b == transposed::yes ? " transposed" : "");
          });
  return sizes;
}
/// The extents of y (m, n) = (x + z) (m, k) b (k, n).
[[nodiscard]] inline product_sizes sizes_of_product_of_sum(shape const& y, shape const& x, shape const& z,
                                                           shape const& b) {
  bool const matrices = y.rank() == 2 && x.rank() == 2 && b.rank() == 2;
  expects(assertion_level::light, matrices && z == x && y[0] == x[0] && y[1] == b[1] && x[1] == b[0], [&] {
    return text("trireme::ops::product_of_sum: ", to_string(y), " is not the shape of ", to_string(x), " plus ",
                to_string(z), ", times ", to_string(b));
  });
  return {y[0], y[1], x[1]};
}
/// The extents of rest and x (m, n) = p (m, k) times own or all (n, k) transposed.
[[nodiscard]] inline product_sizes sizes_of_rest(shape const& rest, shape const& x, shape const& p, shape const& own,
                                                 shape const& all) {
  bool const matrices = x.rank() == 2 && p.rank() == 2 && own.rank() == 2;
  expects(assertion_level::light,
          matrices && rest == x && all == own && x[0] == p[0] && x[1] == own[0] && p[1] == own[1], [&] {
            return text("trireme::ops::rest_and_product: ", to_string(rest), " and ", to_string(x),
                        " are not both the shape of ", to_string(p), " times ", to_string(own), " transposed and ",
                        to_string(all), " transposed");
          });
  return {x[0], x[1], p[1]};
}
inline void expect_columns(shape const& x) {
  expects(assertion_level::light, x.rank() == 2 && x[1] <= x[0], [&] {
    return text("trireme::ops::orthonormalise: ", to_string(x),
                " is not a matrix with at least as many rows as columns");
  });
}

}  // namespace trireme::ops::detail
