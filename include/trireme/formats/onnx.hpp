#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/safetensors.hpp"

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

#ifndef TRIREME_COMPILED
#include "trireme/formats/onnx.ipp"
#endif
