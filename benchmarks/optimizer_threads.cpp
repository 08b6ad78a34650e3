// One optimizer step on 25 million parameters, one rank per core, as one JSON object per row:
//   fused    every rank's gradients are summed inside the AdamW of the shard's owner, which writes all ranks' values
//   sharded  reduce_scatter, AdamW of the shard, all_gather of the values
//   replicated  all_reduce, AdamW of everything on every rank

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "trireme/core/cores.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

using kernels = ops::on<host>;
using clock_type = std::chrono::steady_clock;

constexpr std::int64_t parameters = 25'000'000;

struct row {
  char const* method;
  double bytes;  // of memory traffic per parameter, over all ranks
  std::vector<double> seconds;
};

/// Rank 0 measures the time from barrier to barrier.
template <class World, class Step>
void time(World& world, std::vector<double>& seconds, Step&& step) {
  world.barrier();
  auto const start = clock_type::now();
  step();
  world.barrier();
  if (world.rank() == 0) seconds.push_back(std::chrono::duration<double>(clock_type::now() - start).count());
}

}  // namespace

int main() {
  int const ranks = usable_cores();
  std::int64_t const n = (parameters + ranks - 1) / ranks * ranks;
  std::int64_t const slice = n / ranks;
  double const p = ranks;
  row rows[] = {{"fused", 4 * p + 24 + 4 * (p - 1), {}},
                {"sharded", 4 * (p + 1) + 28 + 8 * (p - 1), {}},
                {"replicated", 8 * p + 28 * p, {}}};
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto const make = [&](double value) {
      tensor<float> out(shape{n});
      kernels::fill(out.view(), value);
      return out;
    };
    auto const value = make(1);
    auto const gradient = make(1e-3);
    auto const first = make(0);
    auto const second = make(0);
    auto const gradients = world.peers(gradient.view());
    auto const values = world.peers(value.view());
    ops::adamw_numbers const numbers{
        .learning_rate = 1e-4, .weight_decay = 0.01, .correction1 = 0.1, .correction2 = 0.001};
    std::int64_t const begin = world.rank() * slice;
    auto const own = [&](tensor<float> const& whole) { return whole.view().flat(begin, slice); };
    std::vector<tensor_view<float const>> terms;
    for (auto const& each : gradients) terms.push_back(each.flat(begin, slice));
    std::vector<tensor_view<float>> others;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank != world.rank()) others.push_back(values[static_cast<std::size_t>(rank)].flat(begin, slice));
    }
    tensor_view<float const> const alone[] = {own(gradient)};
    tensor_view<float const> const whole[] = {gradient.view()};
    double const mean = 1.0 / world.size();
    for (int round = 0; round < 11; ++round) {
      time(world, rows[0].seconds, [&] {
        kernels::adamw(own(value), own(first), own(second), gradient_terms<float, host>{terms, mean},
                       std::span<tensor_view<float> const>(others), numbers);
      });
      time(world, rows[1].seconds, [&] {
        world.reduce_scatter(gradient.view(), reduction::sum{});
        kernels::adamw(own(value), own(first), own(second), gradient_terms<float, host>{alone, mean},
                       std::span<tensor_view<float> const>{}, numbers);
        world.all_gather(value.view());
      });
      time(world, rows[2].seconds, [&] {
        world.all_reduce(gradient.view(), reduction::sum{});
        kernels::adamw(value.view(), first.view(), second.view(), gradient_terms<float, host>{whole, mean},
                       std::span<tensor_view<float> const>{}, numbers);
      });
      kernels::fill(gradient.view(), 1e-3);
    }
  });
  for (auto& each : rows) {
    std::sort(each.seconds.begin(), each.seconds.end());
    double const median = each.seconds[each.seconds.size() / 2];
    std::printf(
        "{\"benchmark\":\"optimizer\",\"system\":\"trireme\",\"method\":\"%s\",\"ranks\":%d,\"parameters\":%lld,"
        "\"milliseconds\":%.2f,\"milliseconds_best\":%.2f,\"bytes_per_parameter\":%.0f,\"gbps\":%.1f}\n",
        each.method, ranks, static_cast<long long>(n), median * 1e3, each.seconds.front() * 1e3, each.bytes,
        each.bytes * static_cast<double>(n) / median * 1e-9);
  }
}
