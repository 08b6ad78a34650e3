// Trireme 0.1.0: trireme/data/chat_lines.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 152c29f1c69519369fd5a655c8d089181cd8382952b6feb4bbc37ccd501b8781
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/documents.hpp"
#include "trireme/data/file_list.hpp"
#include "trireme/data/text_tokens.hpp"

// ---- trireme/data/chat_lines.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#ifndef TRIREME_DATA_DETAIL_BEST_FIT_INCLUDED
#define TRIREME_DATA_DETAIL_BEST_FIT_INCLUDED

// ---- trireme/data/detail/best_fit.hpp
#include <map>

namespace trireme::data::detail {

/// Pieces in bins: bin b holds pieces[begins[b]], ..., pieces[begins[b + 1] - 1].
struct filled_bins {
  std::vector<std::int64_t> pieces;
  std::vector<std::int64_t> begins{0};
};

/// Puts pieces into as few bins as it can: the largest piece first, each into the fullest bin that has room for it
/// [Ding et al., "Fewer truncations improve language modeling", 2024]. The result depends on the sizes alone.
///
/// @param sizes  each from 1 to capacity.
[[nodiscard]] inline filled_bins best_fit(std::span<std::int32_t const> sizes, std::int32_t capacity) {
  auto const most = static_cast<std::size_t>(capacity);
  std::vector<std::int64_t> order(sizes.size()), at(most + 1);  // by size, the largest first; equal ones as they come
  for (auto const size : sizes) ++at[most - static_cast<std::size_t>(size)];
  std::int64_t sum = 0;
  for (auto& each : at) {
    auto const count = each;
    each = sum;
    sum += count;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    order[static_cast<std::size_t>(at[most - static_cast<std::size_t>(sizes[i])]++)] = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> bin_of(sizes.size());
  std::map<std::int32_t, std::vector<std::int64_t>> with_room;  // bins by what is left in them
  std::int64_t bins = 0;
  for (auto const piece : order) {
    auto const size = sizes[static_cast<std::size_t>(piece)];
    auto const found = with_room.lower_bound(size);
    auto left = capacity;
    auto bin = bins;
    if (found == with_room.end()) {
      ++bins;
    } else {
      left = found->first;
      bin = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) with_room.erase(found);
    }
    bin_of[static_cast<std::size_t>(piece)] = bin;
    if (left > size) with_room[left - size].push_back(bin);
  }
  filled_bins out;
  out.begins.assign(static_cast<std::size_t>(bins) + 1, 0);
  for (auto const bin : bin_of) ++out.begins[static_cast<std::size_t>(bin) + 1];
  for (std::size_t b = 1; b < out.begins.size(); ++b) out.begins[b] += out.begins[b - 1];
  auto next = out.begins;
  out.pieces.resize(sizes.size());
  for (auto const piece : order) {
    auto const bin = static_cast<std::size_t>(bin_of[static_cast<std::size_t>(piece)]);
    out.pieces[static_cast<std::size_t>(next[bin]++)] = piece;
  }
  return out;
}

}  // namespace trireme::data::detail

#endif  // TRIREME_DATA_DETAIL_BEST_FIT_INCLUDED

