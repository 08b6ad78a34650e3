#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "trireme/core/assertion.hpp"
#include "trireme/core/cuda_space.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/cuda/products_launch.hpp"
#include "trireme/ops/cuda/queue.hpp"
#include "trireme/ops/tf32.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

namespace detail {

/// "(1024, 768) x (768, 3072) of bf16 into f32, with rows of 768, 3072 and 3072, added to what is there, ..."
[[nodiscard]] inline std::string to_string(cuda_kernels::product_call const& call) {
  auto const side = [](bool transposed, std::int64_t rows, std::int64_t columns) {
    return transposed ? text("the transpose of (", columns, ", ", rows, ")") : text("(", rows, ", ", columns, ")");
  };
  return text(side(call.left_transposed, call.rows, call.inner), " x ",
              side(call.right_transposed, call.inner, call.columns), " of ", name_of(call.of),
              call.tf32 ? " as TF32" : "", " into ", name_of(call.to_type), ", with rows of ", call.left_row, ", ",
              call.right_row, " and ", call.to_row, " elements", call.added != nullptr ? ", added to a matrix" : "",
              ", and as its epilogue: ", name_of(call.epilogue));
}

/// Queues a product. False if cuBLASLt has no algorithm for it.
/// Errors   device_error with the message of the call that failed, and the shapes; device_memory_error if the device
///          has no memory for the workspace of products.
inline bool queue_product(char const* who, cuda_kernels::product_call const& call) {
  using state = cuda_kernels::product_outcome::state;
  auto outcome = cuda_kernels::multiply(cuda::stream(), call);
  if (outcome.no_memory_for > 0) {
    trireme::detail::empty_cuda_pool();
    outcome = cuda_kernels::multiply(cuda::stream(), call);
  }
  if (outcome.no_memory_for > 0)
    throw trireme::detail::out_of_cuda_memory(text("trireme::ops::", who, " in CUDA memory: the workspace of products"),
                                              outcome.no_memory_for);
  if (outcome.is == state::failed) {
    throw device_error(text("trireme::ops::", who, " in CUDA memory: ", outcome.call, " failed: ", outcome.reason,
                            "; the product is ", to_string(call)));
  }
  expect_cuda(who, cudaSuccess);
  return outcome.is == state::queued;
}
/// The same for a product without an epilogue, which must have an algorithm.
/// Errors   config_error if there is none.
inline void expect_whole_product(char const* who, cuda_kernels::product_call const& call) {
  if (queue_product(who, call)) return;
  throw config_error(
      text("trireme::ops::", who, " in CUDA memory: cuBLASLt has no algorithm on this device for ", to_string(call)));
}
/// The same. In 16 bits cuBLASLt is much faster if rows begin at multiples of 16 bytes and have a multiple of 8
/// elements. Where only the latter is not so, as with a vocabulary of 50257 words in rows of 50304, the product is cut
/// in two: its last columns, rows or terms are formed apart.
inline void expect_product(char const* who, cuda_kernels::product_call call) {
  constexpr std::int64_t fine = 8, piece = 64, small = 64, large = 1024;
  auto const bytes = [](dtype of) { return static_cast<std::int64_t>(size_of(of)); };
  auto const begins_well = [&](void const* address, std::int64_t row, dtype of) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && row * bytes(of) % 16 == 0;
  };
  bool const may_cut =
      (call.of == dtype::bf16 || call.of == dtype::f16) && std::min({call.rows, call.columns, call.inner}) >= small &&
      begins_well(call.left, call.left_row, call.of) && begins_well(call.right, call.right_row, call.of) &&
      begins_well(call.to, call.to_row, call.to_type);
  if (!may_cut) return expect_whole_product(who, call);
  auto const cuts = [&](std::int64_t extent) { return extent % fine != 0 && extent >= large; };
  auto const behind = [&](void const* address, std::int64_t elements, dtype of) -> void const* {
    return address == nullptr ? nullptr : static_cast<std::byte const*>(address) + elements * bytes(of);
  };
  auto rest = call;
  auto const move_result = [&](std::int64_t elements) {
    rest.to = static_cast<std::byte*>(call.to) + elements * bytes(call.to_type);
    rest.added = behind(call.added, elements, call.to_type);
  };
  if (cuts(call.columns)) {
    rest.columns = call.columns % piece;
    call.columns -= rest.columns;
    rest.right = behind(call.right, call.columns * (call.right_transposed ? call.right_row : 1), call.of);
    move_result(call.columns);
  } else if (cuts(call.rows) && call.left_transposed) {
    rest.rows = call.rows % piece;
    call.rows -= rest.rows;
    rest.left = behind(call.left, call.rows, call.of);
    move_result(call.rows * call.to_row);
  } else if (cuts(call.inner) && (!call.left_transposed || call.right_transposed)) {
    rest.inner = call.inner % piece;
    call.inner -= rest.inner;
    rest.left = behind(call.left, call.inner * (call.left_transposed ? call.left_row : 1), call.of);
    rest.right = behind(call.right, call.inner * (call.right_transposed ? 1 : call.right_row), call.of);
    call.added = call.to;  // the few terms are added up first, so that rounding them loses least
  } else {
    return expect_whole_product(who, call);
  }
  expect_whole_product(who, rest);
  expect_whole_product(who, call);
}

}  // namespace detail

