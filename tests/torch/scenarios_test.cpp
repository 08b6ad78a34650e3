// test-ranks: 2
// test-timeout: 180
#include "trireme/interop/torch.hpp"

#include <chrono>
#include <stdexcept>

#include "scenarios.hpp"
#include "trireme/comm/lend.hpp"
#include "trireme/comm/mpi.hpp"
#include "trireme/comm/processes.hpp"

// Cases of docs/torch_scenarios.md. Each runs on threads, on processes, and on MPI with and without shared memory.

using namespace scenarios;
using namespace std::chrono_literals;

namespace {

std::int64_t number_of(int rank) { return rank + 1; }

struct tied_impl : torch::nn::Module {
  tied_impl() {
    table = register_module("table", torch::nn::Embedding(5, 4));
    bias = register_parameter("bias", torch::zeros({5}));
    register_parameter("again", table->weight);
  }
  Tensor forward(Tensor const& tokens) { return torch::linear(table(tokens), table->weight, bias); }
  torch::nn::Embedding table{nullptr};
  Tensor bias{};
};
struct recurrent_impl : torch::nn::Module {
  recurrent_impl() { cell = register_module("cell", torch::nn::Linear(5, 5)); }
  Tensor forward(Tensor x) {
    for (int step = 0; step < 4; ++step) x = torch::tanh(cell(x));
    return x;
  }
  torch::nn::Linear cell{nullptr};
};
using recurrent = torch::nn::ModuleHolder<recurrent_impl>;

struct gates_impl : torch::nn::Module {
  gates_impl() {
    for (auto const* name : {"a", "b", "c"}) all.push_back(register_module(name, torch::nn::Linear(5, 1)));
  }
  std::vector<torch::nn::Linear> all{};
};
using gates = torch::nn::ModuleHolder<gates_impl>;

/// As torch.utils.checkpoint with use_reentrant=True: forward without a graph, and backward() within backward().
struct checkpointed : torch::autograd::Function<checkpointed> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor const& x, perceptron_impl* net) {
    context->saved_data["net"] = reinterpret_cast<std::int64_t>(net);
    context->save_for_backward({x});
    return net->forward(x.detach()).detach();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    torch::AutoGradMode const on(true);
    auto const x = context->get_saved_variables()[0].detach().requires_grad_(true);
    reinterpret_cast<perceptron_impl*>(context->saved_data["net"].toInt())->forward(x).backward(gradients[0]);
    return {x.grad(), Tensor()};
  }
};
Tensor through(perceptron& net, Tensor const& x) {
  return checkpointed::apply(x.clone().requires_grad_(true), net.get());
}

