#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/contract/paged_rows.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"

namespace trireme {

namespace detail {
struct refused;  // what make_trainer returns after reporting an error
}

/// How a token is sampled from a model's distribution.
struct drawing {
  double temperature = 1;  ///< logits are divided by it; 0: always take the most probable token
  std::int64_t top_k = 0;  ///< sample only from this many of the most probable tokens; 0: all
  double top_p = 1;        ///< sample only from the most probable tokens whose probabilities together reach this
  std::uint64_t seed = 0;
};

/// Samples a token.
///
/// @param number  of the draw: a different number gives a new random draw, the same number the same one.
/// Numerics computed in double; of equal logits the first counts as more probable. A token whose logit is -infinity is
///          never drawn, which is how masks are written.
/// Method   top_k [Fan et al., "Hierarchical neural story generation", 2018], top_p [Holtzman et al., "The curious case
///          of neural text degeneration", 2020]; top_k is applied first, as in Hugging Face's transformers.
/// Errors   config_error for a temperature or top_k below 0, a temperature that is not finite, a top_p that is not in
///          (0, 1], no logits, and logits that are all -infinity; numeric_error for a logit that is NaN or infinite.
[[nodiscard]] inline std::int32_t draw(std::span<float const> logits, drawing const& how, std::uint64_t number) {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  bool const fits = how.temperature >= 0 && how.temperature <= std::numeric_limits<double>::max();
  if (logits.empty() || !fits || how.top_k < 0 || !(how.top_p > 0 && how.top_p <= 1)) {
    throw config_error(text("trireme::draw: ", how_many(logits.size(), "logit"), ", temperature ", how.temperature,
                            ", top_k ", how.top_k, ", top_p ", how.top_p,
                            "; there are logits, temperature and top_k are finite and not below 0, "
                            "and top_p is in (0, 1]"));
  }
  std::vector<std::int32_t> best;  // all that may be drawn
  for (std::size_t token = 0; token < logits.size(); ++token) {
    auto const logit = logits[token];
    if (!(logit < infinity)) {
      throw numeric_error(text("trireme::draw: the logit of token ", token, " of ", logits.size(), " is ", logit,
                               " in draw ", number,
                               "; check the model's parameters, which give no valid probabilities"));
    }
    if (logit > -infinity) best.push_back(static_cast<std::int32_t>(token));
  }
  if (best.empty()) {
    throw config_error(text("trireme::draw: all ", logits.size(),
                            " logits are -infinity, so no token can be drawn; leave at least one unmasked"));
  }
  auto const likelier = [&](std::int32_t a, std::int32_t b) {
    auto const x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (exactly_equal(x, y) && a < b);
  };
  auto const most = *std::min_element(best.begin(), best.end(), likelier);
  if (exactly_equal(how.temperature, 0)) return most;
  if (how.top_k > 0 || how.top_p < 1) {
    auto const kept = how.top_k > 0 ? std::min(best.size(), static_cast<std::size_t>(how.top_k)) : best.size();
    std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(kept), best.end(), likelier);
    best.resize(kept);
  }
  std::vector<double> weights;  // the last ones may be 0: exp() underflows
  auto const largest = static_cast<double>(logits[static_cast<std::size_t>(most)]);
  for (auto const each : best)
    weights.push_back(
        std::exp((static_cast<double>(logits[static_cast<std::size_t>(each)]) - largest) / how.temperature));
  auto all = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (how.top_p < 1) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept < weights.size() && sum < how.top_p * all) sum += weights[kept++];
    weights.resize(kept);
    all = sum;
  }
  constexpr std::uint32_t site = 0xffff;
  double left = unit_float(random_block({how.seed, 0}, site, number, 0)[0]) * all;
  std::size_t next = 0;
  while (next + 1 < weights.size() && (left -= weights[next]) >= 0) ++next;
  if (exactly_equal(weights[next], 0)) return most;  // reached only by rounding of the sum
  return best[next];
}

/// Collective. Continues a text by `count` tokens and calls f(token) with each; stops early if f returns false. If the
/// model is distributed over several ranks, all of them call it with the same arguments and draw the same tokens.
///
/// @param trainer  or an any_trainer; see predict_rows().
/// @param context  most positions that the model takes: when they are full, generation restarts from their second half.
/// @param known    only the first `known` token ids may be sampled; 0: all of the model's.
/// Errors   config_error for a text without tokens and a context below 2; those of draw() and predict_rows().
/// @example generate(trainer, tokens, 200, model.context, {.temperature = 0.8, .top_p = 0.95},
///                   [](std::int32_t token) { std::putchar(token); return true; });
template <class Trainer, class F>
void generate(Trainer& trainer, std::vector<std::int32_t> tokens, std::int64_t count, std::int64_t context,
              drawing const& how, F&& f, std::int64_t known = 0) {
  if (tokens.empty() || context < 2) {
    throw config_error(text("trireme::generate: a text of ", how_many(tokens.size(), "token"), " and a context of ",
                            context, "; there is a token to begin with, and a context of 2 or more"));
  }
  std::vector<paged_rows::place> rows;
  std::vector<std::int32_t> pages;  // the text is the only sequence
  std::int64_t first = 0, computed = 0;
  for (std::int64_t drawn = 0; drawn < count; ++drawn) {
    auto const end = static_cast<std::int64_t>(tokens.size());
    if (end - first > context) first = computed = end - context / 2;
    rows.clear();
    for (auto at = computed; at < end; ++at) rows.push_back({at - first, 0});
    auto const needed = static_cast<std::size_t>(paged_rows::pages_for(end - first));
    if (needed > pages.size()) {
      pages.resize(std::max(needed, 2 * pages.size()));
      std::iota(pages.begin(), pages.end(), 0);
    }
    std::int64_t const last = end - computed - 1;
    auto const logits = trainer.predict_rows(
        make_samples(tensor_view<std::int32_t const>(tokens.data() + computed, shape{1, end - computed}),
                     tensor_view<std::int32_t const>{}),
        {rows, pages, static_cast<std::int64_t>(pages.size()), {&last, 1}});
    computed = end;
    auto const row = std::span<float const>(logits.span());
    auto const token = draw(known > 0 ? row.first(std::min(row.size(), static_cast<std::size_t>(known))) : row, how,
                            static_cast<std::uint64_t>(drawn));
    if (!f(token)) return;
    tokens.push_back(token);
  }
}
/// For a trainer that the compiler has rejected: its one error is enough.
inline void generate(detail::refused&, std::vector<std::int32_t> const&, std::int64_t, std::int64_t, drawing const&,
                     auto&&, std::int64_t = 0) {}

}  // namespace trireme