// ---- trireme/data/chat_lines.hpp (goes on)
namespace trireme::data {

/// How a conversation becomes one text. In each, `content` stands for what a message says.
enum class chat_template {
  chatml,  ///< <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message; no system message is added
  llama3,  ///< <|begin_of_text|>, then <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|> for each message,
           ///< with no white space at the ends of CONTENT; without the dates that Llama 3.1 adds
  plain,   ///< CONTENT for each message, and `chat_lines::end` after each answer
};

[[nodiscard]] constexpr std::string_view name_of(chat_template kind) noexcept {
  constexpr std::string_view names[] = {"chatml", "llama3", "plain"};
  return names[static_cast<std::size_t>(kind)];
}

/// What happens to a sample that does not fit the context.
enum class too_long {
  refused,   ///< open() throws an error that names it
  cut,       ///< its end is left out; a sample of which no answer is left is left out whole
  left_out,  ///< the whole sample is left out
};

[[nodiscard]] constexpr std::string_view name_of(too_long what) noexcept {
  constexpr std::string_view names[] = {"refused", "cut", "left_out"};
  return names[static_cast<std::size_t>(what)];
}

/// How many conversations a sample holds.
enum class chat_packing {
  none,      ///< one
  best_fit,  ///< as many whole ones as fit
};

[[nodiscard]] constexpr std::string_view name_of(chat_packing what) noexcept {
  return what == chat_packing::none ? "none" : "best_fit";
}

class chat_samples;

/// Conversations in JSON lines, to fine-tune a language model on their answers.
///
/// Each line is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...]} or
/// {"prompt": "...", "completion": "..."}, which stands for a message of the user and an answer. Other members are
/// ignored. Targets are the tokens of answers (messages of the assistant) and the token that ends each of them; all
/// other targets are -1, which losses ignore.
///
///     data::chat_lines{.files = "chats.jsonl", .context = 2048, .longer = data::too_long::cut}
///         .open([&](std::string_view text) { return words.encode(text, formats::special_tokens::without); })
///
/// A sample is one conversation. With `.packing = chat_packing::best_fit` it holds as many whole ones as fit; no target
/// is a token of another conversation. They attend to each other unless `.separator` is given, which then stands
/// between them, and the model has `nn::attend{.tokens = {.separator = ...}}`: a token that no message contains.
///
/// Special tokens that a message spells out (<|im_end|>, say) become those tokens, as in transformers'
/// apply_chat_template: remove them from texts that you do not trust.
///
/// Errors   open() throws config_error if a field is out of range, if a mark of the template is not one token of the
///          encoder, or if no sample is left; format_error, with file and byte, for a line that is not as above, has no
///          answer, or is too long and `.longer` is refused; io_error as token_file; exceptions of the encoder.
struct chat_lines {
  file_list files{};
  std::int64_t context = 1024;  ///< tokens of a sample
  chat_template format = chat_template::chatml;
  too_long longer = too_long::refused;
  std::int32_t padding = 0;  ///< the input behind the end of a shorter sample
  std::string end{};         ///< of chat_template::plain: the special token after each answer ("<|endoftext|>")
  chat_packing packing = chat_packing::none;
  std::int32_t separator = -1;  ///< of packed samples: the token after each conversation; -1: none
  /// @param encode    text to tokens, special tokens in it to their ids, without adding any.
  /// @param can_read  for compressed files: {formats::gunzip, formats::unzstd}.
  template <text_encoder Encode>
  [[nodiscard]] chat_samples open(Encode const& encode, std::vector<formats::decompressor> const& can_read = {}) const;
  friend bool operator==(chat_lines const&, chat_lines const&) = default;
};

/// "trireme::data::chat_lines{.files = "chats.jsonl", .context = 1024, ...}"
[[nodiscard]] inline std::string to_string(chat_lines const& from) {
  return text("trireme::data::chat_lines{.files = ", to_string(from.files), ", .context = ", from.context,
              ", .format = trireme::data::chat_template::", name_of(from.format),
              ", .longer = trireme::data::too_long::", name_of(from.longer), ", .padding = ", from.padding,
              ", .end = \"", from.end, "\", .packing = trireme::data::chat_packing::", name_of(from.packing),
              ", .separator = ", from.separator, "}");
}

namespace detail {

/// A conversation as one text, and where answers are in it.
struct chat_text {
  struct answer {
    std::size_t begin, end;  ///< with the mark at its end
  };
  std::string text;
  std::vector<answer> answers;
};

/// The text without the characters at its ends that Python's str.strip() removes, as the filter `trim` of templates.
[[nodiscard]] inline std::string_view without_spaces(std::string_view text) {
  static constexpr std::string_view spaces[] = {" ",
                                                "\t",
                                                "\n",
                                                "\v",
                                                "\f",
                                                "\r",
                                                "\x1c",
                                                "\x1d",
                                                "\x1e",
                                                "\x1f",
                                                "\xc2\x85",
                                                "\xc2\xa0",
                                                "\xe1\x9a\x80",
                                                "\xe2\x80\x80",
                                                "\xe2\x80\x81",
                                                "\xe2\x80\x82",
                                                "\xe2\x80\x83",
                                                "\xe2\x80\x84",
                                                "\xe2\x80\x85",
                                                "\xe2\x80\x86",
                                                "\xe2\x80\x87",
                                                "\xe2\x80\x88",
                                                "\xe2\x80\x89",
                                                "\xe2\x80\x8a",
                                                "\xe2\x80\xa8",
                                                "\xe2\x80\xa9",
                                                "\xe2\x80\xaf",
                                                "\xe2\x81\x9f",
                                                "\xe3\x80\x80"};
  for (bool found = true; found;) {
    found = false;
    for (auto const space : spaces) {
      if (text.starts_with(space)) text.remove_prefix(space.size()), found = true;
      if (text.ends_with(space)) text.remove_suffix(space.size()), found = true;
    }
  }
  return text;
}

/// The mark that ends an answer.
[[nodiscard]] inline std::string_view end_mark(chat_lines const& from) {
  return from.format == chat_template::chatml   ? std::string_view("<|im_end|>")
         : from.format == chat_template::llama3 ? std::string_view("<|eot_id|>")
                                                : std::string_view(from.end);
}

/// Adds a message to a conversation.
inline void add_message(chat_lines const& from, chat_text& to, std::string_view role, std::string_view content) {
  if (from.format == chat_template::chatml) {
    to.text += text("<|im_start|>", role, "\n");
  } else if (from.format == chat_template::llama3) {
    to.text += text(to.text.empty() ? "<|begin_of_text|>" : "", "<|start_header_id|>", role, "<|end_header_id|>\n\n");
    content = without_spaces(content);
  }
  bool const answer = role == "assistant";
  auto const begin = to.text.size();
  to.text += content;
  if (answer || from.format != chat_template::plain) to.text += end_mark(from);
  if (answer) to.answers.push_back({begin, to.text.size()});
  if (from.format == chat_template::chatml) to.text += '\n';
}

/// The text of a line.
/// Errors   format_error if it is not a conversation with an answer.
[[nodiscard]] inline chat_text chat_text_of(chat_lines const& from, formats::json::value const& line) {
  chat_text out;
  if (auto const* const messages = line.find("messages")) {
    for (auto const& message : messages->as_array()) {
      auto const& role = message.at("role");
      if (role.as_string().empty()) role.fail("a message with an empty role");
      add_message(from, out, role.as_string(), message.at("content").as_string());
    }
  } else if (auto const* const prompt = line.find("prompt")) {
    add_message(from, out, "user", prompt->as_string());
    add_message(from, out, "assistant", line.at("completion").as_string());
  } else {
    line.fail("a line is an object with \"messages\", or with \"prompt\" and \"completion\"");
  }
  if (out.answers.empty()) line.fail("the conversation has no message of the role \"assistant\", so no targets");
  return out;
}

}  // namespace detail

/// Conversations as samples.
///
/// Shapes   inputs (T) int32: the tokens of one conversation, or of several, then `.padding`; targets (T) int32:
///          the next token of the same conversation where that is part of an answer, else -1.
/// Bytes    4 per token, and 16 per conversation if they are packed; copies share them.
/// Threads  read() is const.
/// @models trireme::dataset          @see chat_lines
class chat_samples {
 public:
  /// @param tokens  of all samples, one after the other; an answer's tokens t stand as ~t.
  /// @param begins  the first token of each conversation, and one past the last.
  /// @param packing how many conversations a sample holds, with the token `separator` after each unless that is -1.
  chat_samples(std::vector<std::int32_t> tokens, std::vector<std::int64_t> begins, std::int64_t context,
               std::int32_t padding, std::int64_t cut, std::int64_t left_out, chat_packing packing = chat_packing::none,
               std::int32_t separator = -1)
      : context_(context), padding_(padding), separator_(separator), cut_(cut), left_out_(left_out) {
    held all{std::move(tokens), std::move(begins), {}};
    if (packing == chat_packing::best_fit) {
      std::vector<std::int32_t> sizes;
      for (std::size_t i = 0; i + 1 < all.begins.size(); ++i) {
        sizes.push_back(static_cast<std::int32_t>(places(all.begins[i + 1] - all.begins[i])));
      }
      all.bins = detail::best_fit(sizes, static_cast<std::int32_t>(context));
    }
    held_ = std::make_shared<held const>(std::move(all));
  }

