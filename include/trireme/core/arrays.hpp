#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// Elements of foreign memory, with a stride for each axis: every third number, a block of a larger array, the columns
/// of a matrix. A read-only view, which owns no memory.
///
/// Shapes   extents as a tensor's; strides[axis], in elements, is the distance between neighbours along that axis, and
///          may be negative.
/// @example strided_view<double> x{cells.data() + 2, {cells.size() / 6, 3}, {6, 1}};  // numbers 2, 3 and 4 of every 6
template <class T>
struct strided_view {
  using value_type = T;
  T const* address = nullptr;
  shape extents;
  std::array<std::int64_t, shape::max_rank> strides{};

  /// Whether the elements are stored as those of a tensor: row-major, without gaps.
  [[nodiscard]] constexpr bool is_dense() const noexcept {
    std::int64_t step = 1;
    for (int axis = extents.rank() - 1; axis >= 0; --axis) {
      if (extents[axis] != 1 && strides[static_cast<std::size_t>(axis)] != step) return false;
      step *= extents[axis];
    }
    return true;
  }
};

namespace detail {

/// A row of an array that is itself an array: float[3], std::array<double, 3>.
template <class T>
struct row_of {
  using element = T;
  static constexpr void add_extents(shape&) {}
};
template <class T, std::size_t N>
struct row_of<T[N]> {
  using element = typename row_of<T>::element;
  static constexpr void add_extents(shape& extents) {
    extents.push_back(static_cast<std::int64_t>(N));
    row_of<T>::add_extents(extents);
  }
};
template <class T, std::size_t N>
struct row_of<std::array<T, N>> : row_of<T[N]> {};

template <class T>
[[nodiscard]] strided_view<T> dense_view(T const* address, shape const& extents) {
  strided_view<T> view{address, extents, {}};
  std::int64_t step = 1;
  for (int axis = extents.rank() - 1; axis >= 0; --axis) {
    view.strides[static_cast<std::size_t>(axis)] = step;
    step *= extents[axis];
  }
  return view;
}

template <class X>
concept is_strided_view = std::same_as<X, strided_view<typename X::value_type>>;
template <class X>
concept is_tensor = std::same_as<X, tensor<typename X::value_type, host>>;
template <class X>
concept is_tensor_view = std::same_as<X, tensor_view<typename X::value_type, host>> ||
    std::same_as<X, tensor_view<typename X::value_type const, host>>;
/// std::mdspan, and types with the same members.
template <class X>
concept is_mdspan = requires(X const& x) {
  x.data_handle();
  x.extent(0);
  x.mapping().stride(0);
  X::rank();
};
/// A matrix, array or map of Eigen in memory, recognised by its members: no header of Eigen is included here.
template <class X>
concept is_matrix = requires(X const& x) {
  x.data();
  { x.rows() } -> std::convertible_to<std::int64_t>;
  { x.cols() } -> std::convertible_to<std::int64_t>;
  { x.innerStride() } -> std::convertible_to<std::int64_t>;
  { x.outerStride() } -> std::convertible_to<std::int64_t>;
  { X::IsRowMajor } -> std::convertible_to<bool>;
  { X::IsVectorAtCompileTime } -> std::convertible_to<bool>;
};
template <class X>
concept is_vector = is_matrix<X> && static_cast<bool>(X::IsVectorAtCompileTime);
/// A std::vector, std::array, std::span, or C array.
template <class X>
concept is_contiguous = !is_matrix<X> && requires(X const& x) {
  *std::data(x);
  { std::size(x) } -> std::convertible_to<std::size_t>;
};

template <is_matrix X>
[[nodiscard]] auto matrix_view(X const& x) {
  using element = std::remove_cvref_t<decltype(*x.data())>;
  auto const inner = static_cast<std::int64_t>(x.innerStride()), outer = static_cast<std::int64_t>(x.outerStride());
  constexpr auto by_rows = static_cast<bool>(X::IsRowMajor);
  return strided_view<element>{x.data(),
                               shape{static_cast<std::int64_t>(x.rows()), static_cast<std::int64_t>(x.cols())},
                               {by_rows ? outer : inner, by_rows ? inner : outer}};
}

/// A trainer's view of some array, with any element type; not defined for types that are not arrays.
template <class X>
requires(is_strided_view<X> || is_tensor<X> || is_tensor_view<X> || is_mdspan<X> || is_contiguous<X> || is_vector<X>)
    [[nodiscard]] auto strided(X const& x) {
  if constexpr (is_strided_view<X>) {
    return x;
  } else if constexpr (is_tensor<X> || is_tensor_view<X>) {
    tensor_view<typename X::value_type const> const view = x;
    return dense_view(view.address(), view.extents());
  } else if constexpr (is_mdspan<X>) {
    static_assert(X::rank() <= shape::max_rank,
                  "trireme: a tensor has at most six axes, but this std::mdspan has more; pass a view with fewer");
    strided_view<std::remove_cvref_t<decltype(*x.data_handle())>> view{x.data_handle(), {}, {}};
    for (std::size_t axis = 0; axis < X::rank(); ++axis) {
      view.extents.push_back(static_cast<std::int64_t>(x.extent(axis)));
      view.strides[axis] = static_cast<std::int64_t>(x.mapping().stride(axis));
    }
    return view;
  } else if constexpr (is_matrix<X>) {
    auto view = matrix_view(x);
    bool const row = view.extents[0] == 1 && view.extents[1] != 1;
    view.strides[0] = row ? view.strides[1] : view.strides[0];
    view.extents = {view.extents.size()};
    return view;
  } else {
    using row = row_of<std::remove_cvref_t<decltype(*std::data(x))>>;
    shape extents{static_cast<std::int64_t>(std::size(x))};
    row::add_extents(extents);
    return dense_view(reinterpret_cast<typename row::element const*>(std::data(x)), extents);
  }
}

template <class X>
concept array_like = requires(X const& x) {
  detail::strided(x);
};
template <array_like X>
using array_element = typename decltype(detail::strided(std::declval<X const&>()))::value_type;

template <class To, class From>
[[nodiscard]] To converted(From from, [[maybe_unused]] char const* who) {
  if constexpr (std::is_integral_v<To> && !std::is_same_v<To, From>) {
    auto const wide = static_cast<long double>(from);  // 64 bits of mantissa: every integer
    constexpr auto least = static_cast<long double>(std::numeric_limits<To>::lowest());
    constexpr auto most = static_cast<long double>(std::numeric_limits<To>::max());
    if (!(wide >= least && wide <= most) || !exactly_equal(static_cast<long double>(static_cast<To>(from)), wide)) {
      throw config_error(text("trireme::", who, ": ", static_cast<double>(from), " is not a whole number from ",
                              std::numeric_limits<To>::lowest(), " to ", std::numeric_limits<To>::max()));
    }
  }
  return static_cast<To>(from);
}

/// Writes the elements of rows of `from` to columns first, first + step, ... of rows of `width` elements.
template <class To, class From>
void gather_rows(tensor<To> const& to, std::int64_t width, std::int64_t first, strided_view<From> const& from,
                 char const* who, std::int64_t step = 1) {
  if (from.extents.size() == 0) return;
  std::array<std::int64_t, shape::max_rank> at{};
  auto const axes = from.extents.rank();
  auto const each = from.extents.size() / from.extents[0];
  auto* out = to.view().address() + first;
  auto const* row = from.address;
  for (std::int64_t s = 0; s < from.extents[0]; ++s, out += width, row += from.strides[0]) {
    auto const* place = row;
    at.fill(0);
    for (std::int64_t i = 0; i < each; ++i) {
      out[i * step] = converted<To>(*place, who);
      for (int axis = axes - 1; axis > 0; --axis) {  // next index, the last axis fastest
        auto const k = static_cast<std::size_t>(axis);
        place += from.strides[k];
        if (++at[k] < from.extents[axis]) break;
        place -= from.strides[k] * from.extents[axis];
        at[k] = 0;
      }
    }
  }
}

}  // namespace detail

