#include "trireme/core/arrays.hpp"

#include <Eigen/Core>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"

using namespace trireme;

namespace {

template <class T>
std::vector<T> elements(tensor<T> const& from) {
  return {from.span().begin(), from.span().end()};
}

// The form of std::mdspan with a layout of strides, which this compiler may not have yet.
struct grid {
  std::vector<double> const& cells;
  struct map {
    std::size_t stride(std::size_t axis) const { return axis == 0 ? 1 : 3; }
  };
  static constexpr std::size_t rank() { return 2; }
  double const* data_handle() const { return cells.data(); }
  std::size_t extent(std::size_t axis) const { return axis == 0 ? 3 : 2; }
  map mapping() const { return {}; }
};

using numbers = std::vector<double>;
static_assert(array_of_samples<numbers> && array_of_samples<std::span<float const>> && array_of_samples<int[3]>);
static_assert(array_of_samples<std::vector<std::array<float, 3>>> && array_of_samples<tensor<float>&>);
static_assert(array_of_samples<grid> && array_of_samples<strided_view<double>> && array_of_samples<Eigen::VectorXf>);
static_assert(array_of_samples<Eigen::Map<Eigen::RowVectorXd const>>);
static_assert(!array_of_samples<double> && !array_of_samples<Eigen::MatrixXf> && !array_of_samples<std::vector<bool>>);

}  // namespace

