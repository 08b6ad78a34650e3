#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/host/detail/product_types.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// The implementation of matrix products: this library's kernels if the CPU has vectors for them (never for double), or
/// Eigen, which is also the reference of the tests.
enum class provider { eigen, own };

namespace detail {
inline std::atomic<provider> active_provider{provider::own};
}  // namespace detail

/// The implementation in use; the setter is for tests and benchmarks, between steps.
[[nodiscard]] inline provider product_provider() noexcept {
  return detail::active_provider.load(std::memory_order_relaxed);
}
inline void product_provider(provider choice) noexcept {
  detail::active_provider.store(choice, std::memory_order_relaxed);
}

struct host_products;

namespace detail {

/// Forward products of weights that are kept in another form, such as integers: ops/host/integer_products.hpp has one.
/// `copy` is the memory of that form; it is made from `values`, (n, k) if `transposed` and else (k, n), unless `valid`.
class other_products {
 public:
  virtual ~other_products() = default;
  virtual void multiply(store_rule<float> const& rule, float const* x, float const* values, growing_buffer& copy,
                        bool valid, bool transposed, std::int64_t m, std::int64_t n, std::int64_t k) const = 0;
  virtual void multiply(store_rule<bfloat16> const& rule, bfloat16 const* x, bfloat16 const* values,
                        growing_buffer& copy, bool valid, bool transposed, std::int64_t m, std::int64_t n,
                        std::int64_t k) const = 0;
};
/// Those of weights that this thread makes; nullptr: weights are multiplied as they are. They outlive the weights.
[[nodiscard]] inline other_products const*& products_of_new_weights() noexcept {
  thread_local other_products const* which = nullptr;
  return which;
}

}  // namespace detail

/// A weight matrix for products, with packed copies for the kernels: one for each of the two directions, made when
/// first needed and again after refresh() with a new version of the values.
///
/// Bytes    each packed copy takes as much as the matrix (twice that for bfloat16 without its instructions); they are
///          allocated once and reused.
/// Threads  one owner; each rank that is a thread has its own copy.
template <class T>
class weights<T, host> {
 public:
  weights() = default;
  weights(tensor_view<T const, host> values, orientation way) { bind(values, way); }

  /// Uses another matrix: (inputs, outputs) for orientation::in_out, (outputs, inputs) for orientation::out_in. Binding
  /// the same memory again keeps the packed copies: call refresh() when values have changed.
  void bind(tensor_view<T const, host> values, orientation way) {
    expects(assertion_level::light, values.rank() == 2 && !values.empty(), [&] {
      return text("trireme::ops::weights: a weight has two extents, both positive; got ", to_string(values.extents()));
    });
    if (values.address() == view_.address() && values.extents() == view_.extents() && way == way_) return;
    view_ = values;
    way_ = way;
    forward_.valid = backward_.valid = false;
  }
  /// Drops the packed copies if `version` is not the one they were made for. With passing_values they are not kept at
  /// all: all such weights of a thread share the memory of one copy.
  void refresh(std::uint64_t version) noexcept {
    if (version == version_) return;
    version_ = version;
    passes_ = (version & passing_values) != 0;
    if (passes_) {
      forward_.buffer = {};
      backward_.buffer = {};
    }
    forward_.valid = backward_.valid = false;
  }

  [[nodiscard]] tensor_view<T const, host> view() const noexcept { return view_; }
  [[nodiscard]] orientation way() const noexcept { return way_; }
  [[nodiscard]] std::int64_t inputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 0 : 1); }
  [[nodiscard]] std::int64_t outputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 1 : 0); }
  [[nodiscard]] std::size_t packed_bytes() const noexcept { return forward_.buffer.bytes() + backward_.buffer.bytes(); }

 private:
  friend struct host_products;
  struct packed_copy {
    detail::growing_buffer buffer;
    detail::product_kernels const* kernels = nullptr;
    bool valid = false;
  };
  tensor_view<T const, host> view_;
  orientation way_ = orientation::in_out;
  std::uint64_t version_ = std::numeric_limits<std::uint64_t>::max();
  bool passes_ = false;
  detail::other_products const* others_ = detail::products_of_new_weights();
  packed_copy forward_;
  packed_copy backward_;
};

