#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/contract/optimizer.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/train/optimizer_state.hpp"
#include "trireme/train/step.hpp"

namespace trireme {

/// The exchange of a loop of your own: what make_exchange returns.
///
/// A step of the loop:  begin(); ready(name) for each gradient; step(optimizer). Or, with an update of your own:
///                      begin(); ready(name); finish(); for_each_segment(update); publish().
template <class Exchange, class Env>
class own_exchange : public Exchange {
 public:
  using Exchange::Exchange;

  /// Collective. Ends a step: completes the exchange, takes the vote, clips, updates and publishes, as a trainer does.
  /// Afterwards all parameters that the caller reads are new, unless a gradient was not finite on some rank: then
  /// nothing has changed.
  ///
  /// @param optimizer  its numbers may change from call to call (a rate, say), its type may not: the exchange keeps its
  ///                   moments.
  /// @param votes      a number of your own that is summed over the ranks (a wish to stop, say).
  /// Errors   config_error for an optimizer of another type than in the first call, and for one that needs whole
  ///          tensors or freezes some, unless make_exchange was given it too; others as finish().
  template <class Optimizer>
  requires trireme::optimizer<Optimizer, Env> exchange_result step(Optimizer const& optimizer, std::int64_t votes = 0) {
    auto& moments = moments_of(optimizer);
    vote_.clear();
    vote_.wish(votes);
    auto const done = end_step(
        *this, moments, optimizer, vote_, 1, [](bool finite) { return finite; }, updates_);
    if (done.updated) ++updates_;
    static_cast<void>(this->end(steps_++));
    return done.counted;
  }
  /// Calls of step() so far.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }

 private:
  struct held_moments {
    held_moments() = default;
    held_moments(held_moments const&) = delete;
    held_moments& operator=(held_moments const&) = delete;
    virtual ~held_moments() = default;
  };
  template <class Optimizer>
  struct moments_for final : held_moments {
    moments_for(own_exchange const& exchange, Optimizer const& optimizer) : state(exchange, optimizer) {}
    optimizer_state<Env, Optimizer> state;
  };
  template <class Optimizer>
  [[nodiscard]] optimizer_state<Env, Optimizer>& moments_of(Optimizer const& optimizer) {
    if (moments_ == nullptr) {
      moments_ = std::make_unique<moments_for<Optimizer>>(*this, optimizer);
      optimizer_ = type_name<Optimizer>();
    }
    auto* const own = dynamic_cast<moments_for<Optimizer>*>(moments_.get());
    if (own != nullptr) return own->state;
    throw config_error(text("trireme::exchange: step() with ", type_name<Optimizer>(), " after step() with ",
                            optimizer_, ", whose moments it keeps; use one optimizer, or make another exchange"));
  }

  parallel::vote vote_;
  std::unique_ptr<held_moments> moments_;
  std::string optimizer_;
  std::int64_t steps_ = 0;
  std::int64_t updates_ = 0;
};

}  // namespace trireme
