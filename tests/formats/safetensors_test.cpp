#include "trireme/formats/safetensors.hpp"

#include <cstring>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "scratch.hpp"

namespace {

namespace st = trireme::formats::safetensors;
using trireme::config_error;
using trireme::dtype;
using trireme::format_error;

/// A file with this header text and this many bytes of data.
std::string file_of(std::string const& json, std::size_t data, std::int64_t length_error = 0) {
  std::string out(8, '\0');
  auto const length = static_cast<std::uint64_t>(static_cast<std::int64_t>(json.size()) + length_error);
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return out + json + std::string(data, 'x');
}

st::header parse(std::string const& bytes) {
  return st::parse_header(std::as_bytes(std::span(bytes)), bytes.size(), "a.safetensors");
}

/// Why a file is refused; empty if it is accepted.
std::string refusal(std::string const& bytes) {
  try {
    static_cast<void>(parse(bytes));
  } catch (format_error const& error) {
    CHECK(error.path() == "a.safetensors");
    CHECK(error.offset() <= bytes.size());
    return error.what();
  }
  return "";
}
bool refused(std::string const& bytes, std::string const& because) {
  auto const why = refusal(bytes);
  INFO(why);
  bool const found = !why.empty() && why.find(because) != std::string::npos;
  CHECK(found);
  return found;
}

std::string tensor(std::string const& name, std::string const& type, std::string const& shape,
                   std::string const& offsets) {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string bytes_of(std::string const& path) { return trireme::formats::read_text(path); }

}  // namespace

TEST_CASE("safetensors reads a header of the format", "[formats][safetensors]") {
  auto const head = parse(file_of(R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},
    "__metadata__":{"format":"pt","who":"\u00e9"}, "a":{"data_offsets":[0,4],"shape":[],"dtype":"I32"}}   )",
                                  28));
  REQUIRE(head.entries.size() == 2);
  CHECK(head.entries[0].name == "a");
  CHECK(head.entries[0].extents.rank() == 0);
  CHECK(head.entries[1] == st::entry{"b", dtype::f32, {2, 3}, 4, 24});
  CHECK(head.notes == st::metadata{{"format", "pt"}, {"who", "\xc3\xa9"}});
}

TEST_CASE("safetensors accepts the edges of the format", "[formats][safetensors]") {
  CHECK(parse(file_of("{}", 0)).entries.empty());
  CHECK(parse(file_of(R"({"__metadata__":{}})", 0)).notes.empty());
  CHECK(parse(file_of("  \n{}  ", 0)).entries.empty());
  CHECK(parse(file_of("{" + tensor("a", "F32", "[0]", "[0,0]") + "}", 0)).entries[0].bytes == 0);
  CHECK(parse(file_of("{" + tensor("a", "F32", "[0,9223372036854775807]", "[0,0]") + "}", 0)).entries.size() == 1);
  CHECK(parse(file_of("{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[0]", "[1,1]") + "}", 1))
            .entries.size() == 2);
  CHECK(parse(file_of("{" + tensor("b", "U8", "[1]", "[0,1]") + "," + tensor("a", "U8", "[0]", "[0,0]") + "}", 1))
            .entries[0]
            .name == "a");
  CHECK(parse(file_of("{" + tensor("", "U8", "[1]", "[0,1]") + "}", 1)).entries[0].name.empty());
  CHECK(parse(file_of("{" + tensor("a", "F4", "[2,3]", "[0,3]") + "}", 3)).entries[0].type.bits() == 4);
  for (auto const* name : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    CHECK(parse(file_of("{" + tensor("a", name, "[3]", "[0,3]") + "}", 3)).entries[0].type.name() == name);
  }
  for (auto const* name : {"U16", "I16", "F16", "BF16"}) {
    CHECK(parse(file_of("{" + tensor("a", name, "[3]", "[0,6]") + "}", 6)).entries[0].type.name() == name);
  }
}

TEST_CASE("safetensors refuses a file without a whole header", "[formats][safetensors]") {
  refused("", "shorter than the 8 bytes");
  refused("\x01", "shorter than the 8 bytes");
  refused(std::string(7, '\0'), "shorter than the 8 bytes");
  refused(std::string(8, '\0'), "expected '{'");
  refused(file_of("{}", 0, 1), "a header of 3 bytes in a file of 10");
  refused(file_of("{}", 0, -1), "expected");
  refused(std::string(8, '\xff'), "more than 100 MB");  // 8 + n overflows
  refused(std::string("\xfb\xff\xff\xff\xff\xff\xff\xff{}", 10), "more than 100 MB");
  refused(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "more than 100 MB");  // 100,000,001
  refused(std::string("\x00\xe1\xf5\x05\0\0\0\0{}", 10), "in a file of 10");
}

