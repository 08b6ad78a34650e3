#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/in_space.hpp"
#include "trireme/core/arithmetic.hpp"
#include "trireme/core/expect.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/patterns.hpp"
#include "trireme/train/detail/slips.hpp"
#include "trireme/train/environment.hpp"
#include "trireme/train/own_exchange.hpp"
#include "trireme/train/slots.hpp"

namespace trireme {

namespace detail {

template <class T, class Space>
[[nodiscard]] std::vector<foreign_parameter<T, Space>> as_foreign(
    std::vector<foreign_parameter<T, Space>> const& list) {
  return list;
}
/// The element type of a model's parameters: its value_type, or float if it has none.
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

/// Parameters owned by the caller, as the compatibility rules see them: a model that is whole on every rank.
struct lent_parameters {};

// Checks that make_exchange gets valid arguments: one error for each mistake. As in slots.hpp, each check runs only if
// those before it passed.
template <bool Fits>
struct check_exchange_policies {
  static_assert(Fits,
                "trireme::make_exchange: takes parameters, a world, and at most one parallel strategy, "
                "one compressor, one optimizer and one world of everyone who votes");
};
template <class Comm, class Everyone>
struct check_exchange_worlds {
  static_assert(communicator<Comm>,
                "trireme::make_exchange: the world lacks a function that every communicator has: "
                "rank, size, split, duplicate, barrier, traffic or a static name (docs/communicators.md)");
  static_assert(!communicator<Comm> || std::is_same_v<Comm, Everyone>,
                "trireme::make_exchange: the world of everyone who votes has another type than that of the replicas");
};
template <class Strategy>
struct check_exchange_strategy {
  static_assert(strategy<Strategy> && parallel::parallel_policy<Strategy>,
                "trireme::make_exchange: the parallel strategy does not say how replicas are handled "
                "(optimizer_state, gradients, parameters, bucket_bytes), as parallel::data and zero do: "
                "pass one of these, not a mesh or another axis");
};
template <class Compressor, class Optimizer, class Env, class Comm>
struct check_exchange_parts {
  static constexpr bool codes = trireme::compressor<Compressor, Env, Comm>;
  static_assert(codes,
                "trireme::make_exchange: the compressor lacks instance<Env>(description, elements) with encode and "
                "decode, or instance<Env, Comm>(description, form, comm) with begin, test, turn, commit and bytes");
  static_assert(!codes || std::is_same_v<Optimizer, nothing> || trireme::optimizer<Optimizer, Env>,
                "trireme::make_exchange: the optimizer lacks static moment_names, rate_at(step), clip, "
                "or update(segment, step)");
};

template <class T, class Comm, class... P>
struct resolve_exchange {
  template <class Kind, class Default>
  using pick = typename find<Kind, Default, P...>::type;
  using strategy = pick<slot::parallel, parallel::data>;
  using compressor = pick<slot::compression, compression::none>;
  using optimizer = pick<slot::optimizer, nothing>;
  using everyone = comm::world_for<pick<slot::communicator, Comm>, typename space_of<Comm>::type>;
  using precision = std::conditional_t<std::is_same_v<T, double>, precision::fp64, precision::fp32>;

  static constexpr bool fits = count_of<slot::parallel, P...> + count_of<slot::compression, P...> +
                                       count_of<slot::communicator, P...> + count_of<slot::optimizer, P...> ==
                                   static_cast<int>(sizeof...(P)) &&
                               count_of<slot::parallel, P...> <= 1 && count_of<slot::compression, P...> <= 1 &&
                               count_of<slot::communicator, P...> <= 1 && count_of<slot::optimizer, P...> <= 1;

  // The first stage that fails: 0 the list, 1 worlds, 2 the strategy, 3 with the environment, 4 together, 5 kernels.
  static constexpr int failed() {
    if constexpr (!fits) {
      return 0;
    } else if constexpr (!communicator<Comm> || !std::is_same_v<Comm, everyone>) {
      return 1;
    } else if constexpr (!trireme::strategy<strategy> || !trireme::parallel::parallel_policy<strategy>) {
      return 2;
    } else {
      using env = environment<precision, typename space_of<Comm>::type>;
      if constexpr (!trireme::compressor<compressor, env, Comm>) {
        return 3;
      } else if constexpr (!std::is_same_v<optimizer, nothing> && !trireme::optimizer<optimizer, env>) {
        return 3;
      } else if constexpr (!ops::exchange_kernels<typename env::space, env>) {
        return 4;
      } else if constexpr (!ops::finds_kernels<compressor, env>() || !ops::finds_kernels<optimizer, env>()) {
        return 5;
      } else {
        return broken_rule<combination<lent_parameters, Comm, strategy, precision, compressor>>.empty() ? none_failed
                                                                                                        : 4;
      }
    }
  }
  static constexpr int none_failed = 6;

