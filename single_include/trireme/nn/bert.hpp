// Trireme 0.1.0: trireme/nn/bert.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 76f45b4056646f14e86f6aa9354f2d6650e6edd4a97496f9cf4001b086b78877
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/nn/bert.hpp
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::nn {

/// BERT: learned positions and segments, attention in both directions, norms after each part, GELU without
/// approximation. It fills in masked words, or with `classes` sorts samples by what becomes of their first word.
///
/// Samples may be of different lengths: `padding` fills them up at either end, and no position sees it. Which words are
/// of the first segment and which of the second (and so on) follows from the `separator` words, each of which ends one.
/// Shapes   inputs (B, T) int32, T <= context; targets (B, T) int32, below 0 where no word is asked for, or with
///          `classes` (B) int32. Parameters have Hugging Face's names, but queries, keys and values are one product,
///          `attention.self.qkv`, and products' weights are (inputs, outputs).
/// Ranks    positions cannot be cut (parallel::context): segments and padding are found in whole samples.
/// Method   [Devlin et al., "BERT", 2019]. The pooler and the classifier compute all rows, of which the loss takes each
///          sample's first: about 1/12 of a block more, and no rows to deal out anew over a tensor group.
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

  template <class = void>  // so that programs without a BERT do not compile it
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
    put(nn::block{"", channels, 0, embeddings<Emit>()});
    for (std::int64_t i = 0; i < layers; ++i) {
      nn::block const one{text("bert.encoder.layer.", i), channels, static_cast<std::uint32_t>(1 + 3 * i),
                          layer<Emit>()};
      detail::emit_block(put, one, checkpointed);
    }
    auto const site = static_cast<std::uint32_t>(1 + 3 * layers);
    if (classes > 0) {
      put(nn::block{"", channels, site, classifier<Emit>()});
    } else {
      put(nn::block{"", channels, site, masked_words<Emit>()});
    }
  }

  void validate() const {
    detail::expect_positive("bert", {{"vocabulary", vocabulary},
                                     {"context", context},
                                     {"layers", layers},
                                     {"heads", heads},
                                     {"channels", channels},
                                     {"segments", segments}});
    detail::expect_heads("bert", channels, heads);
    if (hidden < 0 || classes < 0) {
      throw config_error(
          text("trireme::nn::bert: ", hidden, " hidden and ", how_many(classes, "class"), "; neither may be below 0"));
    }
    detail::expect_dropout("bert", dropout);
    expect_number("nn::bert", ".epsilon", epsilon, positive);
  }

  /// Hugging Face's files of BertForMaskedLM; with classes BertForSequenceClassification. A classifier is read from
  /// files with other heads too, if it is said that its own starts anew (train/pretrained.hpp).
  [[nodiscard]] file_layout in_files() const {
    file_layout out{"bert.", {"*embeddings.position_ids", "cls.seq_relationship.*"}};
    out.older = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}};
    auto const c = channels;
    auto const norm = [&](std::string const& name) {
      out.add(name + ".weight", {c});
      out.add(name + ".bias", {c});
    };
    auto const product = [&](std::string const& name, std::int64_t inputs, std::int64_t outputs) {
      out.add_transposed(name + ".weight", inputs, outputs);
      out.add(name + ".bias", {outputs});
    };
    out.add("bert.embeddings.word_embeddings.weight", {vocabulary, c});
    out.add("bert.embeddings.position_embeddings.weight", {context, c});
    out.add("bert.embeddings.token_type_embeddings.weight", {segments, c});
    norm("bert.embeddings.LayerNorm");
    for (std::int64_t i = 0; i < layers; ++i) {
      auto const name = text("bert.encoder.layer.", i, "."), qkv = name + "attention.self.qkv";
      std::int64_t column = 0;
      for (auto const* which : {"query", "key", "value"}) {
        auto const theirs = text(name, "attention.self.", which);
        out.tensors.push_back({theirs + ".weight", {c, c}, qkv + ".weight", c, 3 * c, {{0, column, c}}});
        out.tensors.push_back({theirs + ".bias", {c}, qkv + ".bias", 1, 3 * c, {{0, column, c}}});
        column += c;
      }
      product(name + "attention.output.dense", c, c);
      norm(name + "attention.output.LayerNorm");
      product(name + "intermediate.dense", c, inner());
      product(name + "output.dense", inner(), c);
      norm(name + "output.LayerNorm");
    }
    if (classes > 0) {
      out.ignored.emplace_back("cls.predictions.*");
      product("bert.pooler.dense", c, c);
      product("classifier", c, classes);
    } else {
      out.ignored.insert(out.ignored.end(), {"*pooler.dense.*"});
      auto const* const remedy = "nn::bert has no head of its own; use a model whose head is its embedding";
      out.copies.push_back({"cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight", remedy});
      out.copies.push_back({"cls.predictions.decoder.bias", "cls.predictions.bias", remedy});
      product("cls.predictions.transform.dense", c, c);
      norm("cls.predictions.transform.LayerNorm");
      out.add("cls.predictions.bias", {vocabulary});
    }
    return out;
  }

  /// What each unit computes in training, forward and backward: multiplications and additions a token, for samples of
  /// `context` tokens. An embedding computes nothing.
  [[nodiscard]] std::vector<double> unit_costs() const {
    auto const c = static_cast<double>(channels);
    double const products = 8 * c * c + 4 * c * static_cast<double>(inner());
    double const attended = 2 * c * static_cast<double>(context);  // each of two products
    double const again = checkpointed ? products + 2 * attended : 0;
    std::vector<double> costs(static_cast<std::size_t>(layers + 2), 3 * products + 7 * attended + again);
    costs.front() = 0;
    costs.back() = 6 * c * (c + static_cast<double>(classes > 0 ? classes : vocabulary));
    return costs;
  }
};

[[nodiscard]] inline std::string to_string(bert const& m) {
  return text("nn::bert{.vocabulary = ", m.vocabulary, ", .context = ", m.context, ", .layers = ", m.layers,
              ", .heads = ", m.heads, ", .channels = ", m.channels, ", .hidden = ", m.inner(),
              ", .classes = ", m.classes, ", .segments = ", m.segments, ", .padding = ", m.padding,
              ", .separator = ", m.separator, ", .dropout = ", m.dropout, ", .epsilon = ", m.epsilon,
              m.checkpointed ? ", .checkpointed = true" : "", "}");
}

}  // namespace trireme::nn