TEST_CASE("safetensors takes no memory for a header that the file cannot have", "[formats][safetensors]") {
  auto const start = std::string("\x00\xe1\xf5\x05\0\0\0\0", 8);
  CHECK_THROWS_AS(st::header_bytes(std::as_bytes(std::span(start)), 1000, "a"), format_error);
  CHECK(st::header_bytes(std::as_bytes(std::span(start)), 200'000'000, "a") == 100'000'008);
}

TEST_CASE("safetensors refuses a header that is not the JSON of the schema", "[formats][safetensors]") {
  refused(file_of("[]", 0), "expected '{'");
  refused(file_of("null", 0), "expected '{'");
  refused(file_of("{\"a\":1}", 0), "expected '{'");
  refused(file_of("{\"a\":[]}", 0), "expected '{'");
  refused(file_of("{}x", 0), "characters after the JSON text");
  refused(file_of("{} {}", 0), "characters after the JSON text");
  refused(file_of("{\"\xff\":{}}", 0), "not UTF-8");
  refused(file_of(R"({"__metadata__":1})", 0), "expected '{'");
  refused(file_of(R"({"__metadata__":null})", 0), "expected '{'");
  refused(file_of(R"({"__metadata__":{"a":1}})", 0), "expected '\"'");
  refused(file_of(R"({"__metadata__":{"a":{}}})", 0), "expected '\"'");
  refused(file_of(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "two metadata keys");
  refused(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "a second __metadata__");
  refused(file_of("{" + tensor("a", "F99", "[1]", "[0,4]") + "}", 4), "unknown dtype");
  refused(file_of("{" + tensor("a", "f32", "[1]", "[0,4]") + "}", 4), "unknown dtype");
  refused(file_of(R"({"a":{"dtype":"U8","shape":[1]}})", 0), "without \"data_offsets\"");
  refused(file_of(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1), "without \"shape\"");
  refused(file_of(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1), "without \"dtype\"");
  refused(file_of(R"({"a":{}})", 0), "without \"dtype\"");
  refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"offsets":[0,1]}})", 1), "no member \"offsets\"");
  refused(file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1), "a second member");
  refused(file_of("{" + tensor("a", "U8", "1", "[0,1]") + "}", 1), "expected '['");
  refused(file_of("{" + tensor("a", "U8", "[1.0]", "[0,1]") + "}", 1), "without sign, fraction or exponent");
  refused(file_of("{" + tensor("a", "U8", "[1e0]", "[0,1]") + "}", 1), "without sign, fraction or exponent");
  refused(file_of("{" + tensor("a", "U8", "[-1]", "[0,1]") + "}", 1), "without sign, fraction or exponent");
  refused(file_of("{" + tensor("a", "U8", "[01]", "[0,1]") + "}", 1), "leading zero");
  refused(file_of("{" + tensor("a", "U8", "[\"1\"]", "[0,1]") + "}", 1), "expected a value");
  refused(file_of("{" + tensor("a", "U8", "[1]", "[0]") + "}", 1), "expected ','");
  refused(file_of("{" + tensor("a", "U8", "[1]", "[0,1,2]") + "}", 1), "expected ']'");
  refused(file_of("{" + tensor("a", "U8", "[1]", "[0,99999999999999999999]") + "}", 1), "fit into 64 bits");
  refused(file_of(R"({"a":{"dtype":"U8","shape":)" + std::string(100'000, '['), 0), "expected a value");
}

TEST_CASE("safetensors refuses two tensors of one name", "[formats][safetensors]") {
  refused(file_of("{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[1]", "[1,2]") + "," +
                      tensor("a", "U8", "[1]", "[2,3]") + "}",
                  3),
          "two tensors are named \"a\"");
  refused(file_of("{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("\\u0061", "U8", "[0]", "[1,1]") + "}", 1),
          "two tensors are named \"a\"");
}

TEST_CASE("safetensors refuses sizes that do not agree", "[formats][safetensors]") {
  refused(file_of("{" + tensor("a", "F32", "[2]", "[0,4]") + "}", 4), "span 4 bytes, dtype and shape need 8");
  refused(file_of("{" + tensor("a", "F32", "[]", "[0,0]") + "}", 0), "span 0 bytes, dtype and shape need 4");
  refused(file_of("{" + tensor("a", "U8", "[1]", "[1,0]") + "}", 1), "end before they begin");
  refused(file_of("{" + tensor("a", "U8", "[4294967296,4294967296]", "[0,0]") + "}", 0), "too large");
  refused(file_of("{" + tensor("a", "F64", "[4611686018427387904]", "[0,0]") + "}", 0), "too large");
  refused(file_of("{" + tensor("a", "U8", "[9223372036854775808]", "[0,0]") + "}", 0), "more than 63 bits");
  refused(file_of("{" + tensor("a", "U8", "[9223372036854775807,9223372036854775807,0]", "[0,0]") + "}", 0),
          "too large");
  refused(file_of("{" + tensor("a", "F4", "[3]", "[0,1]") + "}", 1), "not whole bytes");
  refused(file_of("{" + tensor("a", "F6_E2M3", "[1]", "[0,1]") + "}", 1), "not whole bytes");
}

TEST_CASE("safetensors refuses data with overlaps, holes, missing or trailing bytes", "[formats][safetensors]") {
  refused(file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("b", "U8", "[2]", "[1,3]") + "}", 3),
          "overlaps");
  refused(file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("b", "U8", "[2]", "[0,2]") + "}", 2),
          "overlaps");
  refused(file_of("{" + tensor("a", "U8", "[4]", "[0,4]") + "," + tensor("b", "U8", "[0]", "[2,2]") + "}", 4),
          "overlaps");
  refused(file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("b", "U8", "[2]", "[3,5]") + "}", 5),
          "leaves a gap");
  refused(file_of("{" + tensor("a", "U8", "[2]", "[1,3]") + "}", 3), "leaves a gap");
  refused(file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "}", 1), "the file ends, its tensors need 1 byte more");
  refused(file_of("{" + tensor("a", "U8", "[2]", "[0,2]") + "}", 3), "1 byte follows the last tensor");
  refused(file_of("{}", 4), "4 bytes follow the last tensor");
  refused(file_of("{" + tensor("a", "U8", "[0]", "[18446744073709551615,18446744073709551615]") + "}", 0),
          "leaves a gap");
}

