#pragma once

#include <thread>

#include "11_exchange.hpp"

namespace ladder {

/// Many collectives of all kinds in flight at once, finished in another order than they were started in.
template <class World>
void async_overlap(World& world) {
  using trireme::bfloat16;
  using request = decltype(world.barrier_async());
  int const p = world.size();
  int const me = world.rank();
  for (int const in_flight : {1, 5, sanitized ? 40 : 200}) {
    std::vector<message<float, World>> sums;
    std::vector<message<bfloat16, World>> gathered;
    std::vector<message<double, World>> scattered;
    auto const count_of = [](int k) { return static_cast<std::int64_t>(k % 3 == 0 ? 3 : 500 + k); };
    for (int k = 0; k < in_flight; ++k) {
      how const way{k % 2 == 1, k % 4 < 2};
      sums.emplace_back(world, count_of(k), way, values<float>(me));
      gathered.emplace_back(world, p * (k % 40), way, values<bfloat16>(me));
      scattered.emplace_back(world, p * count_of(k), way, values<double>(me));
    }
    std::vector<request> requests;
    for (std::size_t k = 0; k < sums.size(); ++k) {
      requests.push_back(world.all_reduce_async(sums[k].view()));
      requests.push_back(world.all_gather_async(gathered[k].view()));
      requests.push_back(world.reduce_scatter_async(scattered[k].view(), reduction::max{}));
    }
    if (me % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // A blocking collective in between must not be held up by those in flight, nor hold them up.
    message<std::int32_t, World> between(world, 1, {}, &me);
    world.all_reduce(between.view());
    expect(between.read()[0] == p * (p - 1) / 2, "a blocking collective between asynchronous ones");
    requests.front().wait();
    while (!requests.back().test()) std::this_thread::yield();
    expect(requests.back().test(), "a request that is done stays done");
    auto moved = std::move(requests[requests.size() / 2]);
    moved.wait();
    if (me == 0) {
      for (auto& each : requests) each.wait();
    } else {
      while (!requests.empty()) requests.pop_back();  // the destructor waits
    }
    for (int k = 0; k < in_flight; ++k) {
      auto const at = text("in flight as number ", k, " of ", in_flight, " on ", World::name);
      auto const index = static_cast<std::size_t>(k);
      expect_reduced<reduction::sum, float>(world, sums[index].read(), 0, count_of(k), text("all_reduce ", at));
      for (int rank = 0; rank < p; ++rank)
        expect_same(gathered[index].read(), rank * (k % 40), values<bfloat16>(rank) + rank * (k % 40), k % 40,
                    text("all_gather ", at));
      expect_reduced<reduction::max, double>(world, scattered[index].read(), me * count_of(k), count_of(k),
                                             text("reduce_scatter ", at));
    }
  }
}

/// One of each kind in flight.
template <class World>
void async_kinds(World& world) {
  using space = space_of_world<World>;
  int const p = world.size();
  int const me = world.rank();
  how const way{};
  auto const* const own = values<float>(me);
  std::vector<decltype(world.barrier_async())> pending;
  message<float, World> swapped(world, 3 * p, way), spread(world, 100, way, own), reduced_there(world, 50, way, own),
      whole(world, me == p - 1 ? 5 * p : 0, way), part(world, 7, way), received(world, 300, way);
  message<float, World> const out(world, 300 * p, way, own);
  pending.push_back(world.barrier_async());
  if constexpr (trireme::has_all_to_all<World, float, space>)
    pending.push_back(world.all_to_all_async(out.view().flat(0, 3 * p), swapped.view()));
  if constexpr (trireme::has_broadcast<World, float, space>)
    pending.push_back(world.broadcast_async(spread.view(), p - 1));
  if constexpr (trireme::has_exchange<World, space>)
    pending.push_back(
        world.exchange_async(transfers_of<World>{trireme::receive_from((me + p - 1) % p, received.view()),
                                                 trireme::send_to((me + 1) % p, out.view().flat(0, 300))}));
  if constexpr (trireme::has_reduce<World, float, reduction::sum, space>)
    pending.push_back(world.reduce_async(reduced_there.view(), 0));
  if constexpr (trireme::has_gather<World, float, space>)
    pending.push_back(world.gather_async(out.view().flat(0, 5), whole.view(), p - 1));
  if constexpr (trireme::has_scatter<World, float, space>)
    pending.push_back(world.scatter_async(out.view().flat(0, me == 0 ? 7 * p : 0), part.view(), 0));
  std::swap(pending.front(), pending.back());
  pending.clear();
  std::string const at = text("one of each kind in flight on ", World::name, ", rank ", me, " of ", p);
  for (int rank = 0; rank < p; ++rank) {
    if constexpr (trireme::has_all_to_all<World, float, space>)
      expect_same(swapped.read(), 3 * rank, values<float>(rank) + 3 * me, 3, at);
    if constexpr (trireme::has_gather<World, float, space>)
      if (me == p - 1) expect_same(whole.read(), 5 * rank, values<float>(rank), 5, at);
  }
  if constexpr (trireme::has_broadcast<World, float, space>)
    expect_same(spread.read(), 0, values<float>(p - 1), 100, at);
  if constexpr (trireme::has_exchange<World, space>)
    expect_same(received.read(), 0, values<float>((me + p - 1) % p), 300, at);
  if constexpr (trireme::has_reduce<World, float, reduction::sum, space>)
    if (me == 0) expect_reduced<reduction::sum, float>(world, reduced_there.read(), 0, 50, at);
  if constexpr (trireme::has_scatter<World, float, space>)
    expect_same(part.read(), 0, values<float>(0) + 7 * me, 7, at);
}

}  // namespace ladder
