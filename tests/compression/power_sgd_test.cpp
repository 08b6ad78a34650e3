// test-timeout: 300
// test-sanitize: none
#include "trireme/compression/power_sgd.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "compressed_training.hpp"
#include "trireme/train/make_exchange.hpp"

using namespace trireme;
using compression::power_sgd;

namespace {

using env = environment<precision::fp32>;

/// A bucket of a matrix, a vector, a tensor of three dimensions and a matrix too small to compress, with a gap.
struct small_bucket {
  std::vector<parameter_info> infos{{"matrix", {40, 30}}, {"vector", {50}}, {"cube", {32, 4, 12}}, {"small", {6, 6}}};
  std::vector<std::int64_t> offsets{0, 1200, 1264, 2800};
  bucket_form form{3072, {}};
  small_bucket() {
    for (std::size_t i = 0; i < infos.size(); ++i) form.tensors.push_back({&infos[i], offsets[i]});
  }
};

float noise(std::uint64_t a, std::uint64_t b) { return static_cast<float>(mix(mix(a) + b) >> 40) * 0x1p-23F - 1; }

/// The gradient of one rank in one step; if `thin`, matrices have rank 1.
std::vector<float> gradient(small_bucket const& bucket, int rank, int step, bool thin) {
  std::vector<float> all(static_cast<std::size_t>(bucket.form.elements));
  for (std::size_t t = 0; t < bucket.infos.size(); ++t) {
    auto const& extents = bucket.infos[t].extents;
    auto const seed = static_cast<std::uint64_t>(1000 * rank + 10 * step) + t;
    auto const columns = extents.size() / extents[0];
    for (std::int64_t i = 0; i < extents.size(); ++i) {
      auto const at = static_cast<std::uint64_t>(i);
      auto const column = static_cast<std::uint64_t>(i % columns);
      all[static_cast<std::size_t>(bucket.offsets[t] + i)] =
          thin ? noise(seed, static_cast<std::uint64_t>(i / columns)) * noise(seed + 7, 1000 + column)
               : noise(seed, at);
    }
  }
  return all;
}

/// The sum over the ranks, formed in their order.
std::vector<float> serial_sum(small_bucket const& bucket, int ranks, int step, bool thin) {
  auto sum = gradient(bucket, 0, step, thin);
  for (int rank = 1; rank < ranks; ++rank) {
    auto const next = gradient(bucket, rank, step, thin);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
  }
  return sum;
}

template <class State>
void exchange(State& state, std::vector<float>& gradient, double scale = 1) {
  state.begin(tensor_view<float>(gradient), scale);
  while (!state.turn()) static_cast<void>(state.test());
}

/// A tolerance for sums of numbers up to 1: rounding, times how nearly dependent the columns of P are.
constexpr double rounding = 1e-3;

/// The largest difference of elements [first, last).
double difference(std::vector<float> const& a, std::vector<float> const& b, std::int64_t first, std::int64_t last) {
  double most = 0;
  for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i)
    most = std::max(most, static_cast<double>(std::abs(a[i] - b[i])));
  return most;
}

/// The failures that each of some threads found.
template <class Body>
void on_threads(int ranks, Body&& body) {
  std::vector<std::string> found(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks},
         [&](auto& world) { found[static_cast<std::size_t>(world.rank())] = body(world); });
  INFO("ranks " << ranks);
  CHECK(found == std::vector<std::string>(found.size()));
}

}  // namespace

TEST_CASE("power_sgd sends a sum of at most its rank exactly up to rounding, in every step", "[compression]") {
  for (int const ranks : {1, 2, 3, 4}) {
    on_threads(ranks, [&]<class World>(World& world) -> std::string {
      small_bucket const bucket;
      power_sgd::instance<env, World> state({.rank = 6}, bucket.form, world);
      for (int step = 0; step < 3; ++step) {
        auto mine = gradient(bucket, world.rank(), step, true);
        exchange(state, mine);
        state.commit();
        auto const all = serial_sum(bucket, ranks, step, true);
        // A residual is the rounding error of earlier steps.
        auto const most = difference(mine, all, 0, bucket.form.elements);
        if (most > rounding) return text("step ", step, " is off by ", most);
      }
      return {};
    });
  }
}

