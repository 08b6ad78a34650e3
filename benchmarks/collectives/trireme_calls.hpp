#pragma once

#include <functional>
#include <utility>

#include "player.hpp"
#include "trireme/comm/comm.hpp"

namespace player {

enum class memory : std::uint8_t { foreign, own };

/// The calls of a trireme world, on tensors in host memory or on memory that the world allocates.
template <class World, memory From = memory::foreign>
class trireme_calls {
 public:
  explicit trireme_calls(World& world) : world_(world) {}

  std::byte* allocate(int index, std::size_t bytes) {
    trireme::shape const extents{static_cast<std::int64_t>((bytes + 3) / 4)};
    auto& block = blocks_[index];
    if constexpr (From == memory::own)
      block = world_.template allocate<float>(extents);
    else
      block = trireme::tensor<float>(extents);
    return reinterpret_cast<std::byte*>(block.span().data());
  }
  void release() {
    for (auto& block : blocks_) block = trireme::tensor<float>();
  }
  void barrier() { world_.barrier(); }
  prepared prepare(task const& it, std::byte* from, std::byte* to) {
    return it.type == element::f32 ? typed<float>(it, from, to) : typed<trireme::bfloat16>(it, from, to);
  }

 private:
  template <class T>
  prepared typed(task const& it, std::byte* from, std::byte* to) {
    trireme::shape const extents{static_cast<std::int64_t>(it.count())};
    trireme::tensor_view<T> const values(reinterpret_cast<T*>(from), extents);
    trireme::tensor_view<T> const results(reinterpret_cast<T*>(to), extents);
    switch (it.what) {
      case operation::all_reduce:
        return {[this, values] { world_.all_reduce(values); }, to};
      case operation::reduce_scatter:
        return {[this, values] { world_.reduce_scatter(values); },
                from + static_cast<std::size_t>(world_.rank()) * it.bytes / static_cast<std::size_t>(world_.size())};
      case operation::all_gather:
        return {[this, values] { world_.all_gather(values); }, to};
      case operation::all_to_all:
        return {[this, values, results] { world_.all_to_all(values, results); }, to};
      case operation::broadcast:
        return {[this, values] { world_.broadcast(values, 0); }, to};
    }
    return {};
  }

  World& world_;
  trireme::tensor<float> blocks_[2];
};

}  // namespace player
