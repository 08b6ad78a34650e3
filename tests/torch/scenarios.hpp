#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "torch_cases.hpp"
#include "trireme/comm/lend.hpp"

/// Cases of data parallelism, each a function of a rank that returns how far its gradients or values are from those of
/// one process with all samples.
namespace scenarios {

using namespace torch_cases;
using comm::any_world;
using options = interop::data_parallel_options;

inline Tensor plain(Tensor const& row) { return torch::nan_to_num(row, -9); }
inline Tensor batch(int rank) { return numbers({3, 5}, 10 + static_cast<std::uint64_t>(rank)); }

/// The mean over the ranks of the gradients that loss(net, rank) leaves in a net of its own.
template <class Net, class Loss>
Tensor mean_of_ranks(int ranks, Loss&& loss) {
  Tensor sum;
  for (int rank = 0; rank < ranks; ++rank) {
    Net net;
    fill(*net, 3);
    loss(net, rank);
    auto const own = torch::nan_to_num(gradients_of(*net), 0);
    sum = sum.defined() ? sum + own : own;
  }
  return sum / ranks;
}
/// How far data_parallel is from that: loss(net, rank) makes the step up to finish().
template <class Net, class Loss>
double one_step(any_world& world, Loss&& loss, options const& how = {}) {
  Net net;
  fill(*net, 3);
  auto ddp = interop::data_parallel(net, world, how);
  loss(net, world.rank());
  ddp.finish();
  return distance(torch::nan_to_num(gradients_of(*net), 0), mean_of_ranks<Net>(world.size(), loss));
}
inline double difference(any_world& world, Tensor const& row) {  // between ranks
  auto const all = interop::all_gather(world, plain(row).to(at::kDouble));
  return (all - all[0]).abs().max().item<double>();
}

struct scenario {
  char const* name;
  std::function<double(any_world&)> off_by;
};
using scenarios_of = std::initializer_list<std::vector<scenario> const*>;

/// The names of those that are not right, on some rank.
inline std::string wrong_on(any_world& world, scenarios_of lists, double tolerance) {
  std::string wrong;
  interop::divide_threads(world);
  for (auto const* list : lists) {
    for (auto const& each : *list) {
      std::string said;
      double off = 0;
      try {
        off = each.off_by(world);
      } catch (config_error const& problem) {
        off = 1, said = problem.what();
      }
      double worst = off;
      world.all_reduce(tensor_view<double>(&worst, shape{1}), reduction::max{});
      if (!(worst < tolerance)) wrong += text(each.name, " (off by ", worst, ") ", said, "\n");
    }
  }
  return wrong;
}
/// Calls f with any world as an any_world.
template <class F>
auto lending(F f) {
  return [f](auto& world) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(world)>, any_world>) {
      return f(world);
    } else {
      auto as_any = comm::lend(world);
      return f(as_any);
    }
  };
}

}  // namespace scenarios
