#include "trireme/data/hdf5.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"

using namespace trireme;
using data::hdf5;

namespace {

/// A file that is written with HDF5 itself.
class written_file {
 public:
  explicit written_file(std::string const& path)
      : file_(::H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), ::H5Fclose) {
    REQUIRE(file_);
  }
  /// @param chunk  the rows of a compressed chunk; 0: not compressed, not in chunks.
  void add(std::string const& name, ::hid_t type, std::vector<::hsize_t> const& extents,
           std::vector<double> const& numbers, ::hsize_t chunk = 0) const {
    using data::detail::hdf5_id;
    hdf5_id const made(::H5Pcreate(H5P_DATASET_CREATE), ::H5Pclose);
    hdf5_id const links(::H5Pcreate(H5P_LINK_CREATE), ::H5Pclose);
    ::H5Pset_create_intermediate_group(links.get(), 1);
    if (chunk != 0) {
      auto chunks = extents;
      chunks[0] = chunk;
      if (chunks.size() > 1) chunks[1] = (chunks[1] + 1) / 2;  // so that a row has numbers in two chunks
      ::H5Pset_chunk(made.get(), static_cast<int>(chunks.size()), chunks.data());
      ::H5Pset_shuffle(made.get());
      ::H5Pset_deflate(made.get(), 4);
      ::H5Pset_fletcher32(made.get());
    }
    hdf5_id const space(::H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), ::H5Sclose);
    hdf5_id const data(::H5Dcreate2(file_.get(), name.c_str(), type, space.get(), links.get(), made.get(), H5P_DEFAULT),
                       ::H5Dclose);
    REQUIRE(data);
    if (numbers.empty()) return;
    REQUIRE(::H5Dwrite(data.get(), H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()) >= 0);
  }

 private:
  data::detail::hdf5_id file_;
};

std::vector<double> counted(std::size_t count, double first = 0) {
  std::vector<double> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::string refusal(hdf5 const& from) {
  return sentence_of([&] { static_cast<void>(from.open()); });
}

}  // namespace

TEST_CASE("rows of every type of number, byte order and layout are read by sample", "[data][hdf5]") {
  static_assert(dataset<data::hdf5_samples>);
  scratch const here;
  auto const half = data::detail::hdf5_memory_type(formats::npy::number::f16);
  auto const other_half = data::detail::hdf5_memory_type(formats::npy::number::f16);
  ::H5Tset_order(other_half.get(), H5T_ORDER_BE);
  std::vector<::hid_t> const types{H5T_STD_I8LE,  H5T_STD_I16LE,   H5T_STD_I32LE,  H5T_STD_I64LE,  H5T_STD_U8LE,
                                   H5T_STD_U16LE, H5T_STD_U32LE,   H5T_STD_U64LE,  H5T_STD_I8BE,   H5T_STD_I16BE,
                                   H5T_STD_I32BE, H5T_STD_I64BE,   H5T_STD_U8BE,   H5T_STD_U16BE,  H5T_STD_U32BE,
                                   H5T_STD_U64BE, H5T_IEEE_F32LE,  H5T_IEEE_F64LE, H5T_IEEE_F32BE, H5T_IEEE_F64BE,
                                   half.get(),    other_half.get()};
  {
    written_file const file(here / "a.h5");
    for (std::size_t i = 0; i < types.size(); ++i) {
      file.add("plain/" + std::to_string(i), types[i], {5, 2, 3}, counted(30));
      file.add("packed/" + std::to_string(i), types[i], {5, 2, 3}, counted(30), 2);
      file.add("scalars/" + std::to_string(i), types[i], {5}, counted(5), 2);
    }
  }
  std::vector<std::int64_t> const ids{4, 0, 3};
  std::vector<float> const expected{24, 25, 26, 27, 28, 29, 0, 1, 2, 3, 4, 5, 18, 19, 20, 21, 22, 23};
  for (std::size_t i = 0; i < types.size(); ++i) {
    for (auto const* const group : {"plain/", "/packed/"}) {
      for (std::size_t const cache : {1 << 20, 0}) {
        CAPTURE(i, group, cache);
        auto const samples = hdf5{.files = here / "a.h5",
                                  .features = group + std::to_string(i),
                                  .targets = "scalars/" + std::to_string(i < 16 ? i : 0),
                                  .features_as = dtype::f32,
                                  .targets_as = dtype::i32,
                                  .cache_bytes = cache}
                                 .open();
        CHECK(samples.size() == 5);
        CHECK(samples.input_shape() == shape{2, 3});
        CHECK(samples.target_shape() == shape{});
        std::vector<float> in(18);
        std::vector<std::int32_t> out(3);
        samples.read(ids, in.data(), out.data());
        CHECK(in == expected);
        CHECK(out == std::vector<std::int32_t>{4, 0, 3});
      }
    }
  }
  auto const as_they_are = hdf5{.files = here / "a.h5", .features = "packed/19", .targets = "scalars/11"}.open();
  CHECK(as_they_are.input_type() == dtype::f64);
  CHECK(as_they_are.target_type() == dtype::i64);
  std::vector<double> in(6);
  std::int64_t out = 0;
  as_they_are.read(std::vector<std::int64_t>{1}, in.data(), &out);
  CHECK(in == counted(6, 6));
  CHECK(out == 1);
  CHECK(to_string(hdf5{.files = "a.h5", .features = "x", .targets = "y", .targets_as = dtype::i32, .cache_bytes = 9}) ==
        "trireme::data::hdf5{.files = \"a.h5\", .features = \"x\", .targets = \"y\", .targets_as = "
        "trireme::dtype::i32, .cache_bytes = 9}");
}

