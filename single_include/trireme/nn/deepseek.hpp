// Trireme 0.1.0: trireme/nn/deepseek.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: d9adc6353763423dbf1e45e0d6e5f4fa8fb587cddc3afae2722ee28121ed3f2d
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/latent_attention.hpp"
#include "trireme/nn/multi_token.hpp"
#include "trireme/nn/sum.hpp"

// ---- trireme/nn/deepseek.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::nn {

/// DeepSeek V3: latent attention, SwiGLU, and behind the first `dense` blocks mixtures of experts in place of an mlp,
/// chosen by scores and a bias that balances them, beside experts that every token has.
///
/// Shapes   inputs and targets (B, T) int32. Parameters have Hugging Face's names but for those of experts
///          (nn/experts.hpp), which lie in one tensor each; products' weights are (inputs, outputs).
/// Ranks    every axis; `parallel::expert` deals the experts out.
///
/// With `ahead` n it also learns to predict words further on (multi-token prediction): module k = 1..n makes of the
/// rows h of the one before it (of the model itself, for k = 1) and the words k positions further on
///     h' = norm(block(eh_proj [enorm(embedding(words)), hnorm(h)])),
/// from which the model's head predicts the target k rows further on. Embedding and head are the model's own. Their
/// losses, sums over the rows that have such a target, are added to that of a step, divided by as many rows as it is
/// and times ahead_weight / n. Modules work in training only: the loss of evaluate() is the model's own, and so are
/// outputs.
///
/// Method   [DeepSeek-AI, "DeepSeek-V3", 2024], without the balance loss of samples and YaRN's angles. What a module
///          takes is behind the norm of the one before it, as programs that draft words with DeepSeek's weights have
///          it.
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, there are more
///          dense blocks than blocks, or a token chooses more experts than its groups have; with `ahead` where
///          parallel::context cuts samples, whose further words lie elsewhere.
/// @models  staged_model: one unit for the embedding, one a block, one for norm, head and loss. With modules it ends in
///          one for the norm, and then one a head and one a module in turn.
struct deepseek {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  static constexpr bool made_of_layers = true;

  std::int64_t vocabulary = 256;
  std::int64_t context = 256;  ///< used by files and unit_costs(); the model takes samples of any length
  std::int64_t layers = 6;
  std::int64_t dense = 1;  ///< number of leading blocks with a dense MLP
  std::int64_t channels = 384;
  std::int64_t heads = 6;
  std::int64_t query_rank = 0;     ///< 0: queries are one product
  std::int64_t rank = 64;          ///< of keys and values
  std::int64_t plain = 32;         ///< numbers of a query that positions do not turn,
  std::int64_t rotary_width = 16;  ///< and those that they turn
  std::int64_t values = 32;        ///< numbers of a value
  std::int64_t hidden = 1024;      ///< of an mlp
  std::int64_t experts = 8;
  std::int64_t top_k = 2;            ///< experts that a token chooses
  std::int64_t shared = 1;           ///< experts of every token: one MLP, `shared` times as wide as an expert
  std::int64_t expert_hidden = 352;  ///< of an expert
  std::int64_t groups = 1;           ///< of experts
  std::int64_t chosen_groups = 1;    ///< from which a token chooses
  double scale = 2.5;                ///< of what the chosen experts give
  double speed = 0.001;              ///< by which the biases that balance experts move in a step
  double rotary = 10000;             ///< base of the angles
  double epsilon = 1e-6;             ///< of the norms; those within attention have 1e-6
  bool checkpointed = false;         ///< blocks save their input only; the backward pass runs their forward again
  std::int64_t ahead = 0;            ///< modules that predict words further on, in training
  double ahead_weight = 0.3;         ///< of their losses together
  friend bool operator==(deepseek const&, deepseek const&) = default;

