#include "trireme/parallel/detail/transport.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/compression/compression.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
namespace c = trireme::compression;

namespace {

using env = environment<precision::fp32>;
constexpr std::int64_t slice = 1536;

/// The gradient of one rank in one step.
std::vector<float> gradient(int ranks, int rank, int step) {
  std::vector<float> all(static_cast<std::size_t>(slice * ranks));
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const bits = mix(i + std::uint64_t{1'000'003} * static_cast<std::uint64_t>(100 * step + rank));
    all[i] = static_cast<float>(bits >> 40) * 0x1p-23F - 1;
  }
  return all;
}

/// What a rank has in its bucket after each of some steps: all of it, or its own slice.
template <class Strategy, class Codec, class World>
std::vector<std::vector<float>> sums(World& world, Codec const& codec, int first, int last) {
  auto const ranks = world.size();
  parallel::detail::one_round<env, World, Strategy, Codec> wire(codec, {slice * ranks, {}}, world);
  std::vector<std::vector<float>> out;
  for (int step = first; step < last; ++step) {
    auto bucket = gradient(ranks, world.rank(), step);
    if constexpr (has_at_gradient<decltype(wire)>) wire.at_gradient({.step = step, .bucket = 2, .rank = world.rank()});
    wire.begin(tensor_view<float>(bucket), 1);
    while (!wire.turn()) continue;
    wire.commit();
    if (Strategy::optimizer_state == distribution::shard) {
      auto const own = bucket.begin() + world.rank() * slice;
      bucket = std::vector<float>(own, own + slice);
    }
    out.push_back(std::move(bucket));
  }
  return out;
}

/// The largest difference from the sum without a compressor, and its mean square beside that of the gradient.
struct errors {
  double largest = 0, mean_square = 0;
};
errors errors_of(std::vector<float> const& found, int ranks, int step) {
  std::vector<double> exact(found.size());
  double square = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const part = gradient(ranks, rank, step);
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += static_cast<double>(part[i]);
  }
  errors out;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    auto const error = static_cast<double>(found[i]) - exact[i];
    out.largest = std::fmax(out.largest, std::fabs(error));
    out.mean_square += error * error;
    square += exact[i] * exact[i];
  }
  out.mean_square /= square;
  return out;
}

/// What is wrong on this rank: data and zero<1> get the same numbers, all ranks do, a run that is begun in the middle
/// gets those of the whole one, and the error is about as large as the method says.
template <class Codec, class World>
std::string agrees(World& world, Codec const& codec, errors const& most) {
  auto const data = sums<parallel::data>(world, codec, 0, 4);
  auto const zero = sums<parallel::zero<1>>(world, codec, 0, 4);
  auto const rest = sums<parallel::data>(world, codec, 2, 4);
  std::string problem;
  if (rest != std::vector(data.begin() + 2, data.end())) problem += "begun in the middle: other numbers; ";
  for (std::size_t step = 0; step < 4; ++step) {
    auto const own = data[step].begin() + world.rank() * slice;
    if (zero[step] != std::vector<float>(own, own + slice)) problem += text("step ", step, ": zero<1> differs; ");
    auto theirs = data[step];
    world.broadcast(tensor_view<float>(theirs), 0);
    if (theirs != data[step]) problem += text("step ", step, ": ranks differ; ");
    auto const found = errors_of(data[step], world.size(), static_cast<int>(step));
    if (!(found.largest <= most.largest && found.mean_square <= most.mean_square))
      problem += text("step ", step, ": errors of ", found.largest, " and ", found.mean_square, "; ");
  }
  return problem.empty() ? problem : text(describe(codec), ": ", problem);
}

}  // namespace

TEST_CASE("codecs give data and zero<1> the same sums on every rank, within the error of their method",
          "[parallel][compression]") {
  for (int const ranks : {1, 2, 3}) {
    watchdog const watch("codecs in a transport");
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto& mine = found[static_cast<std::size_t>(world.rank())];
      auto const p = static_cast<double>(ranks);
      mine += agrees(world, c::quantise<8>{}, {p / 127 * 1.01, 1e-4});
      mine += agrees(world, c::quantise<4>{}, {p / 7 * 1.01, 0.015});
      mine += agrees(world, c::quantise<2>{}, {p * 1.01, 0.6});
      mine += agrees(world, c::quantise<2>{.rounding = c::code_rounding::nearest}, {p * 0.51, 0.3});
      mine += agrees(world, c::sign{}, {p * 0.6, 0.3});
      mine += agrees(world, c::random_k{.ratio = 0.25F}, {p, 0.85});
      mine += agrees(world, c::random_k{.ratio = 1}, {1e-6, 1e-10});
      mine += agrees(world, c::top_k_sampled{.ratio = 0.5F}, {p, 0.3});
      mine += agrees(world, c::cast<bf16>{}, {p / 128, 1e-4});
    });
    INFO("ranks " << ranks);
    CHECK(found == std::vector<std::string>(found.size()));
  }
}

TEST_CASE("error feedback around a codec sends in time what it has left out", "[parallel][compression]") {
  std::vector<std::string> found(2);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto& mine = found[static_cast<std::size_t>(world.rank())];
    auto const learns = [&]<class Codec>(Codec const& codec) {
      // Of a gradient that stays the same, the mean over steps comes closer and closer.
      using wire_type = parallel::detail::one_round<env, std::remove_reference_t<decltype(world)>, parallel::data,
                                                    c::error_feedback<Codec>>;
      wire_type wire({.inner = codec}, {2 * slice, {}}, world);
      std::vector<double> mean(static_cast<std::size_t>(2 * slice));
      constexpr int steps = 200;
      for (int step = 0; step < steps; ++step) {
        auto bucket = gradient(2, world.rank(), 0);
        if constexpr (has_at_gradient<wire_type>) wire.at_gradient({.step = step, .rank = world.rank()});
        wire.begin(tensor_view<float>(bucket), 1);
        while (!wire.turn()) continue;
        wire.commit();
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += static_cast<double>(bucket[i]) / steps;
      }
      auto const left = errors_of(std::vector<float>(mean.begin(), mean.end()), 2, 0);
      if (!(left.mean_square < 0.01)) mine += text(describe(codec), ": ", left.mean_square, "; ");
    };
    learns(c::quantise<4>{});
    learns(c::quantise<2>{.rounding = c::code_rounding::nearest});
    learns(c::sign{});
    learns(c::random_k{.ratio = 0.2F});
    learns(c::top_k_sampled{.ratio = 0.1F});
  });
  CHECK(found == std::vector<std::string>(2));
}