/// An array of numbers whose first axis may be that of samples: a std::vector, std::array, std::span or C array, of
/// numbers or of fixed arrays of numbers (std::vector<std::array<double, 3>> is (n, 3)); a tensor or tensor_view; a
/// strided_view; a std::mdspan; a vector of Eigen. For other matrices the caller chooses the axis of samples:
/// samples_in_rows(m), samples_in_columns(m).
template <class X>
concept array_of_samples = detail::array_like<std::remove_cvref_t<X>>;

/// A dense row-major copy of an array, with its elements converted: to float for a network in precision::fp32, say.
///
/// Numerics rounds to nearest; a double beyond the range of float becomes infinite.
/// Errors   config_error for a number that an integer type cannot represent.
/// @example trainer.step(dense<float>(pressure), dense<float>(flux));
template <class To = void, array_of_samples X>
[[nodiscard]] auto dense(X const& x) {
  auto const from = detail::strided(x);
  using from_type = typename decltype(from)::value_type;
  using to_type = std::conditional_t<std::is_void_v<To>, from_type, To>;
  tensor<to_type> to(from.extents);
  auto const rows = from.extents.rank() == 0 ? 0 : from.extents[0];
  detail::gather_rows(to, rows == 0 ? 0 : from.extents.size() / rows, 0, from, "dense");
  return to;
}