  [[nodiscard]] std::int64_t token_count() const noexcept { return static_cast<std::int64_t>(held_->tokens.size()); }
  /// Those of all samples.
  [[nodiscard]] std::int64_t conversation_count() const noexcept {
    return static_cast<std::int64_t>(held_->begins.size()) - 1;
  }
  /// Samples whose end was left out because they were longer than the context.
  [[nodiscard]] std::int64_t cut() const noexcept { return cut_; }
  /// Samples that were left out because they were longer than the context.
  [[nodiscard]] std::int64_t left_out() const noexcept { return left_out_; }
  /// The targets that are not -1, of all samples.
  [[nodiscard]] std::int64_t target_count() const {
    std::int64_t out = 0;
    for (std::size_t i = 0; i + 1 < held_->begins.size(); ++i) {
      for (auto t = held_->begins[i] + 1; t < held_->begins[i + 1]; ++t) {
        out += held_->tokens[static_cast<std::size_t>(t)] < 0 ? 1 : 0;
      }
    }
    return out;
  }

  [[nodiscard]] std::int64_t size() const noexcept {
    return packed() ? static_cast<std::int64_t>(held_->bins.begins.size()) - 1 : conversation_count();
  }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::i32; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {context_}; }
  [[nodiscard]] shape target_shape() const { return {context_}; }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      auto left = context_;
      auto const add = [&](std::int64_t conversation) {
        auto const begin = held_->begins[static_cast<std::size_t>(conversation)];
        auto const count = held_->begins[static_cast<std::size_t>(conversation) + 1] - begin;
        auto const used = places(count);
        auto const* const tokens = held_->tokens.data() + begin;
        for (std::int64_t t = 0; t < used; ++t) {
          *in++ = t >= count ? separator_ : tokens[t] < 0 ? ~tokens[t] : tokens[t];
          *out++ = t + 1 < count && tokens[t + 1] < 0 ? ~tokens[t + 1] : -1;
        }
        left -= used;
      };
      if (packed()) {
        auto const bin = static_cast<std::size_t>(id);
        for (auto i = held_->bins.begins[bin]; i < held_->bins.begins[bin + 1]; ++i) {
          add(held_->bins.pieces[static_cast<std::size_t>(i)]);
        }
      } else {
        add(id);
      }
      in = std::fill_n(in, left, padding_);
      out = std::fill_n(out, left, -1);
    }
  }

 private:
  struct held {
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> begins;
    detail::filled_bins bins;
  };
  [[nodiscard]] bool packed() const noexcept { return held_->bins.begins.size() > 1; }
  /// How many places of a sample a conversation of so many tokens takes. Of the longest ones the last token is a target
  /// alone.
  [[nodiscard]] std::int64_t places(std::int64_t tokens) const noexcept {
    return std::min(tokens + (separator_ >= 0 ? 1 : 0), context_);
  }
  std::shared_ptr<held const> held_;
  std::int64_t context_;
  std::int32_t padding_, separator_;
  std::int64_t cut_, left_out_;
};

