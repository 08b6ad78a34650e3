#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include "trireme/compression/none.hpp"
#include "trireme/compression/one_of.hpp"
#include "trireme/contract/casting_model.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/optimizer.hpp"
#include "trireme/contract/slot.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/compatibility.hpp"

namespace trireme {

namespace detail {

/// The category of P: its tag; a model if it has visit_parameters (a plain model needs no tag); else none.
template <class P>
consteval auto kind_of() {
  if constexpr (policy<P>) {
    return std::type_identity<category_of_t<P>>{};
  } else if constexpr (has_visit_parameters<P>) {
    return std::type_identity<slot::model>{};
  } else {
    return std::type_identity<void>{};
  }
}
template <class P>
using kind_of_t = typename decltype(kind_of<P>())::type;

template <class Kind, class... Policies>
inline constexpr int count_of = (0 + ... + int{std::is_same_v<kind_of_t<Policies>, Kind>});

/// The first policy of a kind, or the default.
template <class Kind, class Default, class... Policies>
struct find {
  using type = Default;
};
template <class Kind, class Default, class First, class... Rest>
struct find<Kind, Default, First, Rest...>
    : std::conditional_t<std::is_same_v<kind_of_t<First>, Kind>, std::type_identity<First>,
                         find<Kind, Default, Rest...>> {};

struct nothing {};

// Each check is a class of its own: a user sees the one sentence of its static_assert, and the compiler's "in
// instantiation of" line names the type at fault. Whether everything is valid is computed separately (`ok` of resolve):
// a class whose assertion failed must not take part in a constant expression, or a second error follows.
template <class P>
struct check_is_policy {
  static_assert(!std::is_pointer_v<P>,
                "trireme::trainer: a pointer is not a policy: pass the world, the model or the description itself");
  static_assert(std::is_pointer_v<P> || !std::is_same_v<kind_of_t<P>, void>,
                "trireme::trainer: not a policy: each argument must be a model, an optimizer, "
                "a communicator or a policy for parallelism, precision or compression; say which with policy_category");
};

template <class... P>
struct check_counts {
  static_assert(count_of<slot::communicator, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the communicators");
  static_assert(count_of<slot::model, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the models");
  static_assert(count_of<slot::optimizer, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the optimizers");
  static_assert(count_of<slot::parallel, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the parallel strategies");
  static_assert(count_of<slot::precision, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the precisions");
  static_assert(count_of<slot::compression, P...> <= 1,
                "trireme::trainer: two policies for one slot: remove one of the compressors");
};

template <class... P>
struct check_required {
  static constexpr bool ok =
      count_of<slot::communicator, P...> > 0 && count_of<slot::model, P...> > 0 && count_of<slot::optimizer, P...> > 0;
  static_assert(
      count_of<slot::communicator, P...> > 0,
      "trireme::trainer: no communicator: pass the world that launch() gives, or comm::self_world for one rank");
  static_assert(count_of<slot::model, P...> > 0, "trireme::trainer: no model: pass a description such as nn::gpt{}");
  static_assert(count_of<slot::optimizer, P...> > 0,
                "trireme::trainer: no optimizer: pass a description such as optim::adamw{}");
};

/// Whether C is the description of a communicator and not a communicator.
template <class C>
inline constexpr bool only_describes =
    !has_rank<C> && !has_size<C> && !has_split<C> && !has_duplicate<C> && !has_barrier<C> && !has_traffic<C>;
template <bool OnlyDescribes>
struct check_world {
  static_assert(!OnlyDescribes,
                "trireme::trainer: a description such as comm::threads{} is not a world: "
                "call launch(description, [](auto& world) { ... }) and pass the world that the body gets");
};

template <class C>
struct check_communicator {
  static_assert(has_rank<C>, "trireme::trainer: communicator lacks rank() -> int");
  static_assert(has_size<C>, "trireme::trainer: communicator lacks size() -> int");
  static_assert(has_split<C>, "trireme::trainer: communicator lacks split(color, key) -> communicator");
  static_assert(has_duplicate<C>, "trireme::trainer: communicator lacks duplicate() -> communicator");
  static_assert(has_barrier<C>, "trireme::trainer: communicator lacks barrier()");
  static_assert(has_traffic<C>, "trireme::trainer: communicator lacks traffic() -> traffic_counters");
  static_assert(has_communicator_name<C>, "trireme::trainer: communicator lacks a static name");
};
template <class M>
struct check_model {
  static_assert(staged_model<M> || has_visit_parameters<M>,
                "trireme::trainer: model lacks units(emit), and visit_parameters(visit) to be a plain one");
  static_assert(staged_model<M> || !has_visit_parameters<M> || has_model_forward<M>,
                "trireme::trainer: model lacks forward(samples const&) -> mean loss, or counted_loss");
  static_assert(staged_model<M> || !has_visit_parameters<M> || has_model_backward<M>,
                "trireme::trainer: model lacks backward(ready)");
};
template <class P>
struct check_precision {
  static_assert(has_param_type<P>, "trireme::trainer: precision policy lacks the type param");
  static_assert(has_compute_type<P>, "trireme::trainer: precision policy lacks the type compute");
  static_assert(has_accumulate_type<P>, "trireme::trainer: precision policy lacks the type accumulate");
  static_assert(has_reduce_type<P>, "trireme::trainer: precision policy lacks the type reduce");
  static_assert(has_master_type<P>, "trireme::trainer: precision policy lacks the type master");
  static_assert(has_tolerance<P>, "trireme::trainer: precision policy lacks a static tolerance");
};
template <class S>
struct check_parallel {
  static_assert(trireme::parallel::parallel_policy<S> || declares_optimizer_state<S>,
                "trireme::trainer: parallel strategy lacks a static optimizer_state");
  static_assert(trireme::parallel::parallel_policy<S> || declares_gradients<S>,
                "trireme::trainer: parallel strategy lacks a static gradients");
  static_assert(trireme::parallel::parallel_policy<S> || declares_parameters<S>,
                "trireme::trainer: parallel strategy lacks a static parameters");
  static_assert(trireme::parallel::parallel_policy<S> || has_bucket_bytes<S>,
                "trireme::trainer: parallel strategy lacks bucket_bytes");
};
template <class O, class Env>
struct check_optimizer {
  static_assert(has_moment_names<O>, "trireme::trainer: optimizer lacks static moment_names");
  static_assert(has_rate_at<O>, "trireme::trainer: optimizer lacks rate_at(step) -> double");
  static_assert(has_clip<O>, "trireme::trainer: optimizer lacks clip");
  static_assert(declares_whole_tensors<O> || has_update<O, Env>,
                "trireme::trainer: optimizer lacks update(segment, step)");
  static_assert(!declares_whole_tensors<O> || has_moment_shape<O>,
                "trireme::trainer: optimizer of whole tensors lacks moment_shape(which, parameter_info) -> shape");
  static_assert(!declares_whole_tensors<O> || has_update<O, Env> || has_tensor_update<O, Env>,
                "trireme::trainer: optimizer of whole tensors lacks update(tensor_update, step)");
};
template <class C, class Env, class Comm>
struct check_compression {
  static constexpr bool collective = has_collective_state<C, Env, Comm>;
  static_assert(collective || has_compressor_state<C, Env>,
                "trireme::trainer: compression policy lacks instance<Env>(description, elements)");
  static_assert(collective || !has_compressor_state<C, Env> || compressor<C, Env, Comm>,
                "trireme::trainer: compression policy lacks encode and decode of a summable or a gatherable payload");
  static_assert(
      !collective || compressor<C, Env, Comm>,
      "trireme::trainer: compression policy's instance<Env, Comm>(description, form, comm) lacks begin, test, turn, "
      "commit or bytes");
};

/// The id of the first rule that a combination breaks; empty if it breaks none.
template <class C>
inline constexpr std::string_view broken_rule = rules::broken<C>(rules::of_mesh_t<typename C::mesh>{});
/// Of compressors chosen at run time none may break a rule: the first one that does is reported.
template <class Model, class Comm, class Parallel, class Precision, class... Compressors>
inline constexpr std::string_view
    broken_rule<combination<Model, Comm, Parallel, Precision, compression::one_of<Compressors...>>> = [] {
      std::string_view broken;
      static_cast<void>(
          ((broken = broken_rule<combination<Model, Comm, Parallel, Precision, Compressors>>, broken.empty()) && ...));
      return broken;
    }();
template <class C, class Rules = rules::of_mesh_t<typename C::mesh>>
struct check_combination;
template <class C, class... Rules>
struct check_combination<C, rule_list<Rules...>> {
  static constexpr std::size_t size =
      (0 + ... + sizeof(typename Rules::template check<broken_rule<C> != Rules::rule.id>));
  static constexpr std::size_t size_of_exchange =
      (0 + ... + sizeof(typename Rules::template check_of_exchange<broken_rule<C> != Rules::rule.id>));
};

/// The argument of a kind, or a default value.
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

/// Sorts policies in any order into slots and checks them. One mistake gives one error: each check runs only if those
/// before it passed.
template <class... P>
struct resolve {
  template <class Kind, class Default>
  using pick = typename find<Kind, Default, P...>::type;
  using model = pick<slot::model, nothing>;
  using optimizer = pick<slot::optimizer, nothing>;
  using comm = pick<slot::communicator, nothing>;
  using parallel = pick<slot::parallel, parallel::data>;
  using precision = pick<slot::precision, precision::fp32>;
  using compression = pick<slot::compression, compression::none>;

  static constexpr bool policies = (!std::is_same_v<kind_of_t<P>, void> && ...);
  static constexpr bool at_most_one = count_of<slot::communicator, P...> <= 1 && count_of<slot::model, P...> <= 1 &&
                                      count_of<slot::optimizer, P...> <= 1 && count_of<slot::parallel, P...> <= 1 &&
                                      count_of<slot::precision, P...> <= 1 && count_of<slot::compression, P...> <= 1;
  static constexpr bool described_only = count_of<slot::communicator, P...> > 0 && only_describes<comm>;
  static constexpr bool complete = count_of<slot::communicator, P...> > 0 && count_of<slot::model, P...> > 0 &&
                                   count_of<slot::optimizer, P...> > 0 && !described_only;
  static constexpr bool independent = communicator<comm> &&
                                      (staged_model<model> || plain_model<model>)&&precision_policy<precision> &&
                                      trireme::parallel::parallel_policy<parallel>;

  // The first stage that fails: 0 policies, 1 counts, 2 required, 3 each alone, 4 with the environment, 5 together,
  // 6 kernels.
  static constexpr int failed() {
    if constexpr (!policies) {
      return 0;
    } else if constexpr (!at_most_one) {
      return 1;
    } else if constexpr (!complete) {
      return 2;
    } else if constexpr (!independent) {
      return 3;
    } else {
      using env = environment_of<model, precision, typename space_of<comm>::type>;
      if constexpr (!trireme::optimizer<optimizer, env> || !trireme::compressor<compression, env, comm>) {
        return 4;
      } else if constexpr (!ops::exchange_kernels<typename env::space, env>) {
        return 5;
      } else if constexpr (!ops::finds_kernels<optimizer, env>() || !ops::finds_kernels<compression, env>()) {
        return 6;
      } else {
        return broken_rule<combination<model, comm, parallel, precision, compression>>.empty() ? none_failed : 5;
      }
    }
  }
  static constexpr int none_failed = 7;
  static constexpr bool ok = failed() == none_failed;

  template <int Stage>
  static constexpr void say() {
    if constexpr (Stage == 0) {
      (static_cast<void>(sizeof(check_is_policy<P>)), ...);
    } else if constexpr (Stage == 1) {
      static_cast<void>(sizeof(check_counts<P...>));
    } else if constexpr (Stage == 2) {
      static_cast<void>(sizeof(check_required<P...>) + sizeof(check_world<described_only>));
    } else if constexpr (Stage == 3) {
      static_cast<void>(sizeof(check_communicator<comm>) + sizeof(check_model<model>) +
                        sizeof(check_precision<precision>) + sizeof(check_parallel<parallel>));
    } else if constexpr (Stage == 4) {
      using env = environment_of<model, precision, typename space_of<comm>::type>;
      static_cast<void>(sizeof(check_optimizer<optimizer, env>) + sizeof(check_compression<compression, env, comm>));
    } else if constexpr (Stage == 5) {
      static_cast<void>(check_combination<combination<model, comm, parallel, precision, compression>>::size);
    } else if constexpr (Stage == 6) {
      using env = environment_of<model, precision, typename space_of<comm>::type>;
      static_cast<void>(ops::expect_kernels<optimizer, env>() && ops::expect_kernels<compression, env>());
    }
  }
};

}  // namespace detail

/// Whether these policies make a trainer; if not, a static_assert says why.
template <class... Policies>
constexpr bool check_policies() {
  using resolved = detail::resolve<std::remove_cvref_t<Policies>...>;
  resolved::template say<resolved::failed()>();
  return resolved::ok;
}

}  // namespace trireme
