#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokens.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/train/any_trainer.hpp"

/// Continues a text, token by token, drawing from the model's distribution over them at a temperature.
/// Collective: where the model lies on several ranks, all of them make it together.
/// @param asked  collective; before each token: whether there is no time for it. Then there is no text.
template <class Asked>
std::string generate(trireme::any_trainer& trainer, token_choice const& words, std::string_view text,
                     std::int64_t context, std::int64_t count, std::uint64_t seed, Asked&& asked,
                     double temperature = 0.7) {
  auto tokens = words.encode(text);
  for (std::int64_t drawn = 0; drawn < count; ++drawn) {
    if (asked()) return {};
    auto const known = std::min<std::int64_t>(context, static_cast<std::int64_t>(tokens.size()));
    auto const logits = trainer.predict(trireme::make_samples(
        trireme::tensor_view<std::int32_t const>(tokens.data() + tokens.size() - static_cast<std::size_t>(known),
                                                 trireme::shape{1, known}),
        trireme::tensor_view<std::int32_t const>{}));
    // A model of --from may know more tokens.
    auto const of_tokens = logits.span().first(static_cast<std::size_t>(words.vocabulary()));
    auto const most = *std::max_element(of_tokens.begin(), of_tokens.end());
    double sum = 0;
    for (auto const logit : of_tokens) sum += std::exp((logit - most) / temperature);
    auto const word = trireme::random_block({seed, 0}, 0xffff, static_cast<std::uint64_t>(drawn), 0)[0];
    double left = trireme::unit_float(word) * sum;
    std::size_t next = 0;
    for (; next + 1 < of_tokens.size(); ++next) {
      left -= std::exp((of_tokens[next] - most) / temperature);
      if (left < 0) break;
    }
    tokens.push_back(static_cast<std::int32_t>(next));
  }
  return words.decode(tokens);
}
