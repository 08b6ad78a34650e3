// Embeddings of ops::on<cuda> and their gradients, compared with those of ops::on<host> and with sums in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "tensors.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/ops/host/embedding.hpp"

using namespace trireme;

namespace {

using on_device::kernels;
using on_device::numbers;
using on_device::same;
using on_device::shifted;
using host_kernels = ops::host_embedding;

template <class T>
double number(T x) {
  return static_cast<double>(static_cast<ops::accumulate_t<T>>(x));
}
template <class T>
void close(std::vector<T> const& got, std::vector<double> const& want, std::vector<double> const& sizes) {
  REQUIRE(got.size() == want.size());
  double const rounding = std::is_same_v<T, double> ? 1e-14 : std::is_same_v<T, float> ? 1e-6 : 5e-3;
  std::size_t bad = 0, first = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    // The magnitude of a sum's terms bounds its rounding; 16 bits are rounded once, at the end.
    auto const bound =
        sizeof(T) == 2 ? rounding * (0.01 + std::abs(want[i])) + 1e-6 * sizes[i] : rounding * (1 + sizes[i]);
    if (!(std::abs(number(got[i]) - want[i]) <= bound) && bad++ == 0) first = i;
  }
  if (got.empty()) return;
  INFO("element " << first << ": " << number(got[first]) << ", expected " << want[first]);
  CHECK(bad == 0);
}

struct layout {
  std::int64_t samples, context, channels, words;
  std::int64_t common = 0;  // percent of tokens that are one word
  std::int64_t offset = 0;  // of tensors from aligned addresses, in elements
  std::int64_t first = 0;   // the table is a part of a larger one from this word on
};

/// Tokens; some are in no part of the table if it begins behind word 0.
std::vector<std::int32_t> tokens_of(layout const& at) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(at.samples * at.context));
  std::uint64_t drawn = 0;
  auto const next = [&] { return mix(++drawn); };
  auto const words = static_cast<std::uint64_t>(at.words + 2 * at.first);
  for (auto& each : all) {
    auto const common = static_cast<std::int64_t>(next() % 100) < at.common;
    each = static_cast<std::int32_t>(common ? at.first + at.words / 3 : static_cast<std::int64_t>(next() % words));
  }
  return all;
}

