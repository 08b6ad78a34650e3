#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "trireme/contract/numerics.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"

namespace trireme {

/// A tensor_view whose element type is known only at run time: datasets pass it to models.
///
/// Errors   as<T>(what) throws config_error if the elements are of another type; an empty view is valid for every type.
template <class Space = host>
struct any_view {
  void const* address = nullptr;
  dtype type = dtype::f32;
  shape extents;

  /// @param what  the name of these elements in error messages.
  template <element T>
  [[nodiscard]] tensor_view<T const, Space> as(char const* what = "elements") const {
    if (type != dtype_of<T>) {
      if (empty()) return {};
      throw config_error(
          text("trireme::samples: the ", what, " are ", name_of(type), ", but the model takes ", name_of(dtype_of<T>),
               "; pass a dataset of that type, or convert an array once with trireme::dense<",
               dtype_of<T> == dtype::i32 ? "std::int32_t" : "float", ">(array)",
               type == dtype::f64 && dtype_of<T> == dtype::f32 ? "; models in precision::fp64 accept both" : ""));
    }
    return {static_cast<T const*>(address), extents};
  }

  [[nodiscard]] std::int64_t size() const noexcept { return address == nullptr ? 0 : extents.size(); }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(size()) * size_of(type); }

  /// Rows [first, first + count) along the outermost axis.
  [[nodiscard]] any_view rows(std::int64_t first, std::int64_t count) const {
    shape part{count};
    for (int axis = 1; axis < extents.rank(); ++axis) part.push_back(extents[axis]);
    auto const row = extents[0] == 0 ? 0 : extents.size() / extents[0] * static_cast<std::int64_t>(size_of(type));
    return {static_cast<std::byte const*>(address) + first * row, type, part};
  }
};

/// A typed view, with its element type as a run-time value.
template <class T, class Space>
[[nodiscard]] any_view<Space> erase_type(tensor_view<T, Space> view) noexcept {
  return {view.address(), dtype_of<std::remove_const_t<T>>, view.extents()};
}

/// Some samples: inputs, targets and ids. A view: owns no memory.
///
/// Shapes   inputs (n, ...), targets (n, ...): the outermost axis is the sample; ids (n), or empty if nothing depends
///          on them. An id is the number of the sample in the whole dataset, the same on every rank: random numbers
///          (dropout) are drawn by id, so that they do not depend on which rank computes the sample.
template <class Space = host>
struct samples_in {
  any_view<Space> inputs;
  any_view<Space> targets;
  sample_ids_in<Space> ids;
  /// The number of the filling of staging memory that has these samples (batch_memory), unlike all others of the
  /// process; 0: they are elsewhere, and may change as soon as the step is over.
  std::uint64_t filling = 0;

  [[nodiscard]] std::int64_t count() const noexcept { return inputs.extents.rank() == 0 ? 0 : inputs.extents[0]; }
  /// Samples [first, first + n).
  [[nodiscard]] samples_in part(std::int64_t first, std::int64_t n) const {
    return {inputs.rows(first, n), targets.extents.rank() == 0 ? targets : targets.rows(first, n),
            ids.empty() ? ids : part_of(ids, first, n), filling};
  }

 private:
  static std::span<std::int64_t const> part_of(std::span<std::int64_t const> all, std::int64_t first, std::int64_t n) {
    return all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
  }
  static tensor_view<std::int64_t const, Space> part_of(tensor_view<std::int64_t const, Space> all, std::int64_t first,
                                                        std::int64_t n) {
    return all.flat(first, n);
  }
};

/// Samples in host memory.
using samples = samples_in<host>;

/// The type of a network's inputs and outputs: double in precision::fp64, else float.
template <class Env>
using sample_number = std::conditional_t<std::is_same_v<typename Env::compute, double>, double, float>;

/// Calls f with a batch's inputs or targets as floats, or, in precision::fp64, as floats or doubles.
/// Errors   config_error for other types, with the name `what`.
template <class Env, class Space, class F>
decltype(auto) with_numbers(any_view<Space> const& numbers, char const* what, F&& f) {
  if constexpr (std::is_same_v<sample_number<Env>, double>) {
    if (numbers.type == dtype::f64) return f(numbers.template as<double>(what));
  }
  return f(numbers.template as<float>(what));
}

/// Samples from the caller's arrays, e.g. the fields of a running solver.
///
/// Shapes  features (n, ...), targets (n, ...) or empty (to predict), ids (n) or empty.
/// Errors  throws config_error if the numbers of samples differ.
template <class X, class Y, class Space>
[[nodiscard]] samples_in<Space> make_samples(tensor_view<X, Space> features, tensor_view<Y, Space> targets,
                                             sample_ids_in<Space> ids = {}) {
  if (features.rank() == 0)
    throw config_error("trireme::make_samples: the features are a scalar; add a first axis, one row a sample");
  auto const count = features.extent(0);
  auto const wrong = [count](char const* what, std::int64_t found) {
    return config_error(
        text("trireme::make_samples: there are ", how_many(count, "row"), " of features but ", found, what));
  };
  if (!targets.empty() && targets.extent(0) != count) throw wrong(" rows of targets", targets.extent(0));
  if (!ids.empty() && static_cast<std::int64_t>(ids.size()) != count) {
    throw wrong(" sample numbers", static_cast<std::int64_t>(ids.size()));
  }
  return {erase_type(features), erase_type(targets), ids};
}

