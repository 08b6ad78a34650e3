// Trireme 0.1.0: trireme/train/pretrained.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 8ec2c3e919b65b5f7dc39102d1a32731c913fdc6e7b56d6943be2fcfd652ab68
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/pretrained.hpp"

// ---- trireme/train/pretrained.hpp
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef TRIREME_TRAIN_DETAIL_MERGED_TENSORS_INCLUDED
#define TRIREME_TRAIN_DETAIL_MERGED_TENSORS_INCLUDED

// ---- trireme/train/detail/merged_tensors.hpp
namespace trireme::detail {

/// Collective. Calls f(name, values) on the first rank with each tensor of a trainer's model, whole, under the names of
/// its files; low-rank changes are merged into their weights.
template <class Trainer, class F>
void for_each_merged_tensor(Trainer& trainer, F const& f) {
  auto const& model = trainer.described_model();
  bool const writes = trainer.world().rank() == 0;
  auto put = [&] {
    if constexpr (requires { model.merged(f); }) {
      return model.merged(f);
    } else {
      return f;
    }
  }();
  for_each_whole_tensor(trainer.exchange(), [&](std::string const& name, shape const&, std::span<float const> values) {
    if (writes) put(name, values);
  });
}

}  // namespace trireme::detail

#endif  // TRIREME_TRAIN_DETAIL_MERGED_TENSORS_INCLUDED

