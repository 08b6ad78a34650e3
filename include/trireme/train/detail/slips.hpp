#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/parallel/exchange.hpp"
#include "trireme/parallel/exchange_report.hpp"
#include "trireme/train/checkpoint.hpp"
#include "trireme/train/slots.hpp"

// Mistakes for which the compiler's own messages would be pages long. A slip_of function finds what is wrong, and one
// static_assert in a class reports it, as in slots.hpp.
namespace trireme::detail {

/// A trainer borrows its world, which must therefore not be a temporary or const.
enum class world_slip : std::uint8_t { none, temporary, constant };

template <class... Policies>
[[nodiscard]] consteval world_slip slip_of_world() {
  auto slip = world_slip::none;
  auto const look = [&]<class P>(std::type_identity<P>) {
    if (!std::is_same_v<kind_of_t<std::remove_cvref_t<P>>, slot::communicator>) return;
    if (!std::is_lvalue_reference_v<P>)
      slip = world_slip::temporary;
    else if (std::is_const_v<std::remove_reference_t<P>>)
      slip = world_slip::constant;
  };
  (look(std::type_identity<Policies>{}), ...);
  return slip;
}
template <world_slip Slip>
struct check_lent_world {
  static_assert(Slip != world_slip::temporary,
                "trireme::trainer: the world is a temporary, which ends before the trainer that borrows it: "
                "keep it in a variable, and pass that");
  static_assert(Slip != world_slip::constant,
                "trireme::trainer: the world is const, but a trainer makes calls of it: take it as [](auto& world)");
};

/// Mistakes in the arguments of make_exchange.
enum class exchange_slip : std::uint8_t { none, parameters, element, described, temporary, constant, world };

/// 0 if P is not a list of foreign parameters, 1 if their elements have another type than P takes, else 2.
template <class P>
inline constexpr int list_of_foreign = 0;
template <class T, class Space>
inline constexpr int list_of_foreign<std::vector<foreign_parameter<T, Space>>> =
    std::is_same_v<T, float> || std::is_same_v<T, double> ? 2 : 1;

template <class Parameters, class Comm>
[[nodiscard]] consteval exchange_slip slip_of_exchange() {
  using list = std::remove_cvref_t<Parameters>;
  using world = std::remove_cvref_t<Comm>;
  if constexpr (list_of_foreign<list> == 0 && !has_visit_parameters<std::remove_reference_t<Parameters>>) {
    return exchange_slip::parameters;
  } else if constexpr (list_of_foreign<list> == 1) {
    return exchange_slip::element;
  } else if constexpr (only_describes<world>) {
    return exchange_slip::described;
  } else if constexpr (!has_rank<world> || !has_size<world>) {
    return exchange_slip::world;
  } else if constexpr (!std::is_lvalue_reference_v<Comm>) {
    return exchange_slip::temporary;
  } else if constexpr (std::is_const_v<std::remove_reference_t<Comm>>) {
    return exchange_slip::constant;
  } else {
    return exchange_slip::none;
  }
}
template <exchange_slip Slip>
struct check_exchange {
  static_assert(Slip != exchange_slip::parameters,
                "trireme::make_exchange: the first argument are the parameters, each with a name, "
                "its values and its gradient: std::vector<foreign_parameter<float>>{{\"weights\", "
                "tensor_view{weights}, tensor_view{gradients}}}, or something with visit_parameters");
  static_assert(Slip != exchange_slip::element,
                "trireme::make_exchange: parameters are float or double: std::vector<foreign_parameter<float>>");
  static_assert(Slip != exchange_slip::described && Slip != exchange_slip::world,
                "trireme::make_exchange: the second argument is a world: "
                "call launch(comm::threads{...}, [](auto& world) { ... }) and pass the world that the body gets");
  static_assert(Slip != exchange_slip::temporary,
                "trireme::make_exchange: the world is a temporary, which ends before the exchange that borrows it: "
                "keep it in a variable, and pass that");
  static_assert(Slip != exchange_slip::constant,
                "trireme::make_exchange: the world is const, but an exchange makes calls of it: "
                "take it as [](auto& world)");
};

struct refused;  // of trainers: in make.hpp

/// The result type of calls of a refused trainer or exchange where no type is known: it converts to anything.
struct refused_policy {
  template <class T>
  operator T() const;  // never called, and so never defined
  refused_policy operator()(auto&&...) const { return {}; }
};

/// What make_exchange returns after it has reported an error, so that no line that uses it adds another one. It has
/// every public function of own_exchange and basic_exchange (tests/train/refused_test.py compares them). Functions
/// without a result return void, so that there are no warnings about unused values.
struct refused_exchange {
  static constexpr bool sharded = false, shards_parameters = false, keeps_master = false, replicas_differ = false;
  static constexpr bool has_gradient_memory = false;

  // A step.
  std::int64_t begin(std::int64_t = 1) { return 0; }
  void begin(mean_over_ranks) {}
  void begin(exchange_step const&) {}
  void weight(double) {}
  void gradient_at(int, auto&&) {}
  refused_policy gradient_memory(int) { return {}; }
  void accumulate() {}
  void ready(auto&&) {}
  void abandon() noexcept {}
  void sit_out() {}
  void sit_out_forward() {}
  bool pass_step() { return false; }
  exchange_result finish(auto&&...) { return {}; }
  exchange_result count(auto&&) { return {}; }
  std::optional<gradient_numbers> settle(bool, gradient_numbers const&) { return {}; }
  bool updates_due() const noexcept { return false; }
  std::int64_t learner() const noexcept { return -1; }
  std::int64_t learners() const noexcept { return 1; }
  std::span<parallel::owned_segment<environment<precision::fp32>> const> segments() const { return {}; }
  void publish() {}
  exchange_result step(auto&&, std::int64_t = 0) { return {}; }
  void gather(int) {}
  void prefetch(int) {}
  void release(int) {}
  void open(int) {}

