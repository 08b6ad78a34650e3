#pragma once

#include <utility>

#include "support.hpp"
#include "trireme/comm/nccl.hpp"

namespace gpu {

/// The world of comm::nccl{.order = comm::sum_order::ranks}, whose sums the ladder expects bit for bit.
struct in_order : trireme::comm::nccl_world {
  static constexpr bool ordered = true;
  explicit in_order(trireme::comm::nccl_world&& base) noexcept : nccl_world(std::move(base)) {}
  in_order split(int color, int key) { return in_order(nccl_world::split(color, key)); }
  in_order duplicate() { return in_order(nccl_world::duplicate()); }
};

/// Votes and counts, in host memory.
inline void votes(trireme::comm::nccl_world& world) {
  int const p = world.size();
  for (std::int64_t const count : {1, 3, 1000}) {
    std::vector<std::int64_t> sum(static_cast<std::size_t>(count), world.rank() + 1);
    world.all_reduce(trireme::tensor_view{sum});
    for (auto const each : sum) ladder::expect(each == p * (p + 1) / 2, "a sum of votes is ", each);
  }
  std::vector<std::uint64_t> all(static_cast<std::size_t>(p));
  all[static_cast<std::size_t>(world.rank())] = static_cast<std::uint64_t>(world.rank()) + 7;
  world.all_gather(trireme::tensor_view{all});
  for (int rank = 0; rank < p; ++rank)
    ladder::expect(all[static_cast<std::size_t>(rank)] == static_cast<std::uint64_t>(rank) + 7, "gathered votes");
  std::vector<double> told{world.rank() == p - 1 ? 2.5 : 0.0};
  auto pending = world.broadcast_async(trireme::tensor_view{told}, p - 1);
  pending.wait();
  ladder::expect(told[0] == 2.5, "a broadcast in host memory");
  std::vector<float> one{static_cast<float>(world.rank())};
  std::vector<float> whole(static_cast<std::size_t>(p), -1);
  world.gather(trireme::tensor_view<float const>(one), trireme::tensor_view{whole}, 0);
  if (world.rank() == 0) ladder::expect(whole.back() == static_cast<float>(p - 1), "a gather in host memory");
  std::vector<std::int32_t> next{-1};
  std::vector<std::int32_t> mine{world.rank()};
  world.exchange({trireme::send_to((world.rank() + 1) % p, trireme::tensor_view{mine}),
                  trireme::receive_from((world.rank() + p - 1) % p, trireme::tensor_view{next})});
  ladder::expect(next[0] == (world.rank() + p - 1) % p, "an exchange in host memory");
}

}  // namespace gpu
