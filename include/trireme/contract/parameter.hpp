#pragma once

#include <cstdint>
#include <string>

#include "trireme/core/tensor.hpp"

namespace trireme {

/// How a parameter starts. Element i of a parameter depends on (seed, name, i) alone, so that every rank and every
/// sharding starts from the same values.
struct initial {
  enum class distribution { zeros, ones, normal, uniform };
  distribution kind = distribution::zeros;
  double scale = 0;  ///< standard deviation, or the half width of the uniform distribution
  friend bool operator==(initial const&, initial const&) = default;
};

/// What is known of a parameter without its numbers. Two parameters of one name are two uses of one tied tensor.
struct parameter_info {
  std::string name;
  shape extents;
  initial start{};
  bool decays = true;  ///< whether weight decay applies
  friend bool operator==(parameter_info const&, parameter_info const&) = default;
};

/// A parameter as a layer sees it: the layer does not own the memory; the exchange binds and rebinds it.
///
/// Each *use* of a tied parameter has a gradient of its own; the exchange adds the uses in order.
template <class Env>
struct parameter {
  parameter_info info;
  tensor_view<typename Env::param, typename Env::space> value;
  tensor_view<typename Env::gradient, typename Env::space> gradient;
};

/// A parameter whose value and gradient lie in memory of the caller.
template <class T, class Space = host>
struct foreign_parameter {
  std::string name;
  tensor_view<T, Space> value;
  tensor_view<T, Space> gradient;
};

}  // namespace trireme
