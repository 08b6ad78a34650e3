// Trireme 0.1.0: trireme/nn/gguf.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ead4e770484272283f8ed5b1fd2175b5665dbe1f3b6664d4b54097d9dc9f035f
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/formats/gguf.hpp"
#include "trireme/formats/sentencepiece_file.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/deepseek.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/pretrained.hpp"

// ---- trireme/nn/gguf.hpp
#include <cstdint>
#include <string>
#include <vector>

/// Models in files of llama.cpp (formats/gguf.hpp), written from a directory of Hugging Face's files.
namespace trireme::nn {

/// A tensor of a GGUF file, and where its numbers come from.
struct gguf_tensor {
  enum class order {
    same,        ///< as in Hugging Face's files
    transposed,  ///< rows are columns there
    paired,      ///< of each head of `rows` rows, row i is followed by row i + rows / 2: llama.cpp rotates neighbours
    keys,        ///< of each head of `rows` rows there, the first ones, transposed
    values,      ///< of each head of `rows` rows there, the others
    stacked      ///< `source` has several tensors, one for each first index, whose numbers go where it has a '#'
  };
  std::string name;
  shape extents;
  std::string source;  ///< the tensor in Hugging Face's files; empty: `numbers`
  order how = order::same;
  std::int64_t rows = 0;  ///< of a head
  std::vector<float> numbers{};
};

/// What a GGUF file has for a model: `architecture` is llama.cpp's name, and the keys of `notes` begin with it.
struct gguf_model {
  std::string architecture;
  formats::gguf::metadata notes;
  std::vector<gguf_tensor> tensors;
};

/// GPT-2 is `gpt2`; LLaMA is `llama`, with `biased` `qwen2`, with `head_norms` `qwen3`. llama.cpp has no window for
/// these three: with one, the context is written to be no longer than the window, up to which both compute the same.
///
/// Errors   config_error for models that llama.cpp does not have: a GPT with experts, and a Qwen whose angles are
///          scaled by Llama 3's rule.
[[nodiscard]] gguf_model in_gguf(gpt const& model);
[[nodiscard]] gguf_model in_gguf(llama const& model);
/// DeepSeek V3 is `deepseek2`, without modules for multi-token prediction.
///
/// Errors   config_error for an epsilon other than 1e-6: llama.cpp has one for all norms.
[[nodiscard]] gguf_model in_gguf(deepseek const& model);
/// The encoder alone, `bert`, for embeddings: llama.cpp has no place for the heads, which are left out.
[[nodiscard]] gguf_model in_gguf(bert const& model);

/// The metadata `tokenizer.*` of a model.
///
/// A tokenizer.json has byte pairs of bytes (with the pre-tokenizer of GPT-2, SmolLM, Llama 3, Qwen 2 or DeepSeek V3),
/// byte pairs of characters (sentencepiece's, as in Llama 2 and Mistral), word pieces (`bert`) or unigrams (`t5`).
/// Without this file sentencepiece's own is read (tokenizer.model, spiece.model); without it too a vocabulary of 256 is
/// bytes, and for another one the metadata says `none`: llama.cpp takes token ids only. llama.cpp needs an end token:
/// for bytes it is byte 0.
///
/// Errors   format_error that points at the member, for what llama.cpp does not have: another expression of a
///          pre-tokenizer, or a normalizer of byte pairs other than NFC.
///
/// @param files       formats::read_model_files().
/// @param vocabulary  the model's; ids without a token become unused tokens.
[[nodiscard]] formats::gguf::metadata gguf_tokenizer(std::vector<formats::model_file> const& files,
                                                     std::int64_t vocabulary);

struct gguf_options {
  formats::gguf::kind type = formats::gguf::kind::f16;
  std::string name;  ///< `general.name`; empty: that of the directory
  /// A GGUF file of the same tensors: each has its type and its place there, and `type` is that of others.
  std::string like;
};

/// Writes the model that lies in a directory of Hugging Face's files to a GGUF file, which appears whole or not at all.
///
/// Tensors with one extent, norms and position tables are stored as F32, and rows that are not whole blocks as F16, as
/// llama.cpp's converter has it; all others in the type.
///
/// Bytes    memory is the largest tensor, as floats.
/// Errors   io_error; format_error for files that are not a model's; config_error for a model that llama.cpp does not
///          have.
/// @returns the bytes of the file.
std::uint64_t write_gguf(std::string const& directory, std::string const& path, gguf_options const& options = {},
                         formats::file_system& files = formats::real_files());

}  // namespace trireme::nn

#ifndef TRIREME_NN_GGUF_IPP_INCLUDED
#define TRIREME_NN_GGUF_IPP_INCLUDED

