// Trireme 0.1.0: trireme/nn/deepseek_files.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 1055df042cbbdc50993c2aaed42cd04179c0d61e4fe87a5af8b3492829e3c4bc
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/deepseek.hpp"
#include "trireme/nn/pretrained.hpp"

// ---- trireme/nn/deepseek_files.hpp
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

#ifndef TRIREME_NN_DEEPSEEK_FILES_IPP_INCLUDED
#define TRIREME_NN_DEEPSEEK_FILES_IPP_INCLUDED

// ---- trireme/nn/deepseek_files.ipp
namespace trireme::nn {

TRIREME_BODY void read_config(formats::json::value const& config, deepseek& to) {
  detail::config_reader const in(config, "nn::deepseek");
  if (auto const type = in.type(); type != "deepseek_v3")
    in.at("model_type").fail(text("nn::deepseek is \"deepseek_v3\", not \"", type.substr(0, 80), "\""));
  in.expect("quantization_config", {});
  in.expect("hidden_act", {"silu"});
  in.expect("attention_bias", {false});
  in.expect("attention_dropout", {0});
  in.expect("tie_word_embeddings", {false});
  in.expect("rope_interleave", {true});
  in.expect("norm_topk_prob", {true});
  in.expect("moe_layer_freq", {1});
  in.expect("scoring_func", {"sigmoid"});
  in.expect("topk_method", {"noaux_tc"});
  to.vocabulary = in.size("vocab_size");
  to.context = in.size("max_position_embeddings");
  to.layers = in.size("num_hidden_layers");
  auto const& dense = in.at("first_k_dense_replace");
  to.dense = dense.as_int64();
  if (to.dense < 0 || to.dense > to.layers) {
    dense.fail(text("\"first_k_dense_replace\" is ", to.dense, ", of ", how_many(to.layers, "layer")));
  }
  to.channels = in.size("hidden_size");
  to.heads = in.size("num_attention_heads");
  in.expect("num_key_value_heads", {to.heads});
  to.query_rank = in.size("q_lora_rank", 0);
  to.rank = in.size("kv_lora_rank");
  to.plain = in.size("qk_nope_head_dim");
  to.rotary_width = in.size("qk_rope_head_dim");
  to.values = in.size("v_head_dim");
  to.hidden = in.size("intermediate_size");
  to.experts = in.size("n_routed_experts");
  to.top_k = in.size("num_experts_per_tok");
  to.shared = in.size("n_shared_experts");
  to.expert_hidden = in.size("moe_intermediate_size");
  to.groups = in.size("n_group");
  to.chosen_groups = in.size("topk_group");
  to.scale = in.number("routed_scaling_factor", 2.5);
  auto others = config;
  others.set("rope_interleave", nullptr);  // seen to above
  auto const positions = detail::rotary_in(others);
  if (positions.scaling != ops::rotary_scaling{})
    config.fail("rotary positions are scaled; those of nn::deepseek are not");
  to.rotary = positions.base;
  to.epsilon = in.number("rms_norm_eps", 1e-6);
}

TRIREME_BODY formats::json::value config_of(deepseek const& model) {
  namespace json = formats::json;
  return json::value::make(
      {{"model_type", "deepseek_v3"},
       {"architectures", json::array{"DeepseekV3ForCausalLM"}},
       {"vocab_size", model.vocabulary},
       {"max_position_embeddings", model.context},
       {"num_hidden_layers", model.layers},
       {"first_k_dense_replace", model.dense},
       {"hidden_size", model.channels},
       {"num_attention_heads", model.heads},
       {"num_key_value_heads", model.heads},
       {"q_lora_rank", model.query_rank == 0 ? json::value(nullptr) : json::value(model.query_rank)},
       {"kv_lora_rank", model.rank},
       {"qk_nope_head_dim", model.plain},
       {"qk_rope_head_dim", model.rotary_width},
       {"v_head_dim", model.values},
       {"intermediate_size", model.hidden},
       {"n_routed_experts", model.experts},
       {"num_experts_per_tok", model.top_k},
       {"n_shared_experts", model.shared},
       {"moe_intermediate_size", model.expert_hidden},
       {"n_group", model.groups},
       {"topk_group", model.chosen_groups},
       {"routed_scaling_factor", model.scale},
       {"norm_topk_prob", true},
       {"moe_layer_freq", 1},
       {"scoring_func", "sigmoid"},
       {"topk_method", "noaux_tc"},
       {"num_nextn_predict_layers", model.ahead},
       {"hidden_act", "silu"},
       {"attention_bias", false},
       {"rms_norm_eps", model.epsilon},
       {"rope_interleave", true},
       {"rope_theta", model.rotary},  // transformers 4
       {"rope_parameters", json::value::make({{"rope_type", "default"}, {"rope_theta", model.rotary}})},
       {"tie_word_embeddings", false},
       {"bos_token_id", nullptr},
       {"eos_token_id", nullptr}});
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_DEEPSEEK_FILES_IPP_INCLUDED
