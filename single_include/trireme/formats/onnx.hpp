// Trireme 0.1.0: trireme/formats/onnx.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: a06e0218be04e1d910eb14afbcfab56c49080f7c44be26edaef8e977ff82c078
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/onnx.hpp
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// ONNX: graphs of operators, for onnxruntime and its like. nn/onnx.hpp makes the graph of a model.
namespace trireme::formats::onnx {

/// The type of a value's elements. The values are the format's.
enum class element : std::int32_t { f32 = 1, u8 = 2, i32 = 6, i64 = 7, boolean = 9 };

/// What a node's attribute may be, and the named attributes of one.
using attribute = std::variant<std::int64_t, float, std::string, std::vector<std::int64_t>>;
using attributes = std::vector<std::pair<std::string, attribute>>;

struct node {
  std::string operation;
  std::vector<std::string> inputs;  ///< names of values; "": one that is left out, as in `outputs`
  std::vector<std::string> outputs;
  onnx::attributes attributes{};
  std::string domain{};  ///< of an operator that is not a standard one
};

/// An input or output of a graph. A dimension is a size, or the name of one that each call may choose.
struct value_info {
  std::string name;
  element type = element::f32;
  std::vector<std::variant<std::int64_t, std::string>> extents;
};

/// Numbers that the graph itself has, in its file.
struct constant {
  std::string name;
  std::variant<std::vector<float>, std::vector<std::int64_t>> numbers;
  shape extents;
};

/// Numbers that writer::write() is given, F32 or bytes: weights.
struct weight {
  std::string name;
  shape extents;
  element type = element::f32;
  std::string source{};  ///< the parameter that it is made of, if it is not one itself: its blocks, or their scales,
  bool turned = false;   ///< and whether that is (inputs, outputs), not (outputs, inputs)
};

/// A graph, in the order in which it is computed. add() and constant_of() name the values that they make.
struct graph {
  std::string name;
  std::vector<node> nodes;
  std::vector<constant> constants;
  std::vector<weight> weights;
  std::vector<value_info> inputs;
  std::vector<value_info> outputs;
  std::int64_t opset = 18;  ///< version of the standard operators; of others it is 1
  std::int64_t ir = 8;      ///< version of the format

  /// Adds a node with one result, and returns the result's name.
  std::string add(std::string operation, std::vector<std::string> from, onnx::attributes how = {});
  /// The same with several results.
  std::vector<std::string> add_many(std::string operation, std::vector<std::string> from, std::size_t results,
                                    onnx::attributes how = {});
  /// Adds a node whose result has a name of its own, an output's for instance.
  void add_named(std::string result, std::string operation, std::vector<std::string> from, onnx::attributes how = {}) {
    nodes.push_back({std::move(operation), std::move(from), {std::move(result)}, std::move(how)});
  }
  /// The name of a constant; the same numbers are one constant.
  std::string constant_of(float number);
  std::string constant_of(std::int64_t number);                    ///< without dimensions
  std::string constant_of(std::vector<std::int64_t> const& list);  ///< of one dimension
  std::string constant_of(std::vector<float> numbers, shape extents);

 private:
  std::string constant_named(std::variant<std::vector<float>, std::vector<std::int64_t>> numbers, shape extents);
};

struct writer_options {
  std::uint64_t most_inline = std::uint64_t{1} << 30;  ///< bytes of weights that the file itself has room for
};

/// Writes a graph: it is declared first, then the weights' numbers follow in its order, in pieces of any size.
///
/// Readers take files of less than 2 GiB. If weights have more than `most_inline` bytes they lie in a second file,
/// PATH.safetensors, which the first one names. It is a file of its own right: any reader of safetensors has the
/// weights.
///
/// Memory is one piece, and the graph. finish() gives the files their names when they are complete and on the device
/// (file_set): the data first. A writer that is destroyed earlier leaves no file.
///
/// Errors   io_error; config_error for two values of one name, for more numbers than declared or of another type, for
///          finish() before all are written, and for a graph that is too large without its weights.
class writer {
 public:
  writer(std::string const& path, graph const& what, writer_options const& options = {},
         file_system& files = real_files());

