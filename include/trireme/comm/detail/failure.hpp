#pragma once

#include <exception>
#include <string>

#include "trireme/core/dialect.hpp"

namespace trireme::comm::detail {

/// The message of an exception of any type.
[[nodiscard]] inline std::string sentence_of(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (std::exception const& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace trireme::comm::detail
