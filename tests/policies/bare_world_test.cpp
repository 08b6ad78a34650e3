// test-timeout: 300
// test-sanitize: none
// A communicator that has just what the rules ask for passes a whole training, under each strategy.
#include "bare_world.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/shared_scratch.hpp"
#include "../support/small_gpt.hpp"
#include "../support/spline.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/data/function.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/optim.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

using bare::call;
using bare::can;

// What each strategy's rules ask for besides.
using sums = can<call::all_reduce, float, reduction::sum>;
using largest = can<call::all_reduce, float, reduction::max>;
using scatters = can<call::reduce_scatter, float, reduction::sum>;
using publishes = can<call::all_gather, float>;
using collects = can<call::all_gather, std::uint8_t>;
using trades = can<call::all_to_all, std::uint8_t>;
using routes = can<call::ragged_all_to_all, float>;
using gathers_counts = can<call::all_gather, std::int64_t>;
using talks = can<call::exchange>;

nn::mlp const model{.inputs = 1, .hidden = {8, 8}, .outputs = 1};
auto const curve = data::function(+[](float x) { return x * x; }, {.samples = 64, .low = -1, .high = 1});

/// All that a trainer does, on each of some ranks; throws what is wrong.
template <class... Able, class Model, class Data, class... Policies>
void trains(std::string const& name, int ranks, Model const& what, Data const& data, Policies const&... policies) {
  watchdog const guard(name);
  INFO(name);
  bare::host_waits = 0;
  bare::orders = 0;
  launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(60)}, [&](auto& threads) {
    using world_type = bare::world<bare::trainer_and<Able...>>;
    static_assert(communicator<world_type>);
    static_assert(!has_broadcast<world_type, std::uint8_t> && !has_gather<world_type, float>);
    world_type world(threads.duplicate());
    shared_scratch folder(threads);
    auto const until = [](std::int64_t steps) {
      return fit_options{.steps = 12, .batch = 16, .micro_batches = 4, .stop_after = steps, .check_every = 3};
    };
    auto trainer = make_trainer(what, optim::adamw{.learning_rate = 1e-2}, world, policies...);
    static_cast<void>(trainer.fit(data, until(6)));
    trainer.save(folder.path());
    static_cast<void>(trainer.fit(data, until(9)));
    trainer.save_in_background(folder.path());
    auto const last = trainer.fit(data, until(12));
    auto const hash = trainer.state_hash();
    auto const loss = trainer.evaluate(data);
    if (!std::isfinite(loss) || last.last_loss == 0)
      throw numeric_error(text(name, ": it does not train"), {world.rank(), "fit"});

    auto again = make_trainer(what, optim::adamw{.learning_rate = 1e-2}, world, policies...);
    again.load(folder.path());
    static_cast<void>(again.fit(data, until(12)));
    if (again.state_hash() != hash || again.evaluate(data) != loss)
      throw numeric_error(text(name, ": another run after a load"), {world.rank(), "load"});
    again.for_each_parameter([](auto const&, auto const&, auto) {});
    again.broadcast();
    again.synchronise_buffers();
    again.initialise(3);
    std::int64_t seen = 0;
    again.on_step([&](auto const&) {
      if (++seen == 2 && world.rank() == 0) again.request_stop();
    });
    if (!again.fit(data, until(12)).stopped) throw numeric_error(text(name, ": it does not stop"), {0, "stop"});
  });
  // The host reads what blocking calls return; what a request brings is for kernels. Only the extents of what crosses
  // a boundary of stages are read once: two trainers, in training and in evaluation.
  CHECK(bare::orders > 0);
  CHECK(bare::host_waits == (name == "pipeline" ? 4 : 0));
}

}  // namespace

TEST_CASE("a communicator with the required calls only trains under data, zero and similar strategies", "[policies]") {
  trains<sums>("data", 2, model, curve);
  trains<scatters, publishes>("zero1", 2, model, curve, parallel::zero<1>{.bucket_bytes = 256});
  trains<scatters, publishes>("zero2", 2, model, curve, parallel::zero<2>{});
  trains<scatters, publishes>("zero3", 2, model, curve, parallel::zero<3>{});
  trains<sums>("diloco", 2, model, curve, parallel::diloco{.period = 3});
  trains<scatters, publishes>("parameter_server", 2, model, curve, parallel::parameter_server{.staleness = 2});
}

TEST_CASE("a communicator with the required calls only trains with compressors", "[policies]") {
  trains<can<call::all_reduce, bf16, reduction::sum>>("cast", 2, model, curve, compression::cast<bf16>{});
  trains<collects>("top_k", 2, model, curve, compression::error_feedback<compression::top_k>{});
  trains<trades, publishes>("zero1 top_k", 2, model, curve, parallel::zero<1>{}, compression::top_k{.ratio = 0.5F});
  trains<sums>("power_sgd", 2, model, curve, compression::power_sgd{.rank = 2});
}

TEST_CASE("a communicator with the required calls only trains under the axes of a mesh", "[policies]") {
  toy::text const tokens = toy::text_for(toy::with_layers(2), 64);
  trains<sums, largest>("tensor", 2, toy::with_layers(2), tokens, parallel::tensor{});
  trains<sums, talks>("pipeline", 2, toy::with_layers(2), tokens, parallel::pipeline<>{});
  trains<sums, talks, routes>("context", 2, toy::with_layers(2), tokens, parallel::context{});
  auto experts = toy::with_layers(2);
  experts.experts = 2;
  trains<sums, gathers_counts, routes>("expert", 2, experts, tokens, parallel::expert{});
}

TEST_CASE("a communicator with the required calls only trains a user's own model", "[policies]") {
  launch(comm::threads{.ranks = 2}, [](auto& threads) {
    bare::world<bare::trainer_and<sums>> world(threads.duplicate());
    toy::spline plain;
    auto trainer = make_trainer(plain, optim::sgd{.learning_rate = 0.1}, world);
    static_cast<void>(trainer.fit(curve, {.steps = 3, .batch = 16}));
    trainer.broadcast();
    static_cast<void>(trainer.state_hash());
  });
}