TEST_CASE("arrays of every form are read in order, and converted once", "[core][arrays]") {
  numbers const six{1, 2, 3, 4, 5, 6};
  std::array<float, 2> const pair{7, 8};
  std::vector<std::array<double, 3>> const rows{{1, 2, 3}, {4, 5, 6}};
  float const square[2][2][2] = {{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}};
  CHECK(elements(dense<float>(six)) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(dense<float>(six).extents() == shape{6});
  CHECK(elements(dense(pair)) == std::vector<float>{7, 8});
  CHECK(dense(rows).extents() == shape{2, 3});
  CHECK(elements(dense(rows)) == six);
  CHECK(dense<double>(square).extents() == shape{2, 2, 2});
  CHECK(elements(dense<double>(square)) == numbers{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(elements(dense(grid{six})) == numbers{1, 4, 2, 5, 3, 6});
  CHECK(elements(dense(tensor_view<double const>(six.data(), {3, 2}).rows(1, 2))) == numbers{3, 4, 5, 6});
  CHECK(dense(numbers{}).extents() == shape{0});
  CHECK(dense(std::vector<std::array<float, 3>>{}).extents() == shape{0, 3});
}

TEST_CASE("strides skip unused elements, and may be negative", "[core][arrays]") {
  numbers const six{1, 2, 3, 4, 5, 6};
  CHECK(elements(dense(strided_view<double>{six.data() + 1, {2, 2}, {3, 1}})) == numbers{2, 3, 5, 6});
  CHECK(elements(dense(strided_view<double>{six.data() + 5, {3}, {-2}})) == numbers{6, 4, 2});
  CHECK(elements(dense(strided_view<double>{six.data(), {2, 3}, {0, 1}})) == numbers{1, 2, 3, 1, 2, 3});
  CHECK(strided_view<double>{six.data(), {2, 3}, {3, 1}}.is_dense());
  CHECK(strided_view<double>{six.data(), {1, 3}, {99, 1}}.is_dense());
  CHECK_FALSE(strided_view<double>{six.data(), {2, 3}, {1, 2}}.is_dense());
  std::array<double, 64> many{};
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i);
  auto const turned = dense(strided_view<double>{many.data(), {2, 2, 2, 2, 2, 2}, {1, 2, 4, 8, 16, 32}});
  CHECK(turned[1] == 32);  // the last axis is the farthest
  CHECK(turned[32] == 1);
  CHECK(turned[0b010000] == 2);
}

TEST_CASE("samples are rows or columns of Eigen matrices as their options say", "[core][arrays]") {
  Eigen::MatrixXf columns(2, 3);
  columns << 1, 2, 3, 4, 5, 6;
  Eigen::Matrix<double, 2, 3, Eigen::RowMajor> const rows = columns.cast<double>();
  CHECK(samples_in_columns(columns).is_dense());  // so that nothing is copied
  CHECK(elements(dense(samples_in_columns(columns))) == std::vector<float>{1, 4, 2, 5, 3, 6});
  CHECK(elements(dense(samples_in_rows(columns))) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(samples_in_rows(rows).is_dense());
  CHECK(elements(dense(samples_in_columns(rows))) == numbers{1, 4, 2, 5, 3, 6});
  CHECK(elements(dense(samples_in_rows(columns.block(0, 1, 2, 2)))) == std::vector<float>{2, 3, 5, 6});
  CHECK(elements(dense(columns.row(1))) == std::vector<float>{4, 5, 6});
  CHECK(elements(dense(rows.col(2))) == numbers{3, 6});
  Eigen::Map<Eigen::VectorXf, 0, Eigen::InnerStride<2>> const every_second(columns.data(), 3);
  CHECK(elements(dense(every_second)) == std::vector<float>{1, 2, 3});
}

TEST_CASE("the arrays of a structure are put side by side", "[core][arrays]") {
  numbers const density{1, 2};
  std::array<float, 2> const energy{3, 4};
  std::vector<std::array<double, 2>> const velocity{{5, 6}, {7, 8}};
  auto const all = column_stack<float>(density, velocity, energy);
  CHECK(all.extents() == shape{2, 4});
  CHECK(elements(all) == std::vector<float>{1, 5, 6, 3, 2, 7, 8, 4});
  CHECK(column_stack<float>(numbers{}).extents() == shape{0, 1});
  CHECK(sentence_of([&] {
          (void)column_stack<float>(density, velocity, numbers{1, 2, 3});
        }) == "trireme::column_stack: array 2 has 3 samples, but array 0 has 2; give arrays of one length");
}

TEST_CASE("the cells of fields are samples, without ghost cells", "[core][arrays]") {
  numbers const with_ghosts{0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 4, 5, 6, 0, 0, 0, 0, 0, 0};  // (4, 5) around (2, 3)
  numbers const other{10, 20, 30, 40, 50, 60};
  strided_view<double> const inner{with_ghosts.data() + 6, {2, 3}, {5, 1}};
  auto const cells = stack_cells<float>(inner, tensor_view<double const>(other.data(), {2, 3}));
  CHECK(cells.extents() == shape{6, 2});
  CHECK(elements(cells) == std::vector<float>{1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60});
  CHECK(stack_cells<float>(other).extents() == shape{6, 1});
  CHECK(sentence_of([&] { (void)stack_cells<float>(inner, other); }) ==
        "trireme::stack_cells: field 1 is (6), but field 0 is (2, 3); give fields of one shape");
}

TEST_CASE("an integer type is filled only with whole numbers in its range", "[core][arrays]") {
  CHECK(elements(dense<std::int32_t>(std::vector<std::int64_t>{-1, 1 << 30})) ==
        std::vector<std::int32_t>{-1, 1 << 30});
  CHECK(elements(dense<std::int32_t>(numbers{2, -0.0})) == std::vector<std::int32_t>{2, 0});
  CHECK(sentence_of([] { (void)dense<std::int32_t>(std::vector<std::int64_t>{1LL << 31}); }) ==
        "trireme::dense: 2147483648 is not a whole number from -2147483648 to 2147483647");
  CHECK(sentence_of([] { (void)dense<std::int32_t>(numbers{0.5}); }) ==
        "trireme::dense: 0.5 is not a whole number from -2147483648 to 2147483647");
  CHECK_THROWS(dense<std::int32_t>(numbers{std::numeric_limits<double>::quiet_NaN()}));
}
