// test-sanitize: none
#include "trireme/nn/deepseek.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../support/golden_step.hpp"
#include "../support/memory_files.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/parallel/expert.hpp"
#include "trireme/train/pretrained.hpp"

using namespace trireme;

namespace {

nn::deepseek const small{.vocabulary = 41,
                         .context = 16,
                         .layers = 3,
                         .dense = 1,
                         .channels = 24,
                         .heads = 3,
                         .query_rank = 10,
                         .rank = 8,
                         .plain = 6,
                         .rotary_width = 4,
                         .values = 5,
                         .hidden = 20,
                         .experts = 8,
                         .top_k = 3,
                         .shared = 1,
                         .expert_hidden = 10,
                         .groups = 4,
                         .chosen_groups = 2,
                         .rotary = 100,
                         .epsilon = 1e-5};

/// What transformers was given, and what it said.
struct golden_numbers {
  formats::safetensors::reader file = golden::open("deepseek.safetensors");
  std::vector<std::int32_t> tokens = golden::read<std::int32_t>(file, "tokens"),
                            targets = golden::read<std::int32_t>(file, "targets");
  [[nodiscard]] data::in_memory<std::int32_t, std::int32_t> data() const {
    return {tensor_view<std::int32_t const>(tokens.data(), {4, 11}),
            tensor_view<std::int32_t const>(targets.data(), {4, 11})};
  }
};

void compare(nn::deepseek const& model, std::string const& kind) {
  golden_numbers const all;
  golden::compare_step(model, all.data(), 4, 2, all.file, kind + "/");
}

/// The directory that transformers has written.
std::string directory() { return golden::path("deepseek"); }

/// What is said of a config.json in which members are other ones.
std::string refused(formats::json::object const& others) {
  auto config = nn::config_of(small);
  for (auto const& [key, content] : others) config.set(key, content);
  return sentence_of<format_error>([&] {
    nn::deepseek to;
    nn::read_config(formats::json::parse(formats::json::to_string(config), "config.json"), to);
  });
}

}  // namespace

TEST_CASE("a DeepSeek has the loss and the gradients of transformers, and moves its biases", "[nn][golden]") {
  compare(small, "low_rank");
}

TEST_CASE("a DeepSeek with one product for queries, wide values, two shared experts and no groups has them, too",
          "[nn][golden]") {
  auto plain = small;
  plain.query_rank = 0, plain.rank = 6, plain.plain = 4, plain.rotary_width = 2, plain.values = 8;
  plain.shared = 2, plain.groups = plain.chosen_groups = 1, plain.rotary = 10000, plain.epsilon = 1e-6;
  compare(plain, "plain");
}

TEST_CASE("a DeepSeek with multi-token prediction has the losses and gradients of the report's equations",
          "[nn][golden]") {
  auto const file = golden::open("deepseek_ahead.safetensors");
  auto const tokens = golden::read<std::int32_t>(file, "tokens"), targets = golden::read<std::int32_t>(file, "targets");
  data::in_memory const data(tensor_view<std::int32_t const>(tokens.data(), {4, 11}),
                             tensor_view<std::int32_t const>(targets.data(), {4, 11}));
  nn::deepseek model{.vocabulary = 23,
                     .context = 16,
                     .layers = 2,
                     .dense = 1,
                     .channels = 12,
                     .heads = 2,
                     .rank = 6,
                     .plain = 4,
                     .rotary_width = 2,
                     .values = 4,
                     .hidden = 10,
                     .experts = 4,
                     .top_k = 2,
                     .expert_hidden = 6,
                     .groups = 2,
                     .chosen_groups = 1,
                     .rotary = 100,
                     .epsilon = 1e-5};
  for (std::string const kind : {"one", "two"}) {
    model.ahead = kind == "one" ? 1 : 2;
    for (bool const checkpointed : {false, true}) {
      INFO(kind << (checkpointed ? ", checkpointed" : ""));
      model.checkpointed = checkpointed;
      golden::compare_step(model, data, 4, 2, file, kind + "/");
    }
    comm::self_world self;
    auto trainer = make_trainer(model, optim::sgd{}, self, precision::fp64{});
    auto plain = model;
    plain.ahead = 0;
    auto without = make_trainer(plain, optim::sgd{}, self, precision::fp64{});
    auto const take = [&](std::string const& name, auto const&, std::int64_t, auto values) {
      auto const theirs = golden::read<double>(file, kind + "/parameter/" + name);
      std::copy(theirs.begin(), theirs.end(), values.span().begin());
    };
    trainer.change_parameters(take);
    without.change_parameters(take);
    CHECK(std::abs(trainer.evaluate(data) - golden::read<double>(file, kind + "/main_loss")[0]) < 1e-12);
    CHECK(trainer.evaluate(data) == without.evaluate(data));
    auto const some =
        make_samples(tensor_view<std::int32_t const>(tokens.data(), {4, 11}), tensor_view<std::int32_t const>());
    auto const ours = trainer.predict(some), theirs = without.predict(some);
    CHECK(std::equal(ours.span().begin(), ours.span().end(), theirs.span().begin(), theirs.span().end()));
    CHECK(ours.extents() == shape{4, 23});
  }
}

