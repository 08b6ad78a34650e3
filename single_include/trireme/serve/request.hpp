// Trireme 0.1.0: trireme/serve/request.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: a1302cccf1326389e3bd89ec84aecb461e1387803f591d043a68a8e3f2da5661
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/serve/request.hpp
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::serve {

/// The number of a request, from engine::submit(); never 0.
using request_id = std::uint64_t;

/// What is asked of a model: to go on with a text, or to tell how probable it is.
///
/// Stop strings are the program's: it joins the tokens' texts, and calls engine::cancel() when one has come.
///
/// Numerics a token is sampled as draw() does it, from logits + logit_bias, of which those of tokens that have been in
///          the prompt or the answer are divided by repetition_penalty if positive and multiplied if negative; then
///          temperature, top_k, top_p, min_p. The random numbers are functions of `seed` and the number of the token
///          alone, so that they do not depend on what else is served at the time.
struct request {
  std::vector<std::int32_t> prompt{};  ///< token ids; one at least
  std::int64_t max_tokens = 16;        ///< 0: only the prompt is computed, which makes sense with `echo`
  double temperature = 1;              ///< logits are divided by it; 0: always the most probable token
  std::int64_t top_k = 0;              ///< sample only from so many of the most probable tokens; 0: all
  double top_p = 1;               ///< sample only from the most probable tokens that together reach this probability
  double min_p = 0;               ///< only tokens at least so probable, relative to the most probable one; 0: all
  double repetition_penalty = 1;  ///< above 1: tokens that have been there become less probable
  std::uint64_t seed = 0;
  std::vector<std::int32_t> stop{};                          ///< token ids that end the answer
  std::vector<std::pair<std::int32_t, float>> logit_bias{};  ///< (token, what is added to its logit); -100 bans it
  std::int64_t logprobs = 0;  ///< how many of the most probable tokens are told with each token; 0: none
  bool echo = false;          ///< the prompt's tokens are told as well, with their log-probabilities
};

/// Why an answer has ended.
enum class finish {
  none,       ///< it has not
  stop,       ///< at one of request::stop, which is this event's token
  length,     ///< max_tokens, or the model's context is full
  cancelled,  ///< by engine::cancel(), by the callback or because the engine has stopped
  error       ///< event::problem says why
};

/// A token and the logarithm of its probability, by the model's own logits: without biases, penalty and temperature.
struct scored_token {
  std::int32_t token = -1;
  float logprob = 0;
  friend bool operator==(scored_token const&, scored_token const&) = default;
};

/// What a request's callback is told: one call a token, in order. The last one, and only it, has a `finish`.
///
/// With request::echo the prompt's tokens come first (`in_prompt`), the first of them with a logprob of NaN, as nothing
/// is before it. An event that only ends an answer has the token -1: that of a cancelled request or an error, and that
/// of a request for 0 tokens.
struct event {
  request_id request = 0;
  std::int32_t token = -1;
  float logprob = 0;                ///< of the token
  std::vector<scored_token> top{};  ///< the most probable tokens in its place, most probable first: request::logprobs
  bool in_prompt = false;
  serve::finish finish = serve::finish::none;
  std::string problem{};  ///< one sentence, with finish::error
};

/// Called with each event, from the engine's thread: it returns soon, and may call submit() and cancel(). One that
/// throws cancels its request, and is not called again.
using callback = std::function<void(event const&)>;

/// What an engine may use.
struct engine_options {
  std::int64_t positions = 0;         ///< places for keys and values of all sequences; 0: eight contexts, but not more
                                      ///< than 16384, or one context
  std::int64_t most_running = 64;     ///< sequences that are computed at the same time
  std::int64_t most_waiting = 1024;   ///< requests that wait for a place; more are refused with overloaded_error
  std::int64_t tokens_in_pass = 256;  ///< rows of one pass: first a row of each running answer, then parts of prompts
  std::int64_t context = 0;           ///< most positions of a sequence; 0: the model's
  std::int64_t known = 0;             ///< only the first `known` token ids are sampled; 0: all of the model's
  friend bool operator==(engine_options const&, engine_options const&) = default;
};

/// What an engine has done since it was made, and what it does now.
struct statistics {
  std::int64_t running = 0, waiting = 0;         ///< requests
  std::int64_t pages_used = 0, pages_total = 0;  ///< of 16 positions each
  std::int64_t tokens_generated = 0;             ///< tokens of answers
  std::int64_t prompt_tokens = 0;                ///< of requests that were accepted
  std::int64_t prompt_tokens_reused = 0;         ///< positions whose keys and values were there already
  std::int64_t rows_computed = 0, passes = 0;    ///< positions, those computed again included
  std::int64_t requests = 0, cancelled = 0, errors = 0;
  std::int64_t preemptions = 0;  ///< how often a sequence lost its pages, to be computed again later
  friend bool operator==(statistics const&, statistics const&) = default;
};

/// An engine has as many waiting requests as it takes: try again later.
struct overloaded_error : error {
  using error::error;
};

}  // namespace trireme::serve
