#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "order.hpp"

#if defined(__SANITIZE_THREAD__)
#define SIMT_THREAD_SANITIZER 1
#elif defined(__SANITIZE_ADDRESS__)
#define SIMT_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SIMT_THREAD_SANITIZER 1
#elif __has_feature(address_sanitizer)
#define SIMT_ADDRESS_SANITIZER 1
#endif
#endif

#if defined(SIMT_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(char const* file, int line);
void AnnotateIgnoreReadsEnd(char const* file, int line);
void AnnotateIgnoreWritesBegin(char const* file, int line);
void AnnotateIgnoreWritesEnd(char const* file, int line);
}
#define SIMT_PLAIN __attribute__((no_sanitize("thread")))
#elif defined(SIMT_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SIMT_PLAIN __attribute__((no_sanitize("address")))
#else
#define SIMT_PLAIN
#endif

#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT 1
#endif
#if defined(SIMT_UCONTEXT)
#include <ucontext.h>
#endif

// A stand-in for the threads of a GPU. A kernel's source, compiled by g++ or clang++, runs here block by block, and
// each of its threads is a fibre: it has a stack of its own and runs until it waits in a barrier or in an operation of
// its warp. Include this file before trireme/ops/cuda/device.hpp, which then declares what kernels may use in terms of
// it.
//
// What it finds, by build:
//   any       a barrier or a warp operation that some thread never reaches, threads that wait in different barriers, a
//             mask that names a missing lane, too much shared memory: an exception simt::error that names the kernel,
//             the block, the thread and the operation. Shared memory is filled with 0xFF (NaN, -1) before each block,
//             so what is read before it is written gives wrong results.
//   thread    each fibre is one of the sanitizer's own fibres: races in shared and in global memory, between threads,
//             blocks and the kernels of different ranks. Barriers and sync_warp order memory; shuffles do not.
//   address   reads and writes past the end of a tensor and of a shared array (and, by the undefined behaviour
//             sanitizer, vectors at addresses that are not aligned for them). A line names the thread.
//
// The order in which threads and blocks run is drawn from a seed (set_seed, or the number of simt::order()). A launch
// returns when the kernel is done, unless it names a stream and there is a stand-in for streams (queue_on), which runs
// the kernel later.

#define TRIREME_SIMT 1

#if defined(SIMT_UCONTEXT)
#else
// Saves the registers that a function must keep (System V, x86-64) on the old stack, and takes those of the new one.
asm(R"(
.text
.p2align 4
.weak trireme_simt_switch
.type trireme_simt_switch,@function
trireme_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size trireme_simt_switch,.-trireme_simt_switch
)");
extern "C" void trireme_simt_switch(void** from, void* to);
#endif

namespace simt {

/// What a kernel does wrong, with the names of kernel, block, thread and operation.
struct error : std::runtime_error {
  using runtime_error::runtime_error;
};

#if defined(SIMT_WARP)
inline constexpr int warp_width = SIMT_WARP;  // 64, as on some AMD devices
#else
inline constexpr int warp_width = 32;
#endif
using lane_mask = std::conditional_t<warp_width == 64, std::uint64_t, std::uint32_t>;
inline constexpr lane_mask all_lanes = static_cast<lane_mask>(~lane_mask{0});

struct index3 {
  unsigned x = 0, y = 0, z = 0;
};

/// While one lives, the thread sanitizer does not look at what this fibre does: the stand-in's own accesses are no
/// races of the kernel.
struct unobserved {
#if defined(SIMT_THREAD_SANITIZER)
  SIMT_PLAIN unobserved() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  SIMT_PLAIN ~unobserved() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  unobserved() {}
  ~unobserved() {}
#endif
  unobserved(unobserved const&) = delete;
  unobserved& operator=(unobserved const&) = delete;
};

/// Where a thread waits: "sync_block in kernels.cuh:36".
struct place {
  char const* operation = "";
  char const* file = "";
  int line = 0;
  [[nodiscard]] std::string text() const {
    std::string const path = file;
    auto const slash = path.rfind('/');
    return std::string(operation) + " in " + (slash == std::string::npos ? path : path.substr(slash + 1)) + ":" +
           std::to_string(line);
  }
  friend bool operator==(place const& a, place const& b) {
    auto const same = [](char const* x, char const* y) { return x == y || std::strcmp(x, y) == 0; };
    return a.line == b.line && same(a.operation, b.operation) && same(a.file, b.file);
  }
};

enum class state { ready, at_barrier, among_lanes, done };

/// 16 bytes that a thread has begun to copy to shared memory; zeros if they come from nowhere.
struct begun_copy {
  void* to;
  void const* from;
};

/// One thread of the block that is running.
struct fibre {
  index3 thread{};
  state now = state::ready;
  place waits{};
  lane_mask mask = 0;               // the lanes of the operation in which it waits
  int barriers = 0;                 // so far
  std::uint64_t operations = 0;     // of its warp so far: neighbouring ones use different places below
  std::uint64_t given[2] = {0, 0};  // what it shows to the other lanes
  char* stack = nullptr;
  void* of_sanitizer = nullptr;
  void* fake_stack = nullptr;
#if defined(SIMT_UCONTEXT)
  ucontext_t context{};
#else
  void* stack_pointer = nullptr;
#endif
};

/// The device of one thread of the program: a rank.
class device {
 public:
  static constexpr std::size_t stack_bytes = std::size_t{64} << 10;
  static constexpr std::size_t shared_bytes = std::size_t{48} << 10;
  static constexpr unsigned most_threads = 1024;
  static constexpr std::size_t red_zone = 32;

