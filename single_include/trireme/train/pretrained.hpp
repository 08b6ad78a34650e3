// Trireme 0.1.0: trireme/train/pretrained.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 6c3dd196aafa201cccf2f4516db81b2cc17c3f6a452905dd60d63c61648b30dd
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

namespace trireme {

namespace detail {
struct refused;  // what make_trainer returns after its one sentence
}

namespace detail {

/// Refuses files of another model: what is computed with the same numbers would be something else.
/// @param other_head  the files' head may be another one.
template <class Model>
void expect_same_model(Model model, std::string const& directory, bool other_head, formats::file_system& files) {
  if constexpr (requires { model.chosen; }) {
    model.with([&](auto const& chosen) { expect_same_model(chosen, directory, other_head, files); });
  } else if constexpr (requires { model.changes; }) {
    expect_same_model(model.model, directory, other_head, files);
  } else {
    auto const described = nn::read_description<Model>(directory, files);
    // What does not change the function of the parameters, or only in training.
    if constexpr (requires { model.dropout; }) model.dropout = described.dropout;
    if constexpr (requires { model.balance; }) model.balance = described.balance;
    if constexpr (requires { model.speed; }) model.speed = described.speed;
    if constexpr (requires { model.ahead; }) model.ahead = described.ahead;
    if constexpr (requires { model.rotary; }) model.context = described.context;  // there is no table of positions
    if constexpr (requires { model.separator; }) model.separator = described.separator;  // the tokenizer's
    if constexpr (requires { model.classes; }) {
      if (other_head) model.classes = described.classes;
    }
    model.checkpointed = described.checkpointed;
    if (describe(described) == describe(model)) return;
    throw config_error(text("trireme::load_pretrained: ", directory, "/", formats::config_file, " describes ",
                            describe(described), ", but the trainer's model is ", describe(model)));
  }
}

/// Low-rank changes (nn/lora.hpp) are none of the files' tensors: they stay as they are.
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

/// config_of() what a config.json says, as far as it decides what the model computes.
template <class Model>
[[nodiscard]] formats::json::value config_as_read(Model const& model, formats::json::value const& said) {
  if constexpr (requires { model.chosen; }) {
    return model.with([&](auto const& chosen) { return config_as_read(chosen, said); });
  } else if constexpr (requires { model.changes; }) {
    return config_as_read(model.model, said);
  } else {
    Model read;
    read_config(said, read);
    // Without a table of positions, training on shorter samples takes none away.
    if constexpr (requires { model.rotary; }) {
      if (model.context < read.context) read.context = model.context;
    }
    if constexpr (requires { model.ahead; }) read.ahead = model.ahead;
    return config_of(read);
  }
}

}  // namespace detail

/// What save_pretrained() has done beside the weights; on the first rank.
struct pretrained_report {
  std::vector<std::string> copied;    ///< files that came with the model, as they were
  std::vector<std::string> left_out;  ///< tensors that came with the model, and are not in it
};

/// What load_pretrained() does not read.
struct load_options {
  std::string fresh{};  ///< patterns of parameters that stay as they are, separated by spaces: "classifier.*"
};

/// Collective. Sets the parameters of a trainer to those of a model in Hugging Face's files: config.json, which must
/// describe the trainer's model, and model.safetensors, or several files and an index. Moments, step and random numbers
/// stay as they are.
///
/// A head that starts anew is asked for by `fresh`: files need not have those parameters, and may have others in their
/// place (the number of classes in config.json may be another one).
///
/// Ranks    each reads only the numbers that it keeps, whatever the mesh.
/// Bytes    once more this rank's share of the master values, until all are read.
/// Numerics master values are the files' numbers, rounded to nearest where files have more digits.
/// Errors   as nn::read_description and nn::pretrained_reader, on every rank if there is one on any of them;
///          config_error if config.json describes another model, or no parameter is what `fresh` says. Then no
///          parameter has changed.
/// @example auto trainer = make_trainer(nn::read_description<nn::llama>(from), optim::adamw{}, world);
///          load_pretrained(trainer, from);
template <class Trainer>
void load_pretrained(Trainer& trainer, std::string const& directory, load_options const& options,
                     formats::file_system& files = formats::real_files()) {
  using master = typename Trainer::master;
  auto const& model = trainer.described_model();
  std::vector<std::vector<master>> pieces;
  std::vector<formats::model_file> beside;
  detail::together(trainer.world(), [&] {
    detail::expect_same_model(model, directory, !options.fresh.empty(), files);
    auto layout = model.in_files();
    std::vector<std::string> names;
    for (auto const& each : layout.tensors) names.push_back(each.parameter);
    name_pattern fresh{"load_pretrained", options.fresh};
    fresh.before = "no parameter of the model is ";
    fresh.after = ", which should start anew";
    expect_matches(fresh, names);
    layout.leave_out(options.fresh);
    share const compared{trainer.world().rank(), trainer.world().size()};
    nn::pretrained_reader const from(layout, directory, files, compared);
    if (compared.rank == 0) {
      beside = formats::read_model_files(directory, files);
      beside.push_back(from.notes());
    }
    trainer.exchange().visit_values(state_scope::kept, [&](auto const&, state_place const& place, auto view) {
      auto& piece = pieces.emplace_back();
      auto const& name = place.info.name;
      if (detail::is_not_in_files(model, name) || matches_any(options.fresh, name)) return;
      piece.resize(static_cast<std::size_t>(view.size()));
      from.read(place.info, place.first, std::span(piece));
    });
  });
  auto next = pieces.begin();
  trainer.change_parameters([&](auto const&, auto const&, std::int64_t, auto view) {
    if (!next->empty()) ops::on<typename Trainer::space>::upload(view, std::span<master const>(*next));
    *next++ = {};
  });
  trainer.keep_model_files(std::move(beside));
}
template <class Trainer>
void load_pretrained(Trainer& trainer, std::string const& directory,
                     formats::file_system& files = formats::real_files()) {
  load_pretrained(trainer, directory, load_options{}, files);
}
/// Of a trainer that the compiler has refused: its one sentence is enough.
inline void load_pretrained(detail::refused&, std::string const&, load_options const& = {}) {}
inline void load_pretrained(detail::refused&, std::string const&, load_options const&, formats::file_system&) {}
inline void load_pretrained(detail::refused&, std::string const&, formats::file_system&) {}

/// What save_pretrained() writes.
struct pretrained_options {
  std::optional<dtype> stored{};  ///< f32, bf16 or f16; else each tensor as it was read (F64 as F32), or f32
  std::uint64_t most_file_bytes = std::uint64_t{5'000'000'000};  ///< of one file; a larger model has several
};

/// Writes a model's weights, and what belongs to them: config.json, which is as it was read where the model is as it
/// was, and the other files that came with it (formats::model_file_names).
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

/// Collective; the first rank writes. The trainer's model in Hugging Face's files, which transformers and
/// load_pretrained() read.
///
/// A model that load_pretrained() has read, in this run or before a checkpoint that it goes on from, comes out as it
/// came: in the types of its tensors, with what its config.json said of other things, and with the files that lay
/// beside it (how to generate, the tokenizer). Its licence and README are the user's to copy.
///
/// Bytes    the first rank holds the whole model in the type that is stored, and every rank one tensor.
/// Errors   io_error, on every rank. Files that lie there are as they were unless all new ones could be written
///          (formats::file_set), for which the disk needs the room of both.
/// @returns on the first rank, what was copied, and which tensors of the files that were read are none of the model's.
template <class Trainer>
pretrained_report save_pretrained(Trainer& trainer, std::string const& directory,
                                  pretrained_options const& options = {},
                                  formats::file_system& files = formats::real_files()) {
  auto const& model = trainer.described_model();
  bool const writes = trainer.world().rank() == 0;
  nn::pretrained_writer out(model.in_files(), options.stored, trainer.model_files());
  auto const add = [&](std::string const& name, std::span<float const> values) { out.add(name, values); };
  auto put = [&] {
    if constexpr (requires { model.merged(add); }) {
      return model.merged(add);
    } else {
      return add;
    }
  }();
  detail::for_each_whole_tensor(trainer.exchange(),
                                [&](std::string const& name, shape const&, std::span<float const> values) {
                                  if (writes) put(name, values);
                                });
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
