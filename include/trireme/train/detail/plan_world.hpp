#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/contract/parameter.hpp"

namespace trireme::detail {

/// Ranks    that only exchange messages: the communicator of a plan that names none.
struct messages {};

/// What would be sent, and the latencies of it.
struct paper_counts : comm::traffic_table {
  std::uint64_t latencies = 0;
};

/// One rank of a simulated world. It counts what would be sent, also in groups split from it, and has the capabilities
/// of Like. Tensors are in phantom memory. For the few numbers in host memory that ranks decide by, every other rank is
/// taken to contribute what this one contributes.
template <class Like>
class paper_world : public comm::collectives<paper_world<Like>> {
  using like_space = typename space_of<Like>::type;

 public:
  using request = comm::self_request;
  using space = phantom;
  static constexpr std::string_view name = "paper";

  paper_world(group_rank own, std::shared_ptr<paper_counts> counts) noexcept : own_(own), counts_(std::move(counts)) {}

  [[nodiscard]] int rank() const noexcept { return own_.rank; }
  [[nodiscard]] int size() const noexcept { return own_.size; }

  template <class Space>
  static constexpr bool supports(comm::collective kind, dtype type, comm::reduction_kind op) noexcept {
    using theirs = std::conditional_t<std::is_same_v<Space, phantom>, like_space, Space>;
    if constexpr (requires { Like::template supports<theirs>(kind, type, op); }) {
      return Like::template supports<theirs>(kind, type, op);
    } else {
      return true;
    }
  }
  void run(comm::command const& it) const {
    auto& row = counts_->by_operation[static_cast<std::size_t>(it.what.kind)];
    ++row.calls;
    row.messages += it.messages;
    row.bytes += it.bytes;
    counts_->latencies += static_cast<std::uint64_t>(comm::latencies_of(it, size()));
    if (size() > 1 && it.elements != nullptr && it.elements->touchable) answer(it);
  }
  [[nodiscard]] request start(comm::command const& it) const {
    run(it);
    return {};
  }

  /// The group in which this rank has that share.
  [[nodiscard]] paper_world split(group_rank own) const { return {own, counts_}; }
  [[nodiscard]] paper_world split(int /*color*/, int /*key*/) const { return {group_rank{}, counts_}; }
  [[nodiscard]] paper_world duplicate() const { return {own_, counts_}; }
  template <class T>
  requires has_peers<Like, T, like_space>
  [[nodiscard]] std::vector<tensor_view<T, phantom>> peers(tensor_view<T, phantom> view) const {
    return std::vector<tensor_view<T, phantom>>(static_cast<std::size_t>(size()), view);
  }

 private:
  void answer(comm::command const& it) const {
    if (it.what.kind == comm::collective::all_reduce) {
      std::vector<void const*> const terms(static_cast<std::size_t>(size()), it.from);
      void* const outputs = it.to;
      it.elements->combine(std::span<void* const>(&outputs, 1), terms, it.what.count,
                           it.divisor == 0 ? size() : it.divisor);
    } else if (it.what.kind == comm::collective::all_gather && it.counts.empty()) {
      auto const bytes = static_cast<std::size_t>(it.what.count / size()) * it.element_bytes;
      auto* const all = static_cast<std::byte*>(it.to);
      for (int other = 0; other < size(); ++other)
        it.elements->copy(all + static_cast<std::size_t>(other) * bytes, all + static_cast<std::size_t>(rank()) * bytes,
                          bytes);
    }
  }

  group_rank own_;
  std::shared_ptr<paper_counts> counts_;
};

}  // namespace trireme::detail
