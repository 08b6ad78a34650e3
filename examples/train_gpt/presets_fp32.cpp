#include "presets.hpp"

std::unique_ptr<trireme::any_trainer> make_fp32(preset const& chosen, language_model const& model,
                                                optimizer_choice const& optimizer, trireme::comm::any_world& world) {
  return make_preset<trireme::precision::fp32>(chosen, model, optimizer, world);
}
