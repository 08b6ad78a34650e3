// A program that fails under mpirun, for mpi_failure_test.sh: `mpi_failure late|throws|differs|stopped`.
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "trireme/comm/mpi.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;

int main(int argc, char** argv) {
  std::string const how = argc > 1 ? argv[1] : "";
  try {
    trireme::launch(comm::mpi{.deadline = 1s}, [&](auto& world) {
      std::vector<float> values(static_cast<std::size_t>(world.size()) * 10000);
      world.all_reduce(trireme::tensor_view{values});
      bool const odd = world.rank() == 1;
      auto const began = std::chrono::steady_clock::now();
      try {
        if (how == "late" && odd) std::this_thread::sleep_for(3s);
        if (how == "throws" && odd) throw std::domain_error("loss is nan");
        if (how == "stopped" && odd) std::raise(SIGSTOP);
        if (how == "differs" && odd)
          world.all_gather(trireme::tensor_view{values});
        else
          world.all_reduce(trireme::tensor_view{values});
      } catch (trireme::comm_error const& problem) {
        auto const waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        std::printf("after %.1f s: %s\n", waited, problem.what());
        std::fflush(stdout);
        std::this_thread::sleep_for(500ms);  // mpirun ends the others at the first exit: let them speak
        throw;
      }
    });
  } catch (std::exception const& problem) {
    std::printf("launch: %s\n", problem.what());
    std::fflush(stdout);
    if (how == "throws") std::this_thread::sleep_for(1s);
    return 1;
  }
  return 0;
}
