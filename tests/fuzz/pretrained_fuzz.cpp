// test-mutations: 20000
// Configurations of models and indices of their files. Besides not crashing: a description that was read is written to
// a configuration that reads back as the same one, and an index names plain files only.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "trireme/nn/bert_files.hpp"
#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/pretrained.hpp"

namespace {

template <class Model>
void read(std::string const& input) {
  namespace json = trireme::formats::json;
  Model model;
  try {
    trireme::nn::read_config(json::parse(input, "input"), model);
  } catch (trireme::format_error const& error) {
    if (error.path() != "input" || error.offset() > input.size()) std::abort();
    return;
  }
  Model again;
  trireme::nn::read_config(json::parse(json::to_string(trireme::nn::config_of(model)), "again"), again);
  if (to_string(again) != to_string(model)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string const input(reinterpret_cast<char const*>(data), size);
  read<trireme::nn::gpt>(input);
  read<trireme::nn::llama>(input);
  read<trireme::nn::deepseek>(input);
  read<trireme::nn::bert>(input);
  try {
    for (auto const& each : trireme::formats::parse_weight_index(input, "input")) {
      if (each.file.empty() || each.file.find('/') != std::string::npos || each.file == "..") std::abort();
    }
  } catch (trireme::format_error const& error) {
    if (error.path() != "input" || error.offset() > size) std::abort();
  }
  return 0;
}