  device() {
#if defined(SIMT_ADDRESS_SANITIZER)
    __sanitizer_set_death_callback(&device::report);
#endif
  }
  device(device const&) = delete;
  device& operator=(device const&) = delete;
  ~device() {
    for (auto& each : sets_) {
      for (auto* stack : each.stacks) ::munmap(stack - guard_bytes, stack_bytes + guard_bytes);
#if defined(SIMT_THREAD_SANITIZER)
      for (auto* one : each.of_sanitizer) __tsan_destroy_fiber(one);
#endif
    }
  }

  void set_seed(std::uint64_t seed) { order_.seed(static_cast<std::mt19937::result_type>(seed)); }

  /// Runs a kernel: `blocks` blocks of `threads` threads, each calling `body`.
  void launch(char const* kernel, unsigned blocks, unsigned threads, std::function<void()> body) {
    unobserved const own;
    if (running_ != nullptr) throw error(std::string("simt: a kernel launches the kernel ") + kernel);
    if (threads == 0 || threads > most_threads)
      throw error(std::string("simt: kernel ") + kernel + ": a block of " + std::to_string(threads) + " threads");
    kernel_ = kernel;
    grid_ = {blocks, 1, 1};
    block_extent_ = {threads, 1, 1};
    body_ = std::move(body);
    if (int const now = order(); now != order_number_) set_seed(static_cast<std::uint64_t>(order_number_ = now) + 1);
    auto const& omitted = left_out().now();
    omitted_barrier_ = omitted.what == omission::kind::barrier && omitted.kernel == kernel ? omitted.number : 0;
    failure_.clear();
    thrown_ = nullptr;
#if defined(SIMT_THREAD_SANITIZER)
    main_of_sanitizer_ = __tsan_get_current_fiber();
    __tsan_release(&start_token_);
#endif
    std::vector<unsigned> which(blocks);
    for (unsigned i = 0; i < blocks; ++i) which[i] = i;
    std::shuffle(which.begin(), which.end(), order_);
    for (auto const block : which) {
      block_ = {block, 0, 0};
      run_block();
      if (!failure_.empty() || thrown_ != nullptr) break;
    }
#if defined(SIMT_THREAD_SANITIZER)
    __tsan_acquire(&end_token_);
#endif
    body_ = nullptr;
    if (thrown_ != nullptr) std::rethrow_exception(thrown_);
    if (!failure_.empty()) throw error(failure_);
  }

  [[nodiscard]] index3 thread() const { return self().thread; }
  [[nodiscard]] index3 block() const { return block_; }
  [[nodiscard]] index3 block_extent() const { return block_extent_; }
  [[nodiscard]] index3 grid() const { return grid_; }
  [[nodiscard]] int lane() const { return static_cast<int>(number_of(self()) % warp_width); }

  /// "kernel add, block (1,0,0), thread (3,0,0)", or an empty text outside of kernels.
  [[nodiscard]] SIMT_PLAIN std::string running() const { return running_ == nullptr ? "" : name(*running_); }

  void barrier(place const& where) {
    if (omitted_barrier_ != 0 && ++self().barriers == omitted_barrier_) return left_out().add();
#if defined(SIMT_THREAD_SANITIZER)
    __tsan_release(block_token());
#endif
    wait(state::at_barrier, where, 0);
#if defined(SIMT_THREAD_SANITIZER)
    __tsan_acquire(block_token());
#endif
  }

