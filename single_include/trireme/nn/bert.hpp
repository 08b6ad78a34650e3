// Trireme 0.1.0: trireme/nn/bert.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: a7ad3c3da9d871397a8b323d2c253176e73ab7b5c9e3389621a924c205965024
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/nn/bert.hpp
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::nn {

/// BERT: learned positions and segments, attention in both directions, norms after each part, exact GELU. It predicts
/// masked words, or with `classes` classifies samples from the output of their first word.
///
/// Samples may have different lengths: `padding` fills them up at either end, and no position sees it. Each `separator`
/// word ends a segment, so the segments of a sample follow from its words.
/// Shapes   inputs (B, T) int32, T <= context; targets (B, T) int32, below 0 where no word is asked for, or with
///          `classes` (B) int32. Parameters have Hugging Face's names, but queries, keys and values are one product,
///          `attention.self.qkv`, and products' weights are (inputs, outputs).
/// Ranks    parallel::context is refused: segments and padding are found in whole samples.
/// Method   [Devlin et al., "BERT", 2019]. The pooler and the classifier compute all rows, and the loss reads each
///          sample's first. That is about 1/12 of a block more work, and a tensor group needs no new distribution of
///          rows.
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, channels are not
///          divisible by heads, or dropout is not in [0, 1).
/// @models  staged_model: one unit for the embeddings, one a block, one for the head and the loss.
struct bert {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;

  std::int64_t vocabulary = 30522;
  std::int64_t context = 512;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t channels = 768;
  std::int64_t hidden = 0;   ///< of the mlp; 0: 4 times the channels
  std::int64_t classes = 0;  ///< 0: masked words
  std::int64_t segments = 2;
  std::int32_t padding = 0;
  std::int32_t separator = 102;
  double dropout = 0;
  double epsilon = 1e-12;     ///< of the norms
  bool checkpointed = false;  ///< blocks save their input only; the backward pass runs their forward again
  friend bool operator==(bert const&, bert const&) = default;

  [[nodiscard]] std::int64_t inner() const noexcept { return hidden > 0 ? hidden : 4 * channels; }

  template <class = void>  // compiled only in programs that use a BERT
  [[nodiscard]] auto embeddings() const {
    return chain(named("bert.embeddings", embedding{.words = vocabulary,
                                                    .outputs = channels,
                                                    .positions = context,
                                                    .table = "word_embeddings.weight",
                                                    .position_table = "position_embeddings.weight",
                                                    .segments = segments,
                                                    .separator = separator,
                                                    .segment_table = "token_type_embeddings.weight"}),
                 named("bert.embeddings.LayerNorm", layer_norm{epsilon}), nn::dropout{dropout});
  }
  /// One block.
  template <class = void>
  [[nodiscard]] auto layer() const {
    attend const attention{.heads = heads, .dropout = dropout, .causal = false, .tokens = {.padding = padding}};
    return chain(residual(named("attention.self.qkv", linear{.outputs = 3 * channels}), attention,
                          named("attention.output.dense", linear{.outputs = channels}), nn::dropout{dropout}),
                 named("attention.output.LayerNorm", layer_norm{epsilon}),
                 residual(named("intermediate.dense", linear{.outputs = inner()}), gelu_erf(),
                          named("output.dense", linear{.outputs = channels}), nn::dropout{dropout}),
                 named("output.LayerNorm", layer_norm{epsilon}));
  }
  template <class = void>
  [[nodiscard]] auto masked_words() const {
    return named("cls.predictions",
                 chain(named("transform.dense", linear{.outputs = channels}), gelu_erf(),
                       named("transform.LayerNorm", layer_norm{epsilon}),
                       unembedding{.words = vocabulary, .tied = "bert.embeddings.word_embeddings.weight", .bias = true},
                       loss::cross_entropy{}));
  }
  template <class = void>
  [[nodiscard]] auto classifier() const {
    return chain(named("bert.pooler.dense", linear{.outputs = channels}), tanh(), nn::dropout{dropout},
                 named("classifier", linear{.outputs = classes}), loss::cross_entropy{.of_first = true});
  }
  template <class Emit>
  void units(Emit&& put) const {
    put(nn::block{"", channels, embeddings<Emit>()});
    for (std::int64_t i = 0; i < layers; ++i) {
      nn::block const one{text("bert.encoder.layer.", i), channels, layer<Emit>()};
      detail::emit_block(put, one, checkpointed);
    }
    if (classes > 0) {
      put(nn::block{"", channels, classifier<Emit>()});
    } else {
      put(nn::block{"", channels, masked_words<Emit>()});
    }
  }

  template <class F>
  void each_field(F&& f) const {
    f("vocabulary", vocabulary, at_least_one);
    f("context", context, at_least_one);
    f("layers", layers, at_least_one);
    f("heads", heads, at_least_one);
    f("channels", channels, at_least_one);
    f("hidden", inner(), at_least_one);
    f("classes", classes, not_negative);
    f("segments", segments, at_least_one);
    f("padding", padding, detail::any_value);
    f("separator", separator, detail::any_value);
    f("dropout", dropout, below_one);
    f("epsilon", epsilon, positive);
    f("checkpointed", checkpointed, detail::any_value, checkpointed);
  }
  void validate() const {
    detail::expect_fields("nn::bert", *this);
    detail::expect_heads("bert", channels, heads);
    expect_number("nn::bert", ".hidden", hidden, not_negative);
  }

  /// Hugging Face's files of BertForMaskedLM; with classes BertForSequenceClassification. A classifier is read from
  /// files with other heads too, if it is said that its own starts anew (train/pretrained.hpp).
  [[nodiscard]] file_mapping in_files() const {
    file_mapping out{"bert.", {"*embeddings.position_ids", "cls.seq_relationship.*"}};
    out.older = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}};
    auto const c = channels;
    out.add("bert.embeddings.word_embeddings.weight", {vocabulary, c});
    out.add("bert.embeddings.position_embeddings.weight", {context, c});
    out.add("bert.embeddings.token_type_embeddings.weight", {segments, c});
    out.add_norm("bert.embeddings.LayerNorm", c);
    for (std::int64_t i = 0; i < layers; ++i) {
      auto const name = text("bert.encoder.layer.", i, "."), all = name + "attention.self.";
      out.add_attention(all, all + "qkv", c);
      out.add_product(name + "attention.output.dense", c, c);
      out.add_norm(name + "attention.output.LayerNorm", c);
      out.add_product(name + "intermediate.dense", c, inner());
      out.add_product(name + "output.dense", inner(), c);
      out.add_norm(name + "output.LayerNorm", c);
    }
    if (classes > 0) {
      out.ignored.emplace_back("cls.predictions.*");
      out.add_product("bert.pooler.dense", c, c);
      out.add_product("classifier", c, classes);
    } else {
      out.ignored.insert(out.ignored.end(), {"*pooler.dense.*"});
      auto const* const remedy = "nn::bert has no head of its own; use a model whose head is its embedding";
      out.copies.push_back({"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", remedy});
      out.copies.push_back({"cls.predictions.decoder.bias", "cls.predictions.bias", remedy});
      out.add_product("cls.predictions.transform.dense", c, c);
      out.add_norm("cls.predictions.transform.LayerNorm", c);
      out.add("cls.predictions.bias", {vocabulary});
    }
    return out;
  }

  /// What each unit computes for a row in training, in samples of `context` tokens.
  template <class = void>
  [[nodiscard]] std::vector<double> unit_costs() const {
    return detail::count_operations(*this, context);
  }
};

[[nodiscard]] inline std::string to_string(bert const& m) { return detail::text_of_fields("nn::bert", m); }

}  // namespace trireme::nn