  /// Appends numbers of the current weight, or where it is of bytes those.
  void write(std::span<float const> values);
  void write(std::span<std::byte const> bytes);
  void finish();
  /// The length of the finished files together.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Whether there is a second file.
  [[nodiscard]] bool has_data_file() const noexcept { return data_.has_value(); }

 private:
  void begin_weights();
  template <class T>
  void append(std::span<T const> values, element type);

  std::string path_;
  std::vector<weight> weights_;
  std::vector<std::string> heads_;  // what stands before the numbers of each weight
  std::size_t current_ = 0;         // of weights_
  std::int64_t written_ = 0;        // numbers of it
  std::uint64_t file_bytes_ = 0;
  std::string converted_;
  atomic_file file_;
  std::optional<safetensors::writer> data_;
};

}  // namespace trireme::formats::onnx

#ifndef TRIREME_FORMATS_ONNX_IPP_INCLUDED
#define TRIREME_FORMATS_ONNX_IPP_INCLUDED

// ---- trireme/formats/onnx.ipp
#include <algorithm>
#include <bit>
#include <set>

#ifndef TRIREME_FORMATS_DETAIL_PROTOBUF_INCLUDED
#define TRIREME_FORMATS_DETAIL_PROTOBUF_INCLUDED

// ---- trireme/formats/detail/protobuf.hpp
/// Protocol buffers: the fields of a message, one by one. TensorBoard's events and ONNX are such messages.
namespace trireme::formats::protobuf {

/// No reader takes a message of this size: lengths are 32-bit signed integers in theirs.
inline constexpr std::uint64_t message_limit = std::uint64_t{1} << 31;

enum class wire : std::uint32_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class Integer>
void append_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}
template <class Integer>
Integer little_endian(std::span<std::byte const> from) noexcept {
  Integer out = 0;
  for (std::size_t i = 0; i < sizeof out; ++i)
    out |= static_cast<Integer>(std::to_integer<Integer>(from[i]) << (8 * i));
  return out;
}

inline void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
inline void append_key(std::string& out, std::uint32_t number, wire kind) {
  append_varint(out, number << 3 | static_cast<std::uint32_t>(kind));
}
/// The beginning of a field of bytes, which follow: a message that does not fit into memory is written piece by piece.
inline void append_length(std::string& out, std::uint32_t number, std::uint64_t bytes) {
  append_key(out, number, wire::bytes);
  append_varint(out, bytes);
}
inline void append_bytes(std::string& out, std::uint32_t number, std::string_view content) {
  append_length(out, number, content.size());
  out += content;
}
/// A field of an integer; negative ones take ten bytes, as the format has it.
inline void append_integer(std::string& out, std::uint32_t number, std::int64_t value) {
  append_key(out, number, wire::varint);
  append_varint(out, static_cast<std::uint64_t>(value));
}
inline void append_float(std::string& out, std::uint32_t number, float value) {
  append_key(out, number, wire::fixed32);
  append_little_endian(out, std::bit_cast<std::uint32_t>(value));
}

/// Reads the fields of a message one by one.
class message_reader {
 public:
  struct message_field {
    std::uint32_t number = 0;
    wire kind = wire::varint;
    std::uint64_t value = 0;             // of varint, fixed64, fixed32
    std::span<std::byte const> content;  // of bytes
    std::uint64_t offset = 0;
  };

  message_reader(std::span<std::byte const> bytes, std::string const& path, std::uint64_t offset)
      : left_(bytes), path_(path), offset_(offset) {}

