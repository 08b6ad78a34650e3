#pragma once

#include <thread>

#include "support.hpp"

namespace ladder {

/// Many collectives of all kinds in flight at once, finished in another order than they were started in.
template <class World>
void async_overlap(World& world) {
  using request = typename World::request;
  int const p = world.size();
  for (int const in_flight : {1, 5, 200}) {
    std::vector<std::vector<float>> sums;
    std::vector<std::vector<trireme::bfloat16>> gathered;
    std::vector<std::vector<double>> scattered;
    for (int k = 0; k < in_flight; ++k) {
      auto const count = static_cast<std::int64_t>(k % 3 == 0 ? 3 : 2000 + k);
      sums.push_back(values<float>(world.rank(), count));
      gathered.push_back(values<trireme::bfloat16>(world.rank(), p * (k % 40)));
      scattered.push_back(values<double>(world.rank(), p * count));
    }
    std::vector<request> requests;
    for (std::size_t k = 0; k < sums.size(); ++k) {
      requests.push_back(world.all_reduce_async(tensor_view{sums[k]}));
      requests.push_back(world.all_gather_async(tensor_view{gathered[k]}));
      requests.push_back(world.reduce_scatter_async(tensor_view{scattered[k]}, trireme::reduction::max{}));
    }
    if (world.rank() % 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // A blocking collective in between must not be held up by those in flight, nor hold them up.
    std::vector<std::int32_t> between{world.rank()};
    world.all_reduce(tensor_view{between});
    expect(between[0] == p * (p - 1) / 2, "a blocking collective between asynchronous ones");
    requests.front().wait();
    while (!requests.back().test()) std::this_thread::yield();
    expect(requests.back().test(), "a request that is done stays done");
    auto moved = std::move(requests[requests.size() / 2]);
    moved.wait();
    if (world.rank() == 0) {
      for (auto& each : requests) each.wait();
    } else {
      while (!requests.empty()) requests.pop_back();  // the destructor waits
    }
    for (std::size_t k = 0; k < sums.size(); ++k) {
      for (std::size_t i = 0; i < sums[k].size(); ++i)
        expect(same_bits(sums[k][i], reduced<float>(p, static_cast<std::int64_t>(i), trireme::reduction::sum{})),
               "asynchronous all_reduce ", k, ", element ", i);
      auto const each = static_cast<std::int64_t>(gathered[k].size()) / p;
      for (std::int64_t i = 0; i < each * p; ++i)
        expect(same_bits(gathered[k][static_cast<std::size_t>(i)],
                         value<trireme::bfloat16>(static_cast<int>(i / each), i)),
               "asynchronous all_gather ", k, ", element ", i);
      auto const part = static_cast<std::int64_t>(scattered[k].size()) / p;
      for (std::int64_t i = part * world.rank(); i < part * (world.rank() + 1); ++i)
        expect(same_bits(scattered[k][static_cast<std::size_t>(i)], reduced<double>(p, i, trireme::reduction::max{})),
               "asynchronous reduce_scatter ", k, ", element ", i);
    }
  }
  {
    auto from = values<float>(world.rank(), p * 3);
    std::vector<float> to(from.size());
    auto shared = values<float>(world.rank(), 100);
    auto swap = world.all_to_all_async(tensor_view<float const>(from), tensor_view{to});
    auto spread = world.broadcast_async(tensor_view{shared}, p - 1);
    spread.wait();
    swap.wait();
    for (int i = 0; i < 3 * p; ++i)
      expect(same_bits(to[static_cast<std::size_t>(i)], value<float>(i / 3, i % 3 + 3 * world.rank())),
             "asynchronous all_to_all, element ", i);
    for (int i = 0; i < 100; ++i)
      expect(same_bits(shared[static_cast<std::size_t>(i)], value<float>(p - 1, i)), "asynchronous broadcast, element ",
             i);
  }
}

}  // namespace ladder
