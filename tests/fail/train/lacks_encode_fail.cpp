#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: compression policy lacks encode and decode of a summable or a gatherable payload
struct silent {
  using policy_category = slot::compression;
  template <class Env>
  struct instance {
    instance(silent const&, std::int64_t elements);
    std::int64_t payload_bytes(std::int64_t n);
    void decode(auto payload, auto gradient, bool add);
  };
};
struct spoken {
  using policy_category = slot::compression;
  template <class Env>
  struct instance {
    instance(spoken const&, std::int64_t elements);
    std::int64_t payload_bytes(std::int64_t n);
    void encode(auto gradient, auto payload, std::int64_t first);
    void decode(auto payload, auto gradient, bool add);
  };
};

bool const legal = check_policies<world, nn::gpt, optim::sgd, silent>();
