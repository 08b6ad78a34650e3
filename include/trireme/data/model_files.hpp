#pragma once

#include <algorithm>
#include <concepts>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/contract/dataset.hpp"
#include "trireme/formats/model_files.hpp"

namespace trireme::data {

/// A dataset with files that a model trained on it needs later, as the means and categories of a table's columns are.
///
/// Why: fit() hands them to the trainer, whose checkpoints keep them and whose save_pretrained() writes them beside the
/// model. An epoch is continued only with the same ones.
///
/// Requires  model_files(): a std::vector<formats::model_file>, the same on every rank.
/// Models    data::csv_samples; data::map, data::augment, data::subset, data::concat, data::blend, data::curriculum and
///           data::any_dataset pass on those of the datasets in them.
template <class D>
concept has_model_files = requires(D const& data) {
  { data.model_files() } -> std::same_as<std::vector<formats::model_file>>;
};

/// The files of a dataset; none if it does not say.
template <dataset D>
[[nodiscard]] std::vector<formats::model_file> model_files_of([[maybe_unused]] D const& data) {
  if constexpr (has_model_files<D>) {
    return data.model_files();
  } else {
    return {};
  }
}

namespace detail {

/// Adds files to others; one of the same name is replaced.
inline void merge_model_files(std::vector<formats::model_file>& to, std::vector<formats::model_file> more) {
  for (auto& each : more) {
    auto const same =
        std::find_if(to.begin(), to.end(), [&](formats::model_file const& one) { return one.name == each.name; });
    if (same == to.end()) {
      to.push_back(std::move(each));
    } else {
      same->content = std::move(each.content);
    }
  }
}

}  // namespace detail

}  // namespace trireme::data
