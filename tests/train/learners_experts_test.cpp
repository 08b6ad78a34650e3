// test-sanitize: none
// As learners_test.cpp, with experts distributed over the ranks of a learner.
#include "trireme/parallel/expert.hpp"

#include "../watchdog.hpp"
#include "expert_cases.hpp"
#include "trireme/parallel/diloco.hpp"

using namespace trireme;

TEST_CASE("learners that distribute experts train as learners of one rank each", "[train][learners]") {
  watchdog const guard("learners with experts");
  auto const training = expert_cases::twenty_steps(8);
  auto const on = [&](int ways, int experts) {
    return training
        .on(2 * ways * experts, toy::steady,
            parallel::mesh{parallel::diloco{.period = 3, .ways = 2},
                           parallel::zero<1>{.bucket_bytes = 1 << 12, .ways = ways}, parallel::expert{.ways = experts}})
        .front();
  };
  auto const alone = on(1, 1);
  for (auto const& [ways, experts] : {std::pair{1, 2}, std::pair{1, 3}, std::pair{2, 2}}) {
    INFO(ways << " times " << experts << " ranks a learner");
    toy::check_near(on(ways, experts), alone, 1e-5);
  }
}
