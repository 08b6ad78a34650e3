#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/exact.hpp"
#include "trireme/core/text.hpp"
#include "trireme/core/type_name.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/nn/expression.hpp"
#include "trireme/nn/file_mapping.hpp"
#include "trireme/nn/losses.hpp"

namespace trireme::nn {

namespace loss {

/// -sum over classes of t log softmax(x): targets are float, a probability t for each class, as data::one_hot and
/// data::mixup make them. Labels of int32 are taken too, as cross_entropy takes them, so that a model evaluates on
/// samples that are not mixed.
///
/// Numerics in double; a sum over rows in order. Probabilities are not divided by their sum.
/// Errors   config_error for a target that is negative or not finite.
struct soft_cross_entropy {
  TRIREME_NEEDS_KERNELS("nn::loss::soft_cross_entropy", values);
  static constexpr nn::flow flow = nn::flow::loss;
  bool of_first = false;  ///< of each sample only the first row has a target, as in cross_entropy
  friend bool operator==(soft_cross_entropy const&, soft_cross_entropy const&) = default;
};
[[nodiscard]] inline std::string to_string(soft_cross_entropy const& it) {
  return it.of_first ? "soft_cross_entropy{.of_first = true}" : "soft_cross_entropy";
}

}  // namespace loss

namespace detail {

/// The loss of one row of logits x by probabilities t, and weight times its gradient in place of x.
template <class A, class X, class T>
[[nodiscard]] double soft_cross_entropy_row(X* x, T const* t, std::size_t classes, double weight, bool gradient) {
  double peak = static_cast<double>(x[0]), mass = 0, sum = 0, chosen = 0;
  for (std::size_t c = 1; c < classes; ++c) peak = std::max(peak, static_cast<double>(x[c]));
  for (std::size_t c = 0; c < classes; ++c) {
    auto const target = static_cast<double>(t[c]);
    if (!(target >= 0) || std::isinf(target)) {
      throw config_error(text("trireme::nn::loss::soft_cross_entropy: target ", target,
                              " is not a probability; targets are not negative, and finite"));
    }
    mass += std::exp(static_cast<double>(x[c]) - peak);
    sum += target;
    chosen += target * (static_cast<double>(x[c]) - peak);
  }
  for (std::size_t c = 0; gradient && c < classes; ++c) {
    auto const share = sum * std::exp(static_cast<double>(x[c]) - peak) / mass;
    x[c] = static_cast<X>(static_cast<A>(weight * (share - static_cast<double>(t[c]))));
  }
  return sum * std::log(mass) - chosen;
}

template <class Env>
class layer_node<Env, loss::soft_cross_entropy> final : public layer_node<Env, loss::cross_entropy> {
  using labels = layer_node<Env, loss::cross_entropy>;
  using kernels = ops::on<typename Env::space>;
  using value = typename Env::compute;

 public:
  using typename node<Env>::view;
  using typename labels::losses;

  explicit layer_node(loss::soft_cross_entropy const& what)
      : labels(loss::cross_entropy{.of_first = what.of_first}), of_first_(what.of_first) {}
  [[nodiscard]] bool takes_parts() const noexcept override { return false; }
  [[nodiscard]] bool takes_longer_rows() const noexcept override { return false; }
  [[nodiscard]] loss_sum rows_of_loss(samples const& batch) const override {
    return are_labels(batch) ? labels::rows_of_loss(batch) : loss_node<Env>::rows_of_loss(batch);
  }
  void expect(pass<Env> const& pass, std::int64_t rows, std::int64_t outputs) const override {
    if (are_labels(pass.batch)) return labels::expect(pass, rows, outputs);
    auto const wanted = of_first_ ? pass.batch.count() : rows;
    if (pass.batch.targets.size() == wanted * outputs) return;
    throw config_error(text("trireme::nn::loss::soft_cross_entropy: targets of shape ",
                            to_string(pass.batch.targets.extents), " for ", wanted, " x ", outputs,
                            " outputs; give each class of each row a probability, or each row a label"));
  }
  losses of(pass<Env>& pass, view logits, std::int64_t first, double weight, ops::table_range part) override {
    if (are_labels(pass.batch)) return labels::of(pass, logits, first, weight, part);
    auto const n = logits.extent(0);
    if (!of_first_) return of_rows(pass, logits, first, weight);
    // As in cross_entropy: the first row of each sample has all of the sample's weight.
    auto const each = positions_of(pass), words = logits.extent(1);
    auto const sample = (first + each - 1) / each;
    auto const count = (first + n + each - 1) / each - sample;
    auto const mark = pass.scratch.mark();
    auto const rows = pass.scratch.template take<value>({count, words});
    ops::block_places const packed{0, words, words}, spread{(sample * each - first) * words, each * words, words};
    kernels::copy_blocks(rows, packed, logits, spread, {count, 1, words});
    auto const sum = count == 0 ? losses{} : of_rows(pass, rows, sample, weight * static_cast<double>(each));
    if (pass.backward_follows()) {
      kernels::fill(logits, 0.0);
      kernels::copy_blocks(logits, spread, rows, packed, {count, 1, words});
    }
    pass.scratch.rewind(mark);
    return sum;
  }

