// Trireme 0.1.0: trireme/serve/openai.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: af082cff10dbe244772331342db61d84420ca8817deffb7d89900a5dfb34bcb6
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/data/chat_lines.hpp"
#include "trireme/serve/request.hpp"

// ---- trireme/serve/openai.hpp
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// The texts that OpenAI's clients send and expect, without HTTP: requests are read and checked, answers written.
namespace trireme::serve::openai {

/// A request that is refused, as OpenAI's clients expect it: a status of HTTP, and what() is one sentence.
struct refusal : error {
  explicit refusal(std::string const& sentence, std::string of_field = {}, int with_status = 400,
                   std::string coded = {})
      : error(sentence), status(with_status), field(std::move(of_field)), code(std::move(coded)) {}
  int status;
  std::string field;  ///< the member of the request, or empty
  std::string code;   ///< "model_not_found", or empty
};

namespace detail {

/// The text as UTF-8: bytes that are not UTF-8 become U+FFFD. A sentence may quote the first bytes of a name, which
/// may end within a character, or a path of a URL, which may have any bytes.
[[nodiscard]] std::string whole_characters(std::string_view bytes);

}  // namespace detail

/// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
[[nodiscard]] std::string body_of(refusal const& problem);

/// What a server accepts.
struct limits {
  std::string model{};  ///< its name; a request for another one is refused
  std::int64_t vocabulary = 256;
  std::int64_t most_tokens = 1024;  ///< of an answer; that of a chat's answer whose request says nothing
  std::int64_t most_answers = 256;  ///< prompts of a request times `n`
  std::int64_t most_logprobs = 20;  ///< likeliest tokens with each
  std::size_t most_stops = 16;      ///< strings that end an answer
  std::int64_t dimensions = 0;      ///< of an embedding
  friend bool operator==(limits const&, limits const&) = default;
};

struct message {
  std::string role, content;
  friend bool operator==(message const&, message const&) = default;
};

/// A prompt as text or as token ids.
using prompt = std::variant<std::string, std::vector<std::int32_t>>;

enum class endpoint {
  completions,  ///< /v1/completions
  chat,         ///< /v1/chat/completions
  embeddings,   ///< /v1/embeddings
};

/// A request, checked.
struct asked {
  openai::endpoint endpoint = openai::endpoint::completions;
  std::vector<prompt> prompts{};    ///< of completions; what is to be embedded
  std::vector<message> messages{};  ///< of a chat
  std::int64_t n = 1;               ///< answers to each prompt
  std::vector<std::string> stop{};  ///< an answer ends before any of them
  bool stream = false;              ///< tokens are sent as they come
  bool usage = false;               ///< the last part of a stream has the numbers of tokens
  bool logprobs = false;
  bool seeded = false;       ///< `how.seed` was given
  bool ignore_end = false;   ///< the model's end tokens do not end an answer
  bool begin_token = false;  ///< prompts that are texts begin with the tokenizer's special tokens
  bool base64 = false;       ///< embeddings are sent as base64 of their floats, as OpenAI's own client asks for them
  request how{};             ///< all else, without its prompt and without the model's end tokens
};

/// Reads the body of a request. Members that would change nothing here (user, metadata, ...) are ignored, and such that
/// ask for something that there is not (tools, penalties other than 0, ...) are refused, as are unknown ones. Besides
/// OpenAI's own: top_k, min_p, repetition_penalty, ignore_eos, add_special_tokens.
///
/// Errors   refusal.
[[nodiscard]] asked parse(endpoint to, std::string_view body, limits const& most);

/// The text of a conversation, up to where the next answer begins. Templates are those of data::chat_lines.
[[nodiscard]] std::string text_of(std::vector<message> const& messages, data::chat_lines const& format);

/// Joins the texts of an answer's tokens, to UTF-8 and up to a stop string. What may be the beginning of a character or
/// of a stop string is held back.
class answer_text {
 public:
  explicit answer_text(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {}

  /// The text that has become certain. What is not UTF-8 becomes U+FFFD.
  /// @param piece    bytes; nothing is added behind a stop string.
  /// @param ends     false: stop strings are not looked for, as in a prompt.
  [[nodiscard]] std::string add(std::string_view piece, bool ends = true);
  /// What was held back.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  /// Characters so far, also those that are held back.
  [[nodiscard]] std::int64_t characters() const noexcept { return characters_; }

 private:
  [[nodiscard]] std::string until_stop(std::string const& more, bool last);

  std::vector<std::string> stops_;
  std::string bytes_;  // the beginning of a character
  std::string held_;   // perhaps the beginning of a stop string
  std::int64_t characters_ = 0;
  bool stopped_ = false;
};

/// A token as log-probabilities show it: its text, or "bytes:\xe2\x80" where its bytes are not UTF-8.
[[nodiscard]] std::string token_name(std::string_view bytes);

/// The tokens of a model as texts.
struct token_texts {
  std::function<std::string(std::int32_t)> alone{};                    ///< bytes of a token by itself
  std::function<std::function<std::string(std::int32_t)>()> stream{};  ///< for each answer: what a token adds
};

/// A token with its log-probability, as it is written.
struct scored_text {
  std::string text{};  ///< token_name()
  std::string bytes{};
  float logprob = 0;                                 ///< NaN: null
  std::vector<std::pair<std::string, float>> top{};  ///< bytes of the likeliest, most probable first
  std::int64_t offset = 0;                           ///< in characters of the answer's text
};

/// A piece of an answer, or all of it.
struct part {
  std::int64_t index = 0;  ///< of the answer
  std::string text{};
  std::vector<scored_text> tokens{};  ///< where log-probabilities are asked for
  std::string finish{};               ///< "stop", "length" or, where the answer goes on, empty
  bool first = false;                 ///< nothing of this answer was written before
  /// Adds what follows.
  void append(part more);
};

/// Makes texts of an answer's events.
class answer {
 public:
  /// @param what, texts  outlive the answer.
  answer(asked const& what, std::int64_t index, token_texts const& texts)
      : what_(what), texts_(texts), index_(index), add_(texts.stream()), text_(what.stop) {}

