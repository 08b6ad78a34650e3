// Trireme 0.1.0: trireme/train/pretrained.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 14f4b2920ec889aa40e18974b40510485b0011ed5c682475e9bfba031f43a409
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"
#include "trireme/nn/pretrained.hpp"

// ---- trireme/train/pretrained.hpp
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace trireme {

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
  detail::together(trainer.world(), [&] {
    detail::expect_same_model(model, directory, !options.fresh.empty(), files);
    auto layout = model.in_files();
    if (!options.fresh.empty() && layout.leave_out(options.fresh) == 0) {
      throw config_error(text("trireme::load_pretrained: no parameter of the model is \"", options.fresh,
                              "\", which should start anew"));
    }
    nn::pretrained_reader const from(layout, directory, files);
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
}
template <class Trainer>
void load_pretrained(Trainer& trainer, std::string const& directory,
                     formats::file_system& files = formats::real_files()) {
  load_pretrained(trainer, directory, load_options{}, files);
}

/// What save_pretrained() writes.
struct pretrained_options {
  dtype stored = dtype::f32;                                     ///< or bf16, f16
  std::uint64_t most_file_bytes = std::uint64_t{5'000'000'000};  ///< of one file; a larger model has several
};

/// Collective; the first rank writes. The trainer's model in Hugging Face's files, which transformers and
/// load_pretrained() read.
///
/// Bytes    the first rank holds the whole model in the type that is stored, and every rank one tensor.
/// Errors   io_error, on every rank. Files are replaced one by one, each by a whole one.
template <class Trainer>
void save_pretrained(Trainer& trainer, std::string const& directory, pretrained_options const& options = {},
                     formats::file_system& files = formats::real_files()) {
  auto const& model = trainer.described_model();
  bool const writes = trainer.world().rank() == 0;
  nn::pretrained_writer out(model.in_files(), options.stored);
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
  detail::together(trainer.world(), [&] {
    if (!writes) return;
    formats::make_directories(directory, files);
    out.write(formats::directory(directory, files), config_of(model), options.most_file_bytes);
  });
}

}  // namespace trireme
