// Runs comm::processes, on its own buffers. The environment sets rank, size and meeting point.
//   collectives_processes FOLDER
#include "trireme/comm/processes.hpp"
#include "trireme_calls.hpp"

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  trireme::launch(trireme::comm::processes{}, [&](auto& world) {
    player::trireme_calls<std::remove_reference_t<decltype(world)>, player::memory::own> calls(world);
    player::play(argv[1], world.rank(), world.size(), calls);
  });
}