  void warp_barrier(lane_mask mask, place const& where) {
#if defined(SIMT_THREAD_SANITIZER)
    auto* const token = warp_token();
    __tsan_release(token);
#endif
    wait(state::among_lanes, where, mask);
#if defined(SIMT_THREAD_SANITIZER)
    __tsan_acquire(token);
#endif
  }

  /// Each lane of the mask shows `mine`; returns what lane `from` shows (its own if there is no such lane).
  template <class T>
  T exchange(T const& mine, int from, lane_mask mask, place const& where) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
    unobserved const own;
    auto& me = self();
    auto const turn = me.operations++ & 1U;
    std::memcpy(&me.given[turn], &mine, sizeof mine);
    wait(state::among_lanes, where, mask);
    if (from < 0 || from >= warp_width) return mine;
    if ((mask >> from & 1U) == 0) {
      throw error("simt: " + name(me) + " reads lane " + std::to_string(from) + ", which its mask leaves out, in " +
                  where.text());
    }
    T theirs;
    std::memcpy(&theirs, &first_of_warp(me)[from].given[turn], sizeof theirs);
    return theirs;
  }

  /// all[lane] = what each lane of the warp shows: one operation of two waits, for any type.
  template <class T>
  void gather(T const& mine, T (&all)[warp_width], place const& where) {
    static_assert(std::is_trivially_copyable_v<T>);
    unobserved const own;
    auto& me = self();
    auto const turn = me.operations++ & 1U;
    T const* const address = &mine;
    std::memcpy(&me.given[turn], &address, sizeof address);
    wait(state::among_lanes, where, all_lanes);
    for (int lane = 0; lane < warp_width; ++lane) {
      T const* theirs = nullptr;
      std::memcpy(&theirs, &first_of_warp(me)[lane].given[turn], sizeof theirs);
      std::memcpy(&all[lane], theirs, sizeof(T));
    }
    wait(state::among_lanes, where, all_lanes);  // until all have read
  }

  /// This thread begins a copy, which it ends when it has taken it by take_copies().
  void begin_copy(begun_copy const& it) {
    unobserved const own;
    copies_[number_of(self())].push_back(it);
  }
  /// Up to `most` of the copies that this thread has begun; returns how many.
  int take_copies(begun_copy* taken, int most) {
    unobserved const own;
    auto& mine = copies_[number_of(self())];
    int count = 0;
    for (; count < most && !mine.empty(); mine.pop_back()) taken[count++] = mine.back();
    return count;
  }

  /// The lanes of the mask whose condition holds.
  lane_mask ballot(bool condition, lane_mask mask, place const& where) {
    unobserved const own;
    auto& me = self();
    auto const turn = me.operations++ & 1U;
    me.given[turn] = condition ? 1U : 0U;
    wait(state::among_lanes, where, mask);
    lane_mask all = 0;
    for (int lane = 0; lane < warp_width; ++lane)
      if ((mask >> lane & 1U) != 0 && first_of_warp(me)[lane].given[turn] != 0) all |= lane_mask{1} << lane;
    return all;
  }

  /// The block's array for `site`, an address that tells one array from another. Its elements are poisoned when the
  /// block begins, and bytes beside it may not be touched.
  void* shared(void const* site, std::size_t bytes, char const* what) {
    unobserved const own;
    for (auto const& [of, address] : arrays_)
      if (of == site) return address;
    auto const taken = red_zone + (bytes + 15) / 16 * 16;
    if (shared_taken_ + taken + red_zone > shared_bytes) {
      throw error("simt: " + name(self()) + " takes more than " + std::to_string(shared_bytes >> 10) +
                  " KB of shared memory with " + what);
    }
    char* const address = shared_.get() + shared_taken_ + red_zone;
    shared_taken_ += taken;
#if defined(SIMT_ADDRESS_SANITIZER)
    __asan_unpoison_memory_region(address, bytes);
#endif
    arrays_.emplace_back(site, address);
    return address;
  }

 private:
  static constexpr std::size_t guard_bytes = 4096;
  /// Neighbouring blocks use two sets of fibres in turn, so that the thread sanitizer sees no order between them.
  struct fibres {
    std::vector<char*> stacks;
    std::vector<void*> of_sanitizer;
  };
  struct free_memory {
    void operator()(char* memory) const { std::free(memory); }
  };

