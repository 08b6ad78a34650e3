// test-timeout: 120
#include "trireme/interop/torch.hpp"

#include "torch_cases.hpp"

// When steps begin and end: the order of calls in a loop, several backward() a step, ranks that end early.

using namespace torch_cases;

TEST_CASE("an optimizer's step before finish() is an error in the first step, and a change of one rank later",
          "[torch]") {
  auto const x = numbers({4, 5}, 1);
  std::string const rest =
      ": they were changed on one of them alone, or their machines round differently; call optimizer.step() after "
      "finish(): optimizer.step() before finish() uses gradients of one rank alone; where ranks have changed "
      "parameters "
      "otherwise, interop::broadcast(module, world) makes them equal";
  auto const said = [&](std::int64_t check_every, bool before, int spoiled, int steps) {
    return on_ranks<std::string>(2, [&](auto& world) {
      perceptron net;
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world, {.check_every = check_every});
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < steps; ++step) {
        auto const sentence = sentence_of<numeric_error>([&] {
          optimizer.zero_grad();
          ddp->forward(x.chunk(2)[static_cast<std::size_t>(world.rank())]).square().mean().backward();
          if (before) optimizer.step();
          ddp.finish();
          if (!before) optimizer.step();
          torch::NoGradGuard const guard;
          if (step == spoiled && world.rank() == 1) net->second->bias.add_(1);
        });
        if (!sentence.empty()) return text(step, " ", sentence);
      }
      return std::string();
    });
  };
  for (auto const& each : said(100, true, -1, 1)) {
    CHECK(each == "0 trireme::interop::data_parallel: the copies of \"first.weight\" on ranks 0 and 1 differ" + rest);
  }
  for (auto const& each : said(4, false, 1, 8)) {
    CHECK(each == "4 trireme::interop::data_parallel: the copies of \"second.bias\" on ranks 0 and 1 differ" + rest);
  }
  CHECK(said(0, true, -1, 3)[1].empty());
  CHECK(said(1, false, -1, 3)[1].empty());
}

namespace {

/// A discriminator's usual loop: two losses of its own, and the generator's through it.
struct gan_outcome {
  Tensor generator{}, discriminator{};
};
template <class Generator, class Discriminator, class EndD, class EndG>
gan_outcome train_gan(Generator& g, Discriminator& d, torch::nn::Module& of_g, torch::nn::Module& of_d, int rank,
                      int ranks, EndD&& end_d, EndG&& end_g) {
  torch::optim::Adam optimizer_g(of_g.parameters(), 1e-2), optimizer_d(of_d.parameters(), 1e-2);
  auto const part = [&](Tensor const& all) { return all.chunk(ranks)[static_cast<std::size_t>(rank)]; };
  for (std::uint64_t step = 0; step < 5; ++step) {
    auto const real = part(numbers({4, 3}, 10 + step)), noise = part(numbers({4, 5}, 20 + step));
    optimizer_d.zero_grad();
    (d->forward(real) - 1).square().mean().backward();
    auto const fake = g->forward(noise);
    d->forward(fake.detach()).square().mean().backward();
    end_d();
    optimizer_d.step();
    optimizer_g.zero_grad();
    (d->forward(fake) - 1).square().mean().backward();  // adds to the discriminator's .grad(), too
    end_g();
    optimizer_g.step();
  }
  return {values_of(of_g), values_of(of_d)};
}
torch::nn::Sequential critic() {
  return torch::nn::Sequential(torch::nn::Linear(3, 6), torch::nn::Tanh(), torch::nn::Linear(6, 1));
}

}  // namespace

