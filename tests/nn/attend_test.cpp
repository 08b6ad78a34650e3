// Rotary positions and fewer keys than queries, in whole trainings; gradients are tested by random expressions.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../support/training.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/in_space.hpp"
#include "trireme/data/in_memory.hpp"
#include "trireme/data/text_tokens.hpp"
#include "trireme/nn/latent_attention.hpp"
#include "trireme/nn/layers.hpp"
#include "trireme/parallel/context.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/pipeline.hpp"
#include "trireme/parallel/schedules/schedules.hpp"
#include "trireme/parallel/tensor.hpp"
#include "trireme/train/plan.hpp"

using namespace trireme;

namespace {

/// Blocks of LLaMA's kind between a GPT's embedding and head.
struct rotary_model {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  nn::gpt_shape shape{.vocabulary = 37, .context = 24, .layers = 2, .heads = 6, .channels = 24, .dropout = 0.1};
  std::int64_t keys = 3;
  double rotary = 100;
  nn::attend options{};  ///< what else attention does

  [[nodiscard]] nn::attend attention() const {
    auto what = options;
    what.heads = shape.heads, what.dropout = 0.1, what.key_heads = keys, what.rotary = rotary;
    return what;
  }

  void units(auto&& emit) const {
    using namespace nn;
    auto const c = shape.channels;
    auto const packed = (shape.heads + 2 * keys) * c / shape.heads;
    emit(gpt_embedding{shape});
    for (std::uint32_t i = 0; i < 2; ++i) {
      emit(block{text("layers.", i), c,
                 chain(residual(named("norm", rms_norm{}), named("qkv", linear{.outputs = packed, .bias = false}),
                                attention(), named("o", linear{.outputs = c, .bias = false}), dropout{0.1}),
                       residual(named("mlp_norm", rms_norm{}),
                                product(chain(named("gate", linear{.outputs = 36, .bias = false}), silu()),
                                        named("up", linear{.outputs = 36, .bias = false})),
                                named("down", linear{.outputs = c, .bias = false})))});
    }
    emit(gpt_head{shape});
  }
};
std::string to_string(rotary_model const& m) { return text("rotary_model{", m.keys, ", ", m.rotary, "}"); }

toy::training<rotary_model, toy::text> const training{
    {}, {.samples = 24, .context = 24}, {.steps = 5, .batch = 6, .micro_batches = 2}};

}  // namespace

TEST_CASE("rotary positions and grouped queries train with cut positions, heads and rows as on one rank", "[nn]") {
  watchdog dog("attend");
  using parallel::context_method;
  auto const serial = training.alone(toy::steady, precision::fp64{});
  CHECK(toy::distance(serial.losses, [] {
          auto other = training;
          other.model.rotary = 0;
          return other.alone(toy::steady, precision::fp64{}).losses;
        }()) > 1e-6);
  auto const compare = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    toy::check_near(training.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
  };
  compare(2, parallel::context{.ways = 2});
  compare(3, parallel::context{.ways = 3, .balanced = false});
  compare(3, parallel::context{.ways = 3, .method = context_method::all_to_all});
  compare(3, parallel::mesh{parallel::tensor{.ways = 3}, parallel::sequence{}});
  compare(4, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}, parallel::context{.ways = 2}});
  compare(4, parallel::mesh{parallel::tensor{.ways = 2},
                            parallel::context{.ways = 2, .method = context_method::all_to_all}});
  compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
}

