#include "trireme/contract/tensor_group.hpp"

#include <type_traits>
#include <vector>

#include "../catch.hpp"
#include "trireme/contract/model.hpp"
#include "trireme/precision/precision.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;
using view = tensor_view<float>;

// A partial sum cannot be used as a view; tests/fail/parallel checks the error.
static_assert(!std::is_base_of_v<view, partial_sum<view>>);

/// A unit that takes a share, and one that does not.
struct whole_unit {
  template <class Env>
  struct instance {
    struct saved {};
    explicit instance(whole_unit const&) {}
    void visit(auto&& each) { each(weight); }
    view forward(pass<Env>&, saved&, view x) { return x; }
    view backward(pass<Env>&, saved&, view dy) { return dy; }
    parameter<Env> weight{{"w", {5}}, {}, {}};
  };
};
struct cut_unit {
  template <class Env>
  struct instance : whole_unit::instance<Env> {
    instance(cut_unit const&, group_rank own) : whole_unit::instance<Env>({}) {
      this->weight.info = shard_of(this->weight.info, 0, own.of(5));
    }
  };
};

/// Only knows this rank's number.
class group_at final : public tensor_group<env> {
 public:
  explicit group_at(trireme::group_rank own) : tensor_group<env>(own, false) {}

 private:
  void do_sum(view) override {}
  void do_reduce_rows(view) override {}
  void do_gather_rows(view, view, interval) override {}
  void do_sum_of_sums(sums) override {}
  void do_max(sums) override {}
};

}  // namespace

TEST_CASE("a group of one rank returns its input, and allocates nothing", "[contract]") {
  auto& group = tensor_group<env>::one();
  CHECK(group.size() == 1);
  CHECK(group.rank() == 0);
  CHECK_FALSE(group.cuts_rows());
  CHECK(group.rows_here(7) == interval{0, 7});
  std::vector<float> numbers{1, 2, 3, 4};
  view const x(numbers.data(), shape{2, 2});
  arena<host> memory;
  CHECK(group.reduce(partial_sum<view>(x)).address() == x.address());
  CHECK(group.gather(x, 2, memory).address() == x.address());
  group.sum(x);
  group.max(x);
  CHECK(numbers == std::vector<float>{1, 2, 3, 4});
  CHECK(memory.peak_bytes() == 0);
}

TEST_CASE("a unit with shares owns its part; the first rank owns all of any other unit", "[contract]") {
  group_at second({1, 2});
  boxed_unit<env, cut_unit> cut({}, second);
  CHECK(cut.parameters()[0]->info.extents == shape{2});
  CHECK(cut.parameters()[0]->info.first == shape{3});
  CHECK(cut.parameters()[0]->info.is_owner);
  for (int const place : {0, 1}) {
    group_at here({place, 2});
    boxed_unit<env, whole_unit> whole({}, here);
    CHECK(whole.parameters()[0]->info.extents == shape{5});
    CHECK(whole.parameters()[0]->info.is_owner == (place == 0));
  }
}
