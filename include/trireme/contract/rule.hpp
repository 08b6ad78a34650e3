#pragma once

#include <string_view>

#include "trireme/core/dialect.hpp"

namespace trireme {

/// One rule on policies of different slots: an unsupported combination, and what to do instead.
struct compatibility_rule {
  std::string_view id;
  std::string_view sentence;
  std::string_view remedy;
};

/// A list of rules made by TRIREME_RULE; the first one that is violated gives the error.
template <class... Rules>
struct rule_list {};

}  // namespace trireme

/// Defines a rule, TRIREME_RULE(name, id, sentence, remedy, condition);, in a namespace or a class: a condition on a
/// `combination` C (train/compatibility.hpp), and the compiler's error if it does not hold.
#define TRIREME_RULE(name, id_, sentence_, remedy_, ...)                                                         \
  struct name {                                                                                                  \
    static constexpr ::trireme::compatibility_rule rule{id_, sentence_, remedy_};                                \
    template <class C>                                                                                           \
    static constexpr bool holds = (__VA_ARGS__);                                                                 \
    template <bool Holds>                                                                                        \
    struct check {                                                                                               \
      static_assert(Holds, "trireme::trainer: illegal combination: " sentence_ "; " remedy_ " [" id_ "]");       \
    };                                                                                                           \
    template <bool Holds>                                                                                        \
    struct check_of_exchange {                                                                                   \
      static_assert(Holds, "trireme::make_exchange: illegal combination: " sentence_ "; " remedy_ " [" id_ "]"); \
    };                                                                                                           \
  }