  [[nodiscard]] bool next(message_field& out) {
    if (left_.empty()) return false;
    auto const key = read_varint();
    out = {};
    out.number = static_cast<std::uint32_t>(key >> 3);
    out.kind = static_cast<wire>(key & 7);
    if (key >> 32 != 0 || out.number == 0) fail("a field without a number");
    switch (out.kind) {
      case wire::varint:
        out.value = read_varint();
        break;
      case wire::fixed64:
        out.value = little_endian<std::uint64_t>(take(8));
        break;
      case wire::fixed32:
        out.value = little_endian<std::uint32_t>(take(4));
        break;
      case wire::bytes: {
        auto const size = read_varint();
        out.offset = offset_;
        out.content = take(size);
        break;
      }
      default:
        fail("a field of unknown wire type");
    }
    return true;
  }
  [[noreturn]] void fail(std::string_view reason) const { throw format_error(path_, offset_, reason); }

 private:
  [[nodiscard]] std::span<std::byte const> take(std::uint64_t size) {
    if (size > left_.size()) fail("a field ends beyond its message");
    auto const out = left_.first(size);
    left_ = left_.subspan(out.size());
    offset_ += size;
    return out;
  }
  [[nodiscard]] std::uint64_t read_varint() {
    std::uint64_t out = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      auto const byte = std::to_integer<std::uint64_t>(take(1)[0]);
      if (shift == 63 && byte > 1) break;
      out |= (byte & 0x7f) << shift;
      if (byte < 0x80) return out;
    }
    fail("an integer of more than 64 bits");
  }

  std::span<std::byte const> left_;
  std::string const& path_;
  std::uint64_t offset_;
};

inline std::string text_of(std::span<std::byte const> content) {
  return {reinterpret_cast<char const*>(content.data()), content.size()};
}

/// Checks that a field has the required type. Unknown fields are skipped; known ones of another type are an error.
inline bool is(message_reader const& reader, message_reader::message_field const& it, std::uint32_t number, wire kind) {
  if (it.number != number) return false;
  if (it.kind != kind) reader.fail("a field of the wrong wire type");
  return true;
}

}  // namespace trireme::formats::protobuf

#endif  // TRIREME_FORMATS_DETAIL_PROTOBUF_INCLUDED

