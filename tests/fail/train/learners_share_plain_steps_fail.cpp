#include "trireme/parallel/diloco.hpp"
#include "trireme/parallel/parameter_server.hpp"
#include "world.hpp"

using namespace trireme;

// expected-error: trireme::trainer: illegal combination: beside parallel::diloco, or another axis of learners that take
// steps apart, the mesh has a strategy with run state of its own, such as parallel::parameter_server; let the ranks of
// a learner share steps by parallel::data or zero
bool const legal =
    check_policies<world, nn::gpt, optim::sgd, parallel::mesh<parallel::diloco, parallel::parameter_server>>();
