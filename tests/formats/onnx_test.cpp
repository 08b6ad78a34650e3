#include "trireme/formats/onnx.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/python.hpp"
#include "../support/sentence.hpp"
#include "scratch.hpp"
#include "trireme/formats/detail/protobuf.hpp"
#include "trireme/formats/safetensors.hpp"

// What onnxruntime computes of a model's graph is compared in tests/nn/onnx_test.cpp.

namespace {

namespace onnx = trireme::formats::onnx;
namespace protobuf = trireme::formats::protobuf;
using trireme::config_error;

/// y = x w + 1, with a weight that has no numbers, too.
onnx::graph line() {
  onnx::graph out;
  out.name = "line";
  out.inputs.push_back({"x", onnx::element::f32, {std::string("rows"), std::int64_t{2}}});
  out.outputs.push_back({"y", onnx::element::f32, {std::string("rows"), std::int64_t{3}}});
  out.weights = {{"w", {2, 3}}, {"nothing", {0, 4}}, {"last", {1}}};
  auto const product = out.add("MatMul", {"x", "w"});
  out.add_named("y", "Add", {product, out.constant_of(1.0F)});
  return out;
}
std::vector<float> const numbers{0, 0.5F, 1, 1.5F, 2, -2.5F, 7};

/// How many fields of this number the first message of another number within a file has.
int count(std::string const& path, std::uint32_t within, std::uint32_t number) {
  auto const bytes = trireme::formats::read_file(path);
  protobuf::message_reader model(bytes, path, 0);
  for (protobuf::message_reader::message_field it; model.next(it);) {
    if (it.number != within) continue;
    int out = 0;
    protobuf::message_reader inner(it.content, path, it.offset);
    for (protobuf::message_reader::message_field each; inner.next(each);) out += each.number == number ? 1 : 0;
    return out;
  }
  return -1;
}

/// Leaves holes where zeros are written, which take no room on the disk.
class with_holes : public trireme::formats::file_system {
 public:
  ::ssize_t write(int descriptor, void const* from, std::size_t bytes) override {
    auto const* const first = static_cast<char const*>(from);
    if (bytes < 4096 || *first != 0 || std::memcmp(first, first + 1, bytes - 1) != 0)
      return file_system::write(descriptor, from, bytes);
    return ::lseek(descriptor, static_cast<::off_t>(bytes), SEEK_CUR) < 0 ? -1 : static_cast<::ssize_t>(bytes);
  }
};

}  // namespace

TEST_CASE("a graph is one file, or two where weights are many", "[formats][onnx]") {
  scratch dir;
  for (std::uint64_t const most : {std::uint64_t{28}, std::uint64_t{27}}) {
    auto const path = dir / std::to_string(most);
    onnx::writer to(path, line(), {.most_inline = most});
    to.write(std::span(numbers).first(4));
    to.write(std::span(numbers).subspan(4));
    to.finish();
    CHECK(to.has_data_file() == (most == 27));
    auto bytes = std::filesystem::file_size(path);
    if (most == 27) {
      trireme::formats::safetensors::reader const weights(path + ".safetensors");
      CHECK(weights.entries().size() == 3);
      std::vector<float> read(6);
      weights.read("w", 0, std::span(read));
      CHECK(std::equal(read.begin(), read.end(), numbers.begin()));
      bytes += std::filesystem::file_size(path + ".safetensors");
    }
    CHECK(to.file_bytes() == bytes);
    CHECK(count(path, 7, 1) == 2);   // nodes
    CHECK(count(path, 7, 5) == 4);   // three weights and a constant
    CHECK(count(path, 7, 11) == 1);  // inputs
  }
}

