#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/text.hpp"
#include "trireme/serve/kserve.hpp"

namespace trireme::serve::kserve {

namespace detail {

namespace json = formats::json;

struct integer_type {
  std::string_view name;
  std::int64_t least, most;
};
template <class T>
[[nodiscard]] constexpr integer_type range_of(std::string_view name) noexcept {
  return {name, static_cast<std::int64_t>(std::numeric_limits<T>::min()),
          static_cast<std::int64_t>(std::numeric_limits<T>::max())};
}
inline constexpr std::array integer_types{
    integer_type{"BOOL", 0, 1},        range_of<std::int8_t>("INT8"),     range_of<std::int16_t>("INT16"),
    range_of<std::int32_t>("INT32"),   range_of<std::int64_t>("INT64"),   range_of<std::uint8_t>("UINT8"),
    range_of<std::uint16_t>("UINT16"), range_of<std::uint32_t>("UINT32"),
};

class reader {
 public:
  explicit reader(limits const& most) : most_(most) {}

  [[nodiscard]] asked read(std::string_view body) {
    json::value whole;
    try {
      whole =
          json::parse(body, body_name, {.values = 2 * most_.most_numbers + 4096, .string_bytes = std::size_t{1} << 23});
    } catch (format_error const& problem) {
      throw openai::refusal(text("the body is not JSON: ", without_name(problem)));
    }
    if (!whole.is_object()) throw openai::refusal("the body is not a JSON object");
    try {
      for (auto const& [key, content] : whole.as_object()) member(key, content);
    } catch (format_error const& problem) {
      throw openai::refusal(field_.empty() ? without_name(problem) : text(field_, ": ", without_name(problem)), field_);
    }
    if (out_.inputs.empty()) throw openai::refusal("inputs: there are none; give one at least", "inputs");
    return std::move(out_);
  }

 private:
  static constexpr char const* body_name = "the request";

  [[nodiscard]] static std::string without_name(format_error const& problem) {
    return std::string(problem.what()).substr(problem.path().size() + 2);
  }
  template <class... Parts>
  [[noreturn]] void refuse(Parts const&... parts) const {
    throw openai::refusal(text(field_, ": ", parts...), field_);
  }
  void member(std::string const& key, json::value const& content) {
    field_ = key.substr(0, 80);
    if (key == "id") {
      out_.id = content.as_string();
    } else if (key == "parameters") {
      parameters(content);
    } else if (key == "inputs") {
      for (auto const& each : content.as_array()) {
        field_ = "inputs";
        if (out_.inputs.size() == most_.most_inputs) refuse("there are more than ", most_.most_inputs);
        out_.inputs.push_back(input(each));
      }
    } else if (key == "outputs") {
      for (auto const& each : content.as_array()) {
        out_.outputs.push_back(each.at("name").as_string());
        if (auto const* const more = each.find("parameters")) parameters(*more);
      }
    } else {
      refuse("this server does not know this member of a request; leave it out");
    }
  }
  void parameters(json::value const& from) const {
    for (auto const& [key, content] : from.as_object()) {
      bool const binary = key == "binary_data_size" || key == "binary_data_output" || key == "binary_data";
      if (binary && !(content.is_bool() && !content.as_bool())) refuse("there is no binary data here; send JSON");
    }
  }
  [[nodiscard]] tensor input(json::value const& from) {
    tensor out;
    out.name = from.at("name").as_string();
    field_ = out.name.substr(0, 80);
    if (out_.find(out.name) != nullptr) refuse("there are two inputs of this name");
    out.datatype = from.at("datatype").as_string();
    std::int64_t numbers = 1;
    for (auto const& each : from.at("shape").as_array()) {
      auto const extent = each.as_int64();
      auto const left = static_cast<std::int64_t>(most_.most_numbers - used_);
      if (extent < 1) refuse("the shape has an extent of ", extent, "; extents are 1 or more");
      if (extent > left / numbers) refuse("it is too large: a request has ", most_.most_numbers, " numbers at most");
      numbers *= extent;
      out.extents.push_back(extent);
    }
    used_ += static_cast<std::size_t>(numbers);
    if (auto const* const more = from.find("parameters")) parameters(*more);
    auto const* const integer = std::find_if(integer_types.begin(), integer_types.end(),
                                             [&](auto const& each) { return each.name == out.datatype; });
    auto const& data = from.at("data");
    if (integer != integer_types.end()) {
      auto& to = out.data.emplace<std::vector<std::int64_t>>();
      each_of(out, data, numbers, [&](json::value const& one) {
        auto const number = one.is_bool() ? std::int64_t{one.as_bool()} : one.as_int64();
        if (number < integer->least || number > integer->most) refuse(number, " is no ", out.datatype);
        to.push_back(number);
      });
    } else if (out.datatype == "FP32" || out.datatype == "FP16" || out.datatype == "FP64") {
      auto& to = out.data.emplace<std::vector<float>>();
      constexpr double most = std::numeric_limits<float>::max();
      each_of(out, data, numbers, [&](json::value const& one) {
        auto const number = one.as_double();
        if (!(number >= -most && number <= most)) refuse(number, " is no FP32, in which the model computes");
        to.push_back(static_cast<float>(number));
      });
    } else if (out.datatype == "BYTES") {
      auto& to = out.data.emplace<std::vector<std::string>>();
      each_of(out, data, numbers, [&](json::value const& one) { to.push_back(one.as_string()); });
    } else {
      refuse("the datatype \"", out.datatype.substr(0, 80), "\" is not known; there are BOOL, INT8 to INT64, UINT8 to ",
             "UINT32, FP16 to FP64 and BYTES");
    }
    return out;
  }
  // Calls f with each number of flat or nested arrays.
  template <class F>
  void each_of(tensor const& what, json::value const& data, std::int64_t numbers, F const& f) const {
    auto const& all = data.as_array();
    if (!all.empty() && all.front().is_array()) return nested(what, data, 0, f);
    expect_size(all, numbers);
    for (auto const& each : all) f(each);
  }
  template <class F>
  void nested(tensor const& what, json::value const& data, std::size_t axis, F const& f) const {
    if (axis == what.extents.size()) return f(data);
    auto const& all = data.as_array();
    expect_size(all, what.extents[axis]);
    for (auto const& each : all) nested(what, each, axis + 1, f);
  }
  void expect_size(json::array const& all, std::int64_t wanted) const {
    if (static_cast<std::int64_t>(all.size()) != wanted)
      refuse("there are ", all.size(), " elements where the shape asks for ", wanted);
  }