/// Matrix products together with the operations around them (bias, activation, residual, gradients of both), applied
/// before the result is stored.
///
/// Numerics float and bfloat16 are summed in float, double in double. A row of linear() and linear_backward_input() has
///          the same bits regardless of which rows are computed with it; equal inputs give equal bits.
/// Threads  any number of threads, each with its own weights.
/// Errors   config_error if shapes do not fit (checked at level light).
struct host_products {
  /// y = residual + act(x w + bias); before_activation, if given, receives x w + bias.
  ///
  /// Shapes   y (M,N), x (M,K), w (K,N) or (N,K); the rows M may be several leading extents. y may be the residual.
  template <class T>
  static void linear(tensor_view<T, host> y, std::type_identity_t<tensor_view<T const, host>> x, weights<T, host>& w,
                     std::type_identity_t<linear_epilogue<T, host>> const& epilogue = {}) {
    auto const m = rows_of("linear", x, w.inputs());
    if (m == 0) return;
    check("linear", "y", y.size(), m * w.outputs());
    if (!epilogue.bias.empty()) check("linear", "bias", epilogue.bias.size(), w.outputs());
    if (!epilogue.residual.empty()) check("linear", "residual", epilogue.residual.size(), y.size());
    if (!epilogue.before_activation.empty()) {
      check("linear", "before_activation", epilogue.before_activation.size(), y.size());
    }
    detail::store_rule<T> rule;
    rule.y = raw(y);
    rule.ld = w.outputs();
    rule.act = epilogue.act;
    if (!epilogue.bias.empty()) rule.bias = raw(epilogue.bias);
    if (!epilogue.before_activation.empty()) rule.keep = raw(epilogue.before_activation);
    if (!epilogue.residual.empty()) rule.residual = raw(epilogue.residual);
    multiply(rule, raw(x), w, w.forward_, w.way() == orientation::out_in, m, w.outputs(), w.inputs());
  }

  /// dx = (dy w^T) * act'(before_activation), the factor only if before_activation is given; added to dx if accumulate.
  ///
  /// Shapes   dx (M,K), dy (M,N), before_activation (M,K). dx may be before_activation.
  template <class T>
  static void linear_backward_input(tensor_view<T, host> dx, std::type_identity_t<tensor_view<T const, host>> dy,
                                    weights<T, host>& w,
                                    std::type_identity_t<input_epilogue<T, host>> const& epilogue = {}) {
    auto const m = rows_of("linear_backward_input", dy, w.outputs());
    if (m == 0) return;
    check("linear_backward_input", "dx", dx.size(), m * w.inputs());
    detail::store_rule<T> rule;
    rule.y = raw(dx);
    rule.ld = w.inputs();
    rule.accumulate = epilogue.accumulate;
    if (!epilogue.before_activation.empty()) {
      check("linear_backward_input", "before_activation", epilogue.before_activation.size(), dx.size());
      rule.act = epilogue.act;
      rule.slope_at = raw(epilogue.before_activation);
    }
    multiply(rule, raw(dy), w, w.backward_, w.way() == orientation::in_out, m, w.inputs(), w.outputs());
  }

  /// dw += x^T dy for orientation::in_out, dy^T x for out_in; db += column sums of dy, unless db is empty.
  ///
  /// Shapes   dw (K,N) or (N,K), db (N), x (M,K), dy (M,N).
  template <class T, class G>
  static void linear_backward_weight(tensor_view<G, host> dw, std::type_identity_t<tensor_view<G, host>> db,
                                     tensor_view<T, host> x,
                                     std::type_identity_t<tensor_view<std::remove_const_t<T> const, host>> dy,
                                     orientation way) {
    using Element = std::remove_const_t<T>;
    static_assert(std::is_same_v<G, accumulate_t<Element>>,
                  "trireme::ops::linear_backward_weight: the gradient must have the operands' accumulate type");
    auto const k = dw.extent(way == orientation::in_out ? 0 : 1);
    auto const n = dw.extent(way == orientation::in_out ? 1 : 0);
    auto const m = rows_of("linear_backward_weight", tensor_view<Element const, host>(x), k);
    if (m == 0) return;
    check("linear_backward_weight", "dy", dy.size(), m * n);
    if (!db.empty()) check("linear_backward_weight", "db", db.size(), n);
    G* const sums = db.empty() ? nullptr : raw(db);
    if (way == orientation::in_out) {
      multiply_transposed<Element, G>(raw(dw), raw(x), raw(dy), m, k, n, nullptr, sums);
    } else {
      multiply_transposed<Element, G>(raw(dw), raw(dy), raw(x), m, n, k, sums, nullptr);
    }
  }

 private:
  static void check(std::string_view who, std::string_view what, std::int64_t size, std::int64_t expected) {
    if (size != expected && asserts(assertion_level::light)) {
      throw config_error(
          text("trireme::ops::", who, ": ", what, " has ", how_many(size, "element"), ", expected ", expected));
    }
  }
  template <class T>
  static std::int64_t rows_of(std::string_view who, tensor_view<T const, host> x, std::int64_t row) {
    auto const rows = x.size() / row;
    check(who, "the left operand", x.size(), rows * row);
    return rows;
  }
  /// y (m, n) = rule(x (m, k) w), where the weight's memory is (n, k) if `transposed`, else (k, n).
  template <class T>
  static void multiply(detail::store_rule<T> const& rule, T const* x, weights<T, host>& w,
                       typename weights<T, host>::packed_copy& copy, bool transposed, std::int64_t m, std::int64_t n,
                       std::int64_t k);
  /// c (r, s) += u (m, r)^T v (m, s), with column sums.
  template <class T, class G>
  static void multiply_transposed(G* c, T const* u, T const* v, std::int64_t m, std::int64_t r, std::int64_t s,
                                  G* u_sums, G* v_sums);
};

}  // namespace trireme::ops

#ifndef TRIREME_COMPILED
#include "trireme/ops/host/products.ipp"
#endif
