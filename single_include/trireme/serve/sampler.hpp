// Trireme 0.1.0: trireme/serve/sampler.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: d88688a696464e9784f51b5d07b5b8f94ae7f4e1bf07bf2a7962bdd54fee62cd
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/serve/request.hpp"

// ---- trireme/serve/sampler.hpp
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace trireme::serve {

/// Samples the tokens of a request. Its memory is kept from one token to the next.
///
/// Numerics without min_p, penalty and biases the tokens are those of trireme::draw() with the same numbers, but sums
///          of probabilities may differ in their last bits. Weights are doubles.
/// Errors   numeric_error for a logit that is NaN or infinite (-infinity is a mask), and where no token is left.
class sampler {
 public:
  /// @param logits  of the tokens that may be sampled; changed.
  /// @param seen    tokens of the prompt and the answer so far.
  /// @param number  of the token in the answer, from 0.
  [[nodiscard]] std::int32_t operator()(std::span<float> logits, request const& how, std::span<std::int32_t const> seen,
                                        std::uint64_t number) {
    change(logits, how, seen);
    constexpr auto infinity = std::numeric_limits<float>::infinity();
    std::size_t most = 0;
    for (std::size_t token = 0; token < logits.size(); ++token) {
      if (!(logits[token] < infinity)) {
        throw numeric_error(text("trireme::serve: the logit of token ", token, " of ", logits.size(), " is ",
                                 logits[token], "; check the model's parameters, which give no valid probabilities"));
      }
      if (logits[token] > logits[most]) most = token;
    }
    if (logits.empty() || !(logits[most] > -infinity))
      throw numeric_error("trireme::serve: no token can be sampled: the logits of all are -infinity");
    if (exactly_equal(how.temperature, 0)) return static_cast<std::int32_t>(most);
    weigh(logits, how, static_cast<double>(logits[most]));
    auto const all = keep(how);
    constexpr std::uint32_t site = 0xffff;  // that of draw()
    double left = unit_float(random_block({how.seed, 0}, site, number, 0)[0]) * all;
    std::size_t next = 0;
    while (next + 1 < kept_.size() && (left -= kept_[next].weight) >= 0) ++next;
    return exactly_equal(kept_[next].weight, 0) ? static_cast<std::int32_t>(most) : kept_[next].token;
  }

 private:
  struct weighed {
    double weight = 0;
    float logit = 0;
    std::int32_t token = 0;
    // The more probable one is first; of equal ones that with the lower number.
    friend bool operator<(weighed const& a, weighed const& b) noexcept {
      return a.logit > b.logit || (exactly_equal(a.logit, b.logit) && a.token < b.token);
    }
  };

  void change(std::span<float> logits, request const& how, std::span<std::int32_t const> seen) {
    if (!exactly_equal(how.repetition_penalty, 1)) {
      auto const by = static_cast<float>(how.repetition_penalty);
      once_.assign(seen.begin(), seen.end());
      std::sort(once_.begin(), once_.end());
      once_.erase(std::unique(once_.begin(), once_.end()), once_.end());
      for (auto const token : once_) {
        if (static_cast<std::size_t>(token) >= logits.size()) continue;
        auto& logit = logits[static_cast<std::size_t>(token)];
        logit = logit > 0 ? logit / by : logit * by;
      }
    }
    for (auto const& [token, bias] : how.logit_bias) {
      if (static_cast<std::size_t>(token) < logits.size()) logits[static_cast<std::size_t>(token)] += bias;
    }
  }
  // All tokens that min_p leaves, in the order of their numbers.
  void weigh(std::span<float const> logits, request const& how, double largest) {
    auto const least =
        how.min_p > 0 ? largest + how.temperature * std::log(how.min_p) : -std::numeric_limits<double>::infinity();
    kept_.clear();
    for (std::size_t token = 0; token < logits.size(); ++token) {
      auto const logit = static_cast<double>(logits[token]);
      if (!(logit >= least) || !std::isfinite(logits[token])) continue;
      kept_.push_back({std::exp((logit - largest) / how.temperature), logits[token], static_cast<std::int32_t>(token)});
    }
  }
  // Leaves those of top_k, then those of top_p; returns the sum of their weights.
  double keep(request const& how) {
    if (how.top_k > 0 && static_cast<std::size_t>(how.top_k) < kept_.size()) {
      sort_first(static_cast<std::size_t>(how.top_k));
      kept_.resize(static_cast<std::size_t>(how.top_k));
    } else if (how.top_k > 0) {
      sort_first(kept_.size());
    }
    double all = 0;
    for (auto const& each : kept_) all += each.weight;
    if (!(how.top_p < 1)) return all;
    // Few tokens usually reach top_p, so not all of them are sorted.
    double sum = 0;
    std::size_t sorted = how.top_k > 0 ? kept_.size() : 0, n = 0;
    while (n < kept_.size() && sum < how.top_p * all) {
      if (n == sorted) {
        constexpr std::size_t few = 64;
        auto const end = std::min(kept_.size(), std::max(few, 4 * sorted));
        sort_first(end, sorted);
        sorted = end;
      }
      sum += kept_[n++].weight;
    }
    kept_.resize(n);
    return sum;
  }
  // The `end` most probable ones come first, in order, where those before `begin` do so already.
  void sort_first(std::size_t end, std::size_t begin = 0) {
    auto const from = kept_.begin() + static_cast<std::ptrdiff_t>(begin);
    auto const to = kept_.begin() + static_cast<std::ptrdiff_t>(end);
    if (to != kept_.end()) std::nth_element(from, to, kept_.end());
    std::sort(from, to);
  }

  std::vector<weighed> kept_;
  std::vector<std::int32_t> once_;
};

/// The most probable tokens, most probable first.
/// @param log_of_sum  the logarithm of the sum of exponentials of the logits.
[[nodiscard]] inline std::vector<scored_token> most_probable(std::span<float const> logits, std::int64_t count,
                                                             double log_of_sum) {
  std::vector<scored_token> out;
  auto const wanted = std::min(static_cast<std::size_t>(std::max<std::int64_t>(0, count)), logits.size());
  auto const likelier = [](scored_token const& a, scored_token const& b) {
    return a.logprob > b.logprob || (exactly_equal(a.logprob, b.logprob) && a.token < b.token);
  };
  for (std::size_t token = 0; token < logits.size() && wanted > 0; ++token) {
    scored_token const one{static_cast<std::int32_t>(token), logits[token]};
    if (out.size() == wanted && !likelier(one, out.back())) continue;
    if (out.size() == wanted) out.pop_back();
    out.insert(std::upper_bound(out.begin(), out.end(), one, likelier), one);
  }
  for (auto& each : out) each.logprob = static_cast<float>(static_cast<double>(each.logprob) - log_of_sum);
  return out;
}

}  // namespace trireme::serve
