// Trireme 0.1.0: trireme/interop/torch_whole_safetensors.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b1d6e348205dc979aab20e8e3e062ff54be36b2a7babcec870aaade4144c1c79
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/interop/torch_safetensors.hpp"
#include "trireme/interop/torch_tensor_parallel.hpp"

// ---- trireme/interop/torch_whole_safetensors.hpp
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

// Files of modules whose layers are split over ranks. They contain whole tensors, as Python's files do.

namespace trireme::interop {

namespace detail {

/// The layout of files with whole tensors: which of a module's tensors are split over ranks, and this rank's part.
class split_in_file {
 public:
  split_in_file(torch::nn::Module const& module, int rank, int ranks) : rank_(rank), ranks_(ranks) {
    for (auto const& each : module.modules()) {
      auto const* const layer = dynamic_cast<split_layer const*>(each.get());
      if (layer == nullptr) continue;
      for (auto& tensor : layer->split_tensors()) {
        if (tensor.part.defined()) all_.push_back(std::move(tensor));
      }
    }
  }
  /// Null if the tensor is not split.
  [[nodiscard]] split_tensor const* find(torch::Tensor const& tensor) const {
    auto const at = std::find_if(all_.begin(), all_.end(), [&](auto const& each) { return each.part.is_same(tensor); });
    return at == all_.end() ? nullptr : &*at;
  }
  [[nodiscard]] formats::safetensors::entry stored(named_tensor const& of) const {
    auto entry = stored_as(of);
    auto const* const split = find(of.tensor);
    if (split == nullptr) return entry;
    shape whole;
    for (int axis = 0; axis < entry.extents.rank(); ++axis)
      whole.push_back(entry.extents[axis] * (axis == split->dimension ? ranks_ : 1));
    entry.extents = whole;
    return entry;
  }
  [[nodiscard]] torch::Tensor shard_of(torch::Tensor const& tensor, torch::Tensor const& in_file) const {
    auto const* const split = find(tensor);
    return split == nullptr ? in_file : in_file.chunk(ranks_, split->dimension)[static_cast<std::size_t>(rank_)];
  }
  /// Collective. The whole tensor.
  template <class Comm>
  [[nodiscard]] torch::Tensor whole_of(torch::Tensor const& tensor, Comm& ranks) const {
    auto const* const split = find(tensor);
    if (split == nullptr) return tensor;
    auto const parts = torch::stack(std::vector<torch::Tensor>(static_cast<std::size_t>(ranks_), tensor.detach()));
    ranks.all_gather(bytes_of(parts));
    return torch::cat(parts.unbind(0), split->dimension);
  }

 private:
  std::int64_t rank_, ranks_;
  std::vector<split_tensor> all_;
};

}  // namespace detail

/// Collective. Writes a module with layers that are split over `ranks` (column_linear, row_linear,
/// vocabulary_embedding) into one file of whole tensors, under the names that Python uses for Linear and Embedding.
/// Rank 0 writes the file.
///
/// Bytes    rank 0 holds the whole module, the others one whole tensor.
/// Ranks    all ranks of the layers' rank_group call it. With data parallelism as well, only one such group does.
/// Errors   as save_safetensors() of one rank; on the other ranks io_error if rank 0 could not write.
///
/// @param ranks  the communicator of which the layers' rank_group was made.
/// @example interop::save_safetensors(net, "net.safetensors", tensor_ranks);
template <class Module, class Comm>
requires communicator<Comm>
void save_safetensors(Module const& module, std::string const& path, Comm& ranks) {
  torch::NoGradGuard const guard;
  auto const held = detail::module_of(module);
  detail::split_in_file const in_file(*held, ranks.rank(), ranks.size());
  auto all = detail::state_of(*held);
  for (auto const& each : all) static_cast<void>(in_file.stored(each));  // throws what it refuses before any collective
  std::vector<detail::named_tensor> whole;
  for (auto const& [name, tensor] : all) {
    auto joined = in_file.whole_of(tensor, ranks);
    if (ranks.rank() == 0) whole.push_back({name, std::move(joined)});
  }
  std::uint8_t written = 1;
  std::exception_ptr failure;
  if (ranks.rank() == 0) {
    try {
      detail::write_tensors(std::move(whole), path);
    } catch (...) {
      failure = std::current_exception();
      written = 0;
    }
  }
  ranks.broadcast(tensor_view<std::uint8_t>(&written, shape{1}), 0);
  if (failure) std::rethrow_exception(failure);
  if (written == 0) throw io_error(path, "the first rank could not write it");
}

/// Reads such a file, or one of Python's, into a module whose layers are split over any number of ranks: each rank
/// takes its part.
///
/// Bytes    one whole tensor at a time.
/// Ranks    not collective: each rank reads the file.
/// Errors   as load_safetensors() of one rank; shapes are those of the whole tensors.
template <class Module, class Comm>
requires communicator<Comm>
void load_safetensors(Module const& module, std::string const& path, Comm const& ranks) {
  auto const held = detail::module_of(module);
  detail::read_tensors(detail::state_of(*held), path, detail::split_in_file(*held, ranks.rank(), ranks.size()));
}

}  // namespace trireme::interop
