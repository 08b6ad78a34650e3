#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/detail/fields.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/file_mapping.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"

namespace trireme::nn {

/// LLaMA: RMS norms before each part, rotary positions, grouped-query attention (`key_heads`), SwiGLU, no biases. With
/// `biased`, queries, keys and values have biases, as in Qwen 2; with `head_norms`, queries and keys have norms, as in
/// Qwen 3; with `window`, positions see only the last `window`, as in Mistral; with `scaling`, angles turn slower, as
/// in Llama 3.
///
/// Shapes   inputs and targets (B, T) int32. Parameters have Hugging Face's names, but queries, keys and values are one
///          product, `self_attn.qkv_proj`, laid out as attend takes it, and products' weights are (inputs, outputs).
/// Method   [Touvron et al., "LLaMA", 2023]; [Ainslie et al., "GQA", 2023]; [Shazeer, "GLU variants", 2020]; [Jiang et
///          al., "Mistral 7B", 2023]; [Grattafiori et al., "The Llama 3 herd", 2024]; [Yang et al., "Qwen3", 2025].
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, heads are no
///          multiple of key heads, heads have no even width, `rotary` or `epsilon` is not above 0, `window` is below 0,
///          `scaling` is none, or biases and norms of heads come together, which no model in files has.
/// @models  staged_model: one unit for the embedding, one a block, one for norm, head and loss.
struct llama {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  static constexpr bool made_of_layers = true;

  std::int64_t vocabulary = 256;
  std::int64_t context = 256;  ///< used by files and unit_costs(); the model takes samples of any length
  std::int64_t layers = 6;
  std::int64_t heads = 6;
  std::int64_t key_heads = 0;  ///< 0: as many as heads
  std::int64_t channels = 384;
  std::int64_t hidden = 0;        ///< of the mlp; 0: 8/3 of the channels, rounded up to a multiple of 32
  std::int64_t head_width = 0;    ///< 0: channels / heads
  double rotary = 10000;          ///< base of the angles
  ops::rotary_scaling scaling{};  ///< of the angles
  std::int64_t window = 0;        ///< how many positions back are seen, its own included; 0: all
  double epsilon = 1e-5;          ///< of the norms
  bool tied = false;              ///< the head uses the embedding's table
  bool biased = false;            ///< biases of queries, keys and values
  bool head_norms = false;        ///< RMS norms of each query and key
  bool checkpointed = false;      ///< blocks save their input only; the backward pass runs their forward again
  friend bool operator==(llama const&, llama const&) = default;

  [[nodiscard]] std::int64_t keys() const noexcept { return key_heads > 0 ? key_heads : heads; }
  [[nodiscard]] std::int64_t inner() const noexcept { return hidden > 0 ? hidden : (8 * channels / 3 + 31) / 32 * 32; }
  [[nodiscard]] std::int64_t width() const noexcept { return head_width > 0 ? head_width : channels / heads; }

  /// One block.
  template <class = void>  // compiled only in programs that use a LLaMA
  [[nodiscard]] auto layer() const {
    linear const in{.outputs = inner(), .bias = false}, out{.outputs = channels, .bias = false};
    linear const qkv{.outputs = (heads + 2 * keys()) * width(), .bias = biased};
    attend const attention{.heads = heads,
                           .key_heads = keys(),
                           .rotary = rotary,
                           .scaling = scaling,
                           .window = window,
                           .norm = head_norms ? epsilon : 0};
    return chain(residual(named("input_layernorm", rms_norm{epsilon}),
                          named("self_attn", chain(named("qkv_proj", qkv), attention, named("o_proj", out)))),
                 residual(named("post_attention_layernorm", rms_norm{epsilon}),
                          named("mlp", chain(product(chain(named("gate_proj", in), silu()), named("up_proj", in)),
                                             named("down_proj", out)))));
  }
  template <class = void>
  [[nodiscard]] auto head() const {
    return chain(named("model.norm", rms_norm{epsilon}),
                 named("lm_head", unembedding{vocabulary, tied ? "model.embed_tokens.weight" : ""}),
                 loss::cross_entropy{});
  }
  template <class Emit>
  void units(Emit&& put) const {
    put(nn::block{"model.embed_tokens", channels, embedding{vocabulary, channels}});
    for (std::int64_t i = 0; i < layers; ++i) {
      nn::block const one{text("model.layers.", i), channels, layer<Emit>()};
      detail::emit_block(put, one, checkpointed);
    }
    put(nn::block{"", channels, head<Emit>()});
  }