TEST_CASE("a DeepSeek refuses sizes that do not fit, in one sentence", "[nn]") {
  auto const sentence = [](nn::deepseek const& model) { return sentence_of<config_error>([&] { model.validate(); }); };
  CHECK(sentence({.layers = 0}) == "trireme::nn::deepseek: .layers is 0; it must be at least 1");
  CHECK(
      sentence({.layers = 2, .dense = 3}) ==
      "trireme::nn::deepseek: 3 dense blocks of 2, rotary_width 16; some of the blocks are dense, and rotary_width is "
      "even");
  CHECK(sentence({.experts = 8, .top_k = 3, .groups = 4}) ==
        "trireme::nn::deepseek: 3 of 8 experts, of 1 of 4 groups; groups are of equal sizes and have enough experts");
  CHECK(sentence({.scale = 0}) == "trireme::nn::deepseek: .scale is 0; it must be above 0, and finite");
  CHECK(sentence({.ahead = -1}) == "trireme::nn::deepseek: .ahead is -1; it must be at least 0");
  CHECK(sentence({}) == "");
  CHECK(contains(to_string(nn::deepseek{.ahead = 2}), ", .epsilon = 1e-06, .ahead = 2, .ahead_weight = 0.3}"));
  CHECK(
      to_string(small) ==
      "nn::deepseek{.vocabulary = 41, .context = 16, .layers = 3, .dense = 1, .channels = 24, .heads = 3, .query_rank "
      "= 10, .rank = 8, .plain = 6, .rotary_width = 4, .values = 5, .hidden = 20, .experts = 8, .top_k = 3, .shared = "
      "1, .expert_hidden = 10, .groups = 4, .chosen_groups = 2, .scale = 2.5, .speed = 0.001, .rotary = 100, .epsilon "
      "= 1e-05}");
}

TEST_CASE("a DeepSeek is read from files of transformers under any mesh, and written back unchanged",
          "[nn][pretrained]") {
  watchdog dog("files of a DeepSeek");
  CHECK(nn::read_description<nn::deepseek>(directory()) == small);
  golden_numbers const all;
  auto const theirs = golden::read<double>(all.file, "low_rank/loss")[0];
  auto const check = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(small, optim::sgd{}, world, policy);
      load_pretrained(trainer, directory());
      auto const loss = trainer.evaluate(all.data(), 2);
      if (world.rank() == 0) CHECK(loss == Approx(theirs).epsilon(1e-6));
      memory_files files;
      save_pretrained(trainer, "m", {}, files);
      if (world.rank() != 0) return;
      CHECK(nn::read_description<nn::deepseek>("m", files) == small);
      nn::pretrained_reader const ours(small.in_files(), "m", files), from(small.in_files(), directory());
      for (auto const& tensor : small.in_files().tensors) {
        parameter_info const whole{tensor.parameter, {tensor.matrices, tensor.inputs, tensor.columns}};
        std::vector<float> here(static_cast<std::size_t>(tensor.size())), there = here;
        if (tensor.matrix > 0) continue;
        auto const info = tensor.matrices > 1  ? whole
                          : tensor.inputs == 1 ? parameter_info{tensor.parameter, {tensor.columns}}
                                               : parameter_info{tensor.parameter, {tensor.inputs, tensor.columns}};
        ours.read(info, 0, std::span(here));
        from.read(info, 0, std::span(there));
        CHECK(here == there);
      }
    });
  };
  check(1, parallel::data{});
  check(3, parallel::expert{});
  check(3, parallel::zero<3>{.bucket_bytes = 1024});
  check(4, parallel::mesh{parallel::zero<1>{}, parallel::tensor{.ways = 2}, parallel::sequence{}});
}

