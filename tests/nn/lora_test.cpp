// test-timeout: 300
// test-sanitize: none
// Low-rank changes of linear layers: against plain torch in double, and in whole trainings.
#include "trireme/nn/lora.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/golden.hpp"
#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/nn/one_of.hpp"
#include "trireme/train/plan.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;
namespace safetensors = formats::safetensors;

namespace {

using numbers = std::map<std::string, std::vector<double>>;

bool has(safetensors::reader const& file, std::string const& name) {
  return std::ranges::any_of(file.entries(), [&](auto const& each) { return each.name == name; });
}

/// The factors of torch, or what it found for them, by the names of ours. Its second factors of queries, keys and
/// values are columns of ours, as their weights are.
numbers factors(safetensors::reader const& file, nn::llama const& model, std::string const& kind, std::int64_t rank) {
  numbers out;
  for (auto const& tensor : model.in_files().tensors) {
    if (!has(file, "b/" + tensor.name)) continue;
    auto const layer = tensor.parameter.substr(0, tensor.parameter.rfind('.'));
    if (has(file, "a/" + tensor.name))
      out[layer + ".lora_A.weight"] = golden::read<double>(file, kind + "a/" + tensor.name);
    auto const theirs = golden::read<double>(file, kind + "b/" + tensor.name);
    auto const rows = static_cast<std::int64_t>(theirs.size()) / rank;
    auto& ours = out[layer + ".lora_B.weight"];
    ours.resize(static_cast<std::size_t>(rank * tensor.columns));
    for (std::int64_t k = 0; k < rank; ++k) {
      for (auto const& band : tensor.bands) {
        std::copy_n(theirs.begin() + k * rows + band.row, band.count, ours.begin() + k * tensor.columns + band.column);
      }
    }
  }
  return out;
}

nn::llama const small{
    .vocabulary = 37, .context = 12, .layers = 3, .heads = 6, .key_heads = 3, .channels = 24, .hidden = 36};
nn::lora_options const some{.rank = 3, .alpha = 5, .layers = "self_attn.* gate_proj *.down_proj"};

toy::training<nn::lora_of<nn::llama>, toy::text> const training{
    nn::lora(small, some), {.samples = 24}, {.steps = 5, .batch = 8, .micro_batches = 4}};

}  // namespace

TEST_CASE("low-rank changes have the loss and the gradients of plain torch", "[nn][golden]") {
  auto const base = golden::open("llama.safetensors"), file = golden::open("lora.safetensors");
  nn::llama const model{.vocabulary = 61,
                        .context = 16,
                        .layers = 2,
                        .heads = 6,
                        .key_heads = 2,
                        .channels = 24,
                        .hidden = 20,
                        .rotary = 100};
  auto given = factors(file, model, "", 3), wanted = factors(file, model, "gradient/", 3);
  CHECK(given.size() == 2 * 2 * 4);
  for (auto const& tensor : model.in_files().tensors) {
    auto const theirs = golden::read<double>(base, "llama/parameter/" + tensor.name);
    auto& ours = given[tensor.parameter];
    ours.resize(static_cast<std::size_t>(tensor.inputs * tensor.columns));
    for (std::size_t i = 0; i < theirs.size(); ++i)
      ours[static_cast<std::size_t>(tensor.place(static_cast<std::int64_t>(i)))] = theirs[i];
  }
  auto const tokens = golden::read<std::int32_t>(base, "tokens"), targets = golden::read<std::int32_t>(base, "targets");
  auto const batch = make_samples(tensor_view<std::int32_t const>(tokens.data(), shape{3, 11}),
                                  tensor_view<std::int32_t const>(targets.data(), shape{3, 11}));
  comm::self_world world;
  bool const checkpointed = GENERATE(false, true);
  auto again = model;
  again.checkpointed = checkpointed;
  auto trainer = make_trainer(nn::lora(again, {.rank = 3, .alpha = 5, .layers = "*.self_attn.* gate_proj down_proj"}),
                              optim::sgd{.learning_rate = 1}, world, precision::fp64{});
  trainer.change_parameters([&](std::string const& name, auto const&, std::int64_t first, auto values) {
    INFO(name);
    auto const& from = given.at(name);
    REQUIRE(first + values.size() <= static_cast<std::int64_t>(from.size()));
    std::copy_n(from.begin() + first, values.size(), values.span().begin());
  });
  auto const loss = golden::read<double>(file, "loss")[0];
  CHECK(std::abs(trainer.step(batch).loss - loss) < 1e-12 * loss);
  std::size_t compared = 0;
  trainer.for_each_state([&](std::string const& state, auto const&, std::int64_t first, auto view) {
    if (!state.starts_with("value/")) return;
    INFO(state);
    auto const name = state.substr(6);
    auto const& before = given.at(name);
    auto const gradient = wanted.find(name);
    double most = 0, largest = 1e-12;
    for (std::int64_t i = 0; i < view.size(); ++i) {
      auto const at = static_cast<std::size_t>(first + i);
      auto const change = before[at] - view[i], theirs = gradient == wanted.end() ? 0 : gradient->second[at];
      most = std::max(most, std::abs(change - theirs));
      largest = std::max(largest, std::abs(theirs));
    }
    CHECK(most / largest < (gradient == wanted.end() ? 1e-300 : 1e-9));  // what is frozen has not moved
    if (gradient != wanted.end()) ++compared;
  });
  CHECK(compared == wanted.size());
}

