#pragma once

#include "trireme/parallel/schedules/schedules.hpp"

/// A schedule of one's own: one micro-batch after the other. With `Swapped` the last stage takes every second one
/// first, for which the others wait in vain; with `Missing` the last backwards are left out.
template <int Swapped, int Missing = 0>
struct hasty {
  static constexpr std::string_view name = "hasty";
  static constexpr trireme::schedule::placement where = trireme::schedule::placement::straight;
  static constexpr int chunks = 1;
  static constexpr char const* refuses(trireme::schedule::size const&) { return nullptr; }
  static constexpr void steps(trireme::schedule::size const& of, int stage, auto&& emit) {
    using trireme::schedule::work;
    for (int k = 0; k < of.micro_batches; ++k) {
      int const m = stage + 1 == of.stages ? k ^ Swapped : k;
      emit({.kind = work::forward, .micro_batch = m});
      if (k < of.micro_batches - Missing) emit({.kind = work::backward, .micro_batch = m});
    }
  }
};
