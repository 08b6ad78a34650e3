#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/pattern.hpp"
#include "trireme/core/shape.hpp"

namespace trireme::nn {

/// A tensor of a model's files, and where its numbers are in the model's parameters.
///
/// Shapes   the parameter is seen as a matrix (inputs, columns), the file's tensor as (rows, inputs): a row is a column
///          of the parameter, as a product's weights are kept in files. What has one order in both has one input. A
///          parameter may be several such matrices (matrices, inputs, columns), each a tensor of its own in files.
struct file_tensor {
  /// Rows [row, row + count) of the file's tensor are columns [column, column + count) of the parameter.
  struct band {
    std::int64_t row = 0;
    std::int64_t column = 0;
    std::int64_t count = 0;
    friend bool operator==(band const&, band const&) = default;
  };

  std::string name;       ///< in files
  shape extents;          ///< in files
  std::string parameter;  ///< that has its numbers, and others' too where it has more columns than this has rows
  std::int64_t inputs = 1;
  std::int64_t columns = 1;
  std::vector<band> bands;    ///< all rows, ascending
  std::int64_t matrix = 0;    ///< which of the parameter's matrices it is,
  std::int64_t matrices = 1;  ///< of so many
  std::int64_t planes = 1;  ///< inputs are (planes, inputs / planes) in files, and the other way round in the parameter

  /// Numbers in the whole parameter.
  [[nodiscard]] std::int64_t size() const noexcept { return matrices * inputs * columns; }
  /// The input of the parameter that input i of the file's tensor is.
  [[nodiscard]] std::int64_t input(std::int64_t i) const noexcept {
    return i % (inputs / planes) * planes + i / (inputs / planes);
  }
  /// The element of the parameter that element i of the file's tensor is; both in row-major order.
  [[nodiscard]] std::int64_t place(std::int64_t i) const {
    auto const row = i / inputs;
    auto each = bands.begin();
    while (row >= each->row + each->count) ++each;
    return (matrix * inputs + input(i % inputs)) * columns + each->column + row - each->row;
  }

  friend bool operator==(file_tensor const&, file_tensor const&) = default;
};

/// What a model's files hold: Hugging Face's names and layouts.
struct file_mapping {
  std::string base;  ///< how names begin; files of a model without its head leave it out
  /// Patterns of names of tensors that files may have, and that change nothing of what this model computes.
  std::vector<std::string> ignored;
  std::vector<file_tensor> tensors{};
  std::vector<std::pair<std::string, std::string>> older{};  ///< ends of names, and what they are in older files

  /// A tensor that files may have once more under another name. Files in which the two are not the same numbers are of
  /// another model, and are refused.
  struct copy {
    std::string name;
    std::string of;      ///< a name in `tensors`
    std::string remedy;  ///< what the user may do, the end of a sentence
  };
  std::vector<copy> copies{};
  /// Patterns as of `ignored`, each of which counts only in files that have the tensor named behind it.
  std::vector<std::pair<std::string, std::string>> ignored_with{};

  /// A tensor with the numbers of a parameter in the parameter's order.
  /// @param parameter  its name, if it is another one than in files.
  void add(std::string const& name, shape const& extents, std::string const& parameter = "") {
    tensors.push_back(
        {name, extents, parameter.empty() ? name : parameter, 1, extents.size(), {{0, 0, extents.size()}}});
  }
  /// A product's weights, (outputs, inputs) in files.
  void add_transposed(std::string const& name, std::int64_t inputs, std::int64_t outputs,
                      std::string const& parameter = "") {
    tensors.push_back(
        {name, {outputs, inputs}, parameter.empty() ? name : parameter, inputs, outputs, {{0, 0, outputs}}});
  }
  /// A product's weights, (outputs, inputs) in files, and its biases.
  void add_product(std::string const& name, std::int64_t inputs, std::int64_t outputs) {
    add_transposed(name + ".weight", inputs, outputs);
    add(name + ".bias", {outputs});
  }
  /// The gains and biases of a layer norm.
  void add_norm(std::string const& name, std::int64_t channels) {
    add(name + ".weight", {channels});
    add(name + ".bias", {channels});
  }
  /// Queries, keys and values, three products in files (`folder` + "query" and so on) and one here.
  void add_attention(std::string const& folder, std::string const& parameter, std::int64_t channels) {
    auto const c = channels;
    std::int64_t column = 0;
    for (auto const* which : {"query", "key", "value"}) {
      tensors.push_back({folder + which + ".weight", {c, c}, parameter + ".weight", c, 3 * c, {{0, column, c}}});
      tensors.push_back({folder + which + ".bias", {c}, parameter + ".bias", 1, 3 * c, {{0, column, c}}});
      column += c;
    }
  }
  /// A convolution's weights, (outputs, channels, kernel, kernel) in files; in the parameter (kernel, kernel, channels,
  /// outputs).
  void add_convolution(std::string const& name, std::int64_t kernel, std::int64_t channels, std::int64_t outputs) {
    add_transposed(name, kernel * kernel * channels, outputs);
    tensors.back().extents = {outputs, channels, kernel, kernel};
    tensors.back().planes = channels;
  }
  /// Such weights of each of several experts, which are one parameter (count, inputs, outputs), `folder` + `name`: in
  /// files `folder` + number + "." + `name`.
  void add_of_each(std::string const& folder, std::int64_t count, std::string const& name, std::int64_t inputs,
                   std::int64_t outputs) {
    for (std::int64_t i = 0; i < count; ++i) {
      add_transposed(folder + std::to_string(i) + "." + name, inputs, outputs, folder + name);
      tensors.back().matrix = i;
      tensors.back().matrices = count;
    }
  }
  /// Files need no tensors of these parameters, and if they have some, of whatever shape, those are not read.
  /// @param parameters  patterns, separated by spaces (core/pattern.hpp).
  /// @return how many tensors there were.
  std::size_t leave_out(std::string_view parameters) {
    return std::erase_if(tensors, [&](file_tensor const& each) {
      if (!matches_any(parameters, each.parameter)) return false;
      ignored.push_back(each.name);
      if (each.name.starts_with(base)) ignored.push_back(each.name.substr(base.size()));
      std::erase_if(copies, [&](copy const& twice) {
        if (twice.of != each.name) return false;
        ignored.push_back(twice.name);
        return true;
      });
      return true;
    });
  }
};

}  // namespace trireme::nn
