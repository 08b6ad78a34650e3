#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/core/error.hpp"
#include "trireme/data/chat_lines.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/serve/request.hpp"

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

#ifndef TRIREME_COMPILED
#include "trireme/serve/openai.ipp"
#endif
