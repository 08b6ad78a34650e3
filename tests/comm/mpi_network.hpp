#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <vector>

#include "trireme/comm/mpi/operation.hpp"

// The engine of comm::mpi on a network in memory: the calls of MPI that it makes for messages are answered here, for
// ranks of one process, one after the other, and counted. Nothing has times, so any number of ranks will do. A send
// is done when its receiver has it, so that a buffer that is changed too early shows. Included by the one source of a
// test: it replaces these calls, and operator new.

namespace network {

struct counts {
  long sends = 0;
  std::size_t bytes = 0;      ///< sent
  long receives = 0;          ///< waiting now
  long most_receives = 0;     ///< at a time
  std::size_t allocated = 0;  ///< bytes
};

struct request {
  bool done = false;
  bool receives = false;
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  int from = 0, to = 0, tag = 0;
};

struct state {
  int rank = 0;  ///< who makes the calls now
  std::vector<request> requests{1};
  std::vector<std::vector<std::size_t>> sent, expected;  ///< without a partner, by receiver
  std::vector<counts> of;
  std::size_t probed = 0;  ///< the send that was found last
  bool is_counting = false;

  void reset(int ranks) {
    is_counting = false;
    requests.assign(1, {});
    sent.assign(static_cast<std::size_t>(ranks), {});
    expected.assign(static_cast<std::size_t>(ranks), {});
    of.assign(static_cast<std::size_t>(ranks), {});
  }
  [[nodiscard]] counts& mine() { return of[static_cast<std::size_t>(rank)]; }
  void meet(std::size_t send, std::size_t receive) {
    auto& out = requests[send];
    auto& in = requests[receive];
    if (out.bytes > in.bytes) std::abort();
    if (out.bytes > 0) std::memcpy(in.at, out.at, out.bytes);
    out.done = in.done = true;
    --of[static_cast<std::size_t>(in.to)].receives;
  }
  [[nodiscard]] std::size_t take(std::vector<std::size_t>& among, int from, int tag) {
    for (std::size_t i = 0; i < among.size(); ++i)
      if (auto const found = among[i]; requests[found].from == from && requests[found].tag == tag) {
        among.erase(among.begin() + static_cast<std::ptrdiff_t>(i));
        return found;
      }
    return 0;
  }
};
inline state now;

/// Keeps what is allocated here out of the ranks' account.
struct uncounted {
  bool const before = now.is_counting;
  uncounted() { now.is_counting = false; }
  ~uncounted() { now.is_counting = before; }
};

template <class Handle>
void put(Handle* to, std::size_t id) {
  std::memcpy(to, &id, sizeof *to < sizeof id ? sizeof *to : sizeof id);
}
template <class Handle>
[[nodiscard]] std::size_t get(Handle const& from) {
  std::size_t id = 0;
  std::memcpy(&id, &from, sizeof from < sizeof id ? sizeof from : sizeof id);
  return id;
}
[[nodiscard]] inline bool is_done(MPI_Request const& it) {
  return it == MPI_REQUEST_NULL || now.requests[get(it)].done;
}

}  // namespace network

