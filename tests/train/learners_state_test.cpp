// test-sanitize: none
// Learners of several ranks learn with each compressor, resume bit for bit, send and hold what is planned, and move to
// other numbers of ranks. learners_test.cpp compares them with learners of one rank each.
#include <chrono>
#include <cstdint>
#include <string>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/diloco.hpp"

using namespace trireme;
using namespace trireme::compression;
using policy_cases::on_mlp;

namespace {

using codec = one_of<none, error_feedback<top_k>, error_feedback<quantise<2>>, quantise<8>, power_sgd, dgc>;

optim::adamw const adaptive{.learning_rate = 1e-2, .clip = 0.5};
parallel::diloco const nesterov{.period = 5, .bucket_bytes = 2048, .ways = 2};
parallel::diloco const averaged{
    .period = 3, .outer_learning_rate = 1, .outer_momentum = 0, .bucket_bytes = 2048, .ways = 2};
parallel::diloco const streamed{.period = 6, .bucket_bytes = 2048, .fragments = 3, .delay = 4, .ways = 2};
codec const two_bits{error_feedback<quantise<2>>{{.rounding = code_rounding::nearest}}};
codec const sparse{error_feedback<top_k>{.inner = {.ratio = 0.1F}, .decay = 0.95F}};

template <class Inner>
auto mesh_of(parallel::diloco const& outer) {
  return parallel::mesh{outer, Inner{.bucket_bytes = 2048}};
}

/// Saved after 7 steps of some ranks, loaded by others.
template <class Mesh>
std::uint64_t state_after_loading(int from, int to, Mesh const& mesh, codec const& with, std::string& problem) {
  scratch folder;
  std::uint64_t saved = 0, loaded = 0;
  launch(policy_cases::counting_threads(from), [&](auto& world) {
    auto trainer = make_trainer(on_mlp.model, adaptive, world, mesh, with);
    trainer.fit(on_mlp.data, on_mlp.until(7));
    trainer.save(folder.path());
    auto const hash = trainer.state_hash();
    if (world.rank() == 0) saved = hash;
  });
  launch(policy_cases::counting_threads(to), [&](auto& world) {
    auto trainer = make_trainer(on_mlp.model, adaptive, world, mesh, with);
    auto const why = sentence_of([&] { trainer.load(folder.path()); });
    auto const hash = trainer.state_hash();
    if (why.empty()) trainer.fit(on_mlp.data, on_mlp.until(16));
    if (world.rank() == 0) loaded = hash, problem = why;
  });
  return saved == loaded ? loaded : 0;
}

template <class Inner>
void check(watchdog& guard) {
  struct run {
    parallel::diloco how;
    codec with;
  };
  for (auto const& [how, with] :
       {run{nesterov, {none{}}}, run{nesterov, {quantise<8>{}}}, run{averaged, {power_sgd{.rank = 2}}},
        run{averaged, sparse}, run{averaged, two_bits}, run{averaged, {dgc{.ratio = 0.1F, .momentum = 0.5}}},
        run{streamed, {none{}}}, run{streamed, sparse}}) {
    guard.now(describe(with));
    INFO(describe(mesh_of<Inner>(how)) << ", " << describe(with));
    CHECK(on_mlp.holds_by_threads(4, 0.95, adaptive, mesh_of<Inner>(how), with) == "");
    std::string problem;
    for (int const to : {2, 6}) {
      CHECK(state_after_loading(4, to, mesh_of<Inner>(how), with, problem) != 0);
      CHECK(problem == "");
    }
  }
}

}  // namespace

TEST_CASE("learners of several ranks resume and move bit for bit, and send what is planned", "[train][learners]") {
  watchdog guard("learners go on", std::chrono::seconds(240));
  SECTION("that share steps") { check<parallel::data>(guard); }
  SECTION("that shard gradients") { check<parallel::zero<2>>(guard); }
}

TEST_CASE("another number of learners is refused", "[train][learners]") {
  auto three = averaged;
  three.ways = 3;
  scratch folder;
  launch(policy_cases::counting_threads(4), [&](auto& world) {
    auto trainer = make_trainer(on_mlp.model, adaptive, world, mesh_of<parallel::data>(averaged), codec{none{}});
    trainer.fit(on_mlp.data, on_mlp.until(2));
    trainer.save(folder.path());
  });
  launch(policy_cases::counting_threads(3), [&](auto& world) {
    auto trainer = make_trainer(on_mlp.model, adaptive, world, mesh_of<parallel::data>(three), codec{none{}});
    CHECK(contains(sentence_of([&] { trainer.load(folder.path()); }), "is of 2 learners, and this run has 3"));
  });
}