/// A weight matrix for products in CUDA memory: its view. The library of the products reads it as it is, so there are
/// no packed copies.
template <class T>
class weights<T, cuda> {
 public:
  weights() = default;
  weights(tensor_view<T const, cuda> values, orientation way) { bind(values, way); }
  /// Uses another matrix: (inputs, outputs) for orientation::in_out, (outputs, inputs) for orientation::out_in.
  void bind(tensor_view<T const, cuda> values, orientation way) {
    expects(assertion_level::light, values.rank() == 2 && !values.empty(), [&] {
      return text("trireme::ops::weights: a weight has two extents, both positive; got ", to_string(values.extents()));
    });
    view_ = values;
    way_ = way;
  }
  /// Nothing: there are no copies that a new version of the values would make old.
  void refresh(std::uint64_t /*version*/) noexcept {}

  [[nodiscard]] tensor_view<T const, cuda> view() const noexcept { return view_; }
  [[nodiscard]] orientation way() const noexcept { return way_; }
  [[nodiscard]] std::int64_t inputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 0 : 1); }
  [[nodiscard]] std::int64_t outputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 1 : 0); }
  [[nodiscard]] std::size_t packed_bytes() const noexcept { return 0; }

 private:
  tensor_view<T const, cuda> view_;
  orientation way_ = orientation::in_out;
};

/// Matrix products of CUDA memory over cuBLASLt, together with the operations around them. What cuBLASLt can do while
/// it stores a product (bias; GELU and its derivative in 16 bits; adding to a matrix) is done there, the rest by a
/// kernel of its own behind the product.
///
/// Shapes   those of on<host>. The rows of y, with before_activation and residual, and those of dy may be longer than
/// N:
///          their length is y.size() / M. The columns behind the N-th are neither read nor written. In 16 bits products
///          are much faster if it is a multiple of 8.
/// Numerics float and 16 bits are summed in float, double in double. Operands of float are rounded to TF32 only in a
///          scope of ops::tf32_products. The order of sums is cuBLASLt's: it depends on the shapes, M too, on the
///          device and on the library's version; equal calls on one device give equal bits. In 16 bits an activation
///          may read its rounded argument. Sums of columns have an order of their own, which depends on the shape only.
///          With TRIREME_CUDA_TUNE=1 in the environment, each thread times the first eight algorithms that cuBLASLt
///          proposes for a shape when it first occurs, and keeps the fastest; the sums of columns for db are then
///          cuBLASLt's, too, where that is faster. So runs, and ranks, may differ in bits.
/// Bytes    for each thread and device the workspace of cuBLASLt (32 MiB on Hopper, 4 MiB before), made with the first
///          product, and scratch memory for sums of columns; at most 64 MiB of scratch memory where an epilogue needs
///          the product apart from its result.
/// Threads  any number of threads, each with its own weights.
/// Errors   config_error if shapes do not fit (checked at level light), or if cuBLASLt has no algorithm for a product;
///          device_error if it fails.
struct cuda_products {
  static constexpr bool rounds_to_tf32 = true;  ///< in a scope of ops::tf32_products

