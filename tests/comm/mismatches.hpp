#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "trireme/contract/communicator.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"

/// Eight ways in which rank 1 can call another collective than the other ranks, and the expected errors.
namespace mismatches {

using trireme::tensor_view;

struct mismatch {
  std::string_view name;
  /// Regular expressions for rank 0's call, and for rank 1's (of a missing call: its last one).
  char const* usual;
  char const* odd;
};

inline constexpr std::array<mismatch, 8> all{{
    {"operation", R"(all_reduce\(F32, 60 elements, sum\))", R"(all_gather\(F32, 60 elements\))"},
    {"type", R"(all_reduce\(F32, 60 elements, sum\))", R"(all_reduce\(F64, 60 elements, sum\))"},
    {"count", R"(all_reduce\(F32, 60 elements, sum\))", R"(all_reduce\(F32, 48 elements, sum\))"},
    {"root", R"(broadcast\(F32, 60 elements, root 0\))", R"(broadcast\(F32, 60 elements, root 1\))"},
    {"reduction", R"(all_reduce\(F32, 60 elements, sum\))", R"(all_reduce\(F32, 60 elements, max\))"},
    {"order", R"(reduce_scatter\(F32, 60 elements, sum\))", R"(all_reduce\(F32, 60 elements, sum\))"},
    {"group", R"(all_reduce\(F32, 60 elements, sum\))", R"(all_reduce\(F32, 60 elements, sum\))"},
    {"missing call", R"(all_reduce\(F32, 60 elements, sum\))", "barrier"},
}};

/// A rank's part in one of them: the first call is a barrier, the second differs.
template <class World>
void commit(World& world, std::string_view which, std::chrono::milliseconds absence) {
  namespace reduction = trireme::reduction;
  bool const odd = world.rank() == 1;
  std::vector<float> values(60);
  std::vector<double> doubles(60);
  tensor_view const usual{values};
  if (which == "group") {
    auto other = world.split(0, world.rank());
    world.barrier();
    (odd ? other : world).all_reduce(usual);
    return;
  }
  world.barrier();
  if (which == "operation") {
    if (odd)
      world.all_gather(usual);
    else
      world.all_reduce(usual);
  } else if (which == "type") {
    if (odd)
      world.all_reduce(tensor_view{doubles});
    else
      world.all_reduce(usual);
  } else if (which == "count") {
    world.all_reduce(tensor_view(values.data(), trireme::shape{odd ? 48 : 60}));
  } else if (which == "root") {
    world.broadcast(usual, odd ? 1 : 0);
    world.barrier();  // in shared memory a root does not wait: it detects the error at its next call
  } else if (which == "reduction") {
    if (odd)
      world.all_reduce(usual, reduction::max{});
    else
      world.all_reduce(usual);
  } else if (which == "order") {
    auto first = odd ? world.all_reduce_async(usual) : world.reduce_scatter_async(usual);
    auto second = odd ? world.reduce_scatter_async(tensor_view{doubles}) : world.all_reduce_async(tensor_view{doubles});
    first.wait();
    second.wait();
  } else {
    if (odd) std::this_thread::sleep_for(absence);
    world.all_reduce(usual);
  }
}

/// The error on this rank; empty if there is none.
template <class World>
std::string told(World& world, std::string_view which, std::chrono::milliseconds absence) {
  try {
    commit(world, which, absence);
  } catch (trireme::comm_error const& problem) {
    return problem.what();
  }
  return {};
}

}  // namespace mismatches