TEST_CASE("vectors and matrices too small to gain are sent uncompressed beside the others", "[compression]") {
  for (int const ranks : {1, 2, 4}) {
    on_threads(ranks, [&]<class World>(World& world) -> std::string {
      small_bucket const bucket;
      power_sgd::instance<env, World> state({.rank = 2}, bucket.form, world);
      auto mine = gradient(bucket, world.rank(), 0, false);
      exchange(state, mine);
      auto const all = serial_sum(bucket, ranks, 0, false);
      if (difference(mine, all, 1200, 1264) != 0) return "the vector is not the sum";
      if (difference(mine, all, 2800, 3072) != 0) return "the small matrix is not the sum";
      if (difference(mine, all, 0, 1200) == 0) return "the matrix has lost nothing";
      power_sgd::instance<env, World> full({.rank = 30}, bucket.form, world);  // as many as the matrix has columns
      mine = gradient(bucket, world.rank(), 0, false);
      exchange(full, mine);
      if (difference(mine, all, 0, bucket.form.elements) != 0) return "a full rank is not the sum";
      return {};
    });
  }
}

TEST_CASE("with power_sgd sent values and all ranks' residuals add up to all gradients so far", "[compression]") {
  for (int const ranks : {1, 2, 3, 4}) {
    on_threads(ranks, [&]<class World>(World& world) -> std::string {
      small_bucket const bucket;
      power_sgd::instance<env, World> state({.rank = 2}, bucket.form, world);
      std::vector<float> told(3072), all(3072), left(3072);
      double first = 0, last = 0;
      for (int step = 0; step < 30; ++step) {
        float const scale = step % 3 == 0 ? 1.0F : 512.0F;  // the loss scale
        auto mine = gradient(bucket, world.rank(), step, false);
        for (auto& each : mine) each *= scale;
        exchange(state, mine, scale);
        if (step % 5 == 4) continue;  // a step that was skipped
        state.commit();
        auto const sum = serial_sum(bucket, ranks, step, false);
        for (std::size_t i = 0; i < sum.size(); ++i) {
          told[i] += mine[i] / scale;
          all[i] += sum[i];
        }
      }
      state.visit_state(state_scope::owned, [&](std::string const& name, state_location const& place, auto view) {
        if (!place.of_rank) return;
        auto const at = name == "residual/matrix" ? 0 : 1264;
        for (std::int64_t i = 0; i < view.size(); ++i) left[static_cast<std::size_t>(at + i)] = view[i];
      });
      world.all_reduce(tensor_view<float>(left), reduction::sum{});
      first = difference(told, all, 0, 3072);
      for (std::size_t i = 0; i < told.size(); ++i) told[i] += left[i];
      last = difference(told, all, 0, 3072);
      return first > 0.1 && last < 2e-4 ? std::string() : text("off by ", last, ", without residuals by ", first);
    });
  }
}

TEST_CASE("every rank has the same bits of a sum and of Q, and a step that is not taken changes no state",
          "[compression]") {
  on_threads(4, [&]<class World>(World& world) -> std::string {
    small_bucket const bucket;
    power_sgd::instance<env, World> state({.rank = 3}, bucket.form, world);
    auto const shown = [&](bool of_rank) {
      std::vector<float> all;
      state.visit_state(state_scope::kept, [&](std::string const&, state_location const& place, auto view) {
        if (place.of_rank == of_rank) all.insert(all.end(), view.span().begin(), view.span().end());
      });
      return all;
    };
    auto mine = gradient(bucket, world.rank(), 0, false);
    exchange(state, mine);
    state.commit();
    for (auto first : {mine, shown(false)}) {
      auto const own = first;
      world.broadcast(tensor_view<float>(first), 0);
      if (first != own) return "not the same as on rank 0";
    }
    auto const before = std::pair(shown(false), shown(true));
    mine = gradient(bucket, world.rank(), 1, false);
    exchange(state, mine);
    if (std::pair(shown(false), shown(true)) != before) return "changed without commit()";
    int answered = 0;
    state.visit_state(state_scope::owned, [&](std::string const& name, state_location const& place, auto const&) {
      if (!place.of_rank && place.info.extents == (name == "power_sgd_q/matrix" ? shape{30, 3} : shape{48, 3}))
        ++answered;
    });
    return answered == (world.rank() == 0 ? 2 : 0) ? std::string() : text(answered, " matrices are answered for");
  });
}