TEST_CASE("low-rank changes train under every mesh as on one rank, also checkpointed and in a GPT", "[nn]") {
  watchdog dog("low-rank changes");
  auto const serial = training.alone(toy::steady, precision::fp64{});
  CHECK(serial.losses.back() < serial.losses.front());
  auto const compare = [&](auto const& one, auto const& wanted, int ranks, auto const& policy) {
    INFO(to_string(policy));
    toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), wanted, 1e-10, 1e-8);
  };
  using parallel::mesh;
  parallel::tensor const two{.ways = 2};
  compare(training, serial, 2, parallel::data{});
  compare(training, serial, 2, parallel::zero<1>{});
  compare(training, serial, 3, parallel::zero<3>{.bucket_bytes = 4096});
  compare(training, serial, 3, parallel::tensor{});
  compare(training, serial, 2, mesh{two, parallel::sequence{}});
  compare(training, serial, 2, parallel::context{});
  compare(training, serial, 4, mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, two});
  compare(training, serial, 4, mesh{parallel::zero<2>{.ways = 2}, two, parallel::sequence{}});
  {
    auto one = training;
    one.model.model.checkpointed = true;
    compare(one, serial, 1, parallel::data{});
    compare(one, serial, 2, mesh{two, parallel::sequence{}});
  }
  toy::training<nn::lora_of<nn::gpt>, toy::text> const gpt{
      nn::lora(toy::gpt, {.rank = 2}), {.samples = 24}, {.steps = 5, .batch = 8, .micro_batches = 4}};
  auto const alone = gpt.alone(toy::steady, precision::fp64{});
  compare(gpt, alone, 3, mesh{parallel::tensor{.ways = 3}, parallel::sequence{}});
  compare(gpt, alone, 2, parallel::pipeline<schedule::zb_h1>{.stages = 2});
}

TEST_CASE("only low-rank changes have moments, and a run resumes on another number of ranks", "[nn]") {
  watchdog dog("what is kept");
  comm::self_world world;
  auto trainer = make_trainer(training.model, optim::adamw{}, world);
  std::int64_t trained = 0, moments = 0;
  trainer.for_each_state([&](std::string const& name, auto const&, std::int64_t, auto view) {
    bool const change = nn::lora_of<nn::llama>::is_change(name);
    if (!name.starts_with("value/")) moments += view.size();
    if (!name.starts_with("value/")) CHECK(change);
    if (name.starts_with("value/") && change) trained += view.size();
  });
  // In each block: 24 inputs and 48 outputs of qkv, 24 and 24 of o, 24 and 36 of gate, 36 and 24 of down.
  CHECK(trained == 3 * 3 * (72 + 48 + 60 + 60));
  CHECK(moments == 2 * trained);
  scratch dir;
  auto const whole = training.go_on(1, "", 5, "", optim::adamw{}, parallel::data{.reproducible = true});
  training.go_on(2, "", 3, dir.path(), optim::adamw{}, parallel::data{.reproducible = true});
  CHECK(training.go_on(4, dir.path(), 5, "", optim::adamw{}, parallel::data{.reproducible = true}) == whole);
}