// What the graph is.
std::vector<scenario> const of_graphs{
    {"forward twice, and one backward",
     [](any_world& world) {
       return one_step<perceptron>(world, [](perceptron& net, int rank) {
         (net->forward(batch(rank)).sin().sum() * net->forward(batch(rank + 5)).square().mean()).backward();
       });
     }},
    {"one layer in a loop over time",
     [](any_world& world) {
       return one_step<recurrent>(
           world, [](recurrent& net, int rank) { net->forward(batch(rank)).square().sum().backward(); });
     }},
    {"two losses of one output",
     [](any_world& world) {
       return one_step<perceptron>(world, [](perceptron& net, int rank) {
         auto const y = net->forward(batch(rank));
         (y.square().mean() + y.abs().sum()).backward();
       });
     }},
    {"another branch in each step, by the rank and the step",
     [](any_world& world) {
       gates net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world, {.unused_parameters = true});
       double worst = 0;
       for (int step = 0; step < 6; ++step) {
         for (auto& each : net->parameters()) each.mutable_grad().reset();
         auto const loss = [&](gates& of, int rank) {
           of->all[static_cast<std::size_t>((rank * 2 + step) % 3)](batch(rank)).square().sum().backward();
         };
         loss(net, world.rank());
         ddp.finish();
         worst = std::max(worst,
                          distance(torch::nan_to_num(gradients_of(*net), 0), mean_of_ranks<gates>(world.size(), loss)));
       }
       return worst;
     }},
    {"a loss of the parameters alone beside the forward",
     [](any_world& world) {
       return one_step<perceptron>(world, [](perceptron& net, int rank) {
         auto loss = net->forward(batch(rank)).square().mean();
         for (auto const& each : net->parameters()) loss = loss + 0.1 * each.square().sum();
         loss.backward();
       });
     }},
    {"a checkpointed part that is used once",
     [](any_world& world) {
       return one_step<perceptron>(
           world, [](perceptron& net, int rank) { through(net, batch(rank)).square().mean().backward(); });
     }},
    {"a checkpointed part that is used twice, with .static_graph",
     [](any_world& world) {
       return one_step<perceptron>(
           world,
           [](perceptron& net, int rank) {
             (through(net, batch(rank)).square().mean() + through(net, batch(rank + 5)).sum()).backward();
           },
           {.static_graph = true});
     }},
    {"a checkpointed part that is used twice, without it",
     [](any_world& world) {
       perceptron net;
       auto ddp = interop::data_parallel(net, world);
       auto const loss = through(net, batch(0)).sum() + through(net, batch(1)).sum();
       return contains(sentence_of([&] { loss.backward(); }), "got a second gradient in one step") ? 0 : 1;
     }},
    {"gradients of autograd::grad() are nobody's .grad()",
     [](any_world& world) {
       perceptron net;
       auto ddp = interop::data_parallel(net, world);
       static_cast<void>(torch::autograd::grad({ddp->forward(batch(0)).sum()}, net->parameters()));
       return contains(sentence_of([&] { ddp.finish(); }), "finish() without a backward()") ? 0 : 1;
     }},
    {"forward through the module itself",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       net->forward(batch(world.rank())).square().mean().backward();
       ddp.finish();
       return difference(world, gradients_of(*net));
     }},
    {"evaluation on one rank between two steps",
     [](any_world& world) {
       return one_step<perceptron>(world, [&](perceptron& net, int rank) {
         if (rank == 1) {
           torch::NoGradGuard const guard;
           static_cast<void>(net->forward(batch(9)));
         }
         net->forward(batch(rank)).square().mean().backward();
       });
     }},
    {"a module within a module, both wrapped",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto inner = interop::data_parallel(net->first, world);
       auto outer = interop::data_parallel(net, world);
       auto const loss = [](perceptron& of, int rank) { of->forward(batch(rank)).square().mean().backward(); };
       loss(net, world.rank());
       inner.finish();
       outer.finish();
       return distance(gradients_of(*net), mean_of_ranks<perceptron>(world.size(), loss));
     }},
    {"wrapped anew after some steps",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto const loss = [](perceptron& of, int rank) { of->forward(batch(rank)).square().mean().backward(); };
       for (int time = 0; time < 3; ++time) {
         net->zero_grad();
         auto ddp = interop::data_parallel(net, world);
         loss(net, world.rank());
         ddp.finish();
       }
       return distance(gradients_of(*net), mean_of_ranks<perceptron>(world.size(), loss));
     }},
};

