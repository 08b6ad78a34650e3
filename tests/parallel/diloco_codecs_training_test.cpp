// test-sanitize: none
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/diloco.hpp"

// Trainers whose outer steps are compressed: one is compiled, and its compressor is chosen at run time.

using namespace trireme;
using namespace trireme::compression;
using policy_cases::on_mlp;

namespace {

using codec = one_of<none, error_feedback<top_k>, error_feedback<quantise<2>>, quantise<8>, cast<bf16>,
                     error_feedback<random_k>, power_sgd, dgc>;
using inner_optimizer = optim::any<environment<precision::fp32>>;

error_feedback<quantise<2>> const two_bits{{.rounding = code_rounding::nearest}};
inner_optimizer const adaptive{optim::adamw{.learning_rate = 1e-2, .clip = 0.5}};

}  // namespace

TEST_CASE("diloco learns with each compressor and in fragments, resumes bit for bit and sends what is planned",
          "[parallel][diloco]") {
  watchdog guard("diloco with compressors", std::chrono::seconds(240));
  parallel::diloco const nesterov{.period = 5, .bucket_bytes = 2048};
  parallel::diloco const averaged{.period = 3, .outer_learning_rate = 1, .outer_momentum = 0, .bucket_bytes = 2048};
  parallel::diloco const streamed{.period = 6, .bucket_bytes = 2048, .fragments = 3, .delay = 4};
  inner_optimizer const muon{optim::muon{.clip = 0.5, .rest = {.learning_rate = 1e-2}}};
  struct run {
    parallel::diloco how;
    inner_optimizer inner;
    codec with;
  };
  for (auto const& [how, inner, with] :
       {run{nesterov, adaptive, {none{}}}, run{nesterov, adaptive, {quantise<8>{}}},
        run{nesterov, adaptive, {cast<bf16>{}}}, run{averaged, adaptive, {power_sgd{.rank = 2}}},
        run{averaged, adaptive, {error_feedback<top_k>{.inner = {.ratio = 0.1F}, .decay = 0.95F}}},
        run{averaged, muon, {two_bits}}, run{averaged, adaptive, {error_feedback<random_k>{{.ratio = 0.2F}}}},
        run{averaged, adaptive, {dgc{.ratio = 0.1F, .momentum = 0.5}}}, run{streamed, adaptive, {none{}}},
        run{streamed, adaptive, {power_sgd{.rank = 2}}},
        run{streamed, adaptive, {error_feedback<top_k>{.inner = {.ratio = 0.1F}}}}}) {
    for (int const ranks : {1, 3}) {
      guard.now(text(describe(with), " on ", ranks, " ranks"));
      INFO(describe(with) << " on " << ranks << " ranks");
      CHECK(on_mlp.holds_by_threads(ranks, 0.95, inner, how, with) == "");
    }
  }
  CHECK(contains(on_mlp.moves({2, 3}, adaptive, averaged, codec{error_feedback<top_k>{}}),
                 "is of 2 learners, and this run has 3"));
  CHECK(contains(sentence_of([&] { static_cast<void>(on_mlp.state_by_threads(2, adaptive, nesterov, codec{dgc{}})); }),
                 "has a momentum of 0.9, too; use it with optim::sgd{.momentum = 0} (in parallel::diloco with "
                 ".outer_momentum = 0)"));
}