  /// What an event adds; after a stop string has come, nothing.
  [[nodiscard]] part take(event const& told);
  /// Nothing follows: the request should be cancelled if its last event has not come.
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  /// Why there is no answer; empty if there is one.
  [[nodiscard]] std::string const& problem() const noexcept { return problem_; }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }

 private:
  asked const& what_;
  token_texts const& texts_;
  std::int64_t index_;
  std::function<std::string(std::int32_t)> add_;
  answer_text text_;
  std::int64_t tokens_ = 0;
  bool first_ = true, ended_ = false;
  std::string problem_;
};

/// What all parts of a response have in common.
struct heading {
  std::string id{};          ///< "cmpl-..."
  std::int64_t created = 0;  ///< seconds since 1970
  std::string model{};
};

struct usage {
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
};

/// The response to a request that is not streamed.
[[nodiscard]] std::string response(asked const& what, heading const& head, std::vector<part> const& answers,
                                   usage const& used);
/// One part of a stream: "data: {...}\n\n".
[[nodiscard]] std::string chunk(asked const& what, heading const& head, part const& one);
/// The part of a stream that has no answers but the numbers of tokens, for asked::usage.
[[nodiscard]] std::string usage_chunk(asked const& what, heading const& head, usage const& used);
/// The response to a request for embeddings, of as many numbers each.
[[nodiscard]] std::string embeddings(asked const& what, std::string_view model,
                                     std::vector<std::vector<float>> const& vectors, usage const& used);
/// An error in a stream that has begun.
[[nodiscard]] std::string error_chunk(refusal const& problem);
inline constexpr std::string_view last_chunk = "data: [DONE]\n\n";

/// The answer to GET /v1/models.
[[nodiscard]] std::string models(std::string_view name, std::int64_t created, std::int64_t context);

/// Statistics in the text format of Prometheus.
[[nodiscard]] std::string metrics(statistics const& now);

/// Keys, one of which a request must have. Comparing takes the same time for any key of a length.
class api_keys {
 public:
  api_keys() = default;
  /// @param lines  a key each; empty ones and such that begin with # are left out.
  explicit api_keys(std::string_view lines);
  /// Whether there are any; without, all requests are accepted.
  [[nodiscard]] bool empty() const noexcept { return keys_.empty(); }
  /// @param authorization  the header: "Bearer KEY".
  [[nodiscard]] bool accepts(std::string_view authorization) const noexcept;

 private:
  std::vector<std::string> keys_;
};

}  // namespace trireme::serve::openai

#ifndef TRIREME_SERVE_OPENAI_IPP_INCLUDED
#define TRIREME_SERVE_OPENAI_IPP_INCLUDED

