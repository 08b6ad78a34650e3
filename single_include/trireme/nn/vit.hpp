// Trireme 0.1.0: trireme/nn/vit.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 4552420362a0b1ff09f0236ab43ce3e27c7eb25ce8c9424d17c0f9a415d76ccc
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

/// A vision transformer: the squares of an image are rows, before which a token stands; attention in both directions,
/// norms before each part, GELU without approximation; what becomes of the token names the class.
///
/// Shapes   inputs (B, height, width, channels) float, channels innermost; targets (B) int32. Parameters have Hugging
///          Face's names, but queries, keys and values are one product, `attention.attention.qkv`; products' weights
///          are (inputs, outputs), and the first one's inputs are (row, column, channel) of a square.
/// Ranks    samples cannot be cut (parallel::context): they are images.
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

  template <class = void>  // so that programs that only name a vit do not compile it
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
    put(nn::block{"", channels, 0, embeddings<Emit>()});
    for (std::int64_t i = 0; i < layers; ++i) {
      nn::block const one{text("vit.encoder.layer.", i), channels, static_cast<std::uint32_t>(1 + 3 * i),
                          layer<Emit>()};
      detail::emit_block(put, one, checkpointed);
    }
    put(nn::block{"", channels, static_cast<std::uint32_t>(1 + 3 * layers), classifier<Emit>()});
  }

  void validate() const {
    detail::expect_positive("vit", {{"height", images.height},
                                    {"width", images.width},
                                    {"channels of an image", images.channels},
                                    {"side", side},
                                    {"classes", classes},
                                    {"layers", layers},
                                    {"heads", heads},
                                    {"channels", channels}});
    if (images.height % side != 0 || images.width % side != 0) {
      throw config_error(text("trireme::nn::vit: images of ", images.height, " x ", images.width,
                              " are not cut into whole squares of ", side, " x ", side, " pixels"));
    }
    detail::expect_heads("vit", channels, heads);
    if (hidden < 0) throw config_error(text("trireme::nn::vit: ", hidden, " hidden, which may not be below 0"));
    detail::expect_dropout("vit", dropout);
    expect_number("nn::vit", ".epsilon", epsilon, positive);
  }

  /// What each unit computes in training, forward and backward: multiplications and additions a row.
  [[nodiscard]] std::vector<double> unit_costs() const {
    auto const c = static_cast<double>(channels);
    double const products = 8 * c * c + 4 * c * static_cast<double>(inner());
    double const attended = 2 * c * static_cast<double>(rows_of_sample());  // each of two products
    double const again = checkpointed ? products + 2 * attended : 0;
    std::vector<double> costs(static_cast<std::size_t>(layers + 2), 3 * products + 7 * attended + again);
    costs.front() = 4 * c * static_cast<double>(patches().width());
    costs.back() = 6 * c * static_cast<double>(classes);
    return costs;
  }
};

[[nodiscard]] inline std::string to_string(vit const& m) {
  return text("nn::vit{.images = {", m.images.height, ", ", m.images.width, ", ", m.images.channels,
              "}, .side = ", m.side, ", .classes = ", m.classes, ", .layers = ", m.layers, ", .heads = ", m.heads,
              ", .channels = ", m.channels, ", .hidden = ", m.inner(), ", .dropout = ", m.dropout,
              ", .epsilon = ", m.epsilon, m.checkpointed ? ", .checkpointed = true" : "", "}");
}

}  // namespace trireme::nn
