#include <trireme/trireme.hpp>
#include <trireme/version.hpp>

#ifdef WITH_MPI
#include <trireme/comm/mpi.hpp>
#endif

int main() {
  trireme::tensor<float> values({2, 3});
  return values.size() == 6 && TRIREME_VERSION_MAJOR == 0 ? 0 : 1;
}