// ---- trireme/serve/openai.ipp
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace trireme::serve::openai {

namespace detail {

namespace json = formats::json;

inline constexpr char const* body_name = "the request";
inline constexpr std::string_view replacement = "\xef\xbf\xbd";

/// The body's members, one by one, with errors that name them.
class reader {
 public:
  reader(endpoint to, limits const& most) : most_(most) { out_.endpoint = to; }

  [[nodiscard]] asked read(std::string_view body) {
    json::value whole;
    try {
      whole = json::parse(body, body_name, {.values = std::size_t{1} << 19, .string_bytes = std::size_t{1} << 23});
    } catch (format_error const& problem) {
      throw refusal(text("the body is not JSON: ", without_name(problem)));
    }
    if (!whole.is_object()) throw refusal("the body is not a JSON object");
    out_.begin_token = embeds();
    out_.how.max_tokens = chat() ? most_.most_tokens : std::min<std::int64_t>(16, most_.most_tokens);
    for (auto const& [key, content] : whole.as_object()) {
      key_ = key;
      if (content.is_null()) continue;  // as if it was not there
      try {
        member(content);
      } catch (format_error const& problem) {
        refuse(without_name(problem));
      }
    }
    key_.clear();
    check();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool chat() const noexcept { return out_.endpoint == endpoint::chat; }
  [[nodiscard]] bool embeds() const noexcept { return out_.endpoint == endpoint::embeddings; }
  template <class... Parts>
  [[noreturn]] void refuse(Parts const&... parts) const {
    throw refusal(key_.empty() ? text(parts...) : text(key_.substr(0, 80), ": ", parts...), key_);
  }
  // "byte 7: expected a string"
  [[nodiscard]] static std::string without_name(format_error const& problem) {
    return std::string(problem.what()).substr(problem.path().size() + 2);
  }

  [[nodiscard]] std::int64_t integer(json::value const& from, std::int64_t least, std::int64_t most) const {
    auto const out = from.as_int64();
    if (out < least || out > most) refuse(out, " is not in ", least, " to ", most);
    return out;
  }
  [[nodiscard]] double number(json::value const& from, double least, double most) const {
    auto const out = from.as_double();
    if (!(out >= least && out <= most)) refuse(out, " is not in ", least, " to ", most);
    return out;
  }
  [[nodiscard]] std::int32_t token(json::value const& from) const {
    return static_cast<std::int32_t>(integer(from, 0, most_.vocabulary - 1));
  }
  [[nodiscard]] std::vector<std::int32_t> tokens(json::value const& from) const {
    std::vector<std::int32_t> out;
    for (auto const& each : from.as_array()) out.push_back(token(each));
    if (out.empty()) refuse("a prompt has no tokens; give it one at least");
    return out;
  }
  void prompts(json::value const& from) {
    if (from.is_string()) return void(out_.prompts.emplace_back(from.as_string()));
    auto const& all = from.as_array();
    if (all.empty()) refuse("there is no prompt in the list");
    if (all.front().is_integer()) return void(out_.prompts.emplace_back(tokens(from)));
    if (static_cast<std::int64_t>(all.size()) > most_.most_answers)
      refuse("there are ", all.size(), " prompts; at most ", most_.most_answers, " are taken at a time");
    for (auto const& each : all) {
      if (all.front().is_string())
        out_.prompts.emplace_back(each.as_string());
      else
        out_.prompts.emplace_back(tokens(each));
    }
  }
  void messages(json::value const& from) {
    for (auto const& each : from.as_array()) {
      message one;
      for (auto const& [key, content] : each.as_object()) {
        if (key == "role") {
          one.role = content.as_string() == "developer" ? "system" : content.as_string();
          if (one.role != "system" && one.role != "user" && one.role != "assistant")
            refuse("the role \"", one.role.substr(0, 80), "\" is not known; roles are system, user and assistant");
        } else if (key == "content") {
          one.content = content_of(content);
        } else if (key != "name" && !content.is_null()) {
          refuse("\"", key.substr(0, 80), "\" of a message is not supported; it has role and content");
        }
      }
      if (one.role.empty()) each.fail("a message without a role");
      if (each.find("content") == nullptr) each.fail("a message without content");
      out_.messages.push_back(std::move(one));
    }
    if (out_.messages.empty()) refuse("there is no message");
  }
  [[nodiscard]] std::string content_of(json::value const& from) const {
    if (from.is_string()) return from.as_string();
    std::string out;
    for (auto const& each : from.as_array()) {
      if (each.at("type").as_string() != "text") each.fail("only texts are read");
      out += each.at("text").as_string();
    }
    return out;
  }
  void stops(json::value const& from) {
    if (from.is_string()) {
      out_.stop.push_back(from.as_string());
    } else {
      for (auto const& each : from.as_array()) out_.stop.push_back(each.as_string());
    }
    if (out_.stop.size() > most_.most_stops)
      refuse("there are ", how_many(out_.stop.size(), "string"), "; ", most_.most_stops, " are taken at most");
    for (auto const& each : out_.stop) {
      if (each.empty()) refuse("a string is empty");
    }
  }
  void biases(json::value const& from) {
    for (auto const& [key, bias] : from.as_object()) {
      std::int64_t id = 0;
      bool digits = !key.empty() && key.size() < 10;
      for (auto const letter : key) {
        digits = digits && letter >= '0' && letter <= '9';
        if (digits) id = id * 10 + (letter - '0');
      }
      if (!digits || id >= most_.vocabulary)
        refuse("\"", key.substr(0, 80), "\" is not a token; they are 0 to ", most_.vocabulary - 1);
      out_.how.logit_bias.emplace_back(static_cast<std::int32_t>(id), static_cast<float>(number(bias, -100, 100)));
    }
  }
  // What may be asked for only as it is anyway.
  void only(bool as_it_is, std::string_view what) const {
    if (!as_it_is) refuse("this server has no ", what, "; leave it out");
  }

  void member(json::value const& given) {
    auto const is = [&](std::string_view name) { return key_ == name; };
    auto& how = out_.how;
    if (is("model")) {
      if (given.as_string() != most_.model) {
        throw refusal(
            text("the model \"", given.as_string().substr(0, 200), "\" is not here; there is \"", most_.model, "\""),
            "model", 404, "model_not_found");
      }
    } else if (embeds()) {
      if (!embeddings_member(given)) unknown();
    } else if (is("max_tokens") || (chat() && is("max_completion_tokens"))) {
      how.max_tokens = integer(given, chat() ? 1 : 0, most_.most_tokens);
    } else if (is("temperature")) {
      how.temperature = number(given, 0, 100);
    } else if (is("top_p")) {
      how.top_p = number(given, 0, 1);
      if (!(how.top_p > 0)) refuse("it is above 0; for the most probable token give temperature 0");
    } else if (is("top_k")) {
      how.top_k = std::max<std::int64_t>(0, integer(given, -1, most_.vocabulary));
    } else if (is("min_p")) {
      how.min_p = number(given, 0, 1);
    } else if (is("repetition_penalty")) {
      how.repetition_penalty = number(given, 0.01, 100);
    } else if (is("seed")) {
      how.seed = given.is_negative() ? static_cast<std::uint64_t>(given.as_int64()) : given.as_uint64();
      out_.seeded = true;
    } else if (is("n")) {
      out_.n = integer(given, 1, most_.most_answers);
    } else if (is("stop")) {
      stops(given);
    } else if (is("stream")) {
      out_.stream = given.as_bool();
    } else if (is("stream_options")) {
      for (auto const& [key, content] : given.as_object()) {
        if (key == "include_usage")
          out_.usage = content.as_bool();
        else if (key != "include_obfuscation")
          refuse("\"", key.substr(0, 80), "\" is not known");
      }
    } else if (is("logit_bias")) {
      biases(given);
    } else if (is("ignore_eos")) {
      out_.ignore_end = given.as_bool();
    } else if (is("add_special_tokens")) {
      out_.begin_token = given.as_bool();
    } else if (is("frequency_penalty") || is("presence_penalty")) {
      only(!(std::abs(given.as_double()) > 0), "such penalty, but repetition_penalty");
    } else if (chat() ? !chat_member(given) : !completion_member(given)) {
      unknown();
    }
  }
  // A member that changes nothing, or is refused.
  void unknown() const {
    static constexpr std::string_view ignored[] = {"user",
                                                   "metadata",
                                                   "store",
                                                   "service_tier",
                                                   "safety_identifier",
                                                   "prompt_cache_key",
                                                   "reasoning_effort",
                                                   "verbosity",
                                                   "prompt_cache_retention"};
    if (std::find(std::begin(ignored), std::end(ignored), key_) == std::end(ignored))
      refuse("this server does not know this member of a request; leave it out");
  }
  bool embeddings_member(json::value const& given) {
    auto const is = [&](std::string_view name) { return key_ == name; };
    if (is("input")) {
      prompts(given);
    } else if (is("encoding_format")) {
      out_.base64 = given.as_string() == "base64";
      if (!out_.base64 && given.as_string() != "float") refuse("it is float or base64");
    } else if (is("dimensions")) {
      if (auto const wanted = given.as_int64(); wanted != most_.dimensions)
        refuse(wanted, " is asked for, but the model's embeddings have ", most_.dimensions, " numbers; leave it out");
    } else if (is("add_special_tokens")) {
      out_.begin_token = given.as_bool();
    } else {
      return false;
    }
    return true;
  }
  bool completion_member(json::value const& given) {
    auto const is = [&](std::string_view name) { return key_ == name; };
    if (is("prompt")) {
      prompts(given);
    } else if (is("echo")) {
      out_.how.echo = given.as_bool();
    } else if (is("logprobs")) {
      out_.how.logprobs = integer(given, 0, most_.most_logprobs);
      out_.logprobs = true;
    } else if (is("best_of")) {
      best_of_ = integer(given, 1, most_.most_answers);
    } else if (is("suffix")) {
      only(given.as_string().empty(), "text behind an answer");
    } else {
      return false;
    }
    return true;
  }
  bool chat_member(json::value const& given) {
    auto const is = [&](std::string_view name) { return key_ == name; };
    if (is("messages")) {
      messages(given);
    } else if (is("logprobs")) {
      out_.logprobs = given.as_bool();
    } else if (is("top_logprobs")) {
      out_.how.logprobs = integer(given, 0, most_.most_logprobs);
    } else if (is("response_format")) {
      only(given.at("type").as_string() == "text", "format of answers but text");
    } else if (is("modalities")) {
      for (auto const& each : given.as_array()) only(each.as_string() == "text", "answers but texts");
    } else if (is("tools") || is("functions")) {
      only(given.as_array().empty(), "tools");
    } else if (is("tool_choice") || is("function_call")) {
      only(given.is_string() && (given.as_string() == "none" || given.as_string() == "auto"), "tools");
    } else if (is("parallel_tool_calls")) {
      static_cast<void>(given.as_bool());
    } else {
      return false;
    }
    return true;
  }
  void check() const {
    if (chat() && out_.messages.empty()) throw refusal("messages: there are none; give one at least", "messages");
    if (embeds() && out_.prompts.empty()) throw refusal("input: there is none; give a text or token ids", "input");
    if (!chat() && out_.prompts.empty()) throw refusal("prompt: there is none; give a text or token ids", "prompt");
    if (out_.how.logprobs > 0 && !out_.logprobs)
      throw refusal("top_logprobs: it is given without logprobs; say \"logprobs\": true too", "top_logprobs");
    if (best_of_ > 0 && best_of_ != out_.n)
      throw refusal("best_of: this server returns all answers; leave it out, and give n", "best_of");
    auto const prompts = std::max<std::int64_t>(1, static_cast<std::int64_t>(out_.prompts.size()));
    if (prompts * out_.n > most_.most_answers) {
      throw refusal(text("n: ", how_many(prompts, "prompt"), " with ", how_many(out_.n, "answer"),
                         " each are more than ", most_.most_answers, ", the most of one request"),
                    "n");
    }
    for (auto const& each : out_.prompts) {
      auto const* const words = std::get_if<std::string>(&each);
      if (words != nullptr && words->empty()) refuse_empty();
    }
  }

  [[noreturn]] void refuse_empty() const {
    std::string const name = embeds() ? "input" : "prompt";
    throw refusal(name + ": a text is empty; give a character", name);
  }

  limits const& most_;
  asked out_;
  std::string key_;
  std::int64_t best_of_ = 0;
};

/// How many bytes the character that begins with this one has; 0 if none does.
[[nodiscard]] constexpr std::size_t bytes_of_character(unsigned char first) noexcept {
  return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}
/// Whether that byte may be at that place of the character, which begins with `first`.
[[nodiscard]] constexpr bool may_follow(unsigned char first, std::size_t at, unsigned char byte) noexcept {
  if (at > 1) return byte >= 0x80 && byte < 0xc0;
  auto const least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  auto const most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  return byte >= least && byte <= most;
}

/// Moves whole characters from the front of `bytes` to the result; what is none becomes U+FFFD.
[[nodiscard]] inline std::string take_characters(std::string& bytes, bool all) {
  std::string out;
  std::size_t at = 0;
  while (at < bytes.size()) {
    auto const first = static_cast<unsigned char>(bytes[at]);
    auto const wanted = bytes_of_character(first);
    std::size_t have = 1;
    while (have < wanted && at + have < bytes.size() &&
           may_follow(first, have, static_cast<unsigned char>(bytes[at + have])))
      ++have;
    if (have < wanted && at + have == bytes.size() && !all) break;  // the rest may come
    if (wanted > 0 && have == wanted)
      out.append(bytes, at, have);
    else
      out += replacement;
    at += have;
  }
  bytes.erase(0, at);
  return out;
}

TRIREME_BODY std::string whole_characters(std::string_view bytes) {
  std::string rest(bytes);
  return take_characters(rest, true);
}

[[nodiscard]] inline std::int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char letter) { return (static_cast<unsigned char>(letter) & 0xc0) != 0x80; });
}

