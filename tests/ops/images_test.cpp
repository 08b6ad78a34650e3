#include "trireme/ops/images.hpp"

#include "../catch.hpp"
#include "support.hpp"

using namespace trireme;
using kernels = ops::images_on<host>;

TEST_CASE("patches of images leave a gap of zeros before each image, which has no gradient") {
  ops::window const at{4, 4, 3, 2, 2, 0};
  constexpr std::int64_t images = 2, places = 4, numbers = 12;
  auto const x = random_tensor<float>({images, 48}, 1);
  auto packed = zeros<float>({images * places, numbers});
  kernels::patches(packed.view(), x, at);
  auto y = random_tensor<float>({images * (places + 1), numbers}, 2);
  kernels::patches(y.view(), x, at, 1);
  auto dx = zeros<float>({images, 48}), other = zeros<float>({images, 48});
  kernels::patches_backward(dx.view(), y, at, 1);
  kernels::patches_backward(other.view(), packed, at);
  CHECK(distance(dx, other) == 0);
  for (std::int64_t i = 0; i < images; ++i) {
    for (std::int64_t c = 0; c < numbers; ++c) CHECK(y[i * (places + 1) * numbers + c] == 0);
    for (std::int64_t c = 0; c < places * numbers; ++c)
      CHECK(y[(i * (places + 1) + 1) * numbers + c] == packed[i * places * numbers + c]);
  }
}

TEMPLATE_TEST_CASE("positions are added to the rows of each sample, and a token stands for its first row", "", float,
                   double) {
  constexpr std::int64_t rows = 3, width = 2, first = 2, count = 5;  // rows 2; 0, 1, 2; 0
  auto const x = random_tensor<TestType>({count, width}, 1), table = random_tensor<TestType>({rows, width}, 2);
  auto const token = random_tensor<TestType>({width}, 3), dy = random_tensor<TestType>({count, width}, 4);
  auto y = zeros<TestType>({count, width}), dx = zeros<TestType>({count, width});
  auto dtable = zeros<TestType>({rows, width}), dtoken = zeros<TestType>({width});
  kernels::add_positions(y.view(), x, table, token, first);
  kernels::add_positions_backward(dx.view(), dy, dtable.view(), dtoken.view(), first, false);
  for (std::int64_t row = 0; row < count; ++row) {
    auto const position = (first + row) % rows;
    for (std::int64_t c = 0; c < width; ++c) {
      CHECK(y[row * width + c] == (position == 0 ? token[c] : x[row * width + c]) + table[position * width + c]);
      CHECK(dx[row * width + c] == (position == 0 ? TestType{0} : dy[row * width + c]));
    }
  }
  for (std::int64_t c = 0; c < width; ++c) {
    CHECK(dtoken[c] == dy[width + c] + dy[4 * width + c]);
    CHECK(dtable[c] == dtoken[c]);
    CHECK(dtable[2 * width + c] == dy[c] + dy[3 * width + c]);
  }
  kernels::add_positions_backward(dx.view(), dy, dtable.view(), {}, first, true);  // without a token
  CHECK(dx[0] == 2 * dy[0]);
  CHECK(dx[width] == dy[width]);
}
