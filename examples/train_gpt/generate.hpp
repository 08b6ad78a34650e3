#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/rng.hpp"
#include "trireme/train/any_trainer.hpp"

/// Continues a text, byte by byte, drawing from the model's distribution over bytes at a temperature.
/// Collective: where the model lies on several ranks, all of them make it together.
/// @param asked  collective; before each byte: whether there is no time for it. Then there is no text.
template <class Asked>
std::string generate(trireme::any_trainer& trainer, std::string text, std::int64_t context, std::int64_t bytes,
                     std::uint64_t seed, Asked&& asked, double temperature = 0.7) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t drawn = 0; drawn < bytes; ++drawn) {
    if (asked()) return {};
    auto const known = std::min<std::int64_t>(context, static_cast<std::int64_t>(text.size()));
    tokens.clear();
    for (auto const letter : std::string_view(text).substr(text.size() - static_cast<std::size_t>(known))) {
      tokens.push_back(static_cast<unsigned char>(letter));
    }
    auto const logits = trainer.predict(
        trireme::make_samples(trireme::tensor_view<std::int32_t const>(tokens.data(), trireme::shape{1, known}),
                              trireme::tensor_view<std::int32_t const>{}));
    auto const of_bytes = logits.span().first(256);  // a model of --from may know more tokens
    auto const most = *std::max_element(of_bytes.begin(), of_bytes.end());
    double sum = 0;
    for (auto const logit : of_bytes) sum += std::exp((logit - most) / temperature);
    auto const word = trireme::random_block({seed, 0}, 0xffff, static_cast<std::uint64_t>(drawn), 0)[0];
    double left = trireme::unit_float(word) * sum;
    std::size_t next = 0;
    for (; next + 1 < of_bytes.size(); ++next) {
      left -= std::exp((of_bytes[next] - most) / temperature);
      if (left < 0) break;
    }
    text += static_cast<char>(next);
  }
  return text;
}
