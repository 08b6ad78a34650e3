#include "trireme/data/csv.hpp"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "trireme/contract/dataset.hpp"
#include "trireme/data/any_dataset.hpp"
#include "trireme/data/combined.hpp"
#include "trireme/data/model_files.hpp"

using namespace trireme;

namespace {

void write(std::string const& path, std::string const& content) { std::ofstream(path, std::ios::binary) << content; }

/// The inputs of all samples, one after the other.
std::vector<float> inputs_of(data::csv_samples const& from) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < from.size(); ++id) ids.push_back(id);
  std::vector<float> in(ids.size() * static_cast<std::size_t>(from.input_shape().size()));
  std::vector<float> out(ids.size() * static_cast<std::size_t>(from.target_shape().size()));
  from.read(ids, in.data(), out.data());
  return in;
}

/// The error that opens a table with columns x and y.
struct tables {
  scratch here;
  std::string refusal(std::string const& content, data::csv from = {}) const {
    write(here / "t.csv", content);
    from.files = here / "t.csv";
    if (from.features.empty()) from.features = {"x"};
    if (from.targets.empty()) from.targets = {"y"};
    return sentence_of([&] { static_cast<void>(from.open()); });
  }
};

}  // namespace

TEST_CASE("columns of a table become numbers, at any position", "[data][csv]") {
  static_assert(dataset<data::csv_samples>);
  scratch const here;
  write(here / "a.csv", "id,town,area,price\n1,Ulm,10, 1.5 \n2,\"Bonn\",30,+2e0\n");
  write(here / "b.csv",
        "\xef\xbb\xbfid,town,area,price\r\n\"3\",\"Ulm\",20,\"-3\"\r\n\"4\",\"Bonn, \"\"West\"\"\r\n\",20,4");
  data::csv const from{.files = {here / "a.csv", here / "b.csv"},
                       .features = {"area", "town"},
                       .targets = {"price", "id"},
                       .standardised = {"area"},
                       .categories = {"town"}};
  auto const samples = from.open();
  REQUIRE(samples.size() == 4);
  CHECK(samples.input_shape() == shape{2});
  CHECK(samples.target_shape() == shape{2});
  auto const unit = static_cast<float>(10 / std::sqrt(50.0));
  CHECK(inputs_of(samples) == std::vector<float>{-unit, 2, unit, 0, 0, 2, 0, 1});
  std::vector<float> in(4), out(4);
  samples.read(std::vector<std::int64_t>{2, 1}, in.data(), out.data());
  CHECK(in == std::vector<float>{0, 2, unit, 0});
  CHECK(out == std::vector<float>{-3, 3, 2, 2});

  // The encoding is that of the first table, whatever the second one holds.
  auto const encoding = samples.encoding();
  REQUIRE(encoding.columns.size() == 2);
  CHECK(encoding.columns[0] == data::csv_column{.name = "area", .mean = 20, .deviation = std::sqrt(50.0)});
  CHECK(encoding.columns[1].categories == std::vector<std::string>{"Bonn", "Bonn, \"West\"\r\n", "Ulm"});
  encoding.save(here / "encoding.json");
  CHECK(data::csv_encoding::read(here / "encoding.json") == encoding);
  data::concat const both{samples, samples};
  REQUIRE(data::model_files_of(both).size() == 1);
  CHECK(data::csv_encoding::in(both.model_files()) == encoding);
  CHECK(data::model_files_of(data::any_dataset(both)) == samples.model_files());
  CHECK(contains(sentence_of([] { static_cast<void>(data::csv_encoding::in({})); }),
                 "there is no csv_encoding.json among these 0 files"));
  auto other = from;
  other.files = here / "c.csv";
  other.encoding = data::csv_encoding::read(here / "encoding.json");
  write(here / "c.csv", "area,price,id,town\n40,1,1,Ulm\n");
  CHECK(inputs_of(other.open()) == std::vector<float>{2 * 10 / static_cast<float>(std::sqrt(50.0)), 2});
  CHECK(other.open().encoding() == encoding);
  write(here / "c.csv", "area,price,id,town\n40,1,1,Ulm\n40,1,1,Kiel\n");
  CHECK(contains(sentence_of([&] { static_cast<void>(other.open()); }),
                 "line 3, sample 1, column \"town\": \"Kiel\" is not among the categories of the encoding"));
  CHECK(to_string(data::csv{.files = "a.csv", .features = {"x"}, .targets = {"y"}, .targets_as = dtype::i32}) ==
        "trireme::data::csv{.files = \"a.csv\", .features = {\"x\"}, .targets = {\"y\"}, .targets_as = "
        "trireme::dtype::i32}");
  CHECK(to_string(data::csv{.files = "a.csv",
                            .features = {"a \"b\"\r\n", "c\\'"},
                            .targets = {"y"},
                            .encoding = encoding,
                            .separator = '\t'}) ==
        R"(trireme::data::csv{.files = "a.csv", .features = {"a \"b\"\r\n", "c\\'"}, .targets = {"y"}, )"
        R"(.encoding = {2 columns}, .separator = '\t'})");
}

