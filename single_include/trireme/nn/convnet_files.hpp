// Trireme 0.1.0: trireme/nn/convnet_files.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 25eb93f0bc3eaacf25128249637afd8157dd84fb0ff024f6a34abb75892df74b
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/nn/pretrained.hpp"
#include "trireme/nn/vit_files.hpp"

// ---- trireme/nn/convnet_files.hpp
#include <string>

namespace trireme::nn {

/// What "model_type" is in a config.json of a convnet, which transformers does not have.
inline constexpr char const* convnet_type = "convnet";

/// Sets a description to what config_of() has written.
///
/// Errors   format_error that points at the member, for another kind of model, and for sizes that are missing or above
///          2^24.
void read_config(formats::json::value const& config, convnet& to);
void read_config(formats::json::value const& config, synchronised_convnet& to);

/// The config.json of a model: image_size, num_channels, num_labels, num_blocks, hidden_size (of the first stage),
/// batch_norm_eps and batch_norm_momentum.
[[nodiscard]] formats::json::value config_of(convnet const& model);
[[nodiscard]] formats::json::value config_of(synchronised_convnet const& model);

}  // namespace trireme::nn

#ifndef TRIREME_NN_CONVNET_FILES_IPP_INCLUDED
#define TRIREME_NN_CONVNET_FILES_IPP_INCLUDED

// ---- trireme/nn/convnet_files.ipp
namespace trireme::nn {

namespace detail {

template <bool Synchronised>
void read_convnet(formats::json::value const& config, convnet_of<Synchronised>& to) {
  config_reader const in(config, "nn::convnet");
  if (auto const type = in.type(); type != convnet_type)
    in.at("model_type").fail(text("nn::convnet is \"", convnet_type, "\", not \"", type.substr(0, 80), "\""));
  in.expect("quantization_config", {});
  to.images = image_in(in, 28, 1);
  to.classes = labels_in(in, 10);
  to.blocks = in.size("num_blocks");
  to.channels = in.size("hidden_size");
  to.norm.epsilon = in.number("batch_norm_eps", batch_norm{}.epsilon);
  to.norm.momentum = in.number("batch_norm_momentum", batch_norm{}.momentum);
}

template <bool Synchronised>
[[nodiscard]] formats::json::value convnet_config(convnet_of<Synchronised> const& model) {
  namespace json = formats::json;
  return json::value::make({{"model_type", convnet_type},
                            {"architectures", json::array{}},
                            {"image_size", image_size_of(model.images)},
                            {"num_channels", model.images.channels},
                            {"num_blocks", model.blocks},
                            {"hidden_size", model.channels},
                            {"batch_norm_eps", model.norm.epsilon},
                            {"batch_norm_momentum", model.norm.momentum},
                            {"num_labels", model.classes}});
}

}  // namespace detail

TRIREME_BODY void read_config(formats::json::value const& config, convnet& to) { detail::read_convnet(config, to); }
TRIREME_BODY void read_config(formats::json::value const& config, synchronised_convnet& to) {
  detail::read_convnet(config, to);
}
TRIREME_BODY formats::json::value config_of(convnet const& model) { return detail::convnet_config(model); }
TRIREME_BODY formats::json::value config_of(synchronised_convnet const& model) { return detail::convnet_config(model); }

}  // namespace trireme::nn

#endif  // TRIREME_NN_CONVNET_FILES_IPP_INCLUDED