// What parameters, gradients and buffers are.
std::vector<scenario> const of_tensors{
    {"a tied table that is used twice",
     [](any_world& world) {
       return one_step<torch::nn::ModuleHolder<tied_impl>>(world, [](auto& net, int rank) {
         auto const tokens = torch::arange(4) + rank % 2;
         torch::cross_entropy_loss(net->forward(tokens), tokens).backward();
       });
     }},
    {"numbers without a dimension, without elements, and integers",
     [](any_world& world) {
       torch::nn::Linear net(2, 2);
       fill(*net, 3);
       auto scale = net->register_parameter("scale", torch::tensor(2.0F));
       auto none = net->register_parameter("none", torch::zeros({0, 3}));
       auto whole = net->register_parameter("whole", torch::full({2}, 4 + world.rank(), at::kLong), false);
       auto flags = net->register_buffer("flags", torch::full({3}, world.rank() == 0, at::kBool));
       auto empty = net->register_buffer("empty", torch::zeros({0}));
       auto ddp = interop::data_parallel(net, world);
       (ddp->forward(torch::ones({1, 2})).sum() * scale * number_of(world.rank()) + none.sum()).backward();
       ddp.finish();
       bool const right = whole.eq(4).all().item<bool>() && flags.all().item<bool>();
       return difference(world, gradients_of(*net)) + (right ? 0 : 1);
     }},
    {"five hundred parameters in small buckets",
     [](any_world& world) {
       torch::nn::Linear net(2, 2);
       std::vector<Tensor> all;
       for (int i = 0; i < 500; ++i) all.push_back(net->register_parameter(text("p", i), torch::full({7}, 1.0F)));
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world, parallel::data{.bucket_bytes = 16});
       auto loss = ddp->forward(torch::ones({1, 2})).sum();
       for (std::size_t i = 0; i < all.size(); ++i)
         loss = loss + all[i].sum() * static_cast<double>(i) * number_of(world.rank());
       loss.backward();
       ddp.finish();
       double const mean = (world.size() + 1) / 2.0;
       double worst = 0;
       for (std::size_t i = 0; i < all.size(); ++i) {
         auto const expected = mean * static_cast<double>(i);
         worst = std::max(worst, (all[i].grad() - expected).abs().max().item<double>() / (1 + expected));
       }
       return worst;
     }},
    {"a gradient whose strides are not the parameter's",
     [](any_world& world) {
       return one_step<recurrent>(world, [](recurrent& net, int rank) {
         net->cell->weight.mutable_grad() = torch::zeros({5, 5}).t();
         net->forward(batch(rank)).square().sum().backward();
       });
     }},
    {"a parameter that is expanded is refused",
     [](any_world& world) {
       torch::nn::Linear net(2, 2);
       net->register_parameter("wide", torch::ones({1}).expand({4}));
       auto const said = sentence_of([&] { static_cast<void>(interop::data_parallel(net, world)); });
       return contains(said, "parameter \"wide\" is not a dense tensor") ? 0 : 1;
     }},
    {"frozen after it was wrapped",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       net->first->bias.requires_grad_(false);
       ddp->forward(batch(world.rank())).square().mean().backward();
       auto const said = sentence_of([&] { ddp.finish(); });
       return contains(said, "parameter \"first.bias\" got no gradient in this step") ? 0 : 1;
     }},
    {"frozen and unfrozen by turns, with .unused_parameters",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world, {.unused_parameters = true});
       double worst = 0;
       for (int step = 0; step < 4; ++step) {
         for (auto& each : net->parameters()) each.mutable_grad().reset();
         auto const loss = [&](perceptron& of, int rank) {
           for (auto& each : of->first->parameters()) each.requires_grad_(step % 2 == 0);
           of->forward(batch(rank)).square().mean().backward();
         };
         loss(net, world.rank());
         ddp.finish();
         worst = std::max(
             worst, distance(torch::nan_to_num(gradients_of(*net), 0), mean_of_ranks<perceptron>(world.size(), loss)));
       }
       return worst;
     }},
    {"a buffer that is registered after the module was wrapped is each rank's own",
     [](any_world& world) {
       torch::nn::Linear net(5, 3);
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       auto const late = net->register_buffer("late", torch::full({1}, 1.0F + static_cast<float>(world.rank())));
       ddp->forward(batch(world.rank())).square().mean().backward();
       ddp.finish();
       return std::abs(late.item<double>() - 1 - world.rank());
     }},
    {"buffers of the first rank that had a batch",
     [](any_world& world) {
       torch::nn::Linear net(5, 3);
       fill(*net, 3);
       auto const count = net->register_buffer("count", torch::zeros({1}));
       auto ddp = interop::data_parallel(net, world);
       if (world.rank() > 0) {
         count.add_(1);
         ddp->forward(batch(world.rank())).square().mean().backward();
         ddp.finish();
       }
       while (ddp.join()) {
       }
       return world.size() == 1 ? 0 : std::abs(count.item<double>() - 1);
     }},
};