TEST_CASE("what read() would refuse of an encoding is not saved", "[data][csv]") {
  scratch const here;
  auto const path = here / "encoding.json";
  data::csv_encoding const old{.columns = {{.name = "x", .mean = 1, .deviation = 2}}};
  old.save(path);
  auto const refusal = [&](std::vector<data::csv_column> columns) {
    return sentence_of<format_error>([&] { data::csv_encoding{.columns = std::move(columns)}.save(path); });
  };
  auto const infinite = std::numeric_limits<double>::infinity();
  CHECK(contains(refusal({{.name = "x", .deviation = 0}}), "the deviation must be above 0"));
  CHECK(contains(refusal({{.name = "x", .deviation = infinite}}),
                 "the deviation of column \"x\" is not a finite number"));
  CHECK(contains(refusal({{.name = "x", .mean = -infinite}}), "the mean of column \"x\" is not a finite number"));
  CHECK(contains(refusal({{.name = "x"}, {.name = "x", .categories = {"a"}}}), "the column \"x\" is there twice"));
  CHECK(contains(refusal({{.name = "x", .categories = {"\xff"}}}), "encoding.json"));
  CHECK(data::csv_encoding::read(path) == old);
  CHECK(here.entries() == 1);
}

TEST_CASE("an encoding may have more than a million categories", "[data][csv]") {
  scratch const here;
  data::csv_encoding all{.columns = {{.name = "x"}}};
  for (int i = 0; i <= 1 << 20; ++i) all.columns[0].categories.push_back(std::to_string(i));
  all.save(here / "encoding.json");
  CHECK(data::csv_encoding::read(here / "encoding.json") == all);
}

TEST_CASE("a label is an integer, missing values become what is asked for, columns may have no names", "[data][csv]") {
  scratch const here;
  write(here / "t.csv", "7\tred\nNA\tblue\n9\t\n");
  data::csv const from{.files = here / "t.csv",
                       .features = {"0"},
                       .targets = {"1"},
                       .categories = {"1"},
                       .targets_as = dtype::i32,
                       .features_missing = 0.5,
                       .targets_missing = -1,
                       .separator = '\t',
                       .header = false};
  auto const samples = from.open();
  CHECK(samples.target_shape() == shape{});
  std::vector<float> in(3);
  std::vector<std::int32_t> out(3);
  samples.read(std::vector<std::int64_t>{0, 1, 2}, in.data(), out.data());
  CHECK(in == std::vector<float>{7, 0.5F, 9});
  CHECK(out == std::vector<std::int32_t>{1, 0, -1});
}

