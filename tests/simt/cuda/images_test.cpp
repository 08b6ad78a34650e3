// The kernels of images in CUDA memory give what those in host memory give: the same bits where sums are formed in
// the same order, and the same up to the host's roundings of each addition where a gradient of 16 bits is a sum.
#include "trireme/ops/cuda/images.hpp"

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "../../catch.hpp"
#include "../../support/sentence.hpp"
#include "compared.hpp"
#include "trireme/ops/sets/images.hpp"
#include "trireme/precision/fp16.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;
using compared::made;

namespace {

using on_host = ops::images_on<host>;
using on_device = ops::images_on<cuda>;

template <class Precision>
constexpr bool complete =
    ops::detail::moves_windows<on_device, ops::detail::set_views<cuda, environment<Precision, cuda>>>;
static_assert(complete<precision::fp32> && complete<precision::fp64> && complete<precision::bf16> &&
              complete<precision::fp16>);

/// How far a gradient may be from the host's, which is rounded after each addition.
template <class T>
constexpr double tolerance = std::is_same_v<T, bfloat16>  ? 0.06
                             : std::is_same_v<T, float16> ? 0.008
                                                          : 0;

struct setting {
  ops::window window;
  std::int64_t images, gap, offset;
};
std::vector<setting> settings() {
  std::vector<setting> all{
      {{5, 7, 3, 3, 1, 1}, 2, 0, 0},   // odd numbers of channels
      {{6, 6, 8, 3, 2, 1}, 2, 1, 0},   // positions that overlap, packs of channels
      {{6, 6, 8, 3, 2, 1}, 1, 2, 1},   // the same at an address that is not aligned
      {{8, 4, 16, 2, 2, 0}, 1, 0, 0},  // positions that do not overlap
      {{9, 9, 1, 2, 4, 0}, 3, 1, 0},   // pixels between positions
      {{4, 4, 5, 4, 1, 0}, 2, 0, 3},   // one position
      {{3, 3, 8, 1, 1, 0}, 2, 0, 0},   // one pixel
      {{4, 4, 8, 5, 1, 0}, 2, 1, 0},   // no position, but a gap
      {{4, 4, 8, 2, 2, 0}, 0, 1, 0},   // no image
  };
#if defined(TRIREME_TEST_ON_GPU)
  all.push_back({{56, 56, 64, 3, 2, 1}, 16, 0, 0});
  all.push_back({{224, 224, 3, 7, 2, 3}, 4, 0, 0});
#endif
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("patches on a device are the host's", "[images]", float, double, bfloat16, float16) {
  for (auto const& [window, images, gap, offset] : settings()) {
    CAPTURE(window.height, window.channels, window.kernel, gap, offset);
    auto x = made<TestType>({images, window.image()}, 1, offset);
    auto y = made<TestType>({images * (gap + window.count()), window.numbers()}, 2, offset);
    on_host::patches(y.on_host(), x.on_host(), window, gap);
    on_device::patches(y.device(), x.device(), window, gap);
    CHECK(y.difference() <= 0);

    auto dx = made<TestType>({images, window.image()}, 3, offset);
    on_host::patches_backward(dx.on_host(), y.on_host(), window, gap);
    on_device::patches_backward(dx.device(), y.device(), window, gap);
    CHECK(dx.difference() <= tolerance<TestType>);
  }
}

TEMPLATE_TEST_CASE("positions on a device are the host's", "[images]", float, double, bfloat16, float16) {
  using sums = ops::accumulate_t<TestType>;
  struct setting {
    std::int64_t rows, positions, width, first, offset;
    bool token;
  };
  for (auto const& [rows, positions, width, first, offset, token] :
       {setting{15, 5, 7, 0, 0, true}, setting{12, 4, 16, 6, 0, true}, setting{12, 4, 16, 7, 1, false},
        setting{3, 5, 8, 1, 0, true}, setting{0, 5, 8, 0, 0, true}}) {
    CAPTURE(rows, positions, width, first, offset, token);
    auto const token_width = token ? width : 0;
    auto x = made<TestType>({rows, width}, 1, offset), y = made<TestType>({rows, width}, 2, offset);
    auto table = made<TestType>({positions, width}, 3, offset), special = made<TestType>({token_width}, 4);
    on_host::add_positions(y.on_host(), x.on_host(), table.on_host(), special.on_host(), first);
    on_device::add_positions(y.device(), x.device(), table.device(), special.device(), first);
    CHECK(y.difference() <= 0);
    for (bool const accumulate : {false, true}) {
      auto dx = made<TestType>({rows, width}, 5, offset);
      auto dtable = made<sums>({positions, width}, 6, offset), dtoken = made<sums>({token_width}, 7);
      on_host::add_positions_backward(dx.on_host(), y.on_host(), dtable.on_host(), dtoken.on_host(), first, accumulate);
      on_device::add_positions_backward(dx.device(), y.device(), dtable.device(), dtoken.device(), first, accumulate);
      CHECK(dx.difference() <= 0);
      CHECK(dtable.difference() <= 0);
      CHECK(dtoken.difference() <= 0);
    }
  }
}

TEMPLATE_TEST_CASE("maxima and means of windows on a device are the host's", "[images]", float, double, bfloat16,
                   float16) {
  for (auto const& [window, images, gap, offset] : settings()) {
    if (window.padding >= window.kernel) continue;
    CAPTURE(window.height, window.channels, window.kernel, offset);
    auto numbers = compared::numbers<TestType>(images * window.image(), 1);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      auto const whole = static_cast<float>(static_cast<int>(static_cast<float>(numbers[i])));
      if (i % 3 != 0) numbers[i] = static_cast<TestType>(whole);  // some are equal
      if (i % 41 == 40) numbers[i] = static_cast<TestType>(std::numeric_limits<float>::quiet_NaN());
    }
    auto const places = window.count() * window.channels;
    compared::pair<TestType> x(shape{images, window.image()}, numbers, offset);
    auto y = made<TestType>({images, places}, 2, offset);
    on_host::max_pool(y.on_host(), x.on_host(), window);
    on_device::max_pool(y.device(), x.device(), window);
    CHECK(y.difference() <= 0);
    auto dy = made<TestType>({images, places}, 3, offset), dx = made<TestType>({images, window.image()}, 4, offset);
    on_host::max_pool_backward(dx.on_host(), dy.on_host(), x.on_host(), window);
    on_device::max_pool_backward(dx.device(), dy.device(), x.device(), window);
    CHECK(dx.difference() <= tolerance<TestType>);

    if (window.padding != 0) continue;
    auto z = made<TestType>({images, window.image()}, 5, offset);
    on_host::average_pool(y.on_host(), z.on_host(), window);
    on_device::average_pool(y.device(), z.device(), window);
    CHECK(y.difference() <= 0);
    on_host::average_pool_backward(z.on_host(), dy.on_host(), window);
    on_device::average_pool_backward(z.device(), dy.device(), window);
    CHECK(z.difference() <= tolerance<TestType> + compared::of_contraction<TestType>);
  }
}

TEST_CASE("images in CUDA memory that do not fit are refused", "[images]") {
  auto const x = made<float>({1, 48}, 1), y = made<float>({4, 12}, 2);
  ops::window const at{4, 4, 3, 2, 2, 0};
  CHECK_NOTHROW(on_device::patches(y.device(), x.device(), at));
  CHECK(sentence_of<assertion_error>([&] { on_device::patches(y.device(), x.device(), at, 1); }) ==
        sentence_of<assertion_error>([&] {
          auto same = made<float>({1, 48}, 1), to = made<float>({4, 12}, 2);
          on_host::patches(to.on_host(), same.on_host(), at, 1);
        }));
}
