// Trireme 0.1.0: trireme/optim/adamw8.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: ac5462e9017b906543ce67eb8962ae1c3d1a7ea805f878ff0ecbc9c07b7a947e
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/core/float8.hpp"

// ---- trireme/optim/adamw8.hpp
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace trireme::optim {

namespace detail {

/// Codes of 8 bits for moments. All round up or down by chance: a moving average that changes by less than their
/// spacing in a step would else never change.
///
/// @param random  20 bits that decide.
[[nodiscard]] inline std::uint8_t code_of_mean(float y, std::uint32_t random) noexcept {  // E4M3, up to 448
  auto const raw = std::bit_cast<std::uint32_t>(y);
  auto const size = raw & 0x7fff'ffffU;
  constexpr std::uint32_t normal = (127U - 6) << 23;
  std::uint32_t code = 0;
  if (size >= normal) {
    code = (size + random - ((127U - 7) << 23)) >> 20;
  } else {
    code = static_cast<std::uint32_t>(std::bit_cast<float>(size) * 512 + static_cast<float>(random) * 0x1p-20F);
  }
  return static_cast<std::uint8_t>((raw >> 24 & 0x80U) | std::min(code, float8_e4m3::largest_bits));
}
/// A number that is not negative, up to 1.9375: 4 bits of exponent, 4 behind the point. What is above 0 stays above 0,
/// because it divides.
inline constexpr float largest_root = 1.9375F;
[[nodiscard]] inline std::uint8_t code_of_root(float y, std::uint32_t random) noexcept {
  auto const size = std::bit_cast<std::uint32_t>(y) + (random >> 1);
  constexpr std::uint32_t least = (127U - 15) << 23;
  if (!(y > 0)) return 0;
  return static_cast<std::uint8_t>(size < least ? 1U : std::clamp((size - least) >> 19, 1U, 255U));
}
[[nodiscard]] inline float root_of_code(std::uint8_t code) noexcept {
  return code == 0 ? 0 : std::bit_cast<float>((static_cast<std::uint32_t>(code) << 19) + ((127U - 15) << 23));
}

/// One of the two bfloat16 around x, by chance.
/// @param random  16 bits that decide.
[[nodiscard]] inline bfloat16 bfloat16_by_chance(float x, std::uint32_t random) noexcept {
  auto const raw = std::bit_cast<std::uint32_t>(x);
  if ((raw & 0x7f80'0000U) == 0x7f80'0000U) return bfloat16(x);
  bfloat16 out;
  out.bits = static_cast<std::uint16_t>((raw + random) >> 16);
  return out;
}

}  // namespace detail

/// optim::adamw with moments of 8 bits: a quarter of its state. With Master = bfloat16, for precision::bf16_only, new
/// weights are rounded up or down by chance, so that the mean of many small updates is right.
///
/// Method   as optim::adamw, whose moments are stored in blocks of 256 numbers with a float scale each, as [Dettmers et
///          al., "8-bit optimizers via block-wise quantization", 2022] has it: the first in E4M3, of the second its
///          root with 4 bits of exponent and 4 behind the point.
/// Bytes    2.03 per parameter, where optim::adamw in float has 8.
/// Numerics moments are rounded up or down by chance, with numbers that follow from the tensor's name, the step and the
///          place: a resumed run has the same bits. Weights are computed with moments that are not rounded yet.
/// Errors   with another master type than Master, or in other memory than the host's: at compile time.
/// @models  whole_tensor_optimizer: cannot be used with parallel::tensor of degree above 1.
template <class Master = float>
struct adamw8 {
  static_assert(std::is_same_v<Master, float> || std::is_same_v<Master, bfloat16>,
                "trireme::optim::adamw8: master weights are float or bfloat16");
  using policy_category = slot::optimizer;

  double learning_rate = 1e-3;  ///< used where `schedule` is empty
  optim::schedule schedule{};
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  double clip = 0;  ///< largest global gradient norm; 0 = no clipping
  friend bool operator==(adamw8 const&, adamw8 const&) = default;

  void validate() const {
    expect_number("optim::adamw8", ".learning_rate", learning_rate, not_negative);
    expect_schedule(schedule);
    expect_number("optim::adamw8", ".beta1", beta1, below_one);
    expect_number("optim::adamw8", ".beta2", beta2, below_one);
    expect_number("optim::adamw8", ".epsilon", epsilon, not_negative);
    expect_number("optim::adamw8", ".weight_decay", weight_decay, not_negative);
    expect_number("optim::adamw8", ".clip", clip, limit_or_none);
  }

  static constexpr bool whole_tensors = true;
  static constexpr std::array<std::string_view, 2> moment_names{"first_moment_codes", "second_moment_codes"};
  static constexpr std::int64_t block = 256;  ///< numbers that share a scale
  /// A tensor's codes, a byte each, up to a multiple of 4, and the scales behind them, as if they were masters.
  [[nodiscard]] shape moment_shape(std::size_t, parameter_info const& info) const {
    auto const n = info.extents.size();
    return {bytes_of(n) / static_cast<std::int64_t>(sizeof(Master))};
  }
  [[nodiscard]] double rate_at(std::int64_t step) const { return optim::rate_at(schedule, learning_rate, step); }

  template <class Env>
  void update(tensor_update<Env> const& tensor, std::int64_t step) const {
    using space = typename Env::space;
    static_assert(std::is_same_v<typename Env::master, Master>,
                  "trireme::optim::adamw8: name the precision's master type: adamw8<float>, or adamw8<bfloat16> with "
                  "precision::bf16_only");
    static_assert(std::is_same_v<space, host> || without_elements<space>,
                  "trireme::optim::adamw8: works in host memory only; take optim::adamw on a device");
    if constexpr (std::is_same_v<space, host>) {
      auto const n = tensor.value.size();
      auto* const means = reinterpret_cast<std::byte*>(tensor.moments[0].address());
      auto* const roots = reinterpret_cast<std::byte*>(tensor.moments[1].address());
      numbers const now{.rate = rate_at(step),
                        .correction1 = 1 - std::pow(beta1, count_of_updates(tensor, step)),
                        .correction2 = 1 - std::pow(beta2, count_of_updates(tensor, step)),
                        .decay = tensor.info.decays ? weight_decay : 0,
                        .scale = tensor.scale,
                        .key = mix(hash_name(tensor.info.name) ^ mix(static_cast<std::uint64_t>(step)))};
      for (std::int64_t first = 0; first < n; first += block) {
        auto const count = std::min(block, n - first);
        update_block(now, first, count, tensor.value.address() + first, tensor.gradient.address() + first,
                     {means + first, means + scale_at(n, first)}, {roots + first, roots + scale_at(n, first)});
      }
    }
    detail::write_outputs(tensor);
  }

 private:
  struct numbers {
    double rate, correction1, correction2, decay, scale;
    std::uint64_t key;
  };
  struct coded {
    std::byte *codes, *scale;
  };
  static std::int64_t codes_of(std::int64_t n) noexcept { return (n + 3) / 4 * 4; }
  static std::int64_t scale_at(std::int64_t n, std::int64_t first) noexcept { return codes_of(n) + first / block * 4; }
  static std::int64_t bytes_of(std::int64_t n) noexcept { return codes_of(n) + (n + block - 1) / block * 4; }

  template <class G>
  void update_block(numbers const& now, std::int64_t first, std::int64_t n, Master* value, G const* gradient,
                    coded const& means, coded const& roots) const {
    float mean_scale = 0, root_scale = 0;
    std::memcpy(&mean_scale, means.scale, sizeof(float));
    std::memcpy(&root_scale, roots.scale, sizeof(float));
    auto const b1 = static_cast<float>(beta1), b2 = static_cast<float>(beta2), e = static_cast<float>(epsilon);
    auto const by = static_cast<float>(now.scale), keep = static_cast<float>(1 - now.rate * now.decay);
    auto const step = static_cast<float>(now.rate / now.correction1);
    auto const root_correction = static_cast<float>(1 / std::sqrt(now.correction2));
    std::array<float, block> m{}, s{};
    float most_m = 0, most_s = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      auto const at = static_cast<std::size_t>(i);
      float8_e4m3 mean;
      mean.bits = std::to_integer<std::uint8_t>(means.codes[i]);
      auto const root = detail::root_of_code(std::to_integer<std::uint8_t>(roots.codes[i])) * root_scale;
      auto const g = static_cast<float>(gradient[i]) * by;
      m[at] = b1 * (static_cast<float>(mean) * mean_scale) + (1 - b1) * g;
      s[at] = std::sqrt(b2 * (root * root) + (1 - b2) * (g * g));
      most_m = std::max(most_m, std::abs(m[at]));
      most_s = std::max(most_s, s[at]);
    }
    mean_scale = most_m / static_cast<float>(float8_e4m3::max());
    root_scale = most_s / detail::largest_root;
    for (std::int64_t i = 0; i < n; ++i) {
      auto const at = static_cast<std::size_t>(i);
      auto const random = mix(now.key ^ static_cast<std::uint64_t>(first + i));
      auto const next = static_cast<float>(value[i]) * keep - step * m[at] / (s[at] * root_correction + e);
      if constexpr (std::is_same_v<Master, bfloat16>) {
        value[i] = detail::bfloat16_by_chance(next, static_cast<std::uint32_t>(random & 0xffffU));
      } else {
        value[i] = next;
      }
      auto const of_mean = static_cast<std::uint32_t>(random >> 16 & 0xf'ffffU);
      auto const of_root = static_cast<std::uint32_t>(random >> 36 & 0xf'ffffU);
      means.codes[i] = std::byte{mean_scale > 0 ? detail::code_of_mean(m[at] / mean_scale, of_mean) : std::uint8_t{0}};
      roots.codes[i] = std::byte{root_scale > 0 ? detail::code_of_root(s[at] / root_scale, of_root) : std::uint8_t{0}};
    }
    std::memcpy(means.scale, &mean_scale, sizeof(float));
    std::memcpy(roots.scale, &root_scale, sizeof(float));
  }
};

template <class Master>
[[nodiscard]] std::string to_string(adamw8<Master> const& o) {
  return text("optim::adamw8<", std::is_same_v<Master, float> ? "float" : "bfloat16",
              ">{.learning_rate = ", o.learning_rate, ", .schedule = ", to_string(o.schedule), ", .beta1 = ", o.beta1,
              ", .beta2 = ", o.beta2, ", .epsilon = ", o.epsilon, ", .weight_decay = ", o.weight_decay,
              ", .clip = ", o.clip, "}");
}

}  // namespace trireme::optim
