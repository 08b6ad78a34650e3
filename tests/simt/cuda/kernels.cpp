// All kernels of the library, as g++ compiles them for the stand-in for a GPU's threads. They run on the streams of the
// stand-in for CUDA's runtime, in their order, when somebody waits for a stream.
#include "../../support/simt/threads.hpp"

#include "trireme/cuda.cu"

namespace stand_in {

void queue_kernel(void* stream, std::function<void()> kernel);

}  // namespace stand_in

namespace {

[[maybe_unused]] bool const on_streams = (simt::queue_on = &stand_in::queue_kernel, true);

}  // namespace
