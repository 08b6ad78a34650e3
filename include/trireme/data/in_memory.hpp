#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme::data {

/// The number of columns per row of a flat vector.
struct columns {
  std::int64_t inputs = 1;
  std::int64_t targets = 1;
  friend bool operator==(columns const&, columns const&) = default;
};

/// Samples in memory, as two arrays: row s of each is sample s.
///
/// Shapes   features (n, ...), targets (n, ...), any element types; the shape of one sample is what follows n, so
///          features (n, 3) give inputs (3), and targets (n) give a scalar.
/// Threads  read() copies rows and is const.
/// Errors   throws config_error if there are no rows, if the numbers of rows differ, or if a vector's size is not a
///          multiple of the row's.
/// @models trireme::dataset
template <arithmetic_element X, arithmetic_element Y>
class in_memory {
 public:
  /// Takes ownership of the arrays.
  in_memory(tensor<X> features, tensor<Y> targets) : features_(std::move(features)), targets_(std::move(targets)) {
    check_rows(features_.extents(), "features");
    check_rows(targets_.extents(), "targets");
    if (features_.extents()[0] != targets_.extents()[0]) {
      throw config_error(text("trireme::data::in_memory: features ", to_string(features_.extents()), " and targets ",
                              to_string(targets_.extents()), " differ in their number of rows"));
    }
  }
  /// Copies the arrays.
  template <class U, class W>
  in_memory(tensor_view<U, host> features, tensor_view<W, host> targets)
      : in_memory(copy<X>(features.span(), features.extents()), copy<Y>(targets.span(), targets.extents())) {}
  /// Copies the vectors, split into rows.
  in_memory(std::vector<X> const& features, std::vector<Y> const& targets, columns width = {})
      : in_memory(copy<X>(features, rows_of(features.size(), width.inputs, "features")),
                  copy<Y>(targets, rows_of(targets.size(), width.targets, "targets"))) {}

  [[nodiscard]] std::int64_t size() const noexcept { return features_.extents()[0]; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype_of<X>; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype_of<Y>; }
  [[nodiscard]] shape input_shape() const { return row_shape(features_.extents()); }
  [[nodiscard]] shape target_shape() const { return row_shape(targets_.extents()); }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    gather(features_, ids, inputs);
    gather(targets_, ids, targets);
  }

 private:
  static void check_rows(shape const& extents, char const* what) {
    if (extents.rank() == 0 || extents.size() == 0) {
      throw config_error(text("trireme::data::in_memory: the ", what, " have shape ", to_string(extents),
                              ", but at least one row and one column are needed"));
    }
  }
  static shape rows_of(std::size_t size, std::int64_t width, char const* what) {
    auto const count = static_cast<std::int64_t>(size);
    if (width < 1 || count % width != 0) {
      throw config_error(text("trireme::data::in_memory: ", how_many(count, "number"), " of ", what,
                              agreeing(count, " does", " do"), " not divide into rows of ", width));
    }
    return {count / width, width};
  }
  template <class T>
  static tensor<T> copy(std::span<T const> from, shape extents) {
    if (from.empty()) return {};
    tensor<T> to(extents);
    std::copy(from.begin(), from.end(), to.span().begin());
    return to;
  }
  static shape row_shape(shape const& extents) { return shape(extents.extents().subspan(1)); }
  template <class T>
  static void gather(tensor<T> const& from, std::span<std::int64_t const> ids, void* to) {
    auto const row = static_cast<std::size_t>(from.size() / from.extents()[0]);
    auto* out = static_cast<T*>(to);
    for (auto const id : ids) {
      std::memcpy(out, from.span().data() + static_cast<std::size_t>(id) * row, row * sizeof(T));
      out += row;
    }
  }

  tensor<X> features_;
  tensor<Y> targets_;
};

template <class U, class W>
in_memory(tensor_view<U, host>, tensor_view<W, host>) -> in_memory<std::remove_const_t<U>, std::remove_const_t<W>>;

}  // namespace trireme::data
