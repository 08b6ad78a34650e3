// test-sanitize: none
#include "trireme/parallel/bucket_plan.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "../catch.hpp"

using namespace trireme;
using parallel::block_elements;
using parallel::bucket_plan;

namespace {

std::vector<parameter_info> const model{{"table", {100, 8}},    {"weight.0", {40, 40}}, {"bias.0", {40}},
                                        {"weight.1", {900, 4}}, {"bias.1", {3}},        {"table", {100, 8}}};

std::vector<std::string> names_in(bucket_plan const& plan, std::size_t bucket) {
  std::vector<std::string> names;
  for (int const entry : plan.buckets()[bucket].entries) names.push_back(plan.at(entry).info.name);
  return names;
}

}  // namespace

TEST_CASE("buckets fill from the last parameter to the first, and a tied tensor is alone", "[parallel][bucket_plan]") {
  bucket_plan const plan(model, 5000, 2);
  REQUIRE(plan.entries().size() == 5);
  REQUIRE(plan.buckets().size() == 3);
  CHECK(names_in(plan, 0) == std::vector<std::string>{"bias.1", "weight.1", "bias.0"});
  CHECK(names_in(plan, 1) == std::vector<std::string>{"weight.0"});
  CHECK(names_in(plan, 2) == std::vector<std::string>{"table"});
  CHECK(plan.at(0).uses == std::vector<int>{0, 5});
  CHECK(plan.entry_of_use(5) == plan.entry_of_use(0));
  CHECK(plan.at(plan.entry_of_use(3)).info.name == "weight.1");
}

TEST_CASE("buckets are whole blocks a rank, and tensors in them start at cache lines", "[parallel][bucket_plan]") {
  for (int const ranks : {1, 2, 3, 7}) {
    bucket_plan const plan(model, 4000, ranks);
    for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
      CHECK(plan.buckets()[b].elements % (ranks * block_elements) == 0);
      CHECK(plan.slice_elements(static_cast<int>(b)) * ranks == plan.buckets()[b].elements);
    }
    for (auto const& entry : plan.entries()) CHECK(entry.offset % 16 == 0);
  }
}

TEST_CASE("the contents of buckets do not depend on the number of ranks", "[parallel][bucket_plan]") {
  bucket_plan const one(model, 4000, 1);
  bucket_plan const many(model, 4000, 5);
  REQUIRE(one.buckets().size() == many.buckets().size());
  for (std::size_t e = 0; e < one.entries().size(); ++e) {
    CHECK(one.entries()[e].bucket == many.entries()[e].bucket);
    CHECK(one.entries()[e].offset == many.entries()[e].offset);
  }
}

TEST_CASE("the pieces of all ranks' slices cover every element of every tensor once", "[parallel][bucket_plan]") {
  for (int const ranks : {1, 2, 3, 4}) {
    for (std::int64_t const bucket_elements : {1, 500, 4000, 1000000}) {
      bucket_plan const plan(model, bucket_elements, ranks);
      std::vector<std::vector<int>> covered;
      for (auto const& entry : plan.entries()) covered.emplace_back(static_cast<std::size_t>(entry.size()));
      for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
        for (int rank = 0; rank < ranks; ++rank) {
          auto const n = plan.slice_elements(b);
          for (auto const range : plan.tensor_ranges(b, rank * n, n)) {
            CHECK(range.in_bucket - range.in_entry == plan.at(range.entry).offset);
            for (std::int64_t i = 0; i < range.count; ++i) {
              ++covered[static_cast<std::size_t>(range.entry)][static_cast<std::size_t>(range.in_entry + i)];
            }
          }
        }
      }
      bool once = true;
      for (auto const& counts : covered) {
        for (int const count : counts) once = once && count == 1;
      }
      CHECK(once);
    }
  }
}

TEST_CASE("a tied tensor of two shapes and a model without parameters are refused", "[parallel][bucket_plan]") {
  std::vector<parameter_info> const torn{{"table", {4, 2}}, {"table", {2, 4}}};
  CHECK_THROWS_WITH(bucket_plan(torn, 100, 1),
                    "trireme::exchange: parameter \"table\" is used with shapes (4, 2) and (2, "
                    "4); all uses of a tied tensor need one shape");
  CHECK_THROWS_WITH(bucket_plan({}, 100, 1),
                    "trireme::exchange: the model has no parameters; an exchange needs at least one");
}

TEST_CASE("no slice cuts a tensor if whole tensors are required", "[parallel][bucket_plan]") {
  for (int const ranks : {1, 2, 3, 4, 7}) {
    for (std::int64_t const bucket_elements : {1, 500, 4000, 1000000}) {
      bucket_plan const plan(model, bucket_elements, ranks, {}, {.whole_tensors = true, .frozen = {}});
      std::size_t entries = 0;
      for (std::size_t b = 0; b < plan.buckets().size(); ++b) {
        auto const& bucket = plan.buckets()[b];
        CHECK(bucket.elements % (ranks * block_elements) == 0);
        CHECK(std::ranges::is_sorted(bucket.entries, {}, [&](int e) { return plan.at(e).offset; }));
        std::int64_t end = 0;
        for (int const e : bucket.entries) {
          auto const& entry = plan.at(e);
          CHECK(entry.bucket == static_cast<int>(b));
          CHECK(entry.offset >= end);
          CHECK(entry.offset % 16 == 0);
          bool const in_a_block = entry.offset / block_elements == (entry.offset + entry.size() - 1) / block_elements;
          CHECK((in_a_block || entry.offset % block_elements == 0));
          end = entry.offset + entry.size();
          auto const n = plan.slice_elements(static_cast<int>(b));
          CHECK(entry.offset / n == (end - 1) / n);
        }
        CHECK(end <= bucket.elements);
        entries += bucket.entries.size();
      }
      CHECK(entries == plan.entries().size());
    }
  }
}

