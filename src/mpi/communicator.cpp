// Ranks that are processes of MPI. A library of its own (trireme::compiled_mpi): it belongs to one MPI.
#include "trireme/comm/mpi.ipp"
