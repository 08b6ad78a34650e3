#pragma once

#include "11_exchange.hpp"

namespace ladder {

/// The value of rank `rank` at index i of a large message: cheap, exact in float, and a sum of three is rounded.
inline float large_value(int rank, std::int64_t i) {
  auto const bits = static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(rank) * 40503U;
  return static_cast<float>(static_cast<std::int32_t>(bits) >> 8);
}

/// 64 MiB through every collective, checked at both ends of each rank's part and here and there between.
template <class World>
class large_messages {
 public:
  using space = space_of_world<World>;
  large_messages(World& world, how way)
      : world_(world),
        p_(world.size()),
        me_(world.rank()),
        each_(static_cast<std::int64_t>(large_bytes / sizeof(float)) / p_),
        pattern_(static_cast<std::size_t>(each_ * p_)),
        from_(make(way)),
        to_(make(way)) {
    for (std::int64_t i = 0; i < each_ * p_; ++i) pattern_[static_cast<std::size_t>(i)] = large_value(me_, i);
  }

  void everything() {
    auto const all = each_ * p_;
    auto const view = to_.view();
    auto const input = tensor_view<float const, space>(from_.view());
    auto const total = [this](std::int64_t i) {
      float sum = 0;
      for (int rank = 0; rank < p_; ++rank) sum += large_value(rank, i);
      return sum;
    };
    fill(from_);
    run("all_reduce", [&] { world_.all_reduce(view); });
    check("all_reduce", 0, all, total, is_ordered<World>() ? 0 : 8);
    run("reduce_scatter", [&] { world_.reduce_scatter(view); });
    check("reduce_scatter", each_ * me_, each_, total, is_ordered<World>() ? 0 : 8);
    if constexpr (trireme::has_ragged_reduce_scatter<World, float, reduction::sum, space>) {
      auto const counts = ragged(p_, each_, 2);
      std::span<std::int64_t const> const slices(counts);
      auto const own = static_cast<std::size_t>(me_);
      run("ragged reduce_scatter", [&] { world_.reduce_scatter(view.flat(0, sum_of(slices)), slices); });
      check("ragged reduce_scatter", sum_of(slices.first(own)), slices[own], total, is_ordered<World>() ? 0 : 8);
    }
    run("broadcast", [&] { world_.broadcast(view, p_ - 1); });
    check("broadcast", 0, all, [this](std::int64_t i) { return large_value(p_ - 1, i); });
    run("all_gather", [&] { world_.all_gather(view); });
    for (int rank = 0; rank < p_; ++rank)
      check("all_gather", each_ * rank, each_, [rank](std::int64_t i) { return large_value(rank, i); });
    if constexpr (trireme::has_reduce<World, float, reduction::max, space>) {
      run("reduce", [&] { world_.reduce(view, p_ - 1, reduction::max{}); });
      check("reduce", 0, all, [this](std::int64_t i) {
        float most = large_value(me_, i);
        for (int rank = 0; me_ == p_ - 1 && rank < p_; ++rank) most = std::max(most, large_value(rank, i));
        return most;
      });
    }
    if constexpr (trireme::has_all_to_all<World, float, space>) {
      run("all_to_all", [&] { world_.all_to_all(input, view); });
      for (int rank = 0; rank < p_; ++rank)
        check("all_to_all", each_ * rank, each_,
              [&](std::int64_t i) { return large_value(rank, i + each_ * (me_ - rank)); });
    }
    if constexpr (trireme::has_gather<World, float, space>) {
      run("gather", [&] { world_.gather(input.flat(0, each_), me_ == 0 ? view : view.flat(0, 0), 0); });
      for (int rank = 0; me_ == 0 && rank < p_; ++rank)
        check("gather", each_ * rank, each_, [&](std::int64_t i) { return large_value(rank, i - each_ * rank); });
    }
    if constexpr (trireme::has_scatter<World, float, space>) {
      run("scatter", [&] { world_.scatter(me_ == 0 ? input : input.flat(0, 0), view.flat(0, each_), 0); });
      check("scatter", 0, each_, [&](std::int64_t i) { return large_value(0, i + each_ * me_); });
    }
    if constexpr (trireme::has_exchange<World, space>) {
      int const before = (me_ + p_ - 1) % p_;
      run("exchange", [&] {
        world_.exchange(
            transfers_of<World>{trireme::send_to((me_ + 1) % p_, from_.view()), trireme::receive_from(before, view)});
      });
      check("exchange", 0, all, [before](std::int64_t i) { return large_value(before, i); });
    }
  }

 private:
  [[nodiscard]] tensor<float, space> make(how way) {
    if constexpr (trireme::has_allocate<World, float, space>) {
      if (way.allocated) return world_.template allocate<float>(shape{each_ * p_});
    }
    return tensor<float, space>(shape{each_ * p_});
  }
  void fill(tensor<float, space> const& to) { memory<space>::put(to.view(), pattern_.data()); }
  template <class Action>
  void run(char const*, Action action) {
    fill(to_);
    action();
  }
  template <class Wanted>
  void check(char const* what, std::int64_t first, std::int64_t count, Wanted wanted, float tolerance = 0) {
    auto const got = memory<space>::get(to_.view());
    for (std::int64_t k = 0; k < count;
         k += k < 40 || k >= count - 40 ? 1 : std::min<std::int64_t>(1021, count - 40 - k)) {
      auto const i = first + k;
      auto const off = std::fabs(got[static_cast<std::size_t>(i)] - wanted(i));
      expect(off <= tolerance, "large ", what, " on ", World::name, ", rank ", me_, " of ", p_, ": element ", i,
             " is off by ", off);
    }
  }

  World& world_;
  int p_;
  int me_;
  std::int64_t each_;
  std::vector<float> pattern_;
  tensor<float, space> from_;
  tensor<float, space> to_;
};

template <class World>
void large(World& world) {
  large_messages<World>(world, {}).everything();
  // In host memory the communicator's own memory works in the same way.
  if constexpr (trireme::has_allocate<World, float, space_of_world<World>> &&
                !trireme::has_peers<World, float, space_of_world<World>>)
    large_messages<World>(world, {.allocated = true}).everything();
}

}  // namespace ladder
