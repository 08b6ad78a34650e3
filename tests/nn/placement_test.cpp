#include "trireme/nn/placement.hpp"

#include <array>
#include <cstddef>

#include "../catch.hpp"

using namespace trireme::nn;

namespace {

constexpr layer_says linear{.does = flow::product, .takes_activation = true};
constexpr layer_says act{.does = flow::any, .activation = true};
constexpr layer_says drop{.does = flow::any};
constexpr layer_says norm{.does = flow::rows};
constexpr layer_says heads{.does = flow::columns};
constexpr layer_says experts{.does = flow::all};
constexpr layer_says gate{.does = flow::fork, .spreads = true, .shares_entry = true};

template <std::size_t N>
struct placed {
  std::array<layer_step, N> steps{};
  placement found{};
};
template <class... L>
constexpr auto place(lie entry, lie exit, L... layers) {
  placed<sizeof...(L)> out;
  std::array<layer_says, sizeof...(L)> const all{layers...};
  out.found = resolve(all, out.steps, entry, exit);
  return out;
}
template <class... L>
constexpr auto in_rows(L... layers) {
  return place(lie::rows, lie::rows, layers...);
}

// The branches of a GPT's block.
constexpr auto attended = in_rows(norm, linear, heads, linear, drop);
static_assert(attended.found.fits() && attended.found.last == lie::rows);
static_assert(attended.steps[0].as == role::here && !attended.steps[0].gathers());
static_assert(attended.steps[1].as == role::spread && attended.steps[1].gathers());
static_assert(attended.steps[2].takes == lie::columns && attended.steps[2].gives == lie::columns);
static_assert(attended.steps[3].as == role::collect && attended.steps[3].partial);
static_assert(attended.steps[4].takes == lie::rows);

constexpr auto both = in_rows(norm, linear, act, linear, drop);
static_assert(both.found.fits());
static_assert(both.steps[1].as == role::spread && both.steps[1].fused && both.steps[2].absorbed);
static_assert(both.steps[3].as == role::collect && !both.steps[3].fused);

// Dropout between the products changes nothing of that.
constexpr auto dropped = in_rows(linear, act, drop, linear);
static_assert(dropped.steps[0].as == role::spread && dropped.steps[2].takes == lie::columns &&
              dropped.steps[3].partial);

// Alone, in threes and in front of a norm: a product is whole where nobody takes its columns.
static_assert(in_rows(linear).steps[0].as == role::whole);
static_assert(in_rows(linear, norm).steps[0].as == role::whole);
constexpr auto three = in_rows(linear, linear, linear);
static_assert(three.found.fits() && three.steps[0].as == role::whole && three.steps[1].as == role::spread &&
              three.steps[2].as == role::collect);
// An activation behind a sum is no part of its product; behind a whole product it is.
static_assert(!in_rows(linear, linear, act).steps[1].fused && in_rows(linear, act).steps[0].fused);

// A gate between products is cut with them; before a norm it is whole.
constexpr auto gated = in_rows(norm, gate, linear);
static_assert(gated.found.fits() && gated.steps[1].as == role::spread && gated.steps[1].gathers());
static_assert(in_rows(gate, norm).steps[0].as == role::whole && !in_rows(gate, norm).steps[0].gathers());
static_assert(in_rows(norm, experts, norm).steps[1].gathers());

// What branches of a gate can do.
template <class... L>
constexpr layer_says branch(L... layers) {
  std::array<layer_says, sizeof...(L)> const all{layers...};
  std::array<layer_step, sizeof...(L)> steps{};
  return branch_says(all, steps);
}
static_assert(branch(linear, act).spreads && branch(linear, act).shares_entry);
static_assert(branch(drop, linear).shares_entry);
static_assert(branch(norm, linear).spreads && !branch(norm, linear).shares_entry);
static_assert(!branch(act).spreads && !branch(norm).spreads && !branch(linear, norm).spreads);
static_assert(branch(linear, linear).spreads && !branch(linear, linear).shares_entry);

// What does not fit, and which layer it is.
constexpr bool is(placement const& found, misfit what, std::size_t where) {
  return found.what == what && found.where == where;
}
static_assert(is(in_rows(norm, heads, linear).found, misfit::columns_of_rows, 1));
static_assert(is(in_rows(linear, heads, norm).found, misfit::rows_of_columns, 2));
static_assert(is(in_rows(linear, heads, gate).found, misfit::fork_of_columns, 2));
static_assert(is(in_rows(linear, heads).found, misfit::columns_left, 2));
static_assert(is(place(lie::rows, lie::columns, norm).found, misfit::columns_missing, 1));

}  // namespace

TEST_CASE("layers are placed by values that a compiler has as well", "[nn][placement]") { CHECK(both.found.fits()); }
