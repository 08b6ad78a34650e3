// Trireme 0.1.0: trireme/nn/vit.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 43673dbbff459c1198ecad6cb3bf58a2e0e6a9f5e523e0c092d7390db4e661ed
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/patches.hpp"

// ---- trireme/nn/vit.hpp
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::nn {

/// A vision transformer: the squares of an image are rows, with a learned class token before them; attention in both
/// directions, norms before each part, exact GELU. The class token's output is classified.
///
/// Shapes   inputs (B, height, width, channels) float, channels innermost; targets (B) int32. Parameters have Hugging
///          Face's names, but queries, keys and values are one product, `attention.attention.qkv`; products' weights
///          are (inputs, outputs), and the first one's inputs are (row, column, channel) of a square.
/// Ranks    parallel::context is refused: samples are images, whose rows are not cut.
/// Method   [Dosovitskiy et al., "An image is worth 16x16 words", 2021].
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, images are not cut
///          into whole squares, channels are not divisible by heads, or dropout is not in [0, 1).
/// @models  staged_model: one unit for the squares, one a block, one for the head and the loss.
struct vit {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;

  nn::image images{224, 224, 3};
  std::int64_t side = 16;  ///< of a square, in pixels
  std::int64_t classes = 1000;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t channels = 768;
  std::int64_t hidden = 0;  ///< of the mlp; 0: 4 times the channels
  double dropout = 0;
  double epsilon = 1e-12;     ///< of the norms
  bool checkpointed = false;  ///< blocks save their input only; the backward pass runs their forward again
  friend bool operator==(vit const&, vit const&) = default;

  [[nodiscard]] std::int64_t inner() const noexcept { return hidden > 0 ? hidden : 4 * channels; }
  [[nodiscard]] nn::patches patches() const noexcept { return {.images = images, .side = side, .first = true}; }
  [[nodiscard]] std::int64_t rows_of_sample() const noexcept { return patches().rows_of_sample(); }

  template <class = void>  // compiled only in programs that use a vit
  [[nodiscard]] auto embeddings() const {
    return named("vit.embeddings", chain(patches(), named("patch_embeddings.projection", linear{.outputs = channels}),
                                         positions{.rows = rows_of_sample(), .first = true}, nn::dropout{dropout}));
  }
  /// One block.
  template <class = void>
  [[nodiscard]] auto layer() const {
    attend const attention{.heads = heads, .dropout = dropout, .causal = false};
    return chain(
        residual(named("layernorm_before", layer_norm{epsilon}),
                 named("attention.attention.qkv", linear{.outputs = 3 * channels}), attention,
                 named("attention.output.dense", linear{.outputs = channels}), nn::dropout{dropout}),
        residual(named("layernorm_after", layer_norm{epsilon}), named("intermediate.dense", linear{.outputs = inner()}),
                 gelu_erf(), named("output.dense", linear{.outputs = channels}), nn::dropout{dropout}));
  }
  template <class = void>
  [[nodiscard]] auto classifier() const {
    return chain(named("vit.layernorm", layer_norm{epsilon}), named("classifier", linear{.outputs = classes}),
                 loss::cross_entropy{.of_first = true});
  }
  template <class Emit>
  void units(Emit&& put) const {
    put(nn::block{"", channels, embeddings<Emit>()});
    for (std::int64_t i = 0; i < layers; ++i) {
      nn::block const one{text("vit.encoder.layer.", i), channels, layer<Emit>()};
      detail::emit_block(put, one, checkpointed);
    }
    put(nn::block{"", channels, classifier<Emit>()});
  }

  template <class F>
  void each_field(F&& f) const {
    f("images", images, detail::any_value);
    f("side", side, at_least_one);
    f("classes", classes, at_least_one);
    f("layers", layers, at_least_one);
    f("heads", heads, at_least_one);
    f("channels", channels, at_least_one);
    f("hidden", inner(), at_least_one);
    f("dropout", dropout, below_one);
    f("epsilon", epsilon, positive);
    f("checkpointed", checkpointed, detail::any_value, checkpointed);
  }
  void validate() const {
    detail::expect_image("nn::vit", images);
    detail::expect_fields("nn::vit", *this);
    if (images.height % side != 0 || images.width % side != 0) {
      throw config_error(text("trireme::nn::vit: images of ", images.height, " x ", images.width,
                              " are not cut into whole squares of ", side, " x ", side, " pixels"));
    }
    detail::expect_heads("vit", channels, heads);
    expect_number("nn::vit", ".hidden", hidden, not_negative);
  }

  /// Hugging Face's files of ViTForImageClassification; nn/vit_files.hpp has their config.json.
  [[nodiscard]] file_mapping in_files() const {
    file_mapping out{"vit.", {"*pooler.dense.*", "*embeddings.mask_token"}};
    auto const c = channels;
    std::string const first = "vit.embeddings.", squares = first + "patch_embeddings.projection";
    out.add(first + "cls_token", {1, 1, c});
    out.add(first + "position_embeddings", {1, rows_of_sample(), c});
    out.add_convolution(squares + ".weight", side, images.channels, c);
    out.add(squares + ".bias", {c});
    for (std::int64_t i = 0; i < layers; ++i) {
      auto const name = text("vit.encoder.layer.", i, "."), all = name + "attention.attention.";
      out.add_attention(all, all + "qkv", c);
      out.add_product(name + "attention.output.dense", c, c);
      out.add_norm(name + "layernorm_before", c);
      out.add_norm(name + "layernorm_after", c);
      out.add_product(name + "intermediate.dense", c, inner());
      out.add_product(name + "output.dense", inner(), c);
    }
    out.add_norm("vit.layernorm", c);
    out.add_product("classifier", c, classes);
    return out;
  }

  /// What each unit computes for a row in training.
  template <class = void>
  [[nodiscard]] std::vector<double> unit_costs() const {
    return detail::count_operations(*this, rows_of_sample());
  }
};

[[nodiscard]] inline std::string to_string(vit const& m) { return detail::text_of_fields("nn::vit", m); }

}  // namespace trireme::nn
