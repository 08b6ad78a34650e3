#include "world.hpp"

using namespace trireme;

/// An axis of a user's own, with a rule of its own.
struct committee {
  using policy_category = slot::parallel;
  int ways = 0;
  static constexpr std::string_view kind = "committee";
  static constexpr axis_facts facts{.parameters = axis_parameters::distributed};
  TRIREME_RULE(stands_alone, "committee-stands-alone",
               "a committee has no room for another axis that deals out experts", "leave parallel::expert out",
               !C::has(parallel::expert::kind));
  using rules = rule_list<stands_alone>;
};
std::string to_string(committee const&) { return "committee{}"; }

bool const legal = check_policies<world, nn::gpt, optim::sgd, parallel::mesh<committee, parallel::tensor>>();
