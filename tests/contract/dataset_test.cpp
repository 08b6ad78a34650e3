#include "trireme/contract/dataset.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"

using namespace trireme;

namespace {

// The smallest dataset, and models that each lack one requirement.
struct archetype {
  std::int64_t size() const { return 1; }
  dtype input_type() const { return dtype::f32; }
  dtype target_type() const { return dtype::i32; }
  shape input_shape() const { return {2}; }
  shape target_shape() const { return {}; }
  void read(std::span<std::int64_t const>, void*, void*) const {}
  archetype() = default;
  archetype(archetype const&) = delete;
};
struct int_size : archetype {
  int size() const { return 1; }
};
struct read_changes_it : archetype {
  void read(std::span<std::int64_t const>, void*, void*) {}
};
struct no_target_type : archetype {
  void target_type() const {}
};
struct no_shape : archetype {
  void input_shape() const {}
};

static_assert(dataset<archetype>);
static_assert(!has_sample_count<int_size> && !dataset<int_size>);
static_assert(!has_sample_read<read_changes_it> && !dataset<read_changes_it>);
static_assert(!has_sample_types<no_target_type> && !dataset<no_target_type>);
static_assert(!has_sample_shapes<no_shape> && !dataset<no_shape>);

}  // namespace

TEST_CASE("any_view returns its elements only as their own type", "[contract][dataset]") {
  std::vector<float> const numbers{1, 2, 3, 4, 5, 6};
  auto const any = erase_type(tensor_view<float const>(numbers.data(), {3, 2}));
  CHECK(any.as<float>()[5] == 6);
  CHECK(any.as<float>().extents() == shape{3, 2});
  CHECK(any.bytes() == 24);
  CHECK(any.rows(1, 2).as<float>()[0] == 3);
  CHECK(any.rows(1, 2).extents == shape{2, 2});
  CHECK(sentence_of([&] { (void)any.as<std::int32_t>(); }) ==
        "trireme::samples: the elements are F32, but the model takes I32; pass a dataset of that type, or convert an "
        "array once with trireme::dense<std::int32_t>(array)");
  double const wide = 1;
  CHECK(sentence_of([&] { (void)erase_type(tensor_view<double const>(&wide, {1})).as<float>("targets"); }) ==
        "trireme::samples: the targets are F64, but the model takes F32; pass a dataset of that type, or convert an "
        "array once with trireme::dense<float>(array); models in precision::fp64 accept both");
  CHECK(any_view<>{}.as<std::int32_t>().empty());
  CHECK(any_view<>{}.as<double>().empty());
}

TEST_CASE("samples are made from views and cut by rows", "[contract][dataset]") {
  std::vector<float> const x{1, 2, 3, 4, 5, 6};
  std::vector<double> const y{10, 20, 30};
  std::vector<std::int64_t> const ids{7, 8, 9};
  auto const all =
      make_samples(tensor_view<float const>(x.data(), {3, 2}), tensor_view<double const>(y.data(), {3}), ids);
  CHECK(all.count() == 3);
  auto const last = all.part(2, 1);
  CHECK(last.count() == 1);
  CHECK(last.inputs.as<float>()[1] == 6);
  CHECK(last.targets.as<double>()[0] == 30);
  CHECK(last.ids[0] == 9);

  auto const without_targets = make_samples(tensor_view<float const>(x.data(), {3, 2}), tensor_view<float const>{});
  CHECK(without_targets.part(1, 2).count() == 2);
  CHECK(without_targets.part(1, 2).targets.empty());
  CHECK(without_targets.part(1, 2).ids.empty());
  CHECK(samples{}.count() == 0);
}

TEST_CASE("samples whose counts differ are refused by name", "[contract][dataset]") {
  std::vector<float> const x{1, 2, 3, 4, 5, 6};
  std::vector<std::int64_t> const ids{7, 8};
  tensor_view<float const> const features(x.data(), {3, 2});
  CHECK(sentence_of([&] { (void)make_samples(features, tensor_view<float const>(x.data(), {2})); }) ==
        "trireme::make_samples: there are 3 rows of features but 2 rows of targets");
  CHECK(sentence_of([&] { (void)make_samples(features, features, ids); }) ==
        "trireme::make_samples: there are 3 rows of features but 2 sample numbers");
  CHECK(sentence_of([&] { (void)make_samples(tensor_view<float const>{}, features); }) ==
        "trireme::make_samples: the features are a scalar; add a first axis, one row a sample");
}