  [[nodiscard]] fibre& self() const {
    if (running_ == nullptr) throw error("simt: called outside of a kernel");
    return *running_;
  }
  [[nodiscard]] std::size_t number_of(fibre const& one) const {
    return static_cast<std::size_t>(&one - threads_.data());
  }
  [[nodiscard]] fibre* first_of_warp(fibre const& one) {
    return threads_.data() + number_of(one) / warp_width * warp_width;
  }
  [[nodiscard]] std::string name(fibre const& one) const {
    return std::string("kernel ") + kernel_ + ", block (" + std::to_string(block_.x) + "," + std::to_string(block_.y) +
           "," + std::to_string(block_.z) + "), thread (" + std::to_string(one.thread.x) + "," +
           std::to_string(one.thread.y) + "," + std::to_string(one.thread.z) + ")";
  }
#if defined(SIMT_THREAD_SANITIZER)
  // Blocks have tokens of their own: a barrier of one orders nothing in another.
  [[nodiscard]] void* block_token() { return &block_tokens_[number_ % tokens * 33]; }
  [[nodiscard]] void* warp_token() {
    return &block_tokens_[number_ % tokens * 33 + 1 + number_of(self()) / warp_width];
  }
#endif

  void wait(state how, place const& where, lane_mask mask) {
    unobserved const own;
    auto& me = self();
    me.now = how;
    me.waits = where;
    me.mask = mask;
    leave(false);
    if (!failure_.empty()) throw error(failure_);
  }

