#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/collectives.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm {

/// A single rank: every collective is the identity. Serial training is training with this communicator.
struct self {
  using policy_category = slot::communicator;
  friend bool operator==(self const&, self const&) = default;
};

[[nodiscard]] inline std::string to_string(self const&) { return "comm::self{}"; }

/// The request of a collective that is already done.
struct self_request {
  self_request() = default;
  self_request(self_request&&) = default;
  self_request& operator=(self_request&&) = default;
  [[nodiscard]] bool test() const noexcept { return true; }
  void wait() const noexcept {}
};

/// The rank of comm::self. It can be constructed directly, without launch.
///
/// Bytes   sends none; collectives are counted.
/// Errors   config_error for a root or peer other than 0, a negative color, views that do not fit each other, or an
///          exchange whose sends and receives do not match.
class self_world : public collectives<self_world> {
 public:
  using request = self_request;
  static constexpr std::string_view name = "self";

  self_world() = default;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }

  template <class Space>
  static constexpr bool supports(collective, dtype, reduction_kind op) noexcept {
    return requires { &space_kernels<Space>::copy; }
    &&(op != reduction_kind::own || detail::can_combine<Space>(op));
  }
  void run(command const& it) const {
    if (it.elements == nullptr) return;
    if (it.what.kind == collective::exchange)
      match(it);
    else if (it.what.shape == 0)
      it.elements->copy(it.to, it.from, static_cast<std::size_t>(it.what.count) * it.element_bytes);
    else if (!it.raw_transfers.empty())
      copy(it, it.raw_transfers[0], it.raw_transfers[1]);
    if (it.elements->complete != nullptr) it.elements->complete();
  }
  [[nodiscard]] request start(command const& it) const {
    run(it);
    return {};
  }

  [[nodiscard]] self_world split(int color, int /*key*/) const {
    detail::expect_color(who(), color);
    return {};
  }
  [[nodiscard]] self_world duplicate() const { return {}; }
  [[nodiscard]] self_world duplicate(std::chrono::milliseconds) const { return {}; }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept { return std::chrono::seconds(60); }
  template <class T, class Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) const {
    return {view};
  }
  template <element T>
  [[nodiscard]] tensor<T> allocate(shape extents) const {
    return tensor<T>(extents);
  }

 private:
  static void copy(command const& it, raw_transfer const& from, raw_transfer const& to) {
    if (from.type != to.type || from.count != to.count)
      throw config_error(detail::differing_transfers(who(), 0, from, 0, to));
    it.elements->copy(to.address, from.address, static_cast<std::size_t>(to.count) * size_of(to.type));
  }
  /// The k-th send goes to the k-th receive.
  static void match(command const& it) {
    std::vector<raw_transfer const*> sends, receives;
    for (auto const& each : it.raw_transfers) (each.sent ? sends : receives).push_back(&each);
    if (sends.size() != receives.size())
      throw config_error(text(who(), "::exchange: a single rank sends ", how_many(sends.size(), "message"),
                              " to itself but receives ", receives.size(),
                              "; pass both the send and the receive to one exchange"));
    for (std::size_t k = 0; k < sends.size(); ++k) copy(it, *sends[k], *receives[k]);
  }
};

}  // namespace trireme::comm