namespace detail {

inline constexpr char const* chat_lines_name = "trireme::data::chat_lines";

/// The tokens of a conversation; those of answers as ~token.
///
/// The text is encoded in parts that end behind an answer, each with the mark that ends answers before it. That mark is
/// a token of its own wherever it stands, so these are the tokens of the whole text. A token that begins before an
/// answer and ends in it belongs to the answer.
template <text_encoder Encode>
[[nodiscard]] std::vector<std::int32_t> chat_tokens(chat_lines const& from, chat_text const& chat,
                                                    Encode const& encode) {
  auto const mark = std::string(end_mark(from));
  std::vector<std::int32_t> out;
  std::size_t done = 0;
  auto const encoded = [&](std::size_t end) {
    auto const part = std::string_view(chat.text).substr(done, end - done);
    if (done == 0) return std::vector<std::int32_t>(encode(part));
    std::vector<std::int32_t> all = encode(std::string_view(text(mark, part)));
    if (!all.empty()) all.erase(all.begin());
    return all;
  };
  for (auto const& answer : chat.answers) {
    auto const whole = encoded(answer.end), before = encoded(answer.begin);
    auto const [mine, theirs] = std::mismatch(whole.begin(), whole.end(), before.begin(), before.end());
    out.insert(out.end(), whole.begin(), mine);
    for (auto at = mine; at != whole.end(); ++at) out.push_back(~*at);
    done = answer.end;
  }
  if (done < chat.text.size()) {
    auto const rest = encoded(chat.text.size());
    out.insert(out.end(), rest.begin(), rest.end());
  }
  return out;
}

/// Refuses an encoder in which a mark of the template is not one token.
template <text_encoder Encode>
void expect_marks(chat_lines const& from, Encode const& encode) {
  std::vector<std::string> marks{std::string(end_mark(from))};
  if (from.format == chat_template::chatml) marks.insert(marks.end(), {"<|im_start|>"});
  if (from.format == chat_template::llama3) {
    marks.insert(marks.end(), {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"});
  }
  for (auto const& mark : marks) {
    std::vector<std::int32_t> const tokens = encode(std::string_view(mark));
    if (tokens.size() == 1) continue;
    throw config_error(text(chat_lines_name, ": \"", mark, "\" is not a token of this tokenizer, but ",
                            how_many(tokens.size(), "token"), "; choose another .format, or add it to the tokenizer"));
  }
}

}  // namespace detail

template <text_encoder Encode>
chat_samples chat_lines::open(Encode const& encode, std::vector<formats::decompressor> const& can_read) const {
  auto const refuse = [](auto const&... parts) { return config_error(text(detail::chat_lines_name, ": ", parts...)); };
  if (context < 1) throw refuse(".context = ", context, ", but at least 1 is needed");
  if (padding < 0) throw refuse(".padding = ", padding, ", but it must be a token");
  if (packing == chat_packing::none && separator != -1) {
    throw refuse(".separator = ", separator, " stands between conversations that are packed; leave it out, or give ",
                 ".packing = chat_packing::best_fit");
  }
  if (packing == chat_packing::best_fit && (separator < -1 || context >= std::int64_t{1} << 30)) {
    throw refuse(".separator = ", separator, " and .context = ", context,
                 ", but the separator must be a token or -1, and packed samples have less than 2^30 tokens");
  }
  if (format == chat_template::plain && end.empty()) {
    throw refuse("chat_template::plain needs .end, the special token after each answer (\"<|endoftext|>\")");
  }
  if (format != chat_template::plain && !end.empty()) {
    throw refuse(".end is only of chat_template::plain; leave it out");
  }
  detail::expect_marks(*this, encode);
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> begins{0};
  std::int64_t cut = 0, left_out = 0;
  detail::document_reader reader({.files = files}, detail::chat_lines_name, {}, can_read);
  for (auto const& name : reader.names()) {
    if (!detail::is_json_lines(name)) throw refuse(name, " does not end in .jsonl");
  }
  for (detail::document_block block; reader.next(block);) {
    auto const& name = reader.names()[static_cast<std::size_t>(block.begin.file)];
    auto const read = [&](formats::json::value const& line) {
      auto some = detail::chat_tokens(*this, detail::chat_text_of(*this, line), encode);
      auto const most = static_cast<std::size_t>(context) + 1;  // the last one is a target alone
      if (some.size() <= most) return some;
      auto const is_answer = [](std::int32_t token) { return token < 0; };
      auto const last = std::find_if(some.rbegin(), some.rend(), is_answer);
      auto const needed =
          static_cast<std::size_t>(some.rend() - last);  // tokens behind the last answer are not targets
      if (needed > most && longer == too_long::refused) {
        line.fail(text("the conversation has ", needed, " tokens, but .context = ", context,
                       " takes at most one more than that many; give a longer .context, or .longer = too_long::cut"));
      }
      some.resize(most);
      bool const none_left = std::none_of(some.begin() + 1, some.end(), is_answer);
      if (none_left || (needed > most && longer == too_long::left_out)) {
        some.clear();
        ++left_out;
      } else if (needed > most) {
        ++cut;
      }
      return some;
    };
    detail::for_each_json_line(block, name, read, [&](std::vector<std::int32_t> const& some, std::uint64_t) {
      if (some.empty()) return;
      tokens.insert(tokens.end(), some.begin(), some.end());
      begins.push_back(static_cast<std::int64_t>(tokens.size()));
    });
  }
  if (begins.size() == 1) {
    throw refuse("no sample is left; ", how_many(left_out, "sample"), agreeing(left_out, " is", " are"),
                 " longer than .context = ", context);
  }
  return {std::move(tokens), std::move(begins), context, padding, cut, left_out, packing, separator};
}

}  // namespace trireme::data
