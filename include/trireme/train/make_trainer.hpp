#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/train/detail/slips.hpp"
#include "trireme/train/slots.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme {

namespace detail {

/// What make_trainer returns after it has reported an error, so that no line that uses the trainer adds another one. It
/// has every public function of basic_trainer (tests/train/refused_test.py compares them).
struct refused {
  fit_report fit(auto const&, fit_options const&) { return {}; }
  step_report step(auto&&...) { return {}; }
  double evaluate(auto const&, std::int64_t = 8) { return {}; }
  template <class Data, class... Metrics>
  requires(sizeof...(Metrics) > 0) std::tuple<Metrics...> evaluate(Data const&, std::int64_t, Metrics... metrics) {
    return {std::move(metrics)...};
  }
  tensor<float> predict(auto&&) { return {}; }
  tensor<float> predict_rows(auto&&...) { return {}; }
  tensor<float> input_gradient(auto&&...) { return {}; }
  void initialise(std::uint64_t) {}
  void start_epoch() noexcept {}
  std::vector<formats::model_file> const& model_files() const noexcept { return model_files_; }
  void keep_model_files(auto&&) {}
  void broadcast() {}
  void synchronise_buffers(auto&&...) {}
  void on_step(auto&&) {}
  void on_read_problem(auto&&) {}
  std::vector<std::int64_t> shares() const { return {}; }
  void request_stop() noexcept {}
  void record(auto&&) {}
  template <class... Files>
  void save(std::string const&, checkpoint::patience const& = {}, checkpoint::keeping const& = {}, Files&...) {}
  void save(std::string const&, formats::file_system&) {}
  template <class... Files>
  void save_in_background(std::string const&, checkpoint::patience const& = {}, checkpoint::keeping const& = {},
                          Files&...) {}
  void on_save(auto&&) {}
  void prepare_saves(auto&&...) {}
  void finish_save() {}
  template <class... Files>
  checkpoint::loaded load(std::string const&, checkpoint::patience const& = {}, Files&...) {
    return {};
  }
  checkpoint::loaded load(std::string const&, formats::file_system&) { return {}; }
  void for_each_state(auto&&, bool = false) {}
  void for_each_parameter(auto&&) {}
  void change_parameters(auto&&) {}
  std::uint64_t state_hash() { return {}; }
  std::int64_t steps() const noexcept { return {}; }
  std::uint64_t seed() const noexcept { return {}; }
  std::int64_t moment_bytes() const noexcept { return {}; }
  refused_exchange& exchange() noexcept { return exchange_; }
  refused_policy world() const noexcept { return {}; }
  refused_policy grid() const noexcept { return {}; }
  refused_policy engine() noexcept { return {}; }
  refused_policy optimizer() const noexcept { return {}; }
  refused_policy described_model() const noexcept { return {}; }
  refused_policy parallel_policy() const noexcept { return {}; }
  refused_policy precision_policy() const noexcept { return {}; }
  refused_policy compression_policy() const noexcept { return {}; }

 private:
  refused_exchange exchange_;
  std::vector<formats::model_file> model_files_;
};

template <class... Policies>
struct trainer_of {
  using sorted = resolve<Policies...>;
  using type = std::conditional_t<
      sorted::ok,
      basic_trainer<typename sorted::model, typename sorted::optimizer, typename sorted::comm,
                    typename sorted::parallel, typename sorted::precision, typename sorted::compression>,
      refused>;
  static_assert(check_policies<Policies...>() || !sorted::ok);
};

}  // namespace detail

/// The type of the trainer that make_trainer returns for these policies, in any order: for a member of a class, or a
/// trainer that is made later. A trainer cannot be moved, since its parts refer to each other; use std::unique_ptr to
/// move one.
///
/// @example std::optional<trainer_for<nn::mlp, optim::sgd, comm::threads_world>> trainer;
///          trainer.emplace(nn::mlp{.inputs = 4}, optim::sgd{}, world);
template <class... Policies>
using trainer_for = typename detail::trainer_of<Policies...>::type;

/// Makes a trainer from policies in any order: a model, an optimizer, a communicator's world and, to replace the
/// defaults parallel::data, precision::fp32 and compression::none, a parallel strategy, a precision and a compressor.
///
/// Ranks    collective: makes the same parameters on every rank, and checks that they are equal.
/// Errors   a wrong argument or combination gives one error at compile time; config_error for sizes that do not fit and
///          for environment variables that are not valid (check_environment).
///
/// @returns basic_trainer<Model, Optimizer, Comm, Parallel, Precision, Compression>, one type for any order. It borrows
///          the world, and a plain model that is passed as an lvalue.
/// @example auto trainer = trireme::make_trainer(nn::gpt{}, optim::adamw{}, world, precision::bf16{});
template <class... Policies>
[[nodiscard]] auto make_trainer(Policies&&... policies) {
  using sorted = detail::resolve<std::remove_cvref_t<Policies>...>;
  static_cast<void>(check_policies<Policies...>());  // outside the condition, or clang adds a second error
  constexpr auto slip = sorted::ok ? detail::slip_of_world<Policies...>() : detail::world_slip::none;
  static_cast<void>(sizeof(detail::check_lent_world<slip>));
  if constexpr (sorted::ok && slip == detail::world_slip::none) {
    return trainer_for<std::remove_cvref_t<Policies>...>(std::forward<Policies>(policies)...);
  } else {
    return detail::refused{};
  }
}

}  // namespace trireme
