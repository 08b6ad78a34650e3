#include "trireme/contract/environment.hpp"

#include <type_traits>

#include "../catch.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

struct params {
  using param = float;
};
struct computes {
  using compute = float;
};
struct accumulates {
  using accumulate = float;
};
struct reduces {
  using reduce = float;
};
struct masters {
  using master = float;
};
struct tolerates {
  static constexpr double tolerance = 0.1;
};
template <class... Parts>
struct made_of : Parts... {};

static_assert(precision_policy<made_of<params, computes, accumulates, reduces, masters, tolerates>>);
static_assert(!precision_policy<made_of<computes, accumulates, reduces, masters, tolerates>>);
static_assert(!precision_policy<made_of<params, accumulates, reduces, masters, tolerates>>);
static_assert(!precision_policy<made_of<params, computes, reduces, masters, tolerates>>);
static_assert(!precision_policy<made_of<params, computes, accumulates, masters, tolerates>>);
static_assert(!precision_policy<made_of<params, computes, accumulates, reduces, tolerates>>);
static_assert(!precision_policy<made_of<params, computes, accumulates, reduces, masters>>);
static_assert(precision_policy<precision::fp64> && precision_policy<precision::fp32> &&
              precision_policy<precision::bf16>);

using mixed = environment<precision::bf16, phantom>;
static_assert(std::is_same_v<mixed::space, phantom> && std::is_same_v<mixed::gradient, float>);
static_assert(std::is_same_v<mixed::param, bfloat16> && std::is_same_v<mixed::master, float>);

}  // namespace

TEST_CASE("a precision policy has six members, and is printed as its source", "[contract]") {
  CHECK(to_string(precision::bf16{}) == "precision::bf16{}");
}