// How steps, batches and optimizers go.
std::vector<scenario> const of_steps{
    {"batches of different sizes: the mean of the ranks' means",
     [](any_world& world) {
       return one_step<perceptron>(world, [](perceptron& net, int rank) {
         net->forward(numbers({1 + 3 * rank, 5}, 4)).square().mean().backward();
       });
     }},
    {"a rank without any batch",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       if (world.rank() == 0) {
         ddp->forward(batch(0)).square().mean().backward();
         ddp.finish();
       }
       while (ddp.join()) {
       }
       return difference(world, gradients_of(*net));
     }},
    {"a rank whose loss uses no parameter",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world, {.unused_parameters = true});
       auto const loss = world.rank() == 0 ? ddp->forward(batch(0)).sum() : torch::ones({1}).requires_grad_(true).sum();
       loss.backward();
       if (world.rank() == 0)
         ddp.finish();
       else if (!contains(sentence_of([&] { ddp.finish(); }), "a rank without a batch calls join()"))
         return 1.0;
       while (ddp.join()) {
       }
       return difference(world, gradients_of(*net));
     }},
    {"more micro-batches on one rank than on another",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       {
         auto const quiet = ddp.no_sync();
         for (int i = 0; i < world.rank(); ++i) ddp->forward(batch(10 + i)).sum().backward();
       }
       ddp->forward(batch(world.rank())).square().mean().backward();
       ddp.finish();
       return distance(gradients_of(*net), mean_of_ranks<perceptron>(world.size(), [](perceptron& of, int rank) {
                         for (int i = 0; i < rank; ++i) of->forward(batch(10 + i)).sum().backward();
                         of->forward(batch(rank)).square().mean().backward();
                       }));
     }},
    {"an exception under no_sync() ends it",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       try {
         auto const quiet = ddp.no_sync();
         throw std::runtime_error("in the loop");
       } catch (std::runtime_error const&) {
       }
       auto const loss = [](perceptron& of, int rank) { of->forward(batch(rank)).square().mean().backward(); };
       loss(net, world.rank());  // exchanged: so a second one is refused
       return contains(sentence_of([&] { loss(net, world.rank()); }), "got a second gradient") ? 0 : 1;
     }},
    {"gradients that are cleared to nothing or to zeros",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       auto const loss = [](perceptron& of, int rank) { of->forward(batch(rank)).square().mean().backward(); };
       auto const expected = mean_of_ranks<perceptron>(world.size(), loss);
       double worst = 0;
       for (bool const to_nothing : {true, false, false, true}) {
         for (auto& each : net->parameters()) {
           if (to_nothing)
             each.mutable_grad().reset();
           else
             each.mutable_grad().zero_();
         }
         loss(net, world.rank());
         ddp.finish();
         worst = std::max(worst, distance(gradients_of(*net), expected));
       }
       return worst;
     }},
    {"clip_grad_norm_ after finish(), whose norm it is",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       ddp->forward(batch(world.rank())).square().mean().backward();
       auto const norm = ddp.finish().norm;
       auto const theirs = torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1);
       return std::abs(norm - theirs) + difference(world, gradients_of(*net));
     }},
    {"a .grad() that is changed before finish() is an error",
     [](any_world& world) {
       perceptron net;
       fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       net->forward(batch(world.rank())).square().mean().backward();
       torch::nn::utils::clip_grad_norm_(net->parameters(), 0.01);
       auto const said = sentence_of([&] { ddp.finish(); });
       return contains(said, "was changed between backward() and finish()") ? 0 : 1;
     }},
    {"two optimizers for two parts of a module",
     [](any_world& world) {
       auto const x = numbers({20, 5}, 1);
       auto const train = [](auto& of, perceptron& net, Tensor const& in, auto&& end) {
         torch::optim::SGD a(net->first->parameters(), 0.1);
         torch::optim::AdamW b(net->second->parameters(), torch::optim::AdamWOptions(1e-2));
         for (int step = 0; step < 5; ++step) {
           a.zero_grad(), b.zero_grad();
           of->forward(in).square().mean().backward();
           end();
           a.step(), b.step();
         }
         return values_of(*net);
       };
       perceptron single, net;
       fill(*single, 3), fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       auto const found =
           train(ddp, net, x.chunk(world.size())[static_cast<std::size_t>(world.rank())], [&] { ddp.finish(); });
       return distance(found, train(single, single, x, [] {}));
     }},
    {"LBFGS, whose closure ends a step each time",
     [](any_world& world) {
       auto const x = numbers({20, 5}, 1);
       auto const train = [](auto& of, perceptron& net, Tensor const& in, auto&& end, auto&& mean) {
         torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4));
         optimizer.step([&] {
           optimizer.zero_grad();
           auto const loss = of->forward(in).square().mean();
           loss.backward();
           end();
           return mean(loss.detach());
         });
         return values_of(*net);
       };
       perceptron single, net;
       fill(*single, 3), fill(*net, 3);
       auto ddp = interop::data_parallel(net, world);
       auto const found = train(
           ddp, net, x.chunk(world.size())[static_cast<std::size_t>(world.rank())], [&] { ddp.finish(); },
           [&](Tensor const& loss) { return interop::all_reduce(world, loss, reduction::mean{}); });
       return distance(found, train(
                                  single, single, x, [] {}, [](Tensor const& loss) { return loss; }));
     }},
    {"a group of some ranks",
     [](any_world& world) {
       auto group = world.split(world.rank() % 2, 0);
       return one_step<perceptron>(
           group, [](perceptron& net, int rank) { net->forward(batch(rank)).square().mean().backward(); });
     }},
};

