// Attention in CUDA memory, compared with the host's in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../catch.hpp"
#include "site_there.hpp"
#include "trireme/ops/cuda.hpp"
#include "trireme/ops/host/attention.hpp"
#include "trireme/ops/host/attention_block.hpp"

using namespace trireme;

namespace {

using kernels = ops::on<cuda>;
template <class T>
using sums_of = ops::accumulate_t<T>;

template <class T>
constexpr double tolerance = std::is_same_v<T, double>     ? 1e-12
                             : std::is_same_v<T, float>    ? 1e-5
                             : std::is_same_v<T, bfloat16> ? 2e-2
                                                           : 3e-3;

#if defined(TRIREME_TEST_ON_GPU)
constexpr std::int64_t larger = 7;  // times as many rows
#else
constexpr std::int64_t larger = 1;
#endif

/// Numbers that T has, in double.
template <class T>
std::vector<double> numbers(std::int64_t n, unsigned seed, double deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(deviation));
  std::vector<double> all(static_cast<std::size_t>(n));
  for (auto& each : all) each = static_cast<double>(static_cast<T>(normal(random)));
  return all;
}

/// Elements on the device, the first of which lies `offset` elements after an aligned address.
template <class T>
class elements {
 public:
  explicit elements(std::vector<double> const& all, std::int64_t offset = 0)
      : elements(static_cast<std::int64_t>(all.size()), offset) {
    std::vector<T> narrow(all.size());
    std::transform(all.begin(), all.end(), narrow.begin(), [](double x) { return static_cast<T>(x); });
    kernels::upload(view(), std::span<T const>(narrow));
  }
  explicit elements(std::int64_t n, std::int64_t offset = 0) : offset_(offset), memory_(shape{n + offset + 1}) {
    std::vector<T> unset(static_cast<std::size_t>(memory_.size()), static_cast<T>(12345.0F));
    kernels::upload(memory_.view(), std::span<T const>(unset));
  }
  [[nodiscard]] tensor_view<T, cuda> view() { return memory_.view().flat(offset_, memory_.size() - offset_ - 1); }
  [[nodiscard]] tensor_view<T const, cuda> read() { return view(); }
  [[nodiscard]] std::vector<T> bits() {
    std::vector<T> all(static_cast<std::size_t>(view().size()));
    kernels::download(std::span<T>(all), read());
    return all;
  }
  [[nodiscard]] std::vector<double> here() {
    auto const all = bits();
    std::vector<double> wide(all.size());
    std::transform(all.begin(), all.end(), wide.begin(), [](T x) { return static_cast<double>(x); });
    return wide;
  }
  /// Whether the element behind the last one is as it was.
  [[nodiscard]] bool ends_well() {
    return static_cast<double>(kernels::read(memory_.view(), memory_.size() - 1)) ==
           static_cast<double>(static_cast<T>(12345.0F));
  }

 private:
  std::int64_t offset_;
  tensor<T, cuda> memory_;
};

/// The largest difference, over the largest number; infinities are equal.
double distance(std::vector<double> const& a, std::vector<double> const& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0, largest = 1e-3;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    if (!(std::abs(a[i] - b[i]) < 1e30)) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::abs(a[i] - b[i]));
  }
  for (auto const each : b)
    if (std::isfinite(each)) largest = std::max(largest, std::abs(each));
  return most / largest;
}

struct results {
  std::vector<double> y, lse, dqkv;
};

/// What the host computes in double.
results on_host(ops::attention_shape const& what, dropout_site const& drop, std::vector<std::int32_t> const& seen,
                std::vector<double> qkv, std::vector<double> dy) {
  auto const rows = static_cast<std::size_t>(what.batch * what.context);
  auto const channels = static_cast<std::size_t>(what.channels);
  results all{std::vector<double>(rows * channels), std::vector<double>(rows * static_cast<std::size_t>(what.heads)),
              std::vector<double>(rows * 3 * channels)};
  arena<host> scratch;
  tensor_view<std::int32_t const, host> limits;
  if (!seen.empty()) limits = tensor_view<std::int32_t const, host>(seen);
  ops::host_attention::attention(tensor_view(all.y), tensor_view(all.lse), tensor_view(qkv), what, scratch, drop,
                                 limits);
  ops::host_attention::attention_backward(tensor_view(all.dqkv), tensor_view(dy), tensor_view(all.y),
                                          tensor_view(all.lse), tensor_view(qkv), what, scratch, drop, limits);
  return all;
}

