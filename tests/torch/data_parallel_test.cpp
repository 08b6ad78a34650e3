// test-timeout: 240
#include "trireme/interop/torch.hpp"

#include <array>
#include <chrono>
#include <optional>
#include <stdexcept>

#include "torch_cases.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/interop/torch_space.hpp"

// What DDP does, one row of its table a test case; and the same weights as a single process with the whole batch.

// Memory of the host that stands for a device's: all that data_parallel does there, but for the order of streams.
struct aside : trireme::host {
  static constexpr std::string_view name = "aside";
};
template <>
struct trireme::interop::detail::torch_space<aside> : torch_space<trireme::host> {
  inline static thread_local int depth = 0, entered = 0;
  struct in_order {
    in_order() { ++depth, ++entered; }
    in_order(in_order const&) = delete;
    in_order& operator=(in_order const&) = delete;
    ~in_order() { --depth; }
  };
};
template <>
struct trireme::ops::on<aside> : trireme::interop::detail::torch_kernels<aside> {};

using namespace torch_cases;
using namespace std::chrono_literals;

namespace {

Tensor rows_of(Tensor const& all, int rank, int ranks) { return all.chunk(ranks)[static_cast<std::size_t>(rank)]; }

/// Branches that a loss uses or does not, in an order of its own.
struct branches_impl : torch::nn::Module {
  branches_impl() {
    for (auto const* name : {"a", "b", "c"}) all.push_back(register_module(name, torch::nn::Linear(4, 4)));
  }
  Tensor forward(Tensor const& x, std::string const& used) {
    auto sum = torch::zeros_like(x);
    for (char const each : used) sum = torch::tanh(sum + all[static_cast<std::size_t>(each - 'a')](x));
    return sum.sum();
  }
  std::vector<torch::nn::Linear> all{};
};
using branches = torch::nn::ModuleHolder<branches_impl>;

/// As many numbers as a tensor has elements; the gradients that one rank would have by itself.
Tensor alone(std::string const& used, Tensor const& x) {
  branches net;
  fill(*net, 1);
  net->forward(x, used).backward();
  return gradients_of(*net);
}
constexpr std::int64_t branch = 20;  // numbers of one of them

struct thrower : torch::autograd::Function<thrower> {
  static Tensor forward(torch::autograd::AutogradContext*, Tensor const& x) { return x.clone(); }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*, torch::autograd::tensor_list const&) {
    throw std::runtime_error("rank 1 cannot go on");
  }
};

}  // namespace

TEST_CASE("two ranks with half a batch each train as one process with all of it", "[torch]") {
  auto const x = numbers({12, 5}, 1);
  auto const y = numbers({12, 3}, 2);
  auto const train = [&](auto& net, torch::optim::Optimizer& optimizer, Tensor const& in, Tensor const& out, auto end) {
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(in), out).backward();
      end();
      optimizer.step();
    }
    return values_of(*net);
  };
  perceptron single;
  fill(*single, 3);
  torch::optim::Adam optimizer(single->parameters(), torch::optim::AdamOptions(1e-2));
  auto const expected = train(single, optimizer, x, y, [] {});
  for (int const ranks : {1, 2, 3}) {
    auto const found = on_ranks<Tensor>(ranks, [&](auto& world) {
      perceptron net;
      fill(*net, 3 + static_cast<std::uint64_t>(world.rank()));  // those of rank 0 count
      auto ddp = interop::data_parallel(net, world);
      torch::optim::Adam own(net->parameters(), torch::optim::AdamOptions(1e-2));
      return train(ddp, own, rows_of(x, world.rank(), ranks), rows_of(y, world.rank(), ranks), [&] { ddp.finish(); });
    });
    for (auto const& each : found) {
      CHECK(each.equal(found[0]));
      CHECK(distance(each, expected) < 1e-5);
    }
  }
}

TEST_CASE("double is exchanged in double", "[torch]") {
  auto const x = numbers({4, 5}, 1).to(at::kDouble);
  perceptron single;
  fill(*single, 3);
  single->to(at::kDouble);
  single->forward(x).square().mean().backward();
  auto const found = on_ranks<Tensor>(2, [&](auto& world) {
    perceptron net;
    fill(*net, 3);
    net->to(at::kDouble);
    auto ddp = interop::data_parallel<double>(net, world);
    ddp->forward(rows_of(x, world.rank(), 2)).square().mean().backward();
    ddp.finish();
    return gradients_of(*net);
  });
  CHECK(distance(found[1], gradients_of(*single)) < 1e-15);
}

