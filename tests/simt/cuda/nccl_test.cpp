// A GPT trains in CUDA memory over comm::nccl as in host memory, on the stand-in for NCCL: under each strategy, and in
// several of the orders that streams allow.
#include "trireme/comm/nccl.hpp"

#include <mutex>

#include "../../comm/stand_in/ranks.hpp"
#include "../../support/sentence.hpp"
#include "training.hpp"

using namespace on_device;

namespace {

nn::gpt const model{.vocabulary = 23, .context = 8, .layers = 1, .heads = 2, .channels = 16};
ordered_words const words{model.context, model.vocabulary};
optim::sgd const moving{.learning_rate = 0.1, .momentum = 0.9, .clip = 1.0};

/// The order of streams, until its end.
struct chosen_order {
  explicit chosen_order(int order) { simt::order() = order; }
  chosen_order(chosen_order const&) = delete;
  chosen_order& operator=(chosen_order const&) = delete;
  ~chosen_order() { simt::order() = 0; }
};

template <class Parallel>
outcome train_over_nccl(int ranks, Parallel const& parallel, comm::sum_order order, settings const& how,
                        std::chrono::seconds deadline = std::chrono::seconds(120)) {
  watchdog const guard("a training of a GPT over comm::nccl", std::chrono::seconds(280));
  outcome out;
  stand_in::on_ranks(ranks, {.deadline = deadline, .order = order}, [&](comm::nccl_world& world) {
    train_in(world, out, model, moving, parallel, precision::fp32{}, words, how);
    cuda::finish();
  });
  return out;
}
template <class Parallel>
void compare(std::string const& what, int ranks, Parallel const& parallel, settings const& how = {}) {
  auto const here = train<host>(ranks, model, moving, parallel, precision::fp32{}, words, how);
  for (int const order : {1, 2, 4}) {
    INFO(what << " on " << text(ranks, " ranks") << " in order " << order);
    chosen_order const now(order);
    CHECK(
        distance(train_over_nccl(ranks, parallel, order % 2 == 0 ? comm::sum_order::any : comm::sum_order::ranks, how),
                 here) <= 1e-5);
  }
}
/// One type of mesh, so that trainers are compiled once.
auto mesh_of(int data, int stages, int context, int tensor) {
  return parallel::mesh{parallel::zero<1>{.ways = data}, parallel::any_pipeline{.schedule = "1f1b", .stages = stages},
                        parallel::context{.ways = context}, parallel::tensor{.ways = tensor}};
}

}  // namespace

TEST_CASE("a GPT over comm::nccl: zero<1>, context and tensor", "[nccl]") {
  compare("zero<1>", 3, mesh_of(3, 1, 1, 1));
  compare("context", 2, mesh_of(1, 1, 2, 1));
  compare("tensor", 2, mesh_of(1, 1, 1, 2));
}
TEST_CASE("a GPT over comm::nccl: zero<3>", "[nccl]") { compare("zero<3>", 2, parallel::zero<3>{}); }
// The messages of a rank are on one stream, in the order of their calls, so that a receive that is posted ahead keeps
// back the send without which it never ends. On GPUs it would be the same.
TEST_CASE("a pipeline over comm::nccl ends at the deadline, with a sentence that says why", "[nccl]") {
  auto const said = sentence_of<comm_error>([] {
    train_over_nccl(2, mesh_of(1, 2, 1, 1), comm::sum_order::any, {.micro_batches = 2}, std::chrono::seconds(2));
  });
  CHECK(contains(said, "exchange, call number"));
  CHECK(contains(said,
                 "(parallel::pipeline does not run over comm::nccl: use comm::threads with "
                 "comm::in_space<cuda>)"));
}
