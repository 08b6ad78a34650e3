#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/compressor.hpp"
#include "trireme/contract/context_group.hpp"
#include "trireme/contract/environment.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/contract/strategy.hpp"
#include "trireme/parallel/mesh.hpp"

namespace trireme {

/// One rule on policies of different slots: what is refused, and what to do instead.
struct compatibility_rule {
  std::string_view id;
  std::string_view sentence;
  std::string_view remedy;
};

namespace detail {

/// The element type that a compressor's sums are formed in; Default where its payloads are collected.
template <class C, class Env, class Default>
struct wire_of {
  using type = Default;
};
template <class C, class Env, class Default>
requires requires { typename compressor_state<C, Env>::wire; }
struct wire_of<C, Env, Default> {
  using type = typename compressor_state<C, Env>::wire;
};

/// Whether a summable or gatherable compressor keeps something that a taken step changes.
template <class C, class Env>
concept has_residual = has_compressor_state<C, Env> && has_commit<compressor_state<C, Env>>;

/// The policies of one trainer, as the rules see them.
template <class Model, class Comm, class Parallel, class Precision, class Compression>
struct combination {
  using env = environment<Precision, typename space_of<Comm>::type>;
  using space = typename env::space;
  static constexpr bool collective = has_collective_state<Compression, env, Comm>;
  using uncoded = std::conditional_t<collective, typename env::gradient, typename Precision::reduce>;
  using wire = typename wire_of<Compression, env, uncoded>::type;
  using data_axis = parallel::data_axis_t<Parallel>;
  using axis = parallel::axis;

