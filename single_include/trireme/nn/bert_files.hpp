// Trireme 0.1.0: trireme/nn/bert_files.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 4eec0a85aab15706d946ce9f45d48671a4e780667c296d8cb78ff975dbe56e3e
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/pretrained.hpp"

// ---- trireme/nn/bert_files.hpp
namespace trireme::nn {

/// Sets a description to what a config.json of a BERT says: a classifier if its "architectures" is
/// BertForSequenceClassification, else a model of masked words. An encoder alone (BertModel) has neither head:
/// load_pretrained() with `fresh` starts one anew.
///
/// Which token ends a segment is the tokenizer's business, and transformers does not write it: `separator` stays unless
/// there is "sep_token_id", which config_of() writes.
///
/// Errors   format_error that points at the member, for what the model cannot be (another activation, relative
///          positions, a decoder, several labels a sample, ...), for sizes that are missing, and for those above 2^24.
void read_config(formats::json::value const& config, bert& to);

/// The config.json of a model; transformers 4 and 5 read it.
[[nodiscard]] formats::json::value config_of(bert const& model);

}  // namespace trireme::nn

#ifndef TRIREME_NN_BERT_FILES_IPP_INCLUDED
#define TRIREME_NN_BERT_FILES_IPP_INCLUDED

// ---- trireme/nn/bert_files.ipp
namespace trireme::nn {

namespace detail {

inline constexpr std::string_view bert_classifier = "BertForSequenceClassification";

/// Whether a config.json is that of a classifier; it may have labels without being one.
TRIREME_BODY bool is_bert_classifier(config_reader const& in) {
  auto const* const kinds = in.find("architectures");
  return kinds != nullptr && std::ranges::any_of(kinds->as_array(), [](formats::json::value const& kind) {
           return kind.as_string() == bert_classifier;
         });
}

/// As transformers counts the classes: by their names, which are not written if there are two.
TRIREME_BODY std::int64_t classes_in(config_reader const& in) {
  auto const* const names = in.find("id2label");
  auto const count = names == nullptr ? in.size("num_labels", 2) : static_cast<std::int64_t>(names->as_object().size());
  if (count < 2)
    in.config().fail(text("a classifier of ", how_many(count, "class"), "; nn::bert is read with 2 or more"));
  return count;
}

/// A token's number; null means that there is no such token, which is -1 here.
TRIREME_BODY std::int32_t token_in(config_reader const& in, std::string_view key, std::int32_t otherwise) {
  auto const* const given = in.config().find(key);
  if (given == nullptr) return otherwise;
  if (given->is_null()) return -1;
  auto const token = given->as_int64();
  if (token < 0 || token >= in.most) given->fail(text("\"", key, "\" is ", token, "; it is from 0 to ", in.most - 1));
  return static_cast<std::int32_t>(token);
}

}  // namespace detail

TRIREME_BODY void read_config(formats::json::value const& config, bert& to) {
  detail::config_reader const in(config, "nn::bert");
  if (auto const type = in.type(); type != "bert")
    in.at("model_type").fail(text("nn::bert is \"bert\", not \"", type.substr(0, 80), "\""));
  in.expect("quantization_config", {});
  in.expect("hidden_act", {"gelu"});
  in.expect("position_embedding_type", {"absolute"});
  in.expect("is_decoder", {false});
  in.expect("add_cross_attention", {false});
  in.expect("tie_word_embeddings", {true});
  in.expect("problem_type", {"single_label_classification"});
  to.vocabulary = in.size("vocab_size");
  to.context = in.size("max_position_embeddings");
  to.layers = in.size("num_hidden_layers");
  to.heads = in.size("num_attention_heads");
  to.channels = in.size("hidden_size");
  to.hidden = in.size("intermediate_size");
  to.segments = in.size("type_vocab_size", 2);
  to.classes = detail::is_bert_classifier(in) ? detail::classes_in(in) : 0;
  to.padding = detail::token_in(in, "pad_token_id", 0);
  to.separator = detail::token_in(in, "sep_token_id", to.separator);
  to.dropout = in.number("hidden_dropout_prob", 0.1);
  in.expect("attention_probs_dropout_prob", {to.dropout});
  in.expect("classifier_dropout", {to.dropout});
  to.epsilon = in.number("layer_norm_eps", 1e-12);
}

TRIREME_BODY formats::json::value config_of(bert const& model) {
  namespace json = formats::json;
  auto const token = [](std::int32_t id) { return id < 0 ? json::value(nullptr) : json::value(id); };
  bool const classifies = model.classes > 0;
  json::value config = json::value::make(
      {{"model_type", "bert"},
       {"architectures", json::array{classifies ? std::string(detail::bert_classifier) : "BertForMaskedLM"}},
       {"vocab_size", model.vocabulary},
       {"max_position_embeddings", model.context},
       {"num_hidden_layers", model.layers},
       {"num_attention_heads", model.heads},
       {"hidden_size", model.channels},
       {"intermediate_size", model.inner()},
       {"type_vocab_size", model.segments},
       {"hidden_act", "gelu"},
       {"position_embedding_type", "absolute"},
       {"hidden_dropout_prob", model.dropout},
       {"attention_probs_dropout_prob", model.dropout},
       {"layer_norm_eps", model.epsilon},
       {"pad_token_id", token(model.padding)},
       {"sep_token_id", token(model.separator)},
       {"tie_word_embeddings", true}});
  if (classifies) {
    config.set("problem_type", "single_label_classification");
    config.set("num_labels", model.classes);
  }
  return config;
}

}  // namespace trireme::nn

#endif  // TRIREME_NN_BERT_FILES_IPP_INCLUDED