[[nodiscard]] inline json::value number_or_null(float logprob) {
  return std::isfinite(logprob) ? json::value(static_cast<double>(logprob)) : json::value();
}

[[nodiscard]] inline json::value completion_logprobs(part const& one) {
  json::array tokens, logprobs, top, offsets;
  for (auto const& each : one.tokens) {
    tokens.emplace_back(each.text);
    logprobs.push_back(number_or_null(each.logprob));
    offsets.emplace_back(each.offset);
    if (!std::isfinite(each.logprob)) {
      top.emplace_back();
      continue;
    }
    json::object likeliest;
    auto const add = [&](std::string name, float logprob) {
      for (auto const& [key, content] : likeliest) {
        if (key == name) return;
      }
      likeliest.push_back({std::move(name), number_or_null(logprob)});
    };
    for (auto const& [bytes, logprob] : each.top) add(token_name(bytes), logprob);
    add(each.text, each.logprob);
    top.emplace_back(std::move(likeliest));
  }
  return json::value::make({{"tokens", std::move(tokens)},
                            {"token_logprobs", std::move(logprobs)},
                            {"top_logprobs", std::move(top)},
                            {"text_offset", std::move(offsets)}});
}

[[nodiscard]] inline json::value chat_token(std::string const& bytes, float logprob) {
  json::array all;
  for (auto const each : bytes) all.emplace_back(static_cast<std::int64_t>(static_cast<unsigned char>(each)));
  return json::value::make(
      {{"token", token_name(bytes)}, {"logprob", number_or_null(logprob)}, {"bytes", std::move(all)}});
}
[[nodiscard]] inline json::value chat_logprobs(part const& one) {
  json::array content;
  for (auto const& each : one.tokens) {
    auto token = chat_token(each.bytes, each.logprob);
    json::array top;
    for (auto const& [bytes, logprob] : each.top) top.push_back(chat_token(bytes, logprob));
    token.set("top_logprobs", std::move(top));
    content.push_back(std::move(token));
  }
  return json::value::make({{"content", std::move(content)}, {"refusal", nullptr}});
}