TEST_CASE("parameters that a step does not use keep their gradients, or are errors by name", "[torch]") {
  auto const x = numbers({3, 4}, 1);
  auto const found = on_ranks<std::vector<Tensor>>(2, [&](auto& world) {
    branches net;
    fill(*net, 1);
    auto ddp = interop::data_parallel(net, world, {.unused_parameters = true});
    std::vector<Tensor> steps;
    ddp->forward(x, world.rank() == 0 ? "ab" : "a").backward();  // nobody uses c
    ddp.finish();
    steps.push_back(gradients_of(*net));
    for (auto& each : net->parameters()) each.mutable_grad() = Tensor();
    ddp->forward(x, world.rank() == 0 ? "ca" : "ac").backward();  // another graph, in another order; nobody uses b
    ddp.finish();
    steps.push_back(gradients_of(*net));
    for (auto& each : net->all[1]->parameters()) each.mutable_grad() = torch::full_like(each, 5 + world.rank());
    for (auto& each : net->all[0]->parameters()) each.mutable_grad() = Tensor();
    for (auto& each : net->all[2]->parameters()) each.mutable_grad() = Tensor();
    ddp->forward(x, "ac").backward();
    ddp.finish();
    steps.push_back(gradients_of(*net));
    return steps;
  });
  auto const nan_is = [](Tensor const& row, double number) { return torch::nan_to_num(row, number); };
  auto const first = (nan_is(alone("ab", x), 0) + nan_is(alone("a", x), 0)) / 2;
  auto const second = (nan_is(alone("ca", x), 0) + nan_is(alone("ac", x), 0)) / 2;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(distance(found[rank][0].slice(0, 0, 2 * branch), first.slice(0, 0, 2 * branch)) < 1e-6);
    CHECK(found[rank][0].slice(0, 2 * branch).isnan().all().item<bool>());  // still without a .grad()
    CHECK(distance(nan_is(found[rank][1], 0), second) < 1e-6);
    CHECK(found[rank][1].slice(0, branch, 2 * branch).isnan().all().item<bool>());
    CHECK(found[rank][2].slice(0, branch, 2 * branch).eq(5 + static_cast<int>(rank)).all().item<bool>());  // as it was
    CHECK(distance(nan_is(found[rank][2].slice(0, 0, branch), 0), alone("ac", x).slice(0, 0, branch)) < 1e-6);
  }
  auto const refused = on_ranks<std::string>(2, [&](auto& world) {
    branches net;
    auto ddp = interop::data_parallel(net, world);
    ddp->forward(x, "ac").backward();
    return sentence_of([&] { ddp.finish(); });
  });
  CHECK(
      refused[0] ==
      "trireme::interop::data_parallel: parameter \"b.weight\" and 1 more got no gradient in this step; if a step need "
      "not use all parameters, say {.unused_parameters = true}, and requires_grad_(false) of what is never trained");
}

TEST_CASE(
    "with a static graph a step may have several gradients and unused parameters, and a different step is refused",
    "[torch]") {
  auto const x = numbers({3, 4}, 1);
  auto const train = [&](interop::data_parallel_options const& options, bool at_once) {
    return on_ranks<std::vector<Tensor>>(2, [&](auto& world) {
      branches net;
      fill(*net, 1);
      auto ddp = interop::data_parallel(net, world, options, parallel::data{.bucket_bytes = 16});
      std::vector<Tensor> steps;
      for (int step = 0; step < 3; ++step) {
        for (auto& each : net->parameters()) each.mutable_grad() = Tensor();
        if (step == 2) net->all[1]->bias.mutable_grad() = torch::full({4}, 7.0F);
        auto const first = ddp->forward(x, world.rank() == 0 ? "ca" : "a"), second = ddp->forward(x * 2, "a");
        if (at_once) {
          (first + second).backward();
        } else {  // the exchange of a waits for the second one
          first.backward();
          second.backward();
        }
        if (!ddp.finish().finite) throw std::runtime_error("not finite");
        steps.push_back(gradients_of(*net));
      }
      return steps;
    });
  };
  auto const expected = train({.unused_parameters = true}, true), found = train({.static_graph = true}, false);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (std::size_t step = 0; step < 3; ++step) {
      auto const same = [&](Tensor const& row) { return torch::nan_to_num(row, -9); };
      CHECK(distance(same(found[rank][step]), same(expected[rank][step])) < 1e-6);
    }
    CHECK(found[rank][2].slice(0, branch, branch + 16).isnan().all().item<bool>());  // nobody uses b
    CHECK(found[rank][2].slice(0, branch + 16, 2 * branch).eq(7).all().item<bool>());
    CHECK(found[rank][1].slice(0, 2 * branch).isfinite().all().item<bool>());  // c, which rank 1 does not use
  }
  comm::self_world world;
  branches net;
  auto ddp = interop::data_parallel(net, world, {.static_graph = true});
  ddp->forward(x, "ab").backward();
  ddp.finish();
  auto const refusal = [&](std::string const& used, auto&& end) {
    auto const said = sentence_of([&] {
      ddp->forward(x, used).backward();
      end();
    });
    ddp.abandon();
    return said;
  };
  std::string const rest =
      " in this step, unlike in the first one; .static_graph promises equal steps, so leave it out, and say "
      "{.unused_parameters = true} if some are not used";
  CHECK(refusal("c", [] {}) == "trireme::interop::data_parallel: parameter \"c.bias\" got a gradient" + rest);
  CHECK(refusal("a", [&] { ddp.finish(); }) ==
        "trireme::interop::data_parallel: parameter \"b.bias\" got too few gradients" + rest);
  CHECK(contains(refusal("ab", [&] { ddp->forward(x, "ab").backward(); }), "got a second gradient in one step"));
  CHECK(refusal("ab", [&] { ddp.finish(); }).empty());
  CHECK(sentence_of([&] { ddp.join(); }) ==
        "trireme::interop::data_parallel: join() with .static_graph: a rank without a batch has no graph; leave "
        ".static_graph out, or give every rank equally many batches");
}

