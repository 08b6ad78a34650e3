#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/optim/sgd.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/train/make_exchange.hpp"
#include "trireme/train/make_trainer.hpp"

/// Exchanges, trainers and collectives of the program on one world, of equal sizes, in another order on rank 1: every
/// rank must get the error that names both.
namespace labels_cases {

using namespace trireme;

struct one_tensor {
  std::vector<float> value = std::vector<float>(3000, 1.0F);
  std::vector<float> gradient = std::vector<float>(3000, 1.0F);
  std::vector<foreign_parameter<float>> list() { return {{"value", tensor_view{value}, tensor_view{gradient}}}; }

  // As a model.
  void visit_parameters(auto&& visit) { visit("value", tensor_view{value}, tensor_view{gradient}); }
  double forward(samples const&) const { return static_cast<double>(value[0]); }
  void backward(auto&& ready) { ready("value"); }
};

/// What a case is, and what the sentence says of rank 0 and of rank 1.
struct order {
  std::string_view name;
  std::string_view of_first, of_second;
};
inline constexpr std::array<order, 6> all{{
    {"two exchanges", "of exchange 1", "of exchange 2"},
    {"two exchanges under zero<1>", "for bucket 0 of exchange 1", "for bucket 0 of exchange 2"},
    {"two buckets", "for bucket 0 of exchange 1", "for the vote of exchange 1"},
    {"two trainers", "for trainer 1", "for trainer 2"},
    {"an exchange beside the program", "for bucket 0 of exchange 1", "for no exchange or trainer"},
    {"a trainer beside the program", "for trainer 1", "for no exchange or trainer"},
}};

template <class World>
void use(World& world, std::string_view which) {
  bool const odd = world.rank() == 1;
  one_tensor a, b;
  auto const exchange = [&](auto const& policy) {
    auto first = make_exchange(a.list(), world, policy);
    auto second = make_exchange(b.list(), world, policy);
    first.begin();
    second.begin();
    (odd ? second : first).ready(0);
    (odd ? second : first).finish();
    (odd ? first : second).ready(0);
    (odd ? first : second).finish();
  };
  if (which == "two exchanges") return exchange(parallel::data{});
  if (which == "two exchanges under zero<1>") return exchange(parallel::zero<1>{});
  if (which == "two buckets") {
    auto one = make_exchange(a.list(), world, parallel::zero<1>{});
    one.begin();
    parallel::vote vote;
    if (odd) static_cast<void>(one.count(vote));
    one.ready(0);
    one.finish();
  } else if (which == "an exchange beside the program") {
    auto one = make_exchange(a.list(), world, parallel::zero<1>{});
    one.begin();
    auto const elements = one.plan().buckets()[0].elements;
    std::vector<float> own(static_cast<std::size_t>(elements));
    if (odd) world.reduce_scatter(tensor_view{own});
    one.ready(0);
    one.finish();
  } else {
    auto first = make_trainer(a, optim::sgd{.learning_rate = 0.1}, world);
    auto second = make_trainer(b, optim::sgd{.learning_rate = 0.1}, world);
    std::vector<float> const numbers(2, 1.0F);
    auto const batch = make_samples(tensor_view<float const>(numbers.data(), shape{2, 1}),
                                    tensor_view<float const>(numbers.data(), shape{2, 1}));
    if (which == "two trainers") {
      (odd ? second : first).step(batch);
      (odd ? first : second).step(batch);
    } else {
      std::vector<std::int64_t> own(2);
      if (odd) world.all_reduce(tensor_view{own});
      first.step(batch);
    }
  }
}

/// What is wrong with the error on this rank, or nothing.
template <class World>
std::string wrong(World& world, order const& which) {
  std::string told = "no error";
  try {
    use(world, which.name);
  } catch (comm_error const& problem) {
    told = problem.what();
  }
  auto const has = [&](std::string_view part) { return told.find(part) != std::string::npos; };
  auto const first = told.find("rank 0 called "), second = told.find("rank 1 called ");
  bool const named = first != std::string::npos && second != std::string::npos &&
                     told.find(which.of_first, first) < second && told.find(which.of_second, second) < told.size();
  bool const whose = which.name == "two buckets" || has("; make and use exchanges and trainers, and call collectives");
  if (has("call number ") && has(" differs between ranks: ") && named && whose) return {};
  return text(which.name, ", rank ", world.rank(), ": ", told);
}

}  // namespace labels_cases
