#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokens.hpp"
#include "trireme/core/error.hpp"
#include "trireme/nn/pretrained.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/train/generate.hpp"

/// Continues a text, token by token, sampling from the model's distribution at a temperature. Collective: if the model
/// is distributed over several ranks, all of them call it. The text ends at the first end token in the files of the
/// model of --from; only the first rank has these files, so all ranks continue to sample up to the last token.
/// @param asked  collective; called before each token: whether there is no time for it. Then no text is returned.
template <class Asked>
std::string generate(trireme::any_trainer& trainer, token_choice const& words, std::string_view text,
                     std::int64_t context, std::int64_t count, std::uint64_t seed, Asked&& asked,
                     double temperature = 0.7) {
  if (asked()) return {};
  auto const begin = words.encode(text);
  auto tokens = begin;
  bool in_time = true;
  auto const take = [&](std::int32_t token) {
    tokens.push_back(token);
    in_time = !asked();
    return in_time;
  };
  // A model of --from may have more tokens.
  trireme::generate(trainer, begin, count, context, {.temperature = temperature, .seed = seed}, take,
                    words.vocabulary());
  if (!in_time) return {};
  std::vector<std::int32_t> ends;
  try {
    if (!words.bytes()) ends = trireme::nn::end_tokens(trainer.model_files());
  } catch (trireme::format_error const&) {  // the files of --from may be invalid; the run is complete anyway
  }
  auto const drawn = tokens.begin() + static_cast<std::ptrdiff_t>(begin.size());
  tokens.erase(std::find_first_of(drawn, tokens.end(), ends.begin(), ends.end()), tokens.end());
  return words.decode(tokens);
}
