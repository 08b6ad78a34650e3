#pragma once

#include <cstdint>
#include <string>

#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/gpt_head.hpp"
#include "trireme/nn/gpt_units.hpp"

namespace trireme::nn {

/// GPT-2: learned positions, norms before each part, tanh GELU, biases everywhere, the head tied to the token table.
///
/// Shapes   inputs and targets (B, T) int32, T <= context. Parameters have Hugging Face's names and layouts.
/// Method   [Radford et al., "Language models are unsupervised multitask learners", 2019].
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, channels are not
///          divisible by heads, or dropout is not in [0, 1).
/// @models  staged_model: one unit for the embeddings, one a block, one for norm, head and loss.
struct gpt {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;

  std::int64_t vocabulary = 256;
  std::int64_t context = 256;
  std::int64_t layers = 6;
  std::int64_t heads = 6;
  std::int64_t channels = 384;
  double dropout = 0;
  bool checkpointed = false;  ///< blocks save their input only, and are run once more in the backward pass
  friend bool operator==(gpt const&, gpt const&) = default;

  void validate() const {
    auto const positive = [](char const* what, std::int64_t number) {
      if (number < 1) throw config_error(text("trireme::nn::gpt: ", what, " is ", number, "; it must be at least 1"));
    };
    positive("vocabulary", vocabulary);
    positive("context", context);
    positive("layers", layers);
    positive("heads", heads);
    positive("channels", channels);
    if (channels % heads != 0) {
      throw config_error(text("trireme::nn::gpt: ", channels, " channels are not divisible by ", heads, " heads"));
    }
    if (!(dropout >= 0 && dropout < 1)) {
      throw config_error(text("trireme::nn::gpt: dropout ", dropout, " is not in [0, 1)"));
    }
  }

  template <class Emit>
  void units(Emit&& emit) const {
    gpt_shape const shape{vocabulary, context, layers, heads, channels, dropout};
    emit(gpt_embedding{shape});
    for (std::int64_t index = 0; index < layers; ++index) {
      if (checkpointed) {
        emit(nn::checkpointed<gpt_block>{{shape, index}});  // nvcc does not deduce it
      } else {
        emit(gpt_block{shape, index});
      }
    }
    emit(gpt_head{shape});
  }
};

[[nodiscard]] inline std::string to_string(gpt const& m) {
  return text("nn::gpt{.vocabulary = ", m.vocabulary, ", .context = ", m.context, ", .layers = ", m.layers,
              ", .heads = ", m.heads, ", .channels = ", m.channels, ", .dropout = ", m.dropout,
              m.checkpointed ? ", .checkpointed = true}" : "}");
}

}  // namespace trireme::nn
