#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/core/dtype.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/text.hpp"
#include "trireme/data/model_files.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/formats/model_files.hpp"

namespace trireme::data {

/// The shapes of samples that a function of data::map makes. An empty shape is that of the source.
struct mapped_shapes {
  shape inputs{}, targets{};
  friend bool operator==(mapped_shapes const&, mapped_shapes const&) = default;
};

namespace detail {

template <class Call>
struct map_signature {};
template <class F, class Input, class Target>
struct map_signature<void (F::*)(std::int64_t, std::span<Input>, std::span<Target>) const> {
  static constexpr bool in_place = true;
  using input = Input;
  using target = Target;
  using from_input = Input;
  using from_target = Target;
};
template <class F, class FromInput, class FromTarget, class Input, class Target>
struct map_signature<void (F::*)(std::int64_t, std::span<FromInput const>, std::span<FromTarget const>,
                                 std::span<Input>, std::span<Target>) const> {
  static constexpr bool in_place = false;
  using input = Input;
  using target = Target;
  using from_input = FromInput;
  using from_target = FromTarget;
};

/// Whether a function can change samples: it has one call operator, with the arguments of data::map.
template <class F>
concept sample_function = requires {
  { map_signature<decltype(&F::operator())>::in_place } -> std::convertible_to<bool>;
};

}  // namespace detail

/// Samples of another dataset, each changed by a function when it is read. Made by data::map.
/// @models trireme::dataset; trireme::has_sample_order and trireme::has_placed_read if the source does
template <dataset Source, detail::sample_function F>
class mapped {
  using signature = detail::map_signature<decltype(&F::operator())>;
  using input = typename signature::input;
  using target = typename signature::target;
  using from_input = typename signature::from_input;
  using from_target = typename signature::from_target;

 public:
  mapped(Source source, F f, mapped_shapes shapes)
      : source_(std::move(source)),
        f_(std::move(f)),
        inputs_(shapes.inputs.rank() == 0 ? shape(source_.input_shape()) : shapes.inputs),
        targets_(shapes.targets.rank() == 0 ? shape(source_.target_shape()) : shapes.targets) {
    expect(source_.input_type(), dtype_of<from_input>, "inputs");
    expect(source_.target_type(), dtype_of<from_target>, "targets");
    if (signature::in_place && (inputs_ != shape(source_.input_shape()) || targets_ != shape(source_.target_shape()))) {
      throw config_error(
          "trireme::data::map: a function that changes samples in place keeps their shapes; take the samples of the "
          "source as two arguments of std::span<T const> before those that are written");
    }
  }

  [[nodiscard]] std::int64_t size() const { return source_.size(); }
  [[nodiscard]] dtype input_type() const noexcept { return dtype_of<input>; }
  [[nodiscard]] dtype target_type() const noexcept { return dtype_of<target>; }
  [[nodiscard]] shape input_shape() const { return inputs_; }
  [[nodiscard]] shape target_shape() const { return targets_; }
  [[nodiscard]] bool sets_order() const { return detail::sets_order(source_); }
  [[nodiscard]] std::int64_t epoch_size() const requires has_sample_order<Source> { return source_.epoch_size(); }
  [[nodiscard]] std::int64_t id_at(std::uint64_t seed, std::uint64_t epoch,
                                   std::int64_t position) const requires has_sample_order<Source> {
    return source_.id_at(seed, epoch, position);
  }
  [[nodiscard]] bool slow_to_read() const { return trireme::slow_to_read(source_); }
  [[nodiscard]] std::vector<formats::model_file> model_files() const { return model_files_of(source_); }

  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    change(ids, inputs, targets, [&](void* to, void* and_to) { source_.read(ids, to, and_to); });
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs,
            void* targets) const requires has_placed_read<Source> {
    change(ids, inputs, targets, [&](void* to, void* and_to) { source_.read(place, ids, to, and_to); });
  }

 private:
  template <class Read>
  void change(std::span<std::int64_t const> ids, void* inputs, void* targets, Read const& read_source) const {
    auto const width = size_of_one(inputs_), height = size_of_one(targets_);
    auto const to_input = [&](std::size_t row) { return std::span(static_cast<input*>(inputs) + row * width, width); };
    auto const to_target = [&](std::size_t row) {
      return std::span(static_cast<target*>(targets) + row * height, height);
    };
    if constexpr (signature::in_place) {
      read_source(inputs, targets);
      for (std::size_t row = 0; row < ids.size(); ++row) f_(ids[row], to_input(row), to_target(row));
    } else {
      auto const from_width = size_of_one(source_.input_shape()), from_height = size_of_one(source_.target_shape());
      std::vector<from_input> all_inputs(ids.size() * from_width);
      std::vector<from_target> all_targets(ids.size() * from_height);
      read_source(all_inputs.data(), all_targets.data());
      for (std::size_t row = 0; row < ids.size(); ++row) {
        f_(ids[row], std::span<from_input const>(all_inputs).subspan(row * from_width, from_width),
           std::span<from_target const>(all_targets).subspan(row * from_height, from_height), to_input(row),
           to_target(row));
      }
    }
  }
  static std::size_t size_of_one(shape const& of) { return static_cast<std::size_t>(of.size()); }
  static void expect(dtype found, dtype taken, char const* what) {
    if (found == taken) return;
    throw config_error(text("trireme::data::map: the function takes ", what, " of ", name_of(taken),
                            ", but those of the source are ", name_of(found)));
  }
  Source source_;
  F f_;
  shape inputs_, targets_;
};

/// A dataset whose samples are changed by a function when they are read.
///
///     data::map(pictures, [](std::int64_t id, std::span<float> inputs, std::span<std::int32_t> targets) { ... })
///
/// The function is called once for each sample, with its number. It changes inputs and targets in place; or it takes
/// those of the source as two more arguments, and writes others, of any type and of the shapes that are given:
///
///     data::map(pictures, [](std::int64_t id, std::span<std::uint8_t const> from, std::span<std::int32_t const> label,
///                            std::span<float> inputs, std::span<std::int32_t> targets) { ... }, {.inputs = {28, 28}})
///
/// Threads  the function is called by several threads at once. Random numbers that are drawn by the sample's number
///          (trireme::random_block) are the same on any number of ranks and after a resume.
/// Errors   config_error if the types of the function are not those of the source; what the function throws is thrown
///          by loader::next(), in a data::sample_error that names the sample.
template <dataset Source, detail::sample_function F>
[[nodiscard]] mapped<Source, F> map(Source source, F f, mapped_shapes shapes = {}) {
  return {std::move(source), std::move(f), std::move(shapes)};
}

}  // namespace trireme::data
