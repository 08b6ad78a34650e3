#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

nn::gpt const model{.vocabulary = 37, .context = 12, .layers = 2, .heads = 3, .channels = 24, .dropout = 0.1};

/// Text of a kind: sample s follows from s alone.
struct toy_text {
  [[nodiscard]] std::int64_t size() const { return 45; }
  [[nodiscard]] dtype input_type() const { return dtype::i32; }
  [[nodiscard]] dtype target_type() const { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {12}; }
  [[nodiscard]] shape target_shape() const { return {12}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    auto* in = static_cast<std::int32_t*>(inputs);
    auto* out = static_cast<std::int32_t*>(targets);
    for (auto const id : ids) {
      for (int t = 0; t < 12; ++t) {
        *in++ = static_cast<std::int32_t>((id * 7 + t * (1 + id % 3)) % 37);
        *out++ = static_cast<std::int32_t>((id * 7 + (t + 1) * (1 + id % 3)) % 37);
      }
    }
  }
};

struct outcome {
  std::vector<double> weights;
  std::vector<double> norms;
  std::vector<double> losses;
  std::uint64_t hash = 0;
};

/// Trains for some steps, of which the last in each epoch is short and uneven, and keeps all that can be compared.
template <class Comm, class... Policies>
outcome train(Comm& world, std::int64_t micro_batches, Policies... policies) {
  auto trainer = make_trainer(model, optim::adamw{.rate = 1e-2, .clip = 1.0}, world, policies...);
  trainer.initialise(7);
  outcome out;
  trainer.on_step([&](step_report const& done) {
    out.norms.push_back(done.norm);
    out.losses.push_back(done.loss);
  });
  trainer.fit(toy_text{}, {.steps = 20, .batch = 10, .micro_batches = micro_batches});
  for (auto const& entry : trainer.exchange().plan().entries()) {
    for (auto const value : trainer.exchange().parameter_values(entry).span()) {
      out.weights.push_back(static_cast<double>(value));
    }
  }
  out.hash = trainer.state_hash();
  return out;
}

template <class... Policies>
outcome train_on(int ranks, Policies... policies) {
  outcome out;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto mine = train(world, 6, policies...);
    if (world.rank() == world.size() - 1) out = std::move(mine);
  });
  return out;
}
template <class... Policies>
outcome train_alone(Policies... policies) {
  comm::self_world world;
  return train(world, 6, policies...);
}

double distance(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(a[i]));
  }
  return most / largest;
}

}  // namespace

TEST_CASE("every strategy on 1 to 4 ranks equals serial training, in weights, norm and loss", "[parallel]") {
  auto const serial = train_alone();
  REQUIRE(serial.losses.size() == 20);
  REQUIRE(serial.losses.back() < serial.losses.front());
  for (int const ranks : {1, 2, 3, 4}) {
    INFO("ranks " << ranks);
    auto const data = train_on(ranks, parallel::data{.bucket_bytes = 8192});
    CHECK(distance(serial.weights, data.weights) < 1e-5);
    CHECK(distance(serial.norms, data.norms) < 1e-5);
    CHECK(distance(serial.losses, data.losses) < 1e-5);
    auto const zero = train_on(ranks, parallel::zero<1>{.bucket_bytes = 8192});
    CHECK(zero.hash == data.hash);
    CHECK(zero.weights == data.weights);
    CHECK(zero.norms == data.norms);
  }
}

TEST_CASE("bfloat16 with master weights follows fp32 within its tolerance, the same for every strategy", "[parallel]") {
  auto const serial = train_alone();
  for (int const ranks : {1, 2, 3}) {
    INFO("ranks " << ranks);
    auto const data = train_on(ranks, precision::bf16{});
    auto const zero = train_on(ranks, parallel::zero<1>{}, precision::bf16{});
    CHECK(zero.hash == data.hash);
    CHECK(zero.weights == data.weights);
    CHECK(distance(serial.losses, data.losses) < precision::bf16::tolerance);
  }
}

TEST_CASE("a run does not depend on when ranks reach a collective", "[parallel]") {
  auto const once = train_on(2, parallel::zero<1>{});
  CHECK(train_on(2, parallel::zero<1>{}).hash == once.hash);
  CHECK(train_on(2).hash == train_on(2).hash);
}

TEST_CASE("top_k of everything equals no compression bit for bit", "[parallel][compression]") {
  for (int const ranks : {1, 2, 3}) {
    auto const plain = train_on(ranks);
    CHECK(train_on(ranks, compression::top_k{.ratio = 1}).hash == plain.hash);
    CHECK(train_on(ranks, parallel::zero<1>{}, compression::top_k{.ratio = 1}).hash == plain.hash);
  }
}

TEST_CASE("compressed gradients give data and zero the same weights, and still learn", "[parallel][compression]") {
  using compression::error_feedback;
  using compression::top_k;
  for (int const ranks : {1, 2, 3}) {
    auto const cast = train_on(ranks, compression::cast<bf16>{});
    CHECK(train_on(ranks, parallel::zero<1>{}, compression::cast<bf16>{}).weights == cast.weights);
    error_feedback<top_k> const sparse{.inner = {.ratio = 0.1F}};
    auto const fed = train_on(ranks, sparse);
    CHECK(train_on(ranks, parallel::zero<1>{}, sparse).weights == fed.weights);
    CHECK(fed.losses.back() < fed.losses.front());
    CHECK(cast.losses.back() < cast.losses.front());
    error_feedback<compression::cast<bf16>> const corrected{};
    CHECK(train_on(ranks, parallel::zero<1>{}, corrected).weights == train_on(ranks, corrected).weights);
  }
}

TEST_CASE("zero<1> fuses the reduction into the update when nobody asks for the norm", "[parallel]") {
  for (int const ranks : {1, 2, 3}) {
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      std::vector<std::uint64_t> hashes;
      for (bool const want_norm : {true, false}) {
        using env = environment<precision::fp32>;
        staged_engine<env> engine(model);
        basic_exchange<env, comm::threads_world, parallel::zero<1>, compression::none> exchange(
            engine.uses(), world, parallel::zero<1>{.bucket_bytes = 4096}, compression::none{});
        static_assert(decltype(exchange)::can_be_direct);
        exchange.initialise(3);
        engine.invalidate();
        optimizer_state<env, optim::adamw> moments(exchange);
        toy_text const text;
        data::loader loader(text, data::loader_options{.batch = 9, .micro_batches = 3}, world.rank(), world.size());
        for (int step = 0; step < 3; ++step) {
          auto const& batch = loader.next();
          exchange.begin();
          for (auto const& part : batch.micro_batches) {
            bool const last = &part == &batch.micro_batches.back();
            engine.train(part, 1.0 / 9, {3, static_cast<std::uint64_t>(step)}, [&](int use) {
              if (last) exchange.ready(use);
            });
          }
          auto const result = exchange.finish(0, want_norm);
          if (world.rank() == 0) {
            CHECK(result.finite);
            CHECK(std::isnan(result.norm) == !want_norm);
          }
          moments.update(exchange, optim::adamw{}, step, 1.0);
          exchange.publish();
          engine.invalidate();
        }
        hashes.push_back(exchange.hash_of_parameters());
      }
      if (world.rank() == 0) CHECK(hashes[0] == hashes[1]);
    });
  }
}