TEST_CASE("a column of equal numbers becomes 0, and a line's end may be missing after an empty field", "[data][csv]") {
  scratch const here;
  write(here / "t.csv", "x,y\n0.1,1\n0.1,2\n0.1,");
  data::csv const from{
      .files = here / "t.csv", .features = {"x"}, .targets = {"y"}, .standardised = {"x"}, .targets_missing = 7};
  auto const samples = from.open();
  REQUIRE(samples.size() == 3);
  CHECK(samples.encoding().columns == std::vector{data::csv_column{.name = "x", .mean = 0.1, .deviation = 1}});
  std::vector<float> in(3), out(3);
  samples.read(std::vector<std::int64_t>{0, 1, 2}, in.data(), out.data());
  CHECK(in == std::vector<float>{0, 0, 0});
  CHECK(out == std::vector<float>{1, 2, 7});
}

TEST_CASE("what is wrong in a table is named by its line and column", "[data][csv]") {
  tables const t;
  CHECK(t.refusal("x,y\n1,2\n") == "");
  CHECK(contains(t.refusal("x,y\n1,2\n3\n"),
                 "byte 8: trireme::data::csv: line 3: the record has 1 field, but there are 2 "
                 "columns"));
  CHECK(contains(t.refusal("x,y\n1,2,3\n"), "line 2: the record has 3 fields"));
  CHECK(contains(t.refusal("x,y\n1,2\n\n"), "line 3: the line is empty"));
  CHECK(contains(t.refusal("x,y\n\"1\n\",2\n3,abc\n", {.missing = {"1\n"}, .features_missing = 0}),
                 "line 4, sample 1, column \"y\": \"abc\" is not a finite number that a double can hold"));
  CHECK(contains(t.refusal("x,y\n1,\n"), "line 2, sample 0, column \"y\": has no value"));
  CHECK(contains(t.refusal("x,y\ninf,1\n"), "\"inf\" is not a finite number that a double can hold"));
  CHECK(contains(t.refusal("x,y\n1e-400,1\n"), "\"1e-400\" is not a finite number that a double can hold"));
  CHECK(contains(t.refusal("x,y\n1e39,1\n"), "is not a number of type"));
  CHECK(contains(t.refusal("x,y\n1,1.5\n", {.targets_as = dtype::i32}), "\"1.5\" is not a number of type"));
  CHECK(
      contains(t.refusal("x,y\n1,2\n3,\"4\n"), "byte 10: trireme::data::csv: line 3: the quote that opens this field"));
  CHECK(contains(t.refusal("x,y\n1\",2\n"), "line 2: a quote stands within a field"));
  CHECK(contains(t.refusal("x,y\n\"1\"2,2\n"), "line 2: something follows the quote"));
  CHECK(contains(t.refusal("x,y\r1,2\r"), "line 1: a carriage return stands without a line feed"));
  CHECK(contains(t.refusal("\xff\xfex"), "UTF-16"));
  CHECK(contains(t.refusal("x,z\n1,2\n"), "has no column \"y\"; it has \"x\", \"z\""));
  CHECK(contains(t.refusal("x,y,x\n1,2,3\n"), "has two columns \"x\""));
  CHECK(contains(t.refusal("x,y\n"), "has no record besides the names"));
  auto const unnamed = t.refusal("\xef\xbb\xbf", {.features = {"0"}, .targets = {"1"}, .header = false});
  CHECK(contains(unnamed, "has no record"));
  CHECK(!contains(unnamed, "names of its columns"));
  CHECK(contains(t.refusal(""), "the file is empty"));
  CHECK(contains(t.refusal("x,y\n1,"), "line 2, sample 0, column \"y\": has no value"));
  CHECK(contains(t.refusal("x,y\nNA,1\n", {.standardised = {"x"}, .features_missing = 0}), "has no number"));
  CHECK(contains(t.refusal("x,y\nNA,1\n,2\n", {.categories = {"x"}, .features_missing = -1}),
                 "column \"x\" has no category, because all of its fields are missing"));
  CHECK(contains(t.refusal("x,y\n1,1\n", {.standardised = {"z"}}), "neither a feature nor a target"));
  CHECK(contains(t.refusal("x,y\n1,1\n", {.standardised = {"x"}, .categories = {"x"}}), "one of .categories too"));
  CHECK(contains(t.refusal("x,y\n1,1\n", {.standardised = {"x"}, .features_as = dtype::i32}), "which are i32"));
  CHECK(contains(t.refusal("x,y\n1,1\n", {.features_as = dtype::f64}), "but numbers become f32 or i32"));
  CHECK(
      contains(t.refusal("x,y\n1,1\n", {.targets_as = dtype::i32, .targets_missing = 0.5}), ".targets_missing = 0.5"));
  CHECK(contains(t.refusal("x,y\n1,1\n", {.standardised = {"x"}, .encoding = data::csv_encoding{}}),
                 ".encoding has no column \"x\""));
  data::csv_encoding const twice{.columns = {{.name = "x", .categories = {"1", "2", "1"}}}};
  CHECK(contains(t.refusal("x,y\n1,1\n", {.categories = {"x"}, .encoding = twice}),
                 ".encoding names the category \"1\" of column \"x\" twice"));
  CHECK(sentence_of([] { data::detail::expect_distinct("x", 1 << 24, dtype::f32); }) == "");
  CHECK(sentence_of([] { data::detail::expect_distinct("x", 1 << 25, dtype::i32); }) == "");
  CHECK(contains(sentence_of([] { data::detail::expect_distinct("x", (1 << 24) + 1, dtype::f32); }),
                 "column \"x\" has more than 2^24 categories, which f32 cannot tell apart; make it i32"));
  CHECK(contains(t.refusal("x,y\n1e300,1\n-1e300,2\n", {.standardised = {"x"}}), "too large to be standardised"));
  write(t.here / "a.csv", "x,y\n1,2\n");
  write(t.here / "b.csv", "y,x\n1,2\n");
  CHECK(contains(
      sentence_of([&] {
        data::csv const both{.files = {t.here / "a.csv", t.here / "b.csv"}, .features = {"x"}, .targets = {"y"}};
        static_cast<void>(both.open());
      }),
      "b.csv: byte 0: trireme::data::csv: the columns are \"y\", \"x\", but those of the first file are"));
  write(t.here / "bad.json", R"({"columns": [{"name": "x", "mean": 1, "deviation": 0}]})");
  CHECK(contains(sentence_of([&] { static_cast<void>(data::csv_encoding::read(t.here / "bad.json")); }),
                 "the deviation must be above 0"));
}