/// Arrays side by side, as the columns of one: a structure of arrays as samples. Array k is (n) or (n, ...).
///
/// Shapes   (n, numbers of a sample in all arrays)
/// Errors   config_error for arrays of different lengths.
/// @example trainer.step(column_stack<float>(density, velocity_x, velocity_y), dense<float>(flux));
template <class To, array_of_samples First, array_of_samples... More>
[[nodiscard]] tensor<To> column_stack(First const& first, More const&... more) {
  auto const width_of = [](auto const& x) {
    std::int64_t width = 1;
    for (int axis = 1; axis < x.extents.rank(); ++axis) width *= x.extents[axis];
    return width;
  };
  auto const lead = detail::strided(first);
  auto const n = lead.extents[0];
  int which = 0;
  auto width = width_of(lead);
  [[maybe_unused]] auto const look = [&](auto const& x) {
    ++which;
    if (x.extents[0] != n) {
      throw config_error(text("trireme::column_stack: array ", which, " has ", x.extents[0],
                              " samples, but array 0 has ", n, "; give arrays of one length"));
    }
    width += width_of(x);
  };
  (look(detail::strided(more)), ...);
  tensor<To> to(shape{n, width});
  std::int64_t at = 0;
  auto const put = [&](auto const& x) {
    detail::gather_rows(to, width, at, x, "column_stack");
    at += width_of(x);
  };
  put(lead);
  (put(detail::strided(more)), ...);
  return to;
}

/// Fields of one shape, each element of which is a sample: the cells of a grid, say, without the ghost cells around
/// them.
///
/// Shapes   fields of at most five axes; result (elements of a field in row-major order, fields)
/// Errors   config_error for fields of different shapes.
/// @example strided_view<double> inner{field.data() + row + 1, {rows, columns}, {row, 1}};  // of rows of `row` numbers
///          auto const x = stack_cells<float>(inner, other);
template <class To, array_of_samples First, array_of_samples... More>
[[nodiscard]] tensor<To> stack_cells(First const& first, More const&... more) {
  auto const extents = detail::strided(first).extents;
  constexpr auto width = static_cast<std::int64_t>(1 + sizeof...(More));
  tensor<To> to(shape{extents.size(), width});
  std::int64_t which = 0;
  auto const put = [&](auto const& x) {
    if (x.extents != extents) {
      throw config_error(text("trireme::stack_cells: field ", which, " is ", to_string(x.extents), ", but field 0 is ",
                              to_string(extents), "; give fields of one shape"));
    }
    auto whole = x;  // as one row of everything
    whole.extents = {1};
    for (int axis = 0; axis < extents.rank(); ++axis) {
      whole.extents.push_back(extents[axis]);
      whole.strides[static_cast<std::size_t>(axis) + 1] = x.strides[static_cast<std::size_t>(axis)];
    }
    detail::gather_rows(to, width, which++, whole, "stack_cells", width);
  };
  put(detail::strided(first));
  (put(detail::strided(more)), ...);
  return to;
}