// ---- trireme/nn/gguf.ipp
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace trireme::nn {

namespace detail {

/// A size as the format's keys have it.
[[nodiscard]] inline std::uint32_t gguf_size(std::int64_t size) {
  if (size < 0 || size > std::numeric_limits<std::uint32_t>::max())
    throw config_error(text("trireme::nn::in_gguf: a size of ", size, " does not fit into 32 bits"));
  return static_cast<std::uint32_t>(size);
}

/// `general.file_type` of llama.cpp.
[[nodiscard]] TRIREME_BODY std::uint32_t gguf_file_type(formats::gguf::kind type) {
  using formats::gguf::kind;
  switch (type) {
    case kind::f32:
      return 0;
    case kind::f16:
      return 1;
    case kind::q4_0:
      return 2;
    case kind::q4_1:
      return 3;
    case kind::q8_0:
      return 7;
    case kind::q5_0:
      return 8;
    case kind::q5_1:
      return 9;
    case kind::bf16:
      return 32;
  }
  return 0;
}

/// The kind that a tensor is stored in.
[[nodiscard]] TRIREME_BODY formats::gguf::kind gguf_kind(gguf_tensor const& tensor, formats::gguf::kind wanted) {
  using formats::gguf::kind;
  bool const plain = tensor.extents.rank() <= 1 || tensor.name.ends_with("_norm.weight") ||
                     !tensor.name.ends_with(".weight") || tensor.name == "position_embd.weight" ||
                     tensor.name == "token_types.weight" || tensor.name.ends_with("ffn_gate_inp.weight");
  if (plain) return kind::f32;
  auto const row = tensor.extents[tensor.extents.rank() - 1];
  return row % formats::gguf::block_elements(wanted) == 0 ? wanted : kind::f16;
}

/// Numbers of a tensor, in its order, to the file.
TRIREME_BODY void write_gguf_tensor(pretrained_reader const& from, gguf_tensor const& tensor,
                                    formats::gguf::writer& to) {
  if (tensor.source.empty()) return to.write(std::span<float const>(tensor.numbers));
  auto const size = tensor.extents.size();
  auto const read = [&](std::int64_t first, std::vector<float>& into) { from.read_tensor(tensor.source, first, into); };
  std::vector<float> numbers;
  if (tensor.how == gguf_tensor::order::same) {
    constexpr std::int64_t most = std::int64_t{1} << 20;  // whole blocks
    for (std::int64_t at = 0; at < size; at += most) {
      numbers.resize(static_cast<std::size_t>(std::min(most, size - at)));
      read(at, numbers);
      to.write(std::span<float const>(numbers));
    }
    return;
  }
  if (tensor.how == gguf_tensor::order::stacked) {
    auto const mark = tensor.source.find('#');
    for (std::int64_t i = 0; i < tensor.extents[0]; ++i) {
      auto const name = text(tensor.source.substr(0, mark), i, tensor.source.substr(mark + 1));
      numbers.resize(static_cast<std::size_t>(size / tensor.extents[0]));
      from.read_tensor(name, 0, numbers);
      to.write(std::span<float const>(numbers));
    }
    return;
  }
  if (tensor.how == gguf_tensor::order::keys || tensor.how == gguf_tensor::order::values) {
    bool const keys = tensor.how == gguf_tensor::order::keys;
    auto const height = tensor.extents[1], width = tensor.extents[2];
    auto const rank = keys ? height : width, skipped = keys ? 0 : tensor.rows - height;
    std::vector<float> turned(static_cast<std::size_t>(height * width));
    for (std::int64_t head = 0; head < tensor.extents[0]; ++head) {
      numbers.resize(turned.size());
      read((head * tensor.rows + skipped) * rank, numbers);
      for (std::int64_t i = 0; keys && i < height; ++i) {
        for (std::int64_t j = 0; j < width; ++j)
          turned[static_cast<std::size_t>(i * width + j)] = numbers[static_cast<std::size_t>(j * height + i)];
      }
      to.write(std::span<float const>(keys ? turned : numbers));
    }
    return;
  }
  numbers.resize(static_cast<std::size_t>(size));
  read(0, numbers);
  bool const turned = tensor.how == gguf_tensor::order::transposed;
  auto const rows = tensor.extents[0], width = rows == 0 ? 0 : size / rows;
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < rows; ++i) {
    auto const in_head = turned ? 0 : i % tensor.rows;
    auto const other = i - in_head + in_head % 2 * (tensor.rows / 2) + in_head / 2;
    for (std::int64_t j = 0; j < width; ++j)
      row[static_cast<std::size_t>(j)] = numbers[static_cast<std::size_t>(turned ? j * rows + i : other * width + j)];
    to.write(std::span<float const>(row));
  }
}

}  // namespace detail

TRIREME_BODY gguf_model in_gguf(gpt const& model) {
  if (model.experts > 0)
    throw config_error("trireme::nn::in_gguf: llama.cpp has no GPT-2 with experts; use a model without experts");
  using detail::gguf_size;
  using order = gguf_tensor::order;
  gguf_model out{"gpt2", {}, {}};
  auto const c = model.channels;
  out.notes = {{"gpt2.context_length", gguf_size(model.context)},     {"gpt2.embedding_length", gguf_size(c)},
               {"gpt2.block_count", gguf_size(model.layers)},         {"gpt2.feed_forward_length", gguf_size(4 * c)},
               {"gpt2.attention.head_count", gguf_size(model.heads)}, {"gpt2.attention.layer_norm_epsilon", 1e-5F},
               {"gpt2.vocab_size", gguf_size(model.vocabulary)}};
  auto const pair = [&](std::string const& name, std::string const& source, shape const& weight, order how) {
    out.tensors.push_back({name + ".weight", weight, source + ".weight", how});
    out.tensors.push_back({name + ".bias", {weight[0]}, source + ".bias"});
  };
  out.tensors.push_back({"token_embd.weight", {model.vocabulary, c}, "transformer.wte.weight"});
  out.tensors.push_back({"position_embd.weight", {model.context, c}, "transformer.wpe.weight"});
  for (std::int64_t i = 0; i < model.layers; ++i) {
    auto const name = text("blk.", i, "."), source = text("transformer.h.", i, ".");
    pair(name + "attn_norm", source + "ln_1", {c}, order::same);
    pair(name + "attn_qkv", source + "attn.c_attn", {3 * c, c}, order::transposed);
    pair(name + "attn_output", source + "attn.c_proj", {c, c}, order::transposed);
    pair(name + "ffn_norm", source + "ln_2", {c}, order::same);
    pair(name + "ffn_up", source + "mlp.c_fc", {4 * c, c}, order::transposed);
    pair(name + "ffn_down", source + "mlp.c_proj", {c, 4 * c}, order::transposed);
  }
  pair("output_norm", "transformer.ln_f", {c}, order::same);
  return out;
}

namespace detail {

/// What Llama 3's rule divides frequencies by.
[[nodiscard]] TRIREME_BODY std::vector<float> gguf_rotary_factors(llama const& model) {
  auto const& angles = model.scaling;
  auto const width = model.width();
  std::vector<float> out;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    auto const turns = static_cast<double>(angles.original) *
                       std::pow(model.rotary, -2.0 * static_cast<double>(i) / static_cast<double>(width)) /
                       (2 * std::acos(-1.0));
    auto const kept = turns < angles.low    ? 0.0
                      : turns > angles.high ? 1.0
                                            : (turns - angles.low) / (angles.high - angles.low);
    out.push_back(static_cast<float>(1 / (kept + (1 - kept) / angles.factor)));
  }
  return out;
}

}  // namespace detail

