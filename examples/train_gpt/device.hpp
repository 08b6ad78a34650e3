#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "presets.hpp"

// Training in the memory of a device: train_gpt_cuda on a GPU, train_gpt_simt in the simulator of its threads. The
// other programs say that they cannot.

/// Throws config_error if this program cannot compute on a `device`, or there is none.
void expect_device(std::string const& device);
/// What the device calls itself; "simulator" is the one of a GPU's threads.
[[nodiscard]] std::string device_name();
/// The memory of that device in bytes; 0 if it is not known.
[[nodiscard]] std::size_t device_bytes();
/// What the calling thread's rank will hold there at least, for the message if the memory is used up.
void remember_device_plan(double bytes);

[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_fp32_on_device(preset const&, language_model const&,
                                                                        optimizer_choice const&,
                                                                        trireme::comm::any_world&);
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_bf16_on_device(preset const&, language_model const&,
                                                                        optimizer_choice const&,
                                                                        trireme::comm::any_world&);
[[nodiscard]] std::unique_ptr<trireme::any_trainer> make_fp16_on_device(preset const&, language_model const&,
                                                                        optimizer_choice const&,
                                                                        trireme::comm::any_world&);
