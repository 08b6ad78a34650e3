// Trireme 0.1.0: trireme/serve/decoder.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 8dcf630edee0be5ebd828f85a5b1f42124b982eeea5f744cb60ccea6180558d8
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/serve/decoder.hpp
#include <cstdint>
#include <span>

namespace trireme::serve {

/// A model of which an engine computes many sequences at once.
class decoder {
 public:
  decoder() = default;
  decoder(decoder const&) = delete;
  decoder& operator=(decoder const&) = delete;
  virtual ~decoder() = default;

  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  /// Most positions of a sequence.
  [[nodiscard]] virtual std::int64_t context() const = 0;
  /// The logits (rows.outputs, vocabulary) of those rows that are wanted.
  /// @param tokens  of the rows.
  [[nodiscard]] virtual tensor<float> compute(std::span<std::int32_t const> tokens, paged_rows const& rows) = 0;
  /// Called about once a second while there is nothing to compute, in the thread that computes.
  virtual void idle() {}
};

/// The decoder that a trainer is. Between passes of an engine nobody else uses the trainer, and its parameters stay as
/// they are.
template <class Trainer>
class trainer_decoder final : public decoder {
 public:
  trainer_decoder(Trainer& trainer, std::int64_t vocabulary, std::int64_t context)
      : trainer_(trainer), vocabulary_(vocabulary), context_(context) {}
  [[nodiscard]] std::int64_t vocabulary() const override { return vocabulary_; }
  [[nodiscard]] std::int64_t context() const override { return context_; }
  [[nodiscard]] tensor<float> compute(std::span<std::int32_t const> tokens, paged_rows const& rows) override {
    return trainer_.predict_rows(
        make_samples(tensor_view<std::int32_t const>(tokens.data(), {1, static_cast<std::int64_t>(tokens.size())}),
                     tensor_view<std::int32_t const>{}),
        rows);
  }

 private:
  Trainer& trainer_;
  std::int64_t vocabulary_, context_;
};

/// The decoder that a trainer (or an any_trainer) of a language model is; the trainer outlives it. Make the trainer
/// with all parameters frozen, and there are no gradients and moments.
///
/// @param model  the trainer's: its vocabulary and context are taken. It may be a nn::one_of.
/// @example auto decoder = serve::decoder_of(trainer, model);
template <class Trainer, class Model>
[[nodiscard]] trainer_decoder<Trainer> decoder_of(Trainer& trainer, Model const& model) {
  if constexpr (requires { model.chosen; }) {
    return model.with([&](auto const& chosen) { return decoder_of(trainer, chosen); });
  } else if constexpr (requires { model.changes; }) {
    return decoder_of(trainer, model.model);
  } else {
    return {trainer, model.vocabulary, model.context};
  }
}

}  // namespace trireme::serve
