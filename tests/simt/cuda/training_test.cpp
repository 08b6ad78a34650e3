// A plain model with kernels of its own, and a model in units, train in CUDA memory: in the stand-in for CUDA's
// runtime, whose streams run the kernels' source in the stand-in for a GPU's threads. What comes out has the bits of a
// training in host memory.
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
#include "../../support/sentence.hpp"
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

/// y = tanh(x A) B, as one unit of kernels that have the host's bits.
struct narrow_unit {
  friend bool operator==(narrow_unit const&, narrow_unit const&) = default;

  template <class Env>
  class instance {
    using kernels = ops::on<typename Env::space>;
    using view = tensor_view<float, typename Env::space>;
    using input = tensor_view<float const, typename Env::space>;
    static constexpr auto no = ops::transposed::no, yes = ops::transposed::yes;

   public:
    struct saved {
      view h, bent, dy;
    };
    explicit instance(narrow_unit const&) {
      a_.info = {"a", {1, network::hidden}, {initial::distribution::normal, 1.5}};
      b_.info = {"b", {network::hidden, 1}, {initial::distribution::normal, 0.5}};
    }
    void visit(auto&& each) { each(a_), each(b_); }

    view forward(pass<Env>& pass, saved& kept, view) {
      auto const n = pass.batch.count();
      kept = {pass.take({n, network::hidden}), pass.take({n, network::hidden}), pass.take({n, 1})};
      kernels::small_product(kept.h, column(pass.batch.inputs), no, matrix(a_), no);
      kernels::activate(kept.bent, kept.h, ops::activation::tanh);
      kernels::small_product(kept.dy, kept.bent, no, matrix(b_), no);
      kernels::accumulate(kept.dy, column(pass.batch.targets), -1.0);
      std::vector<float> errors(static_cast<std::size_t>(n));
      kernels::download(std::span<float>(errors), kept.dy);
      for (auto const each : errors) pass.loss += loss_sum{static_cast<double>(each) * static_cast<double>(each), 1};
      kernels::scale(kept.dy, 2 * pass.weight);
      return {};
    }
    view backward(pass<Env>& pass, saved& kept, view) {
      add_product(pass, b_, kept.bent, kept.dy);
      auto const dh = pass.scratch.template take<float>(kept.h.extents());
      kernels::small_product(dh, kept.dy, no, matrix(b_), yes);
      kernels::activate_backward(dh, dh, kept.h, ops::activation::tanh);
      add_product(pass, a_, column(pass.batch.inputs), dh);
      return {};
    }

   private:
    static view matrix(parameter<Env> const& it) { return it.value.reshaped(it.info.extents); }
    static input column(auto const& numbers) { return numbers.template as<float>().reshaped({numbers.size(), 1}); }
    static void add_product(pass<Env>& pass, parameter<Env>& to, input left, view right) {  // left^T right
      auto const product = pass.scratch.template take<float>(to.info.extents);
      kernels::small_product(product, left, yes, right, no);
      kernels::add(to.gradient.flat(), product.flat());
    }
    parameter<Env> a_, b_;
  };
};
struct narrow_model {
  using policy_category = slot::model;
  friend bool operator==(narrow_model const&, narrow_model const&) = default;
  [[nodiscard]] friend std::string to_string(narrow_model const&) { return "narrow_model"; }
  void units(auto&& emit) const { emit(narrow_unit{}); }
};

struct outcome {
  std::uint64_t hash = 0;
  double first_loss = 0, last_loss = 0;
  friend bool operator==(outcome const&, outcome const&) = default;
};
struct part {
  std::int64_t stop_after = -1;
  std::string load{}, save{};
  std::int64_t micro_batches = 0;
};

auto const sine = data::function([](float x) { return std::sin(3 * x); }, {.samples = 96});
optim::adamw const clipped{.learning_rate = 0.02, .weight_decay = 0.1, .clip = 0.5};
optim::sgd const moving{.learning_rate = 0.05, .momentum = 0.9};

