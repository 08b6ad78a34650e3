#pragma once

#include "trireme/formats/json.hpp"
#include "trireme/nn/bert.hpp"
#include "trireme/nn/pretrained.hpp"

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

#ifndef TRIREME_COMPILED
#include "trireme/nn/bert_files.ipp"
#endif
