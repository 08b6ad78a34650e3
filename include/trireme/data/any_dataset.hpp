#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/data/model_files.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/formats/model_files.hpp"

namespace trireme::data {

/// Holds a reference to any dataset, for code that must not be a template over it.
///
/// Bytes    three pointers; borrows the dataset, which must outlive it. One indirect call per batch.
/// @models trireme::dataset, trireme::has_sample_order, trireme::has_placed_read
class any_dataset {
 public:
  template <dataset Dataset>
  requires(!std::same_as<Dataset, any_dataset>)
      any_dataset(Dataset const& data)  // NOLINT(google-explicit-constructor): every dataset converts
      : data_(&data), table_(&table_of<Dataset>) {}

  [[nodiscard]] std::int64_t size() const { return table_->size(data_); }
  [[nodiscard]] dtype input_type() const { return table_->input_type(data_); }
  [[nodiscard]] dtype target_type() const { return table_->target_type(data_); }
  [[nodiscard]] shape input_shape() const { return table_->input_shape(data_); }
  [[nodiscard]] shape target_shape() const { return table_->target_shape(data_); }
  void read(std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    table_->read(data_, ids, inputs, targets);
  }
  void read(read_place place, std::span<std::int64_t const> ids, void* inputs, void* targets) const {
    table_->read_at(data_, place, ids, inputs, targets);
  }
  /// Whether it is the dataset that sets the order; otherwise it is that of the sampler.
  [[nodiscard]] bool sets_order() const { return table_->sets_order(data_); }
  [[nodiscard]] std::int64_t epoch_size() const { return table_->epoch_size(data_); }
  [[nodiscard]] std::int64_t id_at(std::uint64_t seed, std::uint64_t epoch, std::int64_t position) const {
    return table_->id_at(data_, seed, epoch, position);
  }
  [[nodiscard]] bool slow_to_read() const { return table_->slow_to_read(data_); }
  [[nodiscard]] std::vector<formats::model_file> model_files() const { return table_->model_files(data_); }

 private:
  struct table {
    std::int64_t (*size)(void const*);
    dtype (*input_type)(void const*);
    dtype (*target_type)(void const*);
    shape (*input_shape)(void const*);
    shape (*target_shape)(void const*);
    void (*read)(void const*, std::span<std::int64_t const>, void*, void*);
    void (*read_at)(void const*, read_place, std::span<std::int64_t const>, void*, void*);
    bool (*sets_order)(void const*);
    std::int64_t (*epoch_size)(void const*);
    std::int64_t (*id_at)(void const*, std::uint64_t, std::uint64_t, std::int64_t);
    bool (*slow_to_read)(void const*);
    std::vector<formats::model_file> (*model_files)(void const*);
  };
  template <class Dataset>
  static Dataset const& as(void const* data) {
    return *static_cast<Dataset const*>(data);
  }
  template <class Dataset>
  static constexpr table table_of{
      [](void const* data) { return as<Dataset>(data).size(); },
      [](void const* data) { return as<Dataset>(data).input_type(); },
      [](void const* data) { return as<Dataset>(data).target_type(); },
      [](void const* data) -> shape { return as<Dataset>(data).input_shape(); },
      [](void const* data) -> shape { return as<Dataset>(data).target_shape(); },
      [](void const* data, std::span<std::int64_t const> numbers, void* inputs, void* targets) {
        as<Dataset>(data).read(numbers, inputs, targets);
      },
      [](void const* data, read_place place, std::span<std::int64_t const> numbers, void* inputs, void* targets) {
        trireme::read_at(as<Dataset>(data), place, numbers, inputs, targets);
      },
      [](void const* data) { return detail::sets_order(as<Dataset>(data)); },
      [](void const* data) { return detail::epoch_size(as<Dataset>(data)); },
      [](void const* data, std::uint64_t seed, std::uint64_t epoch, std::int64_t position) {
        auto const& of = as<Dataset>(data);
        return detail::id_at(of, {.samples = of.size(), .seed = seed}, epoch, position);
      },
      [](void const* data) { return trireme::slow_to_read(as<Dataset>(data)); },
      [](void const* data) { return model_files_of(as<Dataset>(data)); }};

  void const* data_;
  table const* table_;
};

}  // namespace trireme::data
