#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/core/dtype.hpp"
#include "trireme/data/detail/joined_arrays.hpp"
#include "trireme/data/detail/stable_file.hpp"
#include "trireme/data/file_list.hpp"

namespace trireme::data {

class array_file_samples;

/// Samples in numpy's .npy files: row s of the features and row s of the targets are sample s.
///
///     data::array_files{.features = "fields_*.npy", .targets = "fluxes_*.npy", .features_as = dtype::f32}.open()
///
/// Several files follow each other along the first axis. Files are not loaded: rows are read by position when they are
/// needed. Of arrays in column-major order (`fortran_order`) each number is read by itself, which is slow.
///
/// Errors   open() throws config_error if nothing matches, if rows differ in shape or type between files, if features
///          and targets differ in their number of rows, or if a type needs a conversion that was not asked for;
///          format_error and io_error, with the file and the byte, for a damaged file.
struct array_files {
  file_list features{};
  file_list targets{};
  std::optional<dtype> features_as{};  ///< f32 or i32: convert the numbers; else they are what the files hold
  std::optional<dtype> targets_as{};
  [[nodiscard]] array_file_samples open() const;
  friend bool operator==(array_files const&, array_files const&) = default;
};

/// "trireme::data::array_files{.features = "x.npy", .targets = "y.npy"}"
[[nodiscard]] inline std::string to_string(array_files const& from) {
  return text("trireme::data::array_files{.features = ", to_string(from.features),
              ", .targets = ", to_string(from.targets), detail::conversion_field("features_as", from.features_as),
              detail::conversion_field("targets_as", from.targets_as), "}");
}

/// The samples of array_files.
///
/// Shapes   one sample's are those of the arrays without their first axis.
/// Numerics f64 and integers are rounded to the nearest f32; numbers beyond those of f32, and integers that do not fit
///          i32, are refused by sample.
/// Threads  read() is const: any number of callers. Copies share the open files.
/// @models trireme::dataset
class array_file_samples : public detail::array_pair {
 public:
  explicit array_file_samples(array_files const& from)
      : array_pair{who,  // braces, so that features are opened first
                   {who, opened(from.features), from.features_as, "features"},
                   "features",
                   {who, opened(from.targets), from.targets_as, "targets"},
                   "targets"} {}

 private:
  static constexpr char const* who = "trireme::data::array_files";
  static std::vector<detail::named_array> opened(file_list const& files) {
    std::vector<detail::named_array> out;
    for (auto& name : files.names(who, {".npy"})) {
      auto file = std::make_shared<detail::stable_file const>(name, who);
      auto const size = file->size();
      out.push_back({std::move(name), {std::move(file), 0, size}});
    }
    return out;
  }
};

inline array_file_samples array_files::open() const { return array_file_samples(*this); }

}  // namespace trireme::data