TRIREME_BODY gguf_model in_gguf(llama const& model) {
  using detail::gguf_size;
  using order = gguf_tensor::order;
  bool const qwen = model.biased || model.head_norms;
  auto const& angles = model.scaling;
  bool const scaled = !exactly_equal(angles.factor, 1.0), by_turns = scaled && angles.original > 0;
  if (qwen && by_turns)
    throw config_error("trireme::nn::in_gguf: llama.cpp has no Qwen whose angles are scaled by Llama 3's rule");
  gguf_model out{model.biased ? "qwen2" : model.head_norms ? "qwen3" : "llama", {}, {}};
  auto const key = [&](char const* name) { return out.architecture + name; };
  auto const width = model.width(), c = model.channels;
  out.notes = {
      {key(".context_length"), gguf_size(model.window > 0 ? std::min(model.context, model.window) : model.context)},
      {key(".embedding_length"), gguf_size(c)},
      {key(".block_count"), gguf_size(model.layers)},
      {key(".feed_forward_length"), gguf_size(model.inner())},
      {key(".attention.head_count"), gguf_size(model.heads)},
      {key(".attention.head_count_kv"), gguf_size(model.keys())},
      {key(".attention.key_length"), gguf_size(width)},
      {key(".attention.value_length"), gguf_size(width)},
      {key(".attention.layer_norm_rms_epsilon"), static_cast<float>(model.epsilon)},
      {key(".rope.dimension_count"), gguf_size(width)},
      {key(".rope.freq_base"), static_cast<float>(model.rotary)},
      {key(".vocab_size"), gguf_size(model.vocabulary)}};
  if (scaled && !by_turns) {
    out.notes.emplace_back(key(".rope.scaling.type"), std::string("linear"));
    out.notes.emplace_back(key(".rope.scaling.factor"), static_cast<float>(angles.factor));
  }
  if (by_turns) out.notes.emplace_back(key(".rope.scaling.original_context_length"), gguf_size(angles.original));
  auto const add = [&](std::string const& name, std::string const& source, shape const& extents,
                       order how = order::same) {
    out.tensors.push_back({name, extents, source, how, how == order::paired ? width : 0});
  };
  add("token_embd.weight", "model.embed_tokens.weight", {model.vocabulary, c});
  if (by_turns) {  // what frequencies are divided by
    gguf_tensor factors{"rope_freqs.weight", {width / 2}, ""};
    factors.numbers = detail::gguf_rotary_factors(model);
    out.tensors.push_back(std::move(factors));
  }
  for (std::int64_t i = 0; i < model.layers; ++i) {
    auto const name = text("blk.", i, "."), source = text("model.layers.", i, ".");
    auto const of_heads = [&](char const* theirs, char const* ours, std::int64_t heads, bool turned) {
      auto const how = turned && !qwen ? order::paired : order::same;
      add(text(name, theirs, ".weight"), text(source, "self_attn.", ours, ".weight"), {heads * width, c}, how);
      if (model.biased)
        add(text(name, theirs, ".bias"), text(source, "self_attn.", ours, ".bias"), {heads * width}, how);
    };
    add(name + "attn_norm.weight", source + "input_layernorm.weight", {c});
    of_heads("attn_q", "q_proj", model.heads, true);
    of_heads("attn_k", "k_proj", model.keys(), true);
    of_heads("attn_v", "v_proj", model.keys(), false);
    if (model.head_norms) {
      add(name + "attn_q_norm.weight", source + "self_attn.q_norm.weight", {width});
      add(name + "attn_k_norm.weight", source + "self_attn.k_norm.weight", {width});
    }
    add(name + "attn_output.weight", source + "self_attn.o_proj.weight", {c, model.heads * width});
    add(name + "ffn_norm.weight", source + "post_attention_layernorm.weight", {c});
    add(name + "ffn_gate.weight", source + "mlp.gate_proj.weight", {model.inner(), c});
    add(name + "ffn_up.weight", source + "mlp.up_proj.weight", {model.inner(), c});
    add(name + "ffn_down.weight", source + "mlp.down_proj.weight", {c, model.inner()});
  }
  add("output_norm.weight", "model.norm.weight", {c});
  if (!model.tied) add("output.weight", "lm_head.weight", {model.vocabulary, c});
  return out;
}

