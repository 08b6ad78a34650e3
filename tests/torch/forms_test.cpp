// test-timeout: 120
#include "trireme/interop/torch.hpp"

#include "torch_cases.hpp"

// What may be wrapped: whatever holds a module, and tensors of any type and layout, beside one process.

using namespace torch_cases;

namespace {

struct mlp_impl : torch::nn::Module {  // as programs write it that have one process
  mlp_impl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    norm = register_module("norm", torch::nn::BatchNorm1d(7));
    second = register_module("second", torch::nn::Linear(7, 3));
  }
  Tensor forward(Tensor x) { return second(torch::tanh(norm(first(x)))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

template <class Ddp>
Tensor one_step(Ddp& ddp, std::vector<Tensor> const& parameters, int rank) {
  auto const x = numbers({8, 5}, 1).chunk(2)[static_cast<std::size_t>(rank)];
  torch::optim::SGD optimizer(parameters, 0.1);
  ddp->forward(x).square().mean().backward();
  ddp.finish();
  optimizer.step();
  std::vector<Tensor> rows;
  for (auto const& each : parameters) rows.push_back(each.detach().flatten());
  return torch::cat(rows);
}

}  // namespace

TEST_CASE("a module by its name, in a unique_ptr or as an AnyModule trains as in a shared_ptr", "[torch]") {
  auto const train = [](auto&& make) {
    return on_ranks<Tensor>(2, [&](auto& world) {
      auto const net = std::make_shared<mlp_impl>();
      fill(*net, 3);
      return make(world, net);
    });
  };
  auto const expected = train([](auto& world, std::shared_ptr<mlp_impl> net) {
    auto ddp = interop::data_parallel(net, world);
    return one_step(ddp, net->parameters(), world.rank());
  });
  auto const named = train([](auto& world, std::shared_ptr<mlp_impl> const&) {
    mlp_impl model;  // of the program's own, in no pointer
    fill(model, world.rank() == 0 ? 3 : 4);
    interop::broadcast(model, world);
    auto ddp = interop::data_parallel(model, world);
    auto out = one_step(ddp, model.parameters(), world.rank());
    if (&*ddp != &model || ddp.module().get() != &model) throw std::runtime_error("a copy");
    return out;
  });
  auto const unique = train([](auto& world, std::shared_ptr<mlp_impl> const&) {
    auto model = std::make_unique<mlp_impl>();
    fill(*model, 3);
    auto ddp = interop::data_parallel(model, world);
    return one_step(ddp, model->parameters(), world.rank());
  });
  auto const moved = train([](auto& world, std::shared_ptr<mlp_impl> const&) {
    auto model = std::make_unique<mlp_impl>();
    fill(*model, 3);
    auto ddp = interop::data_parallel(std::move(model), world);
    return one_step(ddp, ddp->parameters(), world.rank());
  });
  auto const any = train([](auto& world, std::shared_ptr<mlp_impl> const& net) {
    torch::nn::AnyModule model(net);
    auto ddp = interop::data_parallel(model, world);
    return one_step(ddp, net->parameters(), world.rank());
  });
  for (auto const& found : {named, unique, moved, any})
    for (auto const& each : found) CHECK(each.equal(expected[0]));

  comm::self_world world;
  torch::nn::Linear frozen(1, 1);
  for (auto& each : frozen->parameters()) each.requires_grad_(false);
  CHECK(sentence_of([&] { static_cast<void>(interop::data_parallel(frozen, world)); }) ==
        "trireme::interop::data_parallel: the module has no parameter that requires a gradient; register them before "
        "ranks share it");
  std::unique_ptr<mlp_impl> none;
  torch::nn::AnyModule empty;
  CHECK(sentence_of([&] { static_cast<void>(interop::data_parallel(none, world)); }) ==
        "trireme::interop: the holder has no module; make one before ranks share it");
  CHECK(contains(sentence_of([&] { static_cast<void>(interop::data_parallel(empty, world)); }), "has no module"));
}

TEST_CASE("a torch::jit::Module is wrapped as any other module", "[torch]") {
  auto const x = numbers({8, 5}, 1);
  auto const found = on_ranks<Tensor>(2, [&](auto& world) {
    torch::jit::Module model("scripted");
    auto const start = numbers({5}, 2 + static_cast<std::uint64_t>(world.rank()));
    model.register_parameter("weight", start.clone().requires_grad_(true), false);
    model.register_buffer("seen", torch::full({1}, 1.0F + static_cast<float>(world.rank())));
    model.define("def forward(self, x):\n  return (x * self.weight).sum(1) * self.seen\n");
    auto ddp = interop::data_parallel(model, world);
    auto const weight = *model.parameters().begin();
    ddp->forward({x.chunk(2)[static_cast<std::size_t>(world.rank())]}).toTensor().square().mean().backward();
    ddp.finish();
    return torch::cat({weight.detach(), weight.grad(), model.attr("seen").toTensor()});
  });
  auto weight = numbers({5}, 2).requires_grad_(true);
  (x * weight).sum(1).square().mean().backward();
  for (auto const& each : found)
    CHECK(distance(each, torch::cat({weight.detach(), weight.grad(), torch::ones({1})})) < 1e-5);
}

namespace {

/// One parameter of each type; the loss weighs every number by another factor.
struct typed_impl : torch::nn::Module {
  typed_impl() {
    auto const add = [&](char const* name, Tensor const& values) { register_parameter(name, values); };
    add("single", numbers({2, 3}, 1));
    add("wide", numbers({4}, 2).to(at::kDouble));
    add("brain", numbers({5}, 3).to(at::kBFloat16));
    add("half", numbers({6}, 4).to(at::kHalf));
    add("complex", torch::complex(numbers({2, 2}, 5), numbers({2, 2}, 6)));
    add("wide_complex", torch::complex(numbers({3}, 7), numbers({3}, 8)).to(at::kComplexDouble));
    add("last", numbers({2, 3, 4, 5}, 9).contiguous(at::MemoryFormat::ChannelsLast));
    add("turned", numbers({3, 4}, 10).t());
    register_buffer("seen", numbers({2, 3, 4, 5}, 11).contiguous(at::MemoryFormat::ChannelsLast));
  }
  Tensor forward(double factor) {
    auto sum = torch::zeros({}, at::kDouble);
    std::uint64_t seed = 20;
    for (auto const& each : parameters()) {
      auto const weights = numbers({each.numel()}, seed++).reshape(each.sizes()).to(at::kDouble);
      auto const values = each.is_complex() ? torch::view_as_real(each).pow(2).sum(-1) : each.pow(2);
      sum = sum + (values.to(at::kDouble) * weights).sum() * factor;
    }
    return sum;
  }
};

std::vector<Tensor> typed_gradients(torch::nn::Module const& net) {
  std::vector<Tensor> all;
  for (auto const& each : net.parameters()) {
    auto const& own = each.grad();
    if (own.scalar_type() != each.scalar_type() || own.strides() != each.strides())
      throw std::runtime_error("a gradient of another type, or in another order");
    all.push_back((own.is_complex() ? torch::view_as_real(own) : own).to(at::kDouble).flatten());
  }
  return all;
}

}  // namespace

TEST_CASE("parameters of all types and layouts in one module get the mean gradient", "[torch]") {
  auto const mean_of = [](auto const& options, auto ddp_of) {
    return on_ranks<std::vector<Tensor>>(2, [&](auto& world) {
      auto const net = std::make_shared<typed_impl>();
      auto ddp = ddp_of(net, world, options);
      for (int step = 0; step < 2; ++step) {
        for (auto& each : net->parameters()) each.mutable_grad().reset();
        ddp.backward(ddp->forward(world.rank() == 0 ? 1 : 2));
        if (!ddp.finish().finite) throw std::runtime_error("not finite");
      }
      auto all = typed_gradients(*net);
      auto const result = [&] {
        for (auto& each : net->parameters()) each.mutable_grad().reset();
        ddp.backward(ddp->forward(world.rank() == 0 ? 1 : NAN));
        return ddp.finish().finite;
      }();
      if (result) throw std::runtime_error("finite");
      return all;
    });
  };
  typed_impl single;
  single.forward(1.5).backward();
  auto const expected = typed_gradients(single);
  auto const in_float = [](auto const& net, auto& world, auto const& options) {
    return interop::data_parallel(net, world, options);
  };
  auto const in_double = [](auto const& net, auto& world, auto const& options) {
    return interop::data_parallel<double>(net, world, options);
  };
  using options = interop::data_parallel_options;
  for (auto const& found :
       {mean_of(options{}, in_float), mean_of(options{}, in_double),
        mean_of(options{.gradients_in_buckets = true}, in_float), mean_of(options{.unused_parameters = true}, in_float),
        mean_of(options{.loss_scale = precision::fp16{.first_scale = 8}}, in_float)}) {
    for (auto const& each : found) {
      for (std::size_t i = 0; i < expected.size(); ++i) {
        INFO(i);
        auto const tolerance = i == 2 ? 0.1 : i == 3 ? 0.02 : i == 1 || i == 5 ? 1e-12 : 1e-5;
        CHECK(distance(each[i], expected[i]) < tolerance);
      }
    }
  }
}

TEST_CASE("the norm counts parameters of all types once, and step(optimizer) needs one type", "[torch]") {
  typed_impl single;
  single.forward(1).backward();
  double squares = 0;
  for (auto const& each : typed_gradients(single)) squares += each.square().sum().item<double>();
  auto const found = on_ranks<std::pair<double, std::string>>(2, [&](auto& world) {
    auto const net = std::make_shared<typed_impl>();
    auto ddp = interop::data_parallel(net, world);
    ddp->forward(1).backward();
    auto const norm = ddp.finish().norm;
    ddp->forward(1).backward();
    return std::pair(norm, sentence_of([&] { ddp.step(optim::adamw{}); }));
  });
  for (auto const& [norm, said] : found) {
    CHECK(norm == Approx(std::sqrt(squares)).epsilon(1e-3));
    CHECK(said ==
          "trireme::interop::data_parallel: step(optimizer) updates parameters of F32 with dense gradients, and "
          "\"wide\" is of another type; end steps by finish() and an optimizer of torch's");
  }
}

TEST_CASE("a channels_last network trains as in one process, and ranks whose layouts differ are refused", "[torch]") {
  auto const x = numbers({4, 3, 6, 6}, 1).contiguous(at::MemoryFormat::ChannelsLast);
  auto const made = [](bool last) {
    torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::Conv2d(4, 2, 3));
    fill(*net, 3);
    if (last) {
      torch::NoGradGuard const guard;
      for (auto& each : net->parameters())
        if (each.dim() == 4) each.set_data(each.contiguous(at::MemoryFormat::ChannelsLast));
    }
    return net;
  };
  for (bool const trireme_step : {false, true}) {
    auto const train = [&](bool last) {
      return on_ranks<Tensor>(2, [&](auto& world) {
        auto net = made(last);
        auto ddp = interop::data_parallel(net, world);
        torch::optim::SGD optimizer(net->parameters(), 0.1);
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          ddp->forward(x.chunk(2)[static_cast<std::size_t>(world.rank())]).square().mean().backward();
          trireme_step ? ddp.step(optim::sgd{.learning_rate = 0.1}) : ddp.finish();
          if (!trireme_step) optimizer.step();
        }
        return values_of(*net);
      });
    };
    auto const rows = train(false), last = train(true);
    CHECK(distance(last[0], rows[0]) < 1e-5);
    CHECK(last[1].equal(last[0]));
  }
  auto const refused = on_ranks<std::string>(2, [&](auto& world) {
    auto net = made(world.rank() == 1);
    return sentence_of([&] { static_cast<void>(interop::data_parallel(net, world)); });
  });
  CHECK(refused[1] ==
        "trireme::interop: the module of rank 1 differs from that of rank 0; the first difference is number 1 of its "
        "tensors, which on this rank is parameter \"0.weight\" of Float(4, 3, 3, 3), strides 27 1 9 3");
}