TEST_CASE("threads read several compressed files at once", "[data][hdf5]") {
  scratch const here;
  for (int f = 0; f < 3; ++f) {
    written_file const file(here / ("part_" + std::to_string(f) + ".h5"));
    file.add("x", H5T_IEEE_F32LE, {100, 8}, counted(800, 800 * f), 16);
    file.add("y", H5T_STD_I32LE, {100}, counted(100, 100 * f), 16);
  }
  // The rows of a chunk take 512 bytes: two rows of chunks are kept.
  auto const samples = hdf5{.files = here / "part_*.h5", .features = "x", .targets = "y", .cache_bytes = 1024}.open();
  REQUIRE(samples.size() == 300);
  std::vector<int> wrong(4);
  {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t, copy = samples] {
        for (std::int64_t i = 0; i < 300; ++i) {
          auto const id = t % 2 == 0 ? i : i * 7 % 300;
          std::vector<float> in(8);
          std::int32_t out = 0;
          copy.read(std::vector<std::int64_t>{id}, in.data(), &out);
          if (out != id || in[0] != static_cast<float>(8 * id) || in[7] != static_cast<float>(8 * id + 7)) ++wrong[t];
        }
      });
    }
    for (auto& each : threads) each.join();
  }
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("what is not a dataset of numbers is refused by one sentence", "[data][hdf5]") {
  scratch const here;
  auto const letters = data::detail::hdf5_id(::H5Tcopy(H5T_C_S1), ::H5Tclose);
  {
    written_file const file(here / "a.h5");
    file.add("x", H5T_IEEE_F32LE, {5, 2}, counted(10));
    file.add("in/side", H5T_IEEE_F32LE, {5, 3}, counted(15));
    file.add("four", H5T_STD_I32LE, {4}, counted(4));
    file.add("short", H5T_STD_I16LE, {5}, counted(5));
    file.add("wide", H5T_STD_I64LE, {5}, {0, 1, 2, 3, 1099511627776});
    file.add("none", H5T_IEEE_F32LE, {0, 3}, {});
    file.add("scalar", H5T_IEEE_F32LE, {}, {1});
    file.add("axes", H5T_IEEE_F32LE, {1, 1, 1, 1, 1, 1, 1, 1}, {1});
    file.add("text", letters.get(), {5}, {});
  }
  {
    written_file const file(here / "b.h5");
    file.add("x", H5T_IEEE_F64LE, {5, 2}, counted(10));
  }
  auto const expect = [](hdf5 const& from, std::string const& words) {
    auto const said = refusal(from);
    CAPTURE(said);
    CHECK(contains(said, words));
    CHECK(contains(said, "trireme::data::hdf5: "));
  };
  auto const of = [&](std::string const& features, std::string const& targets = "x") {
    return hdf5{.files = here / "a.h5", .features = features, .targets = targets};
  };
  expect(of("z"),
         here / "a.h5" + " has no dataset \"z\", which .features names; it has \"axes\", \"four\", \"in/side\"");
  expect(of("x", "in"), "has no dataset \"in\", which .targets names");
  expect(of("text"), here / "a.h5" + ": dataset \"text\" holds strings, but");
  expect(of("scalar"), "dataset \"scalar\" is a single number or nothing");
  expect(of("axes"), "dataset \"axes\" has 8 axes, but the first axis is the sample");
  expect(of("none"), "dataset \"none\" has no numbers: 0 samples of shape (3)");
  expect(of("short"), "dataset \"short\" holds int16, which no model takes; convert it by .features_as");
  expect(of("x", "four"), here / "a.h5" + ": there are 5 rows of \"x\" but 4 of \"four\"");
  expect({.files = {here / "a.h5", here / "b.h5"}, .features = "x", .targets = "x"}, "holds rows of float64");
  expect({.files = here / "a.h5", .features = "x", .targets = "x", .targets_as = dtype::i32}, "ask for f32");
  expect({.files = here / "a.h5", .features = "x", .targets = "x", .targets_as = dtype::f16}, ".targets_as = F16");
  expect({.files = here / "c.h5", .features = "x", .targets = "x"}, "no file matches");
  auto wide = of("x", "wide");
  wide.targets_as = dtype::i32;
  std::vector<float> in(2);
  std::int32_t out = 0;
  CHECK(contains(sentence_of<config_error>([&] { wide.open().read(std::vector<std::int64_t>{4}, in.data(), &out); }),
                 "dataset \"wide\": sample 4 holds 1099511627776, which is not a number of 32 bits"));

  std::ofstream(here / "text.h5") << "not a file of HDF5, but long enough to be one";
  expect({.files = here / "text.h5", .features = "x", .targets = "x"}, "this is not an HDF5 file");
  std::ofstream(here / "empty.h5").flush();
  expect({.files = here / "empty.h5", .features = "x", .targets = "x"}, "the file is empty");
  std::filesystem::copy(here / "a.h5", here / "cut.h5");
  std::filesystem::resize_file(here / "cut.h5", std::filesystem::file_size(here / "a.h5") - 1);
  expect({.files = here / "cut.h5", .features = "x", .targets = "x"}, "HDF5 says: truncated file");
}

