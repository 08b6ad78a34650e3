#include "presets.hpp"

std::unique_ptr<trireme::any_trainer> make_bf16(preset const& chosen, language_model const& model,
                                                optimizer_choice const& optimizer, trireme::comm::any_world& world) {
  return make_preset<trireme::precision::bf16>(chosen, model, optimizer, world);
}