TRIREME_BODY gguf_model in_gguf(deepseek const& model) {
  if (!exactly_equal(model.epsilon, 1e-6)) {
    throw config_error(text("trireme::nn::in_gguf: epsilon is ", model.epsilon,
                            "; the norms in DeepSeek's attention have 1e-6, and llama.cpp has one for all norms"));
  }
  using detail::gguf_size;
  using order = gguf_tensor::order;
  gguf_model out{"deepseek2", {}, {}};
  auto const c = model.channels, query = model.plain + model.rotary_width;
  auto const put = [&](char const* name, formats::gguf::value content) {
    out.notes.emplace_back(text("deepseek2.", name), std::move(content));
  };
  put("context_length", gguf_size(model.context));
  put("embedding_length", gguf_size(c));
  put("block_count", gguf_size(model.layers));
  put("feed_forward_length", gguf_size(model.hidden));
  put("attention.head_count", gguf_size(model.heads));
  put("attention.head_count_kv", std::uint32_t{1});
  put("attention.layer_norm_rms_epsilon", static_cast<float>(model.epsilon));
  if (model.query_rank > 0) put("attention.q_lora_rank", gguf_size(model.query_rank));
  put("attention.kv_lora_rank", gguf_size(model.rank));
  put("attention.key_length", gguf_size(model.rank + model.rotary_width));
  put("attention.value_length", gguf_size(model.rank));
  put("attention.key_length_mla", gguf_size(query));
  put("attention.value_length_mla", gguf_size(model.values));
  put("rope.dimension_count", gguf_size(model.rotary_width));
  put("rope.freq_base", static_cast<float>(model.rotary));
  put("vocab_size", gguf_size(model.vocabulary));
  put("leading_dense_block_count", gguf_size(model.dense));
  put("expert_feed_forward_length", gguf_size(model.expert_hidden));
  put("expert_count", gguf_size(model.experts));
  put("expert_used_count", gguf_size(model.top_k));
  put("expert_shared_count", gguf_size(model.shared));
  put("expert_group_count", gguf_size(model.groups));
  put("expert_group_used_count", gguf_size(model.chosen_groups));
  put("expert_weights_scale", static_cast<float>(model.scale));
  put("expert_weights_norm", true);
  put("expert_gating_func", std::uint32_t{2});  // sigmoid
  auto const add = [&](std::string const& name, std::string const& source, shape const& extents,
                       order how = order::same, std::int64_t rows = 0) {
    out.tensors.push_back({name, extents, source, how, rows});
  };
  add("token_embd.weight", "model.embed_tokens.weight", {model.vocabulary, c});
  for (std::int64_t i = 0; i < model.layers; ++i) {
    auto const name = text("blk.", i, "."), source = text("model.layers.", i, "."), attention = source + "self_attn.";
    add(name + "attn_norm.weight", source + "input_layernorm.weight", {c});
    if (model.query_rank > 0) {
      add(name + "attn_q_a.weight", attention + "q_a_proj.weight", {model.query_rank, c});
      add(name + "attn_q_a_norm.weight", attention + "q_a_layernorm.weight", {model.query_rank});
      add(name + "attn_q_b.weight", attention + "q_b_proj.weight", {model.heads * query, model.query_rank});
    } else {
      add(name + "attn_q.weight", attention + "q_proj.weight", {model.heads * query, c});
    }
    auto const rows = model.plain + model.values;
    add(name + "attn_kv_a_mqa.weight", attention + "kv_a_proj_with_mqa.weight", {model.rank + model.rotary_width, c});
    add(name + "attn_kv_a_norm.weight", attention + "kv_a_layernorm.weight", {model.rank});
    add(name + "attn_k_b.weight", attention + "kv_b_proj.weight", {model.heads, model.rank, model.plain}, order::keys,
        rows);
    add(name + "attn_v_b.weight", attention + "kv_b_proj.weight", {model.heads, model.values, model.rank},
        order::values, rows);
    add(name + "attn_output.weight", attention + "o_proj.weight", {c, model.heads * model.values});
    add(name + "ffn_norm.weight", source + "post_attention_layernorm.weight", {c});
    auto const mlp = [&](std::string const& end, std::string const& folder, std::int64_t width) {
      add(text(name, "ffn_gate", end, ".weight"), folder + "gate_proj.weight", {width, c});
      add(text(name, "ffn_up", end, ".weight"), folder + "up_proj.weight", {width, c});
      add(text(name, "ffn_down", end, ".weight"), folder + "down_proj.weight", {c, width});
    };
    if (i < model.dense) {
      mlp("", source + "mlp.", model.hidden);
      continue;
    }
    auto const count = model.experts, width = model.expert_hidden;
    auto const each = source + "mlp.experts.#.";
    add(name + "ffn_gate_inp.weight", source + "mlp.gate.weight", {count, c});
    add(name + "exp_probs_b.bias", source + "mlp.gate.e_score_correction_bias", {count});
    add(name + "ffn_gate_exps.weight", each + "gate_proj.weight", {count, width, c}, order::stacked);
    add(name + "ffn_up_exps.weight", each + "up_proj.weight", {count, width, c}, order::stacked);
    add(name + "ffn_down_exps.weight", each + "down_proj.weight", {count, c, width}, order::stacked);
    mlp("_shexp", source + "mlp.shared_experts.", model.shared * width);
  }
  add("output_norm.weight", "model.norm.weight", {c});
  add("output.weight", "lm_head.weight", {model.vocabulary, c});
  return out;
}

TRIREME_BODY gguf_model in_gguf(bert const& model) {
  using detail::gguf_size;
  gguf_model out{"bert", {}, {}};
  auto const c = model.channels;
  out.notes = {{"bert.context_length", gguf_size(model.context)},
               {"bert.embedding_length", gguf_size(c)},
               {"bert.block_count", gguf_size(model.layers)},
               {"bert.feed_forward_length", gguf_size(model.inner())},
               {"bert.attention.head_count", gguf_size(model.heads)},
               {"bert.attention.layer_norm_epsilon", static_cast<float>(model.epsilon)},
               {"bert.attention.causal", false},
               {"bert.vocab_size", gguf_size(model.vocabulary)},
               {"tokenizer.ggml.token_type_count", gguf_size(model.segments)}};
  auto const add = [&](std::string const& name, std::string const& source, shape const& extents) {
    out.tensors.push_back({name, extents, source});
  };
  auto const pair = [&](std::string const& name, std::string const& source, shape const& weight) {
    add(name + ".weight", source + ".weight", weight);
    add(name + ".bias", source + ".bias", {weight[0]});
  };
  add("token_embd.weight", "bert.embeddings.word_embeddings.weight", {model.vocabulary, c});
  add("position_embd.weight", "bert.embeddings.position_embeddings.weight", {model.context, c});
  add("token_types.weight", "bert.embeddings.token_type_embeddings.weight", {model.segments, c});
  pair("token_embd_norm", "bert.embeddings.LayerNorm", {c});
  for (std::int64_t i = 0; i < model.layers; ++i) {
    auto const name = text("blk.", i, "."), source = text("bert.encoder.layer.", i, ".");
    pair(name + "attn_q", source + "attention.self.query", {c, c});
    pair(name + "attn_k", source + "attention.self.key", {c, c});
    pair(name + "attn_v", source + "attention.self.value", {c, c});
    pair(name + "attn_output", source + "attention.output.dense", {c, c});
    pair(name + "attn_output_norm", source + "attention.output.LayerNorm", {c});
    pair(name + "ffn_up", source + "intermediate.dense", {model.inner(), c});
    pair(name + "ffn_down", source + "output.dense", {c, model.inner()});
    pair(name + "layer_output_norm", source + "output.LayerNorm", {c});
  }
  return out;
}

