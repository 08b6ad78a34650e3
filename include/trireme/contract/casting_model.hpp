#pragma once

#include <type_traits>

#include "trireme/contract/environment.hpp"
#include "trireme/contract/model.hpp"

namespace trireme {

template <class M>
concept has_compute_in = requires(M& model, dtype type) {
  model.compute_in(type);
};

/// A model that stores parameters in the type that the optimizer updates, and casts to the narrower type of a mixed
/// precision itself, as torch's autocast does.
///
/// Plain    it has compute_in(dtype), which is called before each pass, and backward(ready, scale), which fills the
///          gradients of the mean loss times `scale`: the precision's loss scale. (With a counted_loss, `scale`
///          multiplies the sum; it is then the loss scale divided by the samples of the step.)
/// Staged   it has a static `casts_inside = true`; its units find the narrower types in casts_to<Env::precision>.
template <class M>
concept casts_inside = (staged_model<M> && requires { requires M::casts_inside; }) ||
                       (!staged_model<M> && has_compute_in<M> && has_scaled_backward<M>);

/// The element types of a mixed precision for a model that casts inside: parameters, activations between units and
/// gradients have the type that the optimizer updates.
template <precision_policy Precision>
struct cast_inside : Precision {
  using param = typename Precision::master;
  using compute = typename Precision::master;
  using accumulate = typename Precision::master;
};

namespace detail {

template <class Precision>
struct cast_of {
  using type = typename Precision::compute;
};
template <class Precision>
struct cast_of<cast_inside<Precision>> {
  using type = typename Precision::compute;
};

template <class Model, class Precision>
inline constexpr bool is_cast_inside =
    casts_inside<Model> && !std::is_same_v<typename Precision::compute, typename Precision::master>;

}  // namespace detail

/// The type in which a model that casts inside computes.
template <class Precision>
using casts_to = typename detail::cast_of<Precision>::type;

/// The environment of a model in a trainer with this precision. Its `precision` is constructed from the policy:
/// `typename env::precision{policy}`.
template <class Model, precision_policy Precision, class Space>
using environment_of =
    environment<std::conditional_t<detail::is_cast_inside<Model, Precision>, cast_inside<Precision>, Precision>, Space>;

}  // namespace trireme