  // Values and state.
  void initialise(std::uint64_t) {}
  void broadcast(auto&&...) {}
  void change_values(auto&&) {}
  void refresh_parameters() {}
  void verify_replicas() {}
  void expect_between_steps(std::string_view) const {}
  void expect_equal_copies(auto&&...) {}
  std::uint64_t hash_of_parameters() const { return {}; }
  bool has_finite_gradient(auto&&) const { return {}; }
  refused_policy parameter_values(auto&&) const { return {}; }
  refused_policy master_of(int, auto&&) const { return {}; }
  void visit_values(auto&&...) {}
  void visit_state(auto&&...) {}
  void prepare_saves(auto&&...) {}
  void visit_numbers(auto&&) {}
  void forget_compression() {}
  void go_on(std::int64_t, std::int64_t) noexcept {}
  template <class... Files>
  void save(std::string const&, checkpoint::patience const& = {}, checkpoint::keeping const& = {}, Files&...) {}
  template <class... Files>
  checkpoint::loaded load(std::string const&, checkpoint::patience const& = {}, Files&...) {
    return {};
  }
  template <class Optimizer, class... More>
  requires(!std::is_convertible_v<Optimizer const&, checkpoint::patience>) checkpoint::loaded
      load(std::string const&, Optimizer const&, More&&...) {
    return {};
  }

  // What it is.
  refused_policy plan() const noexcept { return {}; }
  refused_policy own() const noexcept { return {}; }
  refused_policy world() const noexcept { return {}; }
  refused_policy everyone() const noexcept { return {}; }
  refused_policy strategy() const noexcept { return {}; }
  int use_count() const noexcept { return {}; }
  int use_named(std::string_view) const { return {}; }
  std::uint64_t version() const noexcept { return {}; }
  std::int64_t steps() const noexcept { return {}; }
  std::int64_t updates() const noexcept { return {}; }
  std::int64_t period() const noexcept { return 1; }
  std::int64_t settles_after() const noexcept { return 1; }
  double sample_weight(std::int64_t) const noexcept { return {}; }
  bool keeps_moments() const noexcept { return {}; }
  bool reports_every_micro_batch() const noexcept { return {}; }
  exchange_memory memory() const { return {}; }
  exchange_times times() const noexcept { return {}; }
  void record(auto&&) {}
  void sum_also(std::string_view, auto&&) {}
};

/// Why a model has no trainer.input_gradient().
enum class inputs_slip : std::uint8_t { none, plain, tokens, unit };

template <inputs_slip Slip, class Culprit>
struct check_inputs {
  static_assert(Slip != inputs_slip::plain,
                "trireme::trainer: input_gradient() needs a plain model with input_gradient(samples) -> "
                "tensor<float>, which this one lacks");
  static_assert(Slip != inputs_slip::tokens,
                "trireme::trainer: the inputs of this model are tokens, which have no gradients; "
                "input_gradient() is for models whose first layer reads numbers, such as nn::features");
  static_assert(Slip != inputs_slip::unit,
                "trireme::trainer: a unit of this model is written by hand and has no input_gradient(pass, saved, "
                "dy), the gradient of its input alone");
};
template <class Env>
struct checks_units {
  template <class Unit>
  void operator()(Unit const&) const {
    constexpr auto slip = reads_tokens<Unit>                                                ? inputs_slip::tokens
                          : !has_input_gradient<typename Unit::template instance<Env>, Env> ? inputs_slip::unit
                                                                                            : inputs_slip::none;
    static_cast<void>(sizeof(check_inputs<slip, Unit>));
  }
};
/// Rejects models whose inputs have no gradient.
template <class Env, class Model>
constexpr void expect_input_gradient() {
  if constexpr (staged_model<Model>) {
    // Compiled but never called: the compiler checks each unit.
    [[maybe_unused]] auto const look = [](Model const& model) {
      checks_units<Env> each;
      model.units(each);
    };
  } else {
    constexpr auto slip = has_model_input_gradient<Model> ? inputs_slip::none : inputs_slip::plain;
    static_cast<void>(sizeof(check_inputs<slip, Model>));
  }
}

/// Mistakes in the first argument of fit() and evaluate().
enum class data_slip : std::uint8_t { none, closed, no_dataset };

template <class Data>
[[nodiscard]] consteval data_slip slip_of_data() {
  return requires(Data const& data) { data.open(); }
  ? data_slip::closed : data_slip::no_dataset;
}
template <data_slip Slip>
struct check_data {
  static_assert(Slip != data_slip::closed,
                "trireme::trainer: this describes data that are not open yet: pass what its open() returns");
  static_assert(Slip != data_slip::no_dataset,
                "trireme::trainer: fit() and evaluate() take a dataset, such as data::function(f), "
                "data::in_memory(inputs, targets) or data::token_file{...}.open(); arrays of your own go to step()");
};

}  // namespace trireme::detail

namespace trireme::checkpoint {

inline void save(trireme::detail::refused_exchange&, std::string const&, auto&&...) {}
inline loaded load(trireme::detail::refused_exchange&, std::string const&, auto&&...) { return {}; }
inline std::optional<loaded> resume_or_start(trireme::detail::refused_exchange&, std::string const&, auto&&...) {
  return {};
}
inline std::optional<loaded> resume_or_start(trireme::detail::refused&, std::string const&, auto&&...) { return {}; }

}  // namespace trireme::checkpoint
