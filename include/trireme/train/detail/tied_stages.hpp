#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "trireme/contract/model.hpp"
#include "trireme/parallel/pipeline.hpp"

namespace trireme::detail {

/// A tensor that several stages of a pipeline use.
struct tied_tensor {
  std::string name;
  std::vector<int> stages;  ///< ascending
};

/// The tensors that several stages use: a token table at both ends, and, where each part of the model lies on two
/// stages, all of them. In the order in which the model lists them.
template <class Env, staged_model Model>
[[nodiscard]] std::vector<tied_tensor> tied_tensors(Model const& model, parallel::pipeline_seat const& seat) {
  std::map<std::string, std::vector<int>> users;
  std::vector<std::string> order;
  std::int64_t unit = 0;
  auto where = seat.where;
  where.micro_batches = 2;  // of which one enters at each end, where they enter at both
  auto const note = [&]<class Description>(Description const& description) {
    int part = 0;
    while (unit >= seat.cuts[static_cast<std::size_t>(part) + 1]) ++part;
    ++unit;
    boxed_unit<Env, Description> box(description);
    for (auto const* const use : box.parameters()) {
      auto& stages = users[use->info.name];
      if (stages.empty()) order.push_back(use->info.name);
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        int const stage = where.stage_of(part, micro_batch);
        auto const at = std::lower_bound(stages.begin(), stages.end(), stage);
        if (at == stages.end() || *at != stage) stages.insert(at, stage);
      }
    }
  };
  model.units(note);
  std::vector<tied_tensor> tied;
  for (auto const& name : order) {
    auto& stages = users[name];
    if (stages.size() > 1) tied.push_back({name, stages});
  }
  return tied;
}

}  // namespace trireme::detail