template <class T, class G>
void check(layout const& at) {
  INFO(at.samples << " samples of " << at.context << " tokens, " << at.channels << " channels, " << at.words
                  << " words from " << at.first << " on, " << at.common << " % one word, offset " << at.offset << ", "
                  << sizeof(T) << " and " << sizeof(G) << " bytes");
  auto const rows = at.samples * at.context;
  shape const of_tokens{at.samples, at.context}, of_rows{rows, at.channels}, of_table{at.words, at.channels},
      of_positions{at.context, at.channels};
  ops::table_range const part{at.first, at.words + 2 * at.first};
  auto tokens = tokens_of(at);
  auto table = numbers<T>(at.words * at.channels, 1), positions = numbers<T>(at.context * at.channels, 2);
  auto dy = numbers<T>(rows * at.channels, 3);
  shifted<std::int32_t> const on_tokens(tokens);
  shifted<T> const on_table(table, at.offset), on_positions(positions, at.offset), on_dy(dy, at.offset),
      on_y(std::vector<T>(dy.size()), at.offset);
  tensor_view<std::int32_t const> const host_tokens = tensor_view(tokens).reshaped(of_tokens);

  std::vector<T> y(dy.size());
  for (bool const placed : {true, false}) {
    auto const host_positions = placed ? tensor_view(positions).reshaped(of_positions) : tensor_view<T>{};
    host_kernels::embed(tensor_view(y).reshaped(of_rows), host_tokens, tensor_view(table).reshaped(of_table),
                        host_positions, part);
    kernels::embed(on_y.view.reshaped(of_rows), on_tokens.view.reshaped(of_tokens), on_table.view.reshaped(of_table),
                   placed ? on_positions.view.reshaped(of_positions) : tensor_view<T const, cuda>{}, part);
    CHECK(same(on_y.here(), y));
  }

  auto const dtable = numbers<G>(at.words * at.channels, 4), dpositions = numbers<G>(at.context * at.channels, 5);
  std::vector<double> want(dtable.size()), sizes(dtable.size());
  std::vector<double> want_positions(dpositions.size()), position_sizes(dpositions.size());
  std::vector<int> counts(static_cast<std::size_t>(at.words));
  std::ranges::transform(dtable, want.begin(), number<G>);
  std::ranges::transform(dpositions, want_positions.begin(), number<G>);
  for (std::int64_t row = 0; row < rows; ++row) {
    auto const word = tokens[static_cast<std::size_t>(row)] - at.first;
    bool const known = word >= 0 && word < at.words;
    if (known) ++counts[static_cast<std::size_t>(word)];
    for (std::int64_t c = 0; c < at.channels; ++c) {
      auto const slope = number(dy[static_cast<std::size_t>(row * at.channels + c)]);
      auto const t = static_cast<std::size_t>(row % at.context * at.channels + c);
      want_positions[t] += slope;
      position_sizes[t] += std::abs(slope);
      if (!known) continue;
      want[static_cast<std::size_t>(word * at.channels + c)] += slope;
      sizes[static_cast<std::size_t>(word * at.channels + c)] += std::abs(slope);
    }
  }
  shifted<G> const on_dtable(dtable, at.offset), on_dpositions(dpositions, at.offset), again(dtable, at.offset);
  kernels::embed_backward(on_dtable.view.reshaped(of_table), on_dpositions.view.reshaped(of_positions),
                          on_dy.view.reshaped(of_rows), on_tokens.view.reshaped(of_tokens), part);
  auto const got = on_dtable.here();
  close(got, want, sizes);
  close(on_dpositions.here(), want_positions, position_sizes);
  kernels::embed_backward(again.view.reshaped(of_table), {}, on_dy.view.reshaped(of_rows),
                          on_tokens.view.reshaped(of_tokens), part);
  CHECK(same(again.here(), got));

  // Where a word has few rows, they are added to dtable in the host's order.
  if constexpr (sizeof(G) > 2) {
    auto expected = dtable;
    host_kernels::embed_backward(tensor_view(expected).reshaped(of_table), {},
                                 tensor_view<T const>(dy).reshaped(of_rows), host_tokens, part);
    std::int64_t different = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      if (counts[i / static_cast<std::size_t>(at.channels)] <= 32 && number(got[i]) != number(expected[i])) ++different;
    CHECK(different == 0);
  }
}

template <class T, class G>
void check_all() {
  std::vector<layout> all = {
      {1, 1, 1, 1},       {2, 5, 8, 11},        {0, 4, 8, 11},         {3, 11, 24, 9, 0, 0, 3},
      {1, 33, 8, 1},      {2, 16, 16, 3, 100},  {3, 100, 5, 7, 30},    {2, 40, 16, 6, 50, 1},
      {70, 3, 8, 20, 10}, {3, 700, 8, 300, 30}, {2, 600, 264, 40, 40}, {2, 20, 4, 70000, 40, 0, 5}};
#if defined(TRIREME_TEST_ON_GPU)
  for (layout const& each :
       {layout{3, 1024, 768, 1000, 30}, {64, 1024, 16, 50257, 5}, {1, 200000, 8, 130000, 60}, {3, 5000, 100, 12, 0}})
    all.push_back(each);
#endif
  for (auto const& each : all) check<T, G>(each);
}

