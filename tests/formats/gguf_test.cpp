#include "trireme/formats/gguf.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "scratch.hpp"

// The bytes of quantised tensors are compared with the package gguf in gguf_package_test.py.

namespace {

namespace gguf = trireme::formats::gguf;
using gguf::kind;
using trireme::config_error;
using trireme::format_error;

std::string bytes_of(std::string const& path) { return trireme::formats::read_text(path); }

std::vector<float> waves(std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = std::sin(static_cast<float>(i) * 0.7F);
  return out;
}

std::vector<float> there_and_back(kind which, std::vector<float> const& values) {
  std::vector<std::byte> stored(values.size() / static_cast<std::size_t>(gguf::block_elements(which)) *
                                static_cast<std::size_t>(gguf::block_bytes(which)));
  gguf::quantize(which, values, stored);
  std::vector<float> out(values.size());
  gguf::dequantize(which, stored, out);
  return out;
}

/// A file with all types of values, and tensors of odd and empty shapes in all kinds.
gguf::metadata const all_values{{"general.architecture", std::string("llama")},
                                {"a", std::uint8_t{200}},
                                {"b", std::int8_t{-5}},
                                {"c", std::uint16_t{60000}},
                                {"d", std::int16_t{-6}},
                                {"e", std::uint32_t{7}},
                                {"f", std::int32_t{-8}},
                                {"g", 1.5F},
                                {"h", true},
                                {"i", std::uint64_t{1} << 63},
                                {"j", std::int64_t{-9}},
                                {"k", 2.5},
                                {"none", std::vector<std::string>{}},
                                {"texts", std::vector<std::string>{"", "\xe2\x96\x81the"}},
                                {"truths", std::vector<bool>{true, false, true}},
                                {"scores", std::vector<float>{0, -1}},
                                {"types", std::vector<std::int32_t>{1, 3}}};
std::vector<gguf::entry> all_entries() {
  return {{"empty", kind::f32, {0}},        {"one", kind::f32, {1}},     {"odd", kind::f16, {3, 5, 7}},
          {"short", kind::bf16, {11, 3}},   {"q8", kind::q8_0, {3, 64}}, {"q4", kind::q4_0, {2, 3, 5, 32}},
          {"no rows", kind::q4_0, {0, 32}}, {"q5", kind::q5_1, {1, 96}}};
}

void write_all(std::string const& path) {
  gguf::writer to(path, all_values, all_entries());
  for (auto const& each : to.entries()) {
    auto const values = waves(static_cast<std::size_t>(each.extents.size()));
    auto const half = values.size() / 64 * 32;
    to.write(std::span(values).first(half));
    to.write(std::span(values).subspan(half));
  }
  to.finish();
  CHECK(to.file_bytes() == bytes_of(path).size());
}

/// Why a file is refused; empty if it is accepted.
std::string refusal(std::string const& bytes) {
  try {
    static_cast<void>(gguf::parse_header(std::as_bytes(std::span(bytes)), bytes.size(), "a.gguf"));
  } catch (format_error const& error) {
    CHECK(error.path() == "a.gguf");
    CHECK(error.offset() <= bytes.size());
    return error.what();
  }
  return "";
}
bool contains(std::string const& whole, std::string const& part) { return whole.find(part) != std::string::npos; }

template <class T>
std::string raw(T number) {
  std::string out(sizeof number, '\0');
  std::memcpy(out.data(), &number, sizeof number);
  return out;
}
std::string named(std::string const& name) { return raw(std::uint64_t{name.size()}) + name; }
std::string start_of(std::uint64_t tensors, std::uint64_t values) {
  return "GGUF" + raw(std::uint32_t{3}) + raw(tensors) + raw(values);
}

}  // namespace

TEST_CASE("a GGUF file has what was written, aligned, and written again it is the same file", "[formats][gguf]") {
  scratch const folder;
  write_all(folder / "a.gguf");
  gguf::reader const from(folder / "a.gguf");
  CHECK(from.metadata() == all_values);
  CHECK(from.alignment() == 32);
  auto wanted = all_entries();
  REQUIRE(from.entries().size() == wanted.size());
  gguf::writer again(folder / "b.gguf", from.metadata(), from.entries());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto const& each = from.entries()[i];
    INFO(each.name);
    CHECK(each.extents == wanted[i].extents);
    CHECK(each.begin % 32 == 0);
    std::vector<float> values(static_cast<std::size_t>(each.extents.size()));
    from.read(each, std::int64_t{0}, std::span(values));
    CHECK(values == there_and_back(each.type, waves(values.size())));
    std::vector<std::byte> stored(each.bytes);
    from.read(each, std::uint64_t{0}, std::span(stored));
    again.write(std::span<std::byte const>(stored));
  }
  again.finish();
  CHECK(bytes_of(folder / "a.gguf") == bytes_of(folder / "b.gguf"));
  std::vector<float> part(32);
  from.read(from.at("q4"), 64, std::span(part));
  std::vector<float> const whole = there_and_back(kind::q4_0, waves(960));
  CHECK(part == std::vector<float>(whole.begin() + 64, whole.begin() + 96));
}