 private:
  [[nodiscard]] static bool are_labels(auto const& batch) noexcept { return batch.targets.type == dtype::i32; }
  losses of_rows(pass<Env>& pass, view logits, std::int64_t first, double weight) {
    return with_numbers<Env>(pass.batch.targets, "targets", [&](auto targets) {
      auto const classes = static_cast<std::size_t>(logits.extent(1));
      loss_sum sum{0, logits.extent(0)};
      kernels::with_values(
          [&](auto x, auto t) {
            for (std::size_t at = 0; at < x.size(); at += classes) {
              sum.sum += soft_cross_entropy_row<typename Env::accumulate>(x.data() + at, t.data() + at, classes, weight,
                                                                          pass.backward_follows());
            }
          },
          logits, targets.flat().flat(first * logits.extent(1), logits.size()));
      return losses{sum};
    });
  }
  bool of_first_;
};

/// An expression of layers whose loss takes soft labels.
template <class L>
[[nodiscard]] L with_soft_labels(L const& layer) {
  return layer;
}
[[nodiscard]] inline loss::soft_cross_entropy with_soft_labels(loss::cross_entropy const& loss) {
  if (!exactly_equal(loss.smoothing, 0) || !exactly_equal(loss.z, 0)) {
    throw config_error(text("trireme::nn::soft_labels: the model's loss is ", to_string(loss),
                            ", but soft labels have no smoothing and no z; smooth the labels instead"));
  }
  return {loss.of_first};
}
template <class... L>
[[nodiscard]] auto with_soft_labels(chain_of<L...> const& all) {
  return all.layers.apply([](auto const&... each) { return chain(with_soft_labels(each)...); });
}

template <class Emit>
struct emits_soft_labels {
  Emit& put;

  template <class Unit>
  static constexpr bool changes = [] {
    if constexpr (unit_of_layers<Unit>) {
      using layers = std::remove_cvref_t<decltype(std::declval<Unit const&>().layers())>;
      return !std::is_same_v<decltype(with_soft_labels(std::declval<layers const&>())), layers>;
    } else {
      return false;
    }
  }();
  template <class Unit>
  void operator()(Unit const& unit) const {
    if constexpr (changes<Unit>) {
      put(block{unit.name(), unit.width(), with_soft_labels(unit.layers())});
    } else {
      put(unit);
    }
  }
};

}  // namespace detail

/// A model that is trained with loss::soft_cross_entropy in place of its loss::cross_entropy; see soft_labels().
template <class Model>
struct soft_labels_of {
  using policy_category = slot::model;
  static constexpr bool made_of_layers = true;
  Model model{};
  friend bool operator==(soft_labels_of const&, soft_labels_of const&) = default;

  template <class Emit>
  void units(Emit&& put) const {
    model.units(detail::emits_soft_labels<Emit>{put});
  }
  void validate() const {
    if constexpr (requires { model.validate(); }) model.validate();
  }
  [[nodiscard]] std::vector<double> unit_costs() const requires requires { model.unit_costs(); }
  { return model.unit_costs(); }
  [[nodiscard]] file_mapping in_files() const requires requires { model.in_files(); }
  { return model.in_files(); }
};

/// A model of pictures, say, whose targets are a probability for each class, as mixed samples have them.
///
///     make_trainer(nn::soft_labels(nn::convnet{.classes = 10}), ...)
///         .fit(data::augment(data::one_hot(pictures, 10), data::mixup{}), {...})
///
/// It also takes labels of int32, and has the parameters of the model.
template <class Model>
[[nodiscard]] soft_labels_of<Model> soft_labels(Model model) {
  return {std::move(model)};
}

/// "nn::soft_labels(nn::convnet{...})"
template <class Model>
[[nodiscard]] std::string to_string(soft_labels_of<Model> const& of) {
  return text("nn::soft_labels(", to_string(of.model), ")");
}

}  // namespace trireme::nn
