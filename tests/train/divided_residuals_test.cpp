// test-timeout: 300
// test-sanitize: none
// Compressors that keep what they have not sent, on another number of ranks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../support/small_gpt.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"

using namespace trireme;
using namespace trireme::compression;
using policy_cases::on_mlp;

namespace {

using codec = one_of<error_feedback<top_k>, error_feedback<quantise<4>>, dgc, power_sgd,
                     by_size<none, error_feedback<compression::sign>>>;
using sums = std::map<std::string, std::vector<double>>;

optim::adamw const inner{.learning_rate = 1e-2, .beta1 = 0};  // dgc applies momentum itself
auto const on_gpt = policy_cases::cases{toy::gpt, toy::text{}, 15};

/// One leg of a run: from its checkpoint, if there is one, to `until`, on so many ranks.
struct leg {
  sums before, after;  // what all ranks together have not sent, of each element
  std::uint64_t begin = 0, end = 0;
  double first_loss = 0, last_loss = 0;
};
template <class Model, class Data, class... Policies>
leg go(policy_cases::cases<Model, Data> const& on, std::string const& folder, int ranks, std::int64_t until,
       Policies const&... policies) {
  leg out;
  std::mutex lock;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(on.model, world, policies...);
    auto const add_to = [&](sums& all) {
      trainer.for_each_state([&](std::string const& name, parameter_info const& info, std::int64_t first, auto view) {
        auto const slash = name.find('/');
        auto const kind = name.substr(0, name.find('.'));
        if (kind != "residual" && kind != "dgc_velocity") return;
        if (!info.is_owner && !info.tied) return;  // a copy
        std::lock_guard const guard(lock);
        auto& whole = all[kind + name.substr(slash)];
        whole.resize(static_cast<std::size_t>(info.whole_extents().size()));
        for_each_run(info, first, view.size(), [&](std::int64_t at, std::int64_t in_part, std::int64_t n) {
          for (std::int64_t i = 0; i < n; ++i)
            whole[static_cast<std::size_t>(at + i)] += static_cast<double>(view[in_part - first + i]);
        });
      });
    };
    if (checkpoint::exists(folder)) trainer.load(folder);
    add_to(out.before);
    auto const begin = trainer.state_hash();
    auto const report = trainer.fit(on.data, on.until(until));
    auto const end = trainer.state_hash();
    add_to(out.after);
    trainer.save(folder);
    if (world.rank() != 0) return;
    out.begin = begin, out.end = end;
    out.first_loss = report.first_loss, out.last_loss = report.last_loss;
  });
  return out;
}

/// The greatest difference beside the greatest number; -1 if they have other tensors, or nothing waits.
double furthest(sums const& one, sums const& other) {
  double worst = 0, greatest = 0;
  if (one.size() != other.size()) return -1;
  for (auto const& [name, values] : one) {
    auto const found = other.find(name);
    if (found == other.end() || found->second.size() != values.size()) return -1;
    for (std::size_t i = 0; i < values.size(); ++i) {
      worst = std::max(worst, std::abs(values[i] - found->second[i]));
      greatest = std::max(greatest, std::abs(values[i]));
    }
  }
  return greatest > 0 ? worst / greatest : -1;
}

/// Legs of a run under a strategy; each begins with the sums with which the last one ended.
template <class Model, class Data, class Parallel, class Codec>
void goes_on(policy_cases::cases<Model, Data> const& on, std::vector<int> const& ranks, Parallel const& how,
             Codec const& with) {
  INFO(describe(with) << " under " << describe(how));
  scratch folder;
  auto last = go(on, folder.path(), ranks.front(), 7, inner, how, with);
  auto const first_loss = last.first_loss;
  std::int64_t until = 7;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    auto next = go(on, folder.path(), ranks[i], until += 8, inner, how, with);
    INFO(ranks[i - 1] << " to " << ranks[i] << " ranks");
    auto const difference = furthest(last.after, next.before);
    CHECK((difference >= 0 && difference < 1e-6));
    if (ranks[i] == ranks[i - 1]) CHECK(next.begin == last.end);
    last = std::move(next);
  }
  CHECK(last.last_loss < first_loss);
}

std::vector<codec> const codecs{codec{error_feedback<top_k>{.inner = {.ratio = 0.1F}}},
                                codec{error_feedback<quantise<4>>{}}, codec{dgc{.ratio = 0.1F, .momentum = 0.5}},
                                codec{power_sgd{.rank = 2}},
                                codec{by_size<none, error_feedback<compression::sign>>{.bytes = 64}}};

}  // namespace

TEST_CASE("what has not been sent yet keeps its sum from 2 to 3 to 1 ranks, and training goes on", "[train]") {
  watchdog const watch("divided residuals");
  for (auto const& with : codecs) goes_on(on_mlp, {2, 3, 3, 1, 2}, parallel::zero<1>{.bucket_bytes = 1024}, with);
}

TEST_CASE("so it does where ranks hold other parts of the model, copies of it, and tied parts", "[train]") {
  watchdog const watch("divided residuals of meshes");
  parallel::mesh const split{parallel::data{.bucket_bytes = 4096}, parallel::tensor{2}};
  parallel::mesh const stages{parallel::data{.bucket_bytes = 4096},
                              parallel::pipeline<schedule::one_f_one_b>{.stages = 2}};
  for (auto const& with : {codecs[0], codecs[3]}) goes_on(on_gpt, {2, 4}, stages, with);
  goes_on(on_gpt, {4, 2}, split, error_feedback<top_k>{.inner = {.ratio = 0.1F}});  // no collective ones there
}