namespace detail {

/// Makes the tokenizer's metadata of a tokenizer.json.
class gguf_vocabulary {
 public:
  gguf_vocabulary(std::vector<formats::model_file> const& files, std::int64_t vocabulary) : count_(vocabulary) {
    auto const parsed = [&](std::string_view name) -> formats::json::value {
      auto const* const file = formats::find(files, name);
      if (file == nullptr) return nullptr;
      return formats::json::parse(file->content, name, {.values = std::size_t{1} << 22});
    };
    file_ = parsed("tokenizer.json");
    settings_ = parsed("tokenizer_config.json");
    config_ = parsed(formats::config_file);
    generation_ = parsed(generation_config_file);
    if (auto const* const chat = formats::find(files, "chat_template.jinja")) chat_ = chat->content;
    for (auto const* const name : {"tokenizer.model", "spiece.model"}) {
      auto const* const found = formats::find(files, name);
      if (found != nullptr && pieces_ == nullptr) pieces_ = found;
    }
    added_ = parsed("added_tokens.json");
  }

  [[nodiscard]] formats::gguf::metadata made() {
    if (!file_.is_null()) {
      of_file();
    } else if (pieces_ != nullptr) {
      of_pieces();
    } else if (count_ == 256) {
      of_bytes();
    } else {
      put("model", std::string("none"));
    }
    return std::move(out_);
  }

 private:
  using json = formats::json::value;
  enum type : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

  void put(std::string const& key, formats::gguf::value content) {
    out_.emplace_back("tokenizer.ggml." + key, std::move(content));
  }
  static json const* given(json const& in, std::string_view key) {
    if (!in.is_object()) return nullptr;
    auto const* const found = in.find(key);
    return found == nullptr || found->is_null() ? nullptr : found;
  }
  static bool flag(json const& in, std::string_view key, bool otherwise) {
    auto const* const found = given(in, key);
    return found == nullptr ? otherwise : found->as_bool();
  }
  /// A step, or the steps of a Sequence.
  static std::vector<json const*> steps(json const* what, std::string_view key) {
    std::vector<json const*> out;
    if (what == nullptr) return out;
    if (what->at("type").as_string() != "Sequence") return {what};
    for (auto const& each : what->at(key).as_array()) out.push_back(&each);
    return out;
  }

  /// A character of GPT-2's table that stands for a byte.
  static std::string letter_of(int byte) {
    bool const itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int code = byte;
    if (!itself) code = byte < 33 ? 256 + byte : byte < 161 ? 256 + 33 + byte - 127 : 256 + 33 + 34;
    if (code < 128) return {static_cast<char>(code)};
    return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  }
  void of_bytes() {
    std::vector<std::string> tokens;
    for (int i = 0; i < 256; ++i) tokens.push_back(letter_of(i));
    put("model", std::string("gpt2"));
    put("pre", std::string("gpt-2"));
    put("tokens", std::move(tokens));
    put("token_type", std::vector<std::int32_t>(256, normal));
    put("merges", std::vector<std::string>{});
    for (auto const* const which : {"bos_token_id", "eos_token_id"}) put(which, std::uint32_t{0});
    for (auto const* const which : {"add_bos_token", "add_eos_token"}) put(which, false);
  }

  void token(std::int64_t id, std::string const& content, std::int32_t kind, json const& where) {
    if (id < 0 || id >= count_)
      where.fail(
          text("the token \"", content.substr(0, 80), "\" has the id ", id, ", but the model has ", count_, " tokens"));
    tokens_[static_cast<std::size_t>(id)] = content;
    types_[static_cast<std::size_t>(id)] = kind;
    ids_[content] = id;
  }

  void of_file() {
    auto const& model = file_.at("model");
    auto const& kind = model.at("type").as_string();
    tokens_.resize(static_cast<std::size_t>(count_));
    types_.assign(tokens_.size(), unused);
    scores_.assign(tokens_.size(), 0);
    for (std::size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = text("[PAD", i, "]");
    if (kind == "Unigram") {
      of_unigrams(model);
    } else if (kind == "BPE" || kind == "WordPiece") {
      for (auto const& [content, id] : model.at("vocab").as_object()) token(id.as_int64(), content, normal, id);
    } else {
      model.fail(text("llama.cpp has no tokenizer of type \"", kind, "\""));
    }
    if (auto const* const added = given(file_, "added_tokens")) {
      for (auto const& each : added->as_array())
        token(each.at("id").as_int64(), each.at("content").as_string(),
              flag(each, "special", false) ? control : user_defined, each);
    }
    if (kind == "BPE") of_byte_pairs(model);
    if (kind == "WordPiece") of_word_pieces(model);
    specials(kind);
  }

  /// Of sentencepiece's own file.
  void of_pieces() {
    using sentencepiece = formats::sentencepiece_file;
    auto const file = sentencepiece::parse(pieces_->content, pieces_->name);
    auto const refuse = [&](auto const&... reason) { throw format_error(pieces_->name, 0, text(reason...)); };
    bool const pairs = file.model == sentencepiece::byte_pairs;
    if (!pairs && file.model != sentencepiece::unigram)
      refuse("llama.cpp has no sentencepiece model of words or characters, only of unigrams and byte pairs");
    if (pairs && !file.byte_fallback) refuse("llama.cpp has byte pairs of characters only with byte_fallback");
    if (!pairs && file.byte_fallback)
      refuse("llama.cpp has no unigrams with byte_fallback: it takes the unknown token for characters without one");
    if (pairs && !file.characters.empty())
      refuse("llama.cpp has no map of characters before byte pairs; sentencepiece's normalization is to be identity");
    auto const pieces = static_cast<std::int64_t>(file.pieces.size());
    if (pieces > count_) refuse("it has ", pieces, " pieces, but the model has ", count_, " tokens");
    tokens_.resize(static_cast<std::size_t>(count_));
    types_.assign(tokens_.size(), unused);
    scores_.assign(tokens_.size(), 0);
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      bool const known = i < file.pieces.size();
      tokens_[i] = known ? file.pieces[i].content : text("[PAD", i, "]");
      if (!known) continue;
      types_[i] = file.pieces[i].kind;
      scores_[i] = file.pieces[i].score;
      ids_[tokens_[i]] = static_cast<std::int64_t>(i);
    }
    if (added_.is_object()) {
      for (auto const& [content, id] : added_.as_object()) token(id.as_int64(), content, user_defined, id);
    }
    if (auto const* const more = given(settings_, "added_tokens_decoder")) {
      for (auto const& [id, what] : more->as_object()) {
        std::int64_t number = -1;
        std::from_chars(id.data(), id.data() + id.size(), number);
        auto const kind = flag(what, "special", false) ? control : user_defined;
        if (number >= pieces) token(number, what.at("content").as_string(), kind, what);
      }
    }
    if (file.unknown_id >= 0) unknown_ = file.unknown_id;
    lists(pairs ? "llama" : "t5", "default", true);
    put("add_space_prefix", file.prefix);
    if (!pairs) {
      put("remove_extra_whitespaces", !file.extra_spaces);
      if (!file.characters.empty()) {
        put("precompiled_charsmap", std::vector<std::uint8_t>(file.characters.begin(), file.characters.end()));
      }
    }
    // As transformers: Llama's begins with the first token, T5's ends with the last.
    if (given(settings_, "add_bos_token") == nullptr) begins_ = pairs;
    if (given(settings_, "add_eos_token") == nullptr) ends_ = !pairs;
    own_ = {{"bos", file.begin}, {"eos", file.end}, {"pad", file.padding}};
    specials(pairs ? "BPE" : "Unigram");
  }

