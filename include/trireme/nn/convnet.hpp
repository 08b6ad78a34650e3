#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/batch_norm.hpp"
#include "trireme/nn/detail/fields.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/file_mapping.hpp"
#include "trireme/nn/images.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"
#include "trireme/nn/sum.hpp"

namespace trireme::nn {

/// As it stands in a description's source.
[[nodiscard]] inline std::string field_text(batch_norm const& it) {
  return text("{", it.epsilon, ", ", it.momentum, "}");
}

/// A residual network for small images: ResNet-20 with `blocks` = 3, ResNet-32 with 5, and so on (6 * blocks + 2).
/// Three stages of blocks of two convolutions; each stage but the first has half as many places along each side, and
/// twice as many channels. Where the shape changes, the shortcut is a convolution of one pixel.
///
/// Shapes   inputs (B, height, width, channels) float, channels innermost; targets (B) int32. Parameters have the names
///          of torchvision (conv1, bn1, layer1.0.conv1, ..., fc); a convolution's weight is (kernel, kernel, channels,
///          outputs), and fc's (inputs, outputs).
/// Method   [He et al., "Deep residual learning for image recognition", 2016], section 4.2; with the shortcuts B.
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, or images are not
///          square.
/// @models  staged_model: one unit for the first convolution, one a block, one for the mean over pixels and the loss.
/// @tparam  Synchronised  whether its norms are over the micro-batches of all data ranks; see nn::batch_norm.
template <bool Synchronised>
struct convnet_of {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;
  static constexpr bool synchronises = Synchronised;

  nn::image images{28, 28, 1};
  std::int64_t classes = 10;
  std::int64_t blocks = 3;     ///< of each stage
  std::int64_t channels = 16;  ///< of the first stage
  batch_norm norm{};
  friend bool operator==(convnet_of const&, convnet_of const&) = default;

 private:
  [[nodiscard]] static conv2d conv(std::int64_t outputs, std::int64_t kernel, std::int64_t stride) {
    return {.outputs = outputs, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false};
  }
  [[nodiscard]] auto two_convolutions(std::int64_t outputs, std::int64_t stride) const {
    return chain(named("conv1", conv(outputs, 3, stride)), named("bn1", normal()), relu(),
                 named("conv2", conv(outputs, 3, 1)), named("bn2", normal()));
  }
  [[nodiscard]] batch_norm normal() const {
    auto out = norm;
    out.synchronised = Synchronised;
    return out;
  }

 public:
  /// The layers of a block whose result has the shape of its input.
  template <class = void>  // compiled only in programs that use a convnet
  [[nodiscard]] auto plain_block(nn::image const& in) const {
    return chain(in, residual(two_convolutions(in.channels, 1)), relu());
  }
  /// Those of a block that makes half as many places of twice as many channels.
  template <class = void>
  [[nodiscard]] auto halving_block(nn::image const& in) const {
    auto const outputs = 2 * in.channels;
    auto const shortcut = named("downsample", chain(named("0", conv(outputs, 1, 2)), named("1", normal())));
    return chain(in, sum(two_convolutions(outputs, 2), shortcut), relu());
  }
  template <class Emit>
  void units(Emit&& put) const {
    nn::image at{images.height, images.width, channels};
    put(nn::block{
        "", 0,
        chain(features{images.size()}, images, named("conv1", conv(channels, 3, 1)), named("bn1", normal()), relu())});
    for (std::int64_t i = 0; i < 3 * blocks; ++i) {
      auto const name = text("layer", i / blocks + 1, ".", i % blocks);
      if (i == 0 || i % blocks != 0) {
        put(nn::block{name, at.size(), plain_block<Emit>(at)});
      } else {
        put(nn::block{name, at.size(), halving_block<Emit>(at)});
        at = {(at.height + 1) / 2, (at.width + 1) / 2, 2 * at.channels};
      }
    }
    initial const start{initial::distribution::uniform, 1 / std::sqrt(static_cast<double>(at.channels))};
    linear const fc{.outputs = classes, .start = start, .bias_start = start};
    put(nn::block{"", at.size(), chain(at, average_pool2d{}, named("fc", fc), loss::cross_entropy{})});
  }

  /// Files with torchvision's names and layouts; nn/convnet_files.hpp has their config.json.
  [[nodiscard]] file_mapping in_files() const {
    file_mapping out{"", {"*.num_batches_tracked"}};
    auto const convolution = [&](std::string const& folder, char const* of, char const* normal_of, std::int64_t kernel,
                                 std::int64_t inputs, std::int64_t outputs) {
      out.add_convolution(text(folder, of, ".weight"), kernel, inputs, outputs);
      for (auto const* which : {".weight", ".bias", ".running_mean", ".running_var"})
        out.add(text(folder, normal_of, which), {outputs});
    };
    convolution("", "conv1", "bn1", 3, images.channels, channels);
    auto width = channels;
    for (std::int64_t i = 0; i < 3 * blocks; ++i) {
      auto const name = text("layer", i / blocks + 1, ".", i % blocks, ".");
      bool const halves = i > 0 && i % blocks == 0;
      auto const outputs = halves ? 2 * width : width;
      convolution(name, "conv1", "bn1", 3, width, outputs);
      convolution(name, "conv2", "bn2", 3, outputs, outputs);
      if (halves) convolution(name, "downsample.0", "downsample.1", 1, width, outputs);
      width = outputs;
    }
    out.add_transposed("fc.weight", width, classes);
    out.add("fc.bias", {classes});
    return out;
  }

  template <class F>
  void each_field(F&& f) const {
    f("images", images, detail::any_value);
    f("classes", classes, at_least_one);
    f("blocks", blocks, at_least_one);
    f("channels", channels, at_least_one);
    f("norm", norm, detail::any_value);
  }
  void validate() const {
    detail::expect_image("nn::convnet", images);
    detail::expect_fields("nn::convnet", *this);
    expect_number("nn::convnet", ".norm.epsilon", norm.epsilon, positive);
    expect_number("nn::convnet", ".norm.momentum", norm.momentum, {.high = 1, .above = true});
    if (images.height == images.width) return;
    throw config_error(
        text("trireme::nn::convnet: images of ", images.height, " x ", images.width, "; they must be square"));
  }
};

/// A ResNet whose statistics of a batch are those of each rank, or (synchronised) of all ranks.
using convnet = convnet_of<false>;
using synchronised_convnet = convnet_of<true>;

template <bool Synchronised>
[[nodiscard]] std::string to_string(convnet_of<Synchronised> const& m) {
  return detail::text_of_fields(Synchronised ? "nn::synchronised_convnet" : "nn::convnet", m);
}

}  // namespace trireme::nn