  /// down(silu(gate(x)) * up(x)).
  template <class = void>  // compiled only in programs that use a DeepSeek
  [[nodiscard]] auto mlp(std::int64_t width) const {
    linear const in{.outputs = width, .bias = false}, out{.outputs = channels, .bias = false};
    return chain(product(chain(named("gate_proj", in), silu()), named("up_proj", in)), named("down_proj", out));
  }
  /// A block with an mlp, or with experts.
  template <class Mlp>
  [[nodiscard]] auto layer(Mlp what) const {
    latent_attention const attention{heads, query_rank, rank, plain, rotary_width, values, rotary};
    return chain(
        residual(named("input_layernorm", rms_norm{epsilon}),
                 named("self_attn", chain(attention, named("o_proj", linear{.outputs = channels, .bias = false})))),
        residual(named("post_attention_layernorm", rms_norm{epsilon}), named("mlp", what)));
  }
  template <class = void>
  [[nodiscard]] auto mixture() const {
    return sum(nn::experts{.hidden = expert_hidden,
                           .count = experts,
                           .chosen = top_k,
                           .gated = true,
                           .scored = true,
                           .choice = {groups, chosen_groups, scale},
                           .speed = speed},
               named("shared_experts", mlp(shared * expert_hidden)));
  }
  /// The head and its loss: of the model itself, or of a module.
  template <class = void>
  [[nodiscard]] auto head(std::int64_t module) const {
    return chain(unembedding{vocabulary, "lm_head.weight"},
                 loss::cross_entropy_ahead{module, module == 0 ? 1 : ahead_weight / static_cast<double>(ahead)});
  }
  template <class = void>
  [[nodiscard]] auto module(std::int64_t k) const {
    embedding_ahead const words{vocabulary, channels, k, "model.embed_tokens.weight"};
    return in_training(concat(named("enorm", chain(words, rms_norm{epsilon})), named("hnorm", rms_norm{epsilon})),
                       named("eh_proj", linear{.outputs = channels, .bias = false}), layer(mixture()),
                       named("shared_head.norm", rms_norm{epsilon}));
  }
  template <class Emit>
  void units(Emit&& put) const {
    put(nn::block{"model.embed_tokens", channels, embedding{vocabulary, channels}});
    auto const block = [&](std::int64_t i, auto const& what) {
      detail::emit_block(put, nn::block{text("model.layers.", i), channels, what}, checkpointed);
    };
    for (std::int64_t i = 0; i < dense; ++i) block(i, layer(mlp<Emit>(hidden)));
    for (std::int64_t i = dense; i < layers; ++i) block(i, layer(mixture<Emit>()));
    auto const norm = named("model.norm", rms_norm{epsilon});
    if (ahead == 0) return put(nn::block{"", channels, chain(norm, head<Emit>(0))});
    put(nn::block{"", channels, norm});
    for (std::int64_t k = 1; k <= ahead; ++k) {
      put(nn::block{"", channels, auxiliary_loss(head<Emit>(k - 1))});
      block(layers + k - 1, module<Emit>(k));
    }
    put(nn::block{"", channels, head<Emit>(ahead)});
  }

  template <class F>
  void each_field(F&& f) const {
    f("vocabulary", vocabulary, at_least_one);
    f("context", context, at_least_one);
    f("layers", layers, at_least_one);
    f("dense", dense, not_negative);
    f("channels", channels, at_least_one);
    f("heads", heads, at_least_one);
    f("query_rank", query_rank, not_negative);
    f("rank", rank, at_least_one);
    f("plain", plain, at_least_one);
    f("rotary_width", rotary_width, at_least_one);
    f("values", values, at_least_one);
    f("hidden", hidden, at_least_one);
    f("experts", experts, at_least_one);
    f("top_k", top_k, at_least_one);
    f("shared", shared, at_least_one);
    f("expert_hidden", expert_hidden, at_least_one);
    f("groups", groups, at_least_one);
    f("chosen_groups", chosen_groups, at_least_one);
    f("scale", scale, positive);
    f("speed", speed, not_negative);
    f("rotary", rotary, positive);
    f("epsilon", epsilon, positive);
    f("checkpointed", checkpointed, detail::any_value, checkpointed);
    f("ahead", ahead, not_negative, ahead != 0);
    f("ahead_weight", ahead_weight, not_negative, ahead != 0);
  }
  void validate() const {
    detail::expect_fields("nn::deepseek", *this);
    if (dense > layers || rotary_width % 2 != 0) {
      throw config_error(text("trireme::nn::deepseek: ", dense, " dense blocks of ", layers, ", rotary_width ",
                              rotary_width, "; some of the blocks are dense, and rotary_width is even"));
    }
    if (experts % groups != 0 || chosen_groups > groups || top_k > chosen_groups * (experts / groups)) {
      throw config_error(text("trireme::nn::deepseek: ", top_k, " of ", how_many(experts, "expert"), ", of ",
                              chosen_groups, " of ", how_many(groups, "group"),
                              "; groups are of equal sizes and have enough experts"));
    }
  }