TEST_CASE("safetensors is bounded in rank, names and tensors", "[formats][safetensors]") {
  CHECK(refusal(file_of("{" + tensor("a", "U8", "[1,1,1,1,1,1]", "[0,1]") + "}", 1)).empty());
  refused(file_of("{" + tensor("a", "U8", "[1,1,1,1,1,1,1]", "[0,1]") + "}", 1), "more than 6 extents");
  CHECK(refusal(file_of("{" + tensor(std::string(4096, 'n'), "U8", "[1]", "[0,1]") + "}", 1)).empty());
  refused(file_of("{" + tensor(std::string(4097, 'n'), "U8", "[1]", "[0,1]") + "}", 1), "more than 4096 bytes");
  std::string many = "{";
  for (int i = 0; i <= 1'000'000; ++i) many += tensor(std::to_string(i), "U8", "[0]", "[0,0]") + ",";
  many.back() = '}';
  refused(file_of(many, 0), "more than 1000000 tensors");
}

TEST_CASE("safetensors written in pieces reads back", "[formats][safetensors]") {
  scratch dir;
  auto const path = dir / "model.safetensors";
  std::vector<float> const a{1, 2, 3, 4, 5, 6};
  std::vector<std::int64_t> const b{-7};
  trireme::sha256 digest;
  {
    st::writer out(path, {{"a \"quoted\"", dtype::f32, {2, 3}}, {"b", dtype::i64, {}}, {"none", dtype::bf16, {0, 4}}},
                   {{"step", "12"}, {"text", "two\nlines"}}, {.digest = &digest});
    auto const bytes = std::as_bytes(std::span(a));
    out.write(bytes.first(5));
    out.write({});
    out.write(bytes.subspan(5));
    CHECK_THROWS_AS(out.finish(), config_error);
    CHECK_THROWS_AS(out.write(std::vector<std::byte>(9)), config_error);
    out.write(std::as_bytes(std::span(b)));
    out.finish();
    CHECK(out.file_bytes() == bytes_of(path).size());
  }
  CHECK(dir.entries() == 1);
  CHECK(digest.hexadecimal() == trireme::sha256{}.update(bytes_of(path)).hexadecimal());
  st::reader const in(path);
  CHECK(in.entries().size() == 3);
  CHECK(*in.note("text") == "two\nlines");
  CHECK(in.note("x") == nullptr);
  std::vector<float> part(4);
  in.read("a \"quoted\"", 2, std::span(part));
  CHECK(part == std::vector<float>{3, 4, 5, 6});
  std::vector<std::int64_t> whole(1);
  in.read("b", 0, std::span(whole));
  CHECK(whole == b);
  in.read("b", 1, std::span<std::int64_t>{});
  CHECK(in.at("none").extents == trireme::shape{0, 4});
  CHECK_THROWS_AS(in.read("a \"quoted\"", 3, std::span(part)), config_error);
  CHECK_THROWS_AS(in.read("b", 0, std::span(part)), config_error);
  CHECK_THROWS_AS(in.read("c", 0, std::span(part)), config_error);
  CHECK_THROWS_AS(in.read("b", ~std::uint64_t{0}, std::span(whole)), config_error);
}

