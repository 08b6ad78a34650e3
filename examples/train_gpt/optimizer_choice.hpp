#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/optim/adamw8.hpp"
#include "trireme/optim/optim.hpp"

/// The optimizers that can be chosen at run time, with settings that suit a GPT: warm-up, then a cosine down to a
/// tenth.
struct optimizer_choice {
  enum class method : std::size_t { adamw, sgd, muon, adafactor, lamb, adamw8 };
  method chosen = method::adamw;
  double learning_rate = 0;
  std::int64_t steps = 1;
  double momentum = trireme::optim::sgd{}.momentum;  ///< of sgd

  [[nodiscard]] static std::vector<std::string> names() {
    return {"adamw", "sgd", "muon", "adafactor", "lamb", "adamw8"};
  }
  /// The peak rate if none is given.
  [[nodiscard]] static std::string usual_rate(method of) {
    char const* const rates[] = {"0.002", "0.1", "0.02", "0.02", "0.01", "0.002"};
    return rates[static_cast<std::size_t>(of)];
  }
  /// The smallest number of moments per parameter, in floats.
  [[nodiscard]] double least_moments() const {
    double const moments[] = {2, 1, 1, 0, 2, 0.5};
    return moments[static_cast<std::size_t>(chosen)];
  }

  /// Calls f(description), and returns its result: the same type for all of them.
  template <class F>
  [[nodiscard]] auto with(F&& f) const {
    using namespace trireme;
    auto const from = [&](double peak) -> optim::schedule {
      return optim::cosine{
          .peak = peak, .warmup = std::min<std::int64_t>(100, steps / 10 + 1), .total = steps, .floor = peak / 10};
    };
    auto const adamw = [&](double peak) {
      return optim::adamw{.schedule = from(peak), .beta2 = 0.95, .weight_decay = 0.1, .clip = 1.0};
    };
    switch (chosen) {
      case method::sgd:
        return f(optim::sgd{.schedule = from(learning_rate), .momentum = momentum, .clip = 1.0});
      case method::muon:
        return f(optim::muon{
            .schedule = from(learning_rate), .weight_decay = 0.1, .clip = 1.0, .rest = adamw(learning_rate / 10)});
      case method::adafactor:
        return f(optim::adafactor{.schedule = from(learning_rate), .clip = 1.0});
      case method::lamb:
        return f(optim::lamb{.schedule = from(learning_rate), .weight_decay = 0.1, .clip = 1.0});
      case method::adamw8:
        return f(optim::adamw8<>{.schedule = from(learning_rate), .beta2 = 0.95, .weight_decay = 0.1, .clip = 1.0});
      default:
        return f(adamw(learning_rate));
    }
  }
  /// All of them as one type, so that trainers are compiled once.
  template <class Env>
  [[nodiscard]] trireme::optim::any<Env> any() const {
    return with([]<class Optimizer>(Optimizer const& optimizer) -> trireme::optim::any<Env> {
      if constexpr (std::is_same_v<typename Env::space, trireme::host> ||
                    !std::is_same_v<Optimizer, trireme::optim::adamw8<>>) {
        return trireme::optim::any<Env>(optimizer);
      } else {
        throw trireme::config_error("--optimizer adamw8 works in host memory only; take --device cpu, or adamw");
      }
    });
  }
};

[[nodiscard]] inline std::string to_string(optimizer_choice const& chosen) {
  return chosen.with([](auto const& optimizer) { return to_string(optimizer); });
}
