#pragma once

#include <concepts>
#include <cstdint>

#include "trireme/contract/environment.hpp"
#include "trireme/core/space.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::ops {

/// A space that says that its kernels have every set (core/space.hpp): the concepts of the sets accept it at once. That
/// costs a program no time to compile, and needs no kernel to be declared. For this library's spaces
/// tests/ops/sets_test.cpp looks at each function.
template <class Space>
concept complete_kernels = std::same_as<Space, typename Space::complete_kernels>;

namespace detail {

/// The views that the concepts of sets call kernels with.
template <class Space, class Env>
struct set_views {
  using compute = typename Env::compute;
  using y = tensor_view<compute, Space>;                        ///< activations, and what is written like them
  using x = tensor_view<compute const, Space>;                  ///< activations and parameters that are read
  using sums = tensor_view<typename Env::accumulate, Space>;    ///< in the type in which sums are formed
  using gradient = tensor_view<typename Env::gradient, Space>;  ///< of parameters
  using tokens = tensor_view<std::int32_t const, Space>;        ///< numbers of words, classes or rows
  using numbers = tensor_view<std::int32_t, Space>;             ///< the same, written
};

}  // namespace detail

}  // namespace trireme::ops

/// Says in a layer, an optimizer or a compressor which set of kernels it needs:
///     TRIREME_NEEDS_KERNELS("nn::batch_norm", batch_norm);
/// It then does not compile in a memory space that lacks the set; the error is one sentence with both names.
#define TRIREME_NEEDS_KERNELS(name_, set_)                                                                     \
  template <class Env>                                                                                         \
  static constexpr bool finds_kernels = ::trireme::ops::set_##_kernels<typename Env::space, Env>;              \
  template <class Env, bool Finds>                                                                             \
  struct check_kernels {                                                                                       \
    static_assert(Finds, "trireme::" name_ " needs the kernels of ops::" #set_                                 \
                         "_kernels, of which the communicator's memory space lacks some; add them to it (the " \
                         "headers of ops/sets list them), or leave " name_ " out");                            \
  }

namespace trireme::ops {

/// Whether a description finds the kernels that it names; one that names none does.
template <class Description, class Env>
[[nodiscard]] constexpr bool finds_kernels() noexcept {
  if constexpr (requires { Description::template finds_kernels<Env>; })
    return Description::template finds_kernels<Env>;
  else
    return true;
}

/// The same, with the compiler's error if it does not find them.
template <class Description, class Env>
constexpr bool expect_kernels() noexcept {
  constexpr bool found = finds_kernels<Description, Env>();
  if constexpr (!found) static_cast<void>(sizeof(typename Description::template check_kernels<Env, found>));
  return found;
}

}  // namespace trireme::ops