template <class T>
void compare(ops::attention_shape what, dropout_site const& drop = {}, std::vector<std::int32_t> const& seen = {},
             std::int64_t offset = 0) {
  INFO("batch " << what.batch << " context " << what.context << " heads " << what.heads << " channels " << what.channels
                << " causal " << what.mask.causal << " window " << what.mask.window << " offset " << offset
                << " dropout " << drop.probability << " bytes " << sizeof(T));
  auto const rows = what.batch * what.context;
  auto const qkv = numbers<T>(rows * 3 * what.channels, 1, 1.5);
  auto const dy = numbers<T>(rows * what.channels, 2);
  auto const want = on_host(what, drop, seen, qkv, dy);
  elements<T> at_qkv(qkv, offset), at_dy(dy, offset), y(rows * what.channels, offset),
      dqkv(rows * 3 * what.channels, offset);
  elements<sums_of<T>> lse(rows * what.heads, offset);
  tensor<std::int32_t, cuda> limits(shape{std::max<std::int64_t>(1, static_cast<std::int64_t>(seen.size()))});
  tensor_view<std::int32_t const, cuda> seen_there;
  if (!seen.empty()) {
    kernels::upload(limits.view(), std::span<std::int32_t const>(seen));
    seen_there = limits.view();
  }
  arena<cuda> scratch;
  on_device::site_there const there(drop);
  kernels::attention(y.view(), lse.view(), at_qkv.read(), what, scratch, there(), seen_there);
  CHECK(distance(y.here(), want.y) < tolerance<T>);
  CHECK(distance(lse.here(), want.lse) < tolerance<T>);
  kernels::attention_backward(dqkv.view(), at_dy.read(), y.read(), lse.read(), at_qkv.read(), what, scratch, there(),
                              seen_there);
  CHECK(distance(dqkv.here(), want.dqkv) < 2 * tolerance<T>);
  auto const first = dqkv.bits();
  kernels::attention_backward(dqkv.view(), at_dy.read(), y.read(), lse.read(), at_qkv.read(), what, scratch, there(),
                              seen_there);
  auto const second = dqkv.bits();
  CHECK(std::equal(first.begin(), first.end(), second.begin(),
                   [](T a, T b) { return static_cast<double>(a) == static_cast<double>(b); }));
  CHECK((y.ends_well() && dqkv.ends_well() && lse.ends_well()));
}

/// Padding before and behind the words of a sample, or documents of 1, 2, 3, ... positions.
std::vector<std::int32_t> limits_of(ops::attention_shape const& what, bool documents) {
  std::vector<std::int32_t> seen;
  auto const context = static_cast<std::int32_t>(what.context);
  for (std::int64_t b = 0; b < what.batch; ++b) {
    std::int32_t first = 0, behind = 1;
    for (std::int32_t row = 0; row < context; ++row) {
      if (row == behind) first = std::exchange(behind, 2 * behind - first + 1);
      seen.push_back(documents ? first : b == 0 ? 0 : context / 3);
      seen.push_back(documents ? std::min(behind, context) : b == 0 ? (context + 1) / 2 : context);
    }
  }
  return seen;
}

std::int64_t const sample_ids[] = {5, 123456789012LL, 7};

}  // namespace

TEMPLATE_TEST_CASE("attention on a device is the host's, for any head and mask", "[attention]", float, double, bfloat16,
                   float16) {
  using T = TestType;
  for (auto const causal : {true, false}) {
    compare<T>({.batch = 1, .context = 70 * larger, .heads = 2, .channels = 128, .mask = {causal, 0}});
    compare<T>({.batch = 2, .context = 33 * larger, .heads = 3, .channels = 48, .mask = {causal, 0}});
    compare<T>({.batch = 1, .context = 37 * larger, .heads = 1, .channels = 128, .mask = {causal, 9}});
  }
  compare<T>({.batch = 2, .context = 21, .heads = 3, .channels = 15, .mask = {true, 0}});
  compare<T>({.batch = 1, .context = 40 * larger, .heads = 1, .channels = 80, .mask = {true, 0}});
  compare<T>({.batch = 1, .context = 20 * larger, .heads = 1, .channels = 256, .mask = {true, 0}});
  compare<T>({.batch = 1, .context = 1, .heads = 2, .channels = 32, .mask = {true, 0}});
  compare<T>({.batch = 1, .context = 33, .heads = 2, .channels = 128, .mask = {true, 0}}, {}, {}, 1);
}

TEMPLATE_TEST_CASE("attention on a device sees what documents and padding allow", "[attention]", float, bfloat16,
                   double) {
  using T = TestType;
  for (auto const documents : {true, false}) {
    for (auto const causal : {true, false}) {
      ops::attention_shape const what{
          .batch = 2, .context = 75 * larger, .heads = 1, .channels = 64, .mask = {causal, 0}};
      compare<T>(what, {}, limits_of(what, documents));
    }
    ops::attention_shape const wide{.batch = 2, .context = 40 * larger, .heads = 1, .channels = 96, .mask = {true, 11}};
    compare<T>(wide, {}, limits_of(wide, documents));
  }
}

