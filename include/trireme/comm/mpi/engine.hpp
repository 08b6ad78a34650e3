#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/comm/detail/colors.hpp"
#include "trireme/comm/detail/kernels.hpp"
#include "trireme/comm/mpi/driver.hpp"

namespace trireme::comm::detail {

/// A few bytes of every rank, in rank order. `all_gather(values, counts)` is that of a world; without counts, of equal
/// slices.
template <class AllGather>
[[nodiscard]] std::vector<std::string> gather_texts(int rank, int size, std::string const& own, AllGather all_gather) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(size));
  auto const mine = lengths.begin() + rank;
  *mine = static_cast<std::int64_t>(own.size());
  all_gather(std::span(lengths), std::span<std::int64_t const>{});
  std::string all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})), '\0');
  std::ranges::copy(own, all.begin() + std::accumulate(lengths.begin(), mine, std::int64_t{0}));
  all_gather(std::span(all), std::span<std::int64_t const>(lengths));
  std::vector<std::string> texts;
  auto at = all.begin();
  for (auto const length : lengths) {
    texts.emplace_back(at, at + length);
    at += length;
  }
  return texts;
}

/// Carries commands in MPI's point-to-point messages, and forms sums in rank order: small values travel in rounds
/// (detail/rounds.hpp), large ones are reduced in slices or carried from machine to machine (reduction.hpp). With
/// sum_order::any MPI's own collectives form large sums (native.hpp).
class message_engine final : public collective_engine {
 public:
  /// Takes `own`, a communicator of this engine alone, and frees it at the end. `members` are those of its ranks that
  /// this group consists of, `rank` is this one's place among them.
  /// `family` are the groups that fail together.
  message_engine(std::shared_ptr<mpi_family> family, MPI_Comm own, std::vector<int> members, int rank,
                 std::chrono::milliseconds deadline, std::size_t piece_bytes) {
    group_.family = std::move(family);
    group_.handle = own;
    group_.members = std::move(members);
    group_.rank = rank;
    group_.size = static_cast<int>(group_.members.size());
    group_.deadline = deadline;
    group_.piece_bytes = piece_bytes;
    driver_.alone([&] {
      MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
      void* bound = nullptr;
      int known = 0;
      MPI_Comm_get_attr(own, MPI_TAG_UB, static_cast<void*>(&bound), &known);
      group_.window = mpi_tags::window_of(known != 0 ? *static_cast<int*>(bound) : 32767);
      int all = 0;
      MPI_Comm_size(own, &all);
      group_.is_whole = group_.members == numbers_below(all);
    });
    driver_.add(group_);
  }
  ~message_engine() override { driver_.remove(group_); }

  /// Collective over `theirs`, which stays as it is.
  [[nodiscard]] static std::shared_ptr<message_engine> on_duplicate(MPI_Comm theirs,
                                                                    std::chrono::milliseconds deadline) {
    auto& driver = mpi_driver::of_process();
    int rank = 0;
    std::vector<int> all;
    driver.alone([&] {
      int size = 0;
      MPI_Comm_rank(theirs, &rank);
      MPI_Comm_size(theirs, &size);
      all = numbers_below(size);
    });
    auto const own = duplicate_of(driver, theirs, deadline);
    return std::make_shared<message_engine>(std::make_shared<mpi_family>(), own, std::move(all), rank, deadline,
                                            mpi_group::whole);
  }

  [[nodiscard]] std::string_view who() const noexcept override { return mpi_name; }
  [[nodiscard]] int rank() const noexcept override { return group_.rank; }
  [[nodiscard]] int size() const noexcept override { return group_.size; }
  [[nodiscard]] std::chrono::milliseconds deadline() const noexcept override { return group_.deadline; }

  void run(command const& it) override { driver_.run(group_, it); }
  [[nodiscard]] collective_operation& start(command const& it) override { return driver_.start(group_, it); }
  [[nodiscard]] bool test(collective_operation& op) override { return driver_.test(static_cast<mpi_operation&>(op)); }
  void wait(collective_operation& op) override { driver_.wait(static_cast<mpi_operation&>(op)); }
  void release(collective_operation& op) noexcept override { driver_.release(static_cast<mpi_operation&>(op)); }
  [[nodiscard]] bool progresses() const noexcept override { return mpi_session::instance().has_helper(); }

  [[nodiscard]] std::shared_ptr<collective_engine> split(int color, int key) override {
    std::vector<color_and_key> wishes(static_cast<std::size_t>(size()));
    wishes[static_cast<std::size_t>(rank())] = {color, key};
    run({.what = {.kind = collective::split}});
    gather_all(wishes.data(), size(), sizeof(color_and_key), {});
    return part(ranks_of_color(wishes, color), deadline());
  }
  [[nodiscard]] std::shared_ptr<collective_engine> duplicate(std::chrono::milliseconds deadline) override {
    run({.what = {.kind = collective::duplicate}});
    return part(numbers_below(size()), deadline);
  }
  void poll() override { driver_.poll(group_); }
  void expect_several_callers() override {
    auto const& session = mpi_session::instance();
    if (!session.lets_threads_call())
      throw config_error(text(mpi_name, ": several threads of a rank call, but MPI was initialised with ",
                              session.level(),
                              "; initialise it with MPI_Init_thread(..., MPI_THREAD_SERIALIZED, ...)"));
  }
  void abandon(std::string const& sentence) noexcept override {
    try {
      driver_.announce_failure(group_, text(mpi_name, ": rank ", rank(), " ended with an error: ", sentence));
    } catch (...) {  // without memory for a sentence their deadlines end the waits
    }
  }

