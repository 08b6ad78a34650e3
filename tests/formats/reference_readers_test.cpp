// Exchanges files with the packages whose formats they are. TRIREME_PYTHON names an interpreter that has them; without
// one, or without a package, the test prints the reason and is skipped.
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/python.hpp"
#include "scratch.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/formats/tensorboard.hpp"

using trireme::dtype;

TEST_CASE("the safetensors package reads our files, and we read its files", "[formats][safetensors]") {
  namespace st = trireme::formats::safetensors;
  scratch dir;
  {
    st::writer out(dir / "ours.safetensors",
                   {{"f64", dtype::f64, {2}},
                    {"i64", dtype::i64, {2}},
                    {"f32", dtype::f32, {2, 3}},
                    {"i32", dtype::i32, {2, 1}},
                    {"scalar", dtype::f32, {}},
                    {"empty", dtype::f32, {0, 4}},
                    {"i8", dtype::i8, {3}},
                    {"\xc3\xa9 \"quoted\"\n", dtype::u8, {1}}},
                   {{"step", "12"}, {"note", "two\nlines \xc3\xa9"}});
    auto const put = [&](auto const& values) { out.write(std::as_bytes(std::span(values))); };
    put(std::vector<double>{1e300, -0.1});
    put(std::vector<std::int64_t>{-(std::int64_t{1} << 62), 7});
    put(std::vector<float>{0, 0.25F, 0.5F, 0.75F, 1, 1.25F});
    put(std::vector<std::int32_t>{-5, 6});
    put(std::vector<float>{2.5F});
    put(std::vector<std::int8_t>{-1, 2, -3});
    put(std::vector<std::uint8_t>{1});
    out.finish();
  }
  if (!python_ran("check_safetensors.py", dir.path())) return;
  st::reader const in(dir / "theirs.safetensors");
  CHECK(in.entries().size() == 4);
  CHECK(*in.note("format") == "np");
  std::vector<float> b(12);
  in.read("b", 0, std::span(b));
  CHECK(b[11] == 11);
  CHECK(in.at("b").extents == trireme::shape{3, 4});
  std::vector<std::int64_t> a(2);
  in.read("a", 1, std::span(a));
  CHECK(a == std::vector<std::int64_t>{-2, 3});
  CHECK(in.at("half").type.name() == "F16");
  CHECK(in.at("truth").bytes == 3);
}

TEST_CASE("the tensorboard package reads our event files", "[formats][tensorboard]") {
  namespace tb = trireme::formats::tensorboard;
  scratch dir;
  auto const path = dir / tb::event_file_name();
  tb::writer_options options;
  options.clock = [] { return 1700000000.5; };
  {
    tb::writer out(path, options);
    out.add(1, {{"loss", 4.0F}, {"rate", 0.1F}});
    out.add(2, {{"loss", 3.0F}, {"rate", 0.1F}});
    out.add(3, {{"loss", 2.0F}, {"rate", 0.1F}});
  }
  trireme::formats::file(path, trireme::formats::file::access::extend).write("torn");
  {
    tb::writer out(path, options);
    out.restart(2);
    out.add(2, {{"loss", 2.5F}, {"rate", 0.2F}});
    out.add(3, {{"loss", 2.25F}, {"rate", 0.2F}});
  }
  python_ran("check_tensorboard.py", dir.path());
}
