#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/detail/expect.hpp"
#include "trireme/nn/embedding.hpp"
#include "trireme/nn/file_layout.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/nn/losses.hpp"

namespace trireme::nn {

/// LLaMA: RMS norms before each part, rotary positions, grouped-query attention (`key_heads`), SwiGLU, no biases. With
/// `biased`, queries, keys and values have biases, as in Qwen 2.
///
/// Shapes   inputs and targets (B, T) int32. Parameters have Hugging Face's names, but queries, keys and values are one
///          product, `self_attn.qkv_proj`, laid out as attend takes it, and products' weights are (inputs, outputs).
/// Method   [Touvron et al., "LLaMA", 2023]; [Ainslie et al., "GQA", 2023]; [Shazeer, "GLU variants", 2020].
/// Errors   config_error from validate() (called when a trainer is made) if a size is not positive, heads are no
///          multiple of key heads, channels are not so many heads of one even width, or `rotary` or `epsilon` is not
///          above 0.
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
  std::int64_t hidden = 0;    ///< of the mlp; 0: 8/3 of the channels, rounded up to a multiple of 32
  double rotary = 10000;      ///< base of the angles
  double epsilon = 1e-5;      ///< of the norms
  bool tied = false;          ///< the head uses the embedding's table
  bool biased = false;        ///< biases of queries, keys and values
  bool checkpointed = false;  ///< blocks save their input only; the backward pass runs their forward again
  friend bool operator==(llama const&, llama const&) = default;

  [[nodiscard]] std::int64_t keys() const noexcept { return key_heads > 0 ? key_heads : heads; }
  [[nodiscard]] std::int64_t inner() const noexcept { return hidden > 0 ? hidden : (8 * channels / 3 + 31) / 32 * 32; }

  /// One block.
  template <class = void>  // so that programs without a LLaMA do not compile it
  [[nodiscard]] auto layer() const {
    linear const in{.outputs = inner(), .bias = false}, out{.outputs = channels, .bias = false};
    linear const qkv{.outputs = (heads + 2 * keys()) * (channels / heads), .bias = biased};
    return chain(residual(named("input_layernorm", rms_norm{epsilon}),
                          named("self_attn", chain(named("qkv_proj", qkv),
                                                   attend{.heads = heads, .key_heads = keys(), .rotary = rotary},
                                                   named("o_proj", out)))),
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
  void units(Emit&& emit) const {
    emit(nn::block{"model.embed_tokens", channels, 0, embedding{vocabulary, channels}});
    for (std::int64_t i = 0; i < layers; ++i) {
      nn::block const one{text("model.layers.", i), channels, static_cast<std::uint32_t>(1 + i), layer<Emit>()};
      detail::emit_block(emit, one, checkpointed);
    }
    emit(nn::block{"", channels, 0, head<Emit>()});
  }

  void validate() const {
    detail::expect_positive("llama", {{"vocabulary", vocabulary},
                                      {"context", context},
                                      {"layers", layers},
                                      {"heads", heads},
                                      {"channels", channels}});
    if (key_heads < 0 || hidden < 0 || heads % keys() != 0) {
      throw config_error(text("trireme::nn::llama: ", heads, " heads, ", key_heads, " key heads, ", hidden,
                              " hidden; heads are a multiple of key heads, and nothing is below 0"));
    }
    if (channels % heads != 0 || channels / heads % 2 != 0) {
      throw config_error(
          text("trireme::nn::llama: ", channels, " channels are not ", heads, " heads of one even width"));
    }
    if (!(rotary > 0) || !(epsilon > 0)) {
      throw config_error(
          text("trireme::nn::llama: rotary ", rotary, " and epsilon ", epsilon, "; both must be above 0"));
    }
  }

  /// Hugging Face's files of LlamaForCausalLM, MistralForCausalLM or, with biases, Qwen2ForCausalLM.
  [[nodiscard]] file_layout in_files() const {
    file_layout out{"model.", {".rotary_emb.inv_freq"}};
    if (tied) out.ignored.emplace_back("lm_head.weight");
    auto const c = channels, width = channels / heads, queries = heads / keys(), all = (heads + 2 * keys()) * width;
    // All heads of queries, keys or values (which = 0, 1, 2); `each` of them belong to one key. Where there are as many
    // keys as queries, all queries lie before all keys; else each key lies behind its queries.
    auto const heads_of = [&](std::string const& attention, char const* theirs, std::int64_t which, std::int64_t each) {
      auto const rows = keys() * each * width;
      std::vector<file_tensor::band> bands;
      if (keys() == heads) {
        bands.push_back({0, which * c, c});
      } else {
        for (std::int64_t key = 0; key < keys(); ++key) {
          auto const first = key * (queries + 2) + (which == 0 ? 0 : queries + which - 1);
          bands.push_back({key * each * width, first * width, each * width});
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
      out.add_transposed(name + "self_attn.o_proj.weight", c, c);
      out.add(name + "post_attention_layernorm.weight", {c});
      out.add_transposed(name + "mlp.gate_proj.weight", c, inner());
      out.add_transposed(name + "mlp.up_proj.weight", c, inner());
      out.add_transposed(name + "mlp.down_proj.weight", inner(), c);
    }
    out.add("model.norm.weight", {c});
    if (!tied) out.add("lm_head.weight", {vocabulary, c});
    return out;
  }

  /// What each unit computes in training, forward and backward: multiplications and additions a token, for samples of
  /// `context` tokens. An embedding computes nothing.
  [[nodiscard]] std::vector<double> unit_costs() const {
    auto const c = static_cast<double>(channels);
    auto const all = static_cast<double>(heads + 2 * keys()) / static_cast<double>(heads);
    double const products = 2 * c * c * (all + 1) + 6 * c * static_cast<double>(inner());
    double const attended = c * static_cast<double>(context);  // each of two products; the mask halves it
    double const again = checkpointed ? products + 2 * attended : 0;
    std::vector<double> costs(static_cast<std::size_t>(layers + 2), 3 * products + 7 * attended + again);
    costs.front() = 0;
    costs.back() = 6 * c * static_cast<double>(vocabulary);
    return costs;
  }
};

[[nodiscard]] inline std::string to_string(llama const& m) {
  return text("nn::llama{.vocabulary = ", m.vocabulary, ", .context = ", m.context, ", .layers = ", m.layers,
              ", .heads = ", m.heads, ", .key_heads = ", m.keys(), ", .channels = ", m.channels,
              ", .hidden = ", m.inner(), ", .rotary = ", m.rotary, ", .epsilon = ", m.epsilon,
              m.tied ? ", .tied = true" : "", m.biased ? ", .biased = true" : "",
              m.checkpointed ? ", .checkpointed = true" : "", "}");
}

}  // namespace trireme::nn
