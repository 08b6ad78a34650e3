#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/core/dialect.hpp"

namespace trireme::schedule {

/// The work of a stage in one step. A zero-bubble schedule runs a backward in two halves: `backward_input` computes the
/// gradient for which the previous stage waits, `backward_weight` the parameters' gradients, at any later time.
enum class work : std::uint8_t { forward, backward, backward_input, backward_weight };

/// No stage: for a step without a peer.
inline constexpr int nobody = -1;

/// One entry of a stage's list. A schedule gives the work; `basic_lists` adds the value that the step reads (an
/// activation, or in backward a gradient) and the one that it computes, numbered over all stages, and the stage that
/// sends or receives it.
struct step {
  work kind = work::forward;
  bool with_next = false;  ///< this step and the next one may overlap: costs::overlapped; the engine runs them in turn
  int chunk = 0;
  int micro_batch = 0;
  int from = nobody;
  int to = nobody;
  int input = -1;   ///< -1: none
  int output = -1;  ///< -1: none
  friend constexpr bool operator==(step const&, step const&) = default;
};

/// How the parts of a model are placed on the stages.
///   straight   chunk c of stage s is part c * stages + s
///   vee        two chunks: down the stages and back, so that the first and the last part are on stage 0
///   both_ways  two chunks: every part is on two stages, s and stages - 1 - s; the first half of the micro-batches
///              enters at stage 0 and takes chunks 0, the other half enters at the last stage and takes chunks 1
enum class placement : std::uint8_t { straight, vee, both_ways };

/// The numbers of stages, of micro-batches a step, and of chunks a stage.
struct size {
  int stages = 1;
  int micro_batches = 1;
  int chunks = 1;
  friend constexpr bool operator==(size const&, size const&) = default;
};

/// Which stage runs which part of the model.
struct stage_map : size {
  placement where = placement::straight;

  /// Parts of the model, in the order of forward.
  [[nodiscard]] constexpr int virtual_stages() const noexcept {
    return where == placement::both_ways ? stages : stages * chunks;
  }
  [[nodiscard]] constexpr int virtual_stage(int stage, int chunk) const noexcept {
    if (where == placement::straight) return chunk * stages + stage;
    return chunk == 0 ? stage : virtual_stages() - 1 - stage;
  }
  [[nodiscard]] constexpr int stage_of(int virtual_stage, int micro_batch) const noexcept {
    if (where == placement::straight) return virtual_stage % stages;
    if (where == placement::vee) return virtual_stage < stages ? virtual_stage : 2 * stages - 1 - virtual_stage;
    return goes_up(micro_batch) ? stages - 1 - virtual_stage : virtual_stage;
  }
  /// Whether a stage's chunk runs a micro-batch at all.
  [[nodiscard]] constexpr bool takes(int chunk, int micro_batch) const noexcept {
    return where != placement::both_ways || (chunk == 1) == goes_up(micro_batch);
  }
  /// Activations and gradients between parts, of all micro-batches.
  [[nodiscard]] constexpr int values() const noexcept { return 2 * (virtual_stages() - 1) * micro_batches; }
  /// Forward passes of chunks on one stage in a step of training, over all micro-batches.
  [[nodiscard]] constexpr int passes() const noexcept {
    return where == placement::both_ways ? micro_batches : micro_batches * chunks;
  }

 private:
  [[nodiscard]] constexpr bool goes_up(int micro_batch) const noexcept { return micro_batch >= micro_batches / 2; }
};

// Storage of lists and simulations: vectors at run time; at compile time raw arrays, because std::array and
// std::vector exceed the default limits of constant evaluation.
struct on_heap {
  template <class T>
  using array = std::vector<T>;
};
template <int Capacity>
struct within {
  template <class T>
  struct array {
    T values[std::size_t{Capacity}]{};
    constexpr void assign(std::size_t, T const&) noexcept {}
    constexpr T* data() noexcept { return values; }
    constexpr T const* data() const noexcept { return values; }
  };
};

/// Elements of an empty array. (For resize() GCC 14 warns of moving elements that do not exist.)
template <class Array>
constexpr void make_room(Array& array, int count) {
  array.assign(static_cast<std::size_t>(count), {});
}

/// The steps of every stage, in order.
template <class Storage>
class basic_lists {
 public:
  constexpr explicit basic_lists(stage_map const& where) : where_(where) {
    make_room(steps_, where.stages * longest());
    make_room(counts_, where.stages);
  }

  [[nodiscard]] constexpr stage_map const& where() const noexcept { return where_; }
  [[nodiscard]] constexpr int stages() const noexcept { return where_.stages; }
  [[nodiscard]] constexpr int micro_batches() const noexcept { return where_.micro_batches; }
  [[nodiscard]] constexpr int count(int stage) const noexcept { return counts_.data()[stage]; }
  /// The first of the count(stage) steps of a stage.
  [[nodiscard]] constexpr step const* of(int stage) const noexcept { return steps_.data() + stage * longest(); }
  /// No stage has more steps than this.
  [[nodiscard]] constexpr int longest() const noexcept { return 3 * where_.passes(); }
  /// Whether a stage had more steps than a valid schedule can have; the surplus was left out.
  [[nodiscard]] constexpr bool overflowed() const noexcept { return overflowed_; }

  constexpr void add(int stage, step each) {
    auto& count = counts_.data()[stage];
    if (count == longest()) {
      overflowed_ = true;
      return;
    }
    if (each.kind != work::backward_weight) connect(stage, each);
    steps_.data()[stage * longest() + count++] = each;
  }

 private:
  // Value b * micro_batches + m is the activation of micro-batch m between parts b and b + 1; the gradients come after
  // all activations.
  constexpr void connect(int stage, step& each) const {
    int const virtual_stage = where_.virtual_stage(stage, each.chunk);
    bool const forward = each.kind == work::forward;
    int const next = forward ? virtual_stage + 1 : virtual_stage - 1;
    int const last = forward ? virtual_stage - 1 : virtual_stage + 1;
    int const first = (forward ? 0 : where_.virtual_stages() - 1) * where_.micro_batches + each.micro_batch;
    if (last >= 0 && last < where_.virtual_stages()) {
      each.input = first + (forward ? last : virtual_stage) * where_.micro_batches;
      each.from = where_.stage_of(last, each.micro_batch);
      if (each.from == stage) each.from = nobody;
    }
    if (next >= 0 && next < where_.virtual_stages()) {
      each.output = first + (forward ? virtual_stage : next) * where_.micro_batches;
      each.to = where_.stage_of(next, each.micro_batch);
      if (each.to == stage) each.to = nobody;
    }
  }

  stage_map where_;
  typename Storage::template array<step> steps_;
  typename Storage::template array<int> counts_;
  bool overflowed_ = false;
};
using step_lists = basic_lists<on_heap>;

}  // namespace trireme::schedule
