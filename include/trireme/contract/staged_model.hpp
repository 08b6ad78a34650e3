#pragma once

#include <concepts>
#include <cstdint>

#include "trireme/contract/parameter.hpp"

namespace trireme {

namespace detail {

struct counts_units {
  std::int64_t count = 0;
  template <class Unit>
  void operator()(Unit const&) {
    ++count;
  }
};

struct visits_no_unit_buffers {
  template <class Values>
  void operator()(char const*, Values, std::int64_t) const {}
};

}  // namespace detail

/// A model that lists its units: `units(emit)` calls `emit(description)` for each, in order, the same list each time.
template <class M>
concept staged_model = requires(M const& model, detail::counts_units& put) {
  model.units(put);
};

/// The rows of activations of one sample, for a model whose inputs do not show it (patches of an image, say): its
/// rows_of_sample(); for all others 0, which means one a token of int32 inputs, else one.
template <class M>
[[nodiscard]] std::int64_t rows_of_sample([[maybe_unused]] M const& model) {
  if constexpr (requires {
                  { model.rows_of_sample() } -> std::convertible_to<std::int64_t>;
                })
    return model.rows_of_sample();
  else
    return 0;
}

/// A model whose units are layers of nn, so that its memory space needs their kernels: it has a static
/// `made_of_layers`, for a clear error if they are missing.
template <class M>
concept made_of_layers = requires {
  requires M::made_of_layers;
};

/// A staged model with buffers: visit_buffers(visit) calls visit(name, values, unit) for each, in a stable order, with
/// the number of the unit whose forward changes it. Every rank has memory for all of them. The values of the first rank
/// that has the unit are copied to all others when the buffers of a plain model would be; see plain_model.
template <class M>
concept has_unit_buffers = staged_model<M> && requires(M const& model, detail::visits_no_unit_buffers visit) {
  model.visit_buffers(visit);
};

}  // namespace trireme
