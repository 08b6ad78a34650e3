#include "trireme/formats/json.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "../catch.hpp"

namespace {

namespace json = trireme::formats::json;
using trireme::format_error;

/// The byte at which a text is refused, or -1 if it is accepted.
std::int64_t refused_at(std::string_view text, json::limits const& most = {}) {
  try {
    static_cast<void>(json::parse(text, "a.json", most));
  } catch (format_error const& error) {
    CHECK(error.path() == "a.json");
    CHECK(error.offset() <= text.size());
    return static_cast<std::int64_t>(error.offset());
  }
  return -1;
}

bool same_after_printing(json::value const& value) {
  return json::parse(json::to_string(value), "x") == value && json::parse(json::to_string(value, 2), "x") == value;
}

}  // namespace

TEST_CASE("json reads every kind of value", "[formats][json]") {
  auto const value = json::parse(
      R"( {"a": [1, -2, 1.5, true, false, null], "b": {"c": "d"},
           "max": 18446744073709551615, "min": -9223372036854775808} )",
      "a.json");
  auto const& a = value.at("a").as_array();
  CHECK(a[0].as_int64() == 1);
  CHECK(a[0].as_uint64() == 1);
  CHECK(a[0].as_double() == 1.0);
  CHECK(a[1].as_int64() == -2);
  CHECK(a[2].as_double() == 1.5);
  CHECK(a[3].as_bool());
  CHECK_FALSE(a[4].as_bool());
  CHECK(a[5].is_null());
  CHECK(value.at("b").at("c").as_string() == "d");
  CHECK(value.at("max").as_uint64() == std::numeric_limits<std::uint64_t>::max());
  CHECK(value.at("min").as_int64() == std::numeric_limits<std::int64_t>::min());
  CHECK(value.find("z") == nullptr);
  CHECK(value.as_object()[2].key == "max");
  CHECK(same_after_printing(value));
}

TEST_CASE("json keeps the difference between integers and doubles", "[formats][json]") {
  CHECK(json::parse("1", "x").is_integer());
  CHECK_FALSE(json::parse("1.0", "x").is_integer());
  CHECK_FALSE(json::parse("1e2", "x").is_integer());
  CHECK(json::parse("18446744073709551616", "x").as_double() == 18446744073709551616.0);
  CHECK(std::signbit(json::parse("-0", "x").as_double()));
  CHECK(json::to_string(1.0) == "1.0");
  CHECK(json::to_string(1e300) == "1e+300");
  CHECK(json::to_string(0.1) == "0.1");
  CHECK(json::to_string(std::numeric_limits<double>::quiet_NaN()) == "null");
  for (double const x : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 123456789.0, 1e22, 1e21}) {
    auto const back = json::parse(json::to_string(x), "x").as_double();
    CHECK(std::memcmp(&x, &back, sizeof x) == 0);
  }
}

TEST_CASE("json reads escapes and checks UTF-8", "[formats][json]") {
  CHECK(json::parse(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00")", "x").as_string() ==
        "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(json::parse("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\"", "x").as_string().size() == 13);
  CHECK(same_after_printing(std::string("\0\x01\x1f\x7f\"\\ \xc3\xa9", 9)));
  CHECK(refused_at("\"\xc0\x80\"") == 1);          // two bytes for NUL
  CHECK(refused_at("\"\xe0\x80\x80\"") == 1);      // three bytes for NUL
  CHECK(refused_at("\"\xed\xa0\x80\"") == 1);      // a surrogate
  CHECK(refused_at("\"\xf4\x90\x80\x80\"") == 1);  // above U+10FFFF
  CHECK(refused_at("\"\xf0\x80\x80\x80\"") == 1);
  CHECK(refused_at("\"\x80\"") == 1);
  CHECK(refused_at("\"\xff\"") == 1);
  CHECK(refused_at("\"\xc3\"") == 1);
  CHECK(refused_at("\"a\xe2\x82") == 2);
  CHECK(refused_at(R"("\ud83d")") == 1);
  CHECK(refused_at(R"("\ud83dx\u0041")") == 1);
  CHECK(refused_at(R"("\ud83d\u0041")") == 1);
  CHECK(refused_at(R"("\ude00")") == 1);
  CHECK(refused_at(R"("\u12g4")") == 1);
  CHECK(refused_at(R"("\u-123")") == 1);
  CHECK(refused_at(R"("\x41")") == 1);
  CHECK(refused_at("\"\\") == 1);
  CHECK(refused_at("\"a\nb\"") == 2);
}