namespace {

/// One linear layer under two names, and a parameter that is never trained.
struct tied_impl : torch::nn::Module {
  tied_impl() {
    in = register_module("in", torch::nn::Linear(4, 4));
    register_module("out", in);
    frozen = register_parameter("frozen", torch::ones({4}), false);
  }
  Tensor forward(Tensor const& x) { return in(torch::tanh(in(x))) * frozen; }
  torch::nn::Linear in{nullptr};
  Tensor frozen{};
};
using tied = torch::nn::ModuleHolder<tied_impl>;

struct normed_impl : torch::nn::Module {
  normed_impl() {
    linear = register_module("linear", torch::nn::Linear(5, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
  }
  Tensor forward(Tensor const& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
using normed = torch::nn::ModuleHolder<normed_impl>;

}  // namespace

TEST_CASE("tied parameters are exchanged once, and frozen ones not at all", "[torch]") {
  auto const x = numbers({6, 4}, 1);
  tied single;
  fill(*single, 2);
  single->forward(x).square().mean().backward();
  auto const found = on_ranks<std::pair<Tensor, int>>(2, [&](auto& world) {
    tied net;
    fill(*net, 2);
    auto ddp = interop::data_parallel(net, world);
    ddp->forward(rows_of(x, world.rank(), 2)).square().mean().backward();
    ddp.finish();
    return std::pair(net->in->weight.grad().clone(),
                     ddp.exchange().use_count() + (net->frozen.grad().defined() ? 9 : 0));
  });
  for (auto const& [gradient, count] : found) {
    CHECK(distance(gradient, single->in->weight.grad()) < 1e-6);
    CHECK(count == 2);  // weight and bias
  }
}

TEST_CASE("micro-batches under no_sync() add up, and a gradient that was not cleared counts", "[torch]") {
  auto const x = numbers({12, 5}, 1);
  perceptron single;
  fill(*single, 3);
  for (auto const& part : x.chunk(3)) single->forward(part).square().mean().backward();
  auto const found = on_ranks<Tensor>(2, [&](auto& world) {
    perceptron net;
    fill(*net, 3);
    auto ddp = interop::data_parallel(net, world);
    auto const parts = x.chunk(3);
    for (std::size_t m = 0; m < 3; ++m) {
      auto const loss = ddp->forward(rows_of(parts[m], world.rank(), 2)).square().mean();
      if (m < 2) {
        auto const guard = ddp.no_sync();
        loss.backward();
      } else {
        loss.backward();
      }
    }
    ddp.finish();
    auto once = gradients_of(*net);
    {
      auto const guard = ddp.no_sync();  // all of a step
      ddp->forward(rows_of(x, world.rank(), 2)).square().mean().backward();
    }
    ddp.finish();
    return torch::stack({once, gradients_of(*net)});
  });
  auto const once = gradients_of(*single);
  single->forward(x).square().mean().backward();
  for (auto const& each : found) {
    CHECK(distance(each[0], once) < 1e-6);
    CHECK(distance(each[1], gradients_of(*single)) < 1e-6);
  }
}

TEST_CASE("buffers are those of the first rank, or their mean, or each rank's own", "[torch]") {
  using interop::step_buffers;
  for (auto const rule : {step_buffers::first_rank, step_buffers::mean, step_buffers::own}) {
    auto const found = on_ranks<std::pair<Tensor, Tensor>>(2, [&](auto& world) {
      normed net;
      auto ddp = interop::data_parallel(net, world, {.buffers = rule});
      ddp->forward(numbers({8, 5}, 5 + static_cast<std::uint64_t>(world.rank()))).square().mean().backward();
      auto before = net->norm->running_mean.clone();
      ddp.finish();
      if (net->norm->num_batches_tracked.item<std::int64_t>() != 1) throw std::runtime_error("batches");
      return std::pair(before, net->norm->running_mean.clone());
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      auto const expected = rule == step_buffers::own          ? found[rank].first
                            : rule == step_buffers::first_rank ? found[0].first
                                                               : (found[0].first + found[1].first) / 2;
      CHECK(distance(found[rank].second, expected) < 1e-7);
    }
    CHECK(distance(found[0].first, found[1].first) > 1e-3);
  }
}

TEST_CASE("ranks with fewer batches join the others' steps", "[torch]") {
  auto const x = numbers({30, 5}, 1);
  std::vector<int> const batches{1, 3, 2};
  auto const found = on_ranks<Tensor>(3, [&](auto& world) {
    normed net;
    fill(*net, 3);
    auto ddp = interop::data_parallel(net, world);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < batches[static_cast<std::size_t>(world.rank())]; ++step) {
      optimizer.zero_grad();
      ddp->forward(rows_of(x, 3 * world.rank() + step, 10)).square().sum().backward();
      ddp.finish();
      optimizer.step();
    }
    while (ddp.join()) optimizer.step();
    auto const own = net->norm->running_mean.to(at::kDouble);
    return torch::cat({values_of(*net), own, net->norm->num_batches_tracked.reshape({1}).to(at::kDouble)});
  });
  normed single;  // who has no batch counts as zeros in the mean
  fill(*single, 3);
  torch::optim::SGD optimizer(single->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < 3; ++rank) {
      if (step < batches[static_cast<std::size_t>(rank)])
        (single->forward(rows_of(x, 3 * rank + step, 10)).square().sum() / 3).backward();
    }
    optimizer.step();
  }
  auto const expected = values_of(*single);
  for (auto const& each : found) {
    CHECK(each.equal(found[0]));
    CHECK(distance(each.slice(0, 0, expected.numel()), expected) < 1e-5);
    CHECK(each[-1].item<double>() == 3);  // of the first rank that still had a batch
  }
}

TEST_CASE("an exception in one rank's backward ends the step on all ranks", "[torch]") {
  auto const begin = std::chrono::steady_clock::now();
  auto const sentence = sentence_of<std::exception>([&] {
    launch(comm::threads{.ranks = 2, .deadline = 20s}, [](auto& world) {
      perceptron net;
      auto ddp = interop::data_parallel(net, world);
      for (int step = 0; step < 3; ++step) {
        auto x = numbers({4, 5}, 1).requires_grad_(true);
        auto loss = ddp->forward(world.rank() == 1 && step == 1 ? thrower::apply(x) : x).square().mean();
        loss.backward();
        ddp.finish();
      }
    });
  });
  CHECK(sentence.find("rank 1 cannot go on") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < 15s);

  auto const kept = on_ranks<Tensor>(2, [&](auto& world) {  // all ranks know of it, and go on
    perceptron net;
    fill(*net, 3);
    auto ddp = interop::data_parallel(net, world);
    auto x = numbers({4, 5}, static_cast<std::uint64_t>(1 + world.rank())).requires_grad_(true);
    bool stopped = false;
    try {
      ddp->forward(thrower::apply(x)).square().mean().backward();
    } catch (std::runtime_error const&) {
      stopped = true;
    }
    ddp.abandon();
    net->zero_grad();
    ddp->forward(x).square().mean().backward();
    ddp.finish();
    return stopped ? gradients_of(*net) : Tensor();
  });
  perceptron alone;
  fill(*alone, 3);
  alone->forward(torch::cat({numbers({4, 5}, 1), numbers({4, 5}, 2)})).square().mean().backward();
  for (auto const& each : kept) {
    REQUIRE(each.defined());
    CHECK(distance(each, gradients_of(*alone)) < 1e-6);
  }
}

TEST_CASE("a NaN on one rank is known on all", "[torch]") {
  auto const found = on_ranks<std::vector<bool>>(2, [&](auto& world) {
    perceptron net;
    fill(*net, 3);
    auto ddp = interop::data_parallel(net, world);
    std::vector<bool> finite;
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      auto x = numbers({4, 5}, 1);
      if (world.rank() == 1 && step == 1) x[0][0] = NAN;
      ddp->forward(x).square().mean().backward();
      finite.push_back(ddp.finish().finite);
    }
    return finite;
  });
  for (auto const& each : found) CHECK(each == std::vector<bool>{true, false, true});
}

TEST_CASE("mistakes in calls of data_parallel are one sentence", "[torch]") {
  auto const x = numbers({4, 5}, 1);
  comm::self_world world;
  perceptron net;
  auto ddp = interop::data_parallel(net, world);
  CHECK(
      sentence_of([&] { ddp.finish(); }) ==
      "trireme::interop::data_parallel: finish() without a backward() since the last one; a rank without a batch calls "
      "join()");
  ddp->forward(x).sum().backward();
  CHECK(sentence_of([&] { ddp.join(); }) ==
        "trireme::interop::data_parallel: join() in a step that finish() has not ended; call finish() first");
  CHECK(
      sentence_of([&] { ddp->forward(x).sum().backward(); }) ==
      "trireme::interop::data_parallel: parameter \"second.bias\" got a second gradient in one step, of another "
      "backward() than the first; finish() is missing between two steps, or no_sync() around all backward() of a step "
      "but the last; where several losses add up, or one goes through this module to another as in a GAN, say "
      "{.backwards = interop::step_backwards::any}");
  {
    auto const late = ddp.no_sync();
    CHECK(sentence_of([&] { ddp->forward(x).sum().backward(); }).find("got a second gradient") != std::string::npos);
  }
  ddp.abandon();
  {
    auto const before = ddp.no_sync();
    ddp->forward(x).sum().backward();
  }
  CHECK(sentence_of([&] { ddp.join(); }) ==
        "trireme::interop::data_parallel: join() in a step that finish() has not ended; call finish() first");
  ddp.finish();
  ddp->forward(x).sum().backward();
  ddp.step(optim::adamw{});
  CHECK(sentence_of([&] { ddp.join(); }) ==
        "trireme::interop::data_parallel: join() after step(optimizer): this rank would not make the updates of its "
        "optimizer; end steps by finish() and an optimizer of torch's, or give every rank equally many batches");
  ddp->forward(x).sum().backward();
  net->second->bias.set_data(torch::zeros({3}));
  CHECK(sentence_of([&] { ddp.step(optim::adamw{}); }) ==
        "trireme::interop: parameter \"second.bias\" has got other memory, as by torch::load, to() or set_data(); do "
        "that before ranks share the module, or copy_() into it");

  auto const differ = on_ranks<std::string>(2, [&](auto& both) {
    auto const own = std::make_shared<torch::nn::LinearImpl>(4, both.rank() == 0 ? 3 : 2);
    return sentence_of([&] { static_cast<void>(interop::data_parallel(own, both)); });
  });
  CHECK(differ[1] ==
        "trireme::interop: the module of rank 1 differs from that of rank 0; the first difference is number 1 of its "
        "tensors, which on this rank is parameter \"weight\" of Float(2, 4)");
}

TEST_CASE("in a device's memory finish() exchanges what the host's memory exchanges in backward", "[torch]") {
  auto const x = numbers({12, 5}, 1);
  struct outcome {
    Tensor values{}, mean{};
    double norm = 0;
    int steps = 0;
    bool lost = false, used = true;
    std::string second{}, elsewhere{};
  };
  auto const trained = [&](auto& world, interop::data_parallel_options options) {
    outcome found;
    normed net;
    fill(*net, 3 + static_cast<std::uint64_t>(world.rank()));
    auto ddp = interop::data_parallel(net, world, options);
    torch::optim::Adam own(net->parameters(), torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 10; ++step) {
      own.zero_grad();
      {
        auto const quiet = ddp.no_sync();
        ddp->forward(rows_of(x, world.rank(), 4)).square().mean().backward();
      }
      ddp.backward(ddp->forward(rows_of(x, 2 + world.rank(), 4)).square().mean());
      found.norm = ddp.finish().norm;
      own.step();
    }
    found.values = values_of(*net), found.mean = net->norm->running_mean.clone();
    own.zero_grad();
    for (int step = world.rank(); step < 2; ++step, ++found.steps) {  // rank 1 has a batch less
      ddp->forward(x).square().mean().backward();
      ddp.finish();
    }
    while (!options.static_graph && ddp.join()) ++found.steps;
    return found;
  };
  auto const seen = [&](auto& world) {
    outcome found;
    branches net;
    auto ddp = interop::data_parallel(net, world, {.unused_parameters = true});
    auto const in = numbers({3, 4}, 1);
    ddp->forward(in, "ab").backward();
    found.second = sentence_of([&] { ddp->forward(in, "a").backward(); });
    found.used = ddp.finish().finite && net->all[2]->weight.grad().defined();
    ddp->forward(in * NAN, "b").backward();
    found.lost = !ddp.finish().finite;
    torch::nn::Module elsewhere;
    elsewhere.register_parameter("weight", torch::empty({2, 2}, at::kMeta));
    auto const held = std::make_shared<torch::nn::Module>(elsewhere);
    found.elsewhere = sentence_of([&] { static_cast<void>(interop::data_parallel(held, world)); });
    return found;
  };
  using where = interop::detail::torch_space<aside>;
  for (auto const rule : {interop::step_buffers::first_rank, interop::step_buffers::mean}) {
    for (bool const in_buckets : {false, true}) {
      interop::data_parallel_options const options{.buffers = rule, .gradients_in_buckets = in_buckets};
      auto const here = on_ranks<outcome>(2, [&](auto& world) { return trained(world, options); });
      auto const there = on_ranks<outcome>(2, [&](auto& world) {
        auto device = comm::in_space<aside>(world);
        auto found = trained(device, options);
        if (where::depth != 0 || where::entered < 13) throw std::runtime_error("no order");
        return found;
      });
      for (std::size_t rank = 0; rank < 2; ++rank) {
        CHECK(there[rank].values.equal(here[0].values));
        CHECK(distance(there[rank].mean, here[rank].mean) < 1e-7);
        CHECK(there[rank].norm == Approx(here[0].norm).epsilon(1e-9));
        CHECK(there[rank].steps == 2);
      }
    }
  }
  for (auto const& each : on_ranks<outcome>(2, [&](auto& world) {
         auto device = comm::in_space<aside>(world);
         return seen(device);
       })) {
    CHECK(!each.used);
    CHECK(each.lost);
    CHECK(each.second.find("got a second gradient in one step, of another backward()") != std::string::npos);
    CHECK(each.elsewhere ==
          "trireme::interop: parameter \"weight\" is a tensor of meta, but here ranks share tensors of cpu; move the "
          "module with to(), or see \"CUDA tensors\" in docs/torch.md");
  }
}

TEST_CASE("parameters in another order on one rank are refused", "[torch]") {
  struct ordered_impl : torch::nn::Module {
    explicit ordered_impl(bool turned) {
      for (auto const* name : turned ? std::array{"b", "a"} : std::array{"a", "b"})
        register_parameter(name, torch::zeros({2}));
    }
  };
  auto const refused = on_ranks<std::string>(2, [&](auto& world) {
    auto const net = std::make_shared<ordered_impl>(world.rank() == 1);
    return sentence_of([&] { static_cast<void>(interop::data_parallel(net, world)); });
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(refused[rank] == text("trireme::interop: the module of rank 1 differs from that of rank 0; the first "
                                "difference is number 1 of its tensors, which on this rank is parameter \"",
                                rank == 0 ? "a" : "b", "\" of Float(2)"));
  }
}

TEST_CASE("step(optimizer) updates by one of Trireme's optimizers, with sharded state", "[torch]") {
  auto const x = numbers({4, 5}, 1);
  auto const train = [&](auto const& strategy) {
    return on_ranks<Tensor>(2, [&](auto& world) {
      perceptron net;
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world, strategy);
      for (int step = 0; step < 5; ++step) {
        net->zero_grad();
        ddp->forward(rows_of(x, world.rank(), 2)).square().mean().backward();
        ddp.step(optim::adamw{.learning_rate = 1e-2});
      }
      return values_of(*net);
    });
  };
  auto const data = train(parallel::data{});
  auto const zero = train(parallel::zero<1>{});
  perceptron start;
  fill(*start, 3);
  CHECK(distance(data[0], values_of(*start)) > 1e-2);
  for (auto const& each : zero) CHECK(each.equal(data[0]));
}

TEST_CASE("buckets are exchanged during backward, and a timeline shows it", "[torch]") {
  auto const found = on_ranks<bool>(2, [&](auto& world) {
    perceptron net;
    auto ddp = interop::data_parallel(net, world, parallel::data{.bucket_bytes = 64});
    observe::timeline timeline(world.rank(), 64);
    ddp.exchange().record(timeline);
    auto const loss = ddp->forward(numbers({4, 5}, 1)).square().mean();
    {
      observe::timeline::span const now(timeline, "backward");
      loss.backward();
    }
    ddp.finish();
    auto const all = timeline.events();
    auto const backward = *std::find_if(all.begin(), all.end(), [](auto const& e) { return e.name == "backward"; });
    return std::any_of(all.begin(), all.end(), [&](auto const& e) {
      return e.category == "exchange" && e.begin_ns > backward.begin_ns && e.begin_ns < backward.end_ns;
    });
  });
  for (bool const overlaps : found) CHECK(overlaps);
}

TEST_CASE("compressors take the place of communication hooks", "[torch]") {
  using namespace compression;
  using any = one_of<none, cast<bf16>, top_k, power_sgd, error_feedback<top_k>>;
  auto const x = numbers({4, 5}, 1);
  auto const train = [&](auto const&... policies) {
    return on_ranks<Tensor>(2, [&](auto& world) {
      perceptron net;
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world, policies...);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        ddp->forward(rows_of(x, world.rank(), 2)).square().mean().backward();
        ddp.finish();
        optimizer.step();
      }
      return values_of(*net);
    });
  };
  auto const plain = train();
  for (any const& exact : {any{none{}}, any{top_k{.ratio = 1}}}) CHECK(train(exact)[1].equal(plain[0]));
  for (any const& lossy : {any{cast<bf16>{}}, any{top_k{.ratio = 0.02F}}, any{power_sgd{.rank = 1}},
                           any{error_feedback<top_k>{{.ratio = 0.02F}}}}) {
    INFO(describe(lossy));
    auto const found = train(lossy);
    CHECK(found[1].equal(found[0]));
    CHECK(!found[0].equal(plain[0]));
    CHECK(distance(found[0], plain[0]) < 0.1);
  }
}