auto const lent = lending([](any_world& world) { return wrong_on(world, {&of_graphs, &of_tensors, &of_steps}, 2e-5); });

}  // namespace

TEST_CASE("cases of data parallelism are right on threads, processes and MPI with and without shared memory",
          "[torch]") {
  for (auto const& each : on_ranks<std::string>(2, lent)) CHECK(each == "");
  CHECK(launch(comm::processes{}, lent) == "");
  CHECK(launch(comm::mpi{}, lent) == "");
  CHECK(launch(comm::mpi{.shared_memory = false}, lent) == "");
}

TEST_CASE("cases of data parallelism are right on one rank and on more ranks than cores", "[torch]") {
  for (int const ranks : {1, 5})
    for (auto const& each : on_ranks<std::string>(ranks, lent)) CHECK(each == "");
}

TEST_CASE("the others get an error if a rank fails in forward, leaves early or ends steps in another order",
          "[torch]") {
  auto const run = [](auto&& body) {
    return sentence_of([&] {
      launch(comm::threads{.ranks = 2, .deadline = 2s}, [&](auto& threads) {
        auto world = comm::lend(threads);
        perceptron net, other;
        auto a = interop::data_parallel(net, world);
        auto b = interop::data_parallel(other, world);
        for (int step = 0; step < 3; ++step) {
          if (!body(world.rank(), step, a, b)) return;
        }
      });
    });
  };
  auto const loss = [](auto& ddp) { ddp->forward(batch(0)).sum().backward(); };
  auto const forward = run([&](int rank, int step, auto& a, auto&) {
    if (rank == 1 && step == 1) throw config_error("no such image");
    loss(a);
    a.finish();
    return true;
  });
  CHECK(contains(forward, "no such image"));
  auto const early = run([&](int rank, int step, auto& a, auto&) {
    if (rank == 1 && step == 1) return false;
    loss(a);
    a.finish();
    return true;
  });
  CHECK(contains(early, "rank 1"));
  auto const order = run([&](int rank, int, auto& a, auto& b) {
    loss(a), loss(b);
    if (rank == 0)
      a.finish(), b.finish();
    else
      b.finish(), a.finish();
    return true;
  });
  CHECK(contains(order, "rank"));  // finish() waits for the other ranks' finish()
}
