#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/contract/axis.hpp"
#include "trireme/contract/casting_model.hpp"
#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/replica_group.hpp"
#include "trireme/contract/rule.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/ops/kernels.hpp"
#include "trireme/parallel/mesh.hpp"

namespace trireme {

namespace detail {

/// The element type in which a compressor's sums are formed; Default where its payloads are gathered.
template <class C, class Env, class Default>
struct wire_of {
  using type = Default;
};
template <class C, class Env, class Default>
requires requires { typename compressor_state<C, Env>::wire; }
struct wire_of<C, Env, Default> {
  using type = typename compressor_state<C, Env>::wire;
};

/// Whether a summable or gatherable compressor keeps state that changes when a step is taken.
template <class C, class Env>
concept has_residual = has_compressor_state<C, Env> && has_commit<compressor_state<C, Env>>;

/// The policies of one trainer, as the rules use them.
template <class Model, class Comm, class Parallel, class Precision, class Compression>
struct combination {
  using model = Model;
  using comm = Comm;
  using mesh = parallel::mesh_of_t<Parallel>;
  using env = environment_of<Model, Precision, typename space_of<Comm>::type>;
  using space = typename env::space;
  static constexpr bool collective = has_collective_state<Compression, env, Comm>;
  using uncoded = std::conditional_t<collective, typename env::gradient, typename env::reduce>;
  using wire = typename wire_of<Compression, env, uncoded>::type;
  using data_axis = parallel::data_axis_t<Parallel>;

  /// Whether there is an axis of this kind, of any degree.
  [[nodiscard]] static constexpr bool has(std::string_view kind) { return parallel::has_axis<Parallel>(kind); }

