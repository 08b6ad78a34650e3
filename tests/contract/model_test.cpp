#include "trireme/contract/model.hpp"

#include "../catch.hpp"
#include "../support/spline.hpp"
#include "trireme/nn/gpt.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/precision/precision.hpp"
#include "trireme/train/slots.hpp"

using namespace trireme;

namespace {

using env = environment<precision::fp32>;
using view = tensor_view<float>;

// The smallest model of each concept, and models that each lack one requirement.
struct staged {
  void units(auto&& emit) const { emit(0); }
  staged(staged const&) = delete;
};
struct changes_itself {
  void units(auto&& emit) { emit(0); }
};
static_assert(staged_model<staged> && !plain_model<staged>);
static_assert(!staged_model<changes_itself>);

struct plain {
  void visit_parameters(auto&& visit) { visit("w", view{}, view{}); }
  float forward(samples const&) { return 0; }
  void backward(auto&& ready) { ready("w"); }
  plain(plain const&) = delete;
};
struct hides_parameters : plain {
  void visit_parameters() const;
};
struct no_loss : plain {
  void forward(samples const&);
};
struct no_backward : plain {
  void backward();
};
static_assert(plain_model<plain> && !staged_model<plain> && !policy<plain>);
static_assert(std::same_as<detail::kind_of_t<plain>, slot::model>);
static_assert(!has_visit_parameters<hides_parameters> && !plain_model<hides_parameters>);
static_assert(!has_model_forward<no_loss> && !plain_model<no_loss>);
static_assert(!has_model_backward<no_backward> && !plain_model<no_backward>);
static_assert(plain_model<toy::spline>);

struct unit_archetype {
  struct saved {};
  view forward(pass<env>&, saved&, view x) { return x; }
  view backward(pass<env>&, saved&, view dy) { return dy; }
};
struct keeps_nothing {
  view forward(pass<env>&, int, view);
  view backward(pass<env>&, int, view);
};
struct no_way_back : unit_archetype {
  void backward(pass<env>&, saved&, view);
};
struct no_way_there : unit_archetype {
  void forward(pass<env>&, saved&, view);
};
static_assert(unit_state<unit_archetype, env>);
static_assert(!unit_state<keeps_nothing, env> && !unit_state<no_way_back, env> && !unit_state<no_way_there, env>);

static_assert(staged_model<nn::gpt> && staged_model<nn::mlp> && policy<nn::gpt> && policy<nn::mlp>);

}  // namespace

TEST_CASE("a model lists the same units each time", "[contract]") {
  detail::counts_units counts;
  nn::gpt{.layers = 3}.units(counts);
  CHECK(counts.count == 5);
  detail::counts_units again;
  nn::mlp{.hidden = {8, 8}}.units(again);
  CHECK(again.count == 3);
}