// ---- trireme/formats/onnx.ipp (goes on)
namespace trireme::formats::onnx {

namespace detail {

// Field numbers of onnx/onnx.proto, and the numbers of its types of attributes.
namespace field {
inline constexpr std::uint32_t model_ir = 1, model_producer = 2, model_graph = 7, model_opset = 8;
inline constexpr std::uint32_t opset_domain = 1, opset_version = 2;
inline constexpr std::uint32_t graph_node = 1, graph_name = 2, graph_constant = 5, graph_input = 11, graph_output = 12;
inline constexpr std::uint32_t node_input = 1, node_output = 2, node_name = 3, node_operation = 4, node_attribute = 5,
                               node_domain = 7;
inline constexpr std::uint32_t attribute_name = 1, attribute_float = 2, attribute_integer = 3, attribute_text = 4,
                               attribute_integers = 8, attribute_type = 20;
inline constexpr std::uint32_t tensor_extent = 1, tensor_type = 2, tensor_name = 8, tensor_bytes = 9,
                               tensor_external = 13, tensor_place = 14;
inline constexpr std::uint32_t pair_key = 1, pair_value = 2;
inline constexpr std::uint32_t value_name = 1, value_type = 2, type_tensor = 1, type_element = 1, type_shape = 2,
                               shape_dimension = 1, dimension_size = 1, dimension_name = 2;
}  // namespace field

[[nodiscard]] TRIREME_BODY std::string print(std::string const& name, attribute const& value) {
  std::string out;
  protobuf::append_bytes(out, field::attribute_name, name);
  if (auto const* const one = std::get_if<std::int64_t>(&value)) {
    protobuf::append_integer(out, field::attribute_integer, *one);
    protobuf::append_integer(out, field::attribute_type, 2);
  } else if (auto const* const number = std::get_if<float>(&value)) {
    protobuf::append_float(out, field::attribute_float, *number);
    protobuf::append_integer(out, field::attribute_type, 1);
  } else if (auto const* const words = std::get_if<std::string>(&value)) {
    protobuf::append_bytes(out, field::attribute_text, *words);
    protobuf::append_integer(out, field::attribute_type, 3);
  } else {
    for (auto const each : std::get<std::vector<std::int64_t>>(value))
      protobuf::append_integer(out, field::attribute_integers, each);
    protobuf::append_integer(out, field::attribute_type, 7);
  }
  return out;
}

[[nodiscard]] TRIREME_BODY std::string print(node const& what, std::size_t index) {
  std::string out;
  for (auto const& each : what.inputs) protobuf::append_bytes(out, field::node_input, each);
  for (auto const& each : what.outputs) protobuf::append_bytes(out, field::node_output, each);
  protobuf::append_bytes(out, field::node_name, text(what.operation, "_", index));
  protobuf::append_bytes(out, field::node_operation, what.operation);
  for (auto const& [name, value] : what.attributes)
    protobuf::append_bytes(out, field::node_attribute, print(name, value));
  if (!what.domain.empty()) protobuf::append_bytes(out, field::node_domain, what.domain);
  return out;
}

[[nodiscard]] TRIREME_BODY std::string print(value_info const& what) {
  std::string dimensions;
  for (auto const& each : what.extents) {
    std::string dimension;
    if (auto const* const size = std::get_if<std::int64_t>(&each)) {
      protobuf::append_integer(dimension, field::dimension_size, *size);
    } else {
      protobuf::append_bytes(dimension, field::dimension_name, std::get<std::string>(each));
    }
    protobuf::append_bytes(dimensions, field::shape_dimension, dimension);
  }
  std::string tensor, type, out;
  protobuf::append_integer(tensor, field::type_element, static_cast<std::int64_t>(what.type));
  protobuf::append_bytes(tensor, field::type_shape, dimensions);
  protobuf::append_bytes(type, field::type_tensor, tensor);
  protobuf::append_bytes(out, field::value_name, what.name);
  protobuf::append_bytes(out, field::value_type, type);
  return out;
}

/// A tensor without its numbers.
[[nodiscard]] TRIREME_BODY std::string tensor_head(std::string const& name, element type, shape const& extents) {
  std::string out;
  for (int i = 0; i < extents.rank(); ++i) protobuf::append_integer(out, field::tensor_extent, extents[i]);
  protobuf::append_integer(out, field::tensor_type, static_cast<std::int64_t>(type));
  protobuf::append_bytes(out, field::tensor_name, name);
  return out;
}

[[nodiscard]] TRIREME_BODY std::string print(constant const& what) {
  std::string bytes;
  if (auto const* const floats = std::get_if<std::vector<float>>(&what.numbers)) {
    for (auto const each : *floats) protobuf::append_little_endian(bytes, std::bit_cast<std::uint32_t>(each));
    auto out = tensor_head(what.name, element::f32, what.extents);
    protobuf::append_bytes(out, field::tensor_bytes, bytes);
    return out;
  }
  for (auto const each : std::get<std::vector<std::int64_t>>(what.numbers))
    protobuf::append_little_endian(bytes, static_cast<std::uint64_t>(each));
  auto out = tensor_head(what.name, element::i64, what.extents);
  protobuf::append_bytes(out, field::tensor_bytes, bytes);
  return out;
}

[[nodiscard]] inline std::uint64_t bytes_of(weight const& what) {
  return static_cast<std::uint64_t>(what.extents.size()) * (what.type == element::u8 ? 1 : sizeof(float));
}

TRIREME_BODY void expect_names(graph const& what) {
  std::set<std::string_view> names;
  auto const expect = [&](std::string const& name) {
    if (!names.insert(name).second)
      throw config_error(text("trireme::formats::onnx: two values are named \"", name, "\"; give each its own name"));
  };
  for (auto const& each : what.inputs) expect(each.name);
  for (auto const& each : what.constants) expect(each.name);
  for (auto const& each : what.weights) expect(each.name);
  for (auto const& each : what.nodes) {
    for (auto const& name : each.outputs) {
      if (!name.empty()) expect(name);
    }
  }
}

}  // namespace detail

TRIREME_BODY std::vector<std::string> graph::add_many(std::string operation, std::vector<std::string> from,
                                                      std::size_t results, onnx::attributes how) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < results; ++i) {
    auto const end = results > 1 ? text(".", i) : std::string();
    out.push_back(text("/", nodes.size(), "/", operation, end));
  }
  nodes.push_back({std::move(operation), std::move(from), out, std::move(how)});
  return out;
}
TRIREME_BODY std::string graph::add(std::string operation, std::vector<std::string> from, onnx::attributes how) {
  return add_many(std::move(operation), std::move(from), 1, std::move(how)).front();
}