  static constexpr bool plain = !staged_model<Model>;
  /// Whether the memory space has the kernels of an exchange, and those of the model's layers.
  static constexpr bool exchanges = ops::exchange_kernels<space, env>;
  static constexpr bool computes = !made_of_layers<Model> || ops::dense_kernels<space, env>;
  static constexpr bool once = parallel::no_axis_twice<Parallel>;
  /// Whether every rank has all parameters and sees whole samples.
  static constexpr bool whole = !parallel::any_axis<Parallel>([](axis_facts const& is) {
    return is.parameters != axis_parameters::replicated || is.samples != axis_samples::split;
  });
  /// Whether ranks hold parts of tensors.
  static constexpr bool parts = parallel::any_axis<Parallel>([](axis_facts const& is) {
    return is.parameters == axis_parameters::sharded || is.parameters == axis_parameters::distributed;
  });
  /// Whether ranks with different samples, or with parts of samples, depend on each other within a step.
  static constexpr bool meets = parallel::any_axis<Parallel>(
      [](axis_facts const& is) { return is.samples == axis_samples::shared || is.sums_the_rest(); });
  /// Whether layers sum over the micro-batches of all data ranks.
  static constexpr bool synchronised = synchronises<Model>;
  static constexpr bool sharded = data_axis::optimizer_state == distribution::shard;
  static constexpr bool shards_gradients = data_axis::gradients == distribution::shard;
  static constexpr bool shards_parameters = data_axis::parameters == distribution::shard;
  static constexpr bool local_steps = takes_local_steps<data_axis>;
  /// Whether ranks may get unequal numbers of samples.
  static constexpr bool takes_shares = requires { requires data_axis::takes_shares; };
  /// Whether such ranks send changes of parameters, which a compressor encodes.
  static constexpr bool sends_changes = requires { requires data_axis::sends_changes; };
  /// Whether a strategy within learners has run state of its own, which nothing would call.
  static constexpr bool stateful_learner = [] {
    if constexpr (parallel::detail::is_learners_of_two<data_axis>) {
      using inner = std::remove_cvref_t<decltype(data_axis{}.inner)>;
      return requires { typename detail::names_instance<inner::template instance>; };
    }
    return false;
  }();
  static constexpr bool uncompressed = lossless_identity<Compression>;
  static constexpr bool residual = has_residual<Compression, env>;
  static constexpr bool gatherable = gatherable_compressor<Compression, env>;
  static constexpr bool one_number = std::is_same_v<typename env::param, typename env::master>;
  /// Whether the communicator has what a trainer itself needs: votes, comparisons and broadcasts.
  static constexpr bool decides =
      has_all_reduce<Comm, std::int64_t> && has_all_reduce<Comm, std::int64_t, reduction::max> &&
      has_all_reduce<Comm, std::int64_t, reduction::min> && has_all_reduce<Comm, std::uint64_t> &&
      has_all_reduce<Comm, double> && has_all_gather<Comm, std::uint64_t>;
  static constexpr bool gathers = has_all_gather<Comm, std::uint8_t, space>;
  static constexpr bool reduces = has_all_reduce<Comm, wire, reduction::sum, space>;
  static constexpr bool sums = has_all_reduce<Comm, typename env::accumulate, reduction::sum, space>;
  static constexpr bool scatters = has_reduce_scatter<Comm, wire, reduction::sum, space>;
  static constexpr bool publishes = has_all_gather<Comm, typename env::param, space>;
  static constexpr bool trades = has_all_to_all<Comm, std::uint8_t, space>;
};

}  // namespace detail

namespace detail::rules {

// The rules that belong to no axis; each is a condition that must hold for a `combination` C. An axis's own rules are
// in its header (its `rules`).
TRIREME_RULE(plain_model_precision, "plain-model-precision",
             "a plain model stores its own numbers, which a mixed precision cannot change",
             "use precision::fp32 (or fp64), let the model cast by itself (compute_in and backward(ready, scale)), "
             "or describe it in units",
             !C::plain || C::one_number);
TRIREME_RULE(mesh_axis_once, "mesh-axis-once", "a mesh has two axes of the same kind",
             "leave one of them out, and multiply its degree into the other", C::once);
TRIREME_RULE(
    plain_model_whole, "plain-model-whole",
    "a plain model is whole on every rank, and supports only axes along which ranks see different whole samples",
    "use parallel::data or parallel::zero, or describe the model in units", !C::plain || C::whole);
TRIREME_RULE(space_lacks_exchange_kernels, "space-lacks-exchange-kernels",
             "the communicator names a memory space that lacks kernels which every exchange of parameters needs",
             "add the kernels of ops::exchange_kernels to its ops::on", C::exchanges);
TRIREME_RULE(space_lacks_layer_kernels, "space-lacks-layer-kernels",
             "the model is made of layers whose kernels the communicator's memory space lacks",
             "add the kernels of ops::dense_kernels to its ops::on, or use a plain model", C::computes);

TRIREME_RULE(zero_3_needs_units, "zero-3-needs-units",
             "parallel::zero<3> drops parameters between their uses, but a plain model keeps its own",
             "use parallel::zero<2>, or describe the model in units", !C::plain || !C::shards_parameters);
TRIREME_RULE(
    error_feedback_needs_one_exchange, "error-feedback-needs-one-exchange",
    "error feedback adds once per step what it left out, but parallel::zero<2> and zero<3> send every micro-batch",
    "use parallel::zero<1>", !C::residual || !C::shards_gradients || C::sends_changes);
TRIREME_RULE(
    local_steps_send_no_gradients, "local-steps-send-no-gradients",
    "the ranks of this strategy take local steps, and it sends neither gradients nor changes that a compressor encodes",
    "leave the compressor out, or use parallel::diloco", !C::local_steps || C::uncompressed || C::sends_changes);
TRIREME_RULE(learners_share_plain_steps, "learners-share-plain-steps",
             "beside parallel::diloco, or another axis of learners that take steps apart, the mesh has a strategy with "
             "run state "
             "of its own, such as parallel::parameter_server",
             "let the ranks of a learner share steps by parallel::data or zero", !C::stateful_learner);
TRIREME_RULE(
    synchronised_needs_common_passes, "synchronised-needs-common-passes",
    "the model normalises over the micro-batches that all data ranks run at the same time, "
    "but here ranks take local steps, as in parallel::diloco, or an axis distributes samples or experts over them",
    "use parallel::data or zero, or normalise each micro-batch by itself",
    !C::synchronised || (!C::local_steps && !C::meets));
TRIREME_RULE(synchronised_needs_all_reduce, "synchronised-needs-all-reduce",
             "the model normalises over all data ranks, which needs an all_reduce of sums that this communicator lacks",
             "use another communicator", !C::synchronised || C::sums);
TRIREME_RULE(
    collective_compressor_needs_one_exchange, "collective-compressor-needs-one-exchange",
    "this compressor takes whole gradients once per step, but parallel::zero<2> and zero<3> send every micro-batch",
    "use parallel::zero<1>", !C::collective || !C::shards_gradients || C::sends_changes);
TRIREME_RULE(
    collective_compressor_needs_whole_tensors, "collective-compressor-needs-whole-tensors",
    "this compressor works on whole tensors, of which an axis such as parallel::tensor gives a rank only parts",
    "use compression::cast or top_k with such an axis", !C::collective || !C::parts);
TRIREME_RULE(
    trainer_needs_votes, "trainer-needs-votes",
    "every trainer votes with all_reduce and compares ranks with all_gather, and this communicator lacks one of them",
    "use another communicator", C::decides);
TRIREME_RULE(data_needs_all_reduce, "data-needs-all-reduce",
             "parallel::data sums gradients with all_reduce, which this communicator lacks for them",
             "use another communicator, or compression::top_k, which gathers",
             (C::sharded && !C::collective) || C::gatherable || C::reduces);
TRIREME_RULE(zero_needs_reduce_scatter, "zero-needs-reduce-scatter",
             "parallel::zero needs reduce_scatter and all_gather, which this communicator lacks",
             "use parallel::data or another communicator",
             !C::sharded || (C::publishes && (C::gatherable || C::collective || C::scatters)));
TRIREME_RULE(gathered_needs_all_gather, "gathered-needs-all-gather",
             "this compressor's payloads are gathered with all_gather, which this communicator lacks",
             "use a summable compressor such as compression::cast", !C::gatherable || C::sharded || C::gathers);
TRIREME_RULE(gathered_zero_needs_all_to_all, "gathered-zero-needs-all-to-all",
             "under parallel::zero this compressor's payloads are sent by all_to_all, which this communicator lacks",
             "use a summable compressor such as compression::cast, or parallel::data",
             !C::gatherable || !C::sharded || C::trades);

// Not in a list below: fit() checks it if it is given shares, which are numbers, as are the degrees of other axes.
TRIREME_RULE(shares_need_replicas, "shares-need-replicas",
             ".shares give ranks unequal numbers of samples, which only parallel::data, zero<1> and zero<2> without "
             "other axes support",
             "use one of these, or leave .shares out", C::takes_shares);

using before_axes = rule_list<plain_model_precision, mesh_axis_once, plain_model_whole, space_lacks_exchange_kernels,
                              space_lacks_layer_kernels>;
using after_axes = rule_list<zero_3_needs_units, error_feedback_needs_one_exchange, local_steps_send_no_gradients,
                             learners_share_plain_steps, synchronised_needs_common_passes,
                             synchronised_needs_all_reduce, collective_compressor_needs_one_exchange,
                             collective_compressor_needs_whole_tensors, trainer_needs_votes, data_needs_all_reduce,
                             zero_needs_reduce_scatter, gathered_needs_all_gather, gathered_zero_needs_all_to_all>;

template <class Axis>
struct of_axis {
  using type = rule_list<>;
};
template <class Axis>
requires requires { typename Axis::rules; }
struct of_axis<Axis> {
  using type = typename Axis::rules;
};

template <class... Lists>
struct all_of;
template <class... Rules>
struct all_of<rule_list<Rules...>> {
  using type = rule_list<Rules...>;
};
template <class... A, class... B, class... More>
struct all_of<rule_list<A...>, rule_list<B...>, More...> : all_of<rule_list<A..., B...>, More...> {};

template <class Mesh>
struct of_mesh;
template <class... Axes>
struct of_mesh<parallel::mesh<Axes...>> : all_of<before_axes, typename of_axis<Axes>::type..., after_axes> {};

/// All rules that apply to a mesh of these axes, in the order in which they are checked.
template <class Mesh>
using of_mesh_t = typename of_mesh<Mesh>::type;

template <class C, class... Rules>
constexpr std::string_view broken(rule_list<Rules...>) {
  std::string_view id;
  static_cast<void>(((Rules::template holds<C> || (id = Rules::rule.id, false)) && ...));
  return id;
}

}  // namespace detail::rules
}  // namespace trireme
