#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/train/detail/batch_upload.hpp"

namespace trireme::detail {

/// A micro-batch in flight in one chunk.
template <class Env>
struct micro_batch_state {
  using view = tensor_view<typename Env::compute, typename Env::space>;
  arena<typename Env::space> activations;
  samples_in<typename Env::space> batch;
  typename batch_upload<typename Env::space>::landing* landed = nullptr;  // where it is
  view out;                                                               // of the chunk, forward
  view returned;  // its gradient, if the next part is on this rank
};

/// Slots for micro-batches in flight, as many as there ever were at a time. Units keep saved tensors under a slot's
/// number.
template <class Env>
class micro_batch_states {
 public:
  using state = micro_batch_state<Env>;

  /// Frees all slots at the start of a step.
  void begin(std::size_t chunks, int micro_batches) {
    micro_batches_ = micro_batches;
    free_.clear();
    for (auto s = states_.size(); s-- > 0;) {
      states_[s]->activations.reset();
      free_.push_back(s);
    }
    state_of_.assign(chunks * static_cast<std::size_t>(micro_batches), nowhere);
  }
  [[nodiscard]] state& operator[](std::size_t index) noexcept { return *states_[index]; }
  /// The slot of a micro-batch in flight.
  [[nodiscard]] std::size_t of(int chunk, int micro_batch) const noexcept { return state_of_[at(chunk, micro_batch)]; }

  std::size_t take(int chunk, int micro_batch) {
    if (free_.empty()) {
      free_.push_back(states_.size());
      states_.push_back(std::make_unique<state>());
    }
    auto const index = free_.back();
    free_.pop_back();
    state_of_[at(chunk, micro_batch)] = index;
    states_[index]->returned = {};
    return index;
  }
  void give_back(std::size_t index) {
    states_[index]->activations.reset();
    free_.push_back(index);
  }
  /// At the end of a step: the memory of each slot becomes one block, so that the next step allocates nothing.
  void end() {
    for (auto& each : states_) each->activations.reset();
  }

  [[nodiscard]] std::size_t peak_bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& each : states_) sum += each->activations.peak_bytes();
    return sum;
  }

 private:
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  [[nodiscard]] std::size_t at(int chunk, int micro_batch) const noexcept {
    return static_cast<std::size_t>(chunk * micro_batches_ + micro_batch);
  }

  std::vector<std::unique_ptr<state>> states_;
  std::vector<std::size_t> free_;
  std::vector<std::size_t> state_of_;  // chunk * micro-batches + micro-batch -> slot
  int micro_batches_ = 0;
};

}  // namespace trireme::detail
