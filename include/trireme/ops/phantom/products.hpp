#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "trireme/contract/parameter.hpp"
#include "trireme/ops/phantom/checks.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// A weight matrix in memory without elements: its shape.
template <class T, class Space>
requires without_elements<Space>
class weights<T, Space> {
 public:
  weights() = default;
  weights(tensor_view<T const, Space> values, orientation way) { bind(values, way); }
  void bind(tensor_view<T const, Space> values, orientation way) noexcept {
    view_ = values;
    way_ = way;
  }
  void refresh(std::uint64_t) noexcept {}
  [[nodiscard]] tensor_view<T const, Space> view() const noexcept { return view_; }
  [[nodiscard]] orientation way() const noexcept { return way_; }
  [[nodiscard]] std::int64_t inputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 0 : 1); }
  [[nodiscard]] std::int64_t outputs() const noexcept { return view_.extent(way_ == orientation::in_out ? 1 : 0); }
  [[nodiscard]] std::size_t packed_bytes() const noexcept { return 0; }

 private:
  tensor_view<T const, Space> view_;
  orientation way_ = orientation::in_out;
};

/// Products with weights, and the count of their operations.
template <class Space>
struct phantom_products : phantom_checks<Space> {
  template <class T>
  using view = tensor_view<T, Space>;
  template <class T>
  using input = std::type_identity_t<tensor_view<T const, Space>>;
  template <class T>
  using output = std::type_identity_t<tensor_view<T, Space>>;
  using phantom_checks<Space>::same;

  /// Additions and multiplications of this thread's products and attention so far: 2 m n k for a product, and those of
  /// the unmasked half of attention.
  [[nodiscard]] static double& flops() noexcept {
    static thread_local double sum = 0;
    return sum;
  }

  template <class T>
  static void linear(view<T> y, input<T> x, weights<T, Space>& w,
                     std::type_identity_t<linear_epilogue<T, Space>> const& epilogue = {}) {
    note_kernel<Space>("linear", y, x, w, epilogue);
    same("linear", x.size() * w.outputs(), y.size() * w.inputs());
    flops() += 2.0 * static_cast<double>(x.size()) * static_cast<double>(w.outputs());
    if (!epilogue.bias.empty()) same("linear", epilogue.bias.size(), w.outputs());
    if (!epilogue.before_activation.empty()) same("linear", epilogue.before_activation.size(), y.size());
    if (!epilogue.residual.empty()) same("linear", epilogue.residual.size(), y.size());
  }
  template <class T>
  static void linear_backward_input(view<T> dx, input<T> dy, weights<T, Space>& w,
                                    std::type_identity_t<input_epilogue<T, Space>> const& epilogue = {}) {
    note_kernel<Space>("linear_backward_input", dx, dy, w, epilogue);
    same("linear_backward_input", dy.size() * w.inputs(), dx.size() * w.outputs());
    flops() += 2.0 * static_cast<double>(dy.size()) * static_cast<double>(w.inputs());
    if (!epilogue.before_activation.empty()) {
      same("linear_backward_input", epilogue.before_activation.size(), dx.size());
    }
  }
  template <class T, class G>
  static void linear_backward_weight(view<G> dw, output<G> db, view<T> x, input<std::remove_const_t<T>> dy,
                                     orientation way) {
    note_kernel<Space>("linear_backward_weight", dw, db, x, dy);
    auto const k = dw.extent(way == orientation::in_out ? 0 : 1);
    auto const n = dw.extent(way == orientation::in_out ? 1 : 0);
    same("linear_backward_weight", x.size() * n, dy.size() * k);
    flops() += 2.0 * static_cast<double>(x.size()) * static_cast<double>(n);
    if (!db.empty()) same("linear_backward_weight", db.size(), n);
  }
};

}  // namespace trireme::ops
