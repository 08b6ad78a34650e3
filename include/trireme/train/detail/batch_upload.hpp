#pragma once

#include <cstdint>
#include <type_traits>

#include "trireme/contract/model.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::detail {

/// A batch in memory that kernels can read: copied there, unless it is there already.
template <class Space>
class batch_upload {
 public:
  /// For a plan of a training whose kernels read batches where they are: nothing is copied.
  void leave() noexcept { copies_ = false; }

  [[nodiscard]] samples_in<Space> place(samples const& batch, [[maybe_unused]] arena<Space>& memory) const {
    if constexpr (std::is_same_v<Space, host>) {
      return batch;
    } else {
      return {place(batch.inputs, memory), place(batch.targets, memory), batch.ids};
    }
  }

 private:
  [[nodiscard]] any_view<Space> place(any_view<host> const& from, arena<Space>& memory) const {
    if (!copies_) return {from.address, from.type, from.extents};
    if (from.empty()) return {nullptr, from.type, from.extents};
    if (from.type == dtype::i32) return copied<std::int32_t>(from, memory);
    if (from.type == dtype::f64) return copied<double>(from, memory);
    return copied<float>(from, memory);
  }
  template <class T>
  static any_view<Space> copied(any_view<host> const& from, arena<Space>& memory) {
    auto const to = memory.template take<T>(from.extents);
    ops::on<Space>::upload(to, from.template as<T>().span());
    return erase_type(to);
  }

  bool copies_ = true;
};

}  // namespace trireme::detail
