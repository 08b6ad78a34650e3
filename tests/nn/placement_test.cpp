#include "trireme/nn/placement.hpp"

#include <array>
#include <cstddef>

#include "../catch.hpp"

using namespace trireme::nn;

namespace {

constexpr layer_traits linear{.does = flow::product, .takes_activation = true};
constexpr layer_traits act{.does = flow::any, .activation = true};
constexpr layer_traits drop{.does = flow::any};
constexpr layer_traits norm{.does = flow::rows};
constexpr layer_traits heads{.does = flow::columns};
constexpr layer_traits experts{.does = flow::all};
constexpr layer_traits gate{.does = flow::fork, .spreads = true, .shares_entry = true};

template <std::size_t N>
struct placed {
  std::array<layer_step, N> steps{};
  placement found{};
};
template <class... L>
constexpr auto place(activation_layout entry, activation_layout exit, L... layers) {
  placed<sizeof...(L)> out;
  std::array<layer_traits, sizeof...(L)> const all{layers...};
  out.found = resolve(all, out.steps, entry, exit);
  return out;
}
template <class... L>
constexpr auto in_rows(L... layers) {
  return place(activation_layout::rows, activation_layout::rows, layers...);
}

// The branches of a GPT's block.
constexpr auto attended = in_rows(norm, linear, heads, linear, drop);
static_assert(attended.found.fits() && attended.found.last == activation_layout::rows);
static_assert(attended.steps[0].as == role::none && !attended.steps[0].gathers());
static_assert(attended.steps[1].as == role::column_parallel && attended.steps[1].gathers());
static_assert(attended.steps[2].takes == activation_layout::columns &&
              attended.steps[2].gives == activation_layout::columns);
static_assert(attended.steps[3].as == role::row_parallel && attended.steps[3].partial);
static_assert(attended.steps[4].takes == activation_layout::rows);

constexpr auto both = in_rows(norm, linear, act, linear, drop);
static_assert(both.found.fits());
static_assert(both.steps[1].as == role::column_parallel && both.steps[1].fused && both.steps[2].absorbed);
static_assert(both.steps[3].as == role::row_parallel && !both.steps[3].fused);

// Dropout between the products changes nothing of that.
constexpr auto dropped = in_rows(linear, act, drop, linear);
static_assert(dropped.steps[0].as == role::column_parallel && dropped.steps[2].takes == activation_layout::columns &&
              dropped.steps[3].partial);

// Alone, in threes and in front of a norm: a product is whole where nobody takes its columns.
static_assert(in_rows(linear).steps[0].as == role::replicated);
static_assert(in_rows(linear, norm).steps[0].as == role::replicated);
constexpr auto three = in_rows(linear, linear, linear);
static_assert(three.found.fits() && three.steps[0].as == role::replicated &&
              three.steps[1].as == role::column_parallel && three.steps[2].as == role::row_parallel);
// An activation after a sum over the ranks is not fused into the product; after a whole product it is.
static_assert(!in_rows(linear, linear, act).steps[1].fused && in_rows(linear, act).steps[0].fused);

// A gate between products is cut with them; before a norm it is whole.
constexpr auto gated = in_rows(norm, gate, linear);
static_assert(gated.found.fits() && gated.steps[1].as == role::column_parallel && gated.steps[1].gathers());
static_assert(in_rows(gate, norm).steps[0].as == role::replicated && !in_rows(gate, norm).steps[0].gathers());
static_assert(in_rows(norm, experts, norm).steps[1].gathers());

// What branches of a gate can do.
template <class... L>
constexpr layer_traits branch(L... layers) {
  std::array<layer_traits, sizeof...(L)> const all{layers...};
  std::array<layer_step, sizeof...(L)> steps{};
  return branch_traits(all, steps);
}
static_assert(branch(linear, act).spreads && branch(linear, act).shares_entry);
static_assert(branch(drop, linear).shares_entry);
static_assert(branch(norm, linear).spreads && !branch(norm, linear).shares_entry);
static_assert(!branch(act).spreads && !branch(norm).spreads && !branch(linear, norm).spreads);
static_assert(branch(linear, linear).spreads && !branch(linear, linear).shares_entry);

// What does not fit, and which layer it is.
constexpr bool is(placement const& found, placement_error what, std::size_t where) {
  return found.what == what && found.where == where;
}
static_assert(is(in_rows(norm, heads, linear).found, placement_error::columns_of_rows, 1));
static_assert(is(in_rows(linear, heads, norm).found, placement_error::rows_of_columns, 2));
static_assert(is(in_rows(linear, heads, gate).found, placement_error::fork_of_columns, 2));
static_assert(is(in_rows(linear, heads).found, placement_error::columns_left, 2));
static_assert(is(place(activation_layout::rows, activation_layout::columns, norm).found,
                 placement_error::columns_missing, 1));

}  // namespace

TEST_CASE("layers are placed by constant expressions", "[nn][placement]") { CHECK(both.found.fits()); }
