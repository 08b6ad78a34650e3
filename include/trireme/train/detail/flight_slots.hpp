#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/core/arena.hpp"

namespace trireme::detail {

/// A micro-batch in flight in one chunk.
template <class Env>
struct flight_slot {
  using view = tensor_view<typename Env::compute, typename Env::space>;
  arena<typename Env::space> activations;
  samples_in<typename Env::space> batch;
  view out;       // of the chunk, forward
  view returned;  // its gradient, if the next part is on this rank
};

/// Slots for micro-batches in flight, as many as there ever were at a time. Units keep saved tensors under a slot's
/// number.
template <class Env>
class flight_slots {
 public:
  using slot = flight_slot<Env>;

  /// Frees all slots at the start of a step.
  void begin(std::size_t chunks, int micro_batches) {
    micro_batches_ = micro_batches;
    free_.clear();
    for (auto s = slots_.size(); s-- > 0;) {
      slots_[s]->activations.reset();
      free_.push_back(s);
    }
    slot_of_.assign(chunks * static_cast<std::size_t>(micro_batches), nowhere);
  }
  [[nodiscard]] slot& operator[](std::size_t index) noexcept { return *slots_[index]; }
  /// The slot of a micro-batch in flight.
  [[nodiscard]] std::size_t of(int chunk, int micro_batch) const noexcept { return slot_of_[at(chunk, micro_batch)]; }

  std::size_t take(int chunk, int micro_batch) {
    if (free_.empty()) {
      free_.push_back(slots_.size());
      slots_.push_back(std::make_unique<slot>());
    }
    auto const index = free_.back();
    free_.pop_back();
    slot_of_[at(chunk, micro_batch)] = index;
    slots_[index]->returned = {};
    return index;
  }
  void give_back(std::size_t index) {
    slots_[index]->activations.reset();
    free_.push_back(index);
  }
  /// At the end of a step: the memory of each slot becomes one block, so that the next step allocates nothing.
  void end() {
    for (auto& each : slots_) each->activations.reset();
  }

  [[nodiscard]] std::size_t peak_bytes() const noexcept {
    std::size_t sum = 0;
    for (auto const& each : slots_) sum += each->activations.peak_bytes();
    return sum;
  }

 private:
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
  [[nodiscard]] std::size_t at(int chunk, int micro_batch) const noexcept {
    return static_cast<std::size_t>(chunk * micro_batches_ + micro_batch);
  }

  std::vector<std::unique_ptr<slot>> slots_;
  std::vector<std::size_t> free_;
  std::vector<std::size_t> slot_of_;  // chunk * micro-batches + micro-batch -> slot
  int micro_batches_ = 0;
};

}  // namespace trireme::detail
