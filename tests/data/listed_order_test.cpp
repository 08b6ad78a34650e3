#include "trireme/data/listed_order.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/function.hpp"
#include "trireme/data/loader.hpp"
#include "trireme/data/megatron_blend.hpp"
#include "trireme/data/megatron_windows.hpp"
#include "trireme/formats/file.hpp"

using namespace trireme;

namespace {

using ids = std::vector<std::int64_t>;

template <class T>
std::vector<T> numbers_of(std::string const& path) {
  auto const bytes = formats::read_text(path, 1 << 28);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

}  // namespace

TEST_CASE("a loader follows a list, on any number of ranks and after a resume", "[data]") {
  data::function const numbers([](float x) { return x; }, {.samples = 10});
  ids const order{3, 3, 9, 0, 1, 7, 2};
  data::listed_order const listed(numbers, order);
  static_assert(has_sample_order<data::listed_order>);
  CHECK(listed.size() == 10);
  auto const seen = [&](std::int64_t from, int rank, int ranks) {
    data::loader batches(listed, {.batch = 2, .micro_batches = 2, .seed = 5}, rank, ranks);
    data::loader_position place = batches.position();
    place.position = from;
    batches.seek(place);
    ids out;
    for (auto at = from; at < 14; at += 2) {
      for (auto const& part : batches.next().micro_batches) out.insert(out.end(), part.ids.begin(), part.ids.end());
    }
    return out;
  };
  CHECK(seen(0, 0, 1) == ids{3, 3, 9, 0, 1, 7, 2, 3, 3, 9, 0, 1, 7});  // the last batch of an epoch is short
  CHECK(seen(0, 1, 2) == ids{3, 0, 7, 2, 3, 0, 7});
  CHECK(seen(4, 0, 1) == ids{1, 7, 2, 3, 3, 9, 0, 1, 7});
  CHECK(contains(sentence_of<config_error>([&] {
                   data::listed_order(numbers, {0, 10});
                 }),
                 "position 1 is sample 10, but there are 10 samples"));
  CHECK(contains(sentence_of<config_error>([&] { data::listed_order(numbers, {}); }), "the order is empty"));
}

TEST_CASE("nanogpt_order gives the numbers of torch.randint", "[data]") {
  // torch.manual_seed(0); torch.randint(10, (5,))
  CHECK(data::nanogpt_order(0, 10, 5) == ids{4, 9, 3, 0, 3});
  CHECK(data::nanogpt_order(0, 10, 3, {.drawn_before = 2}) == ids{3, 0, 3});
  // The first two outputs are 2357136044 and 2546248239.
  auto const word = std::uint64_t{2357136044} << 32 | 2546248239;
  auto const many = std::int64_t{1} << 40;
  CHECK(data::nanogpt_order(0, many, 1) == ids{static_cast<std::int64_t>(word % (std::uint64_t{1} << 40))});
  CHECK(data::nanogpt_order(0, 3'000'000'000, 1, {.wide_from = std::uint64_t{1} << 32}) == ids{2357136044});
  CHECK(contains(sentence_of<config_error>([] { static_cast<void>(data::nanogpt_order(0, 0, 1)); }), "at least 1"));
}

TEST_CASE("nanogpt_run lists the samples of nanoGPT's train.py", "[data]") {
  // What torch.randint gave in train.py itself, with --n_layer=2 --n_head=2 --n_embd=24 --block_size=9 --batch_size=3
  // --gradient_accumulation_steps=4 --max_iters=4 --eval_interval=2 --eval_iters=5 --bias=True, and 3000 and 500
  // tokens.
  data::nanogpt_run run{.windows = 2991,
                        .held_out_windows = 491,
                        .steps = 4,
                        .batch = 3,
                        .accumulation = 4,
                        .eval_interval = 2,
                        .eval_iterations = 5,
                        .layers = 2,
                        .channels = 24,
                        .context = 9,
                        .bias = true};
  ids const seen{2725, 1350, 15,   1440, 2642, 1763, 667,  1753, 1823, 1240, 187,  998,  579, 741,  2990, 2864,
                 2359, 325,  1823, 955,  1212, 2284, 2720, 615,  2550, 256,  1851, 10,   242, 1484, 749,  2778,
                 2589, 2235, 2311, 2240, 2646, 2334, 112,  2512, 1957, 498,  1409, 1958, 243, 2482, 1663, 616};
  CHECK(run.order() == seen);
  CHECK(run.samples_per_step() == 12);
  run.vocabulary = 65;
  CHECK(run.drawn_by_weights() == 40592);  // as a model of 9 places, 65 words, 2 layers of 24 channels draws
  run.ranks = 2;
  auto const two = run.order();
  run.ranks = 1, run.seed = 1338, run.accumulation = 2, run.eval_interval = 100, run.eval_iterations = 0;
  auto const second = run.order();  // rank 1 draws from the next seed, and evaluates nothing
  for (std::size_t step = 0; step < 4; ++step) {
    CHECK(std::equal(two.begin() + static_cast<std::ptrdiff_t>(12 * step + 6),
                     two.begin() + static_cast<std::ptrdiff_t>(12 * step + 12),
                     second.begin() + static_cast<std::ptrdiff_t>(6 * step)));
  }
  run.ranks = 3;
  CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(run.order()); }), "a multiple of 3 ranks"));
  run.windows = 0;
  CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(run.order()); }), "must be at least 1"));
}