TEST_CASE("windows, both directions, norms of heads and scaled angles train with cut tensors as on one rank", "[nn]") {
  watchdog dog("options");
  using parallel::context_method;
  auto const losses_of = [](nn::attend const& options) {
    auto other = training;
    other.model.options = options;
    return other.alone(toy::steady, precision::fp64{}).losses;
  };
  auto const plain = losses_of({});
  for (auto const& options : {nn::attend{.scaling = {.factor = 3}, .window = 5, .norm = 1e-3},
                              nn::attend{.causal = false}, nn::attend{.causal = false, .window = 3, .norm = 1e-3}}) {
    auto one = training;
    one.model.options = options;
    auto const serial = one.alone(toy::steady, precision::fp64{});
    CHECK(toy::distance(serial.losses, plain) > 1e-6);
    auto const compare = [&](int ranks, auto const& policy) {
      INFO(to_string(policy));
      toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
    };
    compare(3, parallel::context{.ways = 3, .balanced = false});
    compare(2, parallel::context{.ways = 2, .method = context_method::all_to_all});
    compare(4, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}, parallel::context{.ways = 2}});
    compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
  }
}

namespace {

/// Samples of 24 words of which the last ones are padding, 36, without targets; 5 ends a document.
struct padded_text {
  std::vector<std::int32_t> words = std::vector<std::int32_t>(24 * 24), next = words;
  padded_text() {
    for (std::int64_t i = 0; i < 24 * 24; ++i) {
      auto const at = static_cast<std::size_t>(i);
      bool const pads = i % 24 >= 24 - i / 24 % 7;
      words[at] = pads ? 36 : static_cast<std::int32_t>((i * i + i / 24) % 11);
      next[at] = pads ? -1 : static_cast<std::int32_t>((3 * i) % 36);
    }
  }
  [[nodiscard]] data::in_memory<std::int32_t, std::int32_t> dataset() const {
    return {tensor_view<std::int32_t const>(words.data(), {24, 24}),
            tensor_view<std::int32_t const>(next.data(), {24, 24})};
  }
};

}  // namespace

TEST_CASE("samples of different lengths and packed documents train under every mesh as on one rank", "[nn]") {
  watchdog dog("lengths");
  padded_text const text;
  toy::training<rotary_model, decltype(text.dataset())> one{
      {}, text.dataset(), {.steps = 5, .batch = 6, .micro_batches = 2}};
  auto const plain = one.alone(toy::steady, precision::fp64{});
  for (auto const& options : {nn::attend{.causal = false, .tokens = {.padding = 36}},
                              nn::attend{.tokens = {.padding = 36, .separator = 5}}}) {
    one.model.options = options;
    auto const serial = one.alone(toy::steady, precision::fp64{});
    CHECK(toy::distance(serial.losses, plain.losses) > 1e-6);
    auto const compare = [&](int ranks, auto const& policy) {
      INFO(to_string(policy));
      toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
    };
    compare(2, parallel::data{});
    compare(2, parallel::zero<3>{});
    compare(2, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}});
    compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
  }
  CHECK(sentence_of<config_error>([&] { static_cast<void>(one.on(2, optim::sgd{}, parallel::context{.ways = 2})); }) ==
        "trireme::nn::attend layers.0: a mask by tokens (padding, separator) needs whole samples, and "
        "parallel::context cuts them; leave one of them out");
}

