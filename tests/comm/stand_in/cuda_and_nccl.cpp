// The calls themselves; see cuda_and_nccl.hpp.
#include "cuda_and_nccl.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

using namespace stand_in;

namespace {

stream& of(cudaStream_t it) { return *reinterpret_cast<stream*>(it); }
event& of(cudaEvent_t it) { return *reinterpret_cast<event*>(it); }
communicator& of(ncclComm_t it) { return *reinterpret_cast<communicator*>(it); }

thread_local int device_of_thread = 0;

// Blocks that are allocated and not freed; under world_lock().
struct owned_block {
  int device = 0;
  std::size_t bytes = 0;
};
std::map<void*, owned_block>& blocks() {
  static std::map<void*, owned_block> all;
  return all;
}
std::size_t used_bytes(int device);
void* new_block(size_t bytes, bool on_device);
void forget_block(void* block);
// Counts the waits of the host: a loop of queries of a stream that has work ends when it is done. Those of an event are
// a loop if the thread has asked for it twice in a row.
cudaError_t counted_query(bool was_idle, bool done);
cudaError_t counted_query(cudaEvent_t it, bool done);

using left_out = simt::omission::kind;

/// Whether a query may say that the stream is done.
bool is_done(stream& it) {
  if (it.queue.empty()) return true;
  go_on_in_order();
  if (!it.queue.empty() && it.queries == 0 && simt::left_out().leaves_out(left_out::query)) return true;
  if (it.is_needed(it.queries++)) it.go_on(true);
  return it.queue.empty();
}
bool is_done(event::record& it) {
  if (it.is_done(false)) return true;
  go_on_in_order();
  if (!it.is_done(false) && it.queries == 0 && simt::left_out().leaves_out(left_out::query)) return true;
  return it.is_done(it.on->is_needed(it.queries++));
}
/// The host waits. Others may queue meanwhile what it waits for.
template <class Done>
cudaError_t wait_until(Done&& done) {
  for (;;) {
    {
      std::lock_guard const lock(world_lock());
      if (done()) return cudaSuccess;
    }
    std::this_thread::yield();
  }
}

}  // namespace

void stand_in::queue_kernel(void* on, std::function<void()> kernel) {
  queue(*static_cast<stream*>(on), [run = std::move(kernel)](bool) {
    static std::atomic<std::int64_t> number{0};
    if (++number == faulty_kernel()) has_failed = true;
    if (!has_failed) run();
    return true;
  });
}

