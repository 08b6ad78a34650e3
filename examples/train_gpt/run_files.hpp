#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "model_choice.hpp"
#include "tokens.hpp"
#include "trireme/core/error.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/nn/pretrained.hpp"
#include "trireme/train/any_trainer.hpp"
#include "trireme/trireme.hpp"

/// The directory of a run and its contents.
struct run_files {
  std::string directory;

  [[nodiscard]] std::string at(char const* name) const { return directory + "/" + name; }
  [[nodiscard]] std::string checkpoints() const { return at("checkpoint"); }
  [[nodiscard]] bool exists(char const* name) const { return ::access(at(name).c_str(), F_OK) == 0; }

  /// Whether it contains only what a run leaves that was killed as soon as it had its lock.
  [[nodiscard]] bool has_only_begun() const {
    std::error_code problem;
    std::filesystem::directory_iterator all(directory, problem);
    if (problem || exists("options.json") || !exists("lock")) return false;
    for (auto const& entry : all) {
      if (entry.path().filename() != "lock" && entry.path().filename() != "options.json.partial") return false;
    }
    try {
      auto const said = trireme::formats::read_text(at("lock"), 1024);
      return said.empty() || said.starts_with("{\"process\"");
    } catch (trireme::error const&) {
      return false;
    }
  }

  /// Whether there is a checkpoint from which to continue. Throws io_error if there was one that is now missing.
  [[nodiscard]] bool can_be_resumed() const;

  /// Creates the directory with its parents. An earlier run of this name is renamed, so nothing is lost. io_error if
  /// the directory is not a run, or if another process has begun a run in it since the lock was checked; then it is not
  /// changed.
  /// @param locked  whether this process holds the lock of the existing run.   @returns the new name of the earlier
  ///                run, or empty.
  std::string make_new(bool locked) const {
    std::string aside;
    if (exists("options.json")) {
      if (!locked)
        throw trireme::io_error(directory, "another process has just begun a run here; choose another --name");
      int number = 1;
      do aside = trireme::text(directory, ".", number++);
      while (::access(aside.c_str(), F_OK) == 0);
      trireme::formats::rename(directory, aside);
    } else {
      if (locked && has_only_begun()) {
        for (auto const* left : {"options.json.partial", "lock"}) ::unlink(at(left).c_str());
      }
      struct ::stat there {};
      if (::lstat(directory.c_str(), &there) == 0) {
        bool const leads = ::stat(directory.c_str(), &there) == 0;  // a link to a directory is accepted
        if (!leads) {
          throw trireme::io_error(directory, "this is a broken link; remove it, or choose another --name");
        }
        if (!S_ISDIR(there.st_mode))
          throw trireme::io_error(directory, "this is a file, but a run needs a directory; choose another --name");
        std::error_code problem;
        if (!std::filesystem::is_empty(directory, problem) || problem)
          throw trireme::io_error(directory, "this directory has files but is not a run; choose another --name");
      }
    }
    for (std::size_t slash = directory.find('/', 1);; slash = directory.find('/', slash + 1)) {
      auto const part = directory.substr(0, slash);
      if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {  // two programs may start at once; the lock decides
        throw trireme::formats::detail::io_failure(part, "make the directory", errno);
      }
      if (slash == std::string::npos) break;
    }
    return aside;
  }
};

/// The summary's data about steps before the run was resumed.
struct history {
  double loss_first = 0;
  double held_out_first = std::numeric_limits<double>::quiet_NaN();  ///< until it is evaluated
  double loss_last = 0;
  double gradient_norm = 0;
  std::int64_t skipped_last = 0;  ///< steps at the end that changed nothing
  std::int64_t restarts = 0;      ///< number of times that the run was resumed after an interruption
  std::int64_t lost_steps = 0;    ///< steps that had to be repeated for this, according to the last heartbeat each time

  void write(std::string const& path) const {
    namespace json = trireme::formats::json;
    trireme::formats::atomic_write(path, json::to_string(json::value::make({{"loss_first", loss_first},
                                                                            {"held_out_first", held_out_first},
                                                                            {"loss_last", loss_last},
                                                                            {"gradient_norm", gradient_norm},
                                                                            {"skipped_last", skipped_last},
                                                                            {"restarts", restarts},
                                                                            {"lost_steps", lost_steps}})));
  }
  static history read(std::string const& path) {
    auto const saved = trireme::formats::json::parse(trireme::formats::read_text(path), path);
    auto const number = [&](char const* name) {  // a loss that is not finite was written as null
      auto const& value = saved.at(name);
      return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.as_double();
    };
    return {number("loss_first"),
            number("held_out_first"),
            number("loss_last"),
            number("gradient_norm"),
            saved.at("skipped_last").as_int64(),
            saved.at("restarts").as_int64(),
            saved.at("lost_steps").as_int64()};
  }
};

inline bool run_files::can_be_resumed() const {
  if (!exists("options.json")) return false;
  if (trireme::checkpoint::exists(checkpoints())) return true;
  // A run that was killed before its first checkpoint starts over; one whose checkpoints are missing does not.
  if (!exists("history.json") || history::read(at("history.json")).loss_first == 0) return false;
  throw trireme::io_error(checkpoints(),
                          "this run has trained, but its checkpoints are gone; restore them, or give another --name");
}

/// Collective; rank 0 writes. Writes the model in Hugging Face's format to RUN/model, with its tokenizer if it has one,
/// and with the other files of the model of --from.
inline void write_model(std::string const& run_directory, language_model const& model, token_choice const& tokens,
                        trireme::any_trainer& trainer, bool writes) {
  namespace formats = trireme::formats;
  auto origin = trainer.model_files();
  if (!tokens.bytes() && writes) {
    auto const* const theirs = formats::find(origin, tokens.file_name());
    if (theirs != nullptr && theirs->content != tokens.content()) {  // another --tokenizer makes the rest useless
      auto const dropped = std::erase_if(
          origin, [](auto const& each) { return trireme::matches_any(formats::tokenizer_file_names, each.name); });
      std::fprintf(stderr, "train_gpt: --tokenizer differs from that of --from, whose %zu files are left out\n",
                   dropped);
    }
    std::erase_if(origin, [&](auto const& each) { return each.name == tokens.file_name(); });
    origin.push_back({tokens.file_name(), tokens.content()});
  }
  trireme::nn::pretrained_writer out(model.in_files(), std::nullopt, origin);
  auto merged = model.merged([&](std::string const& name, std::span<float const> values) { out.add(name, values); });
  trainer.for_each_parameter([&](std::string const& name, trireme::shape const&, std::span<float const> values) {
    if (writes) merged(name, values);
  });
  if (!writes) return;
  static_cast<void>(trireme::formats::directory(run_directory).make("model"));
  auto const done = trireme::write_pretrained(model, out, origin, run_directory + "/model");
  if (!done.left_out.empty()) {
    std::fprintf(stderr, "train_gpt: %zu tensors of --from are not part of this model and are left out: %s%s\n",
                 done.left_out.size(), done.left_out.front().c_str(), done.left_out.size() > 1 ? ", ..." : "");
  }
}

/// The library that reads the run's model, for the user; empty if only this program does.
inline std::string readers_of(language_model const& model) {
  auto const config = config_of(model);
  auto const& classes = config.at("architectures").as_array();
  return classes.empty() ? "" : trireme::text(" (", classes.front().as_string(), ".from_pretrained reads it)");
}