TEST_CASE("documents packed by text_tokens do not attend to each other, and train under every mesh as on one rank",
          "[nn]") {
  watchdog dog("documents");
  scratch dir;
  // Windows of two documents each, of which the first is written in other letters.
  auto const packed = [&](char letter) {
    auto const path = dir / std::string(1, letter);
    {
      std::ofstream file(path);
      for (int window = 0; window < 24; ++window) {
        for (int i = 0; i < 22; ++i) {
          if (i == 9) file << "\n\n";
          file << static_cast<char>((i < 9 ? letter : 'a') + (i * i + 5 * window) % 11);
        }
        file << "\n\n";
      }
      file << "end";
    }
    return data::text_tokens{.path = path, .context = 24, .document_end = "\n\n", .separator = 36}.open(
        [](std::string_view text) {
          std::vector<std::int32_t> out;
          for (auto const each : text) out.push_back(each - 'a');
          return out;
        });
  };
  toy::training<rotary_model, data::packed_windows> one{{}, packed('a'), {.steps = 5, .batch = 6, .micro_batches = 2}};
  REQUIRE(one.data.size() == 24);
  auto const second_documents = [&](char letter) {
    std::vector<std::int32_t> in(2 * 24), next(2 * 24);
    packed(letter).read(std::vector<std::int64_t>{3, 4}, in.data(), next.data());
    CHECK((in[9] == 36 && next[8] == 36 && next[9] == -1 && next[10] == in[11]));
    comm::self_world world;
    auto trainer = make_trainer(one.model, world, toy::steady);
    trainer.initialise(7);
    auto const logits = trainer.predict(tensor_view<std::int32_t const>(in.data(), {2, 24}));  // of the last positions
    return std::vector<float>(logits.span().begin(), logits.span().end());
  };
  CHECK(second_documents('a') != second_documents('k'));
  one.model.options = {.tokens = {.separator = 36}};
  CHECK(second_documents('a') == second_documents('k'));
  auto const serial = one.alone(toy::steady, precision::fp64{});
  auto const compare = [&](int ranks, auto const& policy) {
    INFO(to_string(policy));
    toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
  };
  compare(2, parallel::data{});
  compare(2, parallel::zero<3>{});
  compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
}

TEST_CASE("a plan of such a model equals its training, and phantom memory is not touched", "[nn]") {
  watchdog dog("plans");
  auto const options = plan_options{.samples = 6, .micro_batches = 2};
  auto const taken = [&](auto& world, auto const& policy, auto precision) {
    auto model = training.model;
    model.options = {.causal = false, .norm = 1e-3};
    auto trainer = make_trainer(model, optim::sgd{}, world, policy, precision);
    auto const planned = plan(trainer, training.data, options).memory.activations;
    trainer.fit(training.data, {.steps = 2, .batch = 6, .micro_batches = 2});
    if (world.rank() == 0) CHECK(planned == static_cast<std::int64_t>(trainer.engine().peak_bytes()));
  };
  comm::self_world self;
  taken(self, parallel::data{}, precision::fp32{});
  taken(self, parallel::data{}, precision::bf16{});
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    taken(world, parallel::context{}, precision::bf16{});
    taken(world, parallel::context{.method = parallel::context_method::all_to_all}, precision::fp32{});
    taken(world, parallel::tensor{}, precision::fp32{});
  });
  auto dry = comm::in_space<phantom>(self);
  auto model = training.model;
  model.options = {.window = 5, .norm = 1e-3, .tokens = {.separator = 5}};
  auto trainer = make_trainer(model, optim::sgd{}, dry);
  CHECK(trainer.fit(training.data, {.steps = 2, .batch = 6, .micro_batches = 2}).steps == 2);
}

TEST_CASE("heads that do not fit are refused in one sentence", "[nn]") {
  watchdog dog("refusals");
  auto const sentence = [](rotary_model const& model, int ranks = 1) {
    return sentence_of<config_error>([&] {
      auto other = training;
      other.model = model;
      static_cast<void>(other.on(ranks, optim::sgd{}, parallel::tensor{.ways = ranks}));
    });
  };
  CHECK(sentence({.keys = 4}) ==
        "trireme::nn::attend: 6 heads, 4 key heads, rotary 100; heads are a multiple of key_heads, and rotary is not "
        "negative");
  auto odd = rotary_model{};
  odd.shape.channels = 18;
  CHECK(sentence(odd) ==
        "trireme::nn::attend layers.0: 36 numbers a row are not 6 queries, 3 keys and as many values of one even "
        "width");
  odd.rotary = 0;
  CHECK(sentence(odd) == "");
  CHECK(sentence({.options = {.window = -1}}) ==
        "trireme::nn::attend: window -1, norm 0, scaling factor 1 of 0 positions between 1 and 4 turns; window, norm "
        "and positions are not negative, the factor is above 0, and low is below high");
  CHECK(contains(sentence({}, 4), "3 key heads cannot be cut into 4 ways"));
}

