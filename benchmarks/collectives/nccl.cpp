// The overhead of comm::nccl over NCCL's own call: an all_reduce that is waited for, compared with ncclAllReduce and a
// polled event. With one rank NCCL does nothing, so only the overhead is measured; ranks as for comm::nccl.
//   nccl [FILE]    one JSON object per row
#include "trireme/comm/nccl.hpp"
#include "cuda_rows.hpp"

namespace comm = trireme::comm;
using trireme::cuda;

namespace {

/// NCCL as a program without this library would call it: a blocking communicator, and a stream.
class plain {
 public:
  explicit plain(comm::nccl_world& world) {
    ncclUniqueId id;
    if (world.rank() == 0) expect(ncclGetUniqueId(&id));
    auto* const letters = reinterpret_cast<std::uint8_t*>(id.internal);
    world.broadcast(trireme::tensor_view<std::uint8_t>(letters, {static_cast<std::int64_t>(sizeof id.internal)}), 0);
    expect(ncclCommInitRank(&comm_, world.size(), id, world.rank()));
    trireme::detail::expect_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "the stream");
    trireme::detail::expect_cuda(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "the event");
  }
  plain(plain const&) = delete;
  plain& operator=(plain const&) = delete;
  ~plain() {
    (void)cudaEventDestroy(done_);
    (void)cudaStreamDestroy(stream_);
    (void)ncclCommDestroy(comm_);
  }
  void all_reduce(trireme::tensor_view<float, cuda> values) {
    expect(ncclAllReduce(values.address(), values.address(), static_cast<std::size_t>(values.size()), ncclFloat32,
                         ncclSum, comm_, stream_));
    trireme::detail::expect_cuda(cudaEventRecord(done_, stream_), "the event");
    while (cudaEventQuery(done_) == cudaErrorNotReady) {
    }
  }

 private:
  static void expect(ncclResult_t code) {
    if (code != ncclSuccess) throw trireme::comm_error(ncclGetErrorString(code));
  }
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t done_ = nullptr;
};

}  // namespace

int main(int count, char** words) {
  if (auto const reason = cuda_rows::reason_to_skip(); !reason.empty()) {
    std::printf("skipped: no GPU: %s\n", reason.c_str());
    return 77;
  }
  comm::nccl const description{.meet = comm::by_file, .file = count > 1 ? words[1] : "benchmark_nccl.id"};
  trireme::launch(description, [&](comm::nccl_world& world) {
    std::int64_t const most = std::int64_t{256} << 20;
    trireme::tensor<float, cuda> const buffer({most / 4});
    plain raw(world);
    for (std::int64_t bytes = 4; bytes <= most; bytes *= 8) {
      auto const values = buffer.view().flat(0, bytes / 4);
      auto const calls = cuda_rows::calls_for(bytes, world.size());
      auto const together = [&] { world.barrier(); };
      auto const ours = cuda_rows::microseconds(
          calls, [&] { world.all_reduce(values); }, together);
      auto const theirs = cuda_rows::microseconds(
          calls, [&] { raw.all_reduce(values); }, together);
      if (world.rank() != 0) continue;
      cuda_rows::row("nccl", "all_reduce", bytes, world.size(), ours);
      cuda_rows::row("nccl_plain", "all_reduce", bytes, world.size(), theirs);
    }
  });
}
