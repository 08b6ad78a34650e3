#include "presets.hpp"

std::unique_ptr<trireme::any_trainer> make_fp16(preset const& chosen, language_model const& model,
                                                optimizer_choice const& optimizer, trireme::comm::any_world& world) {
  return make_preset<trireme::precision::fp16>(chosen, model, optimizer, world);
}
