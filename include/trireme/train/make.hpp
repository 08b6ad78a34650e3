#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/parallel/exchange.hpp"
#include "trireme/train/detail/slips.hpp"
#include "trireme/train/environment.hpp"
#include "trireme/train/own_exchange.hpp"
#include "trireme/train/slots.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme {

namespace detail {

/// The argument of a kind, or a default made on the spot.
template <class Kind, class Default>
[[nodiscard]] Default pick() {
  return {};
}
template <class Kind, class Default, class First, class... Rest>
[[nodiscard]] decltype(auto) pick(First&& first, Rest&&... rest) {
  if constexpr (std::is_same_v<kind_of_t<std::remove_cvref_t<First>>, Kind>) {
    return static_cast<First&&>(first);
  } else {
    return pick<Kind, Default>(std::forward<Rest>(rest)...);
  }
}

/// What make_trainer returns after its one sentence, so that no line that uses the trainer adds another error.
struct refused {
  template <class Data>
  fit_report fit(Data const&, fit_options const&) {
    return {};
  }
  template <class... Samples>
  step_report step(Samples const&...) {
    return {};
  }
  template <class Data>
  double evaluate(Data const&, std::int64_t = 8) {
    return {};
  }
  template <class Features>
  tensor<float> predict(Features const&) {
    return {};
  }
  void initialise(std::uint64_t) {}
  void broadcast() {}
  template <class F>
  void on_step(F&&) {}
  void request_stop() noexcept {}
  template <class Timeline>
  void record(Timeline&) {}
  template <class... Files>
  void save(std::string const&, Files&...) {}
  template <class... Files>
  void save_in_background(std::string const&, Files&...) {}
  template <class F>
  void on_save(F&&) {}
  void finish_save() {}
  template <class... Files>
  checkpoint::loaded load(std::string const&, Files&...) {
    return {};
  }
  std::uint64_t state_hash() { return {}; }
  std::int64_t steps() const noexcept { return {}; }
};

}  // namespace detail

/// A trainer from policies in any order: a model, an optimizer, a communicator's world, and, if they are not to be
/// parallel::data, precision::fp32 and compression::none, how work is split, what numbers are used, and what goes on
/// the wire.
///
/// Ranks    collective: makes the same parameters on every rank, and checks that they are the same.
/// Errors   a wrong argument or combination is one sentence at compile time; sizes that do not fit are a config_error,
///          and so is a word in the environment that is not known (check_environment).
///
/// @returns basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>, one type for any order. It borrows
///          the world, and a plain model that is passed by name.
/// @example auto trainer = trireme::make_trainer(nn::gpt{}, optim::adamw{}, world, precision::bf16{});
template <class... Policies>
[[nodiscard]] auto make_trainer(Policies&&... policies) {
  using slots = detail::resolve<std::remove_cvref_t<Policies>...>;
  static_cast<void>(check_policies<Policies...>());  // apart from the condition, or clang adds an error to the sentence
  constexpr auto slip = slots::ok ? detail::slip_of_world<Policies...>() : detail::world_slip::none;
  static_cast<void>(sizeof(detail::check_lent_world<slip>));
  if constexpr (slots::ok && slip == detail::world_slip::none) {
    check_environment();
    return basic_trainer<typename slots::model, typename slots::optimizer, typename slots::comm,
                         typename slots::parallel, typename slots::precision, typename slots::compression>(
        detail::pick<slot::model, void>(std::forward<Policies>(policies)...),
        detail::pick<slot::optimizer, void>(std::forward<Policies>(policies)...),
        detail::pick<slot::communicator, void>(policies...),
        detail::pick<slot::parallel, parallel::data>(std::forward<Policies>(policies)...),
        detail::pick<slot::precision, precision::fp32>(std::forward<Policies>(policies)...),
        detail::pick<slot::compression, compression::none>(std::forward<Policies>(policies)...));
  } else {
    return detail::refused{};
  }
}

