#include "trireme/ops/paged_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "../catch.hpp"
#include "trireme/core/rng.hpp"
#include "trireme/ops/host.hpp"

using namespace trireme;

namespace {

double number(std::int64_t sequence, std::int64_t position, std::int64_t column) {
  auto const word = random_block({5, 0}, static_cast<std::uint32_t>(sequence), static_cast<std::uint64_t>(position),
                                 static_cast<std::uint32_t>(column))[0];
  return 4 * static_cast<double>(unit_float(word)) - 2;
}

/// Rows of three sequences, in passes of different sizes; each row is compared with sums over its own sequence.
template <class T>
void check(ops::paged_heads const& how, double tolerance) {
  constexpr std::int64_t pages = 8;
  std::vector<std::int64_t> const lengths{33, 1, 40};
  std::vector<std::vector<std::int32_t>> const tables{{7, 2, 4}, {0}, {6, 1, 3}};
  auto const each = how.heads / how.key_heads, channels = how.channels();
  // Queries of a key head have equal keys and values.
  auto const element = [&](std::int64_t sequence, std::int64_t position, std::int64_t which, std::int64_t head,
                           std::int64_t i) {
    auto const own = which == 0 ? head : head / each;
    return static_cast<double>(
        static_cast<T>(static_cast<float>(number(sequence, position, (which * 16 + own) * 64 + i))));
  };
  tensor<T> kept({pages, how.page_size()});
  std::fill(kept.span().begin(), kept.span().end(), T(std::nanf("")));  // what was not written is not read
  arena<host> scratch;
  std::vector<std::int64_t> done(3, 0);
  for (std::int64_t pass = 0; done != lengths; ++pass) {
    std::vector<std::int32_t> numbers;
    std::vector<paged_rows::place> places;
    std::vector<std::int64_t> owners;
    for (std::size_t s = 0; s < 3; ++s) {
      auto const count = std::min(lengths[s] - done[s], (pass + static_cast<std::int64_t>(s)) % 4 == 0 ? 13L : 1L);
      for (std::int64_t i = 0; i < count; ++i) {
        places.push_back({done[s] + i, static_cast<std::int64_t>(numbers.size())});
        owners.push_back(static_cast<std::int64_t>(s));
      }
      numbers.insert(numbers.end(), tables[s].begin(), tables[s].end());
      done[s] += count;
    }
    auto const rows = static_cast<std::int64_t>(places.size());
    tensor<T> qkv({rows, 3 * channels}), y({rows, channels});
    for (std::int64_t row = 0; row < rows; ++row) {
      auto const at = static_cast<std::size_t>(row);
      for (std::int64_t c = 0; c < 3 * channels; ++c) {
        qkv.span()[static_cast<std::size_t>(row * 3 * channels + c)] = static_cast<T>(static_cast<float>(
            element(owners[at], places[at].position, c / channels, c % channels / how.width, c % how.width)));
      }
    }
    ops::paged_attention_on<host>::attend_paged(y.view(), kept.view(), tensor_view<T const>(qkv.view()),
                                                {places, numbers, pages, {}}, how, scratch);
    double worst = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      auto const sequence = owners[static_cast<std::size_t>(row)];
      auto const position = places[static_cast<std::size_t>(row)].position;
      auto const first = how.window > 0 ? std::max<std::int64_t>(0, position + 1 - how.window) : 0;
      for (std::int64_t head = 0; head < how.heads; ++head) {
        std::vector<double> sums(static_cast<std::size_t>(how.width), 0);
        double all = 0;
        for (auto j = first; j <= position; ++j) {
          double score = 0;
          for (std::int64_t i = 0; i < how.width; ++i)
            score += element(sequence, position, 0, head, i) * element(sequence, j, 1, head, i);
          auto const weight = std::exp(score / std::sqrt(static_cast<double>(how.width)));
          all += weight;
          for (std::int64_t i = 0; i < how.width; ++i)
            sums[static_cast<std::size_t>(i)] += weight * element(sequence, j, 2, head, i);
        }
        for (std::int64_t i = 0; i < how.width; ++i) {
          auto const got = y.span()[static_cast<std::size_t>(row * channels + head * how.width + i)];
          auto const off = static_cast<double>(got) - sums[static_cast<std::size_t>(i)] / all;
          worst = std::isfinite(off) ? std::max(worst, std::abs(off)) : 1e9;
        }
      }
    }
    CHECK(worst < tolerance);
  }
}

}  // namespace

TEST_CASE("attention over pages equals sums over each sequence", "[ops]") {
  for (auto const level : {ops::cpu_level::baseline, ops::cpu_level::avx2, ops::cpu_level::avx512}) {
    ops::detected(level);
    for (auto const& how : {ops::paged_heads{.heads = 2, .key_heads = 2, .width = 8},
                            ops::paged_heads{.heads = 4, .key_heads = 2, .width = 20, .window = 9},
                            ops::paged_heads{.heads = 3, .key_heads = 1, .width = 6, .window = 16},
                            ops::paged_heads{.heads = 7, .key_heads = 1, .width = 36},
                            ops::paged_heads{.heads = 6, .key_heads = 2, .width = 64, .window = 100}}) {
      CAPTURE(static_cast<int>(level), how.heads, how.window);
      check<float>(how, 1e-5);
      check<bfloat16>(how, 2e-2);
      check<double>(how, 1e-12);
    }
  }
  ops::detected(ops::quickest());
}
