#pragma once

#include <memory>
#include <utility>

#include "optimizer_choice.hpp"
#include "parallel_choice.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/trireme.hpp"

enum class compression_preset { none, bf16, topk };

/// The policies to choose from at run time. Each precision is compiled in a file of its own.
struct preset {
  parallel_choice parallel;
  compression_preset compression;

  preset(parallel_choice what, compression_preset on_the_wire) : parallel(std::move(what)), compression(on_the_wire) {
    if (on_the_wire == compression_preset::none) return;
    if (parallel.cuts_nothing() && parallel.samples() <= parallel_choice::splits_samples::zero1) return;
    throw trireme::config_error("--compression goes with --parallel data or zero1 alone; leave it out beside others");
  }
};

/// The one place where a choice at run time becomes a type. One type serves all meshes with the same data-like axis.
template <class Precision, class World>
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_preset(preset const& chosen, trireme::nn::gpt const& model,
                                                                optimizer_choice const& optimizer, World& world) {
  using namespace trireme;
  using axis = parallel_choice::splits_samples;
  auto const& split = chosen.parallel;
  auto const updates = optimizer.any<environment<Precision>>();
  auto const make = [&](auto const& policy, auto const& compression) -> std::unique_ptr<any_trainer> {
    return make_any_trainer(model, updates, world, policy, Precision{}, compression);
  };
  auto const uncut = [&](auto const& policy) {
    if (chosen.compression == compression_preset::bf16) return make(policy, compression::cast<bf16>{});
    if (chosen.compression == compression_preset::topk) {
      return make(policy, compression::error_feedback<compression::top_k>{});
    }
    return make(policy, compression::none{});
  };
  auto const with = [&]<class Axis>(Axis const&) {
    return split.cuts_nothing() ? uncut(split.data_axis<Axis>()) : make(split.mesh<Axis>(), compression::none{});
  };
  switch (split.samples()) {
    case axis::data:
      return with(parallel::data{});
    case axis::zero1:
      return with(parallel::zero<1>{});
    case axis::zero2:
      return make(split.mesh<parallel::zero<2>>(), compression::none{});
    case axis::zero3:
      return make(split.mesh<parallel::zero<3>>(), compression::none{});
  }
  return nullptr;
}

template <class World>
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_fp32(preset const&, trireme::nn::gpt const&,
                                                              optimizer_choice const&, World&);
template <class World>
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_bf16(preset const&, trireme::nn::gpt const&,
                                                              optimizer_choice const&, World&);