  limits const& most_;
  asked out_;
  std::string field_;
  std::size_t used_ = 0;
};

template <class T>
[[nodiscard]] std::vector<T> const& of_kind(tensor const& from, std::string_view kind) {
  if (auto const* const out = std::get_if<std::vector<T>>(&from.data)) return *out;
  throw openai::refusal(text(from.name.substr(0, 80), ": the datatype is ", from.datatype, ", but it takes ", kind),
                        from.name.substr(0, 80));
}

[[nodiscard]] inline json::value list_of(std::vector<std::int64_t> const& extents) {
  json::array out;
  for (auto const each : extents) out.emplace_back(each);
  return out;
}

}  // namespace detail

TRIREME_BODY std::vector<std::int64_t> const& tensor::integers() const {
  return detail::of_kind<std::int64_t>(*this, "integers");
}
TRIREME_BODY std::vector<float> const& tensor::floats() const { return detail::of_kind<float>(*this, "floats"); }
TRIREME_BODY std::vector<std::string> const& tensor::texts() const {
  return detail::of_kind<std::string>(*this, "BYTES");
}

TRIREME_BODY tensor const* asked::find(std::string_view name) const noexcept {
  auto const found = std::find_if(inputs.begin(), inputs.end(), [&](auto const& each) { return each.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}
TRIREME_BODY bool asked::wants(std::string_view output) const noexcept {
  return outputs.empty() || std::find(outputs.begin(), outputs.end(), output) != outputs.end();
}

TRIREME_BODY asked parse(std::string_view body, limits const& most) { return detail::reader(most).read(body); }

TRIREME_BODY std::string response(asked const& what, std::string_view model, std::vector<tensor> const& outputs) {
  using formats::json::value;
  formats::json::array all;
  for (auto const& each : outputs) {
    formats::json::array numbers;
    std::visit([&](auto const& data) { numbers.assign(data.begin(), data.end()); }, each.data);
    all.push_back(value::make({{"name", each.name},
                               {"datatype", each.datatype},
                               {"shape", detail::list_of(each.extents)},
                               {"data", std::move(numbers)}}));
  }
  auto out = value::make({{"model_name", model}, {"model_version", "1"}});
  if (!what.id.empty()) out.set("id", what.id);
  out.set("outputs", std::move(all));
  return formats::json::to_string(out);
}

TRIREME_BODY std::string metadata(std::string_view model, std::vector<signature> const& inputs,
                                  std::vector<signature> const& outputs) {
  using formats::json::value;
  auto const list = [](std::vector<signature> const& from) {
    formats::json::array out;
    for (auto const& each : from) {
      out.push_back(
          value::make({{"name", each.name}, {"datatype", each.datatype}, {"shape", detail::list_of(each.extents)}}));
    }
    return out;
  };
  return formats::json::to_string(value::make({{"name", model},
                                               {"versions", formats::json::array{"1"}},
                                               {"platform", "trireme"},
                                               {"inputs", list(inputs)},
                                               {"outputs", list(outputs)}}));
}

TRIREME_BODY std::string body_of(openai::refusal const& problem) {
  return formats::json::to_string(
      formats::json::value::make({{"error", openai::detail::whole_characters(problem.what())}}));
}

}  // namespace trireme::serve::kserve