extern "C" {
int MPI_Isend(void const* at, int count, MPI_Datatype, int to, int tag, MPI_Comm, MPI_Request* out) {
  using namespace network;
  uncounted const here;
  ++now.mine().sends;
  now.mine().bytes += static_cast<std::size_t>(count);
  auto const id = now.requests.size();
  now.requests.push_back({false, false, static_cast<std::byte*>(const_cast<void*>(at)), static_cast<std::size_t>(count),
                          now.rank, to, tag});
  auto const to_whom = static_cast<std::size_t>(to);
  if (auto const receive = now.take(now.expected[to_whom], now.rank, tag); receive != 0)
    now.meet(id, receive);
  else
    now.sent[to_whom].push_back(id);
  put(out, id);
  return MPI_SUCCESS;
}
int MPI_Irecv(void* at, int count, MPI_Datatype, int from, int tag, MPI_Comm, MPI_Request* out) {
  using namespace network;
  uncounted const here;
  auto& mine = now.mine();
  mine.most_receives = std::max(mine.most_receives, ++mine.receives);
  auto const id = now.requests.size();
  now.requests.push_back(
      {false, true, static_cast<std::byte*>(at), static_cast<std::size_t>(count), from, now.rank, tag});
  auto const me = static_cast<std::size_t>(now.rank);
  if (auto const send = now.take(now.sent[me], from, tag); send != 0)
    now.meet(send, id);
  else
    now.expected[me].push_back(id);
  put(out, id);
  return MPI_SUCCESS;
}
int MPI_Improbe(int from, int tag, MPI_Comm, int* flag, MPI_Message* message, MPI_Status*) {
  using namespace network;
  auto const send = now.take(now.sent[static_cast<std::size_t>(now.rank)], from, tag);
  *flag = send != 0 ? 1 : 0;
  if (send == 0) return MPI_SUCCESS;
  now.probed = send;
  put(message, send);
  return MPI_SUCCESS;
}
int MPI_Iprobe(int, int tag, MPI_Comm, int* flag, MPI_Status* status) {  // of any source
  using namespace network;
  *flag = 0;
  for (auto const send : now.sent[static_cast<std::size_t>(now.rank)]) {
    if (now.requests[send].tag != tag) continue;
    *flag = 1;
    status->MPI_SOURCE = now.requests[send].from;
    now.probed = send;
    break;
  }
  return MPI_SUCCESS;
}
int MPI_Recv(void* at, int count, MPI_Datatype, int from, int tag, MPI_Comm, MPI_Status*) {
  using namespace network;
  auto& out = now.requests[now.take(now.sent[static_cast<std::size_t>(now.rank)], from, tag)];
  if (static_cast<std::size_t>(count) < out.bytes) std::abort();
  if (out.bytes > 0) std::memcpy(at, out.at, out.bytes);
  out.done = true;
  return MPI_SUCCESS;
}
int MPI_Get_count(MPI_Status const*, MPI_Datatype, int* count) {
  *count = static_cast<int>(network::now.requests[network::now.probed].bytes);
  return MPI_SUCCESS;
}
int MPI_Imrecv(void* at, int count, MPI_Datatype, MPI_Message* message, MPI_Request* out) {
  using namespace network;
  uncounted const here;
  auto& mine = now.mine();
  mine.most_receives = std::max(mine.most_receives, ++mine.receives);
  auto const id = now.requests.size();
  now.requests.push_back({false, true, static_cast<std::byte*>(at), static_cast<std::size_t>(count), 0, now.rank, 0});
  now.meet(get(*message), id);
  put(out, id);
  return MPI_SUCCESS;
}
int MPI_Test(MPI_Request* it, int* flag, MPI_Status*) {
  *flag = network::is_done(*it) ? 1 : 0;
  if (*flag != 0) *it = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}
int MPI_Testall(int count, MPI_Request* all, int* flag, MPI_Status*) {
  *flag = std::all_of(all, all + count, network::is_done) ? 1 : 0;
  if (*flag != 0) std::fill(all, all + count, MPI_REQUEST_NULL);
  return MPI_SUCCESS;
}
int MPI_Testsome(int count, MPI_Request* all, int* found, int* which, MPI_Status*) {
  *found = 0;
  bool any = false;
  for (int i = 0; i < count; ++i) {
    if (all[i] == MPI_REQUEST_NULL) continue;
    any = true;
    if (!network::is_done(all[i])) continue;
    all[i] = MPI_REQUEST_NULL;
    which[(*found)++] = i;
  }
  if (!any) *found = MPI_UNDEFINED;
  return MPI_SUCCESS;
}
int MPI_Request_get_status(MPI_Request it, int* flag, MPI_Status*) {
  *flag = network::is_done(it) ? 1 : 0;
  return MPI_SUCCESS;
}
int MPI_Cancel(MPI_Request*) { return MPI_SUCCESS; }
}

// Not inlined, or GCC takes malloc and delete for a mismatched pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (network::now.is_counting) network::now.mine().allocated += bytes;
  if (void* block = std::malloc(bytes == 0 ? 1 : bytes)) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }

namespace network {

/// Carries out a command of each of `ranks` ranks, make(rank); how many have ended. What leaves a rank as an exception
/// is appended to `told`. With `places`, so many ranks stand on each machine.
template <class Make>
int carry_out(int ranks, Make make, std::vector<std::string>* told = nullptr, int places = 0) {
  namespace detail = trireme::comm::detail;
  now.reset(ranks);
  std::vector<int> all(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) all[static_cast<std::size_t>(rank)] = rank;
  std::vector<std::unique_ptr<detail::mpi_group>> groups;
  std::vector<std::unique_ptr<detail::mpi_operation>> operations;
  std::vector<bool> over(all.size());
  int done = 0;
  auto const as = [&](int rank, auto work) {
    now.rank = rank;
    now.is_counting = true;
    try {
      work();
    } catch (trireme::comm_error const& problem) {
      now.is_counting = false;
      over[static_cast<std::size_t>(rank)] = true;
      if (told == nullptr) throw;
      told->emplace_back(problem.what());
    }
    now.is_counting = false;
  };
  for (int rank = 0; rank < ranks; ++rank) {
    auto group = std::make_unique<detail::mpi_group>();
    group->handle = MPI_COMM_WORLD;
    group->members = all;
    group->rank = rank;
    group->size = ranks;
    group->window = 1000;
    if (places > 0) {
      std::vector<int> machines;
      for (int each = 0; each < ranks; ++each) machines.push_back(each / places);
      group->stand_on(machines);
      group->piece_bytes = detail::mpi_group::unasked;
    }
    groups.push_back(std::move(group));
    operations.push_back(std::make_unique<detail::mpi_operation>());
  }
  for (int rank = 0; rank < ranks; ++rank)
    as(rank,
       [&] { operations[static_cast<std::size_t>(rank)]->begin(*groups[static_cast<std::size_t>(rank)], make(rank)); });
  for (int quiet = 0; quiet < 4;) {
    auto const before = now.requests.size() + static_cast<std::size_t>(done);
    for (int rank = ranks; rank-- > 0;) {
      auto& operation = *operations[static_cast<std::size_t>(rank)];
      if (over[static_cast<std::size_t>(rank)]) continue;
      as(rank, [&] { operation.advance(); });
      if (!operation.finished.load()) continue;
      over[static_cast<std::size_t>(rank)] = true;
      ++done;
    }
    quiet = now.requests.size() + static_cast<std::size_t>(done) == before ? quiet + 1 : 0;
  }
  return done;
}

}  // namespace network
