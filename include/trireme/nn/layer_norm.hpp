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

  /// Everybody in a tensor group has it; the first answers for it.
  instance(layer_norm const& description, std::string const& name, share own = {})
      : what_(description),
        gain_{{name + ".weight", {what_.channels}, {initial::distribution::ones, 0}, false}, {}, {}},
        bias_{{name + ".bias", {what_.channels}, {}, false}, {}, {}} {
    gain_.info.answers = bias_.info.answers = own.rank == 0;
  }

  void visit(auto&& each) {
    each(gain_);
    each(bias_);
  }

  view forward(pass<Env>& pass, saved& kept, view x) {
    auto const rows = x.extent(0);
    kept = {x, pass.activations.template take<accumulate>({rows}), pass.activations.template take<accumulate>({rows})};
    auto const y = pass.take(x.extents());
    kernels::layer_norm(y, kept.mean, kept.rstd, x, gain_.value, bias_.value, what_.epsilon);
    return y;
  }
  /// dx = or += the gradient of x. Where rows are cut, gain and bias get the sum of all ranks' rows.
  void backward(pass<Env>& pass, saved const& kept, view dx, view dy, bool accumulate_dx) {
    auto dgain = gain_.gradient;
    auto dbias = bias_.gradient;
    auto const here = pass.scratch.mark();
    auto const n = what_.channels;
    tensor_view<accumulate, space> terms;
    if (pass.group.cuts_rows()) {
      terms = pass.scratch.template take<accumulate>({2 * n});
      kernels::fill(terms, 0.0);
      dgain = terms.flat(0, n);
      dbias = terms.flat(n, n);
    }
    kernels::layer_norm_backward(dx, dgain, dbias, dy, kept.x, kept.mean, kept.rstd, gain_.value, accumulate_dx);
    if (pass.group.cuts_rows()) {
      pass.group.sum(terms);
      kernels::add(gain_.gradient, dgain);
      kernels::add(bias_.gradient, dbias);
    }
    pass.scratch.rewind(here);
  }

 private:
  layer_norm what_;
  parameter<Env> gain_;
  parameter<Env> bias_;
};

}  // namespace trireme::nn