  static constexpr bool plain = !staged_model<Model>;
  static constexpr bool once = parallel::no_axis_twice<Parallel>;
  static constexpr bool tensor = parallel::has_axis<Parallel, axis::tensor>;
  static constexpr bool sequence = parallel::has_axis<Parallel, axis::sequence>;
  static constexpr bool pipeline = parallel::has_axis<Parallel, axis::pipeline>;
  static constexpr bool context = parallel::has_axis<Parallel, axis::context>;
  static constexpr bool cuts_positions = cuts_context<Model>;
  static constexpr bool expert = parallel::has_axis<Parallel, axis::expert>;
  static constexpr bool sharded = data_axis::optimizer_state == distribution::shard;
  static constexpr bool shards_gradients = data_axis::gradients == distribution::shard;
  static constexpr bool shards_parameters = data_axis::parameters == distribution::shard;
  static constexpr bool shares_layers = has_all_reduce<Comm, typename env::compute, reduction::sum, space> &&
                                        has_all_reduce<Comm, typename env::accumulate, reduction::sum, space> &&
                                        has_all_reduce<Comm, typename env::accumulate, reduction::max, space>;
  static constexpr bool hands_on = has_exchange<Comm, space>;
  static constexpr bool deals = has_ragged_all_to_all<Comm, typename env::compute, space>;
  static constexpr bool deals_experts = deals && has_all_gather<Comm, std::int64_t> &&
                                        has_all_reduce<Comm, typename env::gradient, reduction::sum, space>;
  static constexpr bool local_steps = requires { requires data_axis::local_steps; };
  static constexpr bool uncompressed = lossless_identity<Compression>;
  static constexpr bool residual = has_residual<Compression, env>;
  static constexpr bool gatherable = gatherable_compressor<Compression, env>;
  static constexpr bool one_number = std::is_same_v<typename Precision::param, typename Precision::master>;
  static constexpr bool decides =
      has_all_reduce<Comm, std::int64_t> && has_all_reduce<Comm, double> && has_all_gather<Comm, std::uint64_t>;
  static constexpr bool gathers = has_all_gather<Comm, std::uint8_t, space>;
  static constexpr bool reduces = has_all_reduce<Comm, wire, reduction::sum, space>;
  static constexpr bool scatters = has_reduce_scatter<Comm, wire, reduction::sum, space>;
  static constexpr bool publishes = has_all_gather<Comm, typename Precision::param, space>;
  static constexpr bool trades = has_all_to_all<Comm, std::uint8_t, space>;
};

}  // namespace detail

/// All rules on combinations, in one place: X(id, sentence, remedy, condition that must hold of a `combination` C). The
/// trainer asserts the first that is broken at compile time, the table below lists them for documentation and tools.
#define TRIREME_COMPATIBILITY_RULES(X)                                                                                 \
  X("plain-model-precision", "a plain model stores its own numbers, which a mixed precision cannot change",            \
    "use precision::fp32 (or fp64), or describe the model in units", !C::plain || C::one_number)                       \
  X("mesh-axis-once", "a mesh has two axes of one kind",                                                               \
    "leave one of them out, and multiply its degree into the other", C::once)                                          \
  X("plain-model-whole", "a plain model cannot be cut by tensor, sequence, context, pipeline or expert",               \
    "use parallel::data or parallel::zero, or describe the model in units",                                            \
    !C::plain || !(C::tensor || C::sequence || C::context || C::pipeline || C::expert))                                \
  X("context-needs-positions",                                                                                         \
    "parallel::context cuts samples into positions, and the model does not say that its units know of them",           \
    "use parallel::data, or give the model a static cuts_context = true if they do", !C::context || C::cuts_positions) \
  X("sequence-needs-tensor", "parallel::sequence cuts rows over the ranks of parallel::tensor, which the mesh lacks",  \
    "add parallel::tensor to the mesh, or leave sequence out", !C::sequence || C::tensor)                              \
  X("pipeline-keeps-gradients",                                                                                        \
    "parallel::zero<2> and zero<3> exchange every micro-batch, which a pipeline's schedule has no place for",          \
    "use parallel::zero<1> beside parallel::pipeline", !C::pipeline || !C::shards_gradients)                           \
  X("tensor-needs-all-reduce",                                                                                         \
    "parallel::tensor needs all_reduce of activations with sum and max, which this communicator lacks",                \
    "use another communicator", !C::tensor || C::shares_layers)                                                        \
  X("context-needs-exchange",                                                                                          \
    "parallel::context needs exchange and the ragged all_to_all, which this communicator lacks",                       \
    "use another communicator", !C::context || (C::hands_on && C::deals))                                              \
  X("pipeline-needs-exchange", "parallel::pipeline needs exchange, which this communicator lacks",                     \
    "use another communicator", !C::pipeline || C::hands_on)                                                           \
  X("expert-needs-all-to-all",                                                                                         \
    "parallel::expert needs ragged all_to_all, all_gather and all_reduce, and this communicator lacks one of them",    \
    "use another communicator", !C::expert || C::deals_experts)                                                        \
  X("zero-3-needs-units", "parallel::zero<3> drops parameters between their uses, but a plain model keeps its own",    \
    "use parallel::zero<2>, or describe the model in units", !C::plain || !C::shards_parameters)                       \
  X("error-feedback-needs-one-exchange",                                                                               \
    "error feedback tells once a step what it left out, but parallel::zero<2> and zero<3> send every micro-batch",     \
    "use parallel::zero<1>", !C::residual || !C::shards_gradients)                                                     \
  X("local-steps-send-no-gradients",                                                                                   \
    "where ranks take steps alone, as in parallel::diloco, no gradients are sent that a compressor could code",        \
    "leave the compressor out", !C::local_steps || C::uncompressed)                                                    \
  X("local-steps-need-whole-samples",                                                                                  \
    "where ranks take steps alone, as in parallel::diloco, parallel::context and expert have nobody to share with",    \
    "use parallel::data or zero beside them", !C::local_steps || !(C::context || C::expert))                           \
  X("collective-compressor-needs-one-exchange",                                                                        \
    "this compressor takes whole gradients once a step, but parallel::zero<2> and zero<3> send every micro-batch",     \
    "use parallel::zero<1>", !C::collective || !C::shards_gradients)                                                   \
  X("collective-compressor-needs-whole-tensors",                                                                       \
    "this compressor works on whole tensors, of which parallel::tensor and parallel::expert give a rank only parts",   \
    "use compression::cast or top_k beside them", !C::collective || !(C::tensor || C::expert))                         \
  X("trainer-needs-votes",                                                                                             \
    "every trainer votes with all_reduce and compares ranks with all_gather, and this communicator lacks one of them", \
    "use another communicator", C::decides)                                                                            \
  X("data-needs-all-reduce", "parallel::data sums gradients with all_reduce, which this communicator lacks for them",  \
    "use another communicator, or compression::top_k, which gathers",                                                  \
    (C::sharded && !C::collective) || C::gatherable || C::reduces)                                                     \
  X("zero-needs-reduce-scatter", "parallel::zero needs reduce_scatter and all_gather, which this communicator lacks",  \
    "use parallel::data or another communicator",                                                                      \
    !C::sharded || (C::publishes && (C::gatherable || C::collective || C::scatters)))                                  \
  X("gathered-needs-all-gather",                                                                                       \
    "this compressor's payloads are collected with all_gather, which this communicator lacks",                         \
    "use a summable compressor such as compression::cast", !C::gatherable || C::sharded || C::gathers)                 \
  X("gathered-zero-needs-all-to-all",                                                                                  \
    "under parallel::zero this compressor's payloads travel by all_to_all, which this communicator lacks",             \
    "use a summable compressor such as compression::cast, or parallel::data",                                          \
    !C::gatherable || !C::sharded || C::trades)

#define TRIREME_RULE_ROW(id, sentence, remedy, condition) compatibility_rule{id, sentence, remedy},
inline constexpr std::array compatibility_rules{TRIREME_COMPATIBILITY_RULES(TRIREME_RULE_ROW)};
#undef TRIREME_RULE_ROW

}  // namespace trireme