template <class T, class G>
void check_segments(layout const& at) {
  INFO(at.samples << " samples of " << at.context << " tokens, " << at.channels << " channels, " << at.words
                  << " segments, " << at.common << " % separators");
  auto const rows = at.samples * at.context;
  shape const of_tokens{at.samples, at.context}, of_rows{rows, at.channels}, of_table{at.words, at.channels};
  auto tokens = tokens_of(at);
  auto const separator = static_cast<std::int32_t>(at.words / 3);  // the common word
  auto table = numbers<T>(at.words * at.channels, 1), y = numbers<T>(rows * at.channels, 2);
  shifted<std::int32_t> const on_tokens(tokens);
  shifted<T> const on_table(table, at.offset), on_y(y, at.offset), on_dy(y, at.offset);
  tensor_view<std::int32_t const> const host_tokens = tensor_view(tokens).reshaped(of_tokens);
  auto const dy = y;

  auto const dtable = numbers<G>(at.words * at.channels, 4);
  std::vector<double> const exact = [&] {
    std::vector<double> sums(dtable.size());
    std::ranges::transform(dtable, sums.begin(), number<G>);
    std::vector<double> slopes(dy.size());
    std::ranges::transform(dy, slopes.begin(), number<T>);
    host_kernels::embed_segments_backward(tensor_view(sums).reshaped(of_table),
                                          tensor_view<double const>(slopes).reshaped(of_rows), host_tokens, separator);
    return sums;
  }();
  shifted<G> const on_dtable(dtable, at.offset);
  kernels::embed_segments_backward(on_dtable.view.reshaped(of_table), on_dy.view.reshaped(of_rows),
                                   on_tokens.view.reshaped(of_tokens), separator);
  close(on_dtable.here(), exact, std::vector<double>(exact.size(), 2.0 * static_cast<double>(rows)));

  host_kernels::embed_segments(tensor_view(y).reshaped(of_rows), host_tokens, separator,
                               tensor_view(table).reshaped(of_table));
  kernels::embed_segments(on_y.view.reshaped(of_rows), on_tokens.view.reshaped(of_tokens), separator,
                          on_table.view.reshaped(of_table));
  CHECK(same(on_y.here(), y));
}

}  // namespace

TEST_CASE("embeddings in CUDA memory are the host's, and their gradients are sums in order", "[embedding]") {
  SECTION("float") { check_all<float, float>(); }
  SECTION("bfloat16") { check_all<bfloat16, float>(); }
  SECTION("float16") { check_all<float16, float>(); }
  SECTION("double") { check_all<double, double>(); }
  SECTION("gradients of 16 bits") {
    for (layout const& each : {layout{2, 5, 8, 11}, {3, 100, 5, 7, 30}, {2, 600, 24, 40, 40}}) {
      check<bfloat16, bfloat16>(each);
      check<float16, float16>(each);
    }
  }
}

TEST_CASE("segments in CUDA memory are the host's", "[embedding]") {
  for (layout const& each : {layout{1, 1, 1, 1}, {3, 70, 8, 2, 5}, {2, 100, 7, 5, 3}, {5, 33, 16, 3, 20, 1}}) {
    check_segments<float, float>(each);
    check_segments<bfloat16, float>(each);
    check_segments<float16, float16>(each);
    check_segments<double, double>(each);
  }
}

TEST_CASE("views that do not fit an embedding are refused", "[embedding]") {
  tensor<float, cuda> const table(shape{5, 4}), y(shape{6, 4}), few(shape{2, 4});
  tensor<std::int32_t, cuda> const tokens(shape{2, 3}), more(shape{2, 4});
  auto const said = [](auto&& call) { return sentence_of<assertion_error>(call); };
  CHECK(said([&] { kernels::embed(y.view(), more, table, {}); }) == "trireme::ops::embed: sizes 24 and 32 differ");
  CHECK(said([&] { kernels::embed(y.view(), tokens, table, few); }) ==
        "trireme::ops::embed: 3 positions needed, but only 2 in the table");
  CHECK(said([&] { kernels::embed_backward(table.view(), few, y.view(), tokens); }) ==
        "trireme::ops::embed_backward: 3 positions needed, but only 2 in the table");
}
