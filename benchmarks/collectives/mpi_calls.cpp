// Runs MPI's own collectives; compiled once for Open MPI and once for MPICH.
//   mpirun -n 2 collectives_openmpi FOLDER
#include <mpi.h>

#include "player.hpp"

namespace {

using namespace player;

struct mpi_calls {
  pages blocks[2];
  int rank = 0;
  int size = 1;

  std::byte* allocate(int index, std::size_t bytes) {
    blocks[index] = pages(bytes);
    return blocks[index].data();
  }
  void release() {
    for (auto& block : blocks) block = pages();
  }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }

  prepared prepare(task const& it, std::byte* from, std::byte* to) {
    bool const reduces = it.what == operation::all_reduce || it.what == operation::reduce_scatter;
    if (reduces && it.type != element::f32) return {};  // MPI cannot add bfloat16
    auto const type = it.type == element::f32 ? MPI_FLOAT : MPI_UINT16_T;
    auto const count = static_cast<int>(it.count());
    auto const part = count / size;
    switch (it.what) {
      case operation::all_reduce:
        return {[=] { MPI_Allreduce(MPI_IN_PLACE, from, count, type, MPI_SUM, MPI_COMM_WORLD); }, to};
      case operation::reduce_scatter:
        return {[=] { MPI_Reduce_scatter_block(MPI_IN_PLACE, from, part, type, MPI_SUM, MPI_COMM_WORLD); }, from};
      case operation::all_gather:
        return {[=] { MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, from, part, type, MPI_COMM_WORLD); }, to};
      case operation::all_to_all:
        return {[=] { MPI_Alltoall(from, part, type, to, part, type, MPI_COMM_WORLD); }, to};
      case operation::broadcast:
        return {[=] { MPI_Bcast(from, count, type, 0, MPI_COMM_WORLD); }, to};
    }
    return {};
  }
};

}  // namespace

int main(int argc, char** argv) {
  int threads = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &threads);
  mpi_calls calls;
  MPI_Comm_rank(MPI_COMM_WORLD, &calls.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &calls.size);
  try {
    play(argv[1], calls.rank, calls.size, calls);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
