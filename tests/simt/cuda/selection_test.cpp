// The largest elements of a tensor in CUDA memory, and where they go: the host's bits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "codec_tensors.hpp"
#include "tensors.hpp"
#include "trireme/ops/host/codes.hpp"
#include "trireme/ops/host/reductions.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace codec_tensors;

namespace {

template <class Precision>
constexpr bool has_kernels = ops::selection_kernels<cuda, environment<Precision, cuda>>&&
    ops::sampled_selection_kernels<cuda, environment<Precision, cuda>>;
static_assert(has_kernels<precision::fp32> && has_kernels<precision::fp64> && has_kernels<precision::bf16> &&
              has_kernels<precision::fp16>);

#if defined(TRIREME_TEST_ON_GPU)
constexpr std::int64_t large = 10'000'019;
#else
constexpr std::int64_t large = 20'011;
#endif

/// The thread sanitizer takes long for a selection, which is some thirty kernels: it gets one of each way through them,
/// and simt.selection has all. The ways are: a part of a chunk, several chunks, chunks of several blocks; some elements
/// or all; as many as equal ones are left, or fewer; zeros, which are not counted, are taken or not. With a sample:
/// enough elements reach its threshold, too many, or too few.
bool has_few() { return on_device::sanitizer() == "thread"; }

/// Compares both selections; samples = 0: only select_largest.
template <class G>
void compare(std::vector<G> x, std::int64_t k, std::int64_t samples, std::int64_t offset = 0) {
  CAPTURE(x.size(), k, samples, offset, sizeof(G));
  std::vector<std::int32_t> indices(static_cast<std::size_t>(k), -1);
  std::vector<G> values(static_cast<std::size_t>(k));
  there<G> const dx(x, offset), to_values(values, offset);
  there<std::int32_t> const to_indices(indices, offset);
  if (samples == 0) {
    kernels::select_largest(dx.constant(), to_indices.view(), to_values.view());
    ops::host_reductions::select_largest(tensor_view<G const>(x), tensor_view(indices), tensor_view(values));
  } else {
    kernels::select_sampled(dx.constant(), samples, to_indices.view(), to_values.view());
    ops::host_codes::select_sampled(tensor_view<G const>(x), samples, tensor_view(indices), tensor_view(values));
  }
  CHECK(same_bits(to_indices.back(), indices));
  CHECK(same_bits(to_values.back(), values));
}
/// Few different magnitudes, so that many are equal.
template <class G>
std::vector<G> coarse(std::int64_t n, int different) {
  auto x = numbers<G>(n, 9);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<G>(static_cast<int>(i * 7919 % 1000003) % different - different / 2);
  return x;
}

template <class G>
void compare_scatter(std::vector<std::int32_t> const& at, std::int64_t n) {
  auto y = numbers<G>(n, 3);
  auto const values = numbers<G>(static_cast<std::int64_t>(at.size()), 4);
  there<G> const dy(y), from(values);
  there<std::int32_t> const indices(at);
  for (bool const add : {true, false}) {
    kernels::scatter(dy.view(), indices.constant(), from.constant(), add);
    ops::host_reductions::scatter(tensor_view(y), tensor_view<std::int32_t const>(at), tensor_view<G const>(values),
                                  add);
    CHECK(same_bits(dy.back(), y));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("the largest elements in CUDA memory are the host's", "[selection]", float, double) {
  for (std::int64_t const n : {1, 31, 32, 37, 1024, 1025, 4097}) {
    if (has_few() && n != 37 && n != 1025) continue;
    for (std::int64_t const k : {std::int64_t{0}, std::int64_t{1}, (n + 9) / 10, n / 2, n}) {
      if (has_few() && (k == 1 || k == n / 2)) continue;
      compare(numbers<TestType>(n, static_cast<std::uint32_t>(n)), k, 0, n % 2);
    }
  }
  compare(std::vector<TestType>{}, 0, 0);
  auto const most = has_few() ? 9001 : large;  // more than 8192 have chunks for two blocks
  compare(numbers<TestType>(most, 2), most / 100, 0);
  for (std::int64_t const k : {700, 1, 2999}) {
    compare(coarse<TestType>(3000, 5), k, 0);
    if (has_few()) break;
    compare(std::vector<TestType>(3000), k, 0);
  }
  auto sparse = numbers<TestType>(3000, 7);
  for (std::size_t i = 0; i < sparse.size(); ++i)
    if (i % 4 != 1) sparse[i] = i % 2 == 0 ? TestType{0} : -TestType{0};
  sparse[1001] = std::numeric_limits<TestType>::denorm_min();
  for (std::int64_t const k : {2000, 300, 749, 750, 751, 3000}) {
    compare(sparse, k, 0);
    if (has_few()) break;
  }
  auto x = numbers<TestType>(2500, 8);
  x[17] = std::numeric_limits<TestType>::quiet_NaN();
  x[2400] = -std::numeric_limits<TestType>::infinity();
  x[1300] = std::numeric_limits<TestType>::denorm_min();
  for (std::int64_t const k : {3, 1, 2, 2499}) {
    compare(x, k, 0);
    if (has_few()) break;
  }
}

TEMPLATE_TEST_CASE("elements selected by a sample in CUDA memory are the host's", "[selection]", float, double) {
  for (std::int64_t const samples : {1, 16, 100, 1000}) {
    for (std::int64_t const k : {1, 41, 400}) {
      if (has_few() && (samples != 100 || k != 41)) continue;
      compare(numbers<TestType>(4100, static_cast<std::uint32_t>(samples)), k, samples, k % 2);
      compare(coarse<TestType>(4100, 3), k, samples);
      // Elements that the sample leaves out, and elements that it holds only: too many and too few reach the threshold.
      auto x = std::vector<TestType>(4100, TestType{1});
      for (std::size_t i = 0; i < x.size(); i += 3) x[i] = TestType{2};
      compare(x, k, samples);
    }
  }
  auto few = std::vector<TestType>(5000);
  for (std::int64_t i = 0; i < 50; ++i) {  // those of the sample
    auto const offset = mix(static_cast<std::uint64_t>(i)) % 100;
    few[static_cast<std::size_t>(i) * 100 + static_cast<std::size_t>(offset)] = static_cast<TestType>(100 + i);
  }
  if (!has_few()) compare(few, 20, 50);
  compare(few, 300, 50);
  auto const most = has_few() ? 9001 : large;
  compare(numbers<TestType>(most, 2), most / 100, has_few() ? 1000 : large / 20);  // of three blocks, which loop
}

TEMPLATE_TEST_CASE("values scattered in CUDA memory are the host's", "[selection]", float, double) {
  constexpr std::int64_t n = 1500;
  std::vector<std::int32_t> at(has_few() ? 300 : 700);  // of two blocks, or three
  std::iota(at.begin(), at.end(), 3);
  compare_scatter<TestType>(at, n);
  for (std::size_t i = 0; i < at.size(); ++i) at[i] = static_cast<std::int32_t>(i * 7919 % 1499);
  if (!has_few()) compare_scatter<TestType>(at, n);
  for (auto& each : at) each %= 50;  // without order, and with equal ones
  compare_scatter<TestType>(at, n);
  std::sort(at.begin(), at.end());
  compare_scatter<TestType>(at, n);
  std::fill(at.begin(), at.end(), 0);
  if (!has_few()) compare_scatter<TestType>(at, n);
  compare_scatter<TestType>({}, n);
}

TEST_CASE("selections that do not fit are refused in CUDA memory", "[selection]") {
  there<float> const x(numbers<float>(10, 1)), values(numbers<float>(11, 1));
  there<std::int32_t> const indices(std::vector<std::int32_t>(11));
  CHECK(sentence_of<assertion_error>([&] { kernels::select_largest(x.constant(), indices.view(), values.view()); }) ==
        "trireme::ops::select_largest: 11 of 10 elements asked for");
  CHECK(sentence_of<assertion_error>([&] { kernels::scatter(x.view(), indices.constant(), x.view(), true); }) ==
        "trireme::ops::scatter: sizes 11 and 10 differ");
  // An index outside of the tensor is left out.
  auto y = numbers<float>(10, 1);
  there<std::int32_t> const wrong(std::vector<std::int32_t>{-1, 3, 10});
  there<float> const three(std::vector<float>{1, 2, 3});
  kernels::scatter(x.view(), wrong.constant(), three.view(), false);
  y[3] = 2;
  CHECK(same_bits(x.back(), y));
}