namespace detail {

template <class T, class Space>
[[nodiscard]] std::vector<foreign_parameter<T, Space>> as_foreign(
    std::vector<foreign_parameter<T, Space>> const& list) {
  return list;
}
/// The element type of what a model lets be visited: its value_type, float where it names none.
template <class Model>
struct element_of {
  using type = float;
};
template <class Model>
requires requires { typename Model::value_type; }
struct element_of<Model> {
  using type = typename Model::value_type;
};
template <has_visit_parameters Model>
[[nodiscard]] auto as_foreign(Model& model) {
  using value = typename element_of<Model>::type;
  std::vector<foreign_parameter<value>> list;
  model.visit_parameters([&](std::string const& name, tensor_view<value> values, tensor_view<value> gradient) {
    list.push_back({name, values, gradient});
  });
  return list;
}

/// What make_exchange may be given, and nothing else: one sentence for each other thing.
template <class... P>
struct check_exchange_policies {
  static constexpr bool fits = count_of<slot::parallel, P...> + count_of<slot::compression, P...> +
                                   count_of<slot::communicator, P...> + count_of<slot::optimizer, P...> ==
                               static_cast<int>(sizeof...(P));
  static constexpr bool ok = fits && count_of<slot::parallel, P...> <= 1 && count_of<slot::compression, P...> <= 1 &&
                             count_of<slot::communicator, P...> <= 1 && count_of<slot::optimizer, P...> <= 1;
};
template <bool Ok>
struct assert_exchange_policies {
  static_assert(
      Ok,
      "trireme::make_exchange: takes parameters, a world, and at most one parallel strategy, one compressor, one "
      "optimizer and one world of everyone who votes");
};

}  // namespace detail

/// Only the exchange, for a training loop of your own.
///
/// Ranks    collective; the parameters' names, shapes and starting values are the same on all ranks of `world`.
/// Errors   config_error that names two ranks where something differs that has to be the same.
///
/// @param parameters  a std::vector<foreign_parameter<float>> (or double), or anything with visit_parameters.
/// @param world       the ranks that hold these parameters: gradients are averaged over them.
/// @param policies    in any order: a parallel strategy (parallel::data if there is none), a compressor
///                    (compression::none), the optimizer, if it needs whole tensors or freezes some of them, and, where
///                    `world` holds only a part of the model, the world of all parts: its ranks share norm, votes and
///                    whether all gradients are finite.
/// @returns own_exchange on the caller's memory: gradients are read when they are ready, the mean over ranks is written
///          back by finish(), updated values are gathered by publish(); step(optimizer) does all of that.
template <class Parameters, class Comm, class... Policies>
requires(detail::slip_of_exchange<Parameters, Comm&>() == detail::exchange_slip::none)
    [[nodiscard]] auto make_exchange(Parameters&& parameters, Comm& world, Policies&&... policies) {
  using checks = detail::check_exchange_policies<std::remove_cvref_t<Policies>...>;
  static_cast<void>(sizeof(detail::assert_exchange_policies<checks::ok>));
  using strategy = typename detail::find<slot::parallel, parallel::data, std::remove_cvref_t<Policies>...>::type;
  using compressor =
      typename detail::find<slot::compression, compression::none, std::remove_cvref_t<Policies>...>::type;
  check_environment();
  auto list = detail::as_foreign(parameters);
  using value = typename decltype(list.front().value)::value_type;
  using space = typename decltype(list.front().value)::space;
  using precision = std::conditional_t<std::is_same_v<value, double>, precision::fp64, precision::fp32>;
  Comm* everyone = nullptr;
  if constexpr (detail::count_of<slot::communicator, std::remove_cvref_t<Policies>...> == 1)
    everyone = &detail::pick<slot::communicator, void>(policies...);
  layout_wishes wishes;
  if constexpr (detail::count_of<slot::optimizer, std::remove_cvref_t<Policies>...> == 1)
    wishes = wishes_of(detail::pick<slot::optimizer, void>(policies...));
  using env = environment<precision, space>;
  return own_exchange<parallel::exchange_of_t<env, Comm, strategy, compressor>, env>(
      std::move(list), world, detail::pick<slot::parallel, parallel::data>(policies...),
      detail::pick<slot::compression, compression::none>(policies...), everyone, wishes);
}
/// Whatever else is passed is one sentence.
template <class Parameters, class Comm, class... Policies>
requires(detail::slip_of_exchange<Parameters, Comm>() != detail::exchange_slip::none)
    [[nodiscard]] detail::refused_exchange make_exchange(Parameters&&, Comm&&, Policies&&...) {
  static_cast<void>(sizeof(detail::check_exchange<detail::slip_of_exchange<Parameters, Comm>()>));
  return {};
}

}  // namespace trireme