TRIREME_BODY std::string graph::constant_named(std::variant<std::vector<float>, std::vector<std::int64_t>> numbers,
                                               shape extents) {
  for (auto const& each : constants) {
    if (each.extents == extents && each.numbers == numbers) return each.name;
  }
  constants.push_back({text("/constant/", constants.size()), std::move(numbers), extents});
  return constants.back().name;
}
TRIREME_BODY std::string graph::constant_of(float number) { return constant_named(std::vector{number}, {}); }
TRIREME_BODY std::string graph::constant_of(std::int64_t number) { return constant_named(std::vector{number}, {}); }
TRIREME_BODY std::string graph::constant_of(std::vector<std::int64_t> const& list) {
  return constant_named(list, {static_cast<std::int64_t>(list.size())});
}
TRIREME_BODY std::string graph::constant_of(std::vector<float> numbers, shape extents) {
  return constant_named(std::move(numbers), extents);
}

TRIREME_BODY writer::writer(std::string const& path, graph const& what, writer_options const& options,
                            file_system& files)
    : path_(path), weights_(what.weights), file_((detail::expect_names(what), path), files) {
  using namespace detail;
  std::string body;
  for (std::size_t i = 0; i < what.nodes.size(); ++i)
    protobuf::append_bytes(body, field::graph_node, print(what.nodes[i], i));
  protobuf::append_bytes(body, field::graph_name, what.name);
  for (auto const& each : what.constants) protobuf::append_bytes(body, field::graph_constant, print(each));
  for (auto const& each : what.inputs) protobuf::append_bytes(body, field::graph_input, print(each));
  for (auto const& each : what.outputs) protobuf::append_bytes(body, field::graph_output, print(each));

  std::uint64_t all = 0;
  for (auto const& each : weights_) all += bytes_of(each);
  bool const apart = all > options.most_inline || all + body.size() + weights_.size() * 512 >= protobuf::message_limit;
  std::uint64_t offset = 0;
  if (apart) {
    std::vector<safetensors::entry> entries;
    for (auto const& each : weights_)
      entries.push_back({each.name, each.type == element::u8 ? dtype::u8 : dtype::f32, each.extents});
    data_.emplace(path + ".safetensors", std::move(entries), safetensors::metadata{{"writer", "trireme"}},
                  safetensors::writer_options{.files = &files});
    offset = data_->file_bytes() - all;
  }
  std::uint64_t of_weights = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    auto const& each = weights_[i];
    auto tensor = tensor_head(each.name, each.type, each.extents);
    std::string head;
    if (apart) {
      auto const entry = [&](std::string_view key, std::string_view value) {
        std::string pair;
        protobuf::append_bytes(pair, field::pair_key, key);
        protobuf::append_bytes(pair, field::pair_value, value);
        protobuf::append_bytes(tensor, field::tensor_external, pair);
      };
      entry("location", name_of(path) + ".safetensors");
      entry("offset", text(offset + data_->entries()[i].begin));
      entry("length", text(bytes_of(each)));
      protobuf::append_integer(tensor, field::tensor_place, 1);
      protobuf::append_bytes(body, field::graph_constant, tensor);
      continue;
    }
    protobuf::append_length(tensor, field::tensor_bytes, bytes_of(each));
    protobuf::append_length(head, field::graph_constant, tensor.size() + bytes_of(each));
    head += tensor;
    of_weights += head.size() + bytes_of(each);
    heads_.push_back(std::move(head));
  }
  if (body.size() + of_weights + 4096 >= protobuf::message_limit) {
    throw config_error(text("trireme::formats::onnx: ", path, " would have ", body.size() + of_weights,
                            " bytes without its weights, and readers take less than 2 GiB"));
  }
  std::string start;
  protobuf::append_integer(start, field::model_ir, what.ir);
  protobuf::append_bytes(start, field::model_producer, "trireme");
  std::set<std::string_view> domains{""};
  for (auto const& each : what.nodes) domains.insert(each.domain);
  for (auto const domain : domains) {
    std::string opset;
    if (!domain.empty()) protobuf::append_bytes(opset, field::opset_domain, domain);
    protobuf::append_integer(opset, field::opset_version, domain.empty() ? what.opset : 1);
    protobuf::append_bytes(start, field::model_opset, opset);
  }
  protobuf::append_length(start, field::model_graph, body.size() + of_weights);
  file_.write(std::as_bytes(std::span(start)));
  file_.write(std::as_bytes(std::span(body)));
  file_bytes_ = start.size() + body.size() + of_weights + (data_ ? data_->file_bytes() : 0);
  begin_weights();
}