  void lists(std::string const& model, std::string const& pre, bool scored) {
    put("model", model);
    put("pre", pre);
    put("tokens", tokens_);
    if (scored) put("scores", scores_);
    put("token_type", types_);
  }

  void of_unigrams(json const& model) {
    std::int64_t id = 0;
    for (auto const& each : model.at("vocab").as_array()) {
      auto const& both = each.as_array();
      if (both.size() != 2) each.fail("expected a token and its score");
      auto const& content = both[0].as_string();
      bool const is_byte = content.size() == 6 && content.starts_with("<0x") && content.ends_with('>');
      token(id, content, is_byte ? byte : normal, each);
      scores_[static_cast<std::size_t>(id++)] = static_cast<float>(both[1].as_double());
    }
    if (auto const* const which = given(model, "unk_id")) {
      auto const at = which->as_int64();
      if (at < 0 || at >= id) which->fail("the vocabulary has no such token");
      types_[static_cast<std::size_t>(at)] = unknown;
      unknown_ = at;
    }
    if (flag(model, "byte_fallback", false))
      model.fail(
          "llama.cpp has no unigrams with \"byte_fallback\": it takes the unknown token for characters without one");
    auto const map = character_map();
    bool spaces = false;  // whether several in a row become one
    for (auto const* const step : steps(given(file_, "normalizer"), "normalizers")) {
      auto const& kind = step->at("type").as_string();
      bool const of_spaces = kind == "Replace" && step->at("pattern").find("Regex") != nullptr;
      if (kind != "Precompiled" && kind != "Strip" && !of_spaces)
        step->fail(text("llama.cpp has no normalizer \"", kind, "\" for unigrams"));
      spaces = spaces || of_spaces;
    }
    for (auto const* const step : steps(given(file_, "pre_tokenizer"), "pretokenizers"))
      spaces = spaces || step->at("type").as_string() == "WhitespaceSplit";
    lists("t5", "default", true);
    put("add_space_prefix", prefix());
    put("remove_extra_whitespaces", spaces);
    if (!map.empty()) put("precompiled_charsmap", map);
  }
  /// sentencepiece's map of characters.
  std::vector<std::uint8_t> character_map() const {
    static constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::vector<std::uint8_t> out;
    for (auto const* const step : steps(given(file_, "normalizer"), "normalizers")) {
      if (step->at("type").as_string() != "Precompiled") continue;
      std::uint32_t bits = 0, held = 0;
      for (auto const letter : step->at("precompiled_charsmap").as_string()) {
        auto const value = digits.find(letter);
        if (value == std::string_view::npos) break;  // padding
        bits = bits << 6 | static_cast<std::uint32_t>(value);
        held += 6;
        if (held >= 8) out.push_back(static_cast<std::uint8_t>(bits >> (held -= 8) & 0xff));
      }
    }
    return out;
  }
  /// Whether a space is put before the first word.
  bool prefix() const {
    for (auto const* const step : steps(given(file_, "normalizer"), "normalizers")) {
      if (step->at("type").as_string() == "Prepend") return true;
    }
    for (auto const* const step : steps(given(file_, "pre_tokenizer"), "pretokenizers")) {
      auto const* const scheme = given(*step, "prepend_scheme");
      if (step->at("type").as_string() == "Metaspace")
        return scheme == nullptr ? flag(*step, "add_prefix_space", true) : scheme->as_string() != "never";
    }
    return false;
  }