extern "C" {

char const* cudaGetErrorString(cudaError_t code) {
  return code == cudaSuccess               ? "no error"
         : code == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                           : "invalid argument";
}
char const* cudaGetErrorName(cudaError_t code) {
  return code == cudaSuccess               ? "cudaSuccess"
         : code == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                           : "cudaErrorInvalidValue";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = stand_in::devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  device_of_thread = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int size, int device) {
  std::snprintf(bus, static_cast<size_t>(size), "0000:0%d:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** block, size_t bytes) {
  ++counts().device_allocations;
  *block = new_block(bytes, true);
  return *block == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
// CUDA waits here for all work that was queued before. This keeps the memory until that work is done, and waits if the
// program wants that.
cudaError_t cudaFree(void* block) {
  std::vector<std::pair<stream*, std::weak_ptr<void>>> before;
  {
    std::lock_guard const lock(world_lock());
    forget_block(block);
    std::shared_ptr<void> const kept(block, &std::free);
    for (auto& each : streams()) {
      if (each.queue.empty()) continue;
      auto const here = std::make_shared<std::shared_ptr<void>>(kept);
      if (each.device == device_of_thread) before.emplace_back(&each, here);
      each.queue.push_back([here](bool) { return true; });
    }
  }
  if (!frees_wait) return cudaSuccess;
  auto const until = std::chrono::steady_clock::now() + longest_free;
  return wait_until([&] {
    std::erase_if(before, [](auto const& each) {
      if (!each.second.expired()) each.first->go_on(true);
      return each.second.expired();
    });
    if (before.empty()) return true;
    if (std::chrono::steady_clock::now() < until) return false;
    ++endless_frees;
    return true;
  });
}
cudaError_t cudaMallocHost(void** block, size_t bytes) {
  ++counts().pinned_allocations;
  *block = new_block(bytes, false);
  return *block == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFreeHost(void* block) { return cudaFree(block); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned) {
  std::lock_guard const lock(world_lock());
  auto& it = streams().emplace_back();
  auto& before = last_of_thread();
  it.device = device_of_thread;
  it.number = before == nullptr ? 0 : before->number + 1;
  it.before_of_thread = before;
  before = &it;
  *made = reinterpret_cast<cudaStream_t>(&it);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t it) {
  std::lock_guard const lock(world_lock());
  of(it).go_on(true);  // what is queued is done all the same
  of(it).queue.clear();
  of(it).ended = true;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t it) {
  std::lock_guard const lock(world_lock());
  bool const was_idle = of(it).queue.empty();
  auto const code = counted_query(was_idle, is_done(of(it)));
  return code == cudaSuccess && has_failed ? cudaErrorIllegalAddress : code;
}
cudaError_t cudaStreamSynchronize(cudaStream_t it) {
  ++counts().host_waits;
  return wait_until([&] { return is_done(of(it)); });
}
cudaError_t cudaDeviceSynchronize() {
  ++counts().host_waits;
  return wait_until([] {
    bool all = true;
    for (auto& each : streams())
      if (each.device == device_of_thread && !is_done(each)) all = false;
    return all;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t it, cudaEvent_t before, unsigned) {
  std::lock_guard const lock(world_lock());
  if (simt::left_out().leaves_out(left_out::wait)) return cudaSuccess;
  queue(of(it), [last = of(before).last](bool needed) { return last->is_done(needed); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  *made = reinterpret_cast<cudaEvent_t>(new event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t it) {
  std::lock_guard const lock(world_lock());
  delete &of(it);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t it, cudaStream_t on) {
  std::lock_guard const lock(world_lock());
  if (simt::left_out().leaves_out(left_out::record)) return cudaSuccess;
  auto const last = of(it).last = std::make_shared<event::record>(event::record{.done = false, .on = &of(on)});
  queue(of(on), [last](bool) { return last->done = true; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t it) {
  std::lock_guard const lock(world_lock());
  auto const code = counted_query(it, is_done(*of(it).last));
  return code == cudaSuccess && has_failed ? cudaErrorIllegalAddress : code;
}
cudaError_t cudaEventSynchronize(cudaEvent_t it) {
  ++counts().host_waits;
  auto const last = [&] {
    std::lock_guard const lock(world_lock());
    return of(it).last;
  }();
  return wait_until([&] { return is_done(*last); });
}
cudaError_t cudaMemcpyAsync(void* to, void const* from, size_t bytes, cudaMemcpyKind, cudaStream_t on) {
  if (bytes >= size_t{1} << 40) return cudaErrorInvalidValue;
  if (has_failed) return cudaErrorIllegalAddress;
  queue(of(on), [to, from, bytes](bool) {
    std::memmove(to, from, bytes);
    return true;
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t on) {
  queue(of(on), [to, value, bytes](bool) {
    std::memset(to, value, bytes);
    return true;
  });
  return cudaSuccess;
}

char const* ncclGetErrorString(ncclResult_t) { return "an error of the stand-in"; }
char const* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next{1};
  *id = {};
  auto const number = next++;
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  static std::map<std::string, std::weak_ptr<group>> known;
  std::lock_guard const lock(world_lock());
  if (config->blocking != 0) return ncclInvalidArgument;
  auto& place = known[std::string(id.internal, sizeof id.internal)];
  auto whole = place.lock();
  if (whole == nullptr) place = whole = std::make_shared<group>(size);
  ++whole->joined;
  *made = reinterpret_cast<ncclComm_t>(new communicator{.of = whole, .rank = rank});
  return ncclInProgress;
}
ncclResult_t ncclCommSplit(ncclComm_t whole, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  std::lock_guard const lock(world_lock());
  auto& parent = of(whole);
  auto const number = parent.splits++;
  parent.of->splits[number].push_back({color, key, parent.rank});
  parent.finish_split = [number, color, made](communicator& self) {
    auto wishes = self.of->splits[number];
    if (static_cast<int>(wishes.size()) < self.of->size) return false;
    *made = nullptr;
    if (color == NCCL_SPLIT_NOCOLOR) return true;
    std::erase_if(wishes, [color](auto const& each) { return each.color != color; });
    std::ranges::sort(wishes, {}, [](auto const& each) { return std::pair(each.key, each.rank); });
    auto& part = self.of->raw_transfers[{number, color}];
    if (part == nullptr) {
      part = std::make_shared<group>(static_cast<int>(wishes.size()));
      part->joined = part->size;
    }
    auto const place = std::ranges::find(wishes, self.rank, &wish::rank) - wishes.begin();
    *made = reinterpret_cast<ncclComm_t>(new communicator{.of = part, .rank = static_cast<int>(place)});
    return true;
  };
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t it, ncclResult_t* state) {
  std::lock_guard const lock(world_lock());
  auto& me = of(it);
  bool ready = me.of->joined >= me.of->size && me.is_connected();
  if (me.finish_split) {
    if (me.finish_split(me))
      me.finish_split = nullptr;
    else
      ready = false;
  }
  if (me.ending && me.used != nullptr) {
    me.used->go_on(true);
    ready = ready && me.used->queue.empty();
  }
  *state = ready ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t const it, int* count) {
  *count = of(it).of->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t const it, int* rank) {
  *rank = of(it).rank;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t it) {
  std::lock_guard const lock(world_lock());
  of(it).ending = true;  // which waits for what is queued
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t it) {
  std::lock_guard const lock(world_lock());
  delete &of(it);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t it) {
  std::lock_guard const lock(world_lock());
  if (of(it).used != nullptr) of(it).used->queue.clear();
  return ncclCommDestroy(it);
}

ncclResult_t ncclAllReduce(void const* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t at,
                           cudaStream_t on) {
  return enter(at, on, {all_reduce, from, to, count, type, op, 0});
}
ncclResult_t ncclReduceScatter(void const* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t at, cudaStream_t on) {
  return enter(at, on, {reduce_scatter, from, to, count, type, op, 0});
}
ncclResult_t ncclReduce(void const* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t at, cudaStream_t on) {
  return enter(at, on, {reduce, from, to, count, type, op, root});
}
ncclResult_t ncclAllGather(void const* from, void* to, size_t count, ncclDataType_t type, ncclComm_t at,
                           cudaStream_t on) {
  return enter(at, on, {all_gather, from, to, count, type, ncclSum, 0});
}
ncclResult_t ncclBroadcast(void const* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t at,
                           cudaStream_t on) {
  return enter(at, on, {broadcast, from, to, count, type, ncclSum, root});
}
ncclResult_t ncclSend(void const* from, size_t count, ncclDataType_t type, int peer, ncclComm_t at, cudaStream_t on) {
  return post(at, on, peer, true, {-1, from, nullptr, count, type, ncclSum, 0});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t at, cudaStream_t on) {
  return post(at, on, peer, false, {-1, nullptr, to, count, type, ncclSum, 0});
}
ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  end_group();
  return ncclInProgress;
}

// --- memory of devices

// What an H200 says of its rates.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  switch (which) {
    case cudaDevAttrMemoryPoolsSupported:
      *value = has_pools ? 1 : 0;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      break;
    case cudaDevAttrClockRate:  // in kHz
      *value = 1'980'000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 3'201'000;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:  // in bits
      *value = 6144;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int) {
  *about = {};
  std::strcpy(about->name, "simulator");
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard const lock(world_lock());
  auto const used = used_bytes(device_of_thread);
  *total = device_bytes();
  *free = used < *total ? *total - used : 0;
  return cudaSuccess;
}
// A pool keeps nothing: what is freed is free for all.
cudaError_t cudaMemPoolCreate(cudaMemPool_t* made, cudaMemPoolProps const*) {
  static char only = 0;
  *made = reinterpret_cast<cudaMemPool_t>(&only);
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
// The memory belongs to its stream from here on: what another stream or the host had written there before the stream
// comes so far is lost, and what any had left there after it is freed.
cudaError_t cudaMallocFromPoolAsync(void** block, size_t bytes, cudaMemPool_t, cudaStream_t on) {
  if (auto const code = cudaMalloc(block, bytes); code != cudaSuccess) return code;
  return cudaMemsetAsync(*block, 0xFF, bytes, on);
}
cudaError_t cudaFreeAsync(void* block, cudaStream_t on) {
  std::lock_guard const lock(world_lock());
  std::shared_ptr<void> kept(block, [bytes = blocks().at(block).bytes](void* it) {
    std::memset(it, 0xFF, bytes);
    std::free(it);
  });
  forget_block(block);
  queue_kernel(on, [kept = std::move(kept)]() mutable { kept.reset(); });
  return cudaSuccess;
}

}  // extern "C"

namespace {

std::size_t used_bytes(int device) {
  std::size_t sum = 0;
  for (auto const& [address, each] : blocks())
    if (each.device == device) sum += each.bytes;
  return sum;
}
void* new_block(size_t bytes, bool on_device) {
  std::lock_guard const lock(world_lock());
  auto const whole = (bytes + 255) / 256 * 256;
  auto const device = on_device ? device_of_thread : -1;
  if (on_device && (whole > device_bytes() || used_bytes(device) > device_bytes() - whole)) return nullptr;
  auto* const block = std::aligned_alloc(256, whole);
  if (block == nullptr) return nullptr;
  std::memset(block, 0xFF, whole);
  blocks()[block] = {device, whole};
  return block;
}
void forget_block(void* block) { blocks().erase(block); }

cudaError_t counted_query(bool was_idle, bool done) {
  if (done && !was_idle) ++counts().host_waits;
  return done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t counted_query(cudaEvent_t it, bool done) {
  thread_local cudaEvent_t asked_last = nullptr;
  if (done && asked_last == it) ++counts().host_waits;
  asked_last = done ? nullptr : it;
  return done ? cudaSuccess : cudaErrorNotReady;
}

}  // namespace
