#include "trireme/data/map.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;

namespace {

/// Sample i is ((i, i + 1), i), of bytes and a label.
struct pictures {
  [[nodiscard]] std::int64_t size() const noexcept { return 5; }
  [[nodiscard]] dtype input_type() const noexcept { return dtype::u8; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype::i32; }
  [[nodiscard]] shape input_shape() const { return {2}; }
  [[nodiscard]] shape target_shape() const { return {1}; }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      static_cast<std::uint8_t*>(inputs)[2 * i] = static_cast<std::uint8_t>(ids[i]);
      static_cast<std::uint8_t*>(inputs)[2 * i + 1] = static_cast<std::uint8_t>(ids[i] + 1);
      static_cast<std::int32_t*>(targets)[i] = static_cast<std::int32_t>(ids[i]);
    }
  }
};

std::vector<std::int64_t> const some_ids{3, 0, 3};

}  // namespace

TEST_CASE("a function changes samples in place", "[data]") {
  auto const made =
      data::map(pictures{}, [](std::int64_t id, std::span<std::uint8_t> inputs, std::span<std::int32_t> targets) {
        inputs[0] = static_cast<std::uint8_t>(inputs[0] + 10 * inputs[1]);
        targets[0] += 100 * static_cast<std::int32_t>(id);
      });
  static_assert(dataset<decltype(made)> && !has_sample_order<decltype(made)>);
  CHECK(made.size() == 5);
  std::vector<std::uint8_t> inputs(6);
  std::vector<std::int32_t> targets(3);
  made.read(some_ids, inputs.data(), targets.data());
  CHECK(inputs == std::vector<std::uint8_t>{43, 4, 10, 1, 43, 4});
  CHECK(targets == std::vector<std::int32_t>{303, 0, 303});
}

TEST_CASE("a function makes samples of another type and shape", "[data]") {
  auto const made = data::map(pictures{},
                              [](std::int64_t, std::span<std::uint8_t const> from, std::span<std::int32_t const> label,
                                 std::span<float> inputs, std::span<std::int32_t> targets) {
                                for (std::size_t i = 0; i < 3; ++i) inputs[i] = static_cast<float>(from[i % 2]) / 2;
                                targets[0] = -label[0];
                              },
                              {.inputs = {3, 1}});
  CHECK(made.input_type() == dtype::f32);
  CHECK(made.target_type() == dtype::i32);
  CHECK(made.input_shape() == shape{3, 1});
  CHECK(made.target_shape() == shape{1});
  std::vector<float> inputs(9);
  std::vector<std::int32_t> targets(3);
  made.read(some_ids, inputs.data(), targets.data());
  CHECK(inputs == std::vector<float>{1.5F, 2, 1.5F, 0, 0.5F, 0, 1.5F, 2, 1.5F});
  CHECK(targets == std::vector<std::int32_t>{-3, 0, -3});
}

TEST_CASE("a function of other types than the source's is refused", "[data]") {
  auto const said = sentence_of<config_error>(
      [] { static_cast<void>(data::map(pictures{}, [](std::int64_t, std::span<float>, std::span<std::int32_t>) {})); });
  CHECK(contains(said, "the function takes inputs of F32, but those of the source are U8"));
  auto const shapes = sentence_of<config_error>([] {
    static_cast<void>(
        data::map(pictures{}, [](std::int64_t, std::span<std::uint8_t>, std::span<std::int32_t>) {}, {.inputs = {3}}));
  });
  CHECK(contains(shapes, "a function that changes samples in place keeps their shapes"));
}