namespace {

/// Blocks of latent attention between a GPT's embedding and head.
struct latent_model {
  using policy_category = slot::model;
  static constexpr bool cuts_context = true;
  nn::gpt_shape shape{.vocabulary = 37, .context = 24, .layers = 2, .heads = 6, .channels = 24, .dropout = 0.1};
  nn::latent_attention attention{.heads = 6,
                                 .query_rank = 10,
                                 .rank = 8,
                                 .plain = 4,
                                 .rotary_width = 2,
                                 .values = 4,
                                 .rotary = 100,
                                 .dropout = 0.1};

  void units(auto&& emit) const {
    using namespace nn;
    auto const c = shape.channels;
    emit(gpt_embedding{shape});
    for (std::uint32_t i = 0; i < 2; ++i) {
      emit(block{text("layers.", i), c,
                 chain(residual(named("norm", rms_norm{}), attention, named("o", linear{.outputs = c, .bias = false}),
                                dropout{0.1}),
                       residual(named("mlp_norm", rms_norm{}), named("up", linear{.outputs = 36}), gelu(),
                                named("down", linear{.outputs = c})))});
    }
    emit(gpt_head{shape});
  }
};
std::string to_string(latent_model const&) { return "latent_model"; }

toy::training<latent_model, toy::text> const latent{
    {}, {.samples = 24, .context = 24}, {.steps = 5, .batch = 6, .micro_batches = 2}};

}  // namespace

TEST_CASE("latent attention trains with cut positions, heads and rows as on one rank", "[nn]") {
  watchdog dog("latent attention");
  using parallel::context_method;
  for (bool const wide : {false, true}) {  // values wider than queries, which are a product of the input
    auto one = latent;
    if (wide) one.model.attention.query_rank = 0, one.model.attention.values = 9;
    auto const serial = one.alone(toy::steady, precision::fp64{});
    auto const compare = [&](int ranks, auto const& policy) {
      INFO(to_string(policy));
      toy::check_near(one.on(ranks, toy::steady, policy, precision::fp64{}).front(), serial, 1e-10);
    };
    compare(2, parallel::zero<3>{});
    compare(3, parallel::context{.ways = 3, .balanced = false});
    compare(2, parallel::context{.ways = 2, .method = context_method::all_to_all});
    compare(3, parallel::mesh{parallel::tensor{.ways = 3}, parallel::sequence{}});
    compare(2, parallel::tensor{.ways = 2});
    compare(4, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}, parallel::context{.ways = 2}});
    compare(4, parallel::mesh{parallel::pipeline<schedule::zb_h1>{.stages = 2}, parallel::tensor{.ways = 2}});
  }
}

TEST_CASE("a plan of latent attention equals its training, and phantom memory is not touched", "[nn]") {
  watchdog dog("latent plans");
  auto const options = plan_options{.samples = 6, .micro_batches = 2};
  auto const taken = [&](auto& world, auto const& policy, auto precision) {
    auto trainer = make_trainer(latent.model, optim::sgd{}, world, policy, precision);
    auto const planned = plan(trainer, latent.data, options).memory.activations;
    trainer.fit(latent.data, {.steps = 2, .batch = 6, .micro_batches = 2});
    if (world.rank() == 0) CHECK(planned == static_cast<std::int64_t>(trainer.engine().peak_bytes()));
  };
  comm::self_world self;
  taken(self, parallel::data{}, precision::fp32{});
  taken(self, parallel::data{}, precision::bf16{});
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    taken(world, parallel::context{}, precision::bf16{});
    taken(world, parallel::mesh{parallel::tensor{.ways = 2}, parallel::sequence{}}, precision::fp32{});
    taken(world, parallel::pipeline<schedule::zb_h1>{.stages = 2}, precision::fp32{});
  });
  auto dry = comm::in_space<phantom>(self);
  auto trainer = make_trainer(latent.model, optim::sgd{}, dry);
  CHECK(trainer.fit(latent.data, {.steps = 2, .batch = 6, .micro_batches = 2}).steps == 2);
}

