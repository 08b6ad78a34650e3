#pragma once

#include "trireme/comm/command.hpp"
#include "trireme/comm/space_kernels.hpp"

namespace trireme::comm::detail {

template <class Space>
inline constexpr bool is_phantom = requires {
  requires space_kernels<Space>::phantom;
};
/// Whether a space has kernels that combine values by `op`.
template <class Space>
[[nodiscard]] constexpr bool can_combine(reduction_kind op) noexcept {
  if (op == reduction_kind::own) return space_kernels<Space>::touchable || is_phantom<Space>;
  if constexpr (requires { space_kernels<Space>::combines(op); })
    return space_kernels<Space>::combines(op);
  else
    return true;
}
template <class Space>
inline constexpr element_kernels moving_kernels{&space_kernels<Space>::copy, nullptr, space_kernels<Space>::complete,
                                                space_kernels<Space>::touchable, is_phantom<Space>};
template <class T, class Space, class Op>
inline constexpr element_kernels reducing_kernels{
    &space_kernels<Space>::copy, &space_kernels<Space>::template combine<T, Op>, space_kernels<Space>::complete,
    space_kernels<Space>::touchable, is_phantom<Space>};

}  // namespace trireme::comm::detail
