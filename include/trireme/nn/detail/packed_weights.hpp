#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/contract/model.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// Weights as the products of this pass read them. They are packed once a version. Where the precision writes operands,
/// they are packed in every pass, to scratch memory that the caller rewinds.
template <class Env, class Weights, class View>
Weights& packed_weights(Weights& into, pass<Env>& pass, std::string_view name, View values,
                        product_operand::product of = product_operand::product::forward,
                        ops::orientation stored = ops::orientation::in_out, bool head = false) {
  auto const read = pass.operand(name, product_operand::role::weight, values, of, head);
  into.bind(read, stored);
  into.refresh(read.address() == values.address() ? pass.version : pass.version | ops::passing_values);
  return into;
}

/// dw += x^T dy, of the operands that the precision writes, if it does; db += the sums of the rows of dy as it is.
template <class Env, class G, class View>
void backward_weights(pass<Env>& pass, std::string_view name, tensor_view<G, typename Env::space> dw,
                      std::type_identity_t<tensor_view<G, typename Env::space>> db, View x, View dy,
                      ops::orientation stored = ops::orientation::in_out, bool head = false) {
  using kernels = ops::on<typename Env::space>;
  using element = std::remove_const_t<typename View::value_type>;
  constexpr auto of = product_operand::product::weight_gradient;
  auto const mark = pass.scratch.mark();
  auto const input = pass.operand(name, product_operand::role::input, x, of, head);
  auto const gradient = pass.operand(name, product_operand::role::gradient, dy, of, head);
  if constexpr (writes_operands<precision_state<typename Env::precision>, element, typename Env::space>) {
    if (!db.empty() && gradient.address() != dy.address()) {  // a precision may round, or even rotate, columns
      auto const ones = pass.scratch.template take<element>({dy.size() / db.size(), 1});
      kernels::fill(ones, 1.0);
      kernels::linear_backward_weight(db.reshaped({1, db.size()}), {}, ones, dy, ops::orientation::in_out);
      db = {};
    }
  }
  kernels::linear_backward_weight(dw, db, input, gradient, stored);
  pass.scratch.rewind(mark);
}

}  // namespace trireme::nn::detail
