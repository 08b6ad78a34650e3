// Trireme 0.1.0: trireme/data/one_hot.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 3b5212b2f91813c9494e7cc486f4826265c5fcf3839d34a32690386ddc4c1606
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/map.hpp"

// ---- trireme/data/one_hot.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace trireme::data {

/// A dataset whose labels become a probability for each class: 1 for the label, 0 for the others. data::mixup and
/// data::cutmix then mix them, and nn::soft_labels() trains a model on them.
///
///     data::augment(data::one_hot(pictures, 10), data::mixup{})
///
/// Shapes   inputs as the dataset's, float32; targets (classes) float32.
/// Errors   config_error if the dataset's inputs are not float32 or its targets are not one int32, and, when a sample
///          is read, for a label that is not a class.
template <dataset Source>
[[nodiscard]] auto one_hot(Source source, std::int64_t classes) {
  if (classes < 1 || shape(source.target_shape()).size() != 1) {
    throw config_error(text("trireme::data::one_hot: targets of shape ", to_string(shape(source.target_shape())),
                            " and ", classes, " classes, but a sample has one label, and there is at least one class"));
  }
  auto const change = [classes](std::int64_t id, std::span<float const> from, std::span<std::int32_t const> label,
                                std::span<float> inputs, std::span<float> targets) {
    if (label[0] < 0 || label[0] >= classes) {
      throw config_error(text("trireme::data::one_hot: sample ", id, " has the label ", label[0], ", but there are ",
                              classes, " classes"));
    }
    std::copy(from.begin(), from.end(), inputs.begin());
    std::fill(targets.begin(), targets.end(), 0.0F);
    targets[static_cast<std::size_t>(label[0])] = 1;
  };
  return data::map(std::move(source), change, {.inputs = {}, .targets = {classes}});
}

}  // namespace trireme::data