TEST_CASE("the usual loop of a GAN equals one process if any number of backward() is allowed", "[torch]") {
  perceptron whole_g;
  auto whole_d = critic();
  fill(*whole_g, 1), fill(*whole_d, 2);
  auto const expected = train_gan(
      whole_g, whole_d, *whole_g, *whole_d, 0, 1, [] {}, [] {});
  for (bool const zero_to_none : {false, true}) {
    auto const found = on_ranks<gan_outcome>(2, [&](auto& world) {
      perceptron g;
      auto d = critic();
      fill(*g, 1), fill(*d, 2);
      auto ddp_d = interop::data_parallel(d, world, {.backwards = interop::step_backwards::any});
      auto ddp_g = interop::data_parallel(g, world);
      auto const none = [&] {  // as zero_grad() of later versions leaves it
        if (!zero_to_none) return;
        for (auto& each : d->parameters()) each.mutable_grad().reset();
      };
      return train_gan(
          ddp_g, ddp_d, *g, *d, world.rank(), 2, [&] { ddp_d.finish(); }, [&] { ddp_g.finish(), none(); });
    });
    for (auto const& each : found) {
      CHECK(distance(each.generator, expected.generator) < 1e-5);
      CHECK(distance(each.discriminator, expected.discriminator) < 1e-5);
      CHECK(each.discriminator.equal(found[0].discriminator));
    }
  }
  comm::self_world world;
  auto d = critic();
  CHECK(sentence_of([&] {
          static_cast<void>(
              interop::data_parallel(d, world, {.static_graph = true, .backwards = interop::step_backwards::any}));
        }) ==
        "trireme::interop::data_parallel: .static_graph expects equally many backward() in each step, and .backwards = "
        "any allows any number; leave one of them out");
  auto any =
      interop::data_parallel(d, world, {.loss_scale = precision::fp16{}, .backwards = interop::step_backwards::any});
  any->forward(numbers({4, 3}, 1)).sum().backward();
  CHECK(contains(sentence_of([&] { any.finish(); }), "the loss was not scaled"));
}

TEST_CASE("join(early_end::raise) is an error on all ranks if one has no batch left", "[torch]") {
  auto const x = numbers({4, 5}, 1);
  auto const said = [&](std::vector<int> const& batches) {
    return on_ranks<std::string>(3, [&](auto& world) {
      perceptron net;
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world);
      int step = 0;
      auto const sentence = sentence_of([&] {
        for (; step < batches[static_cast<std::size_t>(world.rank())]; ++step) {
          net->zero_grad();
          ddp->forward(x).square().mean().backward();
          ddp.finish();
        }
        while (ddp.join(interop::early_end::raise)) {
        }
      });
      return text(sentence, " ", step);
    });
  };
  auto const uneven = said({3, 2, 3});
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(uneven[rank] ==
          "trireme::interop::data_parallel: rank 1 has no batch left while others have, and has called "
          "join(early_end::raise); give every rank equally many batches, or let it follow the others by join() 2");
  }
  for (auto const& each : said({2, 2, 2})) CHECK(each == " 2");
}

namespace {

/// Its backward has no gradient for what it was given.
struct ungrateful : torch::autograd::Function<ungrateful> {
  static Tensor forward(torch::autograd::AutogradContext*, Tensor const& x, Tensor const& weight) {
    return x + weight.sum() * 0;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list const& gradients) {
    return {gradients[0], Tensor()};
  }
};

}  // namespace

TEST_CASE("a gradient that is undefined on every rank stays undefined; on some ranks it counts as zeros", "[torch]") {
  struct outcome {
    bool defined = false, again = false;
    double one = 0;
  };
  auto const found = on_ranks<outcome>(2, [&](auto& world) {
    torch::nn::Linear net(2, 2);
    fill(*net, 1);
    auto odd = net->register_parameter("odd", torch::ones({3}));
    auto ddp = interop::data_parallel(net, world);
    auto const step = [&](bool grateful) {
      net->zero_grad();
      auto const y = ddp->forward(torch::ones({1, 2}));
      (grateful ? y + odd.sum() : ungrateful::apply(y, odd)).sum().backward();
      ddp.finish();
    };
    outcome now;
    step(false);
    now.defined = odd.grad().defined();
    step(world.rank() == 1);
    now.one = odd.grad()[0].template item<double>();
    odd.mutable_grad().reset();
    step(false);
    now.again = odd.grad().defined();
    return now;
  });
  for (auto const& each : found) {
    CHECK(!each.defined);
    CHECK(each.one == 1);  // 2 of one rank, and nothing of the other
    CHECK(!each.again);
  }
}

