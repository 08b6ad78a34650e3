// test-timeout: 300
// test-sanitize: none
#include "policies.hpp"

#include "../catch.hpp"
#include "../watchdog.hpp"

// With MPI: policies_mpi_test.cpp. As programs, killed and resumed: train_gpt/policies_test.py and optimizers_test.py.

using namespace trireme;
using run_states::elsewhere;

TEST_CASE("each policy learns, resumes bit for bit and equals its plan on 1 to 4 threads; it changes ranks or refuses",
          "[train][policies]") {
  watchdog guard("policies", std::chrono::seconds(280));
  run_states::for_each_policy(
      [&](std::string const& name, auto const& cases, elsewhere moves, auto const&... policies) {
        for (int const ranks : {1, 2, 3, 4}) {
          guard.now(text(name, " on ", ranks, " ranks"));
          INFO(name << " on " << ranks << " ranks");
          CHECK(cases.holds_by_threads(ranks, 0.8, policies...) == "");
        }
        for (auto const move : {policy_cases::move_of_ranks{2, 3}, policy_cases::move_of_ranks{4, 1}}) {
          guard.now(text(name, " from ", move.from, " to ", move.to, " ranks"));
          INFO(name << " from " << move.from << " to " << move.to << " ranks");
          auto const found = cases.moves(move, policies...);
          if (moves == elsewhere::goes_on) CHECK(found == "");
          if (moves == elsewhere::is_refused)
            CHECK(contains(found, text("is of ", move.from, " learners, and this run has ", move.to)));
        }
      });
}

TEST_CASE("diloco on a mesh resumes bit for bit and equals its plan", "[train][policies]") {
  watchdog const guard("diloco on a mesh");
  parallel::mesh const mesh{parallel::diloco{.period = 3, .bucket_bytes = 4096}, parallel::tensor{2}};
  using sparse = compression::error_feedback<compression::top_k>;
  using codec = compression::one_of<compression::none, sparse, compression::quantise<4>>;
  for (codec const& with :
       {codec{compression::none{}}, codec{sparse{{.ratio = 0.2F}}}, codec{compression::quantise<4>{}}}) {
    for (int const ranks : {2, 4}) {
      INFO(ranks << " ranks, " << describe(with));
      CHECK(run_states::on_gpt.holds_by_threads(ranks, 0.97, run_states::adaptive, mesh, with) == "");
    }
  }
  CHECK(contains(run_states::on_gpt.moves({2, 4}, run_states::adaptive, mesh, codec{}),
                 "is of 1 learner, and this run has 2"));
}
