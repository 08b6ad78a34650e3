// test-sanitize: none
// test-timeout: 120
#include <cmath>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/training.hpp"
#include "trireme/ops/host/target.hpp"
#include "trireme/train/checkpoint.hpp"

using namespace trireme;
using ops::cpu_level;

namespace {

std::vector<cpu_level> levels() {
  std::vector<cpu_level> here;
  for (auto const level :
       {cpu_level::baseline, cpu_level::avx2, cpu_level::avx512, cpu_level::avx512_bf16, cpu_level::amx}) {
    if (level <= ops::available()) here.push_back(level);
  }
  return here;
}

struct outcome {
  double loss = 0;
  std::uint64_t hash = 0;
};

/// Trains from `load` (unless it is empty) up to a step, at a CPU level, and saves.
outcome run(cpu_level level, std::string const& load, std::int64_t steps, std::string const& save) {
  auto const before = ops::detected();
  ops::detected(level);
  outcome result;
  launch(comm::self{}, [&](auto& world) {
    auto trainer = make_trainer(toy::gpt, toy::adaptive, world, precision::bf16{});
    trainer.initialise(5);
    if (!load.empty()) trainer.load(load);
    auto const report = trainer.fit(toy::text{}, {.steps = 12, .batch = 10, .micro_batches = 6, .stop_after = steps});
    if (!save.empty()) trainer.save(save);
    result = {report.last_loss, trainer.state_hash()};
  });
  ops::detected(before);
  return result;
}

}  // namespace

TEST_CASE("a checkpoint of one CPU level resumes at every other, and each level repeats its bits", "[train][cpu]") {
  scratch folder;
  auto const first = levels().back();
  run(first, "", 4, folder.path());
  auto const stayed = run(first, folder.path(), 8, "");
  for (auto const level : levels()) {
    auto const moved = run(level, folder.path(), 8, "");
    INFO(ops::name_of(first) << ", then " << ops::name_of(level));
    CHECK(std::abs(moved.loss - stayed.loss) <= 0.02 * stayed.loss);
    CHECK(run(level, folder.path(), 8, "").hash == moved.hash);
    if (level == first) CHECK(moved.hash == stayed.hash);
  }
}
