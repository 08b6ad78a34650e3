#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "trireme/comm/geometry.hpp"
#include "trireme/core/cuda_space.hpp"

namespace trireme::comm::detail {

/// Device memory for commands on host memory: small host messages (votes, counts) over a communicator of devices. Grows
/// to the largest command, then allocates no more.
class cuda_staging {
 public:
  cuda_staging() = default;
  cuda_staging(cuda_staging const&) = delete;
  cuda_staging& operator=(cuda_staging const&) = delete;
  ~cuda_staging() {
    retire();
    for (auto* const each : outgrown_device_) (void)::cudaFree(each);
    for (auto* const each : outgrown_host_) (void)::cudaFreeHost(each);
  }

  /// The same command on device memory, to which `stream` copies its inputs. Its lists belong to this object.
  [[nodiscard]] command on_device(command const& it, int rank, int size, ::cudaStream_t stream) {
    pieces_.clear();
    raw_transfers_.clear();
    bytes_ = 0;
    command out = it;
    for (auto const& each : it.raw_transfers)
      place(each.address, static_cast<std::size_t>(each.count) * size_of(each.type), each.sent, !each.sent);
    geometry const where{it.what, it.element_bytes, size, it.counts};
    if (it.raw_transfers.empty() && where.of().count > 0) {
      auto const bytes = [&](comm::region which) {
        return static_cast<std::size_t>(which == comm::region::whole ? it.what.count : where.all()) * it.element_bytes;
      };
      auto const& does = where.of().moves[0];
      bool const gives = where.gives(does, rank);
      bool const takes = where.takes(does, rank);
      if (it.from == it.to) {
        place(it.to, bytes(does.given), gives, takes);
      } else {
        if (gives) place(it.from, bytes(does.given), true, false);
        if (takes) place(it.to, bytes(does.taken), false, true);
      }
    }
    reserve();
    for (auto const& each : pieces_) {
      if (!each.in || each.bytes == 0) continue;
      std::memcpy(host_ + each.offset, each.address, each.bytes);
      trireme::detail::expect_cuda(
          ::cudaMemcpyAsync(device_ + each.offset, host_ + each.offset, each.bytes, cudaMemcpyHostToDevice, stream),
          "trireme::comm: copying to CUDA memory");
    }
    std::size_t next = 0;
    for (auto const& each : it.raw_transfers) {
      raw_transfers_.push_back(each);
      raw_transfers_.back().address = device_ + pieces_[next++].offset;
    }
    if (!raw_transfers_.empty()) {
      out.raw_transfers = raw_transfers_;
    } else if (!pieces_.empty()) {
      // A single block is both sides of an in-place command, or the only side that this rank has.
      out.from = device_ + pieces_.front().offset;
      out.to = device_ + pieces_.back().offset;
    }
    return out;
  }
  /// Queues the copy of the results; deliver() copies them to the caller once `stream` has done it.
  void fetch(::cudaStream_t stream) {
    for (auto const& each : pieces_)
      if (each.out && each.bytes > 0)
        trireme::detail::expect_cuda(
            ::cudaMemcpyAsync(host_ + each.offset, device_ + each.offset, each.bytes, cudaMemcpyDeviceToHost, stream),
            "trireme::comm: copying from CUDA memory");
  }
  void deliver() noexcept {
    for (auto const& each : pieces_)
      if (each.out && each.bytes > 0) std::memcpy(each.address, host_ + each.offset, each.bytes);
    pieces_.clear();
  }

 private:
  struct chunk {
    void* address;
    std::size_t bytes, offset;
    bool in, out;
  };

  void place(void const* address, std::size_t bytes, bool in, bool out) {
    pieces_.push_back({const_cast<void*>(address), bytes, bytes_, in, out});
    bytes_ += (bytes + cuda::alignment - 1) / cuda::alignment * cuda::alignment;
  }
  void reserve() {
    if (bytes_ <= capacity_) return;
    auto const wanted = std::max<std::size_t>({bytes_, 2 * capacity_, 4096});
    retire();
    device_ = static_cast<std::byte*>(cuda::allocate(wanted));
    void* pinned = nullptr;
    trireme::detail::expect_cuda(::cudaMallocHost(&pinned, wanted), "trireme::comm: allocating pinned memory");
    host_ = static_cast<std::byte*>(pinned);
    capacity_ = wanted;
  }

  /// Freeing waits for the whole device, and so perhaps for a rank that never arrives: it is postponed to the end.
  void retire() {
    if (device_ != nullptr) outgrown_device_.push_back(std::exchange(device_, nullptr));
    if (host_ != nullptr) outgrown_host_.push_back(std::exchange(host_, nullptr));
    capacity_ = 0;
  }

  std::byte* device_ = nullptr;
  std::byte* host_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t bytes_ = 0;  ///< of the present command
  std::vector<chunk> pieces_;
  std::vector<raw_transfer> raw_transfers_;
  std::vector<std::byte*> outgrown_device_, outgrown_host_;
};

}  // namespace trireme::comm::detail
