#pragma once

#include <string>

#include "trireme/core/compiled.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/nn/convnet.hpp"
#include "trireme/nn/pretrained.hpp"

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

#ifndef TRIREME_COMPILED
#include "trireme/nn/convnet_files.ipp"
#endif
