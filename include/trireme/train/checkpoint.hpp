#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <optional>
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
#include "trireme/core/plural.hpp"
#include "trireme/core/sha256.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/formats/directory.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/model_files.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/parallel/broadcast.hpp"
#include "trireme/train/detail/checkpoint_files.hpp"
#include "trireme/train/detail/checkpoint_publish.hpp"
#include "trireme/train/detail/checkpoint_shards.hpp"
#include "trireme/train/detail/together.hpp"
#include "trireme/train/kept_checkpoints.hpp"
#include "trireme/train/patience.hpp"
#include "trireme/train/state_shard.hpp"

/// Checkpoints: the whole state of a run in one directory, either complete or absent.
///
/// DIRECTORY/step-0000000500/ holds manifest.json (the run, its progress, the list of files), manifest.sha256 (in
/// sha256sum's format) and one rank-N.safetensors per rank. Such a file holds pieces named "tensor@first element", each
/// with a SHA-256, and for each tensor the box of it that the rank holds; a piece is a range of elements of that box.
/// A directory belongs to one run, whose identity is in each manifest.
/// A piece records its position in its tensor and not its owner, so any number of ranks and any strategy or mesh can
/// read it. This is format 2; format 1, which had no boxes, is refused.
/// A checkpoint is written under a temporary name, flushed to the device and renamed; then the directory is flushed.
/// checkpoint::keeping sets which older ones are kept. A damaged checkpoint is renamed and the one before it is read.
namespace trireme::checkpoint {

/// The numbers that each rank keeps of its own: with error feedback or local steps.
struct own_numbers {
  int ranks = 0;              ///< that have some; 0: none has
  bool are_summands = true;   ///< only their sums count, so another number of ranks can divide them anew
  std::int64_t summands = 0;  ///< number of them, on all ranks
  std::uint64_t layout = 0;   ///< a hash of which rank has which
};

/// What a run consists of. A checkpoint of a run with another description is refused with both descriptions.
struct run_description {
  std::string model;
  std::string optimizer;
  std::string precision;
  std::string compression;
  own_numbers of_ranks{};
  std::int64_t learners = 1;  ///< that take steps apart, each with parameters and moments of its own
  /// How the sentence ends that refuses a checkpoint of another description; not saved.
  std::string remedy = "give the options that it was made with, or start another run";
};

/// The progress of a run.
struct progress {
  std::int64_t step = 0;
  std::int64_t updates = 0;  ///< steps that were not skipped
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::int64_t position = 0;  ///< samples of the current epoch that are used
  /// Counters of the policies' run states, by name ("precision/scale"): the bits of each number.
  std::map<std::string, std::uint64_t, std::less<>> numbers{};
  std::string data{};  ///< number and form of the epoch's samples; empty: not known

