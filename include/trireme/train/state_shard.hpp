#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/contract/state.hpp"
#include "trireme/core/address.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme {

namespace detail {

/// Operations on state of one element type in one memory space.
struct state_kernels {
  void (*download)(std::byte* to, void const* from, std::size_t bytes);
  void (*upload)(void* to, std::byte const* from, std::size_t bytes);
  std::uint64_t (*hash)(void const* at, std::int64_t count, std::uint64_t name, std::int64_t first);
};

template <class T, class Space>
inline constexpr state_kernels state_kernels_of{
    [](std::byte* to, void const* from, std::size_t bytes) {
      std::span const numbers(elements_at<T>(to), bytes / sizeof(T));
      ops::on<Space>::download(numbers, tensor_view<T const, Space>(static_cast<T const*>(from),
                                                                    {static_cast<std::int64_t>(numbers.size())}));
    },
    [](void* to, std::byte const* from, std::size_t bytes) {
      std::span const numbers(elements_at<T>(from), bytes / sizeof(T));
      ops::on<Space>::upload(tensor_view<T, Space>(static_cast<T*>(to), {static_cast<std::int64_t>(numbers.size())}),
                             numbers);
    },
    [](void const* at, std::int64_t count, std::uint64_t name, std::int64_t first) {
      return ops::on<Space>::hash(tensor_view<T const, Space>(static_cast<T const*>(at), {count}), name, first);
    }};

}  // namespace detail

/// A piece of a run's state: elements from `first` on of the part of a tensor that `part` describes. Its element type
/// and memory space are known only at run time, so that code which works on state (checkpoints, hashes, comparisons) is
/// compiled once, and not for each trainer. It does not own the numbers.
///
/// Threads  as the memory that it refers to.
class state_shard {
 public:
  std::string name;
  parameter_info box;
  std::int64_t first = 0;
  bool of_rank = false;       ///< each rank has its own numbers
  std::int64_t summands = 0;  ///< see state_location
  std::int64_t learner = -1;  ///< see state_location

  template <class T, class Space>
  state_shard(std::string what, parameter_info where, std::int64_t from, tensor_view<T, Space> values, bool own = false,
              std::int64_t of_sum = 0)
      : name(std::move(what)),
        box(std::move(where)),
        first(from),
        of_rank(own),
        summands(of_sum),
        kernels_(&detail::state_kernels_of<std::remove_const_t<T>, Space>),
        address_(const_cast<std::remove_const_t<T>*>(values.address())),  // only load() writes
        type_(dtype_of<std::remove_const_t<T>>),
        size_(values.size()),
        in_host_(std::is_same_v<Space, host>) {}
  /// The same piece, copied to host memory, from which content() reads.
  state_shard(state_shard const& of, std::span<std::byte> copy) : state_shard(of) {
    address_ = copy.data();
    in_host_ = true;
  }

  [[nodiscard]] dtype type() const noexcept { return type_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(size_) * size_of(type_); }

  /// The bytes of the numbers: in place, or copied into `scratch` if they are not in host memory.
  [[nodiscard]] std::span<std::byte const> content(std::vector<std::byte>& scratch) const {
    if (in_host_) return {static_cast<std::byte const*>(address_), bytes()};
    scratch.resize(bytes());
    download(scratch);
    return scratch;
  }
  void download(std::span<std::byte> to) const {
    if (in_host_) {
      if (!to.empty()) std::memcpy(to.data(), address_, bytes());
    } else {
      kernels_->download(to.data(), address_, bytes());
    }
  }
  void upload(std::span<std::byte const> from) const { kernels_->upload(address_, from.data(), bytes()); }
  /// See core/hash.hpp; of elements [from, from + count).
  [[nodiscard]] std::uint64_t hash(std::int64_t from, std::int64_t count, std::uint64_t of, std::int64_t index) const {
    auto const* const at = static_cast<std::byte const*>(address_) + static_cast<std::size_t>(from) * size_of(type_);
    return kernels_->hash(at, count, of, index);
  }

 private:
  detail::state_kernels const* kernels_;
  void* address_;
  dtype type_;
  std::int64_t size_;
  bool in_host_;
};

/// The name of a piece of state. If each rank has its own numbers, or each learner, the name contains its number
/// ("residual.2/wte").
[[nodiscard]] inline std::string name_of_shard(std::string const& name, state_location const& place, int rank) {
  if (!place.of_rank && place.learner < 0) return name;
  auto const slash = name.find('/');
  return text(name.substr(0, slash), ".", place.of_rank ? rank : place.learner, name.substr(slash));
}

/// The name without the rank ("residual/wte"), of a piece whose name contains it.
[[nodiscard]] inline std::string name_without_rank(std::string const& name) {
  auto const slash = std::min(name.find('/'), name.size());
  return name.substr(0, std::min(name.rfind('.', slash), slash)) + name.substr(slash);
}

/// A visitor for visit_state() that makes pieces of all state: one type for every owner of state. Copies of it collect
/// into the same list.
struct shard_collector {
  int rank = 0;
  std::vector<state_shard>& to;

  template <class T, class Space>
  void operator()(std::string const& name, state_location const& place, tensor_view<T, Space> values) const {
    to.emplace_back(name_of_shard(name, place, rank), place.info, place.first, values, place.of_rank, place.summands);
    to.back().learner = place.learner;
  }
};

}  // namespace trireme