TEST_CASE("a GGUF header of several MB is read", "[formats][gguf]") {
  scratch const folder;
  std::vector<std::string> const texts(200'000, "a token of some length");
  gguf::writer to(folder / "a.gguf", {{"general.alignment", std::uint32_t{4096}}, {"texts", texts}},
                  {{"x", kind::f32, {3}}, {"y", kind::f32, {1}}});
  to.write(std::vector<float>{1, 2, 3, 4});
  to.finish();
  gguf::reader const from(folder / "a.gguf");
  CHECK(*gguf::find(from.metadata(), "texts") == gguf::value(texts));
  CHECK(from.alignment() == 4096);
  CHECK(from.at("y").begin == 4096);
  std::vector<float> y(1);
  from.read(from.at("y"), std::int64_t{0}, std::span(y));
  CHECK(y == std::vector<float>{4});
}

TEST_CASE("each GGUF kind keeps numbers within its step", "[formats][gguf]") {
  auto const values = waves(320);
  for (auto const which : gguf::kinds) {
    INFO(gguf::name_of(which));
    CHECK(gguf::kind_named(gguf::name_of(which)) == which);
    bool const four = which == kind::q4_0 || which == kind::q4_1;
    double const most = which == kind::f32    ? 0
                        : which == kind::f16  ? 1e-3
                        : four                ? 0.13
                        : which == kind::q8_0 ? 8e-3
                                              : 0.07;
    auto const back = there_and_back(which, values);
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, static_cast<double>(std::abs(values[i] - back[i])));
    CHECK(worst <= most);
    auto const zeros = there_and_back(which, std::vector<float>(32, 0.0F));
    CHECK(zeros == std::vector<float>(32, 0.0F));
  }
  CHECK(gguf::kind_named("q8_0") == kind::q8_0);
  CHECK_FALSE(gguf::kind_named("Q3_K").has_value());
}

TEST_CASE("GGUF blocks with infinities, NaNs and denormals are stored without undefined conversions",
          "[formats][gguf]") {
  for (auto const which : gguf::kinds) {
    for (float const odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::denorm_min(),
                            std::numeric_limits<float>::max()}) {
      std::vector<float> values(32, 0.25F);
      values[7] = odd;
      static_cast<void>(there_and_back(which, values));
      CHECK(there_and_back(which, std::vector<float>(32, odd)).size() == 32);
    }
  }
}

TEST_CASE("a GGUF writer that stops early leaves nothing", "[formats][gguf]") {
  scratch const folder;
  {
    gguf::writer to(folder / "a.gguf", {}, {{"x", kind::q8_0, {4, 32}}});
    to.write(waves(64));
    CHECK_THROWS_WITH(to.finish(), Catch::Contains("\"x\" has 68 of its 136 bytes"));
  }
  CHECK(folder.entries() == 0);
  gguf::writer to(folder / "a.gguf", {}, {{"x", kind::q8_0, {32}}});
  CHECK_THROWS_AS(to.write(waves(31)), config_error);
  to.write(waves(32));
  CHECK_THROWS_WITH(to.write(waves(32)), Catch::Contains("32 numbers more than its tensors have"));
}

TEST_CASE("a GGUF writer refuses what cannot be stored", "[formats][gguf]") {
  scratch const folder;
  auto const refused = [&](gguf::metadata const& notes, std::vector<gguf::entry> const& entries) {
    CHECK_THROWS_AS(gguf::writer(folder / "a.gguf", notes, entries), config_error);
  };
  refused({}, {{"x", kind::q4_0, {2, 31}}});
  refused({}, {{"x", kind::f32, {1, 1, 1, 1, 1}}});
  refused({}, {{"x", kind::f32, {1}}, {"x", kind::f32, {1}}});
  refused({{"a", true}, {"a", false}}, {});
  refused({{"general.alignment", std::uint32_t{12}}}, {});
  CHECK(folder.entries() == 0);
}

TEST_CASE("damaged GGUF files are refused with a sentence", "[formats][gguf]") {
  CHECK(contains(refusal("GGML"), "does not begin with GGUF"));
  CHECK(contains(refusal("GG"), "ends before"));
  CHECK(contains(refusal("GGUF" + raw(std::uint32_t{2}) + std::string(16, '\0')), "version 2"));
  CHECK(contains(refusal(start_of(2'000'000, 0)), "at most 1000000"));
  CHECK(refusal(start_of(0, 0)).empty());
  CHECK(contains(refusal(start_of(0, 1) + raw(~std::uint64_t{0})), "ends before"));
  CHECK(contains(refusal(start_of(0, 1) + named("a") + raw(std::uint32_t{7}) + "\2"), "truth value"));
  CHECK(contains(refusal(start_of(0, 1) + named("a") + raw(std::uint32_t{13})), "no type of values"));
  auto const array = start_of(0, 1) + named("a") + raw(std::uint32_t{9});
  CHECK(contains(refusal(array + raw(std::uint32_t{9}) + raw(std::uint64_t{1})), "array of arrays"));
  CHECK(contains(refusal(array + raw(std::uint32_t{6}) + raw(std::uint64_t{1} << 62)), "beyond the file"));
  auto const tensor = [](std::uint32_t rank, std::int64_t extent, std::uint32_t type, std::uint64_t begin) {
    return start_of(1, 0) + named("t") + raw(rank) + raw(extent) + raw(type) + raw(begin) + std::string(200, '\0');
  };
  CHECK(refusal(tensor(1, 32, 8, 0)).empty());
  CHECK(contains(refusal(tensor(5, 32, 8, 0)), "at most 4"));
  CHECK(contains(refusal(tensor(1, -1, 0, 0)), "below 0"));
  CHECK(contains(refusal(tensor(1, 31, 8, 0)), "whole blocks"));
  CHECK(contains(refusal(tensor(1, 32, 12, 0)), "kind 12"));
  CHECK(contains(refusal(tensor(1, 32, 8, 7)), "not aligned"));
  CHECK(contains(refusal(tensor(1, std::int64_t{1} << 40, 0, 0)), "beyond the file"));
  CHECK(contains(refusal(tensor(1, std::int64_t{1} << 62, 0, 0)), "too large"));
}