TEST_CASE("onnxruntime reads weights of more than 4 GiB", "[formats][onnx]") {
  scratch dir;
  with_holes files;
  std::int64_t const rows = (std::int64_t{1} << 24) + 1, width = 64;
  onnx::graph graph;
  graph.name = "large";
  graph.inputs.push_back({"which", onnx::element::i64, {std::string("count")}});
  graph.outputs.push_back({"y", onnx::element::f32, {std::string("count"), width}});
  graph.weights = {{"table", {rows, width}}, {"behind", {width}}};
  graph.add_named("y", "Add", {graph.add("Gather", {"table", "which"}), "behind"});
  onnx::writer to(dir / "large.onnx", graph, {}, files);
  std::vector<float> numbers(std::size_t{1} << 18);  // zeros
  for (std::int64_t left = (rows - 1) * width; left > 0;) {
    auto const some = std::min(left, static_cast<std::int64_t>(numbers.size()));
    to.write(std::span(numbers).first(static_cast<std::size_t>(some)));
    left -= some;
  }
  for (std::size_t i = 0; i < 128; ++i) numbers[i] = static_cast<float>(i) + 0.5F;  // the last row, and what is behind
  to.write(std::span(numbers).first(128));
  to.finish();
  CHECK(to.has_data_file());
  CHECK(std::filesystem::file_size(dir / "large.onnx.safetensors") > (std::uint64_t{1} << 32));
  python_ran("check_onnx_large.py", dir.path());
}

TEST_CASE("weights are floats or bytes", "[formats][onnx]") {
  scratch dir;
  auto graph = line();
  graph.weights = {{"w", {2, 3}}, {"blocks", {3}, onnx::element::u8}};
  std::array<std::byte, 3> const bytes{std::byte{1}, std::byte{2}, std::byte{255}};
  for (std::uint64_t const most : {0, 100}) {
    auto const path = dir / std::to_string(most);
    onnx::writer to(path, graph, {.most_inline = most});
    CHECK(sentence_of<config_error>([&] {
            to.write(std::span<std::byte const>(bytes));
          }).find("the weight \"w\" is of floats, not bytes") != std::string::npos);
    to.write(std::span(numbers).first(6));
    CHECK(sentence_of<config_error>([&] {
            to.write(std::span(numbers).first(1));
          }).find("\"blocks\" is of bytes, not floats") != std::string::npos);
    to.write(std::span<std::byte const>(bytes));
    to.finish();
    if (most > 0) continue;
    std::vector<std::uint8_t> read(3);
    trireme::formats::safetensors::reader(path + ".safetensors").read("blocks", 0, std::span(read));
    CHECK(read == std::vector<std::uint8_t>{1, 2, 255});
  }
}

TEST_CASE("the same numbers are one constant", "[formats][onnx]") {
  onnx::graph graph;
  CHECK(graph.constant_of(2.0F) == graph.constant_of(2.0F));
  CHECK(graph.constant_of(std::int64_t{2}) != graph.constant_of(std::vector<std::int64_t>{2}));
  CHECK(graph.constants.size() == 3);
  CHECK(graph.add_many("Split", {"x"}, 2) == std::vector<std::string>{"/0/Split.0", "/0/Split.1"});
}

TEST_CASE("a graph that is not complete leaves no file, and says why", "[formats][onnx]") {
  scratch dir;
  auto const path = dir / "graph.onnx";
  auto const said = [&](std::vector<float> const& given, onnx::graph const& what, std::uint64_t most) {
    return sentence_of<config_error>([&] {
      onnx::writer to(path, what, {.most_inline = most});
      to.write(given);
      to.finish();
    });
  };
  for (std::uint64_t const most : {0, 100}) {
    auto more = numbers;
    more.push_back(1);
    CHECK(said(more, line(), most).find("1 number more than its weights have") != std::string::npos);
    CHECK(said({1, 2}, line(), most).find("the weight \"w\" has 2 of its 6 numbers") != std::string::npos);
    auto twice = line();
    twice.weights.push_back({"x", {1}});
    CHECK(said(numbers, twice, most).find("two values are named \"x\"") != std::string::npos);
    CHECK(dir.entries() == 0);
  }
}
