#pragma once

#include <chrono>
#include <type_traits>
#include <utility>

#include "trireme/contract/communicator.hpp"

namespace trireme::comm {

/// Comm, except that its trainer computes in Space.
template <class Space, communicator Comm>
class world_in : public Comm {
 public:
  using space = Space;

  explicit world_in(Comm&& world) noexcept : Comm(std::move(world)) {}
  [[nodiscard]] world_in split(int color, int key) { return world_in(Comm::split(color, key)); }
  [[nodiscard]] world_in duplicate() { return world_in(Comm::duplicate()); }
  [[nodiscard]] world_in duplicate(std::chrono::milliseconds deadline) requires requires(Comm& it) {
    it.duplicate(deadline);
  }
  { return world_in(Comm::duplicate(deadline)); }
};

/// The same ranks, for computing in another memory space: a trainer made with this world keeps parameters, gradients
/// and activations in Space.
///
/// Ranks    collective, as split() is.
/// @example auto dry = comm::in_space<phantom>(world);   // a whole training without touching a tensor
template <class Space, communicator Comm>
[[nodiscard]] world_in<Space, Comm> in_space(Comm& world) {
  return world_in<Space, Comm>(world.duplicate());
}

namespace detail {

template <class Comm, class Space>
struct world_in_or_same {
  using type = Comm;
};
template <communicator Comm, class Space>
requires(!std::is_same_v<typename space_of<Comm>::type, Space>) struct world_in_or_same<Comm, Space> {
  using type = world_in<Space, Comm>;
};

}  // namespace detail

/// The type of Comm's world for computing in Space: Comm, if that is its space already.
template <class Comm, class Space>
using world_for = typename detail::world_in_or_same<Comm, Space>::type;

}  // namespace trireme::comm
