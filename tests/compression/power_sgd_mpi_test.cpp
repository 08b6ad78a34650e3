// test-ranks: 1 2 3
#include "../catch.hpp"
#include "compressed_training.hpp"
#include "trireme/comm/mpi.hpp"

using namespace trireme;

TEST_CASE("trainings with power_sgd learn, and resume bit for bit, over MPI", "[compression][train][mpi]") {
  launch(comm::mpi{}, [](auto& world) {
    parallel::zero<1> const small{.bucket_bytes = 4096};
    CHECK(compressed::learns(world, 0.93, small, compression::power_sgd{.rank = 4}) == "");
    CHECK(compressed::resumes(world, small, compression::power_sgd{.rank = 2}) == "");
  });
}
