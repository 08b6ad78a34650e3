#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tensors.hpp"

#include "trireme/core/tensor.hpp"
#include "trireme/nn/node.hpp"

/// A classifier of images that is served. One thread at a time.
class image_classifier {
 public:
  image_classifier() = default;
  image_classifier(image_classifier const&) = delete;
  image_classifier& operator=(image_classifier const&) = delete;
  virtual ~image_classifier() = default;

  /// Shapes   (B, height, width, channels) to (B, classes).
  [[nodiscard]] virtual trireme::tensor<float> compute(trireme::tensor_view<float const> images) = 0;

  trireme::nn::image images{};
  std::int64_t classes = 0;
};

/// Whether the model in a directory is one of images.
bool is_of_images(std::string const& directory);
std::unique_ptr<image_classifier> load_images(std::string const& directory);

/// Its answers: `logits` of `pixel_values` (rows, channels, height, width).
class classifications final : public tensor_model {
 public:
  /// @param model  outlives it.
  classifications(image_classifier& model, std::string name) : model_(model), name_(std::move(name)) {}
  [[nodiscard]] std::string infer(std::string_view body) override;
  [[nodiscard]] std::string metadata() const override;

 private:
  image_classifier& model_;
  std::string const name_;
};
