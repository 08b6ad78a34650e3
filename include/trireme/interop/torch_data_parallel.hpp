#pragma once

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/comm/in_space.hpp"
#include "trireme/interop/detail/torch_module.hpp"
#include "trireme/interop/detail/torch_slips.hpp"
#include "trireme/interop/torch_data_parallel_options.hpp"
#include "trireme/interop/torch_data_parallel_steps.hpp"
#include "trireme/interop/torch_instances.hpp"
#include "trireme/train/make_exchange.hpp"

namespace trireme::interop {

/// What data_parallel returns: a module whose gradients are averaged over the ranks of a world while backward runs.
///
/// A step   `loss = f(ddp->forward(x)); loss.backward(); ddp.finish(); optimizer.step();` Between two calls of finish()
///          there is one backward() (with .static_graph as many as in the first step); those of further micro-batches
///          come before it, under no_sync().
/// Shapes   what torch::nn::Module::named_parameters() lists and requires a gradient, each tensor once; dense in any
///          order of their dimensions (channels last), of one order on all ranks.
/// Types    gradients of float, bfloat16, half and complex float are exchanged as floats, whose mean is rounded to what
///          .grad() is; double ones, and tables of embeddings with .sparse(true), whose gradients stay sparse, in
///          messages of their own in finish(), for parallel::data.
/// Bytes    the buckets of the exchange, as large as the gradients; gradients are copied into them as they become
///          final, and back by finish(). The memory of .grad() stays torch's, unless .gradients_in_buckets is set.
/// Ranks    collective: construction, finish() (or join() in its place) and step(). Its calls travel in a duplicate of
///          the world, so backward passes of several such objects, and the caller's own calls in the world, may come in
///          another order on each rank; ends of steps come in one order.
/// Numerics sums in rank order (docs/communicators.md): the same bits on every rank, communicator and in every run.
/// Devices  of a world in CUDA memory (comm::nccl, comm::in_space<cuda>) the module is on this thread's device, and
///          torch_cuda.hpp is included: buckets are there, too, and finish() begins the exchange.
/// Threads  one owner; cannot be moved. Ranks that are threads have a module each.
/// Errors   config_error for a parameter without a gradient, a second gradient in one step, one that was frozen, not
///          there or of another type when the object was made, and a .grad() that is changed before finish(); and for a
///          module that several ranks share; numeric_error on all ranks where their parameters differ; comm_error from
///          the world. After an exception call abandon() on all ranks, or destroy the object.
template <class Element, class Module, class Comm, class Exchange>
class data_parallel_module : public data_parallel_steps<Element, Comm, Exchange> {
  using steps = data_parallel_steps<Element, Comm, Exchange>;
  using space = typename Exchange::space;

 public:
  template <class... Policies>
  data_parallel_module(std::shared_ptr<Module> module, Comm& world, data_parallel_options const& options,
                       Policies const&... policies)
      : steps(*module, world, options, made_with(std::tuple<Policies const&...>(policies...))),
        module_(std::move(module)) {}

  [[nodiscard]] Module* operator->() const noexcept { return module_.get(); }
  [[nodiscard]] Module& operator*() const noexcept { return *module_; }
  [[nodiscard]] std::shared_ptr<Module> const& module() const noexcept { return module_; }

 private:
  template <class Policies>
  static typename steps::maker made_with(Policies const& policies) {
    if constexpr (std::tuple_size_v<Policies> == 0) {
      return {&steps::default_exchange, nullptr};
    } else {
      return {
          [](void const* given, std::vector<foreign_parameter<Element, space>> parameters, Comm& world) -> Exchange {
            return std::apply(
                [&](auto const&... each) -> Exchange { return make_exchange(std::move(parameters), world, each...); },
                *static_cast<Policies const*>(given));
          },
          &policies};
    }
  }

  std::shared_ptr<Module> module_;
};

/// Makes an existing single-process loop of LibTorch data-parallel: three lines.
///
/// Ranks    collective. Parameters and buffers of all ranks become those of rank 0.
/// Threads  a module that is given by its name (`Net net; data_parallel(net, world)`), or by that of a unique_ptr,
///          outlives what is returned; other holders share it.
/// Errors   config_error on every rank if their modules differ. A wrong argument is one sentence at compile time.
///
/// @tparam Element  what gradients are exchanged as: float, or double for a module of double parameters.
/// @param module    a module, a torch::nn::ModuleHolder (what TORCH_MODULE makes), a std::shared_ptr or std::unique_ptr
///                  of a module, a torch::nn::AnyModule or a torch::jit::Module.
/// @param policies  as of make_exchange: a strategy, a compressor.
/// @example auto ddp = interop::data_parallel(net, world);
///          torch::nn::mse_loss(ddp->forward(x), y).backward();
///          ddp.finish();
template <class Element = float, class Module, class Comm, class... Policies>
[[nodiscard]] auto data_parallel(Module&& module, Comm&& world, data_parallel_options const& options,
                                 Policies const&... policies) {
  constexpr auto slip = detail::slip_of_data_parallel<Element, Module, Comm>();
  static_cast<void>(sizeof(detail::check_data_parallel<slip>));
  if constexpr (slip == detail::data_parallel_slip::none) {
    using inner = typename decltype(detail::lent_module(std::forward<Module>(module)))::element_type;
    using communicator = std::remove_reference_t<Comm>;
    using space = detail::torch_memory_of<communicator>;
    static_assert(
        std::is_same_v<space, host> || (std::is_same_v<Policies, parallel::data> && ...),
        "trireme::interop::data_parallel: a device's memory goes with parallel::data and without a compressor");
    using resolved = trireme::detail::resolve_exchange<Element, comm::world_for<communicator, space>, Policies...>;
    resolved::template say<resolved::failed()>();
    if constexpr (resolved::failed() == resolved::none_failed) {
      using exchange = trireme::detail::exchange_type<resolved, communicator, space>;
      return data_parallel_module<Element, inner, communicator, exchange>(
          detail::lent_module(std::forward<Module>(module)), world, options, policies...);
    } else {
      return detail::refused_data_parallel{};
    }
  } else {
    return detail::refused_data_parallel{};
  }
}
template <class Element = float, class Module, class Comm, class... Policies>
requires(!(std::is_same_v<Policies, data_parallel_options> || ...))
    [[nodiscard]] auto data_parallel(Module&& module, Comm&& world, Policies const&... policies) {
  return data_parallel<Element>(std::forward<Module>(module), std::forward<Comm>(world), data_parallel_options{},
                                policies...);
}

}  // namespace trireme::interop
