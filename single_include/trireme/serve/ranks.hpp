// Trireme 0.1.0: trireme/serve/ranks.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: b4978541f28d5dccdcd3912bb113e4d9fc4a1a31b7c9408ee526e7e644bd81ff
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/serve/decoder.hpp"

// ---- trireme/serve/ranks.hpp
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

namespace trireme::serve {

namespace detail {

/// What the first rank says to the others before each pass.
struct pass_message {
  enum kind : std::int64_t { end, nothing, rows };
  static constexpr std::int64_t numbers = 5;  // the kind, then how many of each

  template <class World>
  static void say(World& world, kind what, std::span<std::int32_t const> tokens = {}, paged_rows const& rows = {}) {
    std::vector<std::int64_t> head{what, rows.count(), static_cast<std::int64_t>(rows.pages.size()),
                                   static_cast<std::int64_t>(rows.outputs.size()), rows.pages_in_all};
    parallel::broadcast(world, tensor_view<std::int64_t>(head.data(), {numbers}), 0);
    if (what != pass_message::rows) return;
    std::vector<std::int64_t> body(tokens.begin(), tokens.end());
    for (auto const& each : rows.rows) {
      body.push_back(each.position);
      body.push_back(each.first_page);
    }
    body.insert(body.end(), rows.pages.begin(), rows.pages.end());
    body.insert(body.end(), rows.outputs.begin(), rows.outputs.end());
    parallel::broadcast(world, tensor_view<std::int64_t>(body.data(), {static_cast<std::int64_t>(body.size())}), 0);
  }
  /// Receives one; returns its kind.
  template <class World>
  kind hear(World& world) {
    std::int64_t head[numbers] = {};
    parallel::broadcast(world, tensor_view<std::int64_t>(head, {numbers}), 0);
    if (head[0] != rows) return static_cast<kind>(head[0]);
    std::vector<std::int64_t> body(static_cast<std::size_t>(3 * head[1] + head[2] + head[3]));
    parallel::broadcast(world, tensor_view<std::int64_t>(body.data(), {static_cast<std::int64_t>(body.size())}), 0);
    auto from = body.begin();
    auto const numbers_of = [&](std::vector<std::int32_t>& to, std::int64_t count) {
      to.clear();
      for (; count > 0; --count) to.push_back(static_cast<std::int32_t>(*from++));
    };
    numbers_of(tokens, head[1]);
    places.clear();
    for (std::int64_t i = 0; i < head[1]; ++i, from += 2) places.push_back({from[0], from[1]});
    numbers_of(pages, head[2]);
    outputs.assign(from, body.end());
    pages_in_all = head[4];
    return rows;
  }
  [[nodiscard]] paged_rows heard() const { return {places, pages, pages_in_all, outputs}; }

  std::vector<std::int32_t> tokens, pages;
  std::vector<paged_rows::place> places;
  std::vector<std::int64_t> outputs;
  std::int64_t pages_in_all = 0;
};

}  // namespace detail

/// On the first rank: the decoder that the trainers of all ranks are together, under a mesh that distributes the model
/// (parallel::tensor, for instance, so that several cores compute each pass). The other ranks call follow().
///
/// Ranks    collective: every pass is one on all ranks, which begins with two broadcasts. While there is nothing to
///          compute a message a second keeps the others within their deadline.
/// Threads  the thread that computes (engine::start() or work()) is the only one that uses the world.
/// @example docs/serving.md
template <class Trainer>
class shared_decoder final : public decoder {
 public:
  shared_decoder(Trainer& trainer, std::int64_t vocabulary, std::int64_t context)
      : alone_(trainer, vocabulary, context), trainer_(trainer) {
    if (trainer.world().rank() != 0)
      throw config_error("trireme::serve::shared_decoder: make it on the first rank; the others call follow(trainer)");
  }
  /// The other ranks' follow() returns.
  ~shared_decoder() override {
    try {
      detail::pass_message::say(trainer_.world(), detail::pass_message::end);
    } catch (std::exception const&) {  // a rank has failed, and knows why
      return;
    }
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return alone_.vocabulary(); }
  [[nodiscard]] std::int64_t context() const override { return alone_.context(); }
  [[nodiscard]] tensor<float> compute(std::span<std::int32_t const> tokens, paged_rows const& rows) override {
    detail::pass_message::say(trainer_.world(), detail::pass_message::rows, tokens, rows);
    return alone_.compute(tokens, rows);
  }
  void idle() override { detail::pass_message::say(trainer_.world(), detail::pass_message::nothing); }

 private:
  trainer_decoder<Trainer> alone_;
  Trainer& trainer_;
};

/// The same with the vocabulary and the context of the trainer's model.
/// @example auto decoder = serve::shared_decoder_of(trainer, model);
template <class Trainer, class Model>
[[nodiscard]] shared_decoder<Trainer> shared_decoder_of(Trainer& trainer, Model const& model) {
  if constexpr (requires { model.chosen; }) {
    return model.with([&](auto const& chosen) { return shared_decoder_of(trainer, chosen); });
  } else if constexpr (requires { model.changes; }) {
    return shared_decoder_of(trainer, model.model);
  } else {
    return shared_decoder<Trainer>(trainer, model.vocabulary, model.context);
  }
}

/// On all ranks but the first: takes part in each pass of its engine; returns when the first rank's decoder ends.
///
/// Errors   comm_error if a rank fails. What the layers refuse they refuse on all ranks: the first one tells it.
template <class Trainer>
void follow(Trainer& trainer) {
  if (trainer.world().rank() == 0)
    throw config_error("trireme::serve::follow: the first rank has the engine; it makes a shared_decoder");
  detail::pass_message message;
  for (;;) {
    auto const kind = message.hear(trainer.world());
    if (kind == detail::pass_message::end) return;
    if (kind == detail::pass_message::nothing) continue;
    try {
      trainer_decoder<Trainer> own(trainer, 0, 0);
      static_cast<void>(own.compute(message.tokens, message.heard()));
    } catch (comm_error const&) {
      throw;
    } catch (error const&) {
      continue;
    }
  }
}

}  // namespace trireme::serve