[[nodiscard]] inline json::value choice(asked const& what, part const& one, bool of_stream) {
  json::value out;
  out.set("index", one.index);
  bool const chat = what.endpoint == endpoint::chat;
  if (!chat) {
    out.set("text", one.text);
  } else {
    json::value said;
    if (!of_stream || one.first) said.set("role", "assistant");
    said.set("content", one.text);
    out.set(of_stream ? "delta" : "message", std::move(said));
  }
  if (!what.logprobs)
    out.set("logprobs", nullptr);
  else
    out.set("logprobs", chat ? chat_logprobs(one) : completion_logprobs(one));
  out.set("finish_reason", one.finish.empty() ? json::value() : json::value(one.finish));
  return out;
}

[[nodiscard]] inline json::value headed(asked const& what, heading const& head, bool of_stream) {
  auto const* const object = what.endpoint == endpoint::completions ? "text_completion"
                             : of_stream                            ? "chat.completion.chunk"
                                                                    : "chat.completion";
  return json::value::make({{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}});
}

[[nodiscard]] inline json::value usage_value(usage const& used) {
  return json::value::make({{"prompt_tokens", used.prompt_tokens},
                            {"completion_tokens", used.completion_tokens},
                            {"total_tokens", used.prompt_tokens + used.completion_tokens}});
}