  // Both switches leave one stack and come back to it later. They are not instrumented: a sanitizer would count the
  // frames of one stack on another.
  SIMT_PLAIN void leave(bool for_good) {
    fibre* const me = running_;
#if defined(SIMT_THREAD_SANITIZER)
    __tsan_switch_to_fiber(main_of_sanitizer_, __tsan_switch_to_fiber_no_sync);
#elif defined(SIMT_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &me->fake_stack, main_bottom_, main_bytes_);
#endif
    static_cast<void>(for_good);
#if defined(SIMT_UCONTEXT)
    ::swapcontext(&me->context, &main_context_);
#else
    trireme_simt_switch(&me->stack_pointer, main_stack_pointer_);
#endif
#if defined(SIMT_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(me->fake_stack, &main_bottom_, &main_bytes_);
#endif
  }
  SIMT_PLAIN void enter(fibre& next) {
    running_ = &next;
#if defined(SIMT_THREAD_SANITIZER)
    __tsan_switch_to_fiber(next.of_sanitizer, __tsan_switch_to_fiber_no_sync);
#elif defined(SIMT_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(&main_fake_stack_, next.stack, stack_bytes);
#endif
#if defined(SIMT_UCONTEXT)
    ::swapcontext(&main_context_, &next.context);
#else
    trireme_simt_switch(&main_stack_pointer_, next.stack_pointer);
#endif
#if defined(SIMT_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(main_fake_stack_, nullptr, nullptr);
#endif
    running_ = nullptr;
  }
  SIMT_PLAIN static void begin();
  SIMT_PLAIN static void report();
  void run_body() {
    try {
      body_();
    } catch (error const& e) {
      if (failure_.empty()) failure_ = e.what();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }

  void prepare(fibre& one) {
#if defined(SIMT_ADDRESS_SANITIZER)
    __asan_unpoison_memory_region(one.stack, stack_bytes);
#endif
#if defined(SIMT_UCONTEXT)
    ::getcontext(&one.context);
    one.context.uc_stack.ss_sp = one.stack;
    one.context.uc_stack.ss_size = stack_bytes;
    one.context.uc_link = nullptr;
    ::makecontext(&one.context, &device::begin, 0);
#else
    void** top = reinterpret_cast<void**>(one.stack + stack_bytes);
    *--top = nullptr;  // the stack of a function that is called is aligned so
    *--top = reinterpret_cast<void*>(&device::begin);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    one.stack_pointer = top;
#endif
#if defined(SIMT_THREAD_SANITIZER)
    char label[64];  // longer names are cut
    std::snprintf(label, sizeof label, "%.28s block %u thread %u", kernel_, block_.x, one.thread.x);
    __tsan_set_fiber_name(one.of_sanitizer, label);
#endif
  }

  void run_block() {
    auto const count = block_extent_.x;
    auto& own = sets_[++number_ % 2];
    while (own.stacks.size() < count) {
      void* const memory = ::mmap(nullptr, stack_bytes + guard_bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) throw std::bad_alloc();
      ::mprotect(memory, guard_bytes, PROT_NONE);  // a stack that is too small faults
      own.stacks.push_back(static_cast<char*>(memory) + guard_bytes);
#if defined(SIMT_THREAD_SANITIZER)
      own.of_sanitizer.push_back(__tsan_create_fiber(0));
#endif
    }
#if defined(SIMT_THREAD_SANITIZER)
    shared_.reset();  // new memory, of which the sanitizer knows nothing
#endif
    if (shared_ == nullptr) {
      shared_.reset(static_cast<char*>(std::malloc(shared_bytes)));
      if (shared_ == nullptr) throw std::bad_alloc();
    }
#if defined(SIMT_ADDRESS_SANITIZER)
    __asan_unpoison_memory_region(shared_.get(), shared_bytes);
#endif
    std::memset(shared_.get(), 0xFF, shared_bytes);
#if defined(SIMT_ADDRESS_SANITIZER)
    __asan_poison_memory_region(shared_.get(), shared_bytes);
#endif
    shared_taken_ = 0;
    arrays_.clear();
    threads_.assign(count, {});
    if (copies_.size() < count) copies_.resize(count);
    for (auto& each : copies_) each.clear();
    for (unsigned i = 0; i < count; ++i) {
      threads_[i].thread = {i, 0, 0};
      threads_[i].stack = own.stacks[i];
#if defined(SIMT_THREAD_SANITIZER)
      threads_[i].of_sanitizer = own.of_sanitizer[i];
#endif
      prepare(threads_[i]);
    }
    std::size_t warp = 0;  // that runs, in odd orders
    while (true) {
      ready_.clear();
      for (auto& each : threads_)
        if (each.now == state::ready) ready_.push_back(&each);
      if (order_number_ % 2 == 1 && !ready_.empty()) {
        auto const of_warp = [&](fibre const* each) { return number_of(*each) / warp_width == warp; };
        if (std::none_of(ready_.begin(), ready_.end(), of_warp))
          warp = number_of(*ready_[order_() % ready_.size()]) / warp_width;
        std::erase_if(ready_, [&](fibre const* each) { return !of_warp(each); });
      }
      std::shuffle(ready_.begin(), ready_.end(), order_);
      for (auto* each : ready_) enter(*each);
      if (!release_waiting()) break;
    }
#if defined(SIMT_ADDRESS_SANITIZER)
    __asan_unpoison_memory_region(shared_.get(), shared_bytes);
#endif
  }

  /// Lets those go on who have waited for each other. False if all threads are done.
  bool release_waiting() {
    bool moved = false, alive = false, all_at_barrier = true;  // moved: some are ready
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      auto& each = threads_[i];
      alive = alive || each.now != state::done;
      moved = moved || each.now == state::ready;
      all_at_barrier = all_at_barrier && (each.now == state::at_barrier || each.now == state::done);
      if (each.now == state::among_lanes && lanes_have_come(each)) {
        fibre* const first = first_of_warp(each);
        for (int lane = 0; lane < warp_width; ++lane)
          if ((each.mask >> lane & 1U) != 0) first[lane].now = state::ready;
        moved = true;
      }
    }
    if (!alive) return false;
    if (moved) return true;
    if (failure_.empty() && (!all_at_barrier || !same_barrier())) describe_deadlock(all_at_barrier);
    for (auto& each : threads_)
      if (each.now != state::done) each.now = state::ready;
    return true;
  }
  [[nodiscard]] bool lanes_have_come(fibre const& one) {
    auto const start = number_of(one) / warp_width * warp_width;
    auto const lanes = std::min<std::size_t>(warp_width, threads_.size() - start);
    for (std::size_t lane = 0; lane < static_cast<std::size_t>(warp_width); ++lane) {
      if ((one.mask >> lane & 1U) == 0) continue;
      if (lane >= lanes) return false;
      auto const& other = threads_[start + lane];
      if (other.now != state::among_lanes || other.mask != one.mask || !(other.waits == one.waits)) return false;
    }
    return true;
  }
  [[nodiscard]] bool same_barrier() const {
    place const* first = nullptr;
    for (auto const& each : threads_) {
      if (each.now != state::at_barrier) continue;
      if (first != nullptr && !(*first == each.waits)) return false;
      first = &each.waits;
    }
    return true;
  }
  void describe_deadlock(bool barriers_only) {
    std::string lines;
    int listed = 0;
    place const* before = nullptr;
    for (auto const& each : threads_) {  // one thread of each place
      if (each.now == state::done || (before != nullptr && *before == each.waits)) continue;
      before = &each.waits;
      if (++listed > 6) break;
      lines += (lines.empty() ? "" : "; ") + name(each) + " waits in " + each.waits.text();
    }
    std::size_t done = 0;
    for (auto const& each : threads_) done += each.now == state::done ? 1 : 0;
    failure_ = std::string("simt: ") + (barriers_only ? "threads wait in different barriers: " : "deadlock: ") + lines;
    if (done > 0) failure_ += "; " + std::to_string(done) + " threads of the block are done";
  }