TEST_CASE("gradients in buckets have the same values, and survive the end of data_parallel", "[torch]") {
  auto const x = numbers({6, 4}, 1);
  struct outcome {
    Tensor values{}, gradients{};
    bool same_memory = true;
  };
  auto const train = [&](interop::data_parallel_options const& options, bool clear, std::string const& used,
                         int ranks) {
    return on_ranks<outcome>(ranks, [&](auto& world) {
      branches net;
      fill(*net, 1);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      outcome found;
      void const* memory = nullptr;
      {
        auto ddp = interop::data_parallel(net, world, options);
        for (int step = 0; step < 4; ++step) {
          for (auto& each : net->parameters()) {
            auto& own = each.mutable_grad();
            if (clear) own = Tensor();
            if (own.defined()) own.zero_();
          }
          auto const part = rows_of(x, world.rank(), ranks);
          {
            auto const guard = ddp.no_sync();
            ddp->forward(part * 2, used).backward();
          }
          ddp->forward(part, used).backward();
          ddp.finish();
          optimizer.step();
          auto const* now = net->all[0]->weight.grad().data_ptr();
          if (std::exchange(memory, now) != now && step > 0) found.same_memory = false;
        }
        if (world.rank() == 0) ddp->forward(x, "a").backward(), ddp.finish();
        while (ddp.join()) {
        }
      }
      for (auto& each : net->parameters()) {  // valid after data_parallel has ended
        if (each.grad().defined()) each.mutable_grad() += 0;
      }
      if (net->all[0]->weight.grad().data_ptr() == memory) found.same_memory = !options.gradients_in_buckets;
      found.values = values_of(*net);
      found.gradients = torch::nan_to_num(gradients_of(*net), -9);
      return found;
    });
  };
  for (int const ranks : {1, 2}) {
    for (bool const clear : {false, true}) {
      for (auto const* used : {"abc", "ca"}) {
        auto const expected = train({.unused_parameters = true}, clear, used, ranks);
        auto const found = train({.unused_parameters = true, .gradients_in_buckets = true}, clear, used, ranks);
        for (std::size_t rank = 0; rank < found.size(); ++rank) {
          CHECK(found[rank].values.equal(expected[rank].values));
          CHECK(found[rank].gradients.equal(expected[rank].gradients));
          CHECK(found[rank].same_memory == (ranks > 1));  // on one rank it stays where torch has put it
        }
      }
    }
  }
  comm::self_world world;
  CHECK(
      sentence_of([&] {
        static_cast<void>(
            interop::data_parallel(perceptron(), world, {.gradients_in_buckets = true}, parallel::zero<1>{}));
      }) ==
      "trireme::interop::data_parallel: .gradients_in_buckets needs the whole mean of all gradients on each rank; use "
      "parallel::data and no compressor, or leave it out");
}

