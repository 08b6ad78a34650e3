#include "trireme/data/array_files.hpp"

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;
using data::array_files;

namespace {

std::string refusal(array_files const& from) {
  return sentence_of([&] { static_cast<void>(from.open()); });
}

}  // namespace

TEST_CASE("arrays that numpy wrote are read by rows, in both orders and all versions", "[data][array_files]") {
  static_assert(dataset<data::array_file_samples>);
  scratch const here;
  if (!python_ran("write_arrays.py", here.path())) return;
  std::vector<std::int64_t> const ids{4, 0, 3};
  std::vector<float> in(3 * 6), out(3);
  std::vector<float> expected;  // element (s, j, k) is 100 s + 10 j + k
  for (auto const s : ids) {
    for (int j = 0; j < 2; ++j) {
      for (int k = 0; k < 3; ++k) expected.push_back(static_cast<float>(100 * s + 10 * j + k));
    }
  }
  for (auto const* const name : {"rows_f32.npy", "columns_f32.npy", "v2.npy", "v3.npy", "cut_*.npy"}) {
    CAPTURE(name);
    auto const samples = array_files{.features = here / name, .targets = here / "rows_y.npy"}.open();
    CHECK(samples.size() == 5);
    CHECK(samples.input_shape() == shape{2, 3});
    CHECK(samples.target_shape() == shape{});
    samples.read(ids, in.data(), out.data());
    CHECK(in == expected);
    CHECK(out == std::vector<float>{4, 0, 3});
  }
  for (auto const* const name : {"f64", "f16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}) {
    CAPTURE(name);
    auto const path = here / (std::string("as_") + name + ".npy");
    auto const samples =
        array_files{.features = path, .targets = here / "rows_y.npy", .features_as = dtype::f32}.open();
    std::vector<float> got(3);
    samples.read(ids, got.data(), out.data());
    CHECK(got == std::vector<float>{4, 0, 3});
  }
  auto const labels =
      array_files{.features = here / "rows_f32.npy", .targets = here / "as_i64.npy", .targets_as = dtype::i32}.open();
  std::vector<std::int32_t> got(3);
  labels.read(ids, in.data(), got.data());
  CHECK(got == std::vector<std::int32_t>{4, 0, 3});
  auto const wide =
      array_files{.features = here / "rows_f32.npy", .targets = here / "wide.npy", .targets_as = dtype::i32}.open();
  CHECK(contains(sentence_of([&] { wide.read(ids, in.data(), got.data()); }),
                 "sample 4 holds 4294967296, which is not a number of 32 bits"));
  auto const beyond =
      array_files{.features = here / "beyond.npy", .targets = here / "rows_y.npy", .features_as = dtype::f32}.open();
  std::vector<float> one(1);
  beyond.read(std::vector<std::int64_t>{2}, one.data(), out.data());
  CHECK(one[0] == std::numeric_limits<float>::infinity());  // as it is stored
  CHECK(contains(sentence_of([&] { beyond.read(std::vector<std::int64_t>{1}, one.data(), out.data()); }),
                 "sample 1 holds 1e+300, which is not a number of 32 bits"));
  CHECK(contains(refusal({.features = here / "big.npy", .targets = here / "rows_y.npy"}), "big-endian (\">f4\")"));
  CHECK(contains(refusal({.features = here / "objects.npy", .targets = here / "rows_y.npy"}), "Python objects"));
  CHECK(contains(refusal({.features = here / "as_i16.npy", .targets = here / "rows_y.npy"}), ".features_as"));
  CHECK(contains(refusal({.features = here / "cut_0.npy", .targets = here / "rows_y.npy"}),
                 "there are 2 rows of features but 5 of targets"));
  CHECK(contains(refusal({.features = {here / "rows_f32.npy", here / "as_f64.npy"}, .targets = here / "rows_y.npy"}),
                 "rows of float64"));
  CHECK(contains(refusal({.features = here / "short.npy", .targets = here / "rows_y.npy"}),
                 "needs more than the 119 bytes that follow"));
  CHECK(contains(refusal({.features = here / "none.npy", .targets = here / "rows_y.npy"}), "no file matches"));
}
