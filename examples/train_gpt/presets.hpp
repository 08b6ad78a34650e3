#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "model_choice.hpp"
#include "optimizer_choice.hpp"
#include "parallel_choice.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/trireme.hpp"

enum class compression_preset { none, bf16, int8, int4, int2, sign, random_k, top_k, top_k_sampled, dgc, power_sgd };
/// Their names on the command line, in this order.
inline std::vector<std::string> const compression_names{
    "none", "bf16", "int8", "int4", "int2", "sign", "random_k", "top_k", "top_k_sampled", "dgc", "power_sgd"};

/// The policies that can be chosen at run time. Each precision is compiled in a file of its own.
struct preset {
  parallel_choice parallel;
  compression_preset compression;
  bool tf32 = false;  ///< products of float on a GPU

  preset(parallel_choice what, compression_preset on_the_wire) : parallel(std::move(what)), compression(on_the_wire) {
    if (on_the_wire == compression_preset::none) return;
    using axis = parallel_choice::splits_samples;
    if (parallel.cuts_nothing() && (parallel.samples() <= axis::zero1 || parallel.samples() == axis::diloco)) return;
    throw trireme::config_error(
        "--compression works only with --parallel data, zero1 or diloco; leave it out with others");
  }
};

/// The only place where a run-time choice selects a type. All meshes with the same data-like axis share a type, and so
/// do all lossy compressors.
template <class Precision, class Space = trireme::host>
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_preset(preset const& chosen, language_model const& model,
                                                                optimizer_choice const& optimizer,
                                                                trireme::comm::any_world& world,
                                                                Precision const& precision = {}) {
  using namespace trireme;
  using axis = parallel_choice::splits_samples;
  auto const& split = chosen.parallel;
  auto const updates = optimizer.any<environment<Precision, Space>>();
  auto const make = [&](auto const& policy, auto const& compression) -> std::unique_ptr<any_trainer> {
    if constexpr (std::is_same_v<Space, host>)
      return make_any_trainer(model, updates, world, policy, precision, compression);
    else
      return make_any_trainer_in<Space>(world, model, updates, policy, precision, compression);
  };
  auto const lossless = [&]<class Axis>(std::type_identity<Axis>) {
    return make(split.mesh<Axis>(), compression::none{});
  };
  auto const lossy = [&]<class Axis>(std::type_identity<Axis>) {
    namespace c = compression;
    using int2 = c::error_feedback<c::quantise<2>>;
    c::one_of<c::cast<bf16>, c::quantise<8>, c::quantise<4>, int2, c::error_feedback<c::sign>,
              c::error_feedback<c::random_k>, c::error_feedback<c::top_k>, c::error_feedback<c::top_k_sampled>, c::dgc,
              c::power_sgd>
        any;
    switch (chosen.compression) {
      case compression_preset::none:
      case compression_preset::bf16:
        break;
      case compression_preset::int8:
        any.chosen = c::quantise<8>{};
        break;
      case compression_preset::int4:
        any.chosen = c::quantise<4>{};
        break;
      case compression_preset::int2:
        any.chosen = int2{.inner = {.rounding = c::code_rounding::nearest}};
        break;
      case compression_preset::sign:
        any.chosen = c::error_feedback<c::sign>{};
        break;
      case compression_preset::random_k:
        any.chosen = c::error_feedback<c::random_k>{};
        break;
      case compression_preset::top_k:
        any.chosen = c::error_feedback<c::top_k>{};
        break;
      case compression_preset::top_k_sampled:
        any.chosen = c::error_feedback<c::top_k_sampled>{};
        break;
      case compression_preset::dgc:
        any.chosen = c::dgc{};
        break;
      case compression_preset::power_sgd:
        any.chosen = c::power_sgd{};
        break;
    }
    auto policy = split.data_axis<Axis>();
    if constexpr (requires { policy.outer_momentum; }) {
      // SparseLoCo: what keeps a residual takes the place of outer momentum.
      if (chosen.compression > compression_preset::int4) policy.outer_learning_rate = 1, policy.outer_momentum = 0;
      return make(parallel::mesh{policy, split.data_axis<parallel::zero<1>>()}, any);
    } else {
      return make(policy, any);
    }
  };
  auto const with = [&]<class Axis>(std::type_identity<Axis> which) {
    return chosen.compression == compression_preset::none ? lossless(which) : lossy(which);
  };
  switch (split.samples()) {
    case axis::data:
      return with(std::type_identity<parallel::data>{});
    case axis::zero1:
      return with(std::type_identity<parallel::zero<1>>{});
    case axis::zero2:
      return lossless(std::type_identity<parallel::zero<2>>{});
    case axis::zero3:
      return lossless(std::type_identity<parallel::zero<3>>{});
    case axis::diloco:
      return with(std::type_identity<parallel::diloco>{});
    case axis::parameter_server:
      return lossless(std::type_identity<parallel::parameter_server>{});
  }
  return nullptr;
}

[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_fp32(preset const&, language_model const&,
                                                              optimizer_choice const&, trireme::comm::any_world&);
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_bf16(preset const&, language_model const&,
                                                              optimizer_choice const&, trireme::comm::any_world&);
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_fp16(preset const&, language_model const&,
                                                              optimizer_choice const&, trireme::comm::any_world&);
/// fp8, mxfp8 or nvfp4.
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_rounded(std::string const& format, preset const&,
                                                                 language_model const&, optimizer_choice const&,
                                                                 trireme::comm::any_world&);