  /// y = residual + act(x w + bias); before_activation, if given, receives x w + bias.
  ///
  /// Shapes   y (M,N), x (M,K), w (K,N) or (N,K); the rows M may be several leading extents. y may be the residual.
  template <detail::cuda_float T>
  static void linear(tensor_view<T, cuda> y, std::type_identity_t<tensor_view<T const, cuda>> x, weights<T, cuda>& w,
                     std::type_identity_t<linear_epilogue<T, cuda>> const& epilogue = {}) {
    constexpr char const* who = "linear";
    auto const m = x.size() / w.inputs();
    check(who, "the left operand", x.size(), m * w.inputs());
    if (m == 0) return;
    auto const row = row_length(who, "y", y.size(), m, w.outputs());
    if (!epilogue.bias.empty()) check(who, "bias", epilogue.bias.size(), w.outputs());
    if (!epilogue.residual.empty()) check(who, "residual", epilogue.residual.size(), y.size());
    if (!epilogue.before_activation.empty())
      check(who, "before_activation", epilogue.before_activation.size(), y.size());

    auto const* const bias = address(epilogue.bias);
    auto* const kept = address(epilogue.before_activation);
    auto const* const residual = address(epilogue.residual);
    bool const activates = epilogue.act != activation::none;
    auto call = product_of<T>(m, w.outputs(), w.inputs());
    call.left = raw(x);
    call.left_row = w.inputs();
    set_right(call, w, w.way() == orientation::out_in);
    call.to = raw(y);
    call.to_row = row;

    // All at once, if cuBLASLt does.
    if (!activates && kept == nullptr && (bias == nullptr || has_epilogues<T>)) {
      auto whole = call;
      whole.added = residual;
      set_bias(whole, bias, cuda_kernels::product_epilogue::none, cuda_kernels::product_epilogue::bias);
      if (bias == nullptr) return detail::expect_product(who, whole);
      if (detail::queue_product(who, whole)) return;
    }
    if (fuses_gelu<T>(epilogue.act) && residual == nullptr && fits_kept(kept, row)) {
      auto whole = call;
      whole.kept = kept;
      set_bias(whole, bias, cuda_kernels::product_epilogue::gelu, cuda_kernels::product_epilogue::gelu_bias);
      if (detail::queue_product(who, whole)) return;
    }
    // Otherwise the product goes where nothing is lost, and a kernel does the rest.
    cuda_kernels::product_finish rest;
    rest.of = dtype_of<T>;
    rest.columns = w.outputs();
    rest.row = row;
    rest.act = epilogue.act;
    if (kept == nullptr && residual == raw(y)) {
      rest.bias = bias;
      in_pieces<T>(who, call, rest, [&](cuda_kernels::product_finish& piece, std::int64_t first) {
        piece.residual = residual + first * row;
        piece.to = raw(y) + first * row;
      });
      return;
    }
    if (kept != nullptr) call.to = kept;
    rest.sums = call.to;
    rest.sums_row = row;
    rest.sums_type = dtype_of<T>;
    rest.rows = m;
    rest.to = raw(y);
    rest.residual = residual;
    if (!multiply_with_bias<T>(who, call, bias)) {
      rest.bias = bias;
      rest.kept = kept;
    }
    detail::expect_cuda(who, cuda_kernels::finish_product(cuda::stream(), rest));
  }

  /// dx = (dy w^T) * act'(before_activation), the factor only if before_activation is given; added to dx if accumulate.
  ///
  /// Shapes   dx (M,K), dy (M,N), before_activation (M,K). dx may be before_activation.
  template <detail::cuda_float T>
  static void linear_backward_input(tensor_view<T, cuda> dx, std::type_identity_t<tensor_view<T const, cuda>> dy,
                                    weights<T, cuda>& w,
                                    std::type_identity_t<input_epilogue<T, cuda>> const& epilogue = {}) {
    constexpr char const* who = "linear_backward_input";
    auto const k = w.inputs();
    auto const m = dx.size() / k;
    check(who, "dx", dx.size(), m * k);
    if (m == 0) return check(who, "the left operand", dy.size(), 0);
    auto const row = row_length(who, "the left operand", dy.size(), m, w.outputs());
    if (!epilogue.before_activation.empty())
      check(who, "before_activation", epilogue.before_activation.size(), dx.size());

    auto const* const before = epilogue.act != activation::none ? address(epilogue.before_activation) : nullptr;
    auto call = product_of<T>(m, k, w.outputs());
    call.left = raw(dy);
    call.left_row = row;
    set_right(call, w, w.way() == orientation::in_out);
    call.to = raw(dx);
    call.to_row = k;
    if (before == nullptr) {
      if (epilogue.accumulate) call.added = call.to;
      return detail::expect_product(who, call);
    }
    bool const apart = epilogue.accumulate || before == raw(dx);  // the product cannot be formed in dx
    if (!apart && fuses_gelu<T>(epilogue.act) && fits_kept(before, k)) {
      auto whole = call;
      whole.epilogue = cuda_kernels::product_epilogue::gelu_slope;
      whole.kept = const_cast<T*>(before);  // only read with this epilogue
      if (detail::queue_product(who, whole)) return;
    }
    cuda_kernels::product_finish rest;
    rest.of = dtype_of<T>;
    rest.columns = rest.row = k;
    rest.act = epilogue.act;
    rest.accumulate = epilogue.accumulate;
    if (apart) {
      in_pieces<T>(who, call, rest, [&](cuda_kernels::product_finish& piece, std::int64_t first) {
        piece.slope_at = before + first * k;
        piece.to = raw(dx) + first * k;
      });
      return;
    }
    detail::expect_product(who, call);
    rest.rows = m;
    rest.sums = rest.to = raw(dx);
    rest.sums_row = k;
    rest.sums_type = dtype_of<T>;
    rest.slope_at = before;
    detail::expect_cuda(who, cuda_kernels::finish_product(cuda::stream(), rest));
  }

