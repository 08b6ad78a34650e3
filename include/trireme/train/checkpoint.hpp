#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/contract/parameter.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/train/detail/checkpoint_files.hpp"
#include "trireme/train/detail/checkpoint_pieces.hpp"
#include "trireme/train/detail/together.hpp"

/// Checkpoints: all state of a run in one directory, whole or not at all.
///
/// DIRECTORY/step-0000000500/ holds manifest.json (what run it is, how far it is, which files), manifest.sha256 (in
/// sha256sum's format) and one rank-N.safetensors a rank: pieces named "tensor@first element", with a SHA-256 each,
/// and for each tensor the box of it that the rank holds: pieces are stretches of that box.
/// A piece says where it lies in its tensor, not who owned it, so that any number of ranks and any strategy or mesh
/// reads it. This is format 2; format 1, which knew no boxes, is refused.
/// A checkpoint is written under a temporary name, brought to the device, renamed, and the directory brought to the
/// device; the one before it is kept.
namespace trireme::checkpoint {

/// What a checkpoint was made by; a run with another description refuses it and names both.
struct run_description {
  std::string model;
  std::string optimizer;
  std::string precision;
  std::string compression;
  int residual_ranks = 0;  ///< error feedback keeps one residual a rank; 0 = it is not used
};

/// How far a run is.
struct progress {
  std::int64_t step = 0;
  std::int64_t updates = 0;  ///< steps that were not skipped
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::int64_t position = 0;  ///< samples of the epoch that are used
};

namespace detail {

inline formats::json::value to_json(run_description const& run) {
  return formats::json::value::make({{"model", run.model},
                                     {"optimizer", run.optimizer},
                                     {"precision", run.precision},
                                     {"compression", run.compression},
                                     {"residual_ranks", run.residual_ranks}});
}
inline formats::json::value to_json(progress const& at) {
  return formats::json::value::make(
      {{"step", at.step}, {"updates", at.updates}, {"seed", at.seed}, {"epoch", at.epoch}, {"position", at.position}});
}
inline progress progress_from(formats::json::value const& from) {
  return {from.at("step").as_int64(), from.at("updates").as_int64(), from.at("seed").as_uint64(),
          from.at("epoch").as_uint64(), from.at("position").as_int64()};
}

/// Refuses a checkpoint of another run, naming both.
inline void expect_same_run(std::string const& path, formats::json::value const& saved, run_description const& run) {
  auto const expect = [&](char const* what, std::string const& theirs, std::string const& ours) {
    if (theirs == ours) return;
    throw config_error(text("trireme::checkpoint: ", path, " was made with the ", what, " ", theirs,
                            ", but this run has the ", what, " ", ours,
                            "; give the options that it was made with, or start another run"));
  };
  expect("model", saved.at("model").as_string(), run.model);
  expect("optimizer", saved.at("optimizer").as_string(), run.optimizer);
  expect("precision", saved.at("precision").as_string(), run.precision);
  expect("compression", saved.at("compression").as_string(), run.compression);
  auto const ranks = saved.at("residual_ranks").as_int64();
  if (ranks != run.residual_ranks) {
    throw config_error(text("trireme::checkpoint: ", path, " holds the residuals of ", ranks,
                            " ranks, and this run has ", run.residual_ranks,
                            "; with error feedback a run goes on with as many ranks as it had"));
  }
}

template <class T, class Space>
std::vector<std::byte> bytes_of(tensor_view<T, Space> view) {
  std::vector<std::byte> bytes(view.bytes());
  ops::on<Space>::download(std::span<T>(reinterpret_cast<T*>(bytes.data()), static_cast<std::size_t>(view.size())),
                           view);
  return bytes;
}

/// Writes this rank's pieces. @returns the SHA-256 of the file's header, and its size.
template <class ForEach>
file_record write_pieces(std::string const& path, ForEach&& for_each, formats::file_system& files) {
  std::vector<formats::safetensors::entry> entries;
  formats::safetensors::metadata notes;
  std::set<std::string> boxes;
  for_each([&](std::string const& name, parameter_info const& part, std::int64_t first, auto view) {
    using element = typename decltype(view)::value_type;
    auto const piece = text(name, "@", first);
    entries.push_back(formats::safetensors::entry{piece, dtype_of<element>, shape{view.size()}});
    auto const bytes = bytes_of(view);
    notes.emplace_back("sha256:" + piece, sha256_text(bytes));
    if (boxes.insert(name).second) notes.emplace_back("box:" + name, box_text(part));
  });
  formats::safetensors::writer writer(path, std::move(entries), std::move(notes), {.files = &files});
  for_each([&](std::string const&, parameter_info const&, std::int64_t, auto view) { writer.write(bytes_of(view)); });
  writer.finish();
  return record_of(path, files);
}

}  // namespace detail

/// Collective. Writes a checkpoint and makes it the newest one.
///
/// @param for_each  calls its argument with (name, info, first, view) for each piece of this rank: elements from
///                  `first` on of the part of a tensor that the parameter_info says; called twice, in the same order.
/// Errors   on every rank, with the failing rank's sentence; then the checkpoints that were there still are, and no
///          temporary file is left.
template <class Comm, class ForEach>
void save(Comm& world, std::string const& directory, run_description const& run, progress const& at, ForEach&& for_each,
          formats::file_system& files = formats::real_files()) {
  using trireme::detail::together;
  auto const temporary = directory + "/" + detail::temporary_name;
  auto const name = detail::step_name(at.step);
  try {
    together(world, [&] {
      if (world.rank() == 0) detail::make_empty(directory, temporary, files);
    });
    detail::file_record own;
    together(world, [&] { own = detail::write_pieces(detail::rank_file(temporary, world.rank()), for_each, files); });
    auto const records = detail::gather(world, own);
    together(world, [&] {
      if (world.rank() != 0) return;
      auto const manifest = formats::json::value::make({{"format", detail::format_version},
                                                        {"run", detail::to_json(run)},
                                                        {"progress", detail::to_json(at)},
                                                        {"files", detail::to_json(records)}});
      detail::publish(directory, temporary, name, manifest, files);
    });
  } catch (...) {
    if (world.rank() == 0) detail::remove_tree(temporary, files);
    throw;
  }
}

/// Collective. Reads the newest checkpoint of a directory into the views that for_each hands out.
///
/// @param for_each  as for save(), but with every piece that this rank needs: ranks may take the same one.
/// @param elements  how many numbers this rank would write to a checkpoint; over all ranks it must hold as many.
/// Ranks    any number, whatever number wrote it.
/// Errors   io_error or format_error that names the file if there is none or if it is damaged; config_error that names
///          both if it was made by another run. Nothing on the device is changed. The views' contents are unspecified
///          after an error.
template <class Comm, class ForEach>
progress load(Comm& world, std::string const& directory, run_description const& run, ForEach&& for_each,
              std::int64_t elements, formats::file_system& files = formats::real_files()) {
  progress result;
  std::int64_t counts[2] = {elements, 0};  // asked for by the ranks, held by the checkpoint
  std::string path;
  trireme::detail::together(world, [&] {
    path = detail::newest(directory);
    auto const manifest = detail::read_manifest(path, files);
    detail::expect_same_run(path, manifest.at("run"), run);
    result = detail::progress_from(manifest.at("progress"));
    detail::piece_index index(path, manifest.at("files"), files);
    for_each([&](std::string const& name, parameter_info const& part, std::int64_t first, auto view) {
      using element = typename decltype(view)::value_type;
      using space = typename decltype(view)::space;
      auto const bytes = index.read(name, dtype_of<element>, part, first, view.size());
      ops::on<space>::upload(view, std::span<element const>(reinterpret_cast<element const*>(bytes.data()),
                                                            static_cast<std::size_t>(view.size())));
    });
    counts[1] = world.rank() == 0 ? index.elements() : 0;
  });
  world.all_reduce(tensor_view<std::int64_t>(counts, shape{2}), reduction::sum{});
  if (counts[0] != counts[1]) {
    throw format_error(path + "/manifest.json", 0,
                       text("the checkpoint holds ", counts[1], " numbers, but this run takes ", counts[0]));
  }
  return result;
}

/// Whether a directory holds a checkpoint (whole or damaged).
[[nodiscard]] inline bool exists(std::string const& directory) { return !detail::steps_in(directory).empty(); }

}  // namespace trireme::checkpoint
