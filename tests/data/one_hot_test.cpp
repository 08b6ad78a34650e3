#include "trireme/data/one_hot.hpp"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/data/augment.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/in_memory.hpp"

using namespace trireme;

TEST_CASE("labels become probabilities, which mixup and cutmix mix in the proportion of the pictures", "[data]") {
  tensor<float> pictures({4, 6, 6});
  tensor<std::int32_t> labels({4});
  for (std::int64_t i = 0; i < 4; ++i) {  // a picture holds its number
    labels.span()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
    for (std::int64_t j = 0; j < 36; ++j) pictures.span()[static_cast<std::size_t>(36 * i + j)] = static_cast<float>(i);
  }
  data::shared_dataset const source(data::in_memory<float, std::int32_t>(std::move(pictures), std::move(labels)));
  auto const sharp = data::one_hot(source, 5);
  std::vector<float> in(72), out(10);
  sharp.read(std::vector<std::int64_t>{2, 0}, in.data(), out.data());
  CHECK(out == std::vector<float>{0, 0, 1, 0, 0, 1, 0, 0, 0, 0});
  CHECK(in[0] == 2);
  auto const expect_mixed = [&](auto const& mixed) {
    bool between = false;
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
      mixed.read(read_place{1, epoch, 0}, std::vector<std::int64_t>{1, 3}, in.data(), out.data());
      for (std::size_t row = 0; row < 2; ++row) {
        float weight = 0, mean = 0;
        for (std::size_t c = 0; c < 5; ++c) {
          weight += out[5 * row + c];
          mean += out[5 * row + c] * static_cast<float>(c);
          between |= out[5 * row + c] > 0.05F && out[5 * row + c] < 0.95F;
        }
        CHECK(weight == Approx(1).epsilon(1e-6));
        CHECK(mean == Approx(std::accumulate(in.begin() + 36 * static_cast<std::ptrdiff_t>(row),
                                             in.begin() + 36 * static_cast<std::ptrdiff_t>(row + 1), 0.0F) /
                             36)
                          .margin(1e-5));
      }
    }
    CHECK(between);
  };
  expect_mixed(data::augment(sharp, data::mixup{.alpha = 1}));
  expect_mixed(data::augment(sharp, data::cutmix{.alpha = 1}));
  auto const few = data::one_hot(source, 3);
  CHECK(contains(sentence_of<config_error>([&] { few.read(std::vector<std::int64_t>{3}, in.data(), out.data()); }),
                 "sample 3 has the label 3, but there are 3 classes"));
  CHECK(contains(sentence_of<config_error>([&] { static_cast<void>(data::one_hot(source, 0)); }), "0 classes"));
}
