#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/detail/call.hpp"
#include "trireme/comm/detail/shares.hpp"
#include "trireme/contract/slot.hpp"

namespace trireme::comm {

/// One rank, alone: every collective is the identity. Serial training is training with this communicator.
struct self {
  using policy_category = slot::communicator;
  friend bool operator==(self const&, self const&) = default;
};

[[nodiscard]] inline std::string to_string(self const&) { return "comm::self{}"; }

/// A collective that was done before it was asked for.
struct self_request {
  self_request() = default;
  self_request(self_request&&) = default;
  self_request& operator=(self_request&&) = default;
  [[nodiscard]] bool test() const noexcept { return true; }
  void wait() const noexcept {}
};

/// The rank of comm::self. May be made anywhere, without launch.
///
/// Bytes   sends none; collectives are counted.
/// Errors  config_error for a root other than 0, a negative color, or views of different sizes.
class self_world {
 public:
  using policy_category = slot::communicator;
  using request = self_request;
  static constexpr std::string_view name = "self";

  self_world() = default;
  self_world(self_world&&) = default;
  self_world& operator=(self_world&&) = default;

  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int size() const noexcept { return 1; }
  [[nodiscard]] traffic_counters traffic() const noexcept { return traffic_; }

  void barrier() noexcept { ++traffic_.collectives; }
  [[nodiscard]] self_world split(int color, int /*key*/) {
    detail::expect_color(who, color);
    traffic_.collectives += 2;
    return {};
  }
  template <class T, class Space>
  [[nodiscard]] std::vector<tensor_view<T, Space>> peers(tensor_view<T, Space> view) {
    ++traffic_.collectives;
    return {view};
  }

  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  void all_reduce(tensor_view<T, Space> /*values*/, Op = {}) noexcept {
    ++traffic_.collectives;
  }
  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  void reduce_scatter(tensor_view<T, Space> /*values*/, Op = {}) noexcept {
    ++traffic_.collectives;
  }
  template <element T, class Space>
  void all_gather(tensor_view<T, Space> /*values*/) noexcept {
    ++traffic_.collectives;
  }
  template <class From, element T, class Space>
  requires std::same_as<std::remove_const_t<From>, T>
  void all_to_all(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    detail::expect_equal_sizes(who, from.size(), to.size());
    detail::copy_elements<T, Space>(to.address(), from.address(), from.size());
    ++traffic_.collectives;
  }
  template <element T, class Space>
  void broadcast(tensor_view<T, Space> /*values*/, int root) {
    detail::expect_root(who, root, 1);
    ++traffic_.collectives;
  }

  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  [[nodiscard]] request all_reduce_async(tensor_view<T, Space> values, Op how = {}) {
    all_reduce(values, how);
    return {};
  }
  template <arithmetic_element T, class Space, detail::reduction_operation Op = reduction::sum>
  [[nodiscard]] request reduce_scatter_async(tensor_view<T, Space> values, Op how = {}) {
    reduce_scatter(values, how);
    return {};
  }
  template <element T, class Space>
  [[nodiscard]] request all_gather_async(tensor_view<T, Space> values) {
    all_gather(values);
    return {};
  }
  template <class From, element T, class Space>
  requires std::same_as<std::remove_const_t<From>, T>
  [[nodiscard]] request all_to_all_async(tensor_view<From, Space> from, tensor_view<T, Space> to) {
    all_to_all(from, to);
    return {};
  }
  template <element T, class Space>
  [[nodiscard]] request broadcast_async(tensor_view<T, Space> values, int root) {
    broadcast(values, root);
    return {};
  }

 private:
  static constexpr std::string_view who = "trireme::comm::self";
  traffic_counters traffic_;
};

}  // namespace trireme::comm