TEST_CASE("a table of several blocks is read, and a file that changes is noticed", "[data][csv]") {
  scratch const here;
  auto const path = here / "t.csv";
  {
    std::ofstream to(path, std::ios::binary);
    to << "words,x,y\n";
    for (int i = 0; i < 3000; ++i) {
      // Some records are longer than a block of 1 MiB.
      to << '"' << std::string(i == 1500 ? 3 << 20 : i % 1000, 'w') << "\n\"," << i << "," << 2 * i << "\n";
    }
  }
  data::csv const from{.files = path, .features = {"x"}, .targets = {"y"}};
  auto const samples = from.open();
  REQUIRE(samples.size() == 3000);
  std::vector<float> in(4), out(4);
  samples.read(std::vector<std::int64_t>{2999, 0, 1500, 1501}, in.data(), out.data());
  CHECK(in == std::vector<float>{2999, 0, 1500, 1501});
  CHECK(out == std::vector<float>{5998, 0, 3000, 3002});
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(14) << "?";
  CHECK(contains(sentence_of([&] { samples.read(std::vector<std::int64_t>{0}, in.data(), out.data()); }),
                 "line 2, sample 0, column \"x\": \"?\" is not a finite number"));
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out).seekp(13) << "\n";
  CHECK(contains(sentence_of([&] { samples.read(std::vector<std::int64_t>{0}, in.data(), out.data()); }),
                 "sample 0 has changed since the file was opened"));
  std::filesystem::resize_file(path, 1000);
  CHECK(contains(sentence_of<io_error>([&] { samples.read(std::vector<std::int64_t>{2999}, in.data(), out.data()); }),
                 "is gone; restore the file"));
}
