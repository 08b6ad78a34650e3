#pragma once

#include <barrier>
#include <cstddef>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "cuda_and_nccl.hpp"
#include "trireme/comm/nccl.hpp"

namespace stand_in {

/// Runs `body(world)` on every rank of comm::nccl, and rethrows what the lowest rank threw. Ranks are threads.
template <class Body>
void on_ranks(int size, comm::nccl const& description, Body body) {
  std::vector<std::string> blobs(static_cast<std::size_t>(size));
  std::barrier<> together(size);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        comm::gathering const ranks{
            .rank = rank, .size = size, .local_rank = rank, .all_gather = [&](std::string const& own) {
              blobs[static_cast<std::size_t>(rank)] = own;
              together.arrive_and_wait();
              return blobs;
            }};
        comm::nccl_world world(description, ranks);
        body(world);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (auto& each : threads) each.join();
  for (auto const& each : failures)
    if (each != nullptr) std::rethrow_exception(each);
}

}  // namespace stand_in
