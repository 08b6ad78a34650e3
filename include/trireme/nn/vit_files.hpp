#pragma once

#include "trireme/formats/json.hpp"
#include "trireme/nn/pretrained.hpp"
#include "trireme/nn/vit.hpp"

namespace trireme::nn {

/// Sets a description to what a config.json of a ViTForImageClassification says. `checkpointed` stays.
///
/// Errors   format_error that points at the member, for what the model cannot be (another activation, products without
///          biases, ...), for sizes that are missing, and for those above 2^24.
void read_config(formats::json::value const& config, vit& to);

/// The config.json of a model; transformers reads it if images are square.
[[nodiscard]] formats::json::value config_of(vit const& model);

}  // namespace trireme::nn

#ifndef TRIREME_COMPILED
#include "trireme/nn/vit_files.ipp"
#endif