TEST_CASE("a safetensors writer that does not finish leaves nothing", "[formats][safetensors]") {
  scratch dir;
  trireme::formats::atomic_write(dir / "a", "old");
  {
    st::writer out(dir / "a", {{"a", dtype::u8, {2}}});
    out.write(std::vector<std::byte>(1));
  }
  CHECK(bytes_of(dir / "a") == "old");
  CHECK(dir.entries() == 1);
}

TEST_CASE("a safetensors writer refuses what the reader would refuse", "[formats][safetensors]") {
  scratch dir;
  auto const write = [&](std::vector<st::entry> entries, st::metadata notes = {}) {
    st::writer(dir / "a", std::move(entries), std::move(notes));
  };
  CHECK_THROWS_AS(write({{"a", dtype::u8, {1}}, {"a", dtype::u8, {1}}}), config_error);
  CHECK_THROWS_AS(write({{"__metadata__", dtype::u8, {1}}}), config_error);
  CHECK_THROWS_AS(write({{std::string(4097, 'a'), dtype::u8, {1}}}), config_error);
  CHECK_THROWS_AS(write({{"\xff", dtype::u8, {1}}}), config_error);
  CHECK_THROWS_AS(write({{"a", dtype::f64, {std::int64_t{1} << 62, 8}}}), config_error);
  CHECK_THROWS_AS(write({{"a", dtype::u8, {1}}}, {{"k", "1"}, {"k", "2"}}), config_error);
  CHECK(dir.entries() == 0);
}

TEST_CASE("safetensors survives every truncation and every changed byte of a file", "[formats][safetensors]") {
  scratch dir;
  {
    st::writer out(dir / "a", {{"w", dtype::f32, {2, 2}}, {"\xc3\xa9", dtype::u8, {3}}}, {{"k", "v"}});
    out.write(std::vector<std::byte>(19));
    out.finish();
  }
  auto const whole = bytes_of(dir / "a");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    trireme::formats::atomic_write(dir / "b", std::string_view(whole).substr(0, length));
    REQUIRE_THROWS_AS(st::reader(dir / "b"), format_error);
  }
  CHECK_FALSE(refusal(whole + "x").empty());
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 256; ++bit) {
      auto changed = whole;
      changed[at] = static_cast<char>(bit);
      try {
        auto const head = parse(changed);
        std::uint64_t sum = 0;
        for (auto const& each : head.entries) sum += each.bytes;
        REQUIRE(sum + head.data_offset == changed.size());
        ++accepted;
      } catch (format_error const&) {
      }
    }
  }
  CHECK(accepted > 0);
}

TEST_CASE("safetensors refuses what is not a file", "[formats][safetensors]") {
  scratch dir;
  CHECK_THROWS_AS(st::reader(dir.path()), trireme::io_error);
  CHECK_THROWS_AS(st::reader("/dev/zero"), trireme::io_error);
  CHECK_THROWS_AS(st::reader(dir / "nowhere"), trireme::io_error);
}