  /// dw += x^T dy for orientation::in_out, dy^T x for out_in; db += column sums of dy, unless db is empty. The
  /// gradients have the operands' accumulate type, or their own.
  ///
  /// Shapes   dw (K,N) or (N,K), db (N), x (M,K), dy (M,N).
  template <class T, detail::cuda_float G>
  requires detail::cuda_float<std::remove_const_t<T>>
  static void linear_backward_weight(tensor_view<G, cuda> dw, std::type_identity_t<tensor_view<G, cuda>> db,
                                     tensor_view<T, cuda> x,
                                     std::type_identity_t<tensor_view<std::remove_const_t<T> const, cuda>> dy,
                                     orientation way) {
    using Element = std::remove_const_t<T>;
    static_assert(
        std::is_same_v<G, accumulate_t<Element>> || std::is_same_v<G, Element>,
        "trireme::ops::linear_backward_weight: the gradient must have the operands' accumulate type, or their "
        "own type");
    constexpr char const* who = "linear_backward_weight";
    bool const in_out = way == orientation::in_out;
    auto const k = dw.extent(in_out ? 0 : 1);
    auto const n = dw.extent(in_out ? 1 : 0);
    if (k == 0 || n == 0) return;
    auto const m = x.size() / k;
    check(who, "the left operand", x.size(), m * k);
    if (m == 0) return check(who, "dy", dy.size(), 0);
    auto const row = row_length(who, "dy", dy.size(), m, n);
    if (!db.empty()) check(who, "db", db.size(), n);

    auto call = product_of<Element>(in_out ? k : n, in_out ? n : k, m);
    call.left = in_out ? static_cast<void const*>(raw(x)) : raw(dy);
    call.left_row = in_out ? k : row;
    call.left_transposed = true;
    call.right = in_out ? static_cast<void const*>(raw(dy)) : raw(x);
    call.right_row = in_out ? row : k;
    call.to_type = dtype_of<G>;
    call.to = raw(dw);
    call.to_row = in_out ? n : k;
    call.added = call.to;
    if (!db.empty() && storage_float<Element> && std::is_same_v<G, float>) {
      // cuBLASLt adds up columns while it multiplies; whether that is faster, only measuring tells.
      auto whole = call;
      whole.epilogue = in_out ? cuda_kernels::product_epilogue::right_sums : cuda_kernels::product_epilogue::left_sums;
      whole.sums = detail::cuda_scratch(who, static_cast<std::size_t>(n) * sizeof(G));
      if (saves_sums(call, whole, m * row * static_cast<std::int64_t>(sizeof(Element))) &&
          detail::queue_product(who, whole)) {
        detail::expect_cuda(
            who, cuda_kernels::accumulate(cuda::stream(), dtype_of<G>, raw(db), dtype_of<G>, whole.sums, n, 1.0));
        return;
      }
    }
    detail::expect_product(who, call);
    if (db.empty()) return;
    auto* const scratch = detail::cuda_scratch(who, cuda_kernels::column_sums_bytes(dtype_of<Element>, m, n));
    detail::expect_cuda(who, cuda_kernels::column_sums(cuda::stream(), dtype_of<G>, raw(db), dtype_of<Element>, raw(dy),
                                                       m, n, row, scratch));
  }

 private:
  /// cuBLASLt documents epilogues for products that are summed in float.
  template <class T>
  static constexpr bool has_epilogues = !std::is_same_v<T, double>;
  /// Its GELU is the one with tanh, in less than the precision of float.
  template <class T>
  static bool fuses_gelu(activation act) {
    return storage_float<T> && act == activation::gelu;
  }
  /// Whether cuBLASLt keeps, or reads, the argument of GELU there: it wants rows of a multiple of 8 elements.
  template <class T>
  static bool fits_kept(T const* kept, std::int64_t row) {
    return kept == nullptr || (row % 8 == 0 && reinterpret_cast<std::uintptr_t>(kept) % 16 == 0);
  }
  template <class T>
  static T* address(tensor_view<T, cuda> view) {
    return view.empty() ? nullptr : raw(view);
  }