TEST_CASE("gradients of sparse embeddings stay sparse, and are sent as rows if that is less", "[torch]") {
  struct outcome {
    Tensor gradient{}, values{};
    bool sparse = true;
  };
  struct lookup_impl : torch::nn::Module {
    explicit lookup_impl(std::int64_t rows) {
      using namespace torch::nn;
      table = register_module("table", Embedding(EmbeddingOptions(rows, 3).sparse(true)));
      head = register_module("head", Linear(3, 1));
    }
    Tensor forward(Tensor const& places) { return head(table(places)).square().mean(); }
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear head{nullptr};
  };
  auto const places = [](int rank, int step, std::int64_t rows) {
    return torch::tensor({rank * 2 + step, 1, rank * 2 + step, static_cast<int>(rows) - 1}, at::kLong);
  };
  auto const train = [&](std::int64_t rows, interop::data_parallel_options const& options, auto const& strategy) {
    return on_ranks<outcome>(2, [&](auto& world) {
      auto const net = std::make_shared<lookup_impl>(rows);
      fill(*net, 3);
      auto ddp = interop::data_parallel(net, world, options, strategy);
      torch::optim::SGD optimizer(net->parameters(), 0.5);
      outcome found;
      for (int step = 0; step < (world.rank() == 0 ? 3 : 2); ++step) {
        for (auto& each : net->parameters()) each.mutable_grad().reset();
        ddp.backward(ddp->forward(places(world.rank(), step, rows)));
        ddp.finish();
        found.sparse = found.sparse && net->table->weight.grad().is_sparse();
        optimizer.step();
      }
      while (ddp.join()) optimizer.step();
      found.gradient = net->table->weight.grad().to_dense();
      found.values = values_of(*net);
      return found;
    });
  };
  auto const alone = [&](std::int64_t rows) {
    lookup_impl single(rows);
    fill(single, 3);
    torch::optim::SGD optimizer(single.parameters(), 0.5);
    for (int step = 0; step < 3; ++step) {
      for (auto& each : single.parameters()) each.mutable_grad().reset();
      auto loss = single.forward(places(0, step, rows)) / 2;
      if (step < 2) loss = loss + single.forward(places(1, step, rows)) / 2;
      loss.backward();
      optimizer.step();
    }
    return values_of(single);
  };
  for (std::int64_t const rows : {5, 1000}) {  // the first: as a whole
    for (auto const& found :
         {train(rows, {}, parallel::data{}), train(rows, {.gradients_in_buckets = true}, parallel::data{}),
          train(rows, {.loss_scale = precision::fp16{.first_scale = 8}}, parallel::data{})}) {
      for (auto const& each : found) {
        CHECK(each.sparse);
        CHECK(distance(each.values, alone(rows)) < 1e-5);
        CHECK(each.values.equal(found[0].values));
      }
    }
  }
  // Alone, so that the exchange has nothing else to send.
  auto const only = on_ranks<outcome>(2, [&](auto& world) {
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(9, 2).sparse(true));
    fill(*table, 1);
    auto ddp = interop::data_parallel(table, world);
    ddp->forward(torch::tensor({world.rank()}, at::kLong)).sum().backward();
    auto const norm = ddp.finish().norm;
    return outcome{table->weight.grad().to_dense(), torch::tensor(norm), table->weight.grad().is_sparse()};
  });
  for (auto const& each : only) {
    CHECK(each.sparse);
    CHECK(each.gradient.slice(0, 0, 2).equal(torch::full({2, 2}, 0.5F)));
    CHECK(each.values.item<double>() == Approx(1));
  }
  // A functional embedding tells nobody: its gradient becomes dense.
  auto const dense = on_ranks<Tensor>(2, [&](auto& world) {
    torch::nn::Embedding table(5, 3);
    fill(*table, 1);
    auto ddp = interop::data_parallel(table, world);
    torch::embedding(table->weight, torch::tensor({world.rank()}, at::kLong), -1, false, true).sum().backward();
    ddp.finish();
    return table->weight.grad().is_sparse() ? Tensor() : table->weight.grad().clone();
  });
  for (auto const& each : dense) {
    REQUIRE(each.defined());
    CHECK(each.slice(0, 0, 2).equal(torch::full({2, 3}, 0.5F)));
    CHECK(each.slice(0, 2).equal(torch::zeros({3, 3})));
  }
}