TEST_CASE("widths of latent attention that do not fit are refused in one sentence", "[nn]") {
  watchdog dog("latent refusals");
  auto const sentence = [](auto const& change, int ranks = 1) {
    return sentence_of<config_error>([&] {
      auto other = latent;
      change(other.model.attention);
      static_cast<void>(other.on(ranks, optim::sgd{}, parallel::tensor{.ways = ranks}));
    });
  };
  CHECK(sentence([](auto& what) { what.rotary_width = 3; }) ==
        "trireme::nn::latent_attention: 6 heads, ranks 10 and 8, 4 plain, 3 rotary and 4 value numbers, rotary 100; "
        "all but query_rank are above 0, and rotary_width is even");
  CHECK(sentence([](auto& what) { what.heads = 3; }, 4) ==
        "trireme::nn::latent_attention layers.0: 3 heads cannot be cut into 4 ways; a tensor group has at most as many "
        "ranks as a layer has heads");
}

namespace {

/// Rows of two sequences of as many positions, with pages in turn.
struct two_sequences {
  std::vector<paged_rows::place> places;
  std::vector<std::int32_t> pages;
  std::vector<std::int64_t> last;
  two_sequences(std::int64_t first, std::int64_t count, std::int64_t context) {
    auto const each = paged_rows::pages_for(context);
    for (std::int64_t which = 0; which < 2; ++which) {
      for (auto at = first; at < first + count; ++at) places.push_back({at, which * each});
      for (std::int64_t page = 0; page < each; ++page) pages.push_back(static_cast<std::int32_t>(2 * page + which));
      last.push_back((which + 1) * count - 1);
    }
  }
  [[nodiscard]] paged_rows view() const { return {places, pages, static_cast<std::int64_t>(pages.size()), last}; }
};

/// The largest difference of logits between rows of sequences and whole samples, relative: the first positions at once,
/// then one by one, some together, and the sequences again from the beginning.
template <class Trainer>
double far_from_whole(Trainer& trainer, std::int64_t context) {
  std::vector<std::int32_t> words(static_cast<std::size_t>(2 * context));
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::int32_t>((i * i + i / 7) % 37);
  auto const part = [&](std::int64_t first, std::int64_t count, shape const& form, std::vector<std::int32_t>& to) {
    to.clear();
    for (std::int64_t sample = 0; sample < 2; ++sample) {
      auto const begin = words.begin() + sample * context + first;
      to.insert(to.end(), begin, begin + count);
    }
    return make_samples(tensor_view<std::int32_t const>(to.data(), form), tensor_view<std::int32_t const>{});
  };
  // In double where the trainer computes so.
  auto const numbers = [](auto const& out) { return std::vector<double>(out.span().begin(), out.span().end()); };
  auto const outputs = [&](samples const& batch, paged_rows const* rows) {
    if constexpr (std::is_same_v<typename Trainer::env::compute, double>)
      return numbers(rows != nullptr ? trainer.engine().predict_rows(batch, *rows) : trainer.engine().predict(batch));
    else
      return numbers(rows != nullptr ? trainer.predict_rows(batch, *rows) : trainer.predict(batch));
  };
  std::vector<std::int32_t> now, all;
  double most = 0;
  for (int round = 0; round < 2; ++round) {
    std::int64_t known = 0;
    for (std::int64_t const count : {round == 0 ? 5 : 1, 1, 1, 4, 1, 8, 1, 1}) {
      two_sequences const both(known, count, context);
      auto const rows = both.view();
      auto const more = outputs(part(known, count, {1, 2 * count}, now), &rows);
      known += count;
      most = std::max(most, toy::distance(more, outputs(part(0, known, {2, known}, all), nullptr)));
    }
  }
  return most;
}

}  // namespace

