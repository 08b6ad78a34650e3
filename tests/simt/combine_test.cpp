// test-sanitize: thread address
// test-alone: the stand-in is included before the kernels
#include "../support/simt/threads.hpp"

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "trireme/comm/cuda_kernels.cu"
#include "trireme/ops/host/reductions.hpp"

namespace {

using namespace trireme;
using comm::detail::cuda_element;
using comm::detail::cuda_reduction;

/// Numbers of both signs, subnormals, zeros, infinities and NaN among them.
template <class T>
T number(std::size_t i) {
  auto const bits = static_cast<std::uint32_t>(mix(i));
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    auto x = (static_cast<float>(bits % 20001) - 10000) / 128;
    if (i % 13 == 5) x = -0.0F;
    if (i % 29 == 7) x *= 1e-42F;
    if (i % 97 == 11) x = std::numeric_limits<float>::infinity();
    if (i % 101 == 3) x = std::numeric_limits<float>::quiet_NaN();
    return static_cast<T>(x);
  }
}
template <class T>
bool same(T a, T b) {
  if constexpr (!std::is_integral_v<T>) {
    auto const x = static_cast<double>(a), y = static_cast<double>(b);
    if (x != x || y != y) return x != x && y != y;  // a NaN's payload depends on the processor
  }
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class T, class Op>
void check(cuda_element type, cuda_reduction op, std::size_t n, int terms, std::size_t shift) {
  std::vector<std::vector<T>> from(static_cast<std::size_t>(terms), std::vector<T>(n + shift));
  std::vector<void const*> addresses;
  for (std::size_t t = 0; t < from.size(); ++t) {
    for (std::size_t i = 0; i < from[t].size(); ++i) from[t][i] = number<T>(i * 31 + t * 7);
    addresses.push_back(from[t].data() + shift);
  }
  std::vector<T> want(n), first(n + shift), second(n + shift);
  void* const to[] = {want.data()};
  ops::host_reductions::reduce<T>(to, addresses, static_cast<std::int64_t>(n), Op{}, terms);
  void* outputs[] = {first.data() + shift, second.data() + shift};
  REQUIRE(comm::detail::cuda_combine(type, op, outputs, 2, addresses.data(), terms, static_cast<std::int64_t>(n), terms,
                                     nullptr) == 0);
  for (std::size_t i = 0; i < n; ++i)
    if (!same(first[i + shift], want[i]) || !same(second[i + shift], want[i])) {
      FAIL("element " << i << " of " << n << ", " << terms << " terms, shifted by " << shift << ", type "
                      << static_cast<int>(type) << ", operation " << static_cast<int>(op));
    }
}
template <class T>
void check_type(cuda_element type) {
  for (std::size_t const n : {std::size_t{0}, std::size_t{1}, std::size_t{37}, std::size_t{4100}})
    for (std::size_t const shift : {0, 1})
      for (int const terms : {1, 3}) {
        check<T, reduction::sum>(type, cuda_reduction::sum, n, terms, shift);
        check<T, reduction::max>(type, cuda_reduction::max, n, terms, shift);
        check<T, reduction::min>(type, cuda_reduction::min, n, terms, shift);
        if constexpr (!std::is_integral_v<T>) check<T, reduction::mean>(type, cuda_reduction::mean, n, terms, shift);
      }
}

}  // namespace

TEST_CASE("terms combined by the kernel have the host's bits") {
  check_type<double>(cuda_element::f64);
  check_type<float>(cuda_element::f32);
  check_type<bfloat16>(cuda_element::bf16);
  check_type<float16>(cuda_element::f16);
  check_type<std::int64_t>(cuda_element::i64);
  check_type<std::int32_t>(cuda_element::i32);
  check_type<std::uint64_t>(cuda_element::u64);
  check_type<std::uint32_t>(cuda_element::u32);
  check_type<std::int8_t>(cuda_element::i8);
  check_type<std::uint8_t>(cuda_element::u8);
}

TEST_CASE("pairwise sums formed by the kernel have the bits of the host's tree") {
  auto const check_sums = []<class T>(cuda_element type, T) {
    for (int const terms : {1, 2, 3, 4, 7, 8, 12})
      for (std::size_t const n : {std::size_t{0}, std::size_t{1}, std::size_t{37}, std::size_t{300}})
        for (std::size_t const shift : {0, 1})
          check<T, reduction::pairwise>(type, cuda_reduction::pairwise, n, terms, shift);
    check<T, reduction::pairwise>(type, cuda_reduction::pairwise, 4100, 5, 1);
    for (int const terms : {255, 256}) check<T, reduction::pairwise>(type, cuda_reduction::pairwise, 21, terms, 0);
  };
  check_sums(cuda_element::f64, double{});
  check_sums(cuda_element::f32, float{});
  check_sums(cuda_element::bf16, bfloat16{});
  check_sums(cuda_element::f16, float16{});
  check_sums(cuda_element::i64, std::int64_t{});
  check_sums(cuda_element::i32, std::int32_t{});
  check_sums(cuda_element::u64, std::uint64_t{});
  check_sums(cuda_element::u32, std::uint32_t{});
  check_sums(cuda_element::i8, std::int8_t{});
  check_sums(cuda_element::u8, std::uint8_t{});
}

TEST_CASE("an output may be a term, and too many terms are refused") {
  std::vector<float> a{1, 2, 3, 4, 5}, b{10, 20, 30, 40, 50};
  void const* terms[] = {a.data(), b.data()};
  void* outputs[] = {a.data()};
  REQUIRE(comm::detail::cuda_combine(cuda_element::f32, cuda_reduction::sum, outputs, 1, terms, 2, 5, 2, nullptr) == 0);
  CHECK(a == std::vector<float>{11, 22, 33, 44, 55});
  void const* three[] = {b.data(), a.data(), b.data()};
  REQUIRE(comm::detail::cuda_combine(cuda_element::f32, cuda_reduction::pairwise, outputs, 1, three, 3, 5, 1,
                                     nullptr) == 0);
  CHECK(a == std::vector<float>{31, 62, 93, 124, 155});
  CHECK(comm::detail::cuda_combine(cuda_element::f32, cuda_reduction::sum, outputs, 1, terms, 257, 5, 2, nullptr) != 0);
}

TEST_CASE("every bfloat16 and float16 is widened and narrowed as on the host") {
  for (std::uint32_t bits = 0; bits < 0x10000; bits += 7) {
    bfloat16 b;
    float16 h;
    b.bits = h.bits = static_cast<std::uint16_t>(bits);
    using namespace ops::detail::device;
    if (!same(narrow<bfloat16>(wide(b)), b) || !same(narrow<float16>(wide(h)), h)) FAIL("bits " << bits);
  }
}