TEST_CASE("whole tensors are distributed evenly, within a bucket and over all buckets", "[parallel][bucket_plan]") {
  std::vector<parameter_info> blocks;
  for (int i = 0; i < 12; ++i) {
    auto const name = [&](char const* part) { return text(i, part); };
    blocks.push_back({name(".qkv"), {64, 192}});
    blocks.push_back({name(".out"), {64, 64}});
    blocks.push_back({name(".up"), {64, 256}});
    blocks.push_back({name(".down"), {256, 64}});
  }
  auto const most_and_padding = [&](std::int64_t bucket_elements) {
    bucket_plan const plan(blocks, bucket_elements, 4, {}, {.whole_tensors = true, .frozen = {}});
    std::vector<std::int64_t> load(4);
    std::int64_t tensors = 0, memory = 0;
    for (auto const& entry : plan.entries()) {
      load[static_cast<std::size_t>(entry.offset / plan.slice_elements(entry.bucket))] += entry.size();
      tensors += entry.size();
    }
    for (auto const& bucket : plan.buckets()) memory += bucket.elements;
    return std::pair{static_cast<double>(std::ranges::max(load)) * 4 / static_cast<double>(tensors),
                     static_cast<double>(memory) / static_cast<double>(tensors)};
  };
  auto const [most, padded] = most_and_padding(1 << 30);
  CHECK(most < 1.02);
  CHECK(padded < 1.02);
  CHECK(most_and_padding(1).first < 1.1);  // buckets are filled on until each rank has something to do
  CHECK(most_and_padding(1).second < 1.4);
}

TEST_CASE("frozen parameters have buckets of their own after those of trained ones", "[parallel][bucket_plan]") {
  bucket_requirements const requirements{
      .whole_tensors = false, .frozen = [](parameter_info const& info) { return info.name.ends_with(".0"); }};
  bucket_plan const plan(model, 5000, 2, {}, requirements);
  REQUIRE(plan.buckets().size() == 3);
  CHECK(plan.trained_buckets() == 2);
  CHECK(names_in(plan, 0) == std::vector<std::string>{"bias.1", "weight.1"});
  CHECK(names_in(plan, 1) == std::vector<std::string>{"table"});
  CHECK(names_in(plan, 2) == std::vector<std::string>{"bias.0", "weight.0"});
  CHECK(plan.trains(0));
  CHECK(!plan.trains(1));
  CHECK(bucket_plan(model, 5000, 2).trained_buckets() == 3);
}

TEST_CASE("fragments are stretches of about equal size, and a tied tensor's follows from its name",
          "[parallel][bucket_plan]") {
  std::vector<parameter_info> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back({text("block.", i), {64, 64}});
  auto tied = parameter_info{"table", {128, 64}};
  tied.tied = true;
  auto const fragments_of = [](std::vector<parameter_info> const& uses) {
    return bucket_plan(uses, 1 << 20, 1, {}, {.whole_tensors = false, .frozen = {}, .fragments = 4});
  };
  auto const plain = fragments_of(blocks);
  REQUIRE(plain.buckets().size() == 4);
  for (auto const& each : plain.buckets()) CHECK(each.elements == 6 * 64 * 64);
  CHECK(plain.at(plain.buckets().front().entries.front()).info.name == "block.23");

  blocks.push_back(tied);
  auto const with = fragments_of(blocks);
  auto const alone = fragments_of({tied, {"other", {2, 2}}});
  std::vector<std::int64_t> sizes(4);
  int fragment = -1;
  for (auto const& each : with.entries()) {
    sizes[static_cast<std::size_t>(each.fragment)] += each.size();
    if (each.info.name == "table") fragment = each.fragment;
  }
  for (auto const& each : alone.entries()) {
    if (each.info.name == "table") CHECK(each.fragment == fragment);
  }
  for (auto const each : sizes) CHECK(std::abs(each - 26 * 64 * 64 / 4) <= 64 * 64);
}

TEST_CASE("beside a compressor, copies and parts of tensors are in different buckets", "[parallel][bucket_plan]") {
  auto const part = shard_of({"weight", {8, 6}}, 1, {0, 3});
  std::vector<parameter_info> const uses{{"before", {6}}, part, {"bias", {6}}, {"norm", {6}}};
  CHECK(bucket_plan(uses, 1000, 2).buckets().size() == 1);
  auto const plan = bucket_plan(uses, 1000, 2, {}, {.whole_tensors = false, .frozen = {}, .copies_apart = true});
  REQUIRE(plan.buckets().size() == 3);
  CHECK(plan.buckets()[0].entries == std::vector<int>{3, 2});
}