TEST_CASE("rows of sequences have the outputs of whole samples", "[nn]") {
  watchdog dog("going on");
  auto const far = [](auto const& model, auto& world, auto const& policy, auto precision) {
    auto trainer = make_trainer(model, optim::sgd{}, world, policy, precision);
    trainer.initialise(5);
    return far_from_whole(trainer, 22);
  };
  auto const with = [](nn::attend const& options, std::int64_t keys = 3, double rotary = 100) {
    auto model = training.model;
    model.keys = keys, model.rotary = rotary, model.options = options;
    return model;
  };
  comm::self_world self;
  parallel::data const alone{};
  for (auto const& model : {with({}), with({}, 6, 0), with({.scaling = {.factor = 3}, .norm = 1e-3}),
                            with({.window = 3}), with({.window = 7, .norm = 1e-3}, 6), with({.window = 1})}) {
    CHECK(far(model, self, alone, precision::fp64{}) < 1e-12);
    CHECK(far(model, self, alone, precision::fp32{}) < 1e-5);
  }
  CHECK(far(with({}), self, alone, precision::bf16{}) < 0.05);
  CHECK(far(latent_model{}, self, alone, precision::fp64{}) < 1e-12);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto const ok =
        far(with({.window = 3}), world, parallel::tensor{}, precision::fp32{}) < 1e-5 &&
        far(with({}), world, parallel::mesh{parallel::tensor{}, parallel::sequence{}}, precision::fp32{}) < 1e-5 &&
        far(with({}), world, parallel::context{}, precision::fp32{}) < 1e-5 &&
        far(with({}), world, parallel::zero<3>{}, precision::fp32{}) < 1e-5 &&
        far(with({}), world, parallel::pipeline<>{}, precision::fp32{}) < 1e-5;
    if (!ok) throw error("another output on some rank");
  });
}

TEST_CASE("rows of sequences that cannot be computed are refused, and pages are kept when there are more of them",
          "[nn]") {
  watchdog dog("rows of sequences");
  comm::self_world self;
  std::vector<std::int32_t> const words(50, 1);
  auto const refused = [&](nn::attend const& options, std::int64_t first, std::int64_t count) {
    auto model = training.model;
    model.options = options;
    auto trainer = make_trainer(model, optim::sgd{}, self);
    two_sequences const both(first, count, 32);
    return sentence_of<config_error>([&] {
      static_cast<void>(trainer.predict_rows(make_samples(tensor_view<std::int32_t const>(words.data(), {1, 2 * count}),
                                                          tensor_view<std::int32_t const>{}),
                                             both.view()));
    });
  };
  CHECK(contains(refused({.causal = false}, 0, 3), "cannot be computed one after the other"));
  CHECK(contains(refused({.tokens = {.separator = 5}}, 0, 3), "needs whole samples"));
  CHECK(contains(refused({}, 23, 2), "do not fit the 24 positions of"));
  CHECK(contains(refused({}, 23, 2), ": the last one is at 24"));
  CHECK(refused({}, 22, 2) == "");

  auto trainer = make_trainer(training.model, optim::sgd{}, self);
  trainer.initialise(5);
  auto const row_at = [&](std::int64_t first, std::int64_t count, std::int64_t pages) {
    std::vector<paged_rows::place> places;
    for (auto at = first; at < first + count; ++at) places.push_back({at, 0});
    std::vector<std::int32_t> const table{0, 1};
    std::int64_t const last = count - 1;
    return trainer.predict_rows(
        make_samples(tensor_view<std::int32_t const>(words.data(), {1, count}), tensor_view<std::int32_t const>{}),
        {places, table, pages, {&last, 1}});
  };
  auto const whole = row_at(0, 20, 2);
  static_cast<void>(row_at(0, 15, 2));
  auto const grown = row_at(15, 5, 7);  // the pages of the first 15 are copied
  CHECK(std::equal(whole.span().begin(), whole.span().end(), grown.span().begin()));
}
