#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/safetensors.hpp"
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

/// Queries, keys and values are one matrix in a file: (inputs, 3, outputs) is written as (inputs, 3 * outputs).
inline trireme::shape file_extents(std::string const& name, trireme::shape const& extents) {
  if (name.ends_with(".c_attn.weight")) return {extents[0], extents.size() / extents[0]};
  if (name.ends_with(".c_attn.bias")) return {extents.size()};
  return extents;
}

/// Collective; rank 0 writes. The model in Hugging Face's names and layout: GPT2LMHeadModel.from_pretrained(RUN/model),
/// unless it has experts, which that one does not know.
inline void write_model(std::string const& run_directory, trireme::nn::gpt const& model, trireme::any_trainer& trainer,
                        bool writes) {
  namespace json = trireme::formats::json;
  namespace safetensors = trireme::formats::safetensors;
  std::vector<safetensors::entry> entries;
  std::vector<std::vector<float>> values;
  trainer.for_each_parameter(
      [&](std::string const& name, trireme::shape const& extents, std::span<float const> numbers) {
        if (!writes) return;
        entries.push_back({name, trireme::dtype::f32, file_extents(name, extents)});
        values.emplace_back(numbers.begin(), numbers.end());
      });
  if (!writes) return;
  auto const directory = trireme::formats::directory(run_directory).make("model");
  safetensors::writer writer(directory, "model.safetensors", std::move(entries), {{"format", "pt"}});
  for (auto const& numbers : values) writer.write(std::as_bytes(std::span(numbers)));
  writer.finish();
  json::value config = json::value::make({{"model_type", "gpt2"},
                                          {"architectures", json::array{"GPT2LMHeadModel"}},
                                          {"vocab_size", model.vocabulary},
                                          {"n_positions", model.context},
                                          {"n_embd", model.channels},
                                          {"n_layer", model.layers},
                                          {"n_head", model.heads},
                                          {"activation_function", "gelu_new"},
                                          {"layer_norm_epsilon", 1e-5},
                                          {"resid_pdrop", model.dropout},
                                          {"embd_pdrop", model.dropout},
                                          {"attn_pdrop", model.dropout},
                                          {"tie_word_embeddings", true},
                                          {"bos_token_id", nullptr},
                                          {"eos_token_id", nullptr},
                                          {"torch_dtype", "float32"}});
  if (model.experts > 0) {
    config.set("model_type", "gpt_experts");
    config.set("architectures", json::array{});
    config.set("num_local_experts", model.experts);
    config.set("num_experts_per_tok", model.top_k);
  }
  trireme::formats::atomic_write(directory, "config.json", json::to_string(config, 2) + "\n");
}
