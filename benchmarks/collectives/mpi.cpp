// Runs comm::mpi: on its own buffers (`own`), on any memory (`foreign`), or by messages (`messages`).
//   mpirun -n 2 collectives_mpi FOLDER own|foreign|messages
#include "trireme/comm/mpi.hpp"
#include "trireme_calls.hpp"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  std::string const how = argv[2];
  trireme::launch(trireme::comm::mpi{.shared_memory = how != "messages"}, [&](auto& world) {
    if (how == "own") {
      player::trireme_calls<std::remove_reference_t<decltype(world)>, player::memory::own> calls(world);
      player::play(argv[1], world.rank(), world.size(), calls);
    } else {
      player::trireme_calls calls(world);
      player::play(argv[1], world.rank(), world.size(), calls);
    }
  });
}
