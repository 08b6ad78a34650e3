#pragma once

#include <string>

#include "trireme/nn/deepseek_files.hpp"
#include "trireme/nn/one_of.hpp"
#include "trireme/nn/pretrained.hpp"
#include "trireme/trireme.hpp"

/// A model that writes texts, chosen at run time.
using language_model = trireme::nn::one_of<trireme::nn::gpt, trireme::nn::llama, trireme::nn::deepseek>;

/// The model in a directory of Hugging Face's files, without its weights.
inline language_model read_model(std::string const& directory) {
  using namespace trireme;
  auto const type = nn::model_type_in(directory);
  if (type.starts_with("gpt")) return {nn::read_description<nn::gpt>(directory)};
  if (type.starts_with("deepseek")) return {nn::read_description<nn::deepseek>(directory)};
  return {nn::read_description<nn::llama>(directory)};
}