  fibres sets_[2];
  std::vector<fibre> threads_;
  std::vector<fibre*> ready_;
  std::vector<std::vector<begun_copy>> copies_;  // of each thread
  fibre* running_ = nullptr;
  std::function<void()> body_;
  char const* kernel_ = "";
  index3 block_{}, block_extent_{}, grid_{};
  std::uint64_t number_ = 0;  // of the block, over all launches
  std::unique_ptr<char, free_memory> shared_;
  std::size_t shared_taken_ = 0;
  std::vector<std::pair<void const*, char*>> arrays_;
  std::string failure_;
  std::exception_ptr thrown_;
  std::mt19937 order_{1};
  int order_number_ = 0;  // of simt::order()
  int omitted_barrier_ = 0;
#if defined(SIMT_UCONTEXT)
  ucontext_t main_context_{};
#else
  void* main_stack_pointer_ = nullptr;
#endif
#if defined(SIMT_THREAD_SANITIZER)
  static constexpr std::size_t tokens = 64;
  void* main_of_sanitizer_ = nullptr;
  char block_tokens_[tokens * 33]{};
  char start_token_ = 0;
  char end_token_ = 0;
#elif defined(SIMT_ADDRESS_SANITIZER)
  void* main_fake_stack_ = nullptr;
  void const* main_bottom_ = nullptr;
  std::size_t main_bytes_ = 0;
#endif
};

/// That of this thread. It ends after the thread's other objects, whose destructors may still run kernels of a stream.
inline device& here() {
  static thread_local device* own = nullptr;
  if (own == nullptr) {
    static ::pthread_key_t const at_end = [] {
      ::pthread_key_t made{};
      if (::pthread_key_create(&made, [](void* it) { delete static_cast<device*>(it); }) != 0) throw std::bad_alloc();
      return made;
    }();
    own = new device;
    static_cast<void>(::pthread_setspecific(at_end, own));
  }
  return *own;
}

SIMT_PLAIN inline void device::begin() {
  auto& own = here();
#if defined(SIMT_ADDRESS_SANITIZER)
  __sanitizer_finish_switch_fiber(nullptr, &own.main_bottom_, &own.main_bytes_);
#endif
#if defined(SIMT_THREAD_SANITIZER)
  __tsan_acquire(&own.start_token_);
#endif
  own.run_body();
#if defined(SIMT_THREAD_SANITIZER)
  __tsan_release(&own.end_token_);
#endif
  own.running_->now = state::done;
  own.leave(true);
}

/// Where kernels go that name a stream: a stand-in for streams sets it, and calls what it gets, in the stream's order.
/// While it is not set, every kernel runs at once.
inline void (*queue_on)(void* stream, std::function<void()> kernel) = nullptr;

/// The order in which threads and blocks of this thread's kernels run from now on.
inline void set_seed(std::uint64_t seed) { here().set_seed(seed); }

/// Which thread of which kernel was running: the last that the address sanitizer says.
SIMT_PLAIN inline void device::report() {
  auto const who = here().running();
  if (!who.empty()) std::fprintf(stderr, "simt: %s\n", who.c_str());
}

#if defined(SIMT_ADDRESS_SANITIZER)
/// The undefined behaviour sanitizer calls this before it says something.
extern "C" __attribute__((weak, used)) SIMT_PLAIN void __ubsan_on_report() {
  auto const who = here().running();
  if (!who.empty()) std::fprintf(stderr, "simt: %s\n", who.c_str());
}
#endif

template <class T, int Number = 0>
[[nodiscard]] T& shared() {
  static char const site = 0;
  return *static_cast<T*>(here().shared(&site, sizeof(T), __PRETTY_FUNCTION__));
}

}  // namespace simt
