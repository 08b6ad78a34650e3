// Trireme 0.1.0: trireme/interop/torch.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ea721cf0975dae7ccbd3c110786cc99d7c2f0231498f5d35fe97ed1381850e0a
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/interop/torch_autocast.hpp"
#include "trireme/interop/torch_collectives.hpp"
#include "trireme/interop/torch_data_parallel.hpp"
#include "trireme/interop/torch_model.hpp"
#include "trireme/interop/torch_safetensors.hpp"
#include "trireme/interop/torch_sampler.hpp"
#include "trireme/interop/torch_sequential.hpp"
#include "trireme/interop/torch_sync_batch_norm.hpp"
#include "trireme/interop/torch_tensor_parallel.hpp"
#include "trireme/interop/torch_whole_safetensors.hpp"

// ---- trireme/interop/torch.hpp
// LibTorch: a torch::nn::Module in a loop of your own (data_parallel), or in a trainer (torch_model), and the parts
// that such a loop also needs: batches (distributed_sampler), files (save_safetensors), statistics over ranks
// (sync_batch_norm), collectives on tensors (all_reduce). Needs the target trireme::torch, with LibTorch 1.13 (Debian's
// libtorch-dev) or later. See docs/torch.md.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme::interop {

namespace detail {

/// Collective. The ranks that run as threads of this process, ascending.
template <class Comm>
[[nodiscard]] std::vector<int> ranks_of_this_process(Comm& world) {
  char name[256] = {};
  static_cast<void>(::gethostname(name, sizeof name - 1));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  auto const mine = hash_name(text(name, "/", ::getpid()));
  all[static_cast<std::size_t>(world.rank())] = mine;
  world.all_gather(tensor_view<std::uint64_t>(all));
  std::vector<int> here;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[static_cast<std::size_t>(rank)] == mine) here.push_back(rank);
  }
  return here;
}

}  // namespace detail

/// Collective. Calls torch::manual_seed with a different seed in each process, so that dropout and sampling differ
/// between ranks.
///
/// Threads  torch has one default generator for each process. Ranks that are threads of one process share it, and draw
///          from it in an order that differs from run to run. For repeatable numbers give each a generator of its own.
template <class Comm>
void manual_seed(Comm& world, std::uint64_t seed) {
  auto const here = detail::ranks_of_this_process(world);
  if (here.front() == world.rank()) torch::manual_seed(seed + static_cast<std::uint64_t>(world.rank()));
  world.barrier();
}

/// Collective. Divides the usable cores equally among ranks that are threads of one process, for the threads that torch
/// uses within an operation; without this call each rank uses all cores. Ranks that are processes keep the number that
/// their launcher has set.
///
/// @returns the number of threads that this rank's operations use now.
template <class Comm>
int divide_threads(Comm& world) {
  auto const ranks = static_cast<int>(detail::ranks_of_this_process(world).size());
  if (ranks > 1) {
    torch::set_num_threads(std::max(1, usable_cores() / ranks));
  }
  return torch::get_num_threads();
}

}  // namespace trireme::interop