TEST_CASE("a loss scale does not change gradients, and halves if one overflows on any rank", "[torch]") {
  auto const x = numbers({4, 5}, 1);
  struct outcome {
    Tensor gradients{};
    std::vector<double> norms{}, scales{};
    std::vector<bool> finite{};
  };
  auto const train = [&](interop::data_parallel_options const& options) {
    return on_ranks<outcome>(2, [&](auto& world) {
      perceptron net;
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world, options);
      outcome found;
      for (double const factor : {1.0, 1.0, 1e36, 1.0}) {  // times 2^13 the third is infinite, on rank 1
        for (auto& each : net->parameters()) each.mutable_grad() = Tensor();
        auto const loss = ddp->forward(rows_of(x, world.rank(), 2)).square().mean();
        ddp.backward(world.rank() == 1 ? loss * factor : loss);
        auto const result = ddp.finish();
        found.norms.push_back(result.norm), found.finite.push_back(result.finite);
        found.scales.push_back(ddp.loss_scale());
      }
      found.gradients = gradients_of(*net);
      return found;
    });
  };
  auto const plain = train({}), scaled = train({.loss_scale = precision::fp16{.first_scale = 4096, .growth_steps = 2}});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(scaled[rank].gradients.equal(plain[rank].gradients));
    CHECK(scaled[rank].norms[1] == plain[rank].norms[1]);
    CHECK(scaled[rank].finite == std::vector<bool>{true, true, false, true});
    CHECK(scaled[rank].scales == std::vector<double>{4096, 8192, 4096, 4096});
    CHECK(plain[rank].scales == std::vector<double>{1, 1, 1, 1});
  }
  auto const alone = [&](interop::data_parallel_options const& options) {  // where no gradient is copied
    comm::self_world world;
    perceptron net;
    fill(*net, 3);
    auto ddp = interop::data_parallel(net, world, options);
    ddp.backward(ddp->forward(x).square().mean());
    auto const norm = ddp.finish().norm;
    return std::pair(gradients_of(*net), norm);
  };
  auto const [gradients, norm] = alone({});
  auto const [again, same] = alone({.loss_scale = precision::fp16{.first_scale = 4096}});
  CHECK(again.equal(gradients));
  CHECK(same == norm);
  CHECK(norm == Approx(gradients.norm().item<double>()));
}

