#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"

namespace trireme::detail {

/// Runs f on every rank and makes its failure everybody's: the ranks that failed throw what f threw, the others an
/// error with the first failed rank's sentence. So no rank goes on into a collective that another one never reaches.
template <class Comm, class F>
void together(Comm& world, F&& f) {
  std::exception_ptr failure;
  std::string sentence;
  try {
    f();
  } catch (std::exception const& problem) {
    failure = std::current_exception();
    sentence = problem.what();
  }
  std::int32_t first = failure ? world.rank() : world.size();
  world.all_reduce(tensor_view<std::int32_t>(&first, shape{1}), reduction::min{});
  if (first == world.size()) return;
  std::array<std::uint8_t, 1024> letters{};
  if (world.rank() == first) {
    std::copy_n(sentence.begin(), std::min(sentence.size(), letters.size() - 1), letters.begin());
  }
  world.broadcast(tensor_view<std::uint8_t>(letters.data(), shape{static_cast<std::int64_t>(letters.size())}), first);
  if (failure) std::rethrow_exception(failure);
  throw error(text("rank ", first, " failed: ", std::string_view(reinterpret_cast<char const*>(letters.data()))));
}

}  // namespace trireme::detail
