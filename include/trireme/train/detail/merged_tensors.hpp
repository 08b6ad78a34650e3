#pragma once

#include <span>
#include <string>

#include "trireme/core/shape.hpp"
#include "trireme/train/detail/whole_tensors.hpp"

namespace trireme::detail {

/// Collective. Calls f(name, values) on the first rank with each tensor of a trainer's model, whole, under the names of
/// its files; low-rank changes are merged into their weights.
template <class Trainer, class F>
void for_each_merged_tensor(Trainer& trainer, F const& f) {
  auto const& model = trainer.described_model();
  bool const writes = trainer.world().rank() == 0;
  auto put = [&] {
    if constexpr (requires { model.merged(f); }) {
      return model.merged(f);
    } else {
      return f;
    }
  }();
  for_each_whole_tensor(trainer.exchange(), [&](std::string const& name, shape const&, std::span<float const> values) {
    if (writes) put(name, values);
  });
}

}  // namespace trireme::detail
