// Trireme 0.1.0: trireme/train/pretrained.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: a712be4ca9cd02162724e2eb1c198a84783b097d2e8f97a114dddf8c21144445
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

#ifndef TRIREME_TRAIN_DETAIL_WHOLE_TENSORS_INCLUDED
#define TRIREME_TRAIN_DETAIL_WHOLE_TENSORS_INCLUDED

// ---- trireme/train/detail/whole_tensors.hpp
#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace trireme::detail {

struct named_shape {
  std::string name;
  shape extents;
};

/// Collective. The tensors that any rank has a part of, each once, with their whole extents, in the order of the ranks.
template <class Comm>
[[nodiscard]] std::vector<named_shape> tensors_of_everyone(Comm& world, parallel::layout const& own) {
  std::string names;
  std::vector<std::int64_t> numbers;  // of each tensor: the letters of its name, its rank, its extents
  for (auto const& entry : own.entries()) {
    auto const& whole = entry.info.whole_extents();
    names += entry.info.name;
    numbers.push_back(static_cast<std::int64_t>(entry.info.name.size()));
    numbers.push_back(whole.rank());
    numbers.insert(numbers.end(), whole.extents().begin(), whole.extents().end());
  }
  std::vector<named_shape> all;
  for (int rank = 0; rank < world.size(); ++rank) {
    std::int64_t sizes[2] = {static_cast<std::int64_t>(names.size()), static_cast<std::int64_t>(numbers.size())};
    world.broadcast(tensor_view<std::int64_t>(sizes, shape{2}), rank);
    std::vector<std::uint8_t> letters(static_cast<std::size_t>(sizes[0]));
    std::vector<std::int64_t> theirs(static_cast<std::size_t>(sizes[1]));
    if (rank == world.rank()) {
      std::copy(names.begin(), names.end(), letters.begin());
      theirs = numbers;
    }
    world.broadcast(tensor_view<std::uint8_t>(letters), rank);
    world.broadcast(tensor_view<std::int64_t>(theirs), rank);
    auto letter = letters.begin();
    for (auto number = theirs.begin(); number != theirs.end();) {
      named_shape each{{letter, letter + *number}, {}};
      letter += *number++;
      for (auto left = *number++; left > 0; --left) each.extents.push_back(*number++);
      bool const known =
          std::any_of(all.begin(), all.end(), [&](auto const& other) { return other.name == each.name; });
      if (!known) all.push_back(std::move(each));
    }
  }
  return all;
}

/// Collective over everyone. Calls f(name, extents, values) with the whole master value of each tensor of the model, on
/// every rank in the same order, whatever part of it lies here. Where replicas differ it is that of the first.
template <class Exchange, class F>
void for_each_whole_tensor(Exchange const& exchange, F&& f) {
  auto& world = exchange.everyone();
  auto const& plan = exchange.plan();
  std::map<std::string, std::vector<std::pair<int, parallel::layout::piece>>> here;  // what this rank answers for
  bool const answers = !Exchange::replicas_differ || exchange.world().rank() == 0;   // else the first replica does
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    auto const [first, count] = exchange.accounted_range(bucket);
    plan.for_each_piece(bucket, first, count, [&](parallel::layout::piece const& piece) {
      auto const& info = plan.at(piece.entry).info;
      if (answers && info.answers) here[info.name].emplace_back(bucket, piece);
    });
  }
  for (auto const& tensor : tensors_of_everyone(world, plan)) {
    std::vector<double> sum(static_cast<std::size_t>(tensor.extents.size()));  // zero where others answer
    for (auto const& [bucket, piece] : here[tensor.name]) {
      auto const own = exchange.master_of(bucket, piece);
      using view = std::remove_const_t<decltype(own)>;
      std::vector<typename view::value_type> values(static_cast<std::size_t>(piece.count));
      ops::on<typename view::space>::download(std::span(values), own);
      for_each_run(plan.at(piece.entry).info, piece.in_entry, piece.count,
                   [&, begin = piece.in_entry](std::int64_t in_whole, std::int64_t in_part, std::int64_t n) {
                     std::copy_n(values.begin() + (in_part - begin), n, sum.begin() + in_whole);
                   });
    }
    world.all_reduce(tensor_view<double>(sum), reduction::sum{});
    std::vector<float> const values(sum.begin(), sum.end());
    f(tensor.name, tensor.extents, std::span<float const>(values));
  }
}

}  // namespace trireme::detail

#endif  // TRIREME_TRAIN_DETAIL_WHOLE_TENSORS_INCLUDED

// ---- trireme/train/pretrained.hpp (goes on)
namespace trireme {

namespace detail {

/// Refuses files of another model: what is computed with the same numbers would be something else.
template <class Model>
void expect_same_model(Model model, std::string const& directory, formats::file_system& files) {
  if constexpr (requires { model.chosen; }) {
    model.with([&](auto const& chosen) { expect_same_model(chosen, directory, files); });
  } else if constexpr (requires { model.changes; }) {
    expect_same_model(model.model, directory, files);
  } else {
    auto const described = nn::read_description<Model>(directory, files);
    // What does not change the function of the parameters, or only in training.
    if constexpr (requires { model.dropout; }) model.dropout = described.dropout;
    if constexpr (requires { model.balance; }) model.balance = described.balance;
    if constexpr (requires { model.speed; }) model.speed = described.speed;
    if constexpr (requires { model.rotary; }) model.context = described.context;  // there is no table of positions
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

/// Collective. Sets the parameters of a trainer to those of a model in Hugging Face's files: config.json, which must
/// describe the trainer's model, and model.safetensors, or several files and an index. Moments, step and random numbers
/// stay as they are.
///
/// Ranks    each reads only the numbers that it keeps, whatever the mesh.
/// Bytes    once more this rank's share of the master values, until all are read.
/// Numerics master values are the files' numbers, rounded to nearest where files have more digits.
/// Errors   as nn::read_description and nn::pretrained_reader, on every rank if there is one on any of them;
///          config_error if config.json describes another model. Then no parameter has changed.
/// @example auto trainer = make_trainer(nn::read_description<nn::llama>(from), optim::adamw{}, world);
///          load_pretrained(trainer, from);
template <class Trainer>
void load_pretrained(Trainer& trainer, std::string const& directory,
                     formats::file_system& files = formats::real_files()) {
  using master = typename Trainer::master;
  std::vector<std::vector<master>> pieces;
  detail::together(trainer.world(), [&] {
    detail::expect_same_model(trainer.described_model(), directory, files);
    nn::pretrained_reader const from(trainer.described_model().in_files(), directory, files);
    trainer.exchange().visit_values(state_scope::kept, [&](auto const&, state_place const& place, auto view) {
      auto& piece = pieces.emplace_back();
      if (detail::is_not_in_files(trainer.described_model(), place.info.name)) return;
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
    out.write(formats::directory(directory, files), nn::config_of(model), options.most_file_bytes);
  });
}

}  // namespace trireme