  template <class T>
  void write(std::string_view name, T number) {
    numbers.emplace(name, std::bit_cast<std::uint64_t>(number));
  }
  /// @param path  of the checkpoint, for the error message.
  template <class T>
  void read(std::string const& path, std::string_view name, T& number) const {
    auto const found = numbers.find(name);
    if (found == numbers.end()) {
      throw config_error(text("trireme::checkpoint: ", path, " does not have the number \"", name,
                              "\", which this run needs; another version of the program has written it"));
    }
    number = std::bit_cast<T>(found->second);
  }
  /// Numbers of which there may be any count, none included.
  void write_list(std::string_view name, std::span<std::int64_t const> all) {
    for (std::size_t i = 0; i < all.size(); ++i) write(text(name, '/', i), all[i]);
  }
  [[nodiscard]] std::vector<std::int64_t> list(std::string_view name) const {
    std::vector<std::int64_t> all;
    for (auto at = numbers.find(text(name, "/0")); at != numbers.end(); at = numbers.find(text(name, '/', all.size())))
      all.push_back(std::bit_cast<std::int64_t>(at->second));
    return all;
  }
};

/// The run that a directory's checkpoints belong to. Empty until the run first saves or loads; then 32 hexadecimal
/// digits, the same on every rank, which it keeps when it is resumed.
struct identity {
  std::string digits;
  friend bool operator==(identity const&, identity const&) = default;
};

/// A checkpoint that load() found damaged.
struct passed_over {
  std::string path;
  std::string reason;
  std::string kept_as;  ///< where it is now; empty if it could not be moved
  friend bool operator==(passed_over const&, passed_over const&) = default;
};

/// The result of load(); the same on every rank.
struct loaded {
  std::string path;
  progress at;
  std::vector<passed_over> damaged;                ///< newer ones, newest first
  std::vector<formats::model_file> model_files{};  ///< those that save() was given; on the first rank alone
};

namespace detail {

inline formats::json::value to_json(run_description const& run) {
  auto out = formats::json::value::make({{"model", run.model},
                                         {"optimizer", run.optimizer},
                                         {"precision", run.precision},
                                         {"compression", run.compression},
                                         {"residual_ranks", run.of_ranks.ranks}});
  if (run.learners > 1) out.set("learners", run.learners);
  if (run.of_ranks.ranks > 0) {
    out.set("residual_summands", run.of_ranks.are_summands);
    out.set("residual_layout", run.of_ranks.layout);
  }
  return out;
}
inline formats::json::value to_json(progress const& at) {
  formats::json::value numbers = formats::json::object{};
  for (auto const& [name, bits] : at.numbers) numbers.set(name, bits);
  return formats::json::value::make({{"step", at.step},
                                     {"updates", at.updates},
                                     {"seed", at.seed},
                                     {"epoch", at.epoch},
                                     {"position", at.position},
                                     {"data", at.data},
                                     {"numbers", std::move(numbers)}});
}
inline progress progress_from(formats::json::value const& from) {
  progress at{from.at("step").as_int64(), from.at("updates").as_int64(), from.at("seed").as_uint64(),
              from.at("epoch").as_uint64(), from.at("position").as_int64()};
  if (auto const* const numbers = from.find("numbers"); numbers != nullptr) {
    for (auto const& [name, number] : numbers->as_object()) at.numbers.emplace(name, number.as_uint64());
  }
  if (auto const* const data = from.find("data"); data != nullptr) at.data = data->as_string();
  // Far below the largest 64-bit number, so that later steps cannot overflow.
  if (at.step < 0 || at.step > std::int64_t{1} << 62) from.at("step").fail("not a step number");
  if (at.updates < 0 || at.updates > at.step) from.at("updates").fail("there are more updates than steps");
  if (at.position < 0) from.at("position").fail("not a position in an epoch");
  return at;
}

/// Refuses a checkpoint of another run; the message contains both descriptions.
/// @returns whether the ranks' own numbers must be divided anew, since other ranks had others.
inline bool expect_same_run(std::string const& path, formats::json::value const& saved, run_description const& run) {
  auto const expect = [&](char const* what, std::string const& theirs, std::string const& ours) {
    if (theirs == ours) return;
    throw config_error(text("trireme::checkpoint: ", path, " was made with the ", what, " ", theirs,
                            ", but this run has the ", what, " ", ours, "; ", run.remedy));
  };
  expect("model", saved.at("model").as_string(), run.model);
  expect("optimizer", saved.at("optimizer").as_string(), run.optimizer);
  expect("precision", saved.at("precision").as_string(), run.precision);
  expect("compression", saved.at("compression").as_string(), run.compression);
  auto const* const apart = saved.find("learners");
  if (auto const learners = apart == nullptr ? 1 : apart->as_int64(); learners != run.learners) {
    throw config_error(text("trireme::checkpoint: ", path, " is of ", how_many(learners, "learner"),
                            ", and this run has ", run.learners,
                            "; between outer steps each learner has parameters and moments of its own, so resume with "
                            "the same number of learners, of any number of ranks each"));
  }
  auto const ranks = saved.at("residual_ranks").as_int64();
  auto const* const layout = saved.find("residual_layout");
  if (ranks == run.of_ranks.ranks && (layout == nullptr || layout->as_uint64() == run.of_ranks.layout)) return false;
  auto const* const summands = saved.find("residual_summands");
  if (ranks > 0 && run.of_ranks.ranks > 0 && run.of_ranks.are_summands && summands != nullptr && summands->as_bool())
    return true;
  throw config_error(
      text("trireme::checkpoint: ", path, " holds numbers that belong to each of ", ranks, " ranks, and this run has ",
           run.of_ranks.ranks, ranks == run.of_ranks.ranks ? " ranks, with other parts of the model" : " ranks",
           "; numbers of ranks of which not only the sum counts need the same number of ranks under the same mesh"));
}

/// Writes this rank's pieces. @returns the SHA-256 of the file's header, and its size.
inline file_record write_shards(formats::directory const& in, std::string const& file,
                                std::span<state_shard const> shards, progress_reporter& reporter) {
  std::vector<formats::safetensors::entry> entries;
  formats::safetensors::metadata notes;
  std::set<std::string> boxes;
  std::vector<std::byte> scratch;
  for (auto const& each : shards) {
    auto const shard = text(each.name, "@", each.first);
    entries.push_back(formats::safetensors::entry{shard, each.type(), shape{each.size()}});
    notes.emplace_back("sha256:" + shard, sha256_text(each.content(scratch)));
    if (boxes.insert(each.name).second) {
      notes.emplace_back("box:" + each.name, box_text(each.box));
      if (each.summands > 0) notes.emplace_back("summands:" + each.name, text(each.summands));
    }
    reporter.add(each);
  }
  formats::safetensors::writer writer(in, file, std::move(entries), std::move(notes));
  for (auto const& each : shards) {
    writer.write(each.content(scratch));
    reporter.add(each);
  }
  writer.finish();
  return record_of(in, file);
}

/// Reads one checkpoint into the memory of the pieces. @returns its manifest.
inline formats::json::value read_checkpoint(formats::directory const& in, std::int64_t step, run_description const& run,
                                            std::span<state_shard const> shards, std::int64_t elements,
                                            progress_reporter& reporter) {
  auto manifest = read_manifest(in);
  bool const divide = expect_same_run(in.path(), manifest.at("run"), run);
  static_cast<void>(identity_in(manifest));
  auto const& at = manifest.at("progress");
  if (progress_from(at).step != step) at.at("step").fail(text("the directory's name says step ", step));
  shard_index index(in, manifest.at("files"));
  auto const held = index.elements() - (divide ? index.summands() : 0);
  if (auto const taken = elements - (divide ? run.of_ranks.summands : 0); held != taken) {
    throw format_error(in.path_of("manifest.json"), 0,
                       text("the checkpoint holds ", how_many(held, "number"), ", but this run takes ", taken));
  }
  for (auto const& each : shards) {
    each.upload(divide && each.summands > 0
                    ? index.read_part_of_sum(each.name, each.type(), each.box, each.first, each.size(), each.summands)
                    : index.read(each.name, each.type(), each.box, each.first, each.size()));
    reporter.add(each);
  }
  return manifest;
}

/// Collective. Throws on every rank unless the number is the same on all of them.
template <class Comm>
void expect_same_manifest(Comm& world, std::string const& path, formats::json::value const& manifest) {
  auto const content = formats::json::to_string(manifest);
  std::uint64_t number = 0;
  auto const digest = sha256().update(content).finish();
  std::memcpy(&number, digest.data(), sizeof number);
  if (parallel::is_same_everywhere(world, number)) return;
  throw io_error(path, "ranks have read different manifests; another program writes there, or the ranks' disks differ");
}

}  // namespace detail

namespace detail {

/// A checkpoint that is being written, in three steps. The first and the last are collective; in between each rank
/// writes its own file, which another thread may do.
///
/// Errors   in the first and the last step on every rank, with the failing rank's sentence. Unless the last step has
///          succeeded, the destructor removes what was written.
template <class Comm>
class writing {
 public:
  /// Collective. Checks that the directory belongs to the run, and makes a temporary directory in it.
  writing(Comm& world, std::string path, identity& own, run_description run, progress const& at, keeping const& keep,
          formats::file_system& files, std::vector<formats::model_file> model_files = {})
      : world_(world),
        path_(std::move(path)),
        run_(std::move(run)),
        at_(at),
        keep_(keep),
        files_(files),
        model_files_(std::move(model_files)) {
    expect_some_kept(keep);
    std::array<std::uint8_t, 32> digits{};
    trireme::detail::together(world_, [&] {
      if (world_.rank() != 0) return;
      if (own.digits.empty()) own.digits = drawn_identity();
      std::copy(own.digits.begin(), own.digits.end(), digits.begin());
      formats::make_directories(path_, files_);
      place_.home = open_home(path_, files_);
      finish_replacing(*place_.home);
      ours_ = claim(*place_.home, own.digits, at_.step);
      place_.temporary = make_temporary(*place_.home);
    });
    parallel::broadcast(world_,
                        tensor_view<std::uint8_t>(digits.data(), shape{static_cast<std::int64_t>(digits.size())}), 0);
    own.digits.assign(digits.begin(), digits.end());
    identity_ = own;
  }