/// A matrix of Eigen, row- or column-major, each of whose rows is a sample. Shape (n, columns); nothing is copied.
template <detail::is_matrix M>
[[nodiscard]] auto samples_in_rows(M const& matrix) {
  return detail::matrix_view(matrix);
}
/// The same if each column is a sample: a column-major (numbers, n) matrix has the memory of a dense (n, numbers)
/// tensor.
template <detail::is_matrix M>
[[nodiscard]] auto samples_in_columns(M const& matrix) {
  auto view = detail::matrix_view(matrix);
  view.extents = {view.extents[1], view.extents[0]};
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

namespace detail {

/// Why an array cannot be used as a network's samples.
enum class array_slip : std::uint8_t { none, no_array, matrix, wide, element };

/// @tparam Number  the element type of the network's inputs, float or double; void for a plain model, which may take
///                 any type.
template <class X, class Number>
[[nodiscard]] consteval array_slip slip_of_array() {
  if constexpr (is_matrix<X> && !is_vector<X>) {
    return array_slip::matrix;
  } else if constexpr (!array_like<X>) {
    return array_slip::no_array;
  } else {
    using value = array_element<X>;
    if constexpr (!element<value>) return array_slip::element;
    if (std::is_void_v<Number> || std::is_same_v<value, float> || std::is_same_v<value, std::int32_t>)
      return array_slip::none;
    if (std::is_same_v<value, double>) return std::is_same_v<Number, double> ? array_slip::none : array_slip::wide;
    return array_slip::element;
  }
}

template <array_slip Slip>
struct check_array {
  static_assert(Slip != array_slip::no_array,
                "trireme::trainer: pass samples as arrays: std::vector, std::array or std::span of numbers or of "
                "std::array, tensor_view{pointer, {samples, numbers}}, strided_view, std::mdspan, a vector of Eigen");
  static_assert(Slip != array_slip::matrix,
                "trireme::trainer: either the rows or the columns of a matrix may be the samples: "
                "pass samples_in_rows(matrix) or samples_in_columns(matrix)");
  static_assert(Slip != array_slip::wide,
                "trireme::trainer: these samples are double, but the network takes float: pass dense<float>(samples), "
                "which converts them, or train in precision::fp64");
  static_assert(
      Slip != array_slip::element,
      "trireme::trainer: samples must be float, or double in precision::fp64; "
      "tokens and classes must be std::int32_t: convert them by dense<float>(samples) or dense<std::int32_t>(samples)");
};

/// An array as a dense view: of its own memory, or of a copy if its elements are not contiguous.
template <class T>
class dense_array {
 public:
  dense_array() = default;
  explicit dense_array(strided_view<T> const& from) : view_(from.address, from.extents) {
    if (from.is_dense()) return;
    copy_ = dense(from);
    view_ = copy_.view();
  }
  [[nodiscard]] tensor_view<T const> view() const noexcept { return view_; }

 private:
  tensor<T> copy_;
  tensor_view<T const> view_;
};

/// The same numbers, converted to float.
[[nodiscard]] inline tensor<float> floats_of(tensor<float>&& numbers) { return std::move(numbers); }
[[nodiscard]] inline tensor<float> floats_of(tensor<double>&& numbers) { return dense<float>(numbers); }

/// Converts the array arguments of a trainer's calls; a compile-time error for types that it cannot take.
template <class Number, class X>
[[nodiscard]] auto dense_samples(X const& x) {
  constexpr auto slip = slip_of_array<X, Number>();
  static_cast<void>(sizeof(check_array<slip>));
  if constexpr (slip == array_slip::none) {
    return dense_array<array_element<X>>(strided(x));
  } else {
    return dense_array<float>();
  }
}

}  // namespace detail
}  // namespace trireme