TEST_CASE("parameters and buffers in .left_alone are neither compared nor sent", "[torch]") {
  struct outcome {
    Tensor queue{}, head{}, body{};
    std::string refused{};
  };
  auto const found = on_ranks<outcome>(2, [&](auto& world) {
    torch::nn::Linear net(2, 2);
    fill(*net, 1 + static_cast<std::uint64_t>(world.rank()));
    auto head = net->register_parameter("head", torch::full({2 + world.rank()}, 1.0F + world.rank()));
    auto queue = net->register_buffer("queue", torch::full({1 + world.rank()}, 5.0F + world.rank()));
    auto ddp = interop::data_parallel(net, world, {.left_alone = "queue he*"});
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      (ddp->forward(torch::ones({1, 2})).sum() * (1 + world.rank()) + head.sum() * (1 + world.rank())).backward();
      ddp.finish();
    }
    outcome now{queue.clone(), head.grad().clone(), net->weight.grad().clone(), {}};
    now.refused =
        sentence_of([&] { static_cast<void>(interop::data_parallel(net, world, {.left_alone = "queue haed"})); });
    return now;
  });
  for (int rank = 0; rank < 2; ++rank) {
    auto const& each = found[static_cast<std::size_t>(rank)];
    CHECK(each.queue.equal(torch::full({1 + rank}, 5.0F + static_cast<float>(rank))));
    CHECK(each.head.equal(torch::full({2 + rank}, 1.0F + static_cast<float>(rank))));
    CHECK(each.body.equal(torch::full({2, 2}, 1.5F)));
    CHECK(contains(
        each.refused,
        "trireme::interop::data_parallel: .left_alone: nothing in the module matches \"haed\"; the nearest names are "
        "\"head\""));
  }
}

TEST_CASE("parallel::diloco and parallel::parameter_server end their steps by step(optimizer)", "[torch]") {
  auto const x = numbers({4, 5}, 1);
  auto const train = [&](auto const& strategy) {
    return on_ranks<Tensor>(2, [&](auto& world) {
      perceptron net;
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world, strategy);
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        ddp->forward(x.chunk(2)[static_cast<std::size_t>(world.rank())]).square().mean().backward();
        ddp.step(optim::adamw{.learning_rate = 1e-2});
      }
      return values_of(*net);
    });
  };
  auto const data = train(parallel::data{}), served = train(parallel::parameter_server{}),
             local = train(parallel::diloco{.period = 2});
  for (auto const& each : served) CHECK(each.equal(data[0]));
  CHECK(local[1].equal(local[0]));  // after two periods
  CHECK(distance(local[0], data[0]) > 1e-6);
}

TEST_CASE("a penalty on gradients, and backward(create_graph), equal those of one process", "[torch]") {
  auto const penalty = [](auto& net, Tensor x) {
    x = x.clone().requires_grad_(true);
    auto const slope = torch::autograd::grad({net->forward(x).sum()}, {x}, {}, true, true)[0];
    return (slope.square().sum(1) - 1).square().mean();
  };
  auto const x = numbers({4, 5}, 1);
  perceptron single;
  fill(*single, 3);
  penalty(single, x).backward();
  for (bool const keeps_graph : {false, true}) {
    auto const found = on_ranks<Tensor>(2, [&](auto& world) {
      perceptron net;
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world, {.unused_parameters = true});  // the last bias has no part in it
      penalty(ddp, x.chunk(2)[static_cast<std::size_t>(world.rank())]).backward({}, keeps_graph, keeps_graph);
      ddp.finish();
      return gradients_of(*net).detach();
    });
    for (auto const& each : found)
      CHECK(distance(torch::nan_to_num(each), torch::nan_to_num(gradients_of(*single))) < 1e-6);
  }
}