  /// Writes this rank's file; the first rank also writes the files that came with the model.
  void write(std::span<state_shard const> shards, progress_reporter& reporter) {
    if (!place_.temporary) place_.temporary = open_home(path_, files_).below(temporary_name);
    if (world_.rank() == 0 && !model_files_.empty())
      about_model_files_ = write_model_files(*place_.temporary, model_files_);
    record_ = write_shards(*place_.temporary, rank_file(static_cast<std::size_t>(world_.rank())), shards, reporter);
  }

  /// Collective. Makes the checkpoint the newest one if all ranks have written their files.
  /// @param failure  the exception of write() on this rank, if there was one.
  void publish(std::exception_ptr const& failure) {
    trireme::detail::throw_together(world_, failure);
    auto const records = gather(world_, record_);
    trireme::detail::together(world_, [&] {
      if (world_.rank() != 0) return;
      auto manifest = formats::json::value::make({{"format", format_version},
                                                  {"identity", identity_.digits},
                                                  {"run", to_json(run_)},
                                                  {"progress", to_json(at_)},
                                                  {"files", to_json(records)}});
      if (!model_files_.empty()) manifest.set("model_files", about_model_files_);
      if (std::isfinite(keep_.held_out)) manifest.set("held_out", keep_.held_out);
      detail::publish(*place_.home, *place_.temporary, at_.step, manifest, ours_, keep_);
    });
    place_.home.reset();
  }

