#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/detail/fields.hpp"
#include "trireme/nn/file_mapping.hpp"
#include "trireme/nn/gpt_units.hpp"

namespace trireme::nn {

/// GPT-2: learned positions, norms before each part, tanh GELU, biases everywhere, the head tied to the token table.
///
/// Shapes   inputs and targets (B, T) int32, T <= context. Parameters have Hugging Face's names and layouts.
/// Method   [Radford et al., "Language models are unsupervised multitask learners", 2019].
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, channels are not
///          divisible by heads, dropout is not in [0, 1), top_k is not between 1 and experts, or balance is negative.
/// @models  staged_model: one unit for the embeddings, one a block, one for norm, head and loss.
struct gpt {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  static constexpr bool made_of_layers = true;

  std::int64_t vocabulary = 256;
  std::int64_t context = 256;
  std::int64_t layers = 6;
  std::int64_t heads = 6;
  std::int64_t channels = 384;
  double dropout = 0;
  bool checkpointed = false;  ///< blocks save their input only; the backward pass runs their forward again
  std::int64_t experts = 0;   ///< mlps in each block, of which a token chooses some; 0: one mlp, for all tokens
  std::int64_t top_k = 2;     ///< how many experts a token chooses
  double balance = 0;         ///< weight of the balance loss, which makes tokens choose all experts equally often
  friend bool operator==(gpt const&, gpt const&) = default;

  template <class F>
  void each_field(F&& f) const {
    f("vocabulary", vocabulary, at_least_one);
    f("context", context, at_least_one);
    f("layers", layers, at_least_one);
    f("heads", heads, at_least_one);
    f("channels", channels, at_least_one);
    f("dropout", dropout, below_one);
    f("checkpointed", checkpointed, detail::any_value, checkpointed);
    f("experts", experts, not_negative, experts != 0);
    f("top_k", top_k, detail::any_value, experts != 0);
    f("balance", balance, not_negative, experts != 0 && balance > 0);
  }
  void validate() const {
    detail::expect_fields("nn::gpt", *this);
    detail::expect_heads("gpt", channels, heads);
    if (experts > 0 && (top_k < 1 || top_k > experts)) {
      throw config_error(text("trireme::nn::gpt: ", how_many(top_k, "expert"), " a token of ", experts,
                              "; a token chooses at least one, and at most all of them"));
    }
  }

  /// What each unit computes for a row in training, in samples of `context` tokens.
  template <class = void>
  [[nodiscard]] std::vector<double> unit_costs() const {
    return detail::count_operations(*this, context);
  }

  /// Hugging Face's files of GPT2LMHeadModel; with experts the names are this library's own.
  [[nodiscard]] file_mapping in_files() const {
    file_mapping out{"transformer.", {"*.attn.bias", "*.attn.masked_bias"}};  // constant masks, which are not read
    out.copies.push_back({"lm_head.weight", "transformer.wte.weight",
                          "nn::gpt has no head of its own; use a model whose head is its embedding"});
    auto const c = channels;
    // Weight and bias of one input after the other, as the parameter has them.
    auto const pair = [&](std::string const& name, shape const& weight, shape const& bias) {
      out.add(name + ".weight", weight);
      out.add(name + ".bias", bias);
    };
    out.add("transformer.wte.weight", {vocabulary, c});
    out.add("transformer.wpe.weight", {context, c});
    for (std::int64_t i = 0; i < layers; ++i) {
      auto const name = text("transformer.h.", i, ".");
      pair(name + "ln_1", {c}, {c});
      pair(name + "attn.c_attn", {c, 3 * c}, {3 * c});
      pair(name + "attn.c_proj", {c, c}, {c});
      pair(name + "ln_2", {c}, {c});
      if (experts > 0) {
        out.add(name + "mlp.router.weight", {c, experts});
        pair(name + "mlp.experts.c_fc", {experts, c, 4 * c}, {experts, 4 * c});
        pair(name + "mlp.experts.c_proj", {experts, 4 * c, c}, {experts, c});
      } else {
        pair(name + "mlp.c_fc", {c, 4 * c}, {4 * c});
        pair(name + "mlp.c_proj", {4 * c, c}, {c});
      }
    }
    pair("transformer.ln_f", {c}, {c});
    return out;
  }

  template <class Emit>
  void units(Emit&& put) const {
    gpt_shape const shape{vocabulary, context, layers, heads, channels, dropout};
    put(gpt_embedding{shape});
    for (std::int64_t index = 0; index < layers; ++index) {
      if (experts > 0) {
        detail::emit_block(put, gpt_expert_block{shape, index, experts, top_k, balance}, checkpointed);
      } else {
        detail::emit_block(put, gpt_block{shape, index}, checkpointed);
      }
    }
    put(gpt_head{shape});
  }
};

[[nodiscard]] inline std::string to_string(gpt const& m) { return detail::text_of_fields("nn::gpt", m); }

}  // namespace trireme::nn