template <class Model, class World, class Strategy, class Optimizer>
outcome train(World& world, Strategy const& strategy, Optimizer const& optimizer, part const& which) {
  auto trainer = make_trainer(Model{}, optimizer, world, strategy);
  if (!which.load.empty()) trainer.load(which.load);
  auto const report = trainer.fit(sine, {.steps = 12,
                                         .batch = 20,
                                         .micro_batches = which.micro_batches,
                                         .stop_after = which.stop_after,
                                         .check_every = 5});
  if (!which.save.empty()) trainer.save(which.save);
  return {trainer.state_hash(), report.first_loss, report.last_loss};
}

enum class where { host, threads, nccl, unordered_nccl };
template <class>
using in_units = narrow_model;

template <template <class> class Model = network_model, class Strategy, class Optimizer = optim::adamw>
outcome run(where at, int ranks, Strategy const& strategy, Optimizer const& optimizer = clipped,
            part const& which = {}) {
  watchdog const guard("a training in CUDA memory");
  std::vector<outcome> all(static_cast<std::size_t>(ranks));
  auto const mine = [&](auto& world) -> outcome& { return all[static_cast<std::size_t>(world.rank())]; };
  if (at == where::nccl || at == where::unordered_nccl) {
    bool const is_faulty = std::getenv("TRIREME_SIMT_LEAVE_OUT") != nullptr;  // and may wait for ever
    comm::nccl const description{.deadline = std::chrono::seconds(is_faulty ? 10 : 60),
                                 .order = at == where::nccl ? comm::sum_order::ranks : comm::sum_order::any};
    stand_in::on_ranks(ranks, description, [&](comm::nccl_world& world) {
      mine(world) = train<Model<cuda>>(world, strategy, optimizer, which);
    });
  } else {
    launch(comm::threads{.ranks = ranks, .deadline = std::chrono::seconds(30)}, [&](auto& world) {
      if (at == where::host) {
        mine(world) = train<Model<host>>(world, strategy, optimizer, which);
      } else {
        auto there = comm::in_space<cuda>(world);
        mine(world) = train<Model<cuda>>(there, strategy, optimizer, which);
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

TEST_CASE("a reproducible training in CUDA memory has the host's weights on 1, 2 and 4 ranks", "[training]") {
  auto const weights = [](where at, int ranks, auto const& strategy) {
    auto const done = run<in_units>(at, ranks, strategy, clipped, {.micro_batches = 8});
    CHECK(done.last_loss < done.first_loss);
    return done.hash;
  };
  parallel::data const data{.bucket_bytes = 128, .reproducible = true};
  parallel::zero<2> const zero{.bucket_bytes = 128, .reproducible = true};
  auto const expected = weights(where::threads, 1, data);
  if (host_has_fma()) CHECK(weights(where::host, 1, data) == expected);
  if (host_has_fma()) CHECK(weights(where::host, 4, data) == expected);
  for (int const ranks : {1, 2, 4}) {
    INFO(ranks << " ranks");
    CHECK(weights(where::threads, ranks, data) == expected);
    CHECK(weights(where::threads, ranks, zero) == expected);
    CHECK(weights(where::unordered_nccl, ranks, data) == expected);
  }
  CHECK(weights(where::threads, 4, parallel::data{.bucket_bytes = 128}) != expected);  // another order of sums
}

// Each in a process of its own, because a training with a fault may end the program: the stand-in then leaves out the
// n-th cudaStreamWaitEvent of each rank. Not each is found: the host, or an earlier wait, may order the same work.
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

TEST_CASE("a plain model in CUDA memory: a precision that rounds its products is refused", "[training]") {
  launch(comm::threads{.ranks = 1}, [&](auto& world) {
    auto there = comm::in_space<cuda>(world);
    auto const make = [&] {
      (void)make_trainer(network_model<cuda>{}, moving, there, precision::fp32{.tf32_products = true});
    };
    CHECK(sentence_of<config_error>(make) ==
          "trireme::trainer: a plain model computes its products itself, and precision::fp32{.tf32_products = true} "
          "does not change them; open a scope of ops::tf32_products in its forward and backward, or describe the model "
          "in units");
    cuda::finish();  // what the model's initial values have queued
  });
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
