#include "trireme/formats/chrome_trace.hpp"

#include <vector>

#include "../catch.hpp"
#include "scratch.hpp"
#include "trireme/formats/json.hpp"

TEST_CASE("a chrome trace names ranks and lanes and keeps nanoseconds", "[formats][chrome_trace]") {
  std::vector<trireme::trace_event> const first{{"forward \"x\"", "compute", 5'000'001'000, 5'000'003'007, 0},
                                                {"all_reduce", "exchange", 5'000'002'000, 5'000'002'000, 1}};
  std::vector<trireme::trace_event> const second{{"forward", "compute", 5'000'000'999, 5'000'000'000, 0}};
  std::vector<trireme::trace_process> const ranks{{0, "rank 0", {"compute", "exchange"}, first},
                                                  {1, "rank 1", {"compute"}, second}};
  scratch dir;
  trireme::formats::chrome_trace::write(dir / "trace.json", ranks);
  auto const text = trireme::formats::read_text(dir / "trace.json");
  auto const trace = trireme::formats::json::parse(text, "trace.json");
  CHECK(trace.at("displayTimeUnit").as_string() == "ms");
  auto const& events = trace.at("traceEvents").as_array();
  REQUIRE(events.size() == 8);
  CHECK(events[0].at("name").as_string() == "process_name");
  CHECK(events[0].at("args").at("name").as_string() == "rank 0");
  CHECK(events[2].at("name").as_string() == "thread_name");
  CHECK(events[2].at("tid").as_int64() == 1);
  CHECK(events[2].at("args").at("name").as_string() == "exchange");
  CHECK(events[3].at("name").as_string() == "forward \"x\"");
  CHECK(events[3].at("ph").as_string() == "X");
  CHECK(events[3].at("cat").as_string() == "compute");
  CHECK(events[7].at("pid").as_int64() == 1);
  CHECK(text.find("\"ts\":0.001,\"dur\":2.007") != std::string::npos);
  CHECK(text.find("\"ts\":0.000,\"dur\":0.000") != std::string::npos);  // an end before its begin gives length 0
}

TEST_CASE("a chrome trace may be empty", "[formats][chrome_trace]") {
  auto const text = trireme::formats::chrome_trace::to_string({});
  CHECK(trireme::formats::json::parse(text, "x").at("traceEvents").as_array().empty());
}
