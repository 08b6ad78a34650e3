#pragma once

#include <cstdint>
#include <span>

#include "trireme/core/hash.hpp"
#include "trireme/trireme.hpp"

/// Sample s is a function of s: random numbers below the vocabulary, each the target of the one before. If `asked` is
/// below 1, only about this share of the positions has a target; the targets of the others are -1.
struct random_tokens {
  std::int64_t context;
  std::int64_t vocabulary;
  double asked = 1;
  [[nodiscard]] std::int64_t size() const { return 4096; }
  [[nodiscard]] trireme::dtype input_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::dtype target_type() const { return trireme::dtype::i32; }
  [[nodiscard]] trireme::shape input_shape() const { return {context}; }
  [[nodiscard]] trireme::shape target_shape() const { return {context}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    auto const token = [&](std::int64_t id, std::int64_t t) {
      return static_cast<std::int32_t>(trireme::mix(static_cast<std::uint64_t>(id * 4096 + t)) %
                                       static_cast<std::uint64_t>(vocabulary));
    };
    for (auto const id : ids) {
      for (std::int64_t t = 0; t < context; ++t) {
        *in++ = token(id, t);
        *out++ = asked < 1 && t % static_cast<std::int64_t>(1 / asked) != 0 ? -1 : token(id, t + 1);
      }
    }
  }
};