  /// Hugging Face's files of DeepseekV3ForCausalLM; modules that predict words ahead are blocks behind the last one
  /// there, whose copies of embedding and head are not needed, and not written.
  [[nodiscard]] file_mapping in_files() const {
    file_mapping out{"model.", {"*.rotary_emb.inv_freq"}};
    auto const c = channels;
    auto const mlp_at = [&](std::string const& name, std::int64_t width) {
      out.add_transposed(name + "gate_proj.weight", c, width);
      out.add_transposed(name + "up_proj.weight", c, width);
      out.add_transposed(name + "down_proj.weight", width, c);
    };
    out.add("model.embed_tokens.weight", {vocabulary, c});
    for (std::int64_t i = 0; i < layers + ahead; ++i) {
      auto const name = text("model.layers.", i, "."), attention = name + "self_attn.", mlp = name + "mlp.";
      auto const queries = heads * (plain + rotary_width);
      if (i >= layers) {
        out.add(name + "enorm.weight", {c});
        out.add(name + "hnorm.weight", {c});
        out.add_transposed(name + "eh_proj.weight", 2 * c, c);
        out.add(name + "shared_head.norm.weight", {c});
        auto const* const remedy = "nn::deepseek has one for all modules; leave the module out by .ahead";
        out.copies.push_back({name + "embed_tokens.weight", "model.embed_tokens.weight", remedy});
        out.copies.push_back({name + "shared_head.head.weight", "lm_head.weight", remedy});
      }
      out.add(name + "input_layernorm.weight", {c});
      if (query_rank == 0) {
        out.add_transposed(attention + "q_proj.weight", c, queries);
      } else {
        out.add_transposed(attention + "q_a_proj.weight", c, query_rank);
        out.add(attention + "q_a_layernorm.weight", {query_rank});
        out.add_transposed(attention + "q_b_proj.weight", query_rank, queries);
      }
      out.add_transposed(attention + "kv_a_proj_with_mqa.weight", c, rank + rotary_width);
      out.add(attention + "kv_a_layernorm.weight", {rank});
      out.add_transposed(attention + "kv_b_proj.weight", rank, heads * (plain + values));
      out.add_transposed(attention + "o_proj.weight", heads * values, c);
      out.add(name + "post_attention_layernorm.weight", {c});
      if (i < dense) {
        mlp_at(mlp, hidden);
        continue;
      }
      out.add_transposed(mlp + "gate.weight", c, experts, mlp + "router.weight");
      out.add(mlp + "gate.e_score_correction_bias", {experts}, mlp + "router.bias");
      for (auto const* const each : {"gate_proj.weight", "up_proj.weight"})
        out.add_of_each(mlp + "experts.", experts, each, c, expert_hidden);
      out.add_of_each(mlp + "experts.", experts, "down_proj.weight", expert_hidden, c);
      mlp_at(mlp + "shared_experts.", shared * expert_hidden);
    }
    out.add("model.norm.weight", {c});
    out.add("lm_head.weight", {vocabulary, c});
    // A module that predicts words ahead, which this model does not have; it would have a layer more.
    auto const further = text("model.layers.", layers + ahead, ".");
    out.ignored_with.emplace_back(further + "*", further + "eh_proj.weight");
    return out;
  }

  /// What each unit computes for a row in training, in samples of `context` tokens.
  template <class = void>
  [[nodiscard]] std::vector<double> unit_costs() const {
    return detail::count_operations(*this, context);
  }
};

[[nodiscard]] inline std::string to_string(deepseek const& m) { return detail::text_of_fields("nn::deepseek", m); }

}  // namespace trireme::nn
