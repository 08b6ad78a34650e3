#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/compiled.hpp"
#include "trireme/serve/openai.hpp"

/// The texts that clients of KServe's open inference protocol (version 2, as Triton has it) send and expect, without
/// HTTP: tensors in JSON, for classifiers, encoders and images. Requests that are refused throw openai::refusal.
namespace trireme::serve::kserve {

/// What a server accepts.
struct limits {
  std::size_t most_inputs = 16;
  std::size_t most_numbers = std::size_t{1} << 21;  ///< of all inputs of a request
  friend bool operator==(limits const&, limits const&) = default;
};

/// A named tensor, in row-major order. `datatype` is BOOL, INT8 to INT64, UINT8 to UINT32 (integers), FP16, FP32, FP64
/// (floats) or BYTES (texts).
struct tensor {
  std::string name{};
  std::string datatype{};
  std::vector<std::int64_t> extents{};
  std::variant<std::vector<std::int64_t>, std::vector<float>, std::vector<std::string>> data{};

  /// Numbers that the extents ask for.
  [[nodiscard]] std::int64_t size() const noexcept {
    std::int64_t out = 1;
    for (auto const each : extents) out *= each;
    return out;
  }
  /// Errors   refusal that names the tensor, if it is of another kind.
  [[nodiscard]] std::vector<std::int64_t> const& integers() const;
  [[nodiscard]] std::vector<float> const& floats() const;
  [[nodiscard]] std::vector<std::string> const& texts() const;

  friend bool operator==(tensor const&, tensor const&) = default;
};

/// A request, checked: each tensor has as many numbers as its shape asks for, one at least, each in its type's range.
struct asked {
  std::string id{};  ///< the client's, which the response repeats
  std::vector<tensor> inputs{};
  std::vector<std::string> outputs{};  ///< names of those that are wanted; empty: all

  [[nodiscard]] tensor const* find(std::string_view name) const noexcept;
  [[nodiscard]] bool wants(std::string_view output) const noexcept;
};

/// Reads the body of POST /v2/models/NAME/infer. Data may be flat or nested as the shape says; "parameters" are
/// ignored, but for binary data, which is refused.
/// Errors   refusal.
[[nodiscard]] asked parse(std::string_view body, limits const& most = {});

/// The response to it.
[[nodiscard]] std::string response(asked const& what, std::string_view model, std::vector<tensor> const& outputs);

/// What a model takes or gives; -1: any extent.
struct signature {
  std::string name{}, datatype{};
  std::vector<std::int64_t> extents{};
};
/// The answer to GET /v2/models/NAME.
[[nodiscard]] std::string metadata(std::string_view model, std::vector<signature> const& inputs,
                                   std::vector<signature> const& outputs);
/// {"error": "one sentence"}
[[nodiscard]] std::string body_of(openai::refusal const& problem);

}  // namespace trireme::serve::kserve

#ifndef TRIREME_COMPILED
#include "trireme/serve/kserve.ipp"
#endif
