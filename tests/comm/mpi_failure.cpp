// A program that fails under mpirun, for mpi_failure_test.sh and mpi_killed_test.sh:
// mpi_failure shared|messages|any late|throws|pending|differs|transfer|stopped|dies|exits|split|works
// By messages with any, too: large sums are then MPI's own. It is rank 1 that is late, throws, ...; with -0 behind the
// word, rank 0, with -34 ranks 3 and 4. Who prints the error says "reports: ".
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "trireme/comm/mpi.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;

int main(int argc, char** argv) {
  bool const shared_memory = argc > 1 && std::string(argv[1]) == "shared";
  bool const any = argc > 1 && std::string(argv[1]) == "any";
  std::string how = argc > 2 ? argv[2] : "";
  std::string const culprits = how.find('-') == std::string::npos ? "1" : how.substr(how.find('-') + 1);
  how = how.substr(0, how.find('-'));
  try {
    comm::mpi const description{
        .deadline = 1s, .shared_memory = shared_memory, .order = any ? comm::sum_order::any : comm::sum_order::ranks};
    trireme::launch(description, [&](auto& world) {
      std::vector<float> values(static_cast<std::size_t>(world.size()) * (any ? 100000 : 10000));
      trireme::tensor_view const view{values};
      bool const odd = culprits.find(std::to_string(world.rank())) != std::string::npos;
      auto began = std::chrono::steady_clock::now();
      try {
        world.all_reduce(view);  // from which others may still be on their way back when rank 1 fails
        std::printf("rank %d is process %d\n", world.rank(), static_cast<int>(::getpid()));
        std::fflush(stdout);
        while (how == "works") {  // until somebody ends it
          auto pending = world.all_reduce_async(view);
          std::this_thread::sleep_for(10ms);
          pending.wait();
        }
        began = std::chrono::steady_clock::now();
        if (how == "late" && odd) std::this_thread::sleep_for(3s);
        if (how == "throws" && odd) throw std::domain_error("loss is nan");
        if (how == "pending" && odd) {  // a message that rank 0 will not send while it waits for this rank
          std::vector const raw_transfers{trireme::receive_from(0, view)};
          auto const coming = world.exchange_async(std::span(raw_transfers));
          throw std::domain_error("loss is nan");
        }
        if (how == "stopped" && odd) std::raise(SIGSTOP);
        if (how == "dies" && odd) std::raise(SIGKILL);
        if (how == "exits" && odd) std::exit(0);
        if (how == "split" && odd) std::this_thread::sleep_for(3s);
        if (how == "split")
          static_cast<void>(world.split(0, 0));
        else if (how == "differs" && odd)
          world.all_gather(view);
        else if (how == "transfer" && world.rank() == 0)
          world.exchange({trireme::send_to(1, view)});
        else if (how == "transfer" && odd)
          world.exchange({trireme::receive_from(0, trireme::tensor_view{values.data(), trireme::shape{7}})});
        else
          world.all_reduce(view);
        if (how == "transfer") world.barrier();
      } catch (trireme::comm_error const& problem) {
        auto const waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
        std::printf("after %.1f s: %s\n", waited, problem.what());
        std::fflush(stdout);
        std::this_thread::sleep_for(600ms);  // mpirun ends the others when the first ends: let them print
        throw;
      }
    });
  } catch (std::exception const& problem) {
    std::printf("%s: %s\n", comm::reports(problem.what()) ? "reports" : "silent", problem.what());
    std::fflush(stdout);
    if (how == "throws" || how == "pending") std::this_thread::sleep_for(1s);
    return 1;
  }
  return 0;
}
