// test-timeout: 300
#include "policies.hpp"

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/mpi.hpp"

// The tests of policies_test.cpp with MPI; both must end in the same state.

using namespace trireme;

namespace {

template <class Cases, class... Policies>
void same_by_mpi(std::string const& name, Cases const& cases, double part, Policies const&... policies) {
  launch(comm::decorate(comm::mpi{}, comm::counted{}), [&](auto& world) {
    std::uint64_t by_mpi = 0;
    INFO(name << " on rank " << world.rank() << " of " << world.size());
    CHECK(cases.holds(world, part, by_mpi, policies...) == "");
    if (world.rank() == 0) CHECK(by_mpi == cases.state_by_threads(world.size(), policies...));
  });
}

}  // namespace

TEST_CASE("each policy has the memory and the result by MPI that it has by threads", "[train][policies][mpi]") {
  watchdog guard("policies by MPI", std::chrono::seconds(280));
  run_states::for_each_policy(
      [&](std::string const& name, auto const& cases, run_states::elsewhere, auto const&... policies) {
        guard.now(name);
        same_by_mpi(name, cases, 0.8, policies...);
      });
  int ranks = 0;
  launch(comm::mpi{}, [&](auto& world) { ranks = world.size(); });
  if (ranks % 2 == 0) {
    guard.now("diloco on a mesh");
    same_by_mpi("diloco on a mesh", run_states::on_gpt, 0.97, run_states::adaptive,
                parallel::mesh{parallel::diloco{.period = 3, .bucket_bytes = 4096}, parallel::tensor{2}});
  }
}
