#pragma once

#include "trireme/core/dialect.hpp"

namespace trireme {

/// The categories of policies. make_trainer takes its policies in any order and sorts them by these tags; a policy has
/// a member such as `using policy_category = slot::optimizer;`.
namespace slot {
struct communicator;
struct model;
struct optimizer;
struct parallel;
struct precision;
struct compression;
}  // namespace slot

/// The category of a policy: its `policy_category`, or nothing. Specialise it for a foreign type that cannot have the
/// member: `template <> struct trireme::category_of<their::net> { using type = slot::model; };`
template <class T>
struct category_of {};

template <class T>
requires requires { typename T::policy_category; }
struct category_of<T> {
  using type = typename T::policy_category;
};

/// The slot of make_trainer that a policy belongs to.
template <class T>
using category_of_t = typename category_of<T>::type;

/// A type that make_trainer can sort into a slot.
template <class T>
concept policy = requires {
  typename category_of<T>::type;
};

}  // namespace trireme
