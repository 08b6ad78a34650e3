#pragma once

#include <span>

#include "trireme/contract/optimizer.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::optim::detail {

/// Publishes the new value to the layers.
template <class Env>
void write_outputs(tensor_update<Env> const& tensor) {
  for (auto const& output : tensor.outputs) {
    ops::on<typename Env::space>::copy(output,
                                       tensor_view<typename Env::master const, typename Env::space>(tensor.value));
  }
}

/// A whole tensor as one segment of an element-wise optimizer.
template <class Env>
[[nodiscard]] update_segment<Env> as_segment(
    tensor_update<Env> const& tensor, std::span<tensor_view<typename Env::master, typename Env::space> const> moments) {
  return {tensor.value, moments,       {{&tensor.gradient, 1}, tensor.scale}, tensor.outputs, tensor.info.decays,
          &tensor.info, tensor.updates};
}

}  // namespace trireme::optim::detail