TEST_CASE("a plan of a training with low-rank changes equals the training", "[nn]") {
  watchdog dog("plans");
  auto const taken = [&](auto& world, auto const& policy, auto precision) {
    auto trainer = make_trainer(training.model, optim::sgd{}, world, policy, precision);
    auto const planned = plan(trainer, training.data, {.samples = 8, .micro_batches = 4});
    trainer.fit(training.data, {.steps = 2, .batch = 8, .micro_batches = 4});
    if (world.rank() != 0) return;
    CHECK(planned.memory.activations == static_cast<std::int64_t>(trainer.engine().peak_bytes()));
  };
  comm::self_world self;
  taken(self, parallel::data{}, precision::fp32{});
  taken(self, parallel::data{}, precision::bf16{});
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    taken(world, parallel::tensor{}, precision::fp32{});
    taken(world, parallel::zero<3>{}, precision::fp32{});
  });
}

TEST_CASE("files of a model with low-rank changes contain merged weights", "[nn][pretrained]") {
  watchdog dog("files");
  scratch dir;
  double loss = 0;
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(training.model, toy::steady, world, parallel::tensor{});
    trainer.initialise(3);
    save_pretrained(trainer, dir / "before");
    trainer.fit(training.data, training.schedule);
    save_pretrained(trainer, dir / "after");
    auto const own = trainer.evaluate(training.data);
    if (world.rank() == 0) loss = own;
  });
  comm::self_world world;
  auto const loss_of = [&](std::string const& from) {
    auto trainer = make_trainer(nn::read_description<nn::llama>(from), optim::sgd{}, world);
    load_pretrained(trainer, from);
    return trainer.evaluate(training.data);
  };
  CHECK(loss_of(dir / "after") == Approx(loss).epsilon(1e-6));
  CHECK(loss_of(dir / "before") != Approx(loss).epsilon(1e-3));
  // A new trainer of the same kind begins there, with changes that change nothing.
  auto trainer = make_trainer(nn::lora(nn::one_of<nn::gpt, nn::llama>{small}, some), optim::sgd{}, world);
  load_pretrained(trainer, dir / "after");
  CHECK(trainer.evaluate(training.data) == Approx(loss).epsilon(1e-6));
}

TEST_CASE("low rank 0 is the model itself, and impossible settings are refused in one sentence", "[nn]") {
  auto const none = nn::lora(small, {.rank = 0});
  CHECK(to_string(none) == to_string(small));
  toy::training<nn::lora_of<nn::llama>, toy::text> const without{none, training.data, training.schedule};
  toy::training<nn::llama, toy::text> const plain{small, training.data, training.schedule};
  toy::check_equal(without.alone(toy::steady), plain.alone(toy::steady));
  CHECK(contains(to_string(training.model),
                 ", {.rank = 3, .alpha = 5, .layers = \"self_attn.* gate_proj *.down_proj\"})"));
  CHECK(
      sentence_of<config_error>([] { nn::lora(small, {.rank = -1}).validate(); }) ==
      "trireme::nn::lora: rank -1 and alpha 16; the rank is not below 0 (0: nothing is changed), and alpha is above 0");
  comm::self_world world;
  CHECK(contains(sentence_of<config_error>([&] {
                   static_cast<void>(make_trainer(nn::lora(small, {.layers = "c_attn"}), optim::sgd{}, world));
                 }),
                 " are frozen; give a pattern that the names of some layers match"));
}
