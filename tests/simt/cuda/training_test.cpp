// A plain model with kernels of its own trains in CUDA memory: in the stand-in for CUDA's runtime, whose streams run
// the kernels' source in the stand-in for a GPU's threads. What comes out has the bits of a training in host memory.
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../comm/stand_in/ranks.hpp"
#include "../../formats/scratch.hpp"
#include "../../watchdog.hpp"
#include "network_kernels.hpp"
#include "trireme/comm/cuda.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/comm/launch.hpp"
#include "trireme/comm/nccl.hpp"
#include "trireme/comm/threads.hpp"
#include "trireme/data/function.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host.hpp"
#include "trireme/ops/host/target.hpp"
#include "trireme/optim/adamw.hpp"
#include "trireme/optim/sgd.hpp"
#include "trireme/parallel/strategies.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/make_trainer.hpp"

using namespace trireme;

namespace {

struct network_model_names {
  static constexpr std::string_view all[] = {"w1", "b1", "w2", "b2"};
};

/// The network, with its numbers in one memory space.
template <class Space>
class network_model {
 public:
  using policy_category = slot::model;
  static constexpr bool on_device = std::is_same_v<Space, cuda>;
  using kernels = ops::on<Space>;

  network_model() {
    for (std::size_t i = 0; i < 4; ++i) {
      shape const extents{i == 3 ? 1 : network::hidden};
      values_.emplace_back(extents);
      gradients_.emplace_back(extents);
      kernels::initialise(values_[i].view(), {initial::distribution::normal, 0.5}, 7, hash_name(names::all[i]), 0);
    }
  }
  void visit_parameters(auto&& visit) {
    for (std::size_t i = 0; i < 4; ++i) visit(std::string(names::all[i]), values_[i].view(), gradients_[i].view());
  }
  double forward(samples const& given) {
    auto const n = given.count();
    if (n > room_) {
      x_ = tensor<float, Space>(shape{n});
      y_ = tensor<float, Space>(shape{n});
      bent_ = tensor<float, Space>(shape{n, network::hidden});
      errors_ = tensor<float, Space>(shape{n});
      room_ = n;
    }
    kernels::upload(x_.view().flat(0, n), given.inputs.as<float>().span());
    kernels::upload(y_.view().flat(0, n), given.targets.as<float>().span());
    now_ = {numbers(values_),       numbers(gradients_),      x_.view().address(), y_.view().address(),
            bent_.view().address(), errors_.view().address(), static_cast<int>(n)};
    if constexpr (on_device)
      expect_queued(network::forward_on(cuda::stream(), now_));
    else
      network::forward(now_);
    std::vector<float> errors(static_cast<std::size_t>(n));
    kernels::download(std::span<float>(errors), errors_.view().flat(0, n));
    double loss = 0;
    for (auto const each : errors) loss += static_cast<double>(each) * static_cast<double>(each);
    return loss / static_cast<double>(n);
  }
  void backward(auto&& ready) {
    if constexpr (on_device)
      expect_queued(network::backward_on(cuda::stream(), now_));
    else
      network::backward(now_);
    for (std::size_t i = 4; i-- > 0;) ready(names::all[i]);
  }

  /// The same in both memories, so that a checkpoint of one may be loaded into the other.
  [[nodiscard]] friend std::string to_string(network_model const&) { return "network_model"; }

 private:
  using names = network_model_names;
  static void expect_queued(int code) {
    if (code != 0) throw error("a kernel of the network was refused");
  }
  static network::numbers numbers(std::vector<tensor<float, Space>> const& of) {
    return {of[0].view().address(), of[1].view().address(), of[2].view().address(), of[3].view().address()};
  }

  std::vector<tensor<float, Space>> values_, gradients_;
  tensor<float, Space> x_, y_, bent_, errors_;
  std::int64_t room_ = 0;
  network::batch now_{};
};

struct outcome {
  std::uint64_t hash = 0;
  double first_loss = 0, last_loss = 0;
  friend bool operator==(outcome const&, outcome const&) = default;
};
struct part {
  std::int64_t stop_after = -1;
  std::string load{}, save{};
};

auto const sine = data::function([](float x) { return std::sin(3 * x); }, {.samples = 96});
optim::adamw const clipped{.learning_rate = 0.02, .weight_decay = 0.1, .clip = 0.5};
optim::sgd const moving{.learning_rate = 0.05, .momentum = 0.9};

template <class Space, class World, class Strategy, class Optimizer>
outcome train(World& world, Strategy const& strategy, Optimizer const& optimizer, part const& which) {
  auto trainer = make_trainer(network_model<Space>{}, optimizer, world, strategy);
  if (!which.load.empty()) trainer.load(which.load);
  auto const report = trainer.fit(sine, {.steps = 12, .batch = 20, .stop_after = which.stop_after, .check_every = 5});
  if (!which.save.empty()) trainer.save(which.save);
  return {trainer.state_hash(), report.first_loss, report.last_loss};
}

enum class where { host, threads, nccl };

template <class Strategy, class Optimizer = optim::adamw>
outcome run(where at, int ranks, Strategy const& strategy, Optimizer const& optimizer = clipped,
            part const& which = {}) {
  watchdog const guard("a training in CUDA memory");
  std::vector<outcome> all(static_cast<std::size_t>(ranks));
  auto const mine = [&](auto& world) -> outcome& { return all[static_cast<std::size_t>(world.rank())]; };
  if (at == where::nccl) {
    comm::nccl const description{.deadline = std::chrono::seconds(10), .order = comm::sum_order::ranks};
    stand_in::on_ranks(ranks, description,
                       [&](comm::nccl_world& world) { mine(world) = train<cuda>(world, strategy, optimizer, which); });
  } else {
    launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(30)}, [&](auto& world) {
      if (at == where::host) {
        mine(world) = train<host>(world, strategy, optimizer, which);
      } else {
        auto there = comm::in_space<cuda>(world);
        mine(world) = train<cuda>(there, strategy, optimizer, which);
      }
    });
  }
  for (auto const& each : all) CHECK(each == all[0]);
  return all[0];
}