/// The bytes of floats, the lowest first.
[[nodiscard]] inline std::string base64_of(std::vector<float> const& numbers) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes, out;
  for (auto const number : numbers) {
    auto const bits = std::bit_cast<std::uint32_t>(number);
    for (unsigned shift = 0; shift < 32; shift += 8) bytes += static_cast<char>((bits >> shift) & 0xffU);
  }
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      three = three << 8U | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    for (std::size_t j = 0; j < 4; ++j) {
      auto const here = j <= std::min<std::size_t>(3, bytes.size() - i);
      out += here ? letters[three >> (18 - 6 * j) & 63U] : '=';
    }
  }
  return out;
}

}  // namespace detail

TRIREME_BODY std::string body_of(refusal const& problem) {
  using formats::json::value;
  auto const text_or_null = [](std::string const& words) {
    return words.empty() ? value() : value(detail::whole_characters(words));
  };
  auto const* const type = problem.status == 401   ? "authentication_error"
                           : problem.status == 429 ? "rate_limit_error"
                           : problem.status >= 500 ? "server_error"
                                                   : "invalid_request_error";
  return formats::json::to_string(
      value::make({{"error", value::make({{"message", detail::whole_characters(problem.what())},
                                          {"type", type},
                                          {"param", text_or_null(problem.field)},
                                          {"code", text_or_null(problem.code)}})}}));
}

