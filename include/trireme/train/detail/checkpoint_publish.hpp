#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/train/detail/checkpoint_files.hpp"
#include "trireme/train/kept_checkpoints.hpp"

namespace trireme::checkpoint::detail {

/// 32 hexadecimal digits that no other run has.
[[nodiscard]] inline std::string drawn_identity() {
  std::array<std::uint8_t, 16> drawn{};
  if (::getentropy(drawn.data(), drawn.size()) !=
      0)  // <random> would cost every program a tenth of a second to compile
    throw error("trireme::checkpoint: the system has no random numbers to name the run by");
  std::string out;
  for (auto const byte : drawn) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

/// This run's checkpoints in a directory, oldest first. Refuses to go on if those of another run are there, or if what
/// this one would save is not the latest.
[[nodiscard]] inline std::vector<own_checkpoint> claim(formats::directory const& home, std::string const& identity,
                                                       std::int64_t step) {
  std::vector<own_checkpoint> ours;
  std::string doubt;
  for (auto const each : steps_in(home)) {
    std::string theirs;
    own_checkpoint found{each};
    auto const damage = damage_in([&] {
      auto const manifest = read_manifest(home.below(step_name(each)));
      theirs = identity_in(manifest);
      found.held_out = held_out_in(manifest);
    });
    if (!damage.empty()) {
      doubt = damage;
    } else if (theirs != identity) {
      throw config_error(text("trireme::checkpoint: ", home.path(), " belongs to another run (", step_name(each),
                              " is of run ", theirs, ", this is run ", identity,
                              "); load() it to go on with that run, or save into another directory"));
    } else {
      ours.push_back(found);
    }
  }
  if (ours.empty() && !doubt.empty()) {
    throw config_error(text("trireme::checkpoint: ", home.path(),
                            " holds a checkpoint that cannot be read, so that nobody knows whose it is (", doubt,
                            "); save into another directory, or move that checkpoint away"));
  }
  if (!ours.empty() && ours.back().step > step) {
    throw config_error(text("trireme::checkpoint: ", home.path(), " holds ", step_name(ours.back().step),
                            " of this run, which is later than step ", step,
                            "; load() goes on from there; to go on from here, save into another directory"));
  }
  return ours;
}

/// An empty directory of the temporary name.
[[nodiscard]] inline formats::directory make_temporary(formats::directory const& home) {
  remove_ours(home, temporary_name);
  return home.make(temporary_name);
}

/// Completes a temporary directory with its manifest, gives it its name, and removes those of this run's checkpoints
/// that are not to be kept beside it.
inline void publish(formats::directory const& home, formats::directory const& temporary, std::int64_t step,
                    formats::json::value const& manifest, std::vector<own_checkpoint> ours, keeping const& keep) {
  auto const content = formats::json::to_string(manifest) + "\n";
  formats::atomic_write(temporary, "manifest.json", content);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  formats::atomic_write(temporary, "manifest.sha256", digest + "  manifest.json\n");
  temporary.synchronise();
  auto const name = step_name(step);
  // A run that went back and came to the same step again: the two change places, so that one of them is always there.
  // Where that cannot be one step, the earlier one is renamed first; finish_replacing() knows what a kill leaves.
  bool const again = !ours.empty() && ours.back().step == step;
  bool const shared = contents_of(home, name).others || contents_of(home, temporary_name).others;
  auto const replaced = std::string(replaced_prefix) + name;
  bool const exchanged = again && !shared && home.exchange(temporary_name, name);
  if (again && !exchanged) {
    rename_ours(home, name, replaced, false);
    try {
      rename_ours(home, temporary_name, name, true);
    } catch (io_error const&) {
      finish_replacing(home);
      throw;
    }
  } else if (!again) {
    auto const there = contents_of(home, name);
    if (home.has(name) && !(there.others && there.ours.empty())) set_aside(home, name);  // it could not be read
    rename_ours(home, temporary_name, name, true);
  }
  home.synchronise();
  if (again) {
    remove_ours(home, exchanged ? std::string(temporary_name) : replaced);
    ours.pop_back();
  }
  ours.push_back({step, keep.held_out});
  // Under the temporary name first: one that is half removed when the program ends is no checkpoint any more.
  for (auto const each : steps_to_remove(std::move(ours), keep)) {
    try {
      rename_ours(home, step_name(each), temporary_name, false);
    } catch (io_error const&) {  // the next save tries again
      break;
    }
    remove_ours(home, temporary_name);
  }
}

}  // namespace trireme::checkpoint::detail
