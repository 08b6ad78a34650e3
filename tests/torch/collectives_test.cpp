#include "trireme/interop/torch.hpp"

#include "torch_cases.hpp"
#include "trireme/comm/counted.hpp"
#include "trireme/comm/decorate.hpp"
#include "trireme/comm/recorded.hpp"

// Tensors in collectives of a program's own.

using namespace torch_cases;

TEST_CASE("tensors of all types are summed, sent and gathered", "[torch]") {
  struct outcome {
    bool right = true;
    std::vector<std::string> said{};
  };
  auto const found = on_ranks<outcome>(3, [](auto& world) {
    outcome out;
    auto const expect = [&](bool holds) { out.right = out.right && holds; };
    int const rank = world.rank();
    for (auto const type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kChar,
                            at::kByte, at::kComplexFloat, at::kComplexDouble, at::kBool, at::kShort}) {
      auto const own = torch::full({2, 2}, 1 + rank).to(type);
      if (type != at::kBool && type != at::kShort) {
        auto const sum = own.clone();
        expect(interop::all_reduce(world, sum).is_same(sum) && sum.equal(torch::full({2, 2}, 6).to(type)));
      }
      auto const sent = own.clone();
      interop::broadcast(world, sent, 2);
      expect(sent.equal(torch::full({2, 2}, 3).to(type)));
      auto const all = interop::all_gather(world, own);
      expect(all.sizes() == at::IntArrayRef({3, 2, 2}) && all.scalar_type() == type);
      for (int each = 0; each < 3; ++each) expect(all[each].equal(torch::full({2, 2}, 1 + each).to(type)));
    }
    auto const wide = torch::arange(6, at::kFloat).reshape({2, 3}).t() + static_cast<float>(rank);  // not row-major
    auto const turned = wide.clone(at::MemoryFormat::Preserve);
    interop::all_reduce(world, turned, reduction::mean{});
    expect(turned.equal(torch::arange(6, at::kFloat).reshape({2, 3}).t() + 1));
    auto every_second = torch::zeros({6}).add_(rank).slice(0, 0, 6, 2);
    interop::broadcast(world, every_second, 1);
    expect(every_second.equal(torch::ones({3})));
    expect(interop::all_gather(world, wide)[2].equal(torch::arange(6, at::kFloat).reshape({2, 3}).t() + 2));
    expect(
        interop::all_gather(world, torch::tensor(1.0F * static_cast<float>(rank))).equal(torch::arange(3, at::kFloat)));
    expect(interop::all_gather(world, torch::empty({0, 4})).sizes() == at::IntArrayRef({3, 0, 4}));

    auto weight = torch::full({2}, static_cast<float>(rank), at::TensorOptions().requires_grad(true));
    interop::broadcast(world, weight, 1);  // a parameter
    auto const loss = (weight * (1 + rank)).sum();
    expect(interop::all_reduce(world, loss.detach().clone(), reduction::mean{}).template item<float>() == 4);
    loss.backward();
    expect(weight.grad().equal(torch::full({2}, 1.0F + static_cast<float>(rank))));

    auto const flag = torch::tensor(rank == 1);
    auto const any = interop::all_reduce(world, flag.clone(), reduction::max{});
    auto const every = interop::all_reduce(world, flag.clone(), reduction::min{});
    expect(any.template item<bool>() && !every.template item<bool>());
    out.said.push_back(sentence_of([&] { interop::all_reduce(world, flag); }));
    out.said.push_back(
        sentence_of([&] { interop::all_reduce(world, torch::zeros({1}, at::kLong), reduction::mean{}); }));
    out.said.push_back(sentence_of([&] { interop::all_reduce(world, torch::zeros({1}, at::kShort)); }));
    out.said.push_back(
        sentence_of([&] { interop::all_reduce(world, torch::zeros({1}, at::kComplexFloat), reduction::max{}); }));
    out.said.push_back(sentence_of([&] { interop::broadcast(world, Tensor()); }));
    out.said.push_back(sentence_of([&] { interop::broadcast(world, torch::empty({1}, at::kMeta)); }));
    out.said.push_back(sentence_of([&] { static_cast<void>(interop::all_gather(world, torch::eye(2).to_sparse())); }));
    return out;
  });
  for (auto const& each : found) {
    CHECK(each.right);
    REQUIRE(each.said.size() == 7);
    CHECK(
        each.said[0] ==
        "trireme::interop::all_reduce: a tensor of Bool does not go with this reduction; reduction::max is true where "
        "any rank has true, min where all have");
    CHECK(each.said[1] ==
          "trireme::interop::all_reduce: a tensor of Long does not go with this reduction; convert it to a "
          "floating-point type for a mean");
    CHECK(contains(each.said[2], "a tensor of Short does not go with this reduction; supported are Float, Double"));
    CHECK(contains(each.said[3], "complex numbers have no order"));
    CHECK(each.said[4] == "trireme::interop::broadcast: the tensor is undefined");
    CHECK(each.said[5] ==
          "trireme::interop::broadcast: the tensor is one of meta, but this communicator's ranks share memory of cpu; "
          "move it with to()");
    CHECK(each.said[6] == "trireme::interop::all_gather: the tensor is sparse; to_dense() makes it dense");
  }
}

TEST_CASE("every communicator accepts tensors, and loops that stop depending on a loss stop on all ranks", "[torch]") {
  auto const mean = [](auto& world) {
    return interop::all_reduce(world, torch::full({2}, static_cast<float>(world.rank())), reduction::mean{})[1]
        .template item<float>();
  };
  comm::self_world alone;
  CHECK(mean(alone) == 0);
  for (float const each : on_ranks<float>(3, [&](auto& world) {
         auto decorated = comm::decorate(world, comm::counted{}, comm::recorded{});
         return mean(decorated) + mean(world);
       }))
    CHECK(each == 2);
  auto const steps = on_ranks<int>(2, [](auto& world) {
    torch::nn::Linear net(1, 1);
    fill(*net, 1);
    auto ddp = interop::data_parallel(net, world);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    auto const x = torch::full({1, 1}, 1.0F + static_cast<float>(world.rank()));
    for (int step = 1;; ++step) {
      optimizer.zero_grad();
      auto const loss = torch::mse_loss(ddp->forward(x), 2 * x);
      loss.backward();
      ddp.finish();
      optimizer.step();
      if (interop::all_reduce(world, loss.detach().clone(), reduction::mean{}).template item<float>() < 1e-4F)
        return step;
    }
  });
  CHECK(steps[0] == steps[1]);
}
