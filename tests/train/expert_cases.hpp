#pragma once

#include <string>
#include <utility>

#include "meshes.hpp"

// A small GPT with experts on the meshes that distribute them.
namespace expert_cases {

using namespace trireme;

/// Five experts, which are distributed unevenly over two to four ranks. If two trainings choose different experts they
/// differ by more than rounding: with these sizes and tokens no two experts of a token are so close that rounding
/// decides within 20 steps.
inline nn::gpt const model = [] {
  auto what = toy::gpt;
  what.experts = 5;
  return what;
}();
/// As many micro-batches as a step has samples; ranks may have different numbers of them.
inline auto twenty_steps(std::int64_t batch, nn::gpt const& what = model) {
  return toy::of_gpt({.steps = 20, .batch = batch, .micro_batches = batch}, what, 24);
}
using meshes::clipped;

template <class Data>
auto dealt(Data data, int ways, int experts) {
  data.ways = ways;
  data.bucket_bytes = 1 << 12;
  return parallel::mesh{data, parallel::expert{.ways = experts}};
}
template <class Data>
auto with_stages(Data data, int ways, int stages, std::string schedule, int experts) {
  data.ways = ways;
  data.bucket_bytes = 1 << 12;
  return parallel::mesh{data, parallel::any_pipeline{.schedule = std::move(schedule), .stages = stages},
                        parallel::expert{.ways = experts}};
}

/// Calls f(name, policy) for each mesh of a world of this size.
template <class F>
void for_each_mesh(int ranks, F&& f) {
  using parallel::zero;
  f(text("expert=", ranks), dealt(parallel::data{}, 1, ranks));
  if (ranks == 2) f(std::string("expert alone"), parallel::expert{});
  if (ranks != 4) return;
  f(std::string("data=2,expert=2"), dealt(parallel::data{}, 2, 2));
  f(std::string("expert=2,data=2"), parallel::mesh{parallel::expert{.ways = 2}, parallel::data{.ways = 2}});
  f(std::string("zero1=2,expert=2"), dealt(zero<1>{}, 2, 2));
  f(std::string("zero2=2,expert=2"), dealt(zero<2>{}, 2, 2));
  f(std::string("zero3=2,expert=2"), dealt(zero<3>{}, 2, 2));
  f(std::string("expert=2,tensor=2"), parallel::mesh{parallel::expert{.ways = 2}, parallel::tensor{.ways = 2}});
  f(std::string("expert=2,tensor=2 and sequence"),
    parallel::mesh{parallel::expert{.ways = 2}, parallel::tensor{.ways = 2}, parallel::sequence{}});
  f(std::string("expert=2,context=2"), parallel::mesh{parallel::expert{.ways = 2}, parallel::context{.ways = 2}});
  f(std::string("pipeline=2:1f1b,expert=2"), with_stages(parallel::data{}, 1, 2, "1f1b", 2));
  f(std::string("pipeline=2:zbv,expert=2"), with_stages(zero<1>{}, 1, 2, "zbv", 2));
}

}  // namespace expert_cases
