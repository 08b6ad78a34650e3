#include "model.hpp"

std::unique_ptr<trireme::serve::decoder> load_bf16(language_model const& model, std::string const& directory) {
  return std::make_unique<loaded_decoder<trireme::precision::bf16>>(model, directory);
}
