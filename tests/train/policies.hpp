#pragma once

#include <string>
#include <utility>

#include "../support/policy_cases.hpp"
#include "../support/small_gpt.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/precision/fp16.hpp"

// The library's policies with run states, and all optimizers: properties that each has on every communicator.
namespace run_states {

using namespace trireme;
using policy_cases::on_mlp;

inline auto const on_gpt = policy_cases::cases{toy::gpt, toy::text{}, 15};
inline optim::adamw const adaptive{.learning_rate = 1e-2, .clip = 0.5};

/// The part of a run on another number of ranks.
enum class elsewhere { goes_on, is_refused };

/// Calls f(name, cases, elsewhere, policies...) for each.
template <class F>
void for_each_policy(F&& f) {
  f("power_sgd", on_mlp, elsewhere::goes_on, adaptive, parallel::zero<1>{.bucket_bytes = 4096},
    compression::power_sgd{.rank = 2});
  f("fp16", on_mlp, elsewhere::goes_on, adaptive, parallel::zero<2>{.bucket_bytes = 4096},
    precision::fp16{.growth_steps = 6});
  f("diloco", on_mlp, elsewhere::is_refused, adaptive, parallel::diloco{.period = 5, .bucket_bytes = 4096});
  f("a synchronous server", on_mlp, elsewhere::goes_on, adaptive, parallel::parameter_server{.bucket_bytes = 4096});
  f("a stale server", on_mlp, elsewhere::goes_on, adaptive,
    parallel::parameter_server{.staleness = 2, .bucket_bytes = 4096});
  using optimizer = optim::any<environment<precision::fp32>>;
  std::pair<char const*, optimizer> const optimizers[] = {
      {"adamw", adaptive},
      {"sgd", optim::sgd{.learning_rate = 0.05, .clip = 0.5}},
      {"lamb", optim::lamb{.learning_rate = 2e-2, .clip = 0.5}},
      {"muon", optim::muon{.clip = 0.5, .rest = {.learning_rate = 1e-2}}},
      {"adafactor", optim::adafactor{.learning_rate = 5e-2, .momentum = 0.9}},
      {"groups, some frozen",
       optim::groups{adaptive, {{.names = "layers.1.*", .frozen = true}, {.names = "*.bias", .learning_rate = 2}}}}};
  for (auto const& [name, each] : optimizers) {
    f(text(name, ", zero<1>"), on_mlp, elsewhere::goes_on, each, parallel::zero<1>{.bucket_bytes = 4096});
    f(text(name, ", zero<3>"), on_mlp, elsewhere::goes_on, each, parallel::zero<3>{.bucket_bytes = 4096});
  }
}

}  // namespace run_states