TRIREME_BODY asked parse(endpoint to, std::string_view body, limits const& most) {
  return detail::reader(to, most).read(body);
}

TRIREME_BODY std::string text_of(std::vector<message> const& messages, data::chat_lines const& format) {
  data::detail::chat_text out;
  for (auto const& each : messages) data::detail::add_message(format, out, each.role, each.content);
  if (format.format == data::chat_template::chatml)
    out.text += "<|im_start|>assistant\n";
  else if (format.format == data::chat_template::llama3)
    out.text += "<|start_header_id|>assistant<|end_header_id|>\n\n";
  return out.text;
}

TRIREME_BODY std::string answer_text::add(std::string_view piece, bool ends) {
  if (stopped_) return {};
  bytes_ += piece;
  auto const more = detail::take_characters(bytes_, false);
  characters_ += detail::characters_of(more);
  if (!ends) return more;
  return until_stop(more, false);
}

TRIREME_BODY std::string answer_text::finish() {
  if (stopped_) return {};
  auto const more = detail::take_characters(bytes_, true);
  characters_ += detail::characters_of(more);
  return until_stop(more, true);
}

TRIREME_BODY std::string answer_text::until_stop(std::string const& more, bool last) {
  held_ += more;
  auto end = held_.npos;
  for (auto const& each : stops_) end = std::min(end, held_.find(each));
  std::string out;
  if (end != held_.npos) {
    stopped_ = true;
    out = held_.substr(0, end);
    held_.clear();
    return out;
  }
  std::size_t kept = 0;  // the longest end that begins a stop string
  for (auto const& each : stops_) {
    for (auto length = std::min(each.size() - 1, held_.size()); length > kept && !last; --length) {
      if (std::string_view(held_).ends_with(std::string_view(each).substr(0, length))) kept = length;
    }
  }
  out = held_.substr(0, held_.size() - kept);
  held_.erase(0, held_.size() - kept);
  return out;
}

TRIREME_BODY std::string token_name(std::string_view bytes) {
  if (detail::whole_characters(bytes) == bytes) return std::string(bytes);
  std::string out = "bytes:";
  for (auto const each : bytes) {
    constexpr std::string_view digits = "0123456789abcdef";
    auto const byte = static_cast<unsigned char>(each);
    out += "\\x";
    out += digits[byte / 16];
    out += digits[byte % 16];
  }
  return out;
}

TRIREME_BODY void part::append(part more) {
  text += more.text;
  tokens.insert(tokens.end(), std::make_move_iterator(more.tokens.begin()), std::make_move_iterator(more.tokens.end()));
  if (finish.empty()) finish = std::move(more.finish);
}

TRIREME_BODY part answer::take(event const& told) {
  part out{.index = index_, .first = first_};
  if (ended_) return out;
  if (told.finish == finish::error || told.finish == finish::cancelled) {
    ended_ = true;
    problem_ = told.finish == finish::error ? told.problem : "the server has cancelled the answer, as it stops";
    return out;
  }
  first_ = false;
  auto const at = text_.characters();
  bool const at_end = told.finish == finish::stop;  // the end token has no text
  if (told.token >= 0) {
    if (!told.in_prompt) ++tokens_;
    if (!at_end) out.text = text_.add(add_(told.token), !told.in_prompt);
    if (what_.logprobs) {
      scored_text scored{.bytes = texts_.alone(told.token), .logprob = told.logprob, .offset = at};
      scored.text = token_name(scored.bytes);
      for (auto const& each : told.top) scored.top.emplace_back(texts_.alone(each.token), each.logprob);
      out.tokens.push_back(std::move(scored));
    }
  }
  if (told.finish != finish::none) {
    out.text += text_.finish();
    out.finish = told.finish == finish::length ? "length" : "stop";
  }
  if (text_.stopped()) out.finish = "stop";
  ended_ = !out.finish.empty();
  return out;
}

TRIREME_BODY std::string response(asked const& what, heading const& head, std::vector<part> const& answers,
                                  usage const& used) {
  auto out = detail::headed(what, head, false);
  formats::json::array choices;
  for (auto const& each : answers) choices.push_back(detail::choice(what, each, false));
  out.set("choices", std::move(choices));
  out.set("usage", detail::usage_value(used));
  return formats::json::to_string(out);
}

