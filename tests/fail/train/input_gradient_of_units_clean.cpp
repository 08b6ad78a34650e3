// test-compilers: g++ clang++
#include "trireme/trireme.hpp"

using namespace trireme;

/// Doubles.
struct twice {
  template <class Env>
  struct instance {
    using view = tensor_view<typename Env::compute, typename Env::space>;
    struct saved {};
    explicit instance(twice const&) {}
    void visit(auto&&) {}
    view forward(pass<Env>&, saved&, view x) { return doubled(x); }
    view backward(pass<Env>&, saved&, view dy) { return doubled(dy); }
    view input_gradient(pass<Env>&, saved&, view dy) { return doubled(dy); }
    static view doubled(view x) {
      ops::on<typename Env::space>::scale(x, 2);
      return x;
    }
  };
};
struct model {
  using policy_category = slot::model;
  void units(auto&& emit) const {
    emit(nn::block{"in", 0, nn::chain(nn::features{3})});
    emit(twice{});
    emit(nn::block{"out", 3, nn::chain(nn::loss::squared_error{})});
  }
};

tensor<float> slopes(comm::self_world& world, samples const& some) {
  auto trainer = make_trainer(model{}, optim::adamw{}, world);
  return trainer.input_gradient(some);
}