// The requirements of a dataset. Each is a concept of its own, so that the compiler can name the missing one.
template <class D>
concept has_sample_count = requires(D const& data) {
  { data.size() } -> std::same_as<std::int64_t>;
};
template <class D>
concept has_sample_types = requires(D const& data) {
  { data.input_type() } -> std::same_as<dtype>;
  { data.target_type() } -> std::same_as<dtype>;
};
template <class D>
concept has_sample_shapes = requires(D const& data) {
  { data.input_shape() } -> std::convertible_to<shape>;
  { data.target_shape() } -> std::convertible_to<shape>;
};
template <class D>
concept has_sample_read = requires(D const& data, std::span<std::int64_t const> ids, void* inputs, void* targets) {
  { data.read(ids, inputs, targets) } -> std::same_as<void>;
};

/// A numbered collection of samples, all of one shape.
///
/// Requires  size(): the number of samples, int64; input_type(), target_type(): their element types; input_shape(),
///           target_shape(): the shape of one sample; read(ids, inputs, targets) const: writes samples ids[0],
///           ids[1], ... one after another, dense and row-major, to two buffers of the caller.
/// Threads   read() is called from several threads at once.
/// Not required  copying, an order, randomness: the sampler chooses the order of samples, unless the dataset models
///           has_sample_order.
/// Models    data::function, data::in_memory, data::token_windows, data::held_out_windows, data::packed_windows,
///           data::token_shard_windows, data::array_file_samples, data::chat_samples, data::blend.
template <class D>
concept dataset = has_sample_count<D> && has_sample_types<D> && has_sample_shapes<D> && has_sample_read<D>;

/// Where in the order of a run samples are read: the seed and the epoch of the order, and the position of the first of
/// them. The others are at the positions that follow.
struct read_place {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::int64_t position = 0;
  friend bool operator==(read_place const&, read_place const&) = default;
};

/// A dataset whose samples depend on where in the order they are read, as augmented pictures do.
///
/// Requires  read(place, ids, inputs, targets) const, beside the other read(), with a read_place. The loader calls it;
///           evaluation and prediction call the other one. Random numbers that are drawn by (seed, epoch, number of the
///           sample) are the same on any number of ranks and after a resume.
/// Threads   it is called from several threads at once.
/// Models    data::augment; datasets made of others (data::blend, data::concat, data::subset, data::map of one,
///           data::any_dataset) pass the place on.
template <class D>
concept has_placed_read = requires(D const& data, read_place place, std::span<std::int64_t const> ids, void* inputs,
                                   void* targets) {
  { data.read(place, ids, inputs, targets) } -> std::same_as<void>;
};

/// Reads samples of any dataset at a place of the order.
template <dataset D>
void read_at(D const& data, [[maybe_unused]] read_place place, std::span<std::int64_t const> ids, void* inputs,
             void* targets) {
  if constexpr (has_placed_read<D>) {
    data.read(place, ids, inputs, targets);
  } else {
    data.read(ids, inputs, targets);
  }
}

/// A dataset that sets its own order, which the loader then uses instead of data::sampler.
///
/// Requires  epoch_size(): the number of positions in an epoch, int64, at least 1; id_at(seed, epoch, position): the
///           number of the sample there, from 0 to size() - 1. It depends on nothing else, so that the order is the
///           same on every rank and after a resume. A number may occur several times in an epoch, or never.
/// Threads   both are called from several threads at once.
/// Models    data::blend; data::map of one; data::any_dataset, which gives any other dataset the order of the sampler.
template <class D>
concept has_sample_order = requires(D const& data, std::uint64_t seed, std::uint64_t epoch, std::int64_t position) {
  { data.epoch_size() } -> std::same_as<std::int64_t>;
  { data.id_at(seed, epoch, position) } -> std::same_as<std::int64_t>;
};

/// A dataset that says whether reading a sample takes much computation, as decoding a picture does. By default the
/// loader then reads with several threads, sample by sample.
///
/// Requires  slow_to_read(): bool, the same on every rank.
/// Models    data::picture_folder_samples; those of other datasets: data::map, data::concat, data::subset, data::blend,
///           data::any_dataset.
template <class D>
concept has_reading_speed = requires(D const& data) {
  { data.slow_to_read() } -> std::same_as<bool>;
};

/// Whether reading a sample takes much computation; false if the dataset does not say.
template <dataset D>
[[nodiscard]] bool slow_to_read([[maybe_unused]] D const& data) {
  if constexpr (has_reading_speed<D>) {
    return data.slow_to_read();
  } else {
    return false;
  }
}

}  // namespace trireme
