#pragma once

#include <memory>
#include <string>
#include <utility>

#include "../language_model.hpp"

#include "trireme/serve/decoder.hpp"
#include "trireme/train/pretrained.hpp"
#include "trireme/trireme.hpp"

/// A model with the weights of its directory. All parameters are frozen, so that there are no gradients.
template <class Model, class Precision>
struct loaded_model {
  loaded_model(Model const& model, std::string const& directory, Precision precision)
      : trainer(make(model, world, precision)) {
    load_pretrained(trainer, directory);
  }

  static auto make(Model const& model, trireme::comm::self_world& world, Precision precision) {
    using namespace trireme;
    return make_trainer(model, optim::groups{optim::sgd{}, {{.names = "*", .frozen = true}}}, world, precision);
  }

  trireme::comm::self_world world;
  decltype(make(std::declval<Model const&>(), std::declval<trireme::comm::self_world&>(), Precision{})) trainer;
};

/// A decoder that owns its model.
template <class Precision>
class loaded_decoder final : public trireme::serve::decoder {
 public:
  loaded_decoder(language_model const& model, std::string const& directory)
      : model_(model, directory, Precision{}), decoder_(trireme::serve::decoder_of(model_.trainer, model)) {}
  [[nodiscard]] std::int64_t vocabulary() const override { return decoder_.vocabulary(); }
  [[nodiscard]] std::int64_t context() const override { return decoder_.context(); }
  [[nodiscard]] trireme::tensor<float> compute(std::span<std::int32_t const> tokens,
                                               trireme::paged_rows const& rows) override {
    return decoder_.compute(tokens, rows);
  }

 private:
  using loaded = loaded_model<language_model, Precision>;
  loaded model_;
  trireme::serve::trainer_decoder<decltype(loaded::trainer)> decoder_;
};

// Each precision is compiled in a file of its own.
std::unique_ptr<trireme::serve::decoder> load_fp32(language_model const& model, std::string const& directory);
std::unique_ptr<trireme::serve::decoder> load_bf16(language_model const& model, std::string const& directory);
