#include "trireme/contract/communicator.hpp"

#include <string_view>

#include "../catch.hpp"
#include "trireme/comm/comm.hpp"

namespace {

using namespace trireme;

struct request {
  bool test() { return true; }
  void wait() {}
};

/// The least that is a communicator with every capability.
struct archetype {
  static constexpr std::string_view name = "archetype";
  archetype(archetype&&) = default;
  int rank() const { return 0; }
  int size() const { return 1; }
  archetype split(int, int) { return std::move(*this); }
  void barrier() {}
  traffic_counters traffic() const { return {}; }
  void all_reduce(tensor_view<float>, reduction::sum) {}
  request all_reduce_async(tensor_view<float>, reduction::sum) { return {}; }
  void reduce_scatter(tensor_view<float>, reduction::sum) {}
  request reduce_scatter_async(tensor_view<float>, reduction::sum) { return {}; }
  void all_gather(tensor_view<float>) {}
  request all_gather_async(tensor_view<float>) { return {}; }
  void all_to_all(tensor_view<float const>, tensor_view<float>) {}
  request all_to_all_async(tensor_view<float const>, tensor_view<float>) { return {}; }
  void broadcast(tensor_view<float>, int) {}
  request broadcast_async(tensor_view<float>, int) { return {}; }
  std::vector<tensor_view<float>> peers(tensor_view<float> view) { return {view}; }
};

template <class C, class T, class Space = host>
constexpr bool has_everything =
    has_all_reduce<C, T, reduction::sum, Space>&& has_reduce_scatter<C, T, reduction::sum, Space>&&
        has_all_gather<C, T, Space>&& has_all_to_all<C, T, Space>&& has_broadcast<C, T, Space>;

static_assert(communicator<archetype>);
static_assert(has_everything<archetype, float>);
static_assert(has_peers<archetype, float>);
static_assert(!has_all_reduce<archetype, double>);
static_assert(!has_all_reduce<archetype, float, reduction::max>);

struct without_rank : archetype {
  void rank() const;
  without_rank split(int, int);
};
static_assert(!has_rank<without_rank> && has_size<without_rank> && !communicator<without_rank>);
struct without_size : archetype {
  long size() const;
  without_size split(int, int);
};
static_assert(!has_size<without_size> && has_rank<without_size> && !communicator<without_size>);
struct without_split : archetype {};  // its split gives the base, which is another communicator
static_assert(!has_split<without_split> && !communicator<without_split>);
struct without_barrier : archetype {
  without_barrier split(int, int);
  void barrier(int);
};
static_assert(!has_barrier<without_barrier> && has_split<without_barrier> && !communicator<without_barrier>);
struct without_traffic : archetype {
  without_traffic split(int, int);
  int traffic() const;
};
static_assert(!has_traffic<without_traffic> && has_split<without_traffic> && !communicator<without_traffic>);
struct without_name : archetype {
  without_name split(int, int);
  static constexpr int name = 0;
};
static_assert(!has_communicator_name<without_name> && has_split<without_name> && !communicator<without_name>);

struct blocking_only : archetype {
  void all_reduce_async(tensor_view<float>, reduction::sum);
  void reduce_scatter_async(tensor_view<float>, reduction::sum);
  void all_gather_async(tensor_view<float>);
  void all_to_all_async(tensor_view<float const>, tensor_view<float>);
  void broadcast_async(tensor_view<float>, int);
  tensor_view<float> peers(tensor_view<float>);
};
static_assert(!has_all_reduce<blocking_only, float> && !has_reduce_scatter<blocking_only, float>);
static_assert(!has_all_gather<blocking_only, float> && !has_all_to_all<blocking_only, float>);
static_assert(!has_broadcast<blocking_only, float> && !has_peers<blocking_only, float>);

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

template <class C>
constexpr bool complete = communicator<C>&& has_everything<C, float>&& has_everything<C, double>&&
    has_everything<C, bfloat16>&& has_everything<C, std::int32_t>&& has_everything<C, std::int64_t>&&
        has_everything<C, std::uint64_t>&& has_everything<C, std::uint8_t>&& has_everything<C, float, phantom>&&
            has_peers<C, float>&& has_peers<C, bfloat16, phantom>;
static_assert(complete<comm::self_world>);
static_assert(complete<comm::threads_world>);
static_assert(std::same_as<category_of_t<comm::threads>, slot::communicator>);
static_assert(std::same_as<category_of_t<comm::self_world>, slot::communicator>);
static_assert(!policy<archetype>);

}  // namespace

TEST_CASE("the communicator concepts accept the archetype and refuse one broken model a requirement", "[contract]") {
  SUCCEED("checked by the compiler");
}