  [[nodiscard]] bool failed() const noexcept override { return driver_.failed(*group_.family); }
  [[nodiscard]] bool reports() noexcept override { return driver_.reports(group_); }

  /// Collective. Whether all ranks wish to share memory, and are on one machine, as MPI sees it. Also settles the order
  /// of sums: `any` only if all ranks ask for it.
  [[nodiscard]] bool on_one_machine(bool wished, sum_order order) {
    struct standing {
      std::int32_t machine, shares, any_order;  // machine: the first rank on it
    };
    std::vector<standing> all(static_cast<std::size_t>(size()));
    auto& mine = all[static_cast<std::size_t>(rank())];
    mine = {0, wished ? 1 : 0, order == sum_order::any ? 1 : 0};
    driver_.alone([&] { mine.machine = first_rank_here(); });
    gather_all(all.data(), size(), sizeof(standing), {});
    group_.order = std::ranges::all_of(all, [](standing const& each) { return each.any_order == 1; })
                       ? sum_order::any
                       : sum_order::ranks;
    std::vector<int> machines;
    for (auto const& each : all) machines.push_back(each.machine);
    return stand_on(std::move(machines)) &&
           std::ranges::all_of(all, [](standing const& each) { return each.shares == 1; });
  }
  /// Collective. Notes which machine each rank is on; returns whether all are on one.
  bool stand_on(std::vector<int> machines) {
    bool const alone = std::ranges::count(machines, machines[0]) == size();
    group_.piece_bytes = alone ? mpi_group::whole : mpi_group::unasked;
    group_.stand_on(std::move(machines));
    return alone;
  }
  /// From now on calls are the program's: their numbers, in what it is told, begin at 1.
  void end_set_up() noexcept { group_.set_up = group_.next - 1; }
  /// Collective. A few bytes of every rank, in rank order.
  [[nodiscard]] std::vector<std::string> gather_texts(std::string const& own) {
    return detail::gather_texts(
        rank(), size(), own, [this]<class T>(std::span<T> values, std::span<std::int64_t const> counts) {
          gather_all(values.data(), static_cast<std::int64_t>(values.size()), sizeof(T), counts);
        });
  }

 private:
  /// Collective.
  [[nodiscard]] int first_rank_here() const {
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(group_.handle, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Group those = MPI_GROUP_NULL;
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Comm_group(here, &those);
    MPI_Comm_group(group_.handle, &all);
    int const least = 0;
    int first = 0;
    MPI_Group_translate_ranks(those, 1, &least, all, &first);
    MPI_Group_free(&those);
    MPI_Group_free(&all);
    MPI_Comm_free(&here);
    return first;
  }
  [[nodiscard]] static std::vector<int> numbers_below(int end) {
    std::vector<int> all(static_cast<std::size_t>(end));
    for (int each = 0; each < end; ++each) all[static_cast<std::size_t>(each)] = each;
    return all;
  }
  /// Collective. Not by a blocking call of MPI, which would have no deadline and keep other threads out of MPI.
  [[nodiscard]] static MPI_Comm duplicate_of(mpi_driver& driver, MPI_Comm theirs, std::chrono::milliseconds deadline) {
    MPI_Comm made = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    auto code = driver.alone([&] { return MPI_Comm_idup(theirs, &made, &request); });
    auto const began = clock::now();
    for (int done = 0; code == MPI_SUCCESS && done == 0;) {
      code = driver.alone([&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE); });
      driver.close_groups();  // others may have to end one before they come
      if (done != 0) break;
      auto const waited = clock::now() - began;
      rest_between_rounds(waited >= long_wait);
      if (waited > deadline) {
        mpi_session::instance().abandon();
        throw comm_error(
            text(mpi_name, ": waited ", to_string(deadline),
                 " until all ranks begin; find out why the others are late, or raise comm::mpi{.deadline}"));
      }
    }
    if (code != MPI_SUCCESS)
      throw comm_error(text(mpi_name, ": duplicating the communicator failed: ", mpi_sentence(code)));
    return made;
  }
  /// Collective. `chosen` are the ranks of this group that the new one consists of, this one among them. Groups that
  /// are made together share a duplicate of this group's communicator.
  [[nodiscard]] std::shared_ptr<collective_engine> part(std::vector<int> const& chosen,
                                                        std::chrono::milliseconds deadline) {
    std::vector<int> members;
    std::vector<int> machines;
    for (int const each : chosen) {
      members.push_back(group_.members[static_cast<std::size_t>(each)]);
      if (!group_.machines.empty()) machines.push_back(group_.machines[static_cast<std::size_t>(each)]);
    }
    auto const place = static_cast<int>(std::ranges::find(chosen, rank()) - chosen.begin());
    driver_.begin_native(group_);
    auto const own = duplicate_of(driver_, group_.handle, group_.deadline);
    auto made =
        std::make_shared<message_engine>(group_.family, own, std::move(members), place, deadline, group_.piece_bytes);
    made->group_.stand_on(std::move(machines));
    made->group_.order = group_.order;
    return made;
  }
  void gather_all(void* values, std::int64_t count, std::size_t element_bytes, std::span<std::int64_t const> counts) {
    run({.what = {.kind = collective::all_gather, .count = count, .shape = counts.empty() ? 0 : fingerprint(counts)},
         .from = values,
         .to = values,
         .element_bytes = element_bytes,
         .elements = &moving_kernels<host>,
         .counts = counts});
  }

  mpi_driver& driver_ = mpi_driver::of_process();
  mpi_group group_;
};

}  // namespace trireme::comm::detail