  template <int Stage>
  static constexpr void say() {
    if constexpr (Stage == 0) {
      static_cast<void>(sizeof(check_exchange_policies<fits>));
    } else if constexpr (Stage == 1) {
      static_cast<void>(sizeof(check_exchange_worlds<Comm, everyone>));
    } else if constexpr (Stage == 2) {
      static_cast<void>(sizeof(check_exchange_strategy<strategy>));
    } else if constexpr (Stage == 3) {
      using env = environment<precision, typename space_of<Comm>::type>;
      static_cast<void>(sizeof(check_exchange_parts<compressor, optimizer, env, Comm>));
    } else if constexpr (Stage == 4) {
      static_cast<void>(
          check_combination<combination<lent_parameters, Comm, strategy, precision, compressor>>::size_of_exchange);
    } else if constexpr (Stage == 5) {
      using env = environment<precision, typename space_of<Comm>::type>;
      static_cast<void>(ops::expect_kernels<compressor, env>() && ops::expect_kernels<optimizer, env>());
    }
  }
};

/// What make_exchange returns for these policies, if none of them is refused.
template <class Sorted, class Comm, class Space>
using exchange_type =
    own_exchange<basic_exchange<environment<typename Sorted::precision, Space>, Comm, typename Sorted::strategy,
                                typename Sorted::compressor, parallel::callers_memory>,
                 environment<typename Sorted::precision, Space>>;

template <class Sorted, class List, class Comm, class... Policies>
[[nodiscard]] auto exchange_of(List list, Comm& world, Policies&... policies) {
  check_environment();
  expect_exact_arithmetic();
  (expect_valid(policies), ...);
  Comm* everyone = nullptr;
  if constexpr (count_of<slot::communicator, std::remove_cvref_t<Policies>...> == 1)
    everyone = &pick<slot::communicator, void>(policies...);
  [[maybe_unused]] auto& voters = everyone != nullptr ? *everyone : world;
  std::vector<std::string> names;
  for (auto const& each : list) names.push_back(each.name);
  bucket_requirements requirements;
  if constexpr (count_of<slot::optimizer, std::remove_cvref_t<Policies>...> == 1) {
    auto const& optimizer = pick<slot::optimizer, void>(policies...);
    parallel::expect_patterns(voters, optimizer, names);
    auto const& strategy = pick<slot::parallel, parallel::data>(policies...);
    trireme::expect_momentum(pick<slot::compression, compression::none>(policies...),
                             parallel::momentum_of_sums(strategy, momentum_of(optimizer)));
    requirements = bucket_requirements_of(optimizer);
  }
  if constexpr (count_of<slot::compression, std::remove_cvref_t<Policies>...> == 1)
    parallel::expect_patterns(voters, pick<slot::compression, void>(policies...), names);
  return exchange_type<Sorted, Comm, typename decltype(list.front().value)::space>(
      std::move(list), world, pick<slot::parallel, parallel::data>(policies...),
      pick<slot::compression, compression::none>(policies...), everyone, requirements);
}

}  // namespace detail

/// Makes only the exchange, for a training loop of your own.
///
/// Ranks    collective; the parameters' names, shapes and starting values are the same on all ranks of `world`.
/// Errors   a combination that a trainer would reject gives the same error at compile time; config_error that names two
///          ranks if something differs that must be the same.
///
/// @param parameters  a std::vector<foreign_parameter<float>> (or double), or anything with visit_parameters.
/// @param world       the ranks that hold these parameters: gradients are averaged over their samples.
/// @param policies    in any order: a parallel strategy (default parallel::data), a compressor (default
///                    compression::none), the optimizer, if it needs whole tensors or freezes some of them, and, if
///                    `world` holds only a part of the model, the world of all parts: its ranks share the norm, the
///                    votes and whether all gradients are finite.
/// @returns own_exchange on the caller's memory: it reads gradients when they are ready, finish() writes back their
///          mean, publish() gathers updated values; step(optimizer) does all of that.
template <class Parameters, class Comm, class... Policies>
requires(detail::slip_of_exchange<Parameters, Comm&>() == detail::exchange_slip::none)
    [[nodiscard]] auto make_exchange(Parameters&& parameters, Comm& world, Policies&&... policies) {
  using values = decltype(detail::as_foreign(parameters).front().value);
  using there = comm::world_for<Comm, typename values::space>;  // the rules look at the parameters' memory space
  using sorted = detail::resolve_exchange<typename values::value_type, there, std::remove_cvref_t<Policies>...>;
  sorted::template say<sorted::failed()>();
  if constexpr (sorted::failed() != sorted::none_failed) {
    return detail::refused_exchange{};
  } else {
    return detail::exchange_of<sorted>(detail::as_foreign(parameters), world, policies...);
  }
}
/// Any other argument gives one error.
template <class Parameters, class Comm, class... Policies>
requires(detail::slip_of_exchange<Parameters, Comm>() != detail::exchange_slip::none)
    [[nodiscard]] detail::refused_exchange make_exchange(Parameters&&, Comm&&, Policies&&...) {
  static_cast<void>(sizeof(detail::check_exchange<detail::slip_of_exchange<Parameters, Comm>()>));
  return {};
}

}  // namespace trireme
