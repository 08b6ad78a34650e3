// Trireme 0.1.0: trireme/train/onnx.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: e95faac6c64d9b6e785362276ad74266fb25014a3269e599e8bc233c4409439a
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/onnx.hpp"

// ---- trireme/train/onnx.hpp
#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#ifndef TRIREME_TRAIN_DETAIL_MERGED_TENSORS_INCLUDED
#define TRIREME_TRAIN_DETAIL_MERGED_TENSORS_INCLUDED

// ---- trireme/train/detail/merged_tensors.hpp
namespace trireme::detail {

/// Collective. Calls f(name, values) on the first rank with each tensor of a trainer's model, whole, under the names of
/// its files; low-rank changes are merged into their weights.
template <class Trainer, class F>
void for_each_merged_tensor(Trainer& trainer, F const& f) {
  auto const& model = trainer.described_model();
  bool const writes = trainer.world().rank() == 0;
  auto put = [&] {
    if constexpr (requires { model.merged(f); }) {
      return model.merged(f);
    } else {
      return f;
    }
  }();
  for_each_whole_tensor(trainer.exchange(), [&](std::string const& name, shape const&, std::span<float const> values) {
    if (writes) put(name, values);
  });
}

}  // namespace trireme::detail

#endif  // TRIREME_TRAIN_DETAIL_MERGED_TENSORS_INCLUDED

// ---- trireme/train/onnx.hpp (goes on)
namespace trireme {

/// Collective; the first rank writes. Writes the trainer's model as ONNX, as nn::write_onnx() does of a model in files:
/// models of images, which have no files of Hugging Face, among others.
///
/// A model of your own needs a function in its namespace, `formats::onnx::graph in_onnx(MODEL const&,
/// nn::onnx_options const&)`; nn/onnx_layers.hpp has what it is made of.
///
/// Bytes    the first rank holds the whole model, and every rank one tensor.
/// Errors   io_error and config_error, on every rank; then there is no file.
/// @returns on the first rank, the bytes of the files.
template <class Trainer>
std::uint64_t save_onnx(Trainer& trainer, std::string const& path, nn::onnx_options const& options = {},
                        formats::file_system& files = formats::real_files()) {
  auto const& model = trainer.described_model();
  formats::onnx::graph graph;
  if constexpr (requires { model.changes; }) {  // low-rank ones, which are merged into the weights
    graph = in_onnx(model.model, options);
  } else {
    graph = in_onnx(model, options);
  }
  bool const writes = trainer.world().rank() == 0;
  std::map<std::string, std::vector<float>, std::less<>> weights;
  for (auto const& each : graph.weights) weights[each.source.empty() ? each.name : each.source];
  auto const add = [&](std::string const& name, std::span<float const> values) {
    if (auto const at = weights.find(name); at != weights.end()) at->second.assign(values.begin(), values.end());
  };
  detail::for_each_merged_tensor(trainer, add);
  std::uint64_t bytes = 0;
  detail::together(trainer.world(), [&] {
    if (!writes) return;
    auto const numbers = [&](formats::onnx::weight const& which, std::int64_t first, std::span<float> to) {
      auto const& all = weights.at(which.name);
      if (static_cast<std::int64_t>(all.size()) != which.extents.size()) {
        throw config_error(text("trireme::save_onnx: the graph has the weight \"", which.name, "\" with ",
                                which.extents.size(), " numbers, and the model has ", all.size(),
                                "; give both the same names and shapes"));
      }
      std::copy_n(all.begin() + first, to.size(), to.begin());
    };
    bytes = nn::write_onnx(graph, numbers, path, options, files);
  });
  return bytes;
}

}  // namespace trireme
