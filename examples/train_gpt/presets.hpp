#pragma once

#include <memory>

#include "options.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/trireme.hpp"

/// The policies to choose from at run time. Each precision is compiled in a file of its own.
enum class parallel_preset { data, zero1 };
enum class compression_preset { none, bf16, topk };

struct preset {
  parallel_preset parallel = parallel_preset::data;
  compression_preset compression = compression_preset::none;
};

/// The one place where a choice at run time becomes a type.
template <class Precision, class World>
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_preset(preset chosen, trireme::nn::gpt const& model,
                                                                trireme::optim::adamw const& optimizer, World& world) {
  using namespace trireme;
  auto const with = [&](auto const& parallel) -> std::unique_ptr<any_trainer> {
    auto const make = [&](auto const& compression) {
      return make_any_trainer(model, optimizer, world, parallel, Precision{}, compression);
    };
    switch (chosen.compression) {
      case compression_preset::none:
        return make(compression::none{});
      case compression_preset::bf16:
        return make(compression::cast<bf16>{});
      case compression_preset::topk:
        return make(compression::error_feedback<compression::top_k>{});
    }
    return nullptr;
  };
  return chosen.parallel == parallel_preset::data ? with(parallel::data{}) : with(parallel::zero<1>{});
}

template <class World>
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_fp32(preset, trireme::nn::gpt const&,
                                                              trireme::optim::adamw const&, World&);
template <class World>
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_bf16(preset, trireme::nn::gpt const&,
                                                              trireme::optim::adamw const&, World&);