/// Goes on to the first weight that is not complete.
TRIREME_BODY void writer::begin_weights() {
  for (;; ++current_, written_ = 0) {
    if (current_ == weights_.size()) return;
    if (written_ == 0 && !data_) file_.write(std::as_bytes(std::span(heads_[current_])));
    if (written_ < weights_[current_].extents.size()) return;
  }
}

template <class T>
void writer::append(std::span<T const> values, element type) {
  constexpr std::size_t most = std::size_t{1} << 16;
  while (!values.empty()) {
    if (current_ == weights_.size()) {
      throw config_error(text("trireme::formats::onnx: ", path_, ": ", how_many(values.size(), "number"),
                              " more than its weights have"));
    }
    if (weights_[current_].type != type) {
      throw config_error(text("trireme::formats::onnx: ", path_, ": the weight \"", weights_[current_].name,
                              "\" is of ", type == element::u8 ? "floats, not bytes" : "bytes, not floats"));
    }
    auto const left = static_cast<std::size_t>(weights_[current_].extents.size() - written_);
    auto const part = std::min({values.size(), left, most});
    auto bytes = std::as_bytes(values.first(part));
    if constexpr (std::endian::native != std::endian::little && sizeof(T) > 1) {
      converted_.clear();
      for (auto const each : values.first(part))
        protobuf::append_little_endian(converted_, std::bit_cast<std::uint32_t>(each));
      bytes = std::as_bytes(std::span(converted_));
    }
    if (data_) {
      data_->write(bytes);
    } else {
      file_.write(bytes);
    }
    written_ += static_cast<std::int64_t>(part);
    values = values.subspan(part);
    if (written_ == weights_[current_].extents.size()) {
      ++current_;
      written_ = 0;
      begin_weights();
    }
  }
}
TRIREME_BODY void writer::write(std::span<float const> values) { append(values, element::f32); }
TRIREME_BODY void writer::write(std::span<std::byte const> bytes) { append(bytes, element::u8); }

TRIREME_BODY void writer::finish() {
  if (current_ < weights_.size()) {
    throw config_error(text("trireme::formats::onnx: ", path_, ": the weight \"", weights_[current_].name, "\" has ",
                            written_, " of its ", how_many(weights_[current_].extents.size(), "number")));
  }
  file_set together;
  if (data_) together.add(data_->content());
  together.add(std::move(file_));
  together.appear();
}

}  // namespace trireme::formats::onnx

#endif  // TRIREME_FORMATS_ONNX_IPP_INCLUDED
