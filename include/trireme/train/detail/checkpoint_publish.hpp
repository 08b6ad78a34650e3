#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/train/detail/checkpoint_files.hpp"

namespace trireme::checkpoint::detail {

/// 32 hexadecimal digits that no other run has.
[[nodiscard]] inline std::string drawn_identity() {
  std::random_device dice;
  std::string out;
  while (out.size() < 32) {
    auto const drawn = dice();
    for (int digit = 0; digit < 8; ++digit) out += "0123456789abcdef"[drawn >> (4 * digit) & 15];
  }
  return out;
}

/// The steps of this run's checkpoints in a directory. Refuses to go on if those of another run are there, or if what
/// this one would save is not the latest.
[[nodiscard]] inline std::vector<std::int64_t> claim(formats::directory const& home, std::string const& identity,
                                                     std::int64_t step) {
  std::vector<std::int64_t> ours;
  std::string doubt;
  for (auto const each : steps_in(home)) {
    std::string theirs;
    auto const damage = damage_in([&] { theirs = identity_in(read_manifest(home.below(step_name(each)))); });
    if (!damage.empty()) {
      doubt = damage;
    } else if (theirs != identity) {
      throw config_error(text("trireme::checkpoint: ", home.path(), " belongs to another run (", step_name(each),
                              " is of run ", theirs, ", this is run ", identity,
                              "); load() it to go on with that run, or save into another directory"));
    } else {
      ours.push_back(each);
    }
  }
  if (ours.empty() && !doubt.empty()) {
    throw config_error(text("trireme::checkpoint: ", home.path(),
                            " holds a checkpoint that cannot be read, so that nobody knows whose it is (", doubt,
                            "); save into another directory, or move that checkpoint away"));
  }
  if (!ours.empty() && ours.back() > step) {
    throw config_error(text("trireme::checkpoint: ", home.path(), " holds ", step_name(ours.back()),
                            " of this run, which is later than step ", step,
                            "; load() goes on from there; to go on from here, save into another directory"));
  }
  return ours;
}

/// An empty directory of the temporary name.
[[nodiscard]] inline formats::directory make_temporary(formats::directory const& home) {
  home.remove(temporary_name);
  return home.make(temporary_name);
}

/// Completes a temporary directory with its manifest, gives it its name, and removes all of this run's checkpoints but
/// the one before it.
inline void publish(formats::directory const& home, formats::directory const& temporary, std::int64_t step,
                    formats::json::value const& manifest, std::span<std::int64_t const> ours) {
  auto const content = formats::json::to_string(manifest) + "\n";
  formats::atomic_write(temporary, "manifest.json", content);
  auto const digest = sha256_text(std::as_bytes(std::span(content)));
  formats::atomic_write(temporary, "manifest.sha256", digest + "  manifest.json\n");
  temporary.synchronise();
  auto const name = step_name(step);
  // A run that went back and came to the same step again: the two change places, so that one of them is always there.
  bool const again = !ours.empty() && ours.back() == step;
  if (again) {
    home.exchange(temporary_name, name);
  } else {
    if (home.has(name)) set_aside(home, name);  // it could not be read
    home.rename(temporary_name, name);
  }
  home.synchronise();
  if (again) home.remove(temporary_name);
  // Under the temporary name first: one that is half removed when the program ends is no checkpoint any more.
  std::size_t const kept = again ? 2 : 1;
  for (auto const each : ours.first(ours.size() - std::min(kept, ours.size()))) {
    try {
      home.rename(step_name(each), temporary_name);
    } catch (io_error const&) {  // the next save tries again
      break;
    }
    home.remove(temporary_name);
  }
}

}  // namespace trireme::checkpoint::detail