  static void check(std::string_view who, std::string_view what, std::int64_t size, std::int64_t expected) {
    if (size != expected && asserts(assertion_level::light)) {
      throw config_error(
          text("trireme::ops::", who, ": ", what, " has ", how_many(size, "element"), ", expected ", expected));
    }
  }
  /// The number of elements from a row to the next one, at least `columns`.
  static std::int64_t row_length(std::string_view who, std::string_view what, std::int64_t size, std::int64_t rows,
                                 std::int64_t columns) {
    auto const row = size / rows;
    if (row * rows != size || row < columns) check(who, what, size, rows * columns);
    return row;
  }

  template <class T>
  static cuda_kernels::product_call product_of(std::int64_t rows, std::int64_t columns, std::int64_t inner) {
    cuda_kernels::product_call call;
    call.of = call.to_type = dtype_of<T>;
    call.tf32 = std::is_same_v<T, float> && tf32_products::allowed();
    call.rows = rows;
    call.columns = columns;
    call.inner = inner;
    return call;
  }
  template <class T>
  static void set_right(cuda_kernels::product_call& call, weights<T, cuda> const& w, bool transposed) {
    call.right = raw(w.view());
    call.right_row = w.view().extent(1);
    call.right_transposed = transposed;
  }
  static void set_bias(cuda_kernels::product_call& call, void const* bias, cuda_kernels::product_epilogue without,
                       cuda_kernels::product_epilogue with) {
    call.bias = bias;
    call.epilogue = bias == nullptr ? without : with;
  }
  /// Queues the product, with the bias if cuBLASLt adds it. False if the bias remains to be added.
  template <class T>
  static bool multiply_with_bias(char const* who, cuda_kernels::product_call call, void const* bias) {
    if (bias != nullptr && has_epilogues<T>) {
      set_bias(call, bias, cuda_kernels::product_epilogue::none, cuda_kernels::product_epilogue::bias);
      if (detail::queue_product(who, call)) return true;
      set_bias(call, nullptr, cuda_kernels::product_epilogue::none, cuda_kernels::product_epilogue::bias);
    }
    detail::expect_product(who, call);
    return bias == nullptr;
  }
  /// Whether a product that also forms sums takes less time than one without, and a kernel that reads so many bytes: at
  /// least as long as the memory of an H200 takes for them.
  static bool saves_sums(cuda_kernels::product_call const& without, cuda_kernels::product_call const& with,
                         std::int64_t bytes) {
    constexpr double bytes_per_microsecond = 4.8e6;
    auto const first = cuda_kernels::product_microseconds(cuda::stream(), without);
    if (!(first > 0)) return false;  // nothing is measured
    return cuda_kernels::product_microseconds(cuda::stream(), with) <
           first + static_cast<double>(bytes) / bytes_per_microsecond;
  }
  /// For results that the product would destroy: forms its sums in scratch memory, some rows at a time, and finishes
  /// them from there. `place(rest, first)` sets the tensors of the rows from `first` on.
  template <class T, class Place>
  static void in_pieces(char const* who, cuda_kernels::product_call call, cuda_kernels::product_finish rest,
                        Place&& place) {
    using sum = accumulate_t<T>;
    constexpr std::int64_t most = (std::int64_t{64} << 20) / static_cast<std::int64_t>(sizeof(sum));
    auto const m = call.rows;
    auto const piece = std::clamp<std::int64_t>(most / call.columns, 1, m);
    call.to_type = rest.sums_type = dtype_of<sum>;
    call.to_row = rest.sums_row = call.columns;
    auto const* const left = static_cast<T const*>(call.left);
    for (std::int64_t first = 0; first < m; first += piece) {
      call.rows = rest.rows = std::min(piece, m - first);
      call.left = left + first * call.left_row;
      call.to = detail::cuda_scratch(who, static_cast<std::size_t>(call.rows * call.columns) * sizeof(sum));
      rest.sums = call.to;
      detail::expect_product(who, call);
      place(rest, first);
      detail::expect_cuda(who, cuda_kernels::finish_product(cuda::stream(), rest));
    }
  }
};

}  // namespace trireme::ops
