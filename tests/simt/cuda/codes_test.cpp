// Codes of few bits and elements that are drawn, in CUDA memory: the host's bits.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "codec_tensors.hpp"
#include "trireme/ops/host/codes.hpp"
#include "trireme/ops/sets/codec.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using namespace codec_tensors;

namespace {

template <class Precision>
constexpr bool has_kernels =
    ops::codes_kernels<cuda, environment<Precision, cuda>>&& ops::drawing_kernels<cuda, environment<Precision, cuda>>;
static_assert(has_kernels<precision::fp32> && has_kernels<precision::fp64> && has_kernels<precision::bf16> &&
              has_kernels<precision::fp16>);

constexpr ops::random_stream randoms{.key = {42, 7}, .site = 3, .sample = 123456789012ULL};

/// Numbers with blocks that are zeros, tiny, large, and not finite.
template <class G>
std::vector<G> gradients(std::int64_t n, std::int64_t block, bool extremes) {
  auto x = numbers<G>(n, static_cast<std::uint32_t>(n));
  if (!extremes) return x;
  for (std::int64_t i = 0; i < n; ++i) {
    auto& each = x[static_cast<std::size_t>(i)];
    switch (i / block % 6) {
      case 1:
        each = static_cast<G>(i % 2 == 0 ? 0.0 : -0.0);
        break;
      case 2:
        each *= static_cast<G>(1e-38F);
        break;
      case 3:
        each = static_cast<G>((i % 3 == 0 ? -1 : 1) * std::numeric_limits<float>::max());
        break;
      case 4:
        if (i % block == 5) each = std::numeric_limits<G>::infinity();
        break;
      case 5:
        if (i % block == 7) each = std::numeric_limits<G>::quiet_NaN();
        break;
      default:
        break;
    }
  }
  return x;
}

template <class G>
void compare(ops::code_form const& form, std::int64_t n, bool extremes, std::int64_t offset) {
  for (auto const* rounding : {static_cast<ops::random_stream const*>(nullptr), &randoms}) {
    CAPTURE(form.bits, form.block, n, extremes, offset, rounding != nullptr, sizeof(G));
    auto x = gradients<G>(n, form.block, extremes);
    auto y = numbers<G>(n, 5);
    std::vector<float> scales(static_cast<std::size_t>(form.scales(n)));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(form.code_bytes(n)));
    there<G> const dx(x, offset), dy(y, offset);
    there<float> const to_scales(scales, offset);
    there<std::uint8_t> const to_codes(codes, offset);
    kernels::encode_codes(to_scales.view(), to_codes.view(), dx.constant(), form, rounding);
    ops::host_codes::encode_codes(tensor_view(scales), tensor_view(codes), tensor_view(x), form, rounding);
    // The sign and the payload of NaN are the processor's.
    auto made = to_scales.back();
    for (std::size_t i = 0; i < scales.size(); ++i)
      if (std::isnan(scales[i]) && std::isnan(made[i])) made[i] = scales[i];
    CHECK(same_bits(made, scales));
    CHECK(same_bits(to_codes.back(), codes));
    for (bool const add : {false, true}) {
      kernels::decode_codes(dy.view(), to_scales.constant(), to_codes.constant(), form, add);
      ops::host_codes::decode_codes(tensor_view(y), tensor_view<float const>(scales),
                                    tensor_view<std::uint8_t const>(codes), form, add);
      auto got = dy.back();
      for (std::size_t i = 0; i < y.size(); ++i)
        if (std::isnan(y[i]) && std::isnan(got[i])) got[i] = y[i];
      CHECK(same_bits(got, y));
    }
  }
}

template <class T, class G>
void compare_drawn(std::int64_t n, std::int64_t k) {
  CAPTURE(n, k);
  auto x = numbers<G>(n, 1);
  auto y = numbers<G>(n, 2);
  std::vector<T> values(static_cast<std::size_t>(k));
  there<G> const dx(x), dy(y);
  there<T> const to(values);
  for (bool const weighted : {false, true}) {
    kernels::gather_drawn(to.view(), dx.view(), randoms, weighted);
    ops::host_codes::gather_drawn(tensor_view(values), tensor_view(x), randoms, weighted);
    CHECK(same_bits(to.back(), values));
    kernels::scatter_drawn(dy.view(), to.view(), randoms);
    ops::host_codes::scatter_drawn(tensor_view(y), tensor_view(values), randoms);
    CHECK(same_bits(dy.back(), y));
  }
}

}  // namespace

TEST_CASE("codes in CUDA memory are the host's", "[codes]") {
  for (int const bits : {8, 4, 2, 1}) {
    auto const group = 512 / bits;
    for (std::int64_t const n : {0, 1, 37, group, 4 * group + 1, 2050}) compare<float>({bits, group}, n, false, 0);
    compare<float>({bits, 512}, 5001, false, 1);
    compare<float>({bits, 512}, 3210, true, 0);
    compare<float>({bits, 3 * group}, 9000, false, 3);
    compare<double>({bits, 512}, 1301, false, 0);
    compare<double>({bits, group}, 7 * group - 3, true, 1);
  }
#if defined(TRIREME_TEST_ON_GPU)
  compare<float>({8, 256}, 5'000'003, false, 0);
  compare<float>({1, 512}, 5'000'003, true, 0);
#endif
}

TEST_CASE("elements drawn in CUDA memory are the host's", "[codes]") {
  for (auto const& [n, k] : {std::pair<std::int64_t, std::int64_t>{0, 0}, {1, 1}, {37, 5}, {37, 37}, {5000, 903}}) {
    compare_drawn<float, float>(n, k);
    compare_drawn<bfloat16, float>(n, k);
    compare_drawn<float16, float>(n, k);
    compare_drawn<double, double>(n, k);
  }
  compare_drawn<float, double>(1000, 100);
  compare_drawn<bfloat16, double>(1000, 100);
}

TEST_CASE("codes that do not fit are refused in CUDA memory", "[codes]") {
  there<float> const x(numbers<float>(100, 1)), scales(numbers<float>(1, 1));
  there<std::uint8_t> const codes(std::vector<std::uint8_t>(64));
  CHECK(sentence_of<assertion_error>([&] {
          kernels::encode_codes(scales.view(), codes.view(), x.constant(), {}, nullptr);
        }) == "trireme::ops::encode_codes: 1 scales and 64 bytes of codes for 100 numbers; they have 1 and 128");
  CHECK(sentence_of<assertion_error>([&] { kernels::scatter_drawn(scales.view(), x.constant(), randoms); }) ==
        "trireme::ops::scatter_drawn: 100 elements of 1 asked for");
}