  void of_byte_pairs(json const& model) {
    std::vector<std::string> merges;
    std::int64_t rank = 0;
    for (auto const& merge : model.at("merges").as_array()) {
      std::string left, right;
      if (merge.is_string()) {
        auto const space = merge.as_string().find(' ');
        if (space == std::string::npos) merge.fail("a merge is two tokens with one space between them");
        left = merge.as_string().substr(0, space), right = merge.as_string().substr(space + 1);
      } else {
        if (merge.as_array().size() != 2) merge.fail("a merge is two tokens");
        left = merge.as_array()[0].as_string(), right = merge.as_array()[1].as_string();
      }
      // llama.cpp ranks sentencepiece's byte pairs by scores: what is made earlier has the higher one.
      auto const made = ids_.find(left + right);
      if (made != ids_.end() && exactly_equal(scores_[static_cast<std::size_t>(made->second)], 0.0F))
        scores_[static_cast<std::size_t>(made->second)] = static_cast<float>(-rank - 1);
      ++rank;
      merges.push_back(left + " " + right);
    }
    auto const all = steps(given(file_, "pre_tokenizer"), "pretokenizers");
    bool const of_bytes =
        std::ranges::any_of(all, [](auto const* step) { return step->at("type").as_string() == "ByteLevel"; });
    if (!of_bytes) return of_character_pairs(model);
    for (auto const* const step : steps(given(file_, "normalizer"), "normalizers")) {
      if (step->at("type").as_string() != "NFC")
        step->fail(text("llama.cpp has no normalizer \"", step->at("type").as_string(), "\" for byte pairs"));
    }
    lists("gpt2", pre_tokenizer(all, model), false);
    put("merges", std::move(merges));
  }
  void of_character_pairs(json const& model) {
    if (!flag(model, "byte_fallback", false))
      model.fail("llama.cpp has byte pairs of characters only with \"byte_fallback\", as sentencepiece writes them");
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      auto const& each = tokens_[i];
      if (each.size() == 6 && each.starts_with("<0x") && each.ends_with('>') && types_[i] == normal) types_[i] = byte;
    }
    if (auto const* const which = given(model, "unk_token")) {
      if (auto const found = ids_.find(which->as_string()); found != ids_.end()) {
        types_[static_cast<std::size_t>(found->second)] = unknown;
        unknown_ = found->second;
      }
    }
    lists("llama", "default", true);
    put("add_space_prefix", prefix());
  }
  static std::string pre_tokenizer(std::vector<json const*> const& all, json const& model) {
    static constexpr std::string_view tail = "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}";
    std::string digits, expression;
    bool of_gpt = false;
    std::size_t splits = 0;
    for (auto const* const step : all) {
      auto const& kind = step->at("type").as_string();
      if (kind == "Digits" && flag(*step, "individual_digits", false)) {
        digits = "each";
      } else if (kind == "Split") {
        auto const* const written = step->at("pattern").find("Regex");
        if (written == nullptr) step->fail("llama.cpp has no pre-tokenizer that splits at this string");
        expression = written->as_string();
        ++splits;
      } else if (kind == "ByteLevel") {
        of_gpt = flag(*step, "use_regex", true);
        if (flag(*step, "add_prefix_space", true))
          step->fail("llama.cpp puts no space before a text; this needs \"add_prefix_space\": false");
      } else {
        step->fail(text("llama.cpp has no pre-tokenizer with the step \"", kind, "\" before byte pairs"));
      }
    }
    if (of_gpt && splits == 0) return digits.empty() ? "gpt-2" : "smollm";
    bool const words = splits == 1 && digits.empty() && !of_gpt &&
                       expression.starts_with("(?i:'s|'t|'re|'ve|'m|'ll|'d)" + std::string(tail)) &&
                       expression.ends_with("| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
    auto const count = words ? expression.find("\\p{N}{1,3}|") : std::string::npos;
    if (words && count != std::string::npos) return flag(model, "ignore_merges", false) ? "llama-bpe" : "smaug-bpe";
    if (words) return "qwen2";
    static constexpr std::string_view of_deepseek =
        "~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
        "?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    auto with_escapes = expression;  // DeepSeek's own file has the characters themselves
    for (auto const& [character, written] : {std::pair{'\r', "\\r"}, std::pair{'\n', "\\n"}}) {
      for (auto at = with_escapes.find(character); at != std::string::npos; at = with_escapes.find(character))
        with_escapes.replace(at, 1, written);
    }
    bool const deepseek = splits == 3 && digits.empty() && !of_gpt && all.front()->at("type").as_string() == "Split" &&
                          all.front()->at("pattern").at("Regex").as_string() == "\\p{N}{1,3}" &&
                          with_escapes.ends_with(of_deepseek);
    if (deepseek) return "deepseek-v3";
    all.front()->fail(
        "llama.cpp is known to have the pre-tokenizers of GPT-2, SmolLM, Llama 3, Qwen 2 and DeepSeek V3; "
        "this one is another");
  }

  void of_word_pieces(json const& model) {
    std::string mark = "##";
    if (auto const* const other = given(model, "continuing_subword_prefix")) mark = other->as_string();
    auto const* const norm = given(file_, "normalizer");
    if (norm != nullptr && norm->at("type").as_string() != "BertNormalizer")
      norm->fail(text("llama.cpp has no normalizer \"", norm->at("type").as_string(),
                      "\" for word pieces, only BertNormalizer"));
    bool const lower = norm != nullptr && flag(*norm, "lowercase", true);
    bool const strip = norm != nullptr && flag(*norm, "strip_accents", lower);
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (types_[i] == control || types_[i] == unused) continue;
      tokens_[i] = tokens_[i].starts_with(mark) ? tokens_[i].substr(mark.size()) : "\xe2\x96\x81" + tokens_[i];
    }
    lists("bert", "default", false);
    put("normalizer.lowercase", lower);
    put("normalizer.strip_accents", strip);
  }

  /// The id of a special token by the tokenizer's settings, the configuration's or, for the end, how texts end.
  std::optional<std::int64_t> special(std::string const& which) const {
    if (auto const* const content = given(settings_, which + "_token")) {
      auto const& name = content->is_object() ? content->at("content").as_string() : content->as_string();
      if (auto const found = ids_.find(name); found != ids_.end()) return found->second;
    }
    for (auto const* const in : {&config_, &generation_}) {
      auto const* id = given(*in, which + "_token_id");
      if (id != nullptr && id->is_array()) id = id->as_array().empty() ? nullptr : &id->as_array().front();
      if (id != nullptr && id->as_int64() >= 0 && id->as_int64() < count_) return id->as_int64();
    }
    auto const found = own_.find(which);
    if (found != own_.end() && found->second >= 0 && found->second < count_) return found->second;
    return std::nullopt;
  }
  /// The special tokens before and behind a text.
  std::pair<bool, bool> around() const {
    std::pair<bool, bool> out{flag(settings_, "add_bos_token", begins_), flag(settings_, "add_eos_token", ends_)};
    for (auto const* const step : steps(given(file_, "post_processor"), "processors")) {
      auto const& kind = step->at("type").as_string();
      if (kind == "BertProcessing" || kind == "RobertaProcessing") return {true, true};
      if (kind != "TemplateProcessing") continue;
      auto const& parts = step->at("single").as_array();
      if (parts.empty()) return {false, false};
      return {parts.front().find("SpecialToken") != nullptr, parts.back().find("SpecialToken") != nullptr};
    }
    return out;
  }
  void specials(std::string const& kind) {
    auto const number = [](std::int64_t id) { return static_cast<std::uint32_t>(id); };
    auto begin = special("bos"), end = special("eos");
    auto const separator = special("sep"), classifier = special("cls");
    if (!begin) begin = classifier;
    if (!end) end = separator;
    auto const [first, last] = around();
    if (begin) put("bos_token_id", number(*begin));
    // llama.cpp takes a token of its own choice for the end where none is named.
    if (end || kind == "BPE") put("eos_token_id", number(end ? *end : begin ? *begin : 0));
    if (!begin && kind == "BPE") put("bos_token_id", number(end.value_or(0)));
    auto const missing = unknown_ ? unknown_ : special("unk");
    if (missing) put("unknown_token_id", number(*missing));
    if (separator) put("seperator_token_id", number(*separator));  // the format's spelling
    if (auto const pad = special("pad")) put("padding_token_id", number(*pad));
    if (classifier) put("cls_token_id", number(*classifier));
    if (auto const mask = special("mask")) put("mask_token_id", number(*mask));
    put("add_bos_token", first);
    put("add_eos_token", last);
    auto const* const chat = given(settings_, "chat_template");
    if (chat_.empty() && chat != nullptr && chat->is_string()) chat_ = chat->as_string();
    if (!chat_.empty()) out_.emplace_back("tokenizer.chat_template", chat_);
  }

