#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/parallel/broadcast.hpp"

namespace trireme::detail {

/// The first rank with a non-empty sentence, and that sentence (its first kilobyte); the same on every rank.
struct rank_failure {
  int rank = 0;
  std::string sentence;
};

/// Collective. The first rank whose sentence is not empty; nothing if all are.
template <class Comm>
[[nodiscard]] std::optional<rank_failure> first_failure(Comm& world, std::string const& sentence) {
  std::int64_t first = sentence.empty() ? world.size() : world.rank();
  world.all_reduce(tensor_view<std::int64_t>(&first, shape{1}), reduction::min{});
  if (first == world.size()) return std::nullopt;
  auto const rank = static_cast<int>(first);
  std::array<std::uint8_t, 1024> letters{};
  if (world.rank() == rank) {
    std::copy_n(sentence.begin(), std::min(sentence.size(), letters.size() - 1), letters.begin());
  }
  parallel::broadcast(
      world, tensor_view<std::uint8_t>(letters.data(), shape{static_cast<std::int64_t>(letters.size())}), rank);
  return rank_failure{rank, reinterpret_cast<char const*>(letters.data())};
}

/// Runs f on every rank and reports its failure on all of them: the ranks that failed throw what f threw, the others an
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
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure && sentence.empty()) sentence = "an exception without a message";
  auto const first = first_failure(world, sentence);
  if (!first) return;
  if (failure) std::rethrow_exception(failure);
  throw error(text("rank ", first->rank, " failed: ", first->sentence));
}

/// Collective. The same for a failure that could not be thrown when it occurred, because other ranks continued.
template <class Comm>
void throw_together(Comm& world, std::exception_ptr const& failure) {
  together(world, [&] {
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace trireme::detail