// ---- trireme/train/pretrained.hpp (goes on)
namespace trireme {

namespace detail {
struct refused;  // what make_trainer returns after reporting an error
}

namespace detail {

/// Rejects files of another model, with which the same weights would compute something else.
/// @param other_head  whether the files' head may differ.
template <class Model>
void expect_same_model(Model model, std::string const& directory, bool other_head, formats::file_system& files) {
  if constexpr (requires { model.chosen; }) {
    model.with([&](auto const& chosen) { expect_same_model(chosen, directory, other_head, files); });
  } else if constexpr (requires { model.changes; }) {
    expect_same_model(model.model, directory, other_head, files);
  } else {
    auto const described = nn::read_description<Model>(directory, files);
    // Fields that do not change the function of the parameters, or only in training.
    if constexpr (requires { model.dropout; }) model.dropout = described.dropout;
    if constexpr (requires { model.balance; }) model.balance = described.balance;
    if constexpr (requires { model.speed; }) model.speed = described.speed;
    if constexpr (requires { model.ahead; }) model.ahead = described.ahead;
    if constexpr (requires { model.rotary; }) model.context = described.context;  // there is no table of positions
    if constexpr (requires { model.separator; }) model.separator = described.separator;  // the tokenizer's
    if constexpr (requires { model.classes; }) {
      if (other_head) model.classes = described.classes;
    }
    if constexpr (requires { model.checkpointed; }) model.checkpointed = described.checkpointed;
    if (describe(described) == describe(model)) return;
    throw config_error(text("trireme::load_pretrained: ", directory, "/", formats::config_file, " describes ",
                            describe(described), ", but the trainer's model is ", describe(model)));
  }
}

/// Low-rank changes (nn/lora.hpp) are not in the files: they keep their values.
template <class Model>
[[nodiscard]] bool is_not_in_files(Model const&, [[maybe_unused]] std::string const& parameter) {
  if constexpr (requires { Model::is_change(parameter); }) {
    return Model::is_change(parameter);
  } else {
    return false;
  }
}

}  // namespace detail

namespace detail {

/// config_of() without what does not change what the model computes.
template <class Model>
[[nodiscard]] formats::json::value config_as_read(Model const& model, formats::json::value const& said) {
  if constexpr (requires { model.chosen; }) {
    return model.with([&](auto const& chosen) { return config_as_read(chosen, said); });
  } else if constexpr (requires { model.changes; }) {
    return config_as_read(model.model, said);
  } else {
    Model read;
    read_config(said, read);
    // A model without a table of positions can be trained on shorter samples and still use longer ones.
    if constexpr (requires { model.rotary; }) {
      if (model.context < read.context) read.context = model.context;
    }
    if constexpr (requires { model.ahead; }) read.ahead = model.ahead;
    return config_of(read);
  }
}

}  // namespace detail

/// What save_pretrained() has written besides the weights; on the first rank.
struct pretrained_report {
  std::vector<std::string> copied;    ///< files that came with the model, unchanged
  std::vector<std::string> left_out;  ///< tensors that came with the model and are not part of it
};

/// Parameters that load_pretrained() does not read.
struct load_options {
  std::string fresh{};  ///< patterns of parameters that keep their initial values, separated by spaces: "classifier.*"
};

/// Collective. Sets the parameters of a trainer to those of a model in Hugging Face's files: config.json, which must
/// describe the trainer's model, and model.safetensors, or several files and an index. Moments, step and random numbers
/// do not change.
///
/// `fresh` names a head that is trained from the start: the files may lack its parameters, or have others in their
/// place (the number of classes in config.json may differ).
///
/// Ranks    each reads only the numbers that it keeps, under any mesh.
/// Bytes    a second copy of this rank's part of the master values, until all are read.
/// Numerics master values are the files' numbers, rounded to nearest if the files have a wider type.
/// Errors   as nn::read_description and nn::pretrained_reader, on every rank if one occurs on any of them; config_error
///          if config.json describes another model, or if a pattern in `fresh` matches no parameter. Then no parameter
///          has changed.
/// @example auto trainer = make_trainer(nn::read_description<nn::llama>(from), optim::adamw{}, world);
///          load_pretrained(trainer, from);
template <class Trainer>
void load_pretrained(Trainer& trainer, std::string const& directory, load_options const& options,
                     formats::file_system& files = formats::real_files()) {
  using master = typename Trainer::master;
  auto const& model = trainer.described_model();
  std::vector<std::vector<master>> shards;
  std::vector<formats::model_file> model_files;
  detail::together(trainer.world(), [&] {
    detail::expect_same_model(model, directory, !options.fresh.empty(), files);
    auto layout = model.in_files();
    std::vector<std::string> names;
    for (auto const& each : layout.tensors) names.push_back(each.parameter);
    name_pattern fresh{"load_pretrained", options.fresh};
    fresh.before = "no parameter of the model is ";
    fresh.after = ", which .fresh names";
    expect_matches(fresh, names);
    layout.leave_out(options.fresh);
    group_rank const compared{trainer.world().rank(), trainer.world().size()};
    nn::pretrained_reader const from(layout, directory, files, compared);
    if (compared.rank == 0) {
      model_files = formats::read_model_files(directory, files);
      model_files.push_back(from.notes());
    }
    trainer.exchange().visit_values(state_scope::kept, [&](auto const&, state_location const& place, auto view) {
      auto& shard = shards.emplace_back();
      auto const& name = place.info.name;
      if (detail::is_not_in_files(model, name) || matches_any(options.fresh, name)) return;
      shard.resize(static_cast<std::size_t>(view.size()));
      from.read(place.info, place.first, std::span(shard));
    });
  });
  auto next = shards.begin();
  trainer.change_parameters([&](auto const&, auto const&, std::int64_t, auto view) {
    if (!next->empty()) ops::on<typename Trainer::space>::upload(view, std::span<master const>(*next));
    *next++ = {};
  });
  trainer.keep_model_files(std::move(model_files));
}
template <class Trainer>
void load_pretrained(Trainer& trainer, std::string const& directory,
                     formats::file_system& files = formats::real_files()) {
  load_pretrained(trainer, directory, load_options{}, files);
}
/// For a trainer that the compiler has rejected: its one error is enough.
inline void load_pretrained(detail::refused&, std::string const&, load_options const& = {}) {}
inline void load_pretrained(detail::refused&, std::string const&, load_options const&, formats::file_system&) {}
inline void load_pretrained(detail::refused&, std::string const&, formats::file_system&) {}

/// Options of save_pretrained().
struct pretrained_options {
  std::optional<dtype>
      stored{};  ///< f32, bf16 or f16; not set: the type in which each tensor was read (F64 becomes F32), else f32
  std::uint64_t most_file_bytes = std::uint64_t{5'000'000'000};  ///< of one file; larger models get several
};

/// Writes a model's weights and the files that belong to it: config.json, unchanged if the model is unchanged, and the
/// other files that came with it (formats::model_file_names).
///
/// @param out     has all parameters.   @param origin  a trainer's model_files(), or some of them.
template <class Model>
pretrained_report write_pretrained(Model const& model, nn::pretrained_writer const& out,
                                   std::vector<formats::model_file> const& origin, std::string const& directory,
                                   std::uint64_t most_file_bytes = pretrained_options{}.most_file_bytes,
                                   formats::file_system& files = formats::real_files()) {
  pretrained_report done;
  auto config = config_of(model);
  if (auto const* const said = formats::find(origin, formats::config_file)) {
    auto const read = formats::json::parse(said->content, formats::config_file);
    config = nn::config_to_write(origin, detail::config_as_read(model, read), config);
  }
  formats::make_directories(directory, files);
  for (auto const& each : origin) {
    if (each.name == formats::config_file || each.name == nn::tensor_notes) continue;
    done.copied.push_back(each.name);
  }
  out.write(formats::directory(directory, files), std::move(config), most_file_bytes, origin);
  done.left_out = nn::left_out(origin);
  return done;
}

/// Collective; the first rank writes. Writes the trainer's model as Hugging Face's files, which transformers and
/// load_pretrained() read.
///
/// A model that load_pretrained() has read, in this run or before the checkpoint that it continues, keeps its tensors'
/// types, the other entries of its config.json and the files beside it (generation settings, the tokenizer). Copying
/// its licence and README is up to the user.
///
/// Bytes    the first rank holds the whole model in the stored type, and every rank one tensor.
/// Errors   io_error, on every rank. Existing files are unchanged unless all new ones could be written
///          (formats::file_set); the disk must have room for both.
/// @returns on the first rank, the files copied, and the tensors of the files read that are not part of the model.
template <class Trainer>
pretrained_report save_pretrained(Trainer& trainer, std::string const& directory,
                                  pretrained_options const& options = {},
                                  formats::file_system& files = formats::real_files()) {
  auto const& model = trainer.described_model();
  bool const writes = trainer.world().rank() == 0;
  nn::pretrained_writer out(model.in_files(), options.stored, trainer.model_files());
  auto const add = [&](std::string const& name, std::span<float const> values) { out.add(name, values); };
  detail::for_each_merged_tensor(trainer, add);
  pretrained_report done;
  detail::together(trainer.world(), [&] {
    if (writes) done = write_pretrained(model, out, trainer.model_files(), directory, options.most_file_bytes, files);
  });
  return done;
}
inline pretrained_report save_pretrained(detail::refused&, std::string const&, pretrained_options const& = {}) {
  return {};
}
inline pretrained_report save_pretrained(detail::refused&, std::string const&, pretrained_options const&,
                                         formats::file_system&) {
  return {};
}

}  // namespace trireme
