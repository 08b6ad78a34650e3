#pragma once

#include <algorithm>
#include <any>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/stage_assignment.hpp"

namespace trireme::detail {

/// Units [first, last) of this rank's units are part `part` of the model.
struct unit_chunk {
  std::size_t first = 0;
  std::size_t last = 0;
  int part = 0;
  int left = 0;  ///< micro-batches of the step whose backward has not run yet
};

/// The type-erased units of one stage, in chunks, and the uses of parameters of each.
template <class Env>
class unit_chunks {
 public:
  /// Makes the units of a model that belong to a stage.
  template <class Model>
  void box(Model const& model, parallel::stage_assignment const& at, rank_groups<Env> const& groups) {
    if constexpr (requires { model.validate(); }) model.validate();
    chunks_.resize(static_cast<std::size_t>(at.where.chunks));
    boxes put{*this, at, groups};
    model.units(put);
    for (auto const& each : units_) {
      for (auto* const use : each->parameters()) uses_.push_back(use);
      last_use_.push_back(static_cast<int>(uses_.size()));
    }
  }

  [[nodiscard]] std::size_t size() const noexcept { return units_.size(); }
  [[nodiscard]] unit<Env>& operator[](std::size_t unit) const noexcept { return *units_[unit]; }
  [[nodiscard]] std::vector<unit_chunk>& chunks() noexcept { return chunks_; }
  [[nodiscard]] unit_chunk& chunk(int number) noexcept { return chunks_[static_cast<std::size_t>(number)]; }

  /// Whether any unit of the model, on this rank or another, adds loss terms that count once per sample.
  [[nodiscard]] bool adds_sample_losses() const noexcept { return adds_sample_losses_; }

  /// Whether a unit of the model is on this rank.
  [[nodiscard]] bool has(std::int64_t number) const noexcept {
    return std::find(numbers_.begin(), numbers_.end(), number) != numbers_.end();
  }
  /// The name of a unit: its number in the model, and its parameters.
  [[nodiscard]] std::string name_of(std::size_t unit) const {
    auto out = text("unit ", numbers_[unit]);
    if (first_use(unit) == last_use(unit)) return out;
    auto const& first = uses_[static_cast<std::size_t>(first_use(unit))]->info.name;
    auto const& last = uses_[static_cast<std::size_t>(last_use(unit)) - 1]->info.name;
    out += text(" (\"", first, first == last ? "" : "\" to \"", first == last ? "" : last, "\")");
    return out;
  }

  /// The first dropout site of a unit.
  [[nodiscard]] std::uint32_t first_site(std::size_t unit) const noexcept { return first_sites_[unit]; }
  /// The random key of a unit. It is changed if the unit would otherwise draw the same numbers as an earlier unit of
  /// the model.
  [[nodiscard]] random_key key_of(std::size_t unit, random_key key) const noexcept {
    if (repeats_[unit]) key.seed ^= mix(static_cast<std::uint64_t>(numbers_[unit]) + 1);
    return key;
  }

  [[nodiscard]] std::vector<parameter<Env>*> const& uses() const noexcept { return uses_; }
  /// The end of each unit's parameter uses.
  [[nodiscard]] std::vector<int> const& ends() const noexcept { return last_use_; }
  [[nodiscard]] int first_use(std::size_t unit) const noexcept { return unit == 0 ? 0 : last_use_[unit - 1]; }
  [[nodiscard]] int last_use(std::size_t unit) const noexcept { return last_use_[unit]; }

 private:
  struct boxes {
    unit_chunks& all;
    parallel::stage_assignment const& at;
    rank_groups<Env> const& groups;
    std::int64_t index = 0;
    std::uint32_t sites = 0;          // dropout sites of the units so far, on all stages
    std::vector<std::any> by_hand{};  // earlier units that do not count their dropout sites
    template <class Description>
    void operator()(Description const& description) {
      using state = typename Description::template instance<Env>;
      auto const number = index++;
      all.adds_sample_losses_ = all.adds_sample_losses_ || trireme::adds_sample_losses<Env>(description);
      auto* const home = all.chunk_of(number, at);
      if (home == nullptr && !counts_dropout_sites<state> && !std::equality_comparable<Description>) return;
      // Not make_unique, which would instantiate a pointer type for each type of unit.
      std::unique_ptr<unit<Env>> made;
      if (home != nullptr || counts_dropout_sites<state>)
        made.reset(new boxed_unit<Env, Description>(description, groups));
      bool repeats = false;
      auto const first_site = sites;
      if constexpr (counts_dropout_sites<state>) {
        sites += made->dropout_sites();
      } else if constexpr (std::equality_comparable<Description>) {
        repeats = has_seen(description);
      }
      if (home == nullptr) return;
      all.numbers_.push_back(number);
      all.first_sites_.push_back(first_site);
      all.repeats_.push_back(repeats);
      all.units_.push_back(std::move(made));
      home->last = all.units_.size();
    }
    template <class Description>
    bool has_seen(Description const& description) {
      for (auto const& each : by_hand) {
        auto const* const other = std::any_cast<Description>(&each);
        if (other != nullptr && *other == description) return true;
      }
      by_hand.emplace_back(description);
      return false;
    }
  };
  // The chunk on this rank that a unit of the model belongs to, if any; a chunk's first unit creates it.
  unit_chunk* chunk_of(std::int64_t unit, parallel::stage_assignment const& at) {
    for (int c = 0; c < at.where.chunks; ++c) {
      auto const part = at.where.virtual_stage(at.stage, c);
      auto const* const cut = at.cuts.data() + part;
      if (unit < cut[0] || unit >= cut[1]) continue;
      if (unit == cut[0]) chunk(c) = {units_.size(), units_.size(), part, 0};
      return &chunk(c);
    }
    return nullptr;
  }

  std::vector<std::unique_ptr<unit<Env>>> units_;
  std::vector<std::int64_t> numbers_;  // of the units, in the whole model
  std::vector<std::uint32_t> first_sites_;
  std::vector<bool> repeats_;  // whether an earlier unit draws the same random numbers
  std::vector<unit_chunk> chunks_;
  bool adds_sample_losses_ = false;
  std::vector<parameter<Env>*> uses_;
  std::vector<int> last_use_;
};

}  // namespace trireme::detail
