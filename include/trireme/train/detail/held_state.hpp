#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/contract/parameter.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::checkpoint::detail {

/// A piece of state that was copied: what a view is to a piece that was not.
struct held_piece {
  dtype type{};
  std::int64_t count = 0;
  std::span<std::byte const> content;

  [[nodiscard]] std::int64_t size() const noexcept { return count; }
  [[nodiscard]] std::size_t bytes() const noexcept { return content.size(); }
};

/// A rank's state as it was at one step. Its memory is used again by the next copy.
///
/// Threads  who copies first ends; for_each() may then be another thread's.
class held_state {
 public:
  /// @param for_each  calls its argument with (name, info, first, view) for each piece; called twice, in one order.
  template <class ForEach>
  void copy(ForEach&& for_each) {
    pieces_.clear();
    std::size_t bytes = 0;
    for_each(
        [&](std::string const&, parameter_info const&, std::int64_t, auto view) { bytes += padded(view.bytes()); });
    if (bytes > memory_.size()) memory_ = std::vector<std::byte>(bytes);
    std::size_t at = 0;
    for_each([&](std::string const& name, parameter_info const& part, std::int64_t first, auto view) {
      using element = typename decltype(view)::value_type;
      using space = typename decltype(view)::space;
      std::span const to(memory_.data() + at, view.bytes());
      ops::on<space>::download(
          std::span<element>(reinterpret_cast<element*>(to.data()), static_cast<std::size_t>(view.size())), view);
      pieces_.push_back({name, part, first, {dtype_of<element>, view.size(), to}});
      at += padded(view.bytes());
    });
  }

  /// Calls f(name, info, first, held_piece) for each piece.
  template <class F>
  void for_each(F&& f) const {
    for (auto const& each : pieces_) f(each.name, each.part, each.first, each.values);
  }

 private:
  struct piece {
    std::string name;
    parameter_info part;
    std::int64_t first;
    held_piece values;
  };

  static std::size_t padded(std::size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

  std::vector<std::byte> memory_;
  std::vector<piece> pieces_;
};

}  // namespace trireme::checkpoint::detail
