#include "trireme/data/in_memory.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;

TEST_CASE("rows of two tensors are samples", "[data][in_memory]") {
  tensor<float> x({4, 3});
  tensor<std::int32_t> y({4});
  for (std::int64_t i = 0; i < 12; ++i) x[i] = static_cast<float>(i);
  for (std::int64_t i = 0; i < 4; ++i) y[i] = static_cast<std::int32_t>(10 * i);
  data::in_memory const copied(x.view(), y.view());
  data::in_memory const data(std::move(x), std::move(y));
  static_assert(dataset<decltype(data)> && std::is_same_v<decltype(data), decltype(copied)>);
  for (auto const* each : {&data, &copied}) {
    CHECK(each->size() == 4);
    CHECK(each->input_type() == dtype::f32);
    CHECK(each->target_type() == dtype::i32);
    CHECK(each->input_shape() == shape{3});
    CHECK(each->target_shape() == shape{});
    std::vector<float> in(6);
    std::vector<std::int32_t> out(2);
    each->read(std::vector<std::int64_t>{3, 1}, in.data(), out.data());
    CHECK(in == std::vector<float>{9, 10, 11, 3, 4, 5});
    CHECK(out == std::vector<std::int32_t>{30, 10});
  }
}

TEST_CASE("vectors are cut into rows", "[data][in_memory]") {
  std::vector<double> const x{1, 2, 3, 4};
  std::vector<double> const y{5, 6};
  data::in_memory const data(x, y, {.inputs = 2});
  CHECK(data.size() == 2);
  CHECK(data.input_shape() == shape{2});
  CHECK(data.target_shape() == shape{1});
  std::vector<double> in(2), out(1);
  data.read(std::vector<std::int64_t>{1}, in.data(), out.data());
  CHECK(in == std::vector<double>{3, 4});
  CHECK(out[0] == 6);
}

TEST_CASE("arrays that are not samples are refused", "[data][in_memory]") {
  std::vector<float> const two{1, 2}, three{1, 2, 3}, none;
  CHECK_THROWS_WITH(data::in_memory(three, two, {.inputs = 2}),
                    "trireme::data::in_memory: 3 numbers of features do not divide into rows of 2");
  CHECK_THROWS_WITH(data::in_memory(three, two),
                    "trireme::data::in_memory: features (3, 1) and targets (2, 1) differ in their number of rows");
  CHECK_THROWS_AS(data::in_memory(two, two, {.inputs = 0}), config_error);
  CHECK_THROWS_AS(data::in_memory(two, two, {.targets = -1}), config_error);
  CHECK_THROWS_AS(data::in_memory(none, none), config_error);
  CHECK_THROWS_AS(data::in_memory(tensor<float>(), tensor<float>()), config_error);
  CHECK_THROWS_AS(data::in_memory(tensor<float>({0, 2}), tensor<float>({0, 2})), config_error);
  CHECK_THROWS_AS(data::in_memory(tensor<float>({2, 0}), tensor<float>({2, 1})), config_error);
}