 private:
  // A separate member, so that it is also cleaned up when the constructor fails. Only rank 0 uses `home`.
  struct place {
    std::optional<formats::directory> home, temporary;
    place() = default;
    place(place const&) = delete;
    place& operator=(place const&) = delete;
    ~place() {
      if (!home || !temporary) return;
      try {
        remove_ours(*home, temporary_name);
      } catch (io_error const&) {  // the next save tries again
      }
    }
  };

  Comm& world_;
  std::string path_;
  run_description run_;
  progress at_;
  keeping keep_;
  formats::file_system& files_;
  identity identity_;
  std::vector<own_checkpoint> ours_;
  place place_;
  file_record record_;
  std::vector<formats::model_file> model_files_;
  formats::json::value about_model_files_;
};

}  // namespace detail

/// Collective. Writes a checkpoint and makes it the newest one.
///
/// @param keep      which older checkpoints of the run are kept.
/// @param own       the run's identity; drawn here if it has none yet.
/// @param shards    those of this rank. They are read twice: once to hash and once to write.
/// @param patience  the deadline and the progress callback.
/// @param model_files  files that came with the model, which load() returns; only the first rank's are used.
/// Errors   on every rank, with the failing rank's sentence; then the earlier checkpoints are unchanged, and no
///          temporary file is left. config_error if the directory belongs to another run, or holds later steps of this
///          one; then nothing in it was touched.
template <class Comm>
void save(Comm& world, std::string const& path, identity& own, run_description const& run, progress const& at,
          std::span<state_shard const> shards, formats::file_system& files = formats::real_files(),
          keeping const& keep = {}, patience const& patience = {},
          std::vector<formats::model_file> const& model_files = {}) {
  detail::writing<Comm> writing(world, path, own, run, at, keep, files, model_files);
  std::exception_ptr failure;
  try {
    detail::progress_reporter reporter(patience, 2, shards);
    writing.write(shards, reporter);
  } catch (std::exception const&) {
    failure = std::current_exception();
  }
  writing.publish(failure);
}

/// Collective. Reads the newest whole checkpoint of a directory into the memory of the pieces. If `path` is one
/// checkpoint ("DIRECTORY/step-0000000500"), reads that one.
///
/// A damaged checkpoint (a file is missing, cut or changed) is skipped and the one before it is tried. Once a whole one
/// is found, those skipped are renamed to "damaged-step-N". All ranks read the same one: if any rank finds damage in
/// its part, all ranks skip it.
///
/// @param own       becomes the identity of the run that is read.
/// @param shards    as for save(), but every piece that this rank needs: several ranks may read the same one.
/// @param elements  how many numbers this rank would write to a checkpoint; summed over all ranks, it must equal the
///                  number in the checkpoint.
/// Ranks    any number, whatever number of ranks wrote it.
/// Errors   io_error if there is none, if none is whole, or if one cannot be read for reasons other than damage;
///          config_error with both descriptions if another run made it. Then nothing on the device is changed, and the
///          memory of the pieces is unspecified.
template <class Comm>
loaded load(Comm& world, std::string path, identity& own, run_description const& run,
            std::span<state_shard const> shards, std::int64_t elements,
            formats::file_system& files = formats::real_files(), patience const& patience = {}) {
  using trireme::detail::together;
  while (path.size() > 1 && path.ends_with('/'))
    path.pop_back();  // the path of one checkpoint may end with one as well
  std::optional<formats::directory> home;
  std::vector<std::int64_t> steps;  // not tried yet; on rank 0
  auto const one = detail::step_of(formats::name_of(path));
  together(world, [&] {
    home = detail::home_of_checkpoints(one ? formats::directory_of(path) : path, files);
    if (world.rank() != 0) return;
    detail::finish_replacing(*home);
    steps = detail::steps_in(*home);
    if (one) std::erase_if(steps, [&](std::int64_t each) { return each != *one; });
    if (steps.empty()) throw detail::no_checkpoint(path);
  });
  world.all_reduce(tensor_view<std::int64_t>(&elements, shape{1}), reduction::sum{});
  loaded result;
  detail::progress_reporter reporter(patience, 1, shards);
  for (;;) {
    std::int64_t step = steps.empty() ? -1 : steps.back();
    parallel::broadcast(world, tensor_view<std::int64_t>(&step, shape{1}), 0);
    if (step < 0) {
      if (one) {
        throw io_error(path,
                       text("this checkpoint is damaged (", result.damaged.front().reason, "); load another one"));
      }
      throw io_error(path, text("no checkpoint here is whole; of the newest: ", result.damaged.front().reason));
    }
    result.path = home->path_of(detail::step_name(step));
    formats::json::value manifest;
    std::string damage;
    together(world, [&] {
      damage = detail::damage_in([&] {
        auto const in = home->below(detail::step_name(step));
        manifest = detail::read_checkpoint(in, step, run, shards, elements, reporter);
        if (world.rank() == 0) result.model_files = detail::read_model_files(in, manifest);
      });
    });
    if (auto const found = trireme::detail::first_failure(world, damage)) {
      result.damaged.push_back({result.path, found->sentence, {}});
      if (!steps.empty()) steps.pop_back();
      continue;
    }
    detail::expect_same_manifest(world, result.path, manifest);
    result.at = detail::progress_from(manifest.at("progress"));
    own.digits = detail::identity_in(manifest);
    break;
  }
  for (auto& each : result.damaged) {
    auto const name = formats::name_of(each.path);
    std::int64_t number = world.rank() == 0 ? detail::set_aside(*home, name) : 0;
    parallel::broadcast(world, tensor_view<std::int64_t>(&number, shape{1}), 0);
    if (number > 0) each.kept_as = home->path_of(detail::kept_name(name, static_cast<int>(number)));
  }
  return result;
}

/// Whether a directory holds a checkpoint (whole or damaged). Throws io_error if it is there but cannot be read.
[[nodiscard]] inline bool exists(std::string const& path, formats::file_system& files = formats::real_files()) {
  try {
    return !detail::steps_in(detail::open_home(path, files)).empty();
  } catch (io_error const& problem) {
    if (problem.number() != ENOENT) throw;
    return false;
  }
}

/// Removes what an interrupted save has left in a directory, as the next save there would. Nothing else may be saving
/// there. Files that cannot be removed stay, as do files that are not a checkpoint's.
inline void remove_unfinished(std::string const& path, formats::file_system& files = formats::real_files()) {
  try {
    auto const home = detail::open_home(path, files);
    detail::remove_ours(home, detail::temporary_name);
    detail::finish_replacing(home);
  } catch (io_error const&) {  // the next save reports it
  }
}

}  // namespace trireme::checkpoint