TEST_CASE("two modules on one world keep their gradients apart, in whatever order ranks reach them", "[torch]") {
  auto const x = numbers({6, 4}, 1);
  auto const found = on_ranks<Tensor>(3, [&](auto& world) {
    branches first, second;
    fill(*first, 1), fill(*second, 2);
    interop::data_parallel_options const unused{.unused_parameters = true};
    auto one = interop::data_parallel(first, world, unused), two = interop::data_parallel(second, world, unused);
    auto const mine = rows_of(x, world.rank(), 3);
    auto const go = [&](auto& ddp, char const* used) { ddp->forward(mine, used).backward(); };
    world.rank() == 1 ? (go(two, "bc"), go(one, "a")) : (go(one, "ab"), go(two, "c"));
    world.barrier();  // a call of the user's between theirs
    one.finish(), two.finish();
    return torch::cat({gradients_of(*first), gradients_of(*second)});
  });
  auto const expected = [&](std::uint64_t seed, std::array<char const*, 3> const& used) {
    Tensor sum = torch::zeros({3 * branch});
    for (int rank = 0; rank < 3; ++rank) {
      branches net;
      fill(*net, seed);
      net->forward(rows_of(x, rank, 3), used[static_cast<std::size_t>(rank)]).backward();
      sum += gradients_of(*net).nan_to_num() / 3;
    }
    return sum;
  };
  auto const all = torch::cat({expected(1, {"ab", "a", "ab"}), expected(2, {"c", "bc", "c"})});
  for (auto const& each : found) CHECK(distance(each.nan_to_num(), all) < 1e-6);
}

