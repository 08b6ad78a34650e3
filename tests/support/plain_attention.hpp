#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

// Attention as its definition says it, in double: what faster ways are compared with.
namespace plain {

struct attention_shape {
  std::int64_t batch = 0, context = 0, heads = 0, width = 0;
  bool causal = true;
  std::int64_t window = 0;  ///< only keys at a distance below this; 0: any distance
  double scale = 1;

  /// The keys of a query: the first, and one past the last.
  [[nodiscard]] std::int64_t begin(std::int64_t query) const {
    return window > 0 ? std::max<std::int64_t>(0, query - window + 1) : 0;
  }
  [[nodiscard]] std::int64_t end(std::int64_t query) const {
    return causal ? query + 1 : window > 0 ? std::min(context, query + window) : context;
  }
};

/// One head of one sample, as numbers of rows of `stride` elements.
template <class T>
struct attention_rows {
  T* first;
  std::int64_t stride;
  T& operator()(std::int64_t row, std::int64_t column) const { return first[row * stride + column]; }
};

/// Calls f(sample, head) for each head.
template <class F>
void for_each_head(attention_shape const& of, F f) {
  for (std::int64_t sample = 0; sample < of.batch; ++sample)
    for (std::int64_t head = 0; head < of.heads; ++head) f(sample, head);
}

/// y (B*T, C) and lse (B, H, T) of qkv (B*T, 3C).
template <class T, class Y, class L>
void attention(attention_shape const& of, T const* qkv, Y* y, L* lse) {
  auto const channels = of.heads * of.width;
  std::vector<double> scores(static_cast<std::size_t>(of.context));
  for_each_head(of, [&](std::int64_t sample, std::int64_t head) {
    auto const* const from = qkv + sample * of.context * 3 * channels + head * of.width;
    attention_rows<T const> const q{from, 3 * channels}, k{from + channels, 3 * channels},
        v{from + 2 * channels, 3 * channels};
    attention_rows<Y> const to{y + sample * of.context * channels + head * of.width, channels};
    for (std::int64_t row = 0; row < of.context; ++row) {
      double most = -INFINITY, sum = 0;
      for (auto key = of.begin(row); key < of.end(row); ++key) {
        double score = 0;
        for (std::int64_t d = 0; d < of.width; ++d)
          score += static_cast<double>(q(row, d)) * static_cast<double>(k(key, d));
        scores[static_cast<std::size_t>(key)] = score *= of.scale;
        most = std::max(most, score);
      }
      for (auto key = of.begin(row); key < of.end(row); ++key)
        sum += std::exp(scores[static_cast<std::size_t>(key)] - most);
      auto const logarithm = most + std::log(sum);
      lse[(sample * of.heads + head) * of.context + row] = static_cast<L>(logarithm);
      for (std::int64_t d = 0; d < of.width; ++d) {
        double mean = 0;
        for (auto key = of.begin(row); key < of.end(row); ++key)
          mean += std::exp(scores[static_cast<std::size_t>(key)] - logarithm) * static_cast<double>(v(key, d));
        to(row, d) = static_cast<Y>(static_cast<float>(mean));
      }
    }
  });
}

/// dqkv (B*T, 3C) from dy (B*T, C) and what the forward pass read and wrote.
template <class T, class Y, class L, class G>
void attention_backward(attention_shape const& of, T const* qkv, Y const* y, L const* lse, T const* dy, G* dqkv) {
  auto const channels = of.heads * of.width;
  auto const size = static_cast<std::size_t>(of.context * of.width);
  for_each_head(of, [&](std::int64_t sample, std::int64_t head) {
    auto const wide = sample * of.context * 3 * channels + head * of.width;
    auto const narrow = sample * of.context * channels + head * of.width;
    attention_rows<T const> const q{qkv + wide, 3 * channels}, k{qkv + wide + channels, 3 * channels},
        v{qkv + wide + 2 * channels, 3 * channels}, up{dy + narrow, channels};
    attention_rows<Y const> const result{y + narrow, channels};
    std::vector<double> dq(size), dk(size), dv(size);
    for (std::int64_t row = 0; row < of.context; ++row) {
      double whole = 0;
      for (std::int64_t d = 0; d < of.width; ++d)
        whole += static_cast<double>(up(row, d)) * static_cast<double>(result(row, d));
      for (auto key = of.begin(row); key < of.end(row); ++key) {
        double score = 0, slope = 0;
        for (std::int64_t d = 0; d < of.width; ++d) {
          score += static_cast<double>(q(row, d)) * static_cast<double>(k(key, d));
          slope += static_cast<double>(up(row, d)) * static_cast<double>(v(key, d));
        }
        auto const weight =
            std::exp(score * of.scale - static_cast<double>(lse[(sample * of.heads + head) * of.context + row]));
        auto const change = weight * (slope - whole) * of.scale;
        for (std::int64_t d = 0; d < of.width; ++d) {
          auto const of_row = static_cast<std::size_t>(row * of.width + d);
          auto const of_key = static_cast<std::size_t>(key * of.width + d);
          dq[of_row] += change * static_cast<double>(k(key, d));
          dk[of_key] += change * static_cast<double>(q(row, d));
          dv[of_key] += weight * static_cast<double>(up(row, d));
        }
      }
    }
    for (std::int64_t row = 0; row < of.context; ++row) {
      for (std::int64_t d = 0; d < of.width; ++d) {
        auto const from = static_cast<std::size_t>(row * of.width + d);
        auto* const to = dqkv + wide + row * 3 * channels + d;
        to[0] = static_cast<G>(static_cast<float>(dq[from]));
        to[channels] = static_cast<G>(static_cast<float>(dk[from]));
        to[2 * channels] = static_cast<G>(static_cast<float>(dv[from]));
      }
    }
  });
}

}  // namespace plain
