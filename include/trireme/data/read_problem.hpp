#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::data {

/// A sample that was left out because it cannot be read, or whose reading takes long.
struct read_problem {
  std::int64_t sample = -1;  ///< its number in the dataset; -1: none
  std::int64_t samples = 1;  ///< read together, from this one on
  double seconds = 0;        ///< that reading has taken
  std::string reason{};      ///< why it was left out; empty: it was not

  friend bool operator==(read_problem const&, read_problem const&) = default;
};

/// "sample 7 was left out: pictures/a.png: ...", "reading sample 7 takes 12.5 s"
[[nodiscard]] inline std::string to_string(read_problem const& problem) {
  if (!problem.reason.empty()) return text("sample ", problem.sample, " was left out: ", problem.reason);
  auto const whole = [](double number) { return static_cast<std::int64_t>(number + 0.5); };
  auto const tenths = whole(problem.seconds * 10);
  return text(
      "reading sample ", problem.sample, problem.samples > 1 ? text(" and the ", problem.samples - 1, " after it") : "",
      " takes ",
      problem.seconds < 1 ? text(whole(problem.seconds * 1000), " ms") : text(tenths / 10, ".", tenths % 10, " s"));
}

/// A sample cannot be read. what() names it; std::rethrow_if_nested() gives what the dataset has thrown.
///
/// Exceptions of the types io_error and format_error keep their types: their sentences get the sample's number, if they
/// do not have it.
struct sample_error : error, std::nested_exception {
  sample_error(std::string const& message, std::int64_t number) : error(message), sample_(number) {}
  [[nodiscard]] std::int64_t sample() const noexcept { return sample_; }

 private:
  std::int64_t sample_;
};

}  // namespace trireme::data