TEST_CASE("modules of multi-token prediction are blocks after the last one in files", "[nn][pretrained]") {
  auto model = small;
  model.ahead = 1;
  golden_numbers const all;
  comm::self_world self;
  auto const load = [&](nn::deepseek const& what, std::string const& from, formats::file_system& files,
                        std::string const& fresh) {
    auto trainer = make_trainer(what, optim::sgd{}, self);
    load_pretrained(trainer, from, {.fresh = fresh}, files);
    return trainer.evaluate(all.data(), 2);
  };
  // Those of transformers have none.
  CHECK(contains(sentence_of<format_error>([&] { load(model, directory(), formats::real_files(), ""); }),
                 "model.layers.3."));
  auto trainer = make_trainer(model, optim::sgd{}, self);
  load_pretrained(trainer, directory(), {.fresh = "model.layers.3.*"});
  auto const loss = trainer.evaluate(all.data(), 2);
  CHECK(loss == Approx(golden::read<double>(all.file, "low_rank/loss")[0]).epsilon(1e-6));

  memory_files ours;
  save_pretrained(trainer, "m", {}, ours);
  CHECK(nn::read_description<nn::deepseek>("m", ours) == small);
  CHECK(contains(ours["m/config.json"], "\"num_nextn_predict_layers\": 1"));
  CHECK(load(small, "m", ours, "") == loss);
  auto again = make_trainer(model, optim::sgd{}, self);
  load_pretrained(again, "m", {}, ours);
  CHECK(again.state_hash() == trainer.state_hash());

  // As DeepSeek writes them, with copies of what modules share.
  auto layout = model.in_files();
  layout.add("model.layers.3.embed_tokens.weight", {41, 24}, "model.embed_tokens.weight");
  layout.add("model.layers.3.shared_head.head.weight", {41, 24}, "lm_head.weight");
  memory_files theirs;
  theirs.add_directory("m");
  nn::pretrained_writer writer(layout);
  trainer.for_each_state([&](std::string const& name, auto const&, std::int64_t, auto values) {
    if (name.starts_with("value/")) writer.add(name.substr(6), values.span());
  });
  writer.write(formats::directory("m", theirs), nn::config_of(model));
  auto third = make_trainer(model, optim::sgd{}, self);
  load_pretrained(third, "m", {}, theirs);
  CHECK(third.state_hash() == trainer.state_hash());
  CHECK(load(small, "m", theirs, "") == loss);
}

TEST_CASE("multi-token prediction is refused if ranks have parts of samples", "[nn]") {
  auto model = small;
  model.ahead = 1;
  auto const sentence = sentence_of<config_error>([&] {
    launch(comm::threads{.ranks = 2},
           [&](auto& world) { static_cast<void>(make_trainer(model, optim::sgd{}, world, parallel::context{})); });
  });
  CHECK(contains(sentence,
                 "trireme::nn::embedding_ahead model.layers.3.enorm: words ahead may lie on another rank where "
                 "parallel::context cuts samples; leave one of them out"));
}

TEST_CASE("a DeepSeek is read back from its config.json, and unsupported settings are refused", "[nn][pretrained]") {
  nn::deepseek again;
  nn::read_config(formats::json::parse(formats::json::to_string(nn::config_of(small)), "config.json"), again);
  CHECK(again == small);
  CHECK(refused({}) == "");
  CHECK(contains(refused({{"model_type", "deepseek_v2"}}), "nn::deepseek is \"deepseek_v3\", not \"deepseek_v2\""));
  CHECK(contains(refused({{"scoring_func", "softmax"}}), "which nn::deepseek cannot be; it takes \"sigmoid\""));
  CHECK(contains(refused({{"norm_topk_prob", false}}), "it takes true"));
  CHECK(contains(refused({{"rope_interleave", false}}), "it takes true"));
  CHECK(contains(refused({{"first_k_dense_replace", 4}}), "\"first_k_dense_replace\" is 4, of 3 layers"));
  CHECK(contains(refused({{"rope_scaling", formats::json::value::make({{"rope_type", "yarn"}, {"factor", 40}})}}),
                 "rotary positions of type \"yarn\""));
  CHECK(contains(refused({{"quantization_config", formats::json::object{}}}), "it takes none"));
}
