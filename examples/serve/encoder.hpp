#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/core/tensor.hpp"

/// A BERT that is served: its encoder, or a classifier. One thread at a time.
class text_encoder {
 public:
  text_encoder() = default;
  text_encoder(text_encoder const&) = delete;
  text_encoder& operator=(text_encoder const&) = delete;
  virtual ~text_encoder() = default;

  /// Rows of padded tokens, all of a length, which is the context at most.
  /// Shapes   (B, T) to (B, classes), or without classes to (B, T, channels).
  [[nodiscard]] virtual trireme::tensor<float> compute(trireme::tensor_view<std::int32_t const> tokens) = 0;

  std::int64_t vocabulary = 0, context = 0, channels = 0;
  std::int64_t classes = 0;  ///< 0: an encoder
  std::int64_t segments = 1;
  std::int32_t padding = 0, separator = 0;
};

/// Whether the model in a directory is a BERT.
bool is_encoder(std::string const& directory);
/// @param separator  the token that ends a segment; -1: that of config.json, or else 102.
std::unique_ptr<text_encoder> load_encoder(std::string const& directory, std::int32_t separator = -1);
