#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "trireme/comm/collectives.hpp"

namespace trireme::comm::detail {

/// A command inside a node or between nodes, made from one of the whole, with its bytes counted; ragged with `counts`.
[[nodiscard]] inline command part_of(command const& whole, collective kind, void const* from, void* to,
                                     std::int64_t count, int rank, int size, int root = -1, int divisor = 0,
                                     std::span<std::int64_t const> counts = {}) {
  auto const op = row_of(kind).moves[0].folds ? whole.what.op : reduction_kind::none;
  command it{.what = {kind, whole.what.type, op, false, root, count, counts.empty() ? 0 : fingerprint(counts)},
             .from = from,
             .to = to,
             .element_bytes = whole.element_bytes,
             .elements = whole.elements,
             .counts = counts,
             .divisor = divisor};
  count_sent(it, rank, size);
  return it;
}
/// The same of a command that is a list of parts.
[[nodiscard]] inline command parts_of(command const& whole, collective kind, std::span<part const> parts, int rank) {
  command it{.what = {kind, whole.what.type},
             .element_bytes = whole.element_bytes,
             .elements = whole.elements,
             .parts = parts};
  if (kind == collective::all_to_all) it.what.shape = 1;
  if (kind == collective::exchange) it.what.type = dtype::u8;
  count_parts(it, rank);
  return it;
}

/// Requests of several types.
class pending_list {
 public:
  template <class Request>
  void add(Request it) {
    all_.push_back(std::make_unique<holder<Request>>(std::move(it)));
  }
  /// Whether all are done.
  [[nodiscard]] bool done() {
    std::erase_if(all_, [](auto& each) { return each->test(); });
    return all_.empty();
  }
  void clear() noexcept { all_.clear(); }

 private:
  struct any {
    virtual ~any() = default;
    virtual bool test() = 0;
  };
  template <class Request>
  struct holder final : any {
    explicit holder(Request it) : request(std::move(it)) {}
    bool test() override { return request.test(); }
    Request request;
  };
  std::vector<std::unique_ptr<any>> all_;
};

/// Where a rank stands: rank = node * places + place.
struct grid_place {
  int place = 0, places = 1, node = 0, nodes = 1;
  [[nodiscard]] int rank() const noexcept { return node * places + place; }
  [[nodiscard]] int size() const noexcept { return nodes * places; }
};

/// Runs f on one rank of the node after the other. What is collective between the nodes is done so, because two threads
/// of a process may not be in it at a time.
template <class Inner, class F>
void in_turn(Inner& inner, F&& f) {
  for (int place = 0; place < inner.size(); ++place) {
    if (place == inner.rank()) f();
    inner.barrier();
  }
}

[[nodiscard]] inline std::byte* at(void* base, std::int64_t bytes) noexcept {
  return base == nullptr ? nullptr : static_cast<std::byte*>(base) + bytes;
}
[[nodiscard]] inline std::byte const* at(void const* base, std::int64_t bytes) noexcept {
  return base == nullptr ? nullptr : static_cast<std::byte const*>(base) + bytes;
}

}  // namespace trireme::comm::detail
