// A program whose rank 1 calls something else, for mpi_mismatch_test.sh:
// mpi_mismatch shared|messages plain|checked KIND, with a kind of mismatches.hpp. Every rank prints what it was told,
// and whether that is what it must be told.
#include <chrono>
#include <cstdio>
#include <regex>
#include <string>
#include <thread>

#include "mismatches.hpp"
#include "trireme/comm/checked.hpp"
#include "trireme/comm/mpi.hpp"

using namespace std::chrono_literals;
using namespace trireme;

namespace {

constexpr auto limit = 1200ms;    // for which ranks wait: longer than a busy machine keeps one from its call
constexpr auto absence = 2500ms;  // of the rank that does not call

std::string pattern_of(mismatches::mismatch const& it, bool checked) {
  bool const missing = it.name == "missing call";
  if (checked && missing)
    return text("rank [0-9] called ", it.usual, " as call number 2 on the whole world, but rank 1 did not call it ",
                "within ", limit.count(), "ms; the last call of rank 1 was ", it.odd,
                " as call number 1 on the whole world");
  if (!checked && (missing || it.name == "group"))
    return text(it.usual, ".* waited ", limit.count(), "ms for ranks? [0-9]");
  std::string const between = checked ? " as call number [0-9]+ on [^,;]+" : "";
  auto const number = checked ? "calls differ between ranks: " : "call number 2 differs between ranks: ";
  return text(number, "(rank 0 called ", it.usual, between, ", rank 1 called ", it.odd, between, "|rank 1 called ",
              it.odd, between, ", rank [0-9] called ", it.usual, between, ")");
}

void speak(auto& world, mismatches::mismatch const& it, bool checked) {
  auto const began = std::chrono::steady_clock::now();
  auto const told = mismatches::told(world, it.name, absence);
  auto const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  auto const pattern = pattern_of(it, checked);
  bool const right = std::regex_search(told, std::regex(pattern));
  std::printf("%s after %.2f s rank %d: %s%s%s\n", right && seconds < 5.0 ? "right" : "WRONG", seconds, world.rank(),
              told.c_str(), right ? "" : " <- should match ", right ? "" : pattern.c_str());
  std::fflush(stdout);
  // mpirun ends the others at the first exit: let them speak.
  std::this_thread::sleep_for(it.name == "missing call" ? 2 * (absence - limit) : 300ms);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  bool const checked = std::string(argv[2]) == "checked";
  comm::mpi const ranks{.deadline = checked ? 60s : limit, .shared_memory = std::string(argv[1]) == "shared"};
  for (auto const& each : mismatches::all) {
    if (each.name != argv[3]) continue;
    try {
      if (checked)
        launch(comm::decorate(ranks, comm::checked{.patience = limit}), [&](auto& world) { speak(world, each, true); });
      else
        launch(ranks, [&](auto& world) { speak(world, each, false); });
    } catch (std::exception const& problem) {
      std::printf("launch: %s\n", problem.what());
    }
    return 0;
  }
  return 2;
}