TEST_CASE("a gradient of zeros, or of one number, does not stop power_sgd", "[compression]") {
  on_threads(2, [&]<class World>(World& world) -> std::string {
    small_bucket const bucket;
    power_sgd::instance<env, World> state({.rank = 2}, bucket.form, world);
    for (float const value : {0.0F, 0.0F, 3.0F, 0.0F}) {
      std::vector<float> mine(3072, value);
      exchange(state, mine);
      state.commit();
      for (std::size_t i = 0; i < mine.size(); ++i) {
        bool const in_a_gap = (i >= 1250 && i < 1264) || i >= 2836;
        if (!in_a_gap && std::abs(mine[i] - 2 * value) > 1e-4F) return text("a sum of ", value, " twice is ", mine[i]);
      }
    }
    // The starting matrix stays usable: after some steps little of a constant gradient is left.
    std::vector<float> told(3072), all(3072);
    for (int step = 0; step < 6; ++step) {
      auto mine = gradient(bucket, world.rank(), 0, true);
      exchange(state, mine);
      state.commit();
      auto const sum = serial_sum(bucket, 2, 0, true);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        told[i] += mine[i];
        all[i] += sum[i];
      }
    }
    auto const left = difference(told, all, 0, 3072);
    return left < 1e-3 ? std::string() : text("after six steps ", left, " is left");
  });
}

TEST_CASE("rounds of several buckets run in the same order on all ranks, however long each rank takes",
          "[compression]") {
  watchdog const watch("rounds of power_sgd");
  for (int const ranks : {2, 4}) {
    on_threads(ranks, [&](auto& world) -> std::string {
      constexpr std::size_t count = 6;
      std::vector<std::vector<float>> values(count, std::vector<float>(1200)), gradients = values;
      std::vector<foreign_parameter<float>> list;
      for (std::size_t each = 0; each < count; ++each) {
        list.push_back({text("m", each), tensor_view<float>(values[each].data(), {40, 30}),
                        tensor_view<float>(gradients[each].data(), {40, 30})});
      }
      auto exchange = make_exchange(list, world, parallel::data{.bucket_bytes = 4800}, power_sgd{.rank = 6});
      if (exchange.plan().buckets().size() != count) return "not a bucket each";
      small_bucket const bucket;
      for (int step = 0; step < 5; ++step) {
        exchange.begin();
        for (auto each = count; each-- > 0;) {
          auto const mine = gradient(bucket, world.rank(), step + 10 * static_cast<int>(each), true);
          std::copy_n(mine.begin(), 1200, gradients[each].begin());
          auto const pause = mix(static_cast<std::uint64_t>(world.rank() + 10 * step) + 100 * each) % 3;
          std::this_thread::sleep_for(std::chrono::milliseconds(pause));
          exchange.ready(static_cast<int>(each));
        }
        exchange.finish();
        for (std::size_t each = 0; each < count; ++each) {
          auto mean = serial_sum(bucket, ranks, step + 10 * static_cast<int>(each), true);
          for (auto& one : mean) one /= static_cast<float>(ranks);
          auto const most = difference(gradients[each], mean, 0, 1200);
          if (most > rounding) return text("step ", step, ", bucket ", each, ": off by ", most);
        }
      }
      return {};
    });
  }
}

TEST_CASE("power_sgd refuses a rank below 1, and is printed as its source", "[compression]") {
  comm::self_world world;
  using state = power_sgd::instance<env, comm::self_world>;
  CHECK_THROWS_WITH(state({.rank = 0}, {}, world), "trireme::compression::power_sgd: rank 0 is not at least 1");
  CHECK(to_string(power_sgd{.rank = 2}) == "compression::power_sgd{.rank = 2}");
  CHECK(power_sgd{.rank = 2} != power_sgd{});
}

TEST_CASE("trainings with power_sgd learn, and resume bit for bit", "[compression][train]") {
  watchdog const watch("power_sgd on threads", std::chrono::seconds(240));
  for (int const ranks : {1, 2, 3, 4}) {
    on_threads(ranks, [&](auto& world) {
      parallel::data const small{.bucket_bytes = 4096};
      return compressed::learns(world, 0.93, small, power_sgd{.rank = 4}) +
             compressed::resumes(world, small, power_sgd{.rank = 2}) +
             compressed::resumes(world, parallel::zero<1>{.bucket_bytes = 4096}, power_sgd{.rank = 2});
    });
  }
}

TEST_CASE("power_sgd gives data and zero<1> the same weights", "[compression][train]") {
  auto const& training = toy::twelve_steps;
  auto const data = training.on(3, toy::adaptive, parallel::data{.bucket_bytes = 4096}, power_sgd{}).back();
  auto const zero = training.on(3, toy::adaptive, parallel::zero<1>{.bucket_bytes = 4096}, power_sgd{}).back();
  CHECK(zero.weights == data.weights);
  CHECK(data.losses.back() < data.losses.front());
}