TEST_CASE("a rank that joins makes the others' steps, also with parameters that no rank uses", "[torch]") {
  auto const x = numbers({4, 4}, 1);
  for (bool const set_to_none : {false, true}) {
    auto const found = on_ranks<Tensor>(2, [&](auto& world) {
      branches net;
      fill(*net, 1);
      auto ddp = interop::data_parallel(net, world, {.unused_parameters = true});
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < (world.rank() == 0 ? 4 : 2); ++step) {
        for (auto& each : net->parameters()) {
          if (set_to_none) each.mutable_grad().reset();
          if (each.grad().defined()) each.mutable_grad().zero_();
        }
        ddp->forward(x, step == 1 ? "abc" : "ab").backward();
        ddp.finish();
        optimizer.step();
      }
      while (auto const done = ddp.join())
        if (done->finite) optimizer.step();
      return values_of(*net);
    });
    CHECK(found[0].equal(found[1]));
  }
}

TEST_CASE("changes of a wrapped module are supported, or refused by name", "[torch]") {
  auto const x = numbers({6, 4}, 1);
  auto const train = [&](auto&& change) {
    return on_ranks<Tensor>(2, [&](auto& world) {
      branches net;
      fill(*net, 1);
      auto ddp = interop::data_parallel(net, world);
      for (int step = 0; step < 2; ++step) {
        for (auto& each : net->parameters()) each.mutable_grad().reset();
        ddp->forward(rows_of(x, world.rank(), 2), "abc").backward();
        ddp.finish();
        if (step == 0) change(net);
      }
      return gradients_of(*net);
    });
  };
  auto const expected = train([](branches&) {});
  auto const part = train([](branches& net) { net->all[1]->to(at::kDouble), net->all[1]->to(at::kFloat); });
  auto const whole = train([](branches& net) { net->to(at::kDouble), net->to(at::kFloat); });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(part[rank].equal(expected[0]));
    CHECK(whole[rank].equal(expected[0]));
  }

  comm::self_world world;
  branches net;
  fill(*net, 1);
  for (auto& each : net->all[2]->parameters()) each.requires_grad_(false);
  auto ddp = interop::data_parallel(net, world);
  for (auto& each : net->all[2]->parameters()) each.requires_grad_(true);
  ddp->forward(x, "abc").backward();
  CHECK(
      sentence_of([&] { ddp.finish(); }) ==
      "trireme::interop::data_parallel: parameter \"c.weight\" requires a gradient, but was frozen or missing when the "
      "module was wrapped, so its gradient is not exchanged; wrap the module again after such a change, on all ranks");
}

