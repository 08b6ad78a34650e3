#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "trireme/comm/threads.hpp"
#include "trireme/contract/communicator.hpp"

/// A communicator that can only do what it is told to be able to.
namespace bare {

using trireme::tensor_view;
namespace reduction = trireme::reduction;

/// A collective of some elements, with a reduction of some kind.
enum class call : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, ragged_all_to_all, exchange };
template <call Which, class T = void, class Op = void>
struct can {};

/// What every trainer asks for.
template <class... More>
struct abilities {
  template <call Which, class T = void, class Op = void>
  static constexpr bool has = (std::same_as<More, can<Which, T, Op>> || ...);
};
template <class... More>
using trainer_and =
    abilities<can<call::all_reduce, std::int64_t, reduction::sum>, can<call::all_reduce, std::int64_t, reduction::min>,
              can<call::all_reduce, std::int64_t, reduction::max>, can<call::all_reduce, std::uint64_t, reduction::sum>,
              can<call::all_reduce, double, reduction::sum>, can<call::all_gather, std::uint64_t>, More...>;

/// How often requests of this process were waited for by the host, and ordered for what is queued afterwards.
inline std::atomic<int> host_waits{0}, orders{0};

/// A request that tells order() from wait(), as one of a device does.
template <trireme::communication_request Inner>
class request {
 public:
  explicit request(Inner&& pending) : pending_(std::move(pending)) {}
  [[nodiscard]] bool test() { return pending_.test(); }
  void wait() {
    ++host_waits;
    pending_.wait();
  }
  void order() {
    ++orders;
    pending_.wait();
  }

 private:
  Inner pending_;
};

template <class Able>
class world {
  using inner = trireme::comm::threads_world;

 public:
  using policy_category = trireme::slot::communicator;
  static constexpr std::string_view name = "bare";

  explicit world(inner&& ranks) : ranks_(std::move(ranks)) {}

  [[nodiscard]] int rank() const { return ranks_.rank(); }
  [[nodiscard]] int size() const { return ranks_.size(); }
  [[nodiscard]] world split(int color, int key) { return world(ranks_.split(color, key)); }
  [[nodiscard]] world duplicate() { return world(ranks_.duplicate()); }
  void barrier() { ranks_.barrier(); }
  [[nodiscard]] trireme::traffic_counters traffic() const { return ranks_.traffic(); }

  template <class T, class Op>
  requires(Able::template has<call::all_reduce, T, Op>) void all_reduce(tensor_view<T> values, Op op) {
    ranks_.all_reduce(values, op);
  }
  template <class T, class Op>
  requires(Able::template has<call::all_reduce, T, Op>)
      [[nodiscard]] auto all_reduce_async(tensor_view<T> values, Op op) {
    return request(ranks_.all_reduce_async(values, op));
  }
  template <class T, class Op>
  requires(Able::template has<call::reduce_scatter, T, Op>) void reduce_scatter(tensor_view<T> values, Op op) {
    ranks_.reduce_scatter(values, op);
  }
  template <class T, class Op>
  requires(Able::template has<call::reduce_scatter, T, Op>)
      [[nodiscard]] auto reduce_scatter_async(tensor_view<T> values, Op op) {
    return request(ranks_.reduce_scatter_async(values, op));
  }
  template <class T>
  requires(Able::template has<call::all_gather, T>) void all_gather(tensor_view<T> values) {
    ranks_.all_gather(values);
  }
  template <class T>
  requires(Able::template has<call::all_gather, T>) [[nodiscard]] auto all_gather_async(tensor_view<T> values) {
    return request(ranks_.all_gather_async(values));
  }
  template <class T>
  requires(Able::template has<call::all_to_all, T>) void all_to_all(tensor_view<T const> from, tensor_view<T> to) {
    ranks_.all_to_all(from, to);
  }
  template <class T>
  requires(Able::template has<call::all_to_all, T>)
      [[nodiscard]] auto all_to_all_async(tensor_view<T const> from, tensor_view<T> to) {
    return request(ranks_.all_to_all_async(from, to));
  }
  template <class T>
  requires(Able::template has<call::ragged_all_to_all, T>) void all_to_all(tensor_view<T const> from,
                                                                           std::span<std::int64_t const> sent,
                                                                           tensor_view<T> to,
                                                                           std::span<std::int64_t const> received) {
    ranks_.all_to_all(from, sent, to, received);
  }
  template <class T>
  requires(Able::template has<call::ragged_all_to_all, T>)
      [[nodiscard]] auto all_to_all_async(tensor_view<T const> from, std::span<std::int64_t const> sent,
                                          tensor_view<T> to, std::span<std::int64_t const> received) {
    return request(ranks_.all_to_all_async(from, sent, to, received));
  }
  void exchange(std::span<trireme::transfer<> const> transfers) requires(Able::template has<call::exchange>) {
    ranks_.exchange(transfers);
  }
  [[nodiscard]] auto exchange_async(std::span<trireme::transfer<> const> transfers) requires(
      Able::template has<call::exchange>) {
    return request(ranks_.exchange_async(transfers));
  }

 private:
  inner ranks_;
};

}  // namespace bare