  std::int64_t count_;
  json file_, settings_, config_, generation_, added_;
  formats::model_file const* pieces_ = nullptr;           // sentencepiece's
  std::map<std::string, std::int64_t, std::less<>> own_;  // special tokens that it names
  bool begins_ = false, ends_ = false;                    // what a text has around it where no file says so
  std::string chat_;
  formats::gguf::metadata out_;
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> types_;
  std::vector<float> scores_;
  std::map<std::string, std::int64_t, std::less<>> ids_;
  std::optional<std::int64_t> unknown_;
};

/// Sorts tensors as in the file that options.like names; @returns their kinds there.
TRIREME_BODY std::map<std::string, formats::gguf::kind> put_like(gguf_model& what, gguf_options const& options,
                                                                 formats::file_system& files) {
  std::map<std::string, formats::gguf::kind> out;
  if (options.like.empty()) return out;
  formats::gguf::reader const other(options.like, files);
  std::vector<gguf_tensor> sorted;
  for (auto const& each : other.entries()) {
    auto const found = std::ranges::find(what.tensors, each.name, &gguf_tensor::name);
    if (found == what.tensors.end() || found->extents != each.extents) {
      throw config_error(text("trireme::nn::write_gguf: ", options.like, " has a tensor \"", each.name, "\" ",
                              to_string(each.extents), ", which the model does not have"));
    }
    out[each.name] = each.type;
    sorted.push_back(std::move(*found));
    what.tensors.erase(found);
  }
  sorted.insert(sorted.end(), std::make_move_iterator(what.tensors.begin()),
                std::make_move_iterator(what.tensors.end()));
  what.tensors = std::move(sorted);
  return out;
}

/// Writes a model whose description is read.
template <class Model>
std::uint64_t write_gguf_of(Model const& model, std::string const& directory, std::string const& path,
                            gguf_options const& options, formats::file_system& files) {
  auto out = in_gguf(model);
  auto const kinds = put_like(out, options, files);
  auto layout = model.in_files();
  if constexpr (std::is_same_v<Model, bert>) layout.leave_out("cls.* bert.pooler.* classifier.*");
  pretrained_reader const from(layout, directory, files);
  auto name = options.name;
  if (name.empty()) {
    auto const whole = std::filesystem::absolute(directory).lexically_normal();
    auto const folder = whole.filename().empty() ? whole.parent_path() : whole;
    name = (folder.filename() == "model" ? folder.parent_path() : folder).filename().string();
  }
  formats::gguf::metadata notes{{"general.architecture", out.architecture},
                                {"general.type", std::string("model")},
                                {"general.name", name},
                                {"general.file_type", gguf_file_type(options.type)},
                                {"general.quantization_version", std::uint32_t{2}}};
  notes.insert(notes.end(), out.notes.begin(), out.notes.end());
  auto const tokenizer = gguf_tokenizer(formats::read_model_files(directory, files), model.vocabulary);
  notes.insert(notes.end(), tokenizer.begin(), tokenizer.end());
  std::vector<formats::gguf::entry> entries;
  for (auto const& each : out.tensors) {
    auto const found = kinds.find(each.name);
    entries.push_back({each.name, found == kinds.end() ? gguf_kind(each, options.type) : found->second, each.extents});
  }
  formats::gguf::writer to(path, notes, std::move(entries), files);
  for (auto const& each : out.tensors) write_gguf_tensor(from, each, to);
  to.finish();
  return to.file_bytes();
}

}  // namespace detail

TRIREME_BODY formats::gguf::metadata gguf_tokenizer(std::vector<formats::model_file> const& files,
                                                    std::int64_t vocabulary) {
  return detail::gguf_vocabulary(files, vocabulary).made();
}

TRIREME_BODY std::uint64_t write_gguf(std::string const& directory, std::string const& path,
                                      gguf_options const& options, formats::file_system& files) {
  auto const type = model_type_in(directory, files);
  if (type.starts_with("gpt"))
    return detail::write_gguf_of(read_description<gpt>(directory, files), directory, path, options, files);
  if (type == "llama" || type == "mistral" || type == "qwen2" || type == "qwen3")
    return detail::write_gguf_of(read_description<llama>(directory, files), directory, path, options, files);
  if (type == "deepseek_v3")
    return detail::write_gguf_of(read_description<deepseek>(directory, files), directory, path, options, files);
  if (type == "bert")
    return detail::write_gguf_of(read_description<bert>(directory, files), directory, path, options, files);
  throw format_error(text(directory, "/", formats::config_file), 0,
                     text("a model of type \"", type.substr(0, 80),
                          "\" is not written as GGUF; gpt2, llama, mistral, qwen2, qwen3, deepseek_v3 and bert are"));
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_GGUF_IPP_INCLUDED
