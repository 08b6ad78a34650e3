// Attention over pages in CUDA memory equals that of host memory.
#include "trireme/ops/cuda/paged_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "compared.hpp"
#include "trireme/ops/sets/pages.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

static_assert(ops::paged_kernels<cuda, environment<precision::fp32, cuda>> &&
              ops::paged_kernels<cuda, environment<precision::fp64, cuda>> &&
              ops::paged_kernels<cuda, environment<precision::bf16, cuda>> &&
              ops::paged_kernels<cuda, environment<precision::fp16, cuda>>);

namespace {

constexpr std::int64_t pages = 24;

/// Rows of a pass, with the pages of their sequences.
struct rows_of_pass {
  std::vector<paged_rows::place> places;
  std::vector<std::int32_t> numbers;
  [[nodiscard]] paged_rows view() const { return {places, numbers, pages, {}}; }
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(places.size()); }
};
/// Some rows of a sequence behind those that are there.
void add(rows_of_pass& all, std::vector<std::int32_t> const& table, std::int64_t first, std::int64_t count) {
  auto const begin = static_cast<std::int64_t>(all.numbers.size());
  for (auto position = first; position < first + count; ++position) all.places.push_back({position, begin});
  all.numbers.insert(all.numbers.end(), table.begin(), table.end());
}
std::vector<std::int32_t> const longest{7, 2, 4, 9, 11, 23, 0, 13, 14, 15}, shorter{6, 1, 3}, shortest{5};

/// Numbers of which the queries of a key head have equal keys and values, as arrange_heads makes them.
template <class T>
compared::pair<T> queries_and_keys(std::int64_t rows, ops::paged_heads const& how, std::uint32_t seed,
                                   std::int64_t offset) {
  auto numbers = compared::numbers<T>(rows * 3 * how.channels(), seed);
  auto const each = how.heads / how.key_heads;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t which = 1; which < 3; ++which)
      for (std::int64_t head = 0; head < how.heads; ++head)
        for (std::int64_t i = 0; i < how.width; ++i) {
          auto const begin = (3 * row + which) * how.channels();
          numbers[static_cast<std::size_t>(begin + head * how.width + i)] =
              numbers[static_cast<std::size_t>(begin + head / each * each * how.width + i)];
        }
  return {shape{rows, 3 * how.channels()}, std::move(numbers), offset};
}
template <class T>
double tolerance() {
  return std::is_same_v<T, double>     ? 1e-12
         : std::is_same_v<T, float>    ? 1e-5
         : std::is_same_v<T, bfloat16> ? 2e-2
                                       : 3e-3;
}

}  // namespace

TEMPLATE_TEST_CASE("attention over pages on a device is the host's", "[paged_attention]", float, double, bfloat16,
                   float16) {
  for (auto const& [how, offset] :
       {std::pair{ops::paged_heads{.heads = 2, .key_heads = 2, .width = 8}, 0L},
        std::pair{ops::paged_heads{.heads = 3, .key_heads = 1, .width = 5}, 1L},
        std::pair{ops::paged_heads{.heads = 4, .key_heads = 2, .width = 6, .window = 9}, 0L},
        std::pair{ops::paged_heads{.heads = 1, .key_heads = 1, .width = 130}, 3L}}) {
    CAPTURE(how.heads, how.width, how.window, offset);
    // What no row has written is not read.
    compared::pair<TestType> kept(
        {pages, how.page_size()},
        std::vector<TestType>(static_cast<std::size_t>(pages * how.page_size()), TestType(std::nanf(""))), offset);
    arena<host> scratch;
    arena<cuda> there;
    std::vector<rows_of_pass> passes(3);
    add(passes[0], longest, 0, how.heads == 1 ? 20 : 131);  // more positions than a block has threads
    add(passes[0], shorter, 0, 17);
    add(passes[1], shorter, 17, 2);
    add(passes[1], shortest, 0, 1);
    add(passes[1], longest, how.heads == 1 ? 20 : 131, 3);
    std::uint32_t seed = 1;
    for (auto const& pass : passes) {  // the last one has no rows
      auto qkv = queries_and_keys<TestType>(pass.count(), how, ++seed, offset);
      auto y = compared::made<TestType>({pass.count(), how.channels()}, ++seed, offset);
      ops::paged_attention_on<host>::attend_paged(y.on_host(), kept.on_host(), qkv.on_host(), pass.view(), how,
                                                  scratch);
      ops::paged_attention_on<cuda>::attend_paged(y.device(), kept.device(), qkv.device(), pass.view(), how, there);
      CHECK(y.difference() <= tolerance<TestType>());
      CHECK(kept.difference() <= 0);
    }
  }
}

TEST_CASE("a row of attention over pages on a device has the same bits whatever is computed with it",
          "[paged_attention]") {
  ops::paged_heads const how{.heads = 4, .key_heads = 2, .width = 12};
  auto const count = 40 * how.channels() * 3;
  auto const numbers = compared::numbers<float>(count, 3);
  auto const outputs = [&](std::vector<std::pair<std::int64_t, std::int64_t>> const& parts, bool with_other) {
    arena<cuda> there;
    compared::pair<float> kept({pages, how.page_size()},
                               std::vector<float>(static_cast<std::size_t>(pages * how.page_size())));
    std::vector<float> all;
    for (auto const& [first, rows] : parts) {
      rows_of_pass pass;
      add(pass, longest, first, rows);
      auto const begin = numbers.begin() + first * 3 * how.channels();
      std::vector<float> own(begin, begin + rows * 3 * how.channels());
      if (with_other) {
        add(pass, shorter, first, rows);
        own.insert(own.end(), own.rbegin(), own.rend());
      }
      compared::pair<float> const qkv({pass.count(), 3 * how.channels()}, own);
      auto const y = compared::made<float>({pass.count(), how.channels()}, 4);
      ops::paged_attention_on<cuda>::attend_paged(y.device(), kept.device(), qkv.device(), pass.view(), how, there);
      auto const got = y.result();
      all.insert(all.end(), got.begin(), got.begin() + rows * how.channels());
    }
    return all;
  };
  auto const whole = outputs({{0, 40}}, false);
  CHECK(outputs({{0, 13}, {13, 1}, {14, 26}}, false) == whole);
  CHECK(outputs({{0, 7}, {7, 33}}, true) == whole);
}

TEST_CASE("attention over pages of CUDA memory refuses heads that are too wide", "[paged_attention]") {
  ops::paged_heads const how{.heads = 1, .key_heads = 1, .width = 257};
  rows_of_pass pass;
  add(pass, shortest, 0, 1);
  auto const qkv = compared::made<float>({1, 3 * 257}, 1), y = compared::made<float>({1, 257}, 2);
  tensor<float, cuda> kept({pages, how.page_size()});
  arena<cuda> there;
  CHECK(sentence_of<config_error>([&] {
          ops::paged_attention_on<cuda>::attend_paged(y.device(), kept.view(), qkv.device(), pass.view(), how, there);
        }) ==
        "trireme::ops::attend_paged: heads of 257 columns are not supported in CUDA memory, but of at most 256; use "
        "more heads");
}
