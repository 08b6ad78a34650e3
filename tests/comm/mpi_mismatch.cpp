// A program whose rank 1 calls something else, for mpi_mismatch_test.sh:
// mpi_mismatch shared|messages plain|checked KIND FOLDER, with a kind of mismatches.hpp. Every rank prints the error it
// got, and whether that is the right one; then it makes a file in FOLDER, and ends when all ranks have made theirs.
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <thread>

#include "mismatches.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/comm/mpi.hpp"

using namespace std::chrono_literals;
using namespace trireme;

namespace {

constexpr auto limit = 3s;    // for which ranks wait: longer than a busy machine keeps one from its call
constexpr auto absence = 5s;  // of the rank that does not call

std::string pattern_of(mismatches::mismatch const& it, bool checked) {
  bool const missing = it.name == "missing call";
  if (checked && missing)
    return text("rank [0-9] called ", it.usual, " as call number 2 on the whole world, but rank 1 did not call it ",
                "within ", comm::to_string(limit), "; the last call of rank 1 was ", it.odd,
                " as call number 1 on the whole world");
  if (!checked && (missing || it.name == "group"))
    return text(it.usual, ".* waited ", comm::to_string(limit), " for ranks? [0-9]");
  std::string const between = checked ? " as call number [0-9]+ on [^,;]+" : "";
  auto const number = checked ? "calls differ between ranks: " : "call number 2 differs between ranks: ";
  return text(number, "(rank 0 called ", it.usual, between, ", rank 1 called ", it.odd, between, "|rank 1 called ",
              it.odd, between, ", rank [0-9] called ", it.usual, between, ")");
}

/// Mpirun ends the others when the first rank ends: each waits until all have printed, for 20 s at most.
void wait_for_the_others(auto& world, std::filesystem::path const& folder) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / std::to_string(world.rank())).flush();
  auto const all_have_printed = [&] {
    for (int rank = 0; rank < world.size(); ++rank)
      if (!std::filesystem::exists(folder / std::to_string(rank))) return false;
    return true;
  };
  for (auto const begun = std::chrono::steady_clock::now();
       !all_have_printed() && std::chrono::steady_clock::now() - begun < 20s;)
    std::this_thread::sleep_for(5ms);
}

void speak(auto& world, mismatches::mismatch const& it, bool checked, std::filesystem::path const& folder) {
  auto const began = std::chrono::steady_clock::now();
  auto const told = mismatches::told(world, it.name, absence);
  auto const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  auto const pattern = pattern_of(it, checked);
  bool const right = std::regex_search(told, std::regex(pattern));
  std::printf("%s after %.2f s rank %d: %s%s%s\n", right && seconds < 10.0 ? "right" : "WRONG", seconds, world.rank(),
              told.c_str(), right ? "" : " <- should match ", right ? "" : pattern.c_str());
  std::fflush(stdout);
  wait_for_the_others(world, folder);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  bool const checked = std::string(argv[2]) == "checked";
  comm::mpi const ranks{.deadline = checked ? 60s : limit, .shared_memory = std::string(argv[1]) == "shared"};
  for (auto const& each : mismatches::all) {
    if (each.name != argv[3]) continue;
    try {
      if (checked)
        launch(comm::decorate(ranks, comm::checked{.patience = limit}),
               [&](auto& world) { speak(world, each, true, argv[4]); });
      else
        launch(ranks, [&](auto& world) { speak(world, each, false, argv[4]); });
    } catch (std::exception const& problem) {
      std::printf("launch: %s\n", problem.what());
    }
    return 0;
  }
  return 2;
}
