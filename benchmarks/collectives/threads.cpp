// Runs comm::threads.
//   collectives_threads FOLDER SIZE
#include "trireme_calls.hpp"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  trireme::launch(trireme::comm::threads{.ranks = std::atoi(argv[2])}, [&](auto& world) {
    player::trireme_calls calls(world);
    player::play(argv[1], world.rank(), world.size(), calls);
  });
}
