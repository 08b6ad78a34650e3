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

/// The directory of a run and what lies in it.
struct run_files {
  std::string directory;

  [[nodiscard]] std::string at(char const* name) const { return directory + "/" + name; }
  [[nodiscard]] std::string checkpoints() const { return at("checkpoint"); }
  [[nodiscard]] bool exists(char const* name) const { return ::access(at(name).c_str(), F_OK) == 0; }

  /// Whether this is what a run leaves that was killed as soon as it had its lock, and nothing else.
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

  /// Whether there is anything to go on from. Throws io_error if there was once, and is not any more.
  [[nodiscard]] bool can_be_resumed() const;

  /// Makes the directory with its parents. An earlier run of this name steps aside: nothing is lost. What is no run
  /// stays where it is, and is an io_error; so does a run that another process has begun since the lock was asked for.
  /// @param locked  whether this process holds the lock of what is there.   @returns where the earlier run went, or
  /// nothing.
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
        bool const leads = ::stat(directory.c_str(), &there) == 0;  // a link to a directory is as good as one
        if (!leads) {
          throw trireme::io_error(directory,
                                  "this is a link to what is not there; remove it, or choose another --name");
        }
        if (!S_ISDIR(there.st_mode))
          throw trireme::io_error(directory, "this is a file, but a run needs a directory; choose another --name");
        std::error_code problem;
        if (!std::filesystem::is_empty(directory, problem) || problem)
          throw trireme::io_error(directory, "there are files here, but no run; choose another --name");
      }
    }
    for (std::size_t slash = directory.find('/', 1);; slash = directory.find('/', slash + 1)) {
      auto const part = directory.substr(0, slash);
      if (::mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) {  // whoever gets the lock has a directory of two starts
        throw trireme::formats::detail::io_failure(part, "make the directory", errno);
      }
      if (slash == std::string::npos) break;
    }
    return aside;
  }
};

/// What the summary says of steps that were taken before the run was resumed.
struct history {
  double loss_first = 0;
  double held_out_first = std::numeric_limits<double>::quiet_NaN();  ///< until it is evaluated
  double loss_last = 0;
  double gradient_norm = 0;
  std::int64_t skipped_last = 0;  ///< steps at the end that changed nothing
  std::int64_t restarts = 0;      ///< how often the run went on after it had been broken off
  std::int64_t lost_steps = 0;    ///< steps that had to be taken again for that; each time as of the last heartbeat

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
  // A run that was killed before its first checkpoint begins anew; one that has lost its checkpoints does not.
  if (!exists("history.json") || history::read(at("history.json")).loss_first == 0) return false;
  throw trireme::io_error(
      checkpoints(), "this run has trained, but its checkpoints are gone; bring them back, or give another --name");
}

/// Collective; rank 0 writes. The model in Hugging Face's files, in RUN/model, with its tokenizer if it has one, and
/// with what came with the model of --from.
inline void write_model(std::string const& run_directory, language_model const& model, token_choice const& tokens,
                        trireme::any_trainer& trainer, bool writes) {
  namespace formats = trireme::formats;
  auto origin = trainer.model_files();
  if (!tokens.bytes() && writes) {
    auto const* const theirs = formats::find(origin, tokens.file_name());
    if (theirs != nullptr && theirs->content != tokens.content()) {  // another --tokenizer has no use for the rest
      auto const dropped = std::erase_if(
          origin, [](auto const& each) { return trireme::matches_any(formats::tokenizer_file_names, each.name); });
      std::fprintf(stderr, "train_gpt: --tokenizer is another one than that of --from, whose %zu files are left out\n",
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
    std::fprintf(stderr, "train_gpt: %zu tensors of --from are none of this model's and are left out: %s%s\n",
                 done.left_out.size(), done.left_out.front().c_str(), done.left_out.size() > 1 ? ", ..." : "");
  }
}

/// Who reads the model of a run, as it is told to the user; nothing if that is this program alone.
inline std::string readers_of(language_model const& model) {
  auto const config = config_of(model);
  auto const& classes = config.at("architectures").as_array();
  return classes.empty() ? "" : trireme::text(" (", classes.front().as_string(), ".from_pretrained reads it)");
}