TEST_CASE("json refuses what is not JSON, and says where", "[formats][json]") {
  CHECK(refused_at("") == 0);
  CHECK(refused_at("  ") == 2);
  CHECK(refused_at("[1,]") == 3);
  CHECK(refused_at("[,1]") == 1);
  CHECK(refused_at("[1 2]") == 3);
  CHECK(refused_at("[1") == 2);
  CHECK(refused_at("[1}") == 2);
  CHECK(refused_at("{\"a\":1,}") == 7);
  CHECK(refused_at("{\"a\"}") == 4);
  CHECK(refused_at("{a:1}") == 1);
  CHECK(refused_at("{1:1}") == 1);
  CHECK(refused_at("{\"a\":}") == 5);
  CHECK(refused_at("1 2") == 2);
  CHECK(refused_at("nul") == 0);
  CHECK(refused_at("nullx") == 4);
  CHECK(refused_at("NaN") == 0);
  CHECK(refused_at("01") == 0);
  CHECK(refused_at("-") == 0);
  CHECK(refused_at("+1") == 0);
  CHECK(refused_at(".5") == 0);
  CHECK(refused_at("1.") == 0);
  CHECK(refused_at("1e") == 0);
  CHECK(refused_at("1e999") == 0);
  CHECK(refused_at("[\"a") == 3);
  CHECK(refused_at(std::string_view("\0", 1)) == 0);
  CHECK(refused_at(std::string_view("1\0", 2)) == 1);
  CHECK(refused_at("\xef\xbb\xbf{}") == 0);
}

TEST_CASE("json refuses a member that comes twice", "[formats][json]") {
  CHECK(refused_at(R"({"a":1,"b":2,"a":3})") == 17);
  CHECK(refused_at(R"([{"x":{"a":1,"\u0061":2}}])") == 22);
  CHECK(refused_at(R"({"a":{"a":1},"b":{"a":1}})") == -1);
}

TEST_CASE("json is bounded in depth, values and string length", "[formats][json]") {
  auto const nested = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  CHECK(refused_at(nested(32)) == -1);
  CHECK(refused_at(nested(33)) == 32);
  CHECK(refused_at(std::string(1'000'000, '[')) == 32);
  CHECK(refused_at("[1,2,3]", {.values = 4}) == -1);
  CHECK(refused_at("[1,2,3]", {.values = 3}) == 5);
  CHECK(refused_at("\"abcd\"", {.string_bytes = 4}) == -1);
  CHECK(refused_at("\"abcde\"", {.string_bytes = 4}) == 1);
  json::value deep;
  for (int i = 0; i < 40; ++i) deep = json::array{deep};
  CHECK_THROWS_AS(json::to_string(deep), trireme::config_error);
}

TEST_CASE("errors of json values of the wrong type name their position", "[formats][json]") {
  auto const value = json::parse(R"({"a": {"steps": "ten"}, "n": -1})", "run.json");
  auto const message = [](auto&& action) -> std::string {
    try {
      action();
    } catch (format_error const& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message([&] { static_cast<void>(value.at("a").at("steps").as_int64()); }) ==
        "run.json: byte 16: expected an integer of 64 bits");
  CHECK(message([&] { static_cast<void>(value.at("a").at("rank")); }) ==
        "run.json: byte 6: the object has no \"rank\"");
  CHECK(message([&] { static_cast<void>(value.at("n").as_uint64()); }) ==
        "run.json: byte 29: expected an integer that is not negative");
  CHECK(message([&] { static_cast<void>(value.at("n").at("x")); }) == "run.json: byte 29: expected an object");
}

TEST_CASE("json values are built and printed in order", "[formats][json]") {
  auto value = json::value::make({{"step", 7}, {"loss", 0.5}, {"name", "tiny"}});
  value.set("shape", json::array{2, 3U, json::value()});
  value.set("step", 8);
  CHECK(json::to_string(value) == R"({"step":8,"loss":0.5,"name":"tiny","shape":[2,3,null]})");
}

TEST_CASE("json survives every truncation and every changed byte", "[formats][json]") {
  std::string const whole =
      R"({"a":[1,-2.5e3,"x\u00e9\ud83d\ude00"],"b":{"c":null,"d":true,"e":18446744073709551615}})";
  for (std::size_t length = 0; length < whole.size(); ++length) {
    REQUIRE(refused_at(std::string_view(whole).substr(0, length)) >= 0);
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      auto changed = whole;
      changed[at] = static_cast<char>(byte);
      try {
        auto const value = json::parse(changed, "x");
        REQUIRE(same_after_printing(value));
      } catch (format_error const&) {
      }
    }
  }
}