TEST_CASE("a buffer may grow between two steps", "[torch]") {
  auto const found = on_ranks<Tensor>(2, [&](auto& world) {
    torch::nn::Linear net(2, 2);
    fill(*net, 1);
    auto memory = net->register_buffer("memory", torch::zeros({1}));
    auto ddp = interop::data_parallel(net, world);
    memory.resize_({5000}).fill_(static_cast<float>(1 + world.rank()));
    ddp->forward(torch::ones({1, 2})).sum().backward();
    ddp.finish();
    return memory.clone();
  });
  for (auto const& each : found) CHECK(each.equal(torch::ones({5000})));
}

TEST_CASE("a module shared by several ranks, and an unscaled loss, are errors of one sentence", "[torch]") {
  torch::nn::Linear shared(2, 2);
  auto const said = on_ranks<std::string>(
      2, [&](auto& world) { return sentence_of([&] { static_cast<void>(interop::data_parallel(shared, world)); }); });
  for (auto const& each : said) {
    CHECK(
        each ==
        "trireme::interop::data_parallel: ranks 0 and 1 share one module; make a module in each rank, within launch()");
  }
  comm::self_world world;
  auto ddp = interop::data_parallel(shared, world, {.loss_scale = precision::fp16{}});
  CHECK(sentence_of([&] {
          ddp->forward(torch::ones({1, 2})).sum().backward();
        }) ==
        "trireme::interop::data_parallel: loss.backward() with .loss_scale: the loss was not scaled; call "
        "ddp.backward(loss) in its place");
}

TEST_CASE("options that differ between ranks, and a buffer that one rank converts, are errors by name", "[torch]") {
  using options = interop::data_parallel_options;
  struct difference {
    options usual, odd;
    std::string said;
  };
  for (auto const& each : std::vector<difference>{
           {{}, {.unused_parameters = true}, ".unused_parameters is false on rank 0 but true on rank 1"},
           {{.static_graph = true}, {}, ".static_graph is true on rank 0 but false on rank 1"},
           {{},
            {.buffers = interop::step_buffers::own},
            ".buffers is interop::step_buffers::first_rank on rank 0 but interop::step_buffers::own on rank 1"},
           {{}, {.loss_scale = precision::fp16{}}, ".loss_scale is not set on rank 0 but precision::fp16{.first_scale"},
           {{}, {.check_every = 0}, ".check_every is 100 on rank 0 but 0 on rank 1"},
           {{},
            {.backwards = interop::step_backwards::any},
            ".backwards is interop::step_backwards::one on rank 0 but interop::step_backwards::any on rank 1"},
           {{}, {.left_alone = "bias"}, ".left_alone is \"\" on rank 0 but \"bias\" on rank 1"}}) {
    for (auto const& told : on_ranks<std::string>(2, [&](auto& world) {
           torch::nn::Linear net(2, 2);
           return sentence_of([&] {
             static_cast<void>(interop::data_parallel(net, world, world.rank() == 1 ? each.odd : each.usual));
           });
         })) {
      CHECK(told.starts_with("trireme::interop::data_parallel: " + each.said));
      CHECK(told.ends_with("; give the same options on every rank"));
    }
  }
  std::vector<std::string> told(2);
  auto const body = [&](auto& world) {
    torch::nn::Linear net(2, 2);
    auto counts = net->register_buffer("counts", torch::zeros({3}));
    auto ddp = interop::data_parallel(net, world);
    if (world.rank() == 1) counts.set_data(counts.to(at::kInt));
    told[static_cast<std::size_t>(world.rank())] = sentence_of([&] {
      for (int step = 0; step < 2; ++step) {  // the first rank of a broadcast does not wait
        ddp->forward(torch::ones({1, 2})).sum().backward();
        ddp.finish();
      }
    });
    if (!told[static_cast<std::size_t>(world.rank())].empty()) throw comm_error("over");
  };
  CHECK_THROWS(launch(comm::threads{.ranks = 2}, body));
  CHECK(
      told[1] ==
      "trireme::interop: buffer \"counts\" has become one of Int on this rank, and is one of Float on rank 0; convert "
      "a module on all ranks, or on none");
}