TEMPLATE_TEST_CASE("attention on a device drops the host's probabilities", "[attention]", float, bfloat16, double) {
  using T = TestType;
  for (auto const context : {std::int64_t{67}, std::int64_t{24}}) {
    dropout_site const site{0.3, {42, 7}, 5, sample_ids};
    for (auto const channels : {std::int64_t{128}, std::int64_t{256}}) {
      compare<T>({.batch = 3, .context = context, .heads = 2, .channels = channels, .first_head = 3}, site);
    }
  }
}

TEST_CASE("attention on a device takes more samples with dropout than a kernel has arguments for", "[attention]") {
  std::vector<std::int64_t> ids(300);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(3 * i + 1);
  dropout_site const site{0.5, {42, 7}, 5, ids};
  compare<float>({.batch = 300, .context = 3, .heads = 1, .channels = 8}, site);
}

TEMPLATE_TEST_CASE("attention over blocks on a device is attention over all keys", "[attention]", float, bfloat16,
                   double) {
  using T = TestType;
  using A = sums_of<T>;
  // Two ranks' parts of samples of 80 positions, four parts of 20, of which this rank has the second and the last.
  for (auto const drops : {false, true}) {
    for (auto const causal : {true, false}) {
      ops::attention_shape const what{
          .batch = 2, .context = 40, .heads = 2, .channels = 96, .mask = {causal, causal ? 0 : 30}};
      auto const c = what.channels;
      dropout_site const site{drops ? 0.25 : 0.0, {42, 7}, 5, std::span(sample_ids).first(2)};
      auto const rows = what.batch * what.context;
      auto qkv = numbers<T>(rows * 3 * c, 1, 1.5);
      auto pairs = numbers<T>(rows * 2 * c, 2, 1.5);
      auto dy = numbers<T>(rows * c, 3);
      std::vector<ops::attention_block> blocks;
      for (auto const key_row : {std::int64_t{20}, std::int64_t{0}})
        for (auto const query_row : {std::int64_t{0}, std::int64_t{20}})
          blocks.push_back({.rows = 20,
                            .query_row = query_row,
                            .key_row = key_row,
                            .first_query = 20 + 2 * query_row,
                            .first_key = key_row == 0 ? 0 : 40,
                            .whole = 80});
      std::vector<double> y(static_cast<std::size_t>(rows * c)), dqueries(y.size()), dpairs(pairs.size());
      std::vector<double> lse(static_cast<std::size_t>(rows * what.heads), -std::numeric_limits<double>::infinity());
      arena<host> scratch;
      using on_host = ops::host_attention_block;
      elements<T> at_qkv(qkv), at_pairs(pairs), at_dy(dy);
      elements<A> at_y(y), at_lse(lse), at_dqueries(dqueries), at_dpairs(dpairs);
      arena<cuda> there;
      on_device::site_there const drop(site);
      for (auto const& block : blocks) {
        on_host::attend_block(tensor_view(y), tensor_view(lse), tensor_view(qkv), tensor_view(pairs), what, block,
                              scratch, site);
        kernels::attend_block(at_y.view(), at_lse.view(), at_qkv.view(), at_pairs.read(), what, block, there, drop());
      }
      CHECK(distance(at_y.here(), y) < tolerance<T>);
      CHECK(distance(at_lse.here(), lse) < tolerance<T>);
      elements<T> narrow(y);
      for (auto const& block : blocks) {
        on_host::attend_block_backward(tensor_view(dqueries), tensor_view(dpairs), tensor_view(dy), tensor_view(y),
                                       tensor_view(lse), tensor_view(qkv), tensor_view(pairs), what, block, scratch,
                                       site);
        kernels::attend_block_backward(at_dqueries.view(), at_dpairs.view(), at_dy.view(), narrow.read(), at_lse.read(),
                                       at_qkv.read(), at_pairs.read(), what, block, there, drop());
      }
      CHECK(distance(at_dqueries.here(), dqueries) < 2 * tolerance<T>);
      CHECK(distance(at_dpairs.here(), dpairs) < 2 * tolerance<T>);
    }
  }
}

TEST_CASE("attention on a device takes nothing, and refuses what does not fit", "[attention]") {
  arena<cuda> scratch;
  tensor_view<float, cuda> const nothing;
  kernels::attention(nothing, nothing, nothing, {.batch = 0, .context = 5, .heads = 2, .channels = 8}, scratch, {});
  elements<float> qkv(3 * 512), y(512), lse(1);
  CHECK_THROWS_AS(kernels::attention(y.view(), lse.view(), y.read(),
                                     {.batch = 1, .context = 2, .heads = 1, .channels = 256}, scratch, {}),
                  assertion_error);
  CHECK_THROWS_AS(kernels::attention(y.view(), lse.view(), qkv.read(),
                                     {.batch = 1, .context = 1, .heads = 1, .channels = 512}, scratch, {}),
                  config_error);
}
