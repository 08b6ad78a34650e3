#include "trireme/contract/communicator.hpp"

#include <span>
#include <string_view>

#include "../catch.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/comm/processes.hpp"

namespace {

using namespace trireme;

struct request {
  bool test() { return true; }
  void wait() {}
};

using counts = std::span<std::int64_t const>;

/// The smallest communicator with every capability.
struct archetype {
  static constexpr std::string_view name = "archetype";
  archetype(archetype&&) = default;
  int rank() const { return 0; }
  int size() const { return 1; }
  archetype split(int, int) { return std::move(*this); }
  archetype duplicate() { return std::move(*this); }
  void barrier() {}
  traffic_counters traffic() const { return {}; }
  void all_reduce(tensor_view<float>, reduction::sum) {}
  request all_reduce_async(tensor_view<float>, reduction::sum) { return {}; }
  void reduce_scatter(tensor_view<float>, reduction::sum) {}
  request reduce_scatter_async(tensor_view<float>, reduction::sum) { return {}; }
  void reduce_scatter(tensor_view<float>, counts, reduction::sum) {}
  request reduce_scatter_async(tensor_view<float>, counts, reduction::sum) { return {}; }
  void reduce(tensor_view<float>, int, reduction::sum) {}
  request reduce_async(tensor_view<float>, int, reduction::sum) { return {}; }
  void all_gather(tensor_view<float>) {}
  request all_gather_async(tensor_view<float>) { return {}; }
  void all_gather(tensor_view<float>, counts) {}
  request all_gather_async(tensor_view<float>, counts) { return {}; }
  void gather(tensor_view<float const>, tensor_view<float>, int) {}
  request gather_async(tensor_view<float const>, tensor_view<float>, int) { return {}; }
  void scatter(tensor_view<float const>, tensor_view<float>, int) {}
  request scatter_async(tensor_view<float const>, tensor_view<float>, int) { return {}; }
  void all_to_all(tensor_view<float const>, tensor_view<float>) {}
  request all_to_all_async(tensor_view<float const>, tensor_view<float>) { return {}; }
  void all_to_all(tensor_view<float const>, counts, tensor_view<float>, counts) {}
  request all_to_all_async(tensor_view<float const>, counts, tensor_view<float>, counts) { return {}; }
  void broadcast(tensor_view<float>, int) {}
  request broadcast_async(tensor_view<float>, int) { return {}; }
  void exchange(std::span<transfer<host> const>) {}
  request exchange_async(std::span<transfer<host> const>) { return {}; }
  template <class T>
  tensor<T> allocate(shape extents) {
    return tensor<T>(extents);
  }
  std::vector<tensor_view<float>> peers(tensor_view<float> view) { return {view}; }
  void open_routes(std::span<route const>) {}
};

template <class C, class T, class Op = reduction::sum, class Space = host>
constexpr bool reduces = has_all_reduce<C, T, Op, Space>&& has_reduce_scatter<C, T, Op, Space>&&
    has_ragged_reduce_scatter<C, T, Op, Space>&& has_reduce<C, T, Op, Space>;
template <class C, class T, class Space = host>
constexpr bool moves = has_all_gather<C, T, Space>&& has_ragged_all_gather<C, T, Space>&& has_gather<C, T, Space>&&
    has_scatter<C, T, Space>&& has_all_to_all<C, T, Space>&& has_ragged_all_to_all<C, T, Space>&&
        has_broadcast<C, T, Space>&& has_exchange<C, Space>;

static_assert(communicator<archetype>);
static_assert(reduces<archetype, float> && moves<archetype, float>);
static_assert(has_allocate<archetype, float> && has_peers<archetype, float> && has_routes<archetype>);
static_assert(!has_routes<comm::self_world> && !has_routes<comm::threads_world> && !has_routes<comm::any_world>);
static_assert(!has_all_reduce<archetype, double> && !has_reduce<archetype, double>);
static_assert(!has_all_reduce<archetype, float, reduction::max> && !has_reduce<archetype, float, reduction::mean>);
static_assert(!has_gather<archetype, double> && !has_scatter<archetype, double>);
static_assert(!has_exchange<archetype, phantom> && !has_allocate<archetype, float, phantom>);

struct without_rank : archetype {
  void rank() const;
  without_rank split(int, int);
  without_rank duplicate();
};
static_assert(!has_rank<without_rank> && has_size<without_rank> && !communicator<without_rank>);
struct without_size : archetype {
  long size() const;
  without_size split(int, int);
  without_size duplicate();
};
static_assert(!has_size<without_size> && has_rank<without_size> && !communicator<without_size>);
struct without_split : archetype {  // its split gives the base, which is another communicator
  without_split duplicate();
};
static_assert(!has_split<without_split> && has_duplicate<without_split> && !communicator<without_split>);
struct without_duplicate : archetype {
  without_duplicate split(int, int);
};
static_assert(!has_duplicate<without_duplicate> && has_split<without_duplicate> && !communicator<without_duplicate>);
struct without_barrier : archetype {
  without_barrier split(int, int);
  without_barrier duplicate();
  void barrier(int);
};
static_assert(!has_barrier<without_barrier> && has_split<without_barrier> && !communicator<without_barrier>);
struct without_traffic : archetype {
  without_traffic split(int, int);
  without_traffic duplicate();
  int traffic() const;
};
static_assert(!has_traffic<without_traffic> && has_split<without_traffic> && !communicator<without_traffic>);
struct without_name : archetype {
  without_name split(int, int);
  without_name duplicate();
  static constexpr int name = 0;
};
static_assert(!has_communicator_name<without_name> && has_split<without_name> && !communicator<without_name>);

/// Its requests are not requests, and its memory and peers are of another kind: it has no capability.
struct blocking_only : archetype {
  void all_reduce_async(tensor_view<float>, reduction::sum);
  void reduce_scatter_async(tensor_view<float>, reduction::sum);
  void reduce_async(tensor_view<float>, int, reduction::sum);
  void all_gather_async(tensor_view<float>);
  void all_gather_async(tensor_view<float>, counts);
  void gather_async(tensor_view<float const>, tensor_view<float>, int);
  void scatter_async(tensor_view<float const>, tensor_view<float>, int);
  void all_to_all_async(tensor_view<float const>, tensor_view<float>);
  void all_to_all_async(tensor_view<float const>, counts, tensor_view<float>, counts);
  void broadcast_async(tensor_view<float>, int);
  void exchange_async(std::span<transfer<host> const>);
  template <class T>
  std::vector<T> allocate(shape);
  tensor_view<float> peers(tensor_view<float>);
};
/// Has every request, but no blocking call.
struct asynchronous_only : archetype {
  void all_reduce();
  void reduce_scatter();
  void reduce();
  void all_gather();
  void gather();
  void scatter();
  void all_to_all();
  void broadcast();
  void exchange();
};
template <class C>
constexpr bool has_nothing =
    !has_all_reduce<C, float> && !has_reduce_scatter<C, float> && !has_reduce<C, float> && !has_all_gather<C, float> &&
    !has_ragged_all_gather<C, float> && !has_gather<C, float> && !has_scatter<C, float> && !has_all_to_all<C, float> &&
    !has_ragged_all_to_all<C, float> && !has_broadcast<C, float> && !has_exchange<C>;
static_assert(has_nothing<blocking_only> && has_nothing<asynchronous_only>);
static_assert(!has_allocate<blocking_only, float> && !has_peers<blocking_only, float>);

/// Equal parts only.
struct without_ragged : archetype {
  void all_gather(tensor_view<float>);
  request all_gather_async(tensor_view<float>);
  void all_to_all(tensor_view<float const>, tensor_view<float>);
  request all_to_all_async(tensor_view<float const>, tensor_view<float>);
};
static_assert(has_all_gather<without_ragged, float> && !has_ragged_all_gather<without_ragged, float>);
static_assert(has_all_to_all<without_ragged, float> && !has_ragged_all_to_all<without_ragged, float>);

static_assert(!progresses_alone<archetype>);
struct progressing : archetype {
  static constexpr bool progresses = true;
};
static_assert(progresses_alone<progressing>);
template <bool Here>
struct progressing_in_some_worlds {
  static constexpr bool progresses = true;
  [[nodiscard]] constexpr bool progresses_here() const noexcept { return Here; }
};
static_assert(requests_travel_alone(progressing_in_some_worlds<true>{}));
static_assert(!requests_travel_alone(progressing_in_some_worlds<false>{}));
struct in_phantom : archetype {
  using space = phantom;
};
static_assert(std::same_as<space_of<archetype>::type, host> && std::same_as<space_of<in_phantom>::type, phantom>);

struct cannot_test {
  void wait();
};
struct cannot_wait {
  bool test();
};
struct cannot_move {
  cannot_move(cannot_move const&) = delete;
  bool test();
  void wait();
};
static_assert(communication_request<request>);
static_assert(!communication_request<cannot_test> && !communication_request<cannot_wait>);
static_assert(!communication_request<cannot_move>);

template <class C, class... T>
constexpr bool reduces_all = ((reduces<C, T> && reduces<C, T, reduction::max> && reduces<C, T, reduction::min> &&
                               moves<C, T>)&&...);
template <class C>
constexpr bool complete = communicator<C>&& reduces_all<C, float, double, bfloat16, float16, std::int8_t, std::uint8_t,
                                                        std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>&&
    moves<C, std::byte>&& reduces<C, float, reduction::mean>&& reduces<C, float16, reduction::mean>&&
        reduces<C, float, reduction::sum, phantom>&& moves<C, float, phantom>&& has_allocate<C, bfloat16>;
/// Meaningless calls do not exist: means of integers, sums of bytes, other reductions.
template <class C>
constexpr bool sober = !has_all_reduce<C, std::int32_t, reduction::mean> && !has_reduce<C, std::byte> &&
                       !has_all_reduce<C, float, int> && !has_reduce_scatter<C, std::uint8_t, reduction::mean>;
static_assert(complete<comm::self_world> && sober<comm::self_world>);
static_assert(complete<comm::threads_world> && sober<comm::threads_world>);
static_assert(complete<comm::processes_world> && sober<comm::processes_world>);
static_assert(has_peers<comm::self_world, float> && has_peers<comm::threads_world, bfloat16, phantom>);
static_assert(!has_peers<comm::processes_world, float>);
static_assert(std::same_as<category_of_t<comm::threads>, slot::communicator>);
static_assert(std::same_as<category_of_t<comm::self_world>, slot::communicator>);
static_assert(!policy<archetype>);

}  // namespace

TEST_CASE("the communicator concepts accept the archetype and refuse one broken model a requirement", "[contract]") {
  SUCCEED("checked by the compiler");
}
