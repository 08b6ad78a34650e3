#include "trireme/nn/gpt_units.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "../catch.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/nn/checkpointed.hpp"
#include "trireme/ops/ops.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;

template <class Unit>
constexpr bool in_halves = has_backward_halves<typename Unit::template instance<env>, env>;
static_assert(in_halves<nn::gpt_embedding> && in_halves<nn::gpt_block>);
static_assert(in_halves<nn::gpt_head> && in_halves<nn::gpt_expert_block>);
static_assert(!in_halves<nn::checkpointed_unit<nn::gpt_block>>);

constexpr int micro_batches = 2;
constexpr std::int64_t samples_each = 2;
constexpr std::int64_t tokens_each = 12;  // of a sample, that lie here
constexpr std::int64_t channels = 24;
constexpr std::int64_t ids[micro_batches * samples_each] = {3, 8, 1, 6};

struct outcome {
  std::vector<double> gradients;
  std::size_t kept_bytes = 0;  // of a micro-batch
};

/// Embeddings, two blocks and the head, by hand: all micro-batches forward; then each backward, or all of them through
/// the first halves before the second ones.
template <class Env>
class staged {
 public:
  staged(double dropout, rank_groups<Env> groups) : groups_(groups) {
    nn::gpt_shape const shape{37, tokens_each * context_group<Env>::of(groups).size(), 2, 3, channels, dropout};
    add(nn::gpt_embedding{shape});
    add(nn::gpt_block{shape, 0});
    add(nn::gpt_block{shape, 1});
    add(nn::gpt_head{shape});
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = static_cast<std::int32_t>(i * 7 % 37);
      targets_[i] = static_cast<std::int32_t>(i * 5 % 37);
    }
    auto const activation_layout = [](std::vector<std::int32_t> const& values, std::size_t m) {
      constexpr auto n = static_cast<std::size_t>(samples_each * tokens_each);
      return tensor_view<std::int32_t const>(values.data() + m * n, {samples_each, tokens_each});
    };
    for (std::size_t m = 0; m < micro_batches; ++m)  // nothing is dropped of samples without numbers
      batches_.push_back(make_samples(activation_layout(inputs_, m), activation_layout(targets_, m),
                                      std::span(ids).subspan(m * samples_each, samples_each)));
  }

  outcome backward(bool halves) {
    for (auto const& each : gradients_) ops::on<host>::fill(each.view(), 0);
    for (auto& each : activations_) each = {};
    using view = typename unit<Env>::view;
    std::vector<view> passing(micro_batches);
    for (std::size_t m = 0; m < micro_batches; ++m) {
      for (auto& each : units_) run(m, [&](auto& pass) { passing[m] = each->forward(pass, passing[m]); });
    }
    for (std::size_t m = 0; m < micro_batches; ++m) {
      for (auto u = units_.size(); u-- > 0;) {
        run(m, [&](auto& pass) {
          passing[m] = halves ? units_[u]->backward_input(pass, passing[m]) : units_[u]->backward(pass, passing[m]);
        });
      }
    }
    for (std::size_t m = 0; m < micro_batches && halves; ++m) {
      for (auto u = units_.size(); u-- > 0;) run(m, [&](auto& pass) { units_[u]->backward_weight(pass); });
    }
    outcome out;
    for (auto const& each : gradients_) {
      for (auto const value : each.view().span()) out.gradients.push_back(static_cast<double>(value));
    }
    out.kept_bytes = activations_[0].peak_bytes();
    return out;
  }

 private:
  template <class Description>
  void add(Description const& description) {
    units_.push_back(std::make_unique<boxed_unit<Env, Description>>(description, groups_));
    for (auto* const each : units_.back()->parameters()) {
      auto& value = values_.emplace_back(each->info.extents);
      ops::on<host>::initialise(value.view(), each->info.start, 3, hash_name(each->info.name));
      each->value = value.view();
      each->gradient = gradients_.emplace_back(each->info.extents).view();
    }
  }
  // Nothing in scratch memory outlives a unit's turn: it is overwritten.
  template <class Body>
  void run(std::size_t m, Body const& body) {
    pass<Env> pass{.activations = activations_[m],
                   .scratch = scratch_,
                   .batch = batches_[m],
                   .key = {1, 2},
                   .version = 1,
                   .weight = 0.25,
                   .groups = groups_,
                   .saved_index = m};
    body(pass);
    scratch_.reset();
    auto const all = scratch_.template take<float>({static_cast<std::int64_t>(scratch_.peak_bytes() / 4)});
    ops::on<host>::fill(all, std::numeric_limits<double>::quiet_NaN());
    scratch_.reset();
  }

  rank_groups<Env> groups_;
  std::vector<std::unique_ptr<unit<Env>>> units_;
  std::vector<tensor<typename Env::param>> values_;
  std::vector<tensor<typename Env::accumulate>> gradients_;
  std::vector<std::int32_t> inputs_ = std::vector<std::int32_t>(micro_batches * samples_each * tokens_each);
  std::vector<std::int32_t> targets_ = inputs_;
  std::vector<samples> batches_;
  arena<host> activations_[micro_batches];
  arena<host> scratch_;
};

