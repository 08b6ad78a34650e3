#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "trireme/trireme.hpp"

// A small GPT of odd sizes trained under any mesh, and what has become of it as whole tensors on every rank.
namespace strategies {

using namespace trireme;

inline nn::gpt model(double dropout = 0.1) {
  return {.vocabulary = 67, .context = 12, .layers = 5, .heads = 3, .channels = 24, .dropout = dropout};
}

/// Tokens that a small model can learn to continue.
class text_of_numbers {
 public:
  explicit text_of_numbers(std::int64_t samples = 24, std::int64_t context = 12)
      : samples_(samples), context_(context) {
    for (std::int64_t i = 0; i < samples * context; ++i) {
      inputs_.push_back(static_cast<std::int32_t>((i * i + 3 * i) % 67));
      targets_.push_back(static_cast<std::int32_t>(((i + 1) * (i + 1) + 3 * (i + 1)) % 67));
    }
  }
  [[nodiscard]] auto data() const {
    return data::in_memory(tensor_view<std::int32_t const>(inputs_.data(), {samples_, context_}),
                           tensor_view<std::int32_t const>(targets_.data(), {samples_, context_}));
  }

 private:
  std::int64_t samples_, context_;
  std::vector<std::int32_t> inputs_, targets_;
};

struct outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> state;  // whole tensors: values and moments
};

struct plan {
  std::int64_t steps = 20;
  std::int64_t batch = 8;
  std::int64_t micro_batches = 4;
  double clip = 0.5;
  nn::gpt model = strategies::model();
};

/// Trains, and collects the state of all ranks. `shape` gives the names: the outcome of a serial training.
template <class Precision = precision::fp32, class World, class Parallel>
outcome train(World& world, Parallel const& parallel, plan const& what, outcome const* shape = nullptr) {
  text_of_numbers const text(24, what.model.context);
  auto const data = text.data();
  auto trainer =
      make_trainer(what.model, optim::adamw{.learning_rate = 1e-3, .clip = what.clip}, world, parallel, Precision{});
  outcome out;
  trainer.on_step([&](step_report const& done) {
    out.losses.push_back(done.loss);
    out.norms.push_back(done.norm);
  });
  trainer.fit(data, {.steps = what.steps, .batch = what.batch, .micro_batches = what.micro_batches});
  if (shape != nullptr) {
    for (auto const& [name, values] : shape->state) out.state[name].assign(values.size(), 0.0);
  }
  trainer.for_each_state([&](std::string const& name, parameter_info const& part, std::int64_t first, auto view) {
    auto& whole = out.state[name];
    if (shape == nullptr) whole.resize(static_cast<std::size_t>(part.whole_extents().size()));
    for_each_run(part, first, view.size(), [&](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i)
        whole.at(static_cast<std::size_t>(in_whole + i)) += static_cast<double>(view[in_part - first + i]);
    });
  });
  for (auto& [name, values] : out.state) world.all_reduce(tensor_view<double>(values), reduction::sum{});
  return out;
}

/// How far two trainings are apart, relative: the worst loss, the worst norm, and all values together.
struct distance {
  double loss = 0, norm = 0, values = 0;
};
inline distance between(outcome const& a, outcome const& b) {
  distance far;
  auto const relative = [](double x, double y) { return std::abs(x - y) / std::max(1e-12, std::abs(y)); };
  for (std::size_t s = 0; s < b.losses.size(); ++s) {
    far.loss = std::max(far.loss, relative(a.losses.at(s), b.losses[s]));
    far.norm = std::max(far.norm, relative(a.norms.at(s), b.norms[s]));
  }
  double apart = 0;
  double all = 0;
  for (auto const& [name, values] : b.state) {
    auto const& ours = a.state.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      apart += (ours.at(i) - values[i]) * (ours[i] - values[i]);
      all += values[i] * values[i];
    }
  }
  far.values = std::sqrt(apart / all);
  return far;
}

inline void check_near(distance const& far, double most) {
  CHECK(far.loss < most);
  CHECK(far.norm < most);
  CHECK(far.values < most);
}
/// That a training on so many threads ends where the serial one has.
template <class Precision = precision::fp32, class Parallel>
void check_on_threads(int ranks, Parallel const& parallel, plan const& what, outcome const& serial, double most) {
  distance far;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto const out = train<Precision>(world, parallel, what, &serial);
    if (world.rank() == 0) far = between(out, serial);
  });
  check_near(far, most);
}

/// Degrees of the axes of one replica; each has one way if not given.
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
  if (ranks == 2) {  // seven units: two chunks a stage
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

}  // namespace strategies