/// Without FMA the host's kernels round more often than a device.
bool host_has_fma() { return ops::detected() >= ops::cpu_level::avx2; }

template <class Strategy, class Optimizer>
void has_the_hosts_bits(Strategy const& strategy, Optimizer const& optimizer) {
  for (int const ranks : {1, 2, 3}) {
    INFO(to_string(strategy) << " on " << ranks << " ranks");
    auto const on_host = run(where::host, ranks, strategy, optimizer);
    CHECK(on_host.last_loss < on_host.first_loss);
    for (auto const device : {where::threads, where::nccl}) {
      auto const on_device = run(device, ranks, strategy, optimizer);
      CHECK(on_device.last_loss < on_device.first_loss);
      if (host_has_fma()) CHECK(on_device == on_host);
    }
  }
}

}  // namespace

TEST_CASE("a plain model in CUDA memory has the host's weights: data parallel, with AdamW", "[training]") {
  has_the_hosts_bits(parallel::data{.bucket_bytes = 128}, clipped);
}
TEST_CASE("a plain model in CUDA memory has the host's weights: zero<1>, with AdamW", "[training]") {
  has_the_hosts_bits(parallel::zero<1>{.bucket_bytes = 128}, clipped);
}
TEST_CASE("a plain model in CUDA memory has the host's weights: zero<2>, with SGD", "[training]") {
  has_the_hosts_bits(parallel::zero<2>{.bucket_bytes = 128}, moving);
}

// Each in a process of its own, because a training with a fault may end the program: the stand-in then leaves out the
// n-th cudaStreamWaitEvent of each rank. Some order nothing: all of what they wait for is done, or waited for before.
TEST_CASE("a training without one of its waits for an event differs from the host's in some order", "[streams]") {
  if (!host_has_fma()) return;
  std::array<char, 4096> path{};
  REQUIRE(::readlink("/proc/self/exe", path.data(), path.size() - 1) > 0);
  auto const is_right = [&](int order, int wait) {
    auto const command = text("TRIREME_SIMT_ORDER=", order, " TRIREME_SIMT_LEAVE_OUT=wait:", wait, " '", path.data(),
                              "' '[one_training]' > /dev/null 2>&1");
    return std::system(command.c_str()) == 0;
  };
  CHECK(is_right(0, 1000));  // there are fewer
  CHECK(is_right(1, 1000));
  std::string found;
  int count = 0;
  for (int wait = 7; wait <= 16; ++wait) {
    if (is_right(0, wait) && is_right(1, wait)) continue;
    found += text(' ', wait);
    ++count;
  }
  INFO("found without the waits" << found);
  CHECK(count >= 4);
}
TEST_CASE("a training of two ranks of comm::nccl", "[.][one_training]") {
  parallel::zero<2> const strategy{.bucket_bytes = 128};
  CHECK(run(where::nccl, 2, strategy, moving) == run(where::host, 2, strategy, moving));
}

TEST_CASE("a checkpoint goes from the host to a device and back", "[training]") {
  parallel::zero<1> const strategy{.bucket_bytes = 128};
  auto const whole = run(where::host, 2, strategy);
  for (auto const device : {where::threads, where::nccl}) {
    scratch first, second;
    run(where::host, 2, strategy, clipped, {.stop_after = 4, .save = first.path()});
    run(device, 2, strategy, clipped, {.stop_after = 8, .load = first.path(), .save = second.path()});
    auto const back = run(where::host, 2, strategy, clipped, {.load = second.path()});
    auto const there = run(device, 2, strategy, clipped, {.load = first.path()});
    if (host_has_fma()) CHECK(back.hash == whole.hash);
    if (host_has_fma()) CHECK(there.hash == whole.hash);
  }
}
