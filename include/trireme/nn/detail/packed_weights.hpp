#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/contract/model.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn::detail {

/// Weights stored (inputs, outputs) as the products of this pass read them. They are packed once a version. Where the
/// precision writes operands, they are packed in every pass, to scratch memory that the caller rewinds.
template <class Env, class Weights, class View>
Weights& packed_weights(Weights& into, pass<Env>& pass, std::string_view name, View values,
                        product_operand::product of = product_operand::product::forward) {
  using element = std::remove_const_t<typename View::value_type>;
  constexpr bool written = writes_operands<precision_state<typename Env::precision>, element, typename Env::space>;
  into.bind(pass.operand(name, product_operand::role::weight, values, of), ops::orientation::in_out);
  into.refresh(written ? pass.version | ops::passing_values : pass.version);
  return into;
}

}  // namespace trireme::nn::detail