  template <class F>
  void each_field(F&& f) const {
    f("vocabulary", vocabulary, at_least_one);
    f("context", context, at_least_one);
    f("layers", layers, at_least_one);
    f("heads", heads, at_least_one);
    f("key_heads", keys(), at_least_one);
    f("channels", channels, at_least_one);
    f("hidden", inner(), at_least_one);
    f("head_width", width(), at_least_one, width() * heads != channels);
    f("rotary", rotary, positive);
    f("scaling", scaling, detail::any_value, scaling != ops::rotary_scaling{});
    f("window", window, not_negative, window != 0);
    f("epsilon", epsilon, positive);
    f("tied", tied, detail::any_value, tied);
    f("biased", biased, detail::any_value, biased);
    f("head_norms", head_norms, detail::any_value, head_norms);
    f("checkpointed", checkpointed, detail::any_value, checkpointed);
  }
  void validate() const {
    expect_number("nn::llama", ".heads", heads, at_least_one);  // other checks divide by it
    if (key_heads < 0 || hidden < 0 || window < 0 || heads % keys() != 0) {
      throw config_error(text("trireme::nn::llama: ", how_many(heads, "head"), ", ", how_many(key_heads, "key head"),
                              ", ", hidden, " hidden, a window of ", window,
                              "; heads are a multiple of key heads, and nothing is below 0"));
    }
    if (head_width == 0 && (channels % heads != 0 || channels / heads % 2 != 0)) {
      throw config_error(text("trireme::nn::llama: ", how_many(channels, "channel"), agreeing(channels, " is", " are"),
                              " not ", how_many(heads, "head"), " of one even width"));
    }
    if (head_width < 0 || head_width % 2 != 0) {
      throw config_error(text("trireme::nn::llama: a head is ", head_width,
                              " numbers wide; rotary positions take pairs of them, so that the width is even"));
    }
    detail::expect_fields("nn::llama", *this);
    if (!positive.holds(scaling.factor) || scaling.original < 0 || !(scaling.low < scaling.high)) {
      throw config_error(text("trireme::nn::llama: angles are scaled by ", scaling.factor, ", of ", scaling.original,
                              " positions, between ", scaling.low, " and ", scaling.high,
                              " turns; the factor is above 0, positions are not below it, and low is below high"));
    }
    if (biased && head_norms) {
      throw config_error("trireme::nn::llama: biased is Qwen 2 and head_norms is Qwen 3; leave one of them out");
    }
  }

  /// Hugging Face's files of LlamaForCausalLM and MistralForCausalLM; with biases Qwen2ForCausalLM, with norms of heads
  /// Qwen3ForCausalLM.
  [[nodiscard]] file_mapping in_files() const {
    file_mapping out{"model.", {"*.rotary_emb.inv_freq"}};
    if (tied) {
      out.copies.push_back({"lm_head.weight", "model.embed_tokens.weight",
                            "say \"tie_word_embeddings\": false in config.json, and the model has both"});
    }
    auto const c = channels, each_head = width(), queries = heads / keys(), all = (heads + 2 * keys()) * each_head;
    // All heads of queries, keys or values (which = 0, 1, 2); `each` of them belong to one key. Where there are as many
    // keys as queries, all queries lie before all keys; else each key lies behind its queries.
    auto const heads_of = [&](std::string const& attention, char const* theirs, std::int64_t which, std::int64_t each) {
      auto const rows = keys() * each * each_head;
      std::vector<file_tensor::band> bands;
      if (keys() == heads) {
        bands.push_back({0, which * rows, rows});
      } else {
        for (std::int64_t key = 0; key < keys(); ++key) {
          auto const first = key * (queries + 2) + (which == 0 ? 0 : queries + which - 1);
          bands.push_back({key * each * each_head, first * each_head, each * each_head});
        }
      }
      out.tensors.push_back(
          {text(attention, theirs, ".weight"), {rows, c}, attention + "qkv_proj.weight", c, all, bands});
      if (biased) {
        out.tensors.push_back({text(attention, theirs, ".bias"), {rows}, attention + "qkv_proj.bias", 1, all, bands});
      }
    };
    out.add("model.embed_tokens.weight", {vocabulary, c});
    for (std::int64_t i = 0; i < layers; ++i) {
      auto const name = text("model.layers.", i, ".");
      out.add(name + "input_layernorm.weight", {c});
      heads_of(name + "self_attn.", "q_proj", 0, queries);
      heads_of(name + "self_attn.", "k_proj", 1, 1);
      heads_of(name + "self_attn.", "v_proj", 2, 1);
      if (head_norms) {
        for (auto const* which : {"q_norm", "k_norm"}) out.add(text(name, "self_attn.", which, ".weight"), {each_head});
      }
      out.add_transposed(name + "self_attn.o_proj.weight", heads * each_head, c);
      out.add(name + "post_attention_layernorm.weight", {c});
      out.add_transposed(name + "mlp.gate_proj.weight", c, inner());
      out.add_transposed(name + "mlp.up_proj.weight", c, inner());
      out.add_transposed(name + "mlp.down_proj.weight", inner(), c);
    }
    out.add("model.norm.weight", {c});
    if (!tied) out.add("lm_head.weight", {vocabulary, c});
    return out;
  }

  /// What each unit computes for a row in training, in samples of `context` tokens.
  template <class = void>
  [[nodiscard]] std::vector<double> unit_costs() const {
    return detail::count_operations(*this, context);
  }
};

[[nodiscard]] inline std::string to_string(llama const& m) { return detail::text_of_fields("nn::llama", m); }

}  // namespace trireme::nn
