#pragma once

#include "trireme/interop/torch.hpp"
#undef CHECK  // torch's word for what Catch2 means by it

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/trireme.hpp"

namespace torch_cases {

using namespace trireme;
using torch::Tensor;

/// Every rank's answer. (Catch2 counts in one thread only.)
template <class Answer, class F>
std::vector<Answer> on_ranks(int ranks, F&& f) {
  std::vector<Answer> all(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    interop::divide_threads(world);
    all[static_cast<std::size_t>(world.rank())] = f(world);
  });
  return all;
}
/// The same numbers in each run and on each rank.
inline Tensor numbers(std::initializer_list<std::int64_t> sizes, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(at::IntArrayRef(sizes.begin(), sizes.size()), generator);
}
inline void fill(torch::nn::Module& module, std::uint64_t seed) {
  torch::NoGradGuard const guard;
  auto generator = at::detail::createCPUGenerator(seed);
  for (auto& each : module.parameters()) each.normal_(0, 0.3, generator);
}
/// All gradients in one row; where there is none, NaN.
inline Tensor gradients_of(torch::nn::Module const& module) {
  std::vector<Tensor> rows;
  for (auto const& each : module.parameters())
    rows.push_back(each.grad().defined() ? each.grad().flatten().clone() : torch::full({each.numel()}, NAN));
  return torch::cat(rows);
}
inline Tensor values_of(torch::nn::Module const& module) {
  std::vector<Tensor> rows;
  for (auto const& each : module.parameters()) rows.push_back(each.detach().flatten().to(at::kDouble));
  return torch::cat(rows);
}
inline double distance(Tensor const& a, Tensor const& b) { return (a - b).abs().max().item<double>(); }

struct perceptron_impl : torch::nn::Module {
  perceptron_impl() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
  }
  Tensor forward(Tensor const& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
using perceptron = torch::nn::ModuleHolder<perceptron_impl>;

}  // namespace torch_cases
