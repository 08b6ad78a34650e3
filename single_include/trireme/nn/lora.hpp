// Trireme 0.1.0: trireme/nn/lora.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 641768240b5bf634517b1508fbb63b347795515bb73484087fa5b6e73c80cc99
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/nn/lora.hpp
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::nn {

/// A unit whose parameters are frozen, and whose linear layers have low-rank changes.
template <unit_of_layers Unit>
struct changed_unit {
  Unit unit;
  lora_options changes;
  friend bool operator==(changed_unit const&, changed_unit const&) = default;

  [[nodiscard]] std::string name() const { return unit.name(); }
  [[nodiscard]] std::int64_t width() const { return unit.width(); }
  [[nodiscard]] decltype(auto) layers() const { return unit.layers(); }
  [[nodiscard]] lora_options const* lora() const noexcept { return changes.rank > 0 ? &changes : nullptr; }
  template <class Env>
  using instance = expression<Env>;
};

namespace detail {

template <class Emit>
struct emits_changed {
  Emit& put;
  lora_options const& changes;

  template <class Unit>
  void operator()(Unit const& unit) const {
    static_assert(
        unit_of_layers<Unit>,
        "trireme::nn::lora: a unit that is written by hand has no layers whose products could be changed; make "
        "it an expression of layers");
    if constexpr (unit_of_layers<Unit>) put(changed_unit<Unit>{unit, changes});
  }
  template <class Unit>
  void operator()(checkpointed_unit<Unit> const& it) const {
    put(checkpointed_unit<changed_unit<Unit>>{{it.unit, changes}});
  }
};

/// Adds each change to the weights it belongs to. Tensors come one by one, the factors of a change before its weights.
template <class F>
class merged_weights {
 public:
  merged_weights(lora_options const& changes, F f)
      : factor_(changes.rank > 0 ? changes.alpha / static_cast<double>(changes.rank) : 0),
        rank_(static_cast<std::size_t>(changes.rank)),
        f_(std::move(f)) {}

  void operator()(std::string const& name, std::span<float const> values) {
    if (is_low_rank_factor(name)) {
      factors_[name].assign(values.begin(), values.end());
      return;
    }
    constexpr std::string_view weight = ".weight";
    auto const layer = name.ends_with(weight) ? name.substr(0, name.size() - weight.size()) : name;
    auto const a = factors_.find(text(layer, first_factor)), b = factors_.find(text(layer, second_factor));
    if (a == factors_.end() || b == factors_.end()) return f_(name, values);
    std::vector<double> row(b->second.size() / rank_);
    std::vector<float> sums(values.begin(), values.end());
    for (std::size_t i = 0; i < a->second.size() / rank_; ++i) {
      row.assign(row.size(), 0);
      for (std::size_t k = 0; k < rank_; ++k) {
        auto const of_a = factor_ * static_cast<double>(a->second[i * rank_ + k]);
        for (std::size_t j = 0; j < row.size(); ++j)
          row[j] += of_a * static_cast<double>(b->second[k * row.size() + j]);
      }
      for (std::size_t j = 0; j < row.size(); ++j) {
        auto& sum = sums[i * row.size() + j];
        sum = static_cast<float>(static_cast<double>(sum) + row[j]);
      }
    }
    factors_.erase(a);
    factors_.erase(b);
    f_(name, std::span<float const>(sums));
  }

 private:
  double factor_;
  std::size_t rank_;
  F f_;
  std::map<std::string, std::vector<float>> factors_;  // whose weights have not come yet
};

}  // namespace detail

/// A model whose parameters are frozen but for low-rank changes of its linear layers; see lora().
template <class Model>
struct lora_of {
  using policy_category = slot::model;
  static constexpr bool cuts_context = [] {
    if constexpr (requires { Model::cuts_context; }) return Model::cuts_context;
    return false;
  }();
  static constexpr bool made_of_layers = true;

  Model model{};
  lora_options changes{};
  friend bool operator==(lora_of const&, lora_of const&) = default;

  template <class Emit>
  void units(Emit&& put) const {
    model.units(detail::emits_changed<Emit>{put, changes});
  }
  void validate() const {
    if constexpr (requires { model.validate(); }) model.validate();
    if (changes.rank < 0 || !positive.holds(changes.alpha)) {
      throw config_error(text("trireme::nn::lora: rank ", changes.rank, " and alpha ", changes.alpha,
                              "; the rank is not below 0 (0: nothing is changed), and alpha is above 0"));
    }
  }
  /// See name_pattern.
  template <class F>
  void for_each_pattern(F&& f) const {
    if (changes.rank == 0) return;
    f(name_pattern{"nn::lora: .layers", changes.layers,
                   [](std::string_view pattern, std::string_view parameter) {
                     return parameter.ends_with(detail::first_factor) &&
                            detail::changes_layer({.layers = std::string(pattern)},
                                                  parameter.substr(0, parameter.size() - detail::first_factor.size()));
                   },
                   "no linear layer of the model matches ",
                   ", and all others are frozen; give a pattern that the names of some layers match"});
  }
  [[nodiscard]] std::vector<double> unit_costs() const requires requires { model.unit_costs(); }
  { return model.unit_costs(); }
  /// Those of the model: changes are added to the weights.
  [[nodiscard]] file_mapping in_files() const requires requires { model.in_files(); }
  { return model.in_files(); }
  /// Whether a parameter belongs to a change, which files of the model do not have.
  [[nodiscard]] static bool is_change(std::string_view parameter) { return detail::is_low_rank_factor(parameter); }
  /// A function of (name, values), to be called with each whole parameter in turn, that calls f(name, values) with
  /// those of the model, to which changes have been added.
  template <class F>
  [[nodiscard]] auto merged(F f) const {
    return detail::merged_weights<F>(changes, std::move(f));
  }
};

/// A model in which only low-rank changes of linear layers are trained: x w becomes x w + alpha / rank * (x a) b, with
/// two parameters, `NAME.lora_A.weight` and `NAME.lora_B.weight`, for each linear layer NAME that `layers` matches. All
/// other parameters are frozen: they have no gradients and no moments, and nothing is sent for them.
///
/// Shapes   a (inputs, rank), normally distributed around 0 with deviation 1 / rank; b (rank, outputs), zeros: training
///          begins with the model as it is.
/// Ranks    any mesh. Where a tensor group cuts a product by columns b is cut, where by rows a; the other factor is
///          whole, and its gradient is summed over the group.
/// Bytes    keeps rank numbers a row for each changed layer. A frozen layer still has its share of the backward pass,
///          without the product that gives a gradient of weights.
/// Files    load_pretrained() reads the model's own weights and leaves changes alone; save_pretrained() writes weights
///          with changes added, in the model's own files. Checkpoints have both apart.
/// Limits   queries, keys and values are one product here (`qkv_proj`), so that they have one change; the weights of
///          experts, embeddings and heads do not count as linear layers; a unit written by hand is a compile error.
/// Errors   config_error for a rank below 0, an alpha that is not above 0, and, from a trainer, patterns that no linear
///          layer matches.
/// Method   [Hu et al., "LoRA", 2022].
/// @example auto trainer = make_trainer(nn::lora(nn::read_description<nn::llama>(from), {.rank = 8}), optim::adamw{});
///          load_pretrained(trainer, from);
template <class Model>
[[nodiscard]] lora_of<Model> lora(Model model, lora_options changes = {}) {
  return {std::move(model), std::move(changes)};
}

template <class Model>
[[nodiscard]] std::string to_string(lora_of<Model> const& m) {
  if (m.changes.rank == 0) return describe(m.model);
  return text("nn::lora(", describe(m.model), ", {.rank = ", m.changes.rank, ", .alpha = ", m.changes.alpha,
              ", .layers = \"", m.changes.layers, "\"})");
}
/// That of the model below, into which the changes are merged when it is saved.
template <class Model>
[[nodiscard]] formats::json::value config_of(lora_of<Model> const& m) {
  return config_of(m.model);
}

}  // namespace trireme::nn
