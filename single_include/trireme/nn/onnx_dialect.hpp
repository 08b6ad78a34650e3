// Trireme 0.1.0: trireme/nn/onnx_dialect.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 9f2f2d54b06e07c9697d6aa59f05117f6d64a3c660f4d60330926b4064a2a786
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/nn/onnx_dialect.hpp
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace trireme::nn {

/// Which operators a graph of ONNX has.
enum class onnx_dialect {
  portable,  ///< opset 18: what all runtimes have
  native,    ///< opset 23: Attention, RotaryEmbedding, RMSNormalization
  ort,       ///< opset 21 and onnxruntime's own: GroupQueryAttention, SkipSimplifiedLayerNormalization
};

/// Their names, in the same order.
inline constexpr std::array onnx_dialects{std::string_view("portable"), std::string_view("native"),
                                          std::string_view("ort")};

/// "native" -> onnx_dialect::native; nothing for another word.
[[nodiscard]] inline std::optional<onnx_dialect> onnx_dialect_named(std::string_view name) noexcept {
  for (std::size_t i = 0; i < onnx_dialects.size(); ++i) {
    if (onnx_dialects[i] == name) return static_cast<onnx_dialect>(i);
  }
  return std::nullopt;
}

}  // namespace trireme::nn
