#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/comm/gathering.hpp"

using namespace std::chrono_literals;
namespace comm = trireme::comm;
using trireme::text;

namespace {

/// The results of every rank of `size`; ranks are threads, and rank r begins after r * `apart`.
std::vector<std::vector<std::string>> gather_on_threads(std::string const& path, int size,
                                                        std::chrono::milliseconds apart = 0ms) {
  std::vector<std::vector<std::string>> got(static_cast<std::size_t>(size));
  std::vector<std::unique_ptr<comm::detail::file_gather>> files;
  for (int rank = 0; rank < size; ++rank)
    files.push_back(std::make_unique<comm::detail::file_gather>("trireme::comm::nccl", path, rank, size, 30s));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      std::this_thread::sleep_for(rank * apart);
      got[static_cast<std::size_t>(rank)] = (*files[static_cast<std::size_t>(rank)])(text("blob of ", rank));
    });
  for (auto& each : threads) each.join();
  return got;
}

std::vector<std::string> blobs(int size) {
  std::vector<std::string> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(text("blob of ", rank));
  return all;
}

}  // namespace

TEST_CASE("ranks that meet by files gather everyone's data, and leave no file", "[comm][gathering]") {
  watchdog dog("ranks that meet by file");
  scratch const here;
  for (int const size : {1, 2, 4}) {
    auto const got = gather_on_threads(here / "id", size, 5ms);
    for (auto const& each : got) CHECK(each == blobs(size));
  }
  CHECK(here.entries() == 0);
}

TEST_CASE("files left by an earlier run have no effect", "[comm][gathering]") {
  watchdog dog("stale files");
  scratch const here;
  // The file of rank 1 of a killed run: complete and valid, with the same number of ranks.
  auto left = std::make_unique<comm::detail::file_gather>("trireme::comm::nccl", here / "id", 1, 2, 100ms);
  CHECK_THROWS_AS((*left)("old"), trireme::comm_error);
  std::filesystem::copy_file(here / "id.1", here / "kept");
  left.reset();
  std::filesystem::rename(here / "kept", here / "id.1");
  // And invalid bytes in place of rank 0's file.
  std::ofstream(here / "id.0") << "garbage";
  auto const got = gather_on_threads(here / "id", 2, 50ms);
  for (auto const& each : got) CHECK(each == blobs(2));
}

TEST_CASE("a rank that writes no file is named at the deadline", "[comm][gathering]") {
  watchdog dog("a late rank");
  scratch const here;
  comm::detail::file_gather early("trireme::comm::nccl", here / "id", 0, 2, 100ms);
  auto const sentence = sentence_of([&] { (void)early("blob"); });
  CHECK(sentence.find("trireme::comm::nccl: waited 100ms for rank 1 of 2") == 0);
}

TEST_CASE("an unwritable folder gives an error with its path", "[comm][gathering]") {
  comm::detail::file_gather nowhere("trireme::comm::nccl", "/nowhere/at/all", 0, 1, 100ms);
  auto const sentence = sentence_of([&] { (void)nowhere("blob"); });
  CHECK(sentence.find("/nowhere/at/all") != std::string::npos);
  CHECK(sentence.find("cannot be written") != std::string::npos);
  CHECK(sentence_of([] { comm::detail::file_gather("trireme::comm::nccl", "", 0, 1, 1ms); }).find(".file") !=
        std::string::npos);
}

TEST_CASE("by_file takes rank and size from the launcher", "[comm][gathering]") {
  watchdog dog("by_file");
  scratch const here;
  ::setenv("TRIREME_RANK", "0", 1);
  ::setenv("TRIREME_SIZE", "1", 1);
  auto const path = here / "id";
  for (auto const& method : {comm::by_file, comm::by_rendezvous}) {
    INFO(method.name);
    auto const ranks = method.gather({"trireme::comm::nccl", path, 5s});
    CHECK(ranks.rank == 0);
    CHECK(ranks.size == 1);
    CHECK(ranks.all_gather("own") == std::vector<std::string>{"own"});
  }
  ::unsetenv("TRIREME_RANK");
  ::unsetenv("TRIREME_SIZE");
}
