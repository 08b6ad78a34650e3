#pragma once

#include <string>
#include <utility>

#include "../support/training.hpp"
#include "trireme/trireme.hpp"

// Meshes for worlds of 1 to 8 ranks, and the training that must be the same under all of them.
namespace meshes {

using namespace trireme;

/// Seven units: two chunks for each of two stages, and more.
inline nn::gpt const model = toy::with_layers(5);
inline auto const twenty_steps = toy::of_gpt({.steps = 20, .batch = 8, .micro_batches = 4}, model, 24);
inline optim::adamw const clipped{.learning_rate = 1e-3, .clip = 0.5};

/// Degrees of the axes of one replica, 1 by default.
struct degrees {
  int context = 1;
  int tensor = 1;
  bool sequence = false;
  parallel::context_method method = parallel::context_method::ring;
};

/// Every axis with its degree given at run time: four types for all meshes.
template <class Data>
auto any(Data data, int ways, int stages, std::string schedule, degrees const& of = {}) {
  data.ways = ways;
  data.bucket_bytes = 1 << 12;
  return parallel::mesh{data, parallel::any_pipeline{.schedule = std::move(schedule), .stages = stages},
                        parallel::context{.ways = of.context, .method = of.method}, parallel::tensor{.ways = of.tensor},
                        parallel::sequence{.ways = of.sequence ? 0 : 1}};
}
template <class Data>
auto without_pipeline(Data data, int ways, degrees const& of = {}) {
  data.ways = ways;
  data.bucket_bytes = 1 << 12;
  return parallel::mesh{data, parallel::context{.ways = of.context, .method = of.method},
                        parallel::tensor{.ways = of.tensor}, parallel::sequence{.ways = of.sequence ? 0 : 1}};
}

/// Calls f(name, policy) for each mesh of a world of this size.
template <class F>
void for_each_mesh(int ranks, F&& f) {
  using parallel::zero;
  auto const n = text(ranks);
  f("data=" + n, any(parallel::data{}, ranks, 1, "1f1b"));
  f("zero1=" + n, any(zero<1>{}, ranks, 1, "1f1b"));
  f("zero2=" + n, without_pipeline(zero<2>{}, ranks));
  f("zero3=" + n, without_pipeline(zero<3>{}, ranks));
  if (ranks == 1) return;
  if (ranks <= 3) {  // heads, and a context of 12
    f("context=" + n, any(parallel::data{}, 1, 1, "1f1b", {.context = ranks}));
    f("context:all_to_all=" + n,
      any(parallel::data{}, 1, 1, "1f1b", {.context = ranks, .method = parallel::context_method::all_to_all}));
    f("tensor=" + n, any(parallel::data{}, 1, 1, "1f1b", {.tensor = ranks}));
    f("tensor and sequence=" + n, any(parallel::data{}, 1, 1, "1f1b", {.tensor = ranks, .sequence = true}));
  }
  if (ranks <= 4) {
    for (char const* schedule : {"gpipe", "1f1b", "zbh1"})
      f(text("pipeline=", ranks, ":", schedule), any(parallel::data{}, 1, ranks, schedule));
  }
  if (ranks == 2) {  // seven units: two chunks per stage
    for (char const* schedule : {"interleaved", "zbv", "dualpipe", "dualpipev"})
      f(text("pipeline=2:", schedule), any(parallel::data{}, 1, 2, schedule));
  }
  if (ranks == 4) {
    f("data=2,tensor=2", any(parallel::data{}, 2, 1, "1f1b", {.tensor = 2}));
    f("zero1=2,tensor=2 and sequence", any(zero<1>{}, 2, 1, "1f1b", {.tensor = 2, .sequence = true}));
    f("zero2=2,tensor=2", without_pipeline(zero<2>{}, 2, {.tensor = 2}));
    f("zero3=2,tensor=2 and sequence", without_pipeline(zero<3>{}, 2, {.tensor = 2, .sequence = true}));
    f("data=2,pipeline=2:1f1b", any(parallel::data{}, 2, 2, "1f1b"));
    f("zero1=2,pipeline=2:zbv", any(zero<1>{}, 2, 2, "zbv"));
    f("data=2,context=2", any(parallel::data{}, 2, 1, "1f1b", {.context = 2}));
    f("zero3=2,context:all_to_all=2",
      without_pipeline(zero<3>{}, 2, {.context = 2, .method = parallel::context_method::all_to_all}));
    f("pipeline=2,context=2", any(parallel::data{}, 1, 2, "1f1b", {.context = 2}));
    f("context=2,tensor=2 and sequence",
      any(parallel::data{}, 1, 1, "1f1b", {.context = 2, .tensor = 2, .sequence = true}));
    f("pipeline=2,tensor=2", any(parallel::data{}, 1, 2, "1f1b", {.tensor = 2}));
  }
  if (ranks == 8) {
    f("data=2,pipeline=2,tensor=2", any(parallel::data{}, 2, 2, "1f1b", {.tensor = 2}));
    f("zero1=2,pipeline=2:zbh1,tensor=2 and sequence", any(zero<1>{}, 2, 2, "zbh1", {.tensor = 2, .sequence = true}));
    f("zero1=2,pipeline=2:dualpipe,tensor=2", any(zero<1>{}, 2, 2, "dualpipe", {.tensor = 2}));
    f("zero1=2,context=2,tensor=2", any(zero<1>{}, 2, 1, "1f1b", {.context = 2, .tensor = 2}));
    f("zero2=2,context=2,tensor=2 and sequence",
      without_pipeline(zero<2>{}, 2, {.context = 2, .tensor = 2, .sequence = true}));
    f("pipeline=2:zbv,context=2,tensor=2", any(parallel::data{}, 1, 2, "zbv", {.context = 2, .tensor = 2}));
    f("zero3=4,tensor=2", without_pipeline(zero<3>{}, 4, {.tensor = 2}));
  }
}

}  // namespace meshes