TEST_CASE("megatron_windows are the samples of Megatron-LM in its order", "[data]") {
  static_assert(dataset<data::megatron_samples> && has_sample_order<data::megatron_samples>);
  scratch const here;
  if (!python_ran("write_token_shards.py", here.path())) return;
  data::megatron_windows const all{.file = here / "megatron_u16.bin"};
  auto const expect = [&](std::string const& name, auto const& from) {
    CAPTURE(name);
    auto const samples = from.open();
    auto const wanted = numbers_of<std::int32_t>(here / name);
    auto const context = static_cast<std::size_t>(from.context);
    REQUIRE(wanted.size() == static_cast<std::size_t>(samples.epoch_size()) * (context + 1));
    std::vector<std::int32_t> in(context), out(context);
    bool equal = true;
    for (std::int64_t i = 0; i < samples.epoch_size(); ++i) {
      auto const id = samples.id_at(99, 1, i);
      samples.read(std::span(&id, 1), in.data(), out.data());
      auto const* const tokens = wanted.data() + static_cast<std::size_t>(i) * (context + 1);
      equal &= std::equal(in.begin(), in.end(), tokens) && std::equal(out.begin(), out.end(), tokens + 1);
    }
    CHECK(equal);
  };
  auto one = all, apart = all, together = all;
  one.context = 64;
  expect("order_one", one);
  apart.context = 32, apart.samples = 1000, apart.seed = 7;
  expect("order_apart", apart);
  together.context = 100, together.samples = 390, together.seed = 42;
  together.first_sequence = 10, together.last_sequence = 44;
  expect("order_together", together);

  auto const expect_blend = [&](std::string const& name, data::megatron_blend from) {
    from.files.front().file = here / from.files.front().file, from.files.back().file = here / from.files.back().file;
    expect(name, from);
  };
  data::megatron_blend blend{.files = {{"megatron_u16.bin", 30}, {"part.bin", 70}}, .context = 64, .samples = 500};
  expect_blend("blend", blend);
  auto refused = blend;
  refused.files.back().weight = 0;
  CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(refused.open()); }), "all weights are positive"));
  CHECK(to_string(blend).starts_with("trireme::data::megatron_blend{.files = {{\"megatron_u16.bin\", 30}, {"));
  blend.files.front().weight = blend.files.back().weight = 0;
  blend.samples = 100, blend.seed = 3;
  expect_blend("blend_sized", blend);
  blend.samples = 0;
  expect_blend("blend_all", blend);

  one.separator = 0;
  auto const masked = one.open();
  std::vector<std::int32_t> in(64), out(64);
  bool found = false;
  for (std::int64_t id = 0; id < masked.size(); ++id) {
    masked.read(std::span(&id, 1), in.data(), out.data());
    for (std::size_t t = 0; t < 64; ++t) {
      found |= in[t] == 0;
      if ((in[t] == 0) != (out[t] == -1)) FAIL(id);
    }
  }
  CHECK(found);
  auto const refusal = [](data::megatron_windows const& from) {
    return sentence_of([&] { static_cast<void>(from.open()); });
  };
  auto wrong = all;
  wrong.last_sequence = 50;
  CHECK(contains(refusal(wrong), "sequences 0 to 50 are not a range"));
  wrong = all;
  wrong.last_sequence = 0;
  CHECK(contains(refusal(wrong), "needs one more than that many"));
  wrong = all;
  wrong.samples = std::int64_t{1} << 32;
  CHECK(contains(refusal(wrong), "too long an order"));
  wrong.samples = -1;
  CHECK(contains(refusal(wrong), ".samples = -1"));
  CHECK(contains(refusal({.file = here / "gpt2_000.bin"}), "gpt2_000.idx"));
  CHECK(to_string(data::megatron_windows{.file = "a.bin"}) ==
        "trireme::data::megatron_windows{.file = \"a.bin\", .context = 1024, .samples = 0, .seed = 1234, "
        ".first_sequence = 0, .last_sequence = -1, .vocabulary = 0, .separator = -1}");
}
