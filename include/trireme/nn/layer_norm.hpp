#pragma once

#include <cstdint>
#include <string>

#include "trireme/contract/model.hpp"
#include "trireme/ops/types.hpp"

namespace trireme::nn {

/// y = (x - mean(x)) / sqrt(var(x) + epsilon) * gain + bias, row by row.
///
/// Shapes   x, y (rows, channels); gain, bias (channels).
/// Bytes    saves a reference to x, and the mean and 1/deviation of each row.
/// Method   [Ba, Kiros, Hinton, "Layer normalization", 2016].
struct layer_norm {
  std::int64_t channels = 0;
  double epsilon = 1e-5;
  friend bool operator==(layer_norm const&, layer_norm const&) = default;

  template <class Env>
  class instance;
};

template <class Env>
class layer_norm::instance {
  using space = typename Env::space;
  using accumulate = typename Env::accumulate;
  using kernels = ops::on<space>;

 public:
  using view = tensor_view<typename Env::compute, space>;
  struct saved {
    view x;                               // (rows, channels)
    tensor_view<accumulate, space> mean;  // (rows)
    tensor_view<accumulate, space> rstd;  // (rows)
  };

  instance(layer_norm const& description, std::string const& name)
      : what_(description),
        gain_{{name + ".weight", {what_.channels}, {initial::distribution::ones, 0}, false}, {}, {}},
        bias_{{name + ".bias", {what_.channels}, {}, false}, {}, {}} {}

  void visit(auto&& each) {
    each(gain_);
    each(bias_);
  }

  view forward(pass<Env>& pass, saved& saved, view x) {
    auto const rows = x.extent(0);
    saved = {x, pass.activations.template take<accumulate>({rows}), pass.activations.template take<accumulate>({rows})};
    auto const y = pass.take(x.extents());
    kernels::layer_norm(y, saved.mean, saved.rstd, x, gain_.value, bias_.value, what_.epsilon);
    return y;
  }
  /// dx = or += the gradient of x.
  void backward(saved const& saved, view dx, view dy, bool accumulate_dx) {
    kernels::layer_norm_backward(dx, gain_.gradient, bias_.gradient, dy, saved.x, saved.mean, saved.rstd, gain_.value,
                                 accumulate_dx);
  }

 private:
  layer_norm what_;
  parameter<Env> gain_;
  parameter<Env> bias_;
};

}  // namespace trireme::nn