/// Whether halves give the bits of the whole, with dropout and without.
template <class Precision>
bool same_bits(rank_groups<environment<Precision>> groups = {}) {
  bool same = true;
  for (double const dropout : {0.0, 0.1}) {
    staged<environment<Precision>> gpt(dropout, groups);
    auto const whole = gpt.backward(false).gradients;
    double largest = 0;
    for (auto const each : whole) largest = each > largest ? each : largest;
    same = same && largest > 0 && gpt.backward(true).gradients == whole;
  }
  return same;
}

template <class Body>
void on_ranks(int ranks, Body&& body) {
  watchdog const guard("halves of a backward pass");
  std::vector<int> same(static_cast<std::size_t>(ranks));
  launch(comm::threads{.ranks = ranks},
         [&](auto& world) { same[static_cast<std::size_t>(world.rank())] = body(world); });
  CHECK(same == std::vector<int>(static_cast<std::size_t>(ranks), 1));
}

}  // namespace

TEST_CASE("a GPT's backward in halves has the bits of the whole one", "[nn][halves]") {
  CHECK(same_bits<precision::fp32>());
  CHECK(same_bits<precision::fp64>());
  CHECK(same_bits<precision::bf16>());
}

TEST_CASE("a GPT's backward in halves has the same bits if ranks share matrices, rows and positions", "[nn][halves]") {
  for (bool const cuts_rows : {false, true}) {
    on_ranks(3, [&](auto& world) {
      parallel::communicator_group<env, std::remove_reference_t<decltype(world)>> tensor(world, cuts_rows);
      return same_bits<precision::fp32>(tensor);
    });
  }
  on_ranks(2, [](auto& world) {
    using comm = std::remove_reference_t<decltype(world)>;
    group_rank const own{world.rank(), world.size()};
    parallel::ring_context<env, comm> ring(world, {own, true});
    parallel::head_context<env, comm> dealt(world, {own, false});
    return same_bits<precision::fp32>(ring) && same_bits<precision::fp32>(dealt);
  });
}

TEST_CASE("between the halves a block keeps two more gradients", "[nn][halves]") {
  constexpr std::size_t gradient = samples_each * tokens_each * channels * sizeof(float);
  constexpr std::size_t slack = 64;  // of what is taken from an arena
  staged<env> gpt(0, {});
  auto const whole = gpt.backward(false).kept_bytes;
  CHECK(gpt.backward(true).kept_bytes == whole + 2 * 2 * (gradient + slack));
}

namespace {

/// What a unit makes of one input, in training; all of its weights follow one function, whatever their names.
template <class Description>
std::vector<float> forward_of(Description const& description, std::uint32_t first_site = 0) {
  boxed_unit<env, Description> unit(description, {});
  std::vector<tensor<float>> values;
  for (auto* const each : unit.parameters()) values.emplace_back(each->info.extents);
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::int64_t k = 0; k < values[i].size(); ++k) values[i][k] = static_cast<float>(std::sin(1 + k % 97)) / 4;
    unit.parameters()[i]->value = values[i].view();
  }
  std::vector<std::int32_t> tokens(samples_each * tokens_each);
  auto const batch = make_samples(tensor_view<std::int32_t const>(tokens.data(), {samples_each, tokens_each}),
                                  tensor_view<std::int32_t const>{}, std::span(ids).first(samples_each));
  tensor<float> x({samples_each * tokens_each, channels});
  for (std::int64_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(std::cos(k % 89));
  arena<host> activations, scratch;
  pass<env> pass{.activations = activations,
                 .scratch = scratch,
                 .batch = batch,
                 .key = {1, 2},
                 .version = 1,
                 .first_site = first_site};
  auto const y = unit.forward(pass, x.view());
  return {y.span().begin(), y.span().end()};
}

}  // namespace

TEST_CASE("two attentions that drop weights at one rate draw different numbers, in a unit and in a model", "[nn]") {
  auto const branches_differ = [](double rate) {
    auto const branch = [&] {
      return nn::chain(nn::linear{.outputs = 3 * channels}, nn::attend{3, rate},
                       nn::named("o", nn::linear{.outputs = channels}));
    };
    auto const y =
        forward_of(nn::block{"unit", channels, nn::concat(nn::named("a", branch()), nn::named("b", branch()))});
    std::int64_t differing = 0;
    for (std::size_t row = 0; row < y.size(); row += 2 * channels)
      for (std::size_t k = row; k < row + channels; ++k) differing += y[k] != y[k + channels] ? 1 : 0;
    return static_cast<double>(differing) / static_cast<double>(y.size() / 2);
  };
  CHECK(branches_differ(0) == 0);
  CHECK(branches_differ(0.5) > 0.5);
  auto const blocks_differ = [](double rate) {
    nn::gpt_shape const shape{37, tokens_each, 2, 3, channels, rate};
    auto const first = forward_of(nn::gpt_block{shape, 0}), second = forward_of(nn::gpt_block{shape, 1}, 3);
    std::int64_t differing = 0;
    for (std::size_t k = 0; k < first.size(); ++k) differing += first[k] != second[k] ? 1 : 0;
    return static_cast<double>(differing) / static_cast<double>(first.size());
  };
  CHECK(blocks_differ(0) == 0);
  CHECK(blocks_differ(0.5) > 0.5);
}
