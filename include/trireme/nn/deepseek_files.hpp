#pragma once

#include "trireme/formats/json.hpp"
#include "trireme/nn/deepseek.hpp"
#include "trireme/nn/pretrained.hpp"

namespace trireme::nn {

/// Sets a description to what a config.json of a DeepseekV3ForCausalLM says; `speed`, `ahead` and `ahead_weight` stay
/// as they are. ("num_nextn_predict_layers" is 1 in what transformers writes, which has no such module.)
///
/// Errors   format_error that points at the member, for what the model cannot be (scaled rotary positions, another rule
///          of choosing experts, ...), for sizes that are missing, and for those above 2^24.
void read_config(formats::json::value const& config, deepseek& to);

/// The config.json of a model; transformers reads it.
[[nodiscard]] formats::json::value config_of(deepseek const& model);

}  // namespace trireme::nn

#ifndef TRIREME_COMPILED
#include "trireme/nn/deepseek_files.ipp"
#endif