TRIREME_BODY std::string chunk(asked const& what, heading const& head, part const& one) {
  auto out = detail::headed(what, head, true);
  out.set("choices", formats::json::array{detail::choice(what, one, true)});
  if (what.usage) out.set("usage", nullptr);
  return text("data: ", formats::json::to_string(out), "\n\n");
}

TRIREME_BODY std::string usage_chunk(asked const& what, heading const& head, usage const& used) {
  auto out = detail::headed(what, head, true);
  out.set("choices", formats::json::array{});
  out.set("usage", detail::usage_value(used));
  return text("data: ", formats::json::to_string(out), "\n\n");
}

TRIREME_BODY std::string embeddings(asked const& what, std::string_view model,
                                    std::vector<std::vector<float>> const& vectors, usage const& used) {
  using formats::json::value;
  formats::json::array data;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    value vector;
    if (what.base64) {
      vector = detail::base64_of(vectors[i]);
    } else {
      formats::json::array numbers;
      for (auto const each : vectors[i]) numbers.emplace_back(each);
      vector = std::move(numbers);
    }
    data.push_back(value::make({{"object", "embedding"}, {"index", i}, {"embedding", std::move(vector)}}));
  }
  auto const all = value::make({{"prompt_tokens", used.prompt_tokens}, {"total_tokens", used.prompt_tokens}});
  return formats::json::to_string(
      value::make({{"object", "list"}, {"data", std::move(data)}, {"model", model}, {"usage", all}}));
}

TRIREME_BODY std::string error_chunk(refusal const& problem) { return text("data: ", body_of(problem), "\n\n"); }

TRIREME_BODY std::string models(std::string_view name, std::int64_t created, std::int64_t context) {
  using formats::json::value;
  auto const one = value::make(
      {{"id", name}, {"object", "model"}, {"created", created}, {"owned_by", "trireme"}, {"max_model_len", context}});
  return formats::json::to_string(value::make({{"object", "list"}, {"data", formats::json::array{one}}}));
}

TRIREME_BODY std::string metrics(statistics const& now) {
  std::string out;
  auto const tell = [&](std::string_view name, std::string_view type, std::int64_t content, std::string_view help) {
    out += text("# HELP trireme_", name, " ", help, "\n# TYPE trireme_", name, " ", type, "\ntrireme_", name, " ",
                content, "\n");
  };
  tell("requests_running", "gauge", now.running, "Answers that are computed now.");
  tell("requests_waiting", "gauge", now.waiting, "Requests that wait for a place.");
  tell("pages_used", "gauge", now.pages_used, "Pages of 16 keys and values that running answers hold.");
  tell("pages", "gauge", now.pages_total, "Pages of 16 keys and values.");
  tell("requests_total", "counter", now.requests, "Requests that were accepted.");
  tell("requests_cancelled_total", "counter", now.cancelled, "Requests that were cancelled.");
  tell("request_errors_total", "counter", now.errors, "Requests that ended with an error.");
  tell("tokens_generated_total", "counter", now.tokens_generated, "Tokens of answers.");
  tell("prompt_tokens_total", "counter", now.prompt_tokens, "Tokens of prompts.");
  tell("prompt_tokens_reused_total", "counter", now.prompt_tokens_reused,
       "Tokens of prompts whose keys and values were there already.");
  tell("rows_computed_total", "counter", now.rows_computed, "Positions that were computed.");
  tell("passes_total", "counter", now.passes, "Passes over the model.");
  tell("preemptions_total", "counter", now.preemptions, "How often an answer lost its pages.");
  return out;
}

TRIREME_BODY api_keys::api_keys(std::string_view lines) {
  while (!lines.empty()) {
    auto const end = std::min(lines.find('\n'), lines.size());
    auto line = data::detail::without_spaces(lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (!line.empty() && line.front() != '#') keys_.emplace_back(line);
  }
}

TRIREME_BODY bool api_keys::accepts(std::string_view authorization) const noexcept {
  constexpr std::string_view scheme = "Bearer ";
  if (keys_.empty()) return true;
  if (!authorization.starts_with(scheme)) return false;
  auto const given = authorization.substr(scheme.size());
  // Every key is compared, and all of the given one, whatever differs.
  unsigned found = 0;
  for (auto const& key : keys_) {
    unsigned differs = key.size() == given.size() ? 0 : 1;
    for (std::size_t i = 0; i < given.size(); ++i)
      differs |=
          static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(key[i % key.size()]));
    found |= differs == 0 ? 1U : 0U;
  }
  return found != 0;
}

}  // namespace trireme::serve::openai

#endif  // TRIREME_SERVE_OPENAI_IPP_INCLUDED
