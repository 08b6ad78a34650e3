#pragma once

// Conversations as the data of a run: --data FILE.jsonl with --tokenizer. Losses are those of answers alone.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"
#include "text_record.hpp"
#include "tokens.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/data/chat_lines.hpp"
#include "trireme/data/chat_template.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/documents.hpp"
#include "trireme/formats/zstd.hpp"
#ifdef TRAIN_GPT_ZLIB  // where zlib is
#include "../gzip.hpp"
#endif

/// Whether --data names conversations: JSON lines. Texts in JSON lines are made shards first (scripts/train does so).
[[nodiscard]] inline bool names_conversations(options const& given) {
  return trireme::data::detail::is_json_lines(given.text("data"));
}

/// The template: as --chat says, or that beside the tokenizer. Throws config_error.
/// @param tokenizer  the path of its file.
[[nodiscard]] inline trireme::data::chat_template chat_format(options const& given, std::string const& tokenizer) {
  using trireme::data::chat_template;
  auto const chosen = given.choice("chat", {"auto", "chatml", "llama3", "plain"});
  if (chosen > 0) return static_cast<chat_template>(chosen - 1);
  auto const slash = tokenizer.rfind('/');
  try {
    return trireme::data::chat_template_in(slash == std::string::npos ? "." : tokenizer.substr(0, slash));
  } catch (trireme::config_error const& problem) {
    throw trireme::config_error(trireme::text(problem.what(), "; choose it by --chat chatml, llama3 or plain"));
  }
}

/// What the options say about conversations. Throws config_error.
[[nodiscard]] inline trireme::data::chat_lines described_conversations(options const& given,
                                                                       token_choice const& tokens) {
  using namespace trireme;
  data::chat_lines out{
      .files = given.text("data"),
      .context = given.number("context", 2),
      .format = chat_format(given, given.text("tokenizer")),
      .longer = static_cast<data::too_long>(given.choice("chat-longer", {"refused", "cut", "left_out"})),
      .packing = static_cast<data::chat_packing>(given.choice("chat-packing", {"none", "best_fit"}))};
  if (out.format != data::chat_template::plain) return out;
  for (auto const* const usual :
       {"<|endoftext|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "</s>", "<|im_end|>"}) {
    if (tokens.encode(usual).size() == 1) {
      out.end = usual;
      return out;
    }
  }
  throw config_error("--chat plain needs a token that ends answers, and this tokenizer has none of the usual ones");
}

[[nodiscard]] inline trireme::data::chat_samples read_conversations(options const& given, token_choice const& tokens) {
  using namespace trireme;
  return described_conversations(given, tokens)
      .open([&](std::string_view text) { return tokens.encode(text); }, {formats::unzstd
#ifdef TRAIN_GPT_ZLIB
                                                                         ,
                                                                         formats::gunzip
#endif
                                                                        });
}

/// Identifies conversations by their number and all of their tokens.
[[nodiscard]] inline text_record examine_conversations(trireme::data::chat_samples const& all,
                                                       std::string const& path) {
  text_record out{path, all.size(), {}, 0, {}};
  auto const length = static_cast<std::size_t>(all.input_shape().size());
  std::vector<std::int32_t> numbers(2 * length);
  trireme::sha256 hash;
  for (std::int64_t id = 0; id < all.size(); ++id) {
    all.read({&id, 1}, numbers.data(), numbers.data() + length);
    hash.update(std::as_bytes(std::span(numbers)));
  }
  out.sha256 = hash.hexadecimal();
  return out;
}

/// Some samples of a dataset, one after the other.
[[nodiscard]] inline trireme::data::subset samples_of(trireme::data::shared_dataset const& from, std::int64_t first,
                                                      std::int64_t end) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(end - first));
  std::iota(ids.begin(), ids.end(), first);
  return {from, std::move(ids)};
}

/// The two parts of a run's conversations: the last tenth is held out. A resumed run keeps its split.
///
/// Throws config_error if there are fewer than two samples, or if a resumed run had others, unless that is accepted.
[[nodiscard]] inline chat_split cut_conversations(trireme::data::chat_samples const& all, text_record& chats,
                                                  std::optional<text_record> const& before, bool accept_new) {
  using namespace trireme;
  auto const many = [](std::int64_t count) { return how_many(count, "sample"); };
  if (all.size() < 2) {
    throw config_error(trireme::text("--data ", chats.path, " has ", many(all.size()),
                                     " of conversations, but at least two are needed, since one is held out"));
  }
  chats.held_out_begin = before ? before->held_out_begin : all.size() - std::max<std::int64_t>(1, all.size() / 10);
  if (before && !before->same_text(chats) && !accept_new) {
    throw config_error(
        trireme::text("--data ", chats.path, " has ", many(chats.bytes), " of conversations with the SHA-256 ",
                      chats.sha256.substr(0, 12), "..., but the run was trained on ", before->path, " of ",
                      before->bytes, " with the SHA-256 ", before->sha256.substr(0, 12),
                      "...; restore those files, or give --accept-new-text to continue with these, split at sample ",
                      before->held_out_begin, " as before"));
  }
  if (chats.held_out_begin >= all.size()) {
    throw config_error(trireme::text("--data ", chats.path, " has ", many(all.size()),
                                     " of conversations, but its held-out part begins at sample ", chats.held_out_begin,
                                     "; give more of them, or start another run"));
  }
  return {samples_of(all, 0, chats.held_out_begin),
          samples_of(all, chats.held_out_begin, all.size()),
          {.conversations = all.conversation_count(),
           .targets = all.target_count(),
           .cut = all.cut(),
           .left_out = all.left_out()}};
}
