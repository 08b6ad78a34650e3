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

/// 32 random hexadecimal digits, which identify a run.
[[nodiscard]] inline std::string drawn_identity() {
  std::array<std::uint8_t, 16> drawn{};
  if (::getentropy(drawn.data(), drawn.size()) !=
      0)  // <random> would add a tenth of a second to every program's compile time
    throw error("trireme::checkpoint: the system's random number source failed, so the run gets no identity");
  std::string out;
  for (auto const byte : drawn) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

/// This run's checkpoints in a directory, oldest first. Throws if those of another run are there, or if the checkpoint
/// to be saved would not be the latest.
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
                            " holds a checkpoint that cannot be read, so its run is unknown (", doubt,
                            "); save into another directory, or move that checkpoint away"));
  }
  if (!ours.empty() && ours.back().step > step) {
    throw config_error(text("trireme::checkpoint: ", home.path(), " holds ", step_name(ours.back().step),
                            " of this run, which is later than step ", step,
                            "; load() goes on from there; to go on from here, save into another directory"));
  }
  return ours;
}

/// Makes an empty directory with the temporary name.
[[nodiscard]] inline formats::directory make_temporary(formats::directory const& home) {
  remove_ours(home, temporary_name);
  return home.make(temporary_name);
}

/// Completes a temporary directory with its manifest, renames it, and removes those of this run's checkpoints that are
/// not to be kept.
inline void publish(formats::directory const& home, formats::directory const& temporary, std::int64_t step,
                    formats::json::value const& manifest, std::vector<own_checkpoint> ours, keeping const& keep) {
  auto const content = formats::json::to_string(manifest) + "\n";
  formats::atomic_write(temporary, "manifest.json", content);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  formats::atomic_write(temporary, "manifest.sha256", digest + "  manifest.json\n");
  temporary.synchronise();
  auto const name = step_name(step);
  // If a run went back and reaches the same step again, the two checkpoints are exchanged, so that one of them is
  // always there. Where that is not one operation, the earlier one is renamed first; finish_replacing() repairs what an
  // interruption leaves.
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
  // Renamed to the temporary name first, so that a partial removal is never mistaken for a checkpoint.
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
