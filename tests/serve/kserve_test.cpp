#include "trireme/serve/kserve.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"

using namespace trireme;
namespace kserve = serve::kserve;
namespace json = formats::json;

namespace {

std::string refused(std::string_view body, kserve::limits const& most = {}) {
  try {
    static_cast<void>(kserve::parse(body, most));
  } catch (serve::openai::refusal const& problem) {
    CHECK(problem.status == 400);
    CHECK(json::parse(kserve::body_of(problem), "answer").at("error").as_string() == problem.what());
    return problem.what();
  }
  return {};
}

}  // namespace

TEST_CASE("tensors of KServe's protocol are read, flat and nested", "[serve]") {
  auto const asked = kserve::parse(R"({"id": "a", "parameters": {"x": 1}, "outputs": [{"name": "y"}], "inputs": [
      {"name": "i", "shape": [2, 2], "datatype": "INT32", "data": [1, -2, 3, 4]},
      {"name": "n", "shape": [2, 1, 2], "datatype": "FP32", "data": [[[1, 2.5]], [[-3, 4]]]},
      {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["text"]},
      {"name": "b", "shape": [2], "datatype": "BOOL", "data": [true, 0]}]})");
  CHECK(asked.id == "a");
  CHECK((asked.wants("y") && !asked.wants("z")));
  REQUIRE(asked.inputs.size() == 4);
  CHECK(asked.find("i")->integers() == std::vector<std::int64_t>{1, -2, 3, 4});
  CHECK(asked.find("n")->floats() == std::vector<float>{1, 2.5F, -3, 4});
  CHECK(asked.find("n")->extents == std::vector<std::int64_t>{2, 1, 2});
  CHECK(asked.find("t")->texts() == std::vector<std::string>{"text"});
  CHECK(asked.find("b")->integers() == std::vector<std::int64_t>{1, 0});
  CHECK(asked.find("other") == nullptr);
  CHECK_THROWS_AS(asked.find("t")->floats(), serve::openai::refusal);

  auto const answer = json::parse(
      kserve::response(asked, "m",
                       {{.name = "y", .datatype = "FP32", .extents = {1, 2}, .data = std::vector{0.5F, 2.0F}}}),
      "answer");
  CHECK(answer.at("id").as_string() == "a");
  CHECK(answer.at("model_name").as_string() == "m");
  auto const& output = answer.at("outputs").as_array().at(0);
  CHECK(output.at("shape").as_array().at(1).as_int64() == 2);
  CHECK(output.at("data").as_array().at(0).as_double() == 0.5);
}

TEST_CASE("tensors that are no such are refused with one sentence", "[serve]") {
  auto const one = [](std::string_view shape, std::string_view type, std::string_view data) {
    return text(R"({"inputs": [{"name": "x", "shape": )", shape, R"(, "datatype": ")", type, R"(", "data": )", data,
                "}]}");
  };
  struct {
    std::string body, words;
  } const wrong[] = {
      {"", "not JSON"},
      {"[]", "not a JSON object"},
      {"{}", "inputs: there are none"},
      {R"({"inputs": []})", "inputs: there are none"},
      {R"({"inputs": [{"name": "x"}]})", "datatype"},
      {R"({"extra": 1})", "extra: this server does not know"},
      {one("[3]", "INT32", "[1, 2]"), "x: there are 2 elements where the shape asks for 3"},
      {one("[2, 2]", "INT32", "[[1, 2], [3]]"), "1 elements where the shape asks for 2"},
      {one("[2, 2]", "INT32", "[[1, 2], 3]"), "x: byte"},
      {one("[0]", "INT32", "[]"), "extent of 0"},
      {one("[-1]", "INT32", "[]"), "extent of -1"},
      {one("[4611686018427387904, 4]", "INT32", "[]"), "too large"},
      {one("[1]", "INT8", "[128]"), "128 is no INT8"},
      {one("[1]", "UINT32", "[-1]"), "-1 is no UINT32"},
      {one("[1]", "INT64", "[1.5]"), "x: byte"},
      {one("[1]", "FP32", "[1e39]"), "no FP32"},
      {one("[1]", "FP32", "[\"1\"]"), "x: byte"},
      {one("[1]", "BYTES", "[1]"), "x: byte"},
      {one("[1]", "TEXT", "[1]"), "\"TEXT\" is not known"},
      {R"({"parameters": {"binary_data_output": true}})", "binary data"},
      {R"({"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1]},
                      {"name": "x", "shape": [1], "datatype": "INT8", "data": [1]}]})",
       "two inputs"},
  };
  for (auto const& each : wrong) {
    CAPTURE(each.body);
    auto const sentence = refused(each.body);
    CHECK(contains(sentence, each.words));
    CHECK(sentence.find('\n') == sentence.npos);
  }
  CHECK(contains(refused(one("[3]", "INT32", "[1, 2, 3]"), {.most_numbers = 2}), "2 numbers at most"));
  CHECK(formats::json::parse(kserve::body_of(serve::openai::refusal("the datatype \"\xe2\x82\"")), "body")
            .at("error")
            .as_string() == "the datatype \"\xef\xbf\xbd\"");
}