TEST_CASE("one sample, extents that no disk holds, and a hole of 3 GB", "[data][hdf5]") {
  using data::detail::hdf5_id;
  scratch const here;
  {
    written_file const file(here / "a.h5");
    file.add("one", H5T_IEEE_F32LE, {1, 2}, counted(2, 3));
    file.add("long", H5T_IEEE_F32LE, {std::uint64_t{1} << 56, 2}, {}, 1);
    file.add("wide", H5T_IEEE_F32LE, {2, std::uint64_t{1} << 56}, {});
  }
  std::vector<float> in(2), out(2);
  hdf5{.files = here / "a.h5", .features = "one", .targets = "one"}.open().read(std::vector<std::int64_t>{0}, in.data(),
                                                                                out.data());
  CHECK(in == std::vector<float>{3, 4});
  auto const said = [&](std::string const& features) {
    return refusal({.files = here / "a.h5", .features = features, .targets = "one"});
  };
  CHECK(contains(said("long"),
                 "dataset \"long\" claims 72057594037927936 samples of shape (2), which no memory or disk"));
  CHECK(contains(said("wide"), "dataset \"wide\" claims 2 samples of shape (72057594037927936), which no memory or"));
  {
    // The numbers are given their place in the file, and only the last one is written.
    ::hsize_t const rows = 750'000'000, last = rows - 1, count = 1;
    hdf5_id const file(::H5Fcreate((here / "b.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), ::H5Fclose);
    hdf5_id const made(::H5Pcreate(H5P_DATASET_CREATE), ::H5Pclose);
    ::H5Pset_alloc_time(made.get(), H5D_ALLOC_TIME_EARLY);
    ::H5Pset_fill_time(made.get(), H5D_FILL_TIME_NEVER);
    hdf5_id const space(::H5Screate_simple(1, &rows, nullptr), ::H5Sclose);
    hdf5_id const one(::H5Screate_simple(1, &count, nullptr), ::H5Sclose);
    hdf5_id const data(::H5Dcreate2(file.get(), "x", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT, made.get(), H5P_DEFAULT),
                       ::H5Dclose);
    ::H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &last, nullptr, &count, nullptr);
    float const number = 7;
    REQUIRE(::H5Dwrite(data.get(), H5T_NATIVE_FLOAT, one.get(), space.get(), H5P_DEFAULT, &number) >= 0);
  }
  CHECK(std::filesystem::file_size(here / "b.h5") > 2'999'999'999);
  auto const start = std::chrono::steady_clock::now();
  auto const large = hdf5{.files = here / "b.h5", .features = "x", .targets = "x"}.open();
  large.read(std::vector<std::int64_t>{large.size() - 1, 5}, in.data(), out.data());
  CHECK(in == std::vector<float>{7, 0});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(2));
}

TEST_CASE("damage of compressed numbers is refused with the sample, and HDF5 prints nothing", "[data][hdf5]") {
  scratch const here;
  {
    written_file const file(here / "a.h5");
    file.add("x", H5T_IEEE_F32LE, {64, 4}, counted(256), 8);
  }
  hdf5 const from{.files = here / "a.h5", .features = "x", .targets = "x"};
  auto const samples = from.open();
  std::ifstream sound(here / "a.h5", std::ios::binary);
  std::string const content((std::istreambuf_iterator<char>(sound)), {});
  std::vector<std::int64_t> ids(64);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> in(256), out(256), right(256);
  samples.read(ids, right.data(), out.data());
  int refused = 0;
  std::string said;
  for (std::size_t at = 0; at < content.size(); at += 97) {
    auto changed = content;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    std::ofstream(here / "a.h5", std::ios::binary) << changed;
    in = right;
    auto const problem = sentence_of([&] {
      auto const again = from.open();
      if (again.size() == 64 && again.input_shape() == shape{4}) again.read(ids, in.data(), out.data());
    });
    refused += problem.empty() ? 0 : 1;
    if (contains(problem, "cannot be read; HDF5 says: ")) said = problem;
  }
  CHECK(refused > 0);
  CHECK(contains(said, "a.h5: trireme::data::hdf5: dataset \"x\": sample "));
  ::H5E_auto2_t print = nullptr;
  void* to = nullptr;
  ::H5Eget_auto2(H5E_DEFAULT, &print, &to);
  CHECK(print != nullptr);  // a program's own errors are printed as before
}

TEST_CASE("files that h5py wrote are read", "[data][hdf5]") {
  scratch const here;
  if (!python_ran("write_hdf5.py", here.path())) return;
  std::vector<std::int64_t> const ids{4, 0, 3};
  std::vector<float> in(3 * 6), expected;
  for (auto const s : ids) {
    for (int j = 0; j < 2; ++j) {
      for (int k = 0; k < 3; ++k) expected.push_back(static_cast<float>(100 * s + 10 * j + k));
    }
  }
  auto const compare = [&](std::string const& files, std::string const& features) {
    CAPTURE(files, features);
    auto const samples = hdf5{.files = here / files,
                              .features = features,
                              .targets = "y",
                              .features_as = dtype::f32,
                              .targets_as = dtype::i32}
                             .open();
    CHECK(samples.size() == 5);
    CHECK(samples.input_shape() == shape{2, 3});
    std::vector<std::int32_t> out(3);
    samples.read(ids, in.data(), out.data());
    CHECK(in == expected);
    CHECK(out == std::vector<std::int32_t>{4, 0, 3});
  };
  for (auto const* const kind : {"f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8"}) {
    for (auto const* const order : {"little", "big"}) compare("whole.h5", std::string(order) + "/" + kind);
  }
  for (auto const* const layout : {"chunked", "gzip", "shuffled", "growing", "linked", "elsewhere", "virtual"}) {
    compare("whole.h5", layout);
  }
  compare("cut_*.h5", "x");
  compare("new.h5", "x");
  auto const flags = hdf5{.files = here / "whole.h5", .features = "flags", .targets = "y", .features_as = dtype::f32};
  std::vector<std::int64_t> out(3);
  flags.open().read(ids, in.data(), out.data());
  CHECK(std::vector<float>(in.begin(), in.begin() + 3) == std::vector<float>{1, 0, 1});
  auto const said = refusal({.files = here / "whole.h5", .features = "lzf", .targets = "y"});
  CAPTURE(said);
  CHECK((said.empty() || contains(said, "dataset \"lzf\" needs the filter \"lzf\" (number 32000)")));
  CHECK(contains(refusal({.files = here / "whole.h5", .features = "names", .targets = "y"}), "holds strings"));
  CHECK(contains(refusal({.files = here / "whole.h5", .features = "records", .targets = "y"}), "holds records"));
  CHECK(contains(refusal({.files = here / "whole.h5", .features = "ragged", .targets = "y"}),
                 "holds sequences of different lengths"));
}
