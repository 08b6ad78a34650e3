#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "trireme/contract/communicator.hpp"
#include "trireme/interop/detail/torch_module.hpp"
#include "trireme/interop/torch_data_parallel_options.hpp"
#include "trireme/train/make_exchange.hpp"
#include "trireme/train/step.hpp"

// Wrong arguments of data_parallel: each gives one compile error.

namespace trireme::interop::detail {

/// The mistakes in calls of data_parallel that are detected at compile time.
enum class data_parallel_slip : std::uint8_t {
  none,
  element,
  swapped,
  module,
  pointer,
  temporary_module,
  world,
  temporary_world,
  constant_world
};

template <class Element, class Module, class Comm>
[[nodiscard]] consteval data_parallel_slip slip_of_data_parallel() {
  using plain = std::remove_cvref_t<Module>;
  using world = std::remove_cvref_t<Comm>;
  using slip = data_parallel_slip;
  if (!std::is_same_v<Element, float> && !std::is_same_v<Element, double>) return slip::element;
  if (has_rank<plain> && has_size<plain> && !some_module<plain>) return slip::swapped;
  if (std::is_pointer_v<plain>) return slip::pointer;
  if (!some_module<plain>) return slip::module;
  if (std::derived_from<plain, torch::nn::Module> && !std::is_lvalue_reference_v<Module>) return slip::temporary_module;
  if (!has_rank<world> || !has_size<world>) return slip::world;
  if (!std::is_lvalue_reference_v<Comm>) return slip::temporary_world;
  if (std::is_const_v<std::remove_reference_t<Comm>>) return slip::constant_world;
  return slip::none;
}
template <data_parallel_slip Slip>
struct check_data_parallel {
  using slip = data_parallel_slip;
  static_assert(Slip != slip::element,
                "trireme::interop::data_parallel: gradients are exchanged as float or double, whatever the parameters "
                "are: leave the type out, or say data_parallel<double>");
  static_assert(
      Slip != slip::swapped,
      "trireme::interop::data_parallel: the module comes first, and then the world: data_parallel(net, world)");
  static_assert(
      Slip != slip::module,
      "trireme::interop::data_parallel: the first argument is a module: one derived from torch::nn::Module, a "
      "holder, a shared_ptr or unique_ptr of one, an AnyModule or a torch::jit::Module");
  static_assert(Slip != slip::pointer,
                "trireme::interop::data_parallel: the module is given as a pointer: write data_parallel(*net, world); "
                "the module outlives what data_parallel returns");
  static_assert(
      Slip != slip::temporary_module,
      "trireme::interop::data_parallel: the module is a temporary, which ends before it is trained: keep it in "
      "a variable, or make it by std::make_shared");
  static_assert(Slip != slip::world,
                "trireme::interop::data_parallel: the second argument is a world: call launch(comm::threads{...}, "
                "[](auto& world) { ... }) and pass the world that the body gets");
  static_assert(Slip != slip::temporary_world,
                "trireme::interop::data_parallel: the world is a temporary: keep it in a variable, and pass that");
  static_assert(Slip != slip::constant_world,
                "trireme::interop::data_parallel: the world is const, but its calls are not: take it as [](auto& "
                "world)");
};

/// data_parallel returns this after a compile error, so that the lines of the loop add no further errors.
struct refused_data_parallel {
  struct refused_module {
    torch::Tensor forward(auto&&...) const { return {}; }
    refused_module const* operator->() const { return this; }
  };
  refused_module const* operator->() const { return &module_; }
  refused_module const& operator*() const { return module_; }
  refused_module const& module() const { return module_; }
  void backward(torch::Tensor const&) {}
  double loss_scale() const { return 1; }
  exchange_result finish() { return {}; }
  exchange_result step(auto&&) { return {}; }
  std::optional<exchange_result> join(early_end = early_end::follow) { return {}; }
  refused_module const& no_sync() { return module_; }
  void abandon() noexcept {}
  trireme::detail::refused_exchange& exchange() { return exchange_; }

 private:
  refused_module module_;
  trireme::detail::refused_exchange exchange_;
};

}  // namespace trireme::interop::detail
