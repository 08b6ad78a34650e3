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

TEST_CASE("megatron_windows are the samples of Megatron-LM in its order", "[data]") {
  static_assert(dataset<data::megatron_samples> && has_sample_order<data::megatron_samples>);
  scratch const here;
  if (!python_ran("write_token_shards.py", here.path())) return;
  data::megatron_windows const all{.file = here / "megatron_u16.bin"};
  auto const expect = [&](std::string const& name, data::megatron_windows from) {
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
