// test-timeout: 200
#include "averaging.hpp"
#include "fp8.hpp"
#include "scaled.hpp"
#include "sign.hpp"
#include "whitened.hpp"

#include "../catch.hpp"
#include "../support/policy_cases.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/mpi.hpp"

// Policies of a user's own by MPI: they learn, go on bit for bit, send and hold what is planned, and end as by threads.

using namespace trireme;

namespace {

template <class... Policies>
void same_by_mpi(std::string const& name, Policies const&... policies) {
  watchdog const guard(name);
  launch(comm::decorate(comm::mpi{}, comm::counted{}), [&](auto& world) {
    std::uint64_t by_mpi = 0;
    INFO(name << " on rank " << world.rank() << " of " << world.size());
    CHECK(policy_cases::on_mlp.holds(world, 0.7, by_mpi, policies...) == "");
    if (world.rank() == 0) CHECK(by_mpi == policy_cases::on_mlp.state_by_threads(world.size(), policies...));
  });
}

}  // namespace

TEST_CASE("a user's policies train equally by MPI and by threads", "[policies][mpi]") {
  optim::adamw const adaptive{.learning_rate = 1e-2};
  same_by_mpi("sign", adaptive, user::sign{});
  same_by_mpi("averaging", adaptive, user::averaging{});
  same_by_mpi("scaled", adaptive, user::scaled{});
  same_by_mpi("fp8", adaptive, user::fp8{});
  same_by_mpi("whitened", user::whitened{.learning_rate = 1e-2}, parallel::zero<2>{.bucket_bytes = 4096});
}
