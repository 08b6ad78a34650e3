// test-sanitize: none
#include "trireme/comm/labels.hpp"

#include <string>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"
#include "node_ranks.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/comm/self.hpp"
#include "trireme/comm/threads.hpp"

using namespace trireme;
using comm::call_label;
using owner_kind = comm::call_label::owner_kind;

namespace {

/// Equal calls with another label on rank 1; the error, without the rank that it begins with.
std::string called(auto& world, call_label const& usual, call_label const& odd) {
  auto const told = sentence_of<comm_error>([&] {
    std::vector<float> values(60);
    comm::labelled const now(world, world.rank() == 1 ? odd : usual);
    world.all_reduce(tensor_view{values});
  });
  return told.empty() ? told : told.substr(told.find("trireme::"));
}
std::string on_threads(int ranks, call_label const& usual, call_label const& odd, auto const&... decorators) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  auto const body = [&](auto& world) {
    auto& mine = said[static_cast<std::size_t>(world.rank())];
    mine = called(world, usual, odd);
    if (!mine.empty()) throw comm_error("over");
  };
  static_cast<void>(sentence_of<comm_error>([&] {
    if constexpr (sizeof...(decorators) == 0)
      launch(comm::threads{.ranks = ranks}, body);
    else
      launch(comm::decorate(comm::threads{.ranks = ranks}, decorators...), body);
  }));
  for (auto const& each : said) CHECK((each == said[0] || ranks > 2));
  return said[0];
}

constexpr auto remedy =
    "; make and use exchanges and trainers, and call collectives of your own, in the same order on every rank";

}  // namespace

TEST_CASE("owners are counted on each communicator, and labels end with their scope", "[comm][labels]") {
  comm::self_world world;
  CHECK(comm::label_owner(world, owner_kind::exchange) == call_label::owner_of(owner_kind::exchange, 1));
  CHECK(comm::label_owner(world, owner_kind::exchange) == call_label::owner_of(owner_kind::exchange, 2));
  auto const trainer = comm::label_owner(world, owner_kind::trainer);
  CHECK(trainer == call_label::owner_of(owner_kind::trainer, 1));
  auto group = world.split(0, 0);
  CHECK(comm::label_owner(group, owner_kind::exchange) == call_label::owner_of(owner_kind::exchange, 1));
  {
    comm::labelled const now(world, {trainer, call_label::vote});
    CHECK(world.labels().now == call_label{trainer, call_label::vote});
    CHECK(comm::label_owner(world, owner_kind::exchange) == trainer);  // the trainer makes its exchange
    auto const part = comm::labelled::as_part(world, call_label::bucket(3));
    CHECK(to_string(world.labels().now) == " for bucket 3 of trainer 1");
  }
  CHECK(world.labels().now == call_label{});
  auto const part = comm::labelled::as_part(world, call_label::bucket(3));
  CHECK(world.labels().now == call_label{});  // without an owner there is no part
}

TEST_CASE("labels are sentences, whatever another rank has written", "[comm][labels]") {
  auto const of = [](owner_kind kind, std::uint32_t number, std::uint16_t part) {
    return to_string(call_label{call_label::owner_of(kind, number), part});
  };
  CHECK(to_string(call_label{}).empty());
  CHECK(of(owner_kind::exchange, 2, call_label::anything) == " for exchange 2");
  CHECK(of(owner_kind::exchange, 2, call_label::vote) == " for the vote of exchange 2");
  CHECK(of(owner_kind::trainer, 1, call_label::values) == " for the values of trainer 1");
  CHECK(of(owner_kind::trainer, 1, call_label::gradients) == " for the gradients of trainer 1");
  CHECK(of(owner_kind::exchange, 1, call_label::bucket(7, true)) == " for the values of bucket 7 of exchange 1");
  CHECK(of(owner_kind::exchange, 32768, call_label::bucket(32699)) == " for bucket 32699 of exchange 1");
  for (unsigned owner = 0; owner < 65536; owner += 4369)
    for (unsigned part = 0; part < 65536; part += 13)
      CHECK(to_string(call_label{static_cast<std::uint16_t>(owner), static_cast<std::uint16_t>(part)}).size() < 60);
}

TEST_CASE("calls that differ in their label alone are an error", "[comm][labels]") {
  auto const bucket = [](std::uint32_t exchange, int number) {
    return call_label{call_label::owner_of(owner_kind::exchange, exchange), call_label::bucket(number)};
  };
  std::string const call = "all_reduce(F32, 60 elements, sum)";
  auto const differing = [&](std::string const& usual, std::string const& odd) {
    return text("trireme::comm::threads: call number 1 differs between ranks: rank 0 called ", call, usual,
                ", rank 1 called ", call, odd);
  };
  CHECK(on_threads(2, bucket(1, 2), bucket(1, 2)).empty());
  CHECK(on_threads(2, bucket(1, 2), bucket(2, 2)) ==
        differing(" for bucket 2 of exchange 1", " for bucket 2 of exchange 2") + remedy);
  CHECK(on_threads(2, bucket(1, 2), {}) ==
        differing(" for bucket 2 of exchange 1", " for no exchange or trainer") + remedy);
  CHECK(on_threads(2, bucket(1, 2), bucket(1, 3)) ==
        differing(" for bucket 2 of exchange 1", " for bucket 3 of exchange 1") +
            "; make every rank call the same collectives in the same order");
  CHECK(contains(on_threads(3, bucket(1, 2), bucket(2, 2)), "for bucket 2 of exchange 2"));

  auto const checked = on_threads(2, bucket(1, 2), {}, comm::checked{});
  CHECK(checked == text("trireme::comm::checked: calls differ between ranks: rank 0 called ", call,
                        " for bucket 2 of exchange 1 as call number 1 on the whole world, rank 1 called ", call,
                        " for no exchange or trainer as call number 1 on the whole world", remedy));

  node_family family(3, in_world([&](node_world& world) { return called(world, bucket(1, 0), bucket(2, 0)); }));
  for (auto const& said : family.said()) {
    CHECK(contains(said, "call number 1 differs between ranks: rank "));
    CHECK(contains(said, "rank 1 called all_reduce(F32, 60 elements, sum) for bucket 0 of exchange 2"));
  }
}
