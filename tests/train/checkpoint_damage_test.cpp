// test-timeout: 300
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "small_checkpoints.hpp"
#include "trireme/nn/mlp.hpp"
#include "trireme/train/checkpoint.hpp"

using namespace trireme;
using namespace checkpoints;

namespace {

namespace st = formats::safetensors;

/// Checkpoints of steps 1 and 2 of a run, and the hashes of both states.
struct two_checkpoints {
  scratch folder;
  tiny run;
  std::uint64_t older;
  std::uint64_t newer;
  std::string damaged = folder / "step-0000000002";
  std::string aside = folder / "damaged-step-0000000002";
  two_checkpoints() {
    run.go_to(1);
    run.trainer.save(folder.path());
    older = run.trainer.state_hash();
    run.go_to(2);
    run.trainer.save(folder.path());
    newer = run.trainer.state_hash();
  }
  /// Loads the older one because `file` of the newer is damaged, and restores the newer. @returns what went wrong.
  std::string falls_back(std::string const& file) {
    try {
      auto const found = run.trainer.load(folder.path());
      if (found.at.step != 1 || run.trainer.state_hash() != older || found.path != folder / "step-0000000001")
        return text("took ", found.path);
      if (found.damaged.size() != 1 || found.damaged[0].path != damaged || found.damaged[0].kept_as != aside)
        return "does not say what it passed over";
      if (!contains(found.damaged[0].reason, damaged + "/" + file)) return found.damaged[0].reason;
    } catch (std::exception const& problem) {
      return problem.what();
    }
    if (names(folder.path()) != std::vector<std::string>{"damaged-step-0000000002", "step-0000000001"})
      return "did not set it aside";
    std::filesystem::rename(aside, damaged);
    return {};
  }
};

/// A checkpoint with arbitrary numbers and correct hashes.
struct crafted {
  parameter_info box{"table", {3, 4}};
  std::string shard = "value/table@0";
  std::string where = "3,4";
  shape extents{12};
  std::string progress = R"({"step":1,"updates":1,"seed":0,"epoch":0,"position":0})";

  /// The error of a run with a table of (3, 4) that loads it.
  [[nodiscard]] std::string sentence() const {
    scratch folder;
    auto const at = folder / "step-0000000001";
    std::filesystem::create_directory(at);
    auto const file = at + "/rank-0.safetensors";
    std::vector<std::byte> const content(static_cast<std::size_t>(extents.size()) * 4);
    st::writer out(file, {{shard, dtype::f32, extents}},
                   {{"sha256:" + shard, sha256().update(content).hexadecimal()},
                    {"box:" + shard.substr(0, shard.find('@')), where}});
    out.write(content);
    out.finish();
    auto const record = checkpoint::detail::record_of(formats::directory(at), "rank-0.safetensors");
    auto const manifest = text(R"({"format":2,"run":{"model":"a","optimizer":"b","precision":"c","compression":"d",)",
                               R"("residual_ranks":0},"progress":)", progress, R"(,"files":[{"bytes":)", record.bytes,
                               R"(,"header_sha256":")",
                               std::string_view(record.header_sha256.data(), record.header_sha256.size()), "\"}]}\n");
    formats::atomic_write(at + "/manifest.json", manifest);
    seal_manifest(at);
    comm::self_world world;
    checkpoint::identity own;
    std::vector<float> numbers(12);
    std::vector const shards{
        state_shard("value/table", parameter_info{"table", {3, 4}}, 0, tensor_view<float>(numbers))};
    return sentence_of([&] { checkpoint::load(world, folder.path(), own, {"a", "b", "c", "d"}, shards, 12); });
  }
};

}  // namespace

TEST_CASE("damage to any byte of a checkpoint is detected: the previous one is read, and the file is named",
          "[train][checkpoint]") {
  two_checkpoints at;
  REQUIRE(names(at.damaged) == std::vector<std::string>{"manifest.json", "manifest.sha256", "rank-0.safetensors"});
  int damages = 0;
  for (auto const& name : names(at.damaged)) {
    auto const path = at.damaged + "/" + name;
    auto const whole = formats::read_file(path);
    std::string wrong;
    // A manifest that was changed does not match its hash; a correct hash is computed from the manifest.
    auto const file = name.starts_with("manifest") ? std::string("manifest.") : name;
    std::size_t byte = 0;
    for (; byte < whole.size() && wrong.empty(); ++byte, ++damages) {
      overwrite(path, std::span(whole).first(byte));
      wrong = at.falls_back(file);
    }
    INFO(name << " cut or changed at byte " << byte - 1);
    CHECK(wrong == "");
    for (byte = 0; byte < whole.size() && wrong.empty(); ++byte, ++damages) {
      auto changed = whole;
      changed[byte] ^= std::byte{1};
      overwrite(path, changed);
      wrong = at.falls_back(file);
    }
    CHECK(wrong == "");
    auto longer = whole;
    longer.push_back(std::byte{'\n'});
    overwrite(path, longer);
    CHECK(at.falls_back(file) == "");
    std::filesystem::remove(path);
    CHECK(at.falls_back(file) == "");
    overwrite(path, whole);
  }
  CHECK(damages > 2000);
  at.run.trainer.load(at.folder.path());
  CHECK(at.run.trainer.state_hash() == at.newer);
}

TEST_CASE("if all checkpoints are damaged the error describes the newest, and none is moved", "[train][checkpoint]") {
  two_checkpoints at;
  overwrite(at.damaged + "/rank-0.safetensors", {});
  overwrite(at.folder / "step-0000000001/manifest.json", {});
  auto const before = names(at.folder.path());
  auto const sentence = sentence_of([&] { at.run.trainer.load(at.folder.path()); });
  CHECK(sentence == at.folder.path() + ": no checkpoint here is whole; of the newest: " + at.damaged +
                        "/rank-0.safetensors: byte 0: the file ends within its first 8 bytes");
  CHECK(names(at.folder.path()) == before);
}

TEST_CASE("several damaged checkpoints are set aside; other names in the directory are ignored",
          "[train][checkpoint]") {
  two_checkpoints at;
  for (auto const* const stray : {"step-zzz", "step-", "step-3", "step-00000000099", "step--000000009",
                                  "step-0000000009.partial", "step-99999999999999999999"}) {
    std::filesystem::create_directory(at.folder / stray);
  }
  auto const copy = [&](char const* name) {
    std::filesystem::copy(at.damaged, at.folder / name, std::filesystem::copy_options::recursive);
  };
  copy("step-0000000003");  // its manifest says step 2
  copy("damaged-step-0000000003");
  overwrite(at.folder / "step-10000000000", {});  // a file; later than all others, though its name is sorted first
  auto const found = at.run.trainer.load(at.folder.path());
  CHECK(at.run.trainer.state_hash() == at.newer);
  REQUIRE(found.damaged.size() == 2);
  CHECK(found.damaged[0].path == at.folder / "step-10000000000");
  CHECK(contains(found.damaged[0].reason, "is not a directory"));
  CHECK(found.damaged[0].kept_as == at.folder / "damaged-step-10000000000");
  CHECK(contains(found.damaged[1].reason, "the directory's name says step 3"));
  CHECK(found.damaged[1].kept_as == at.folder / "damaged-step-0000000003.2");
  at.run.go_to(3);
  at.run.trainer.save(at.folder.path());
  tiny other;
  CHECK(other.trainer.load(at.folder.path()).damaged.empty());
  CHECK(other.trainer.state_hash() == at.run.trainer.state_hash());
  for (auto const* const stays : {"step-zzz", "step-", "step-3", "damaged-step-0000000003"})
    CHECK(std::filesystem::exists(at.folder / stays));
}

TEST_CASE("a checkpoint that cannot be read at the moment is an error, and no older one is loaded",
          "[train][checkpoint]") {
  two_checkpoints at;
  failing_files counting;
  auto const newest = at.run.trainer.load(at.folder.path(), counting).at.step;
  REQUIRE(counting.operations > 8);
  for (int const number : {EACCES, EMFILE, ENOMEM, EIO}) {
    for (int operation = 0; operation < counting.operations; ++operation) {
      INFO(std::generic_category().message(number) << " at operation " << operation);
      failing_files files;
      files.fails_at = operation;
      files.number = number;
      std::int64_t taken = -1;
      auto const sentence = sentence_of([&] { taken = at.run.trainer.load(at.folder.path(), files).at.step; });
      if (taken == newest) {  // a check of other files failed
        CHECK(names(at.folder.path()).size() == 2);
      } else if (number != EIO || taken < 0) {
        CHECK(contains(sentence, at.folder.path()));
        CHECK(names(at.folder.path()).size() == 2);
        CHECK(names(at.folder.path()).front() == "step-0000000001");
      } else {
        CHECK(taken == 1);  // the device has lost data: this is damage
        std::filesystem::rename(at.aside, at.damaged);
      }
    }
  }
}

TEST_CASE("all ranks go back to the same checkpoint if one of them finds damage", "[train][checkpoint]") {
  scratch folder;
  std::atomic<int> wrong{0};
  launch(comm::threads{.ranks = 3}, [&](auto& world) {
    auto data = data::function([](float x) { return x; }, {.samples = 64});
    auto trainer =
        make_trainer(nn::mlp{.inputs = 1, .hidden = {4}, .outputs = 1}, optim::adamw{}, world, parallel::zero<1>{});
    std::uint64_t hashes[2];
    for (int step = 1; step <= 2; ++step) {
      trainer.fit(data, {.steps = step, .batch = 6});
      trainer.save(folder.path());
      hashes[step - 1] = trainer.state_hash();
    }
    failing_files counting;
    trainer.load(folder.path(), counting);
    world.broadcast(tensor_view<int>(&counting.operations, shape{1}), 2);
    wrong += counting.operations > 10 ? 0 : 1;
    for (int operation = 1; operation < counting.operations; ++operation) {  // the first opens the directory
      failing_files files;
      if (world.rank() == 2) files.fails_at = operation;
      files.number = EIO;
      auto const found = trainer.load(folder.path(), files);
      auto const hash = trainer.state_hash();
      if (found.at.step == 2) {
        wrong += hash != hashes[1] || !found.damaged.empty() ? 1 : 0;
        continue;  // an operation without an error, such as reading a size that is known
      }
      bool const right = found.at.step == 1 && hash == hashes[0] && found.damaged.size() == 1 &&
                         contains(found.damaged[0].reason, "input/output error") &&
                         found.damaged[0].kept_as == folder / "damaged-step-0000000002";
      wrong += right ? 0 : 1;
      world.barrier();
      if (world.rank() == 0) std::filesystem::rename(folder / "damaged-step-0000000002", folder / "step-0000000002");
      world.barrier();
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("a checkpoint with impossible sizes is refused before anything is computed from them",
          "[train][checkpoint]") {
  CHECK(crafted{}.sentence() == "");
  auto const refusal = [](auto change) {
    crafted with;
    change(with);
    return with.sentence();
  };
  auto const box = [&](std::string const& where) { return refusal([&](crafted& with) { with.where = where; }); };
  auto const progress = [&](std::string const& at) { return refusal([&](crafted& with) { with.progress = at; }); };
  CHECK(box("12") == "");
  CHECK(box("3,4 at 0,0 of 3,4") == "");
  for (auto const* const large :
       {"4611686018427387904,4", "3037000500,3037000500", "9223372036854775807,9223372036854775807",
        "3,4 at 0,0 of 4611686018427387904,4", "1,1,1,1,1,1,1"}) {
    CHECK(contains(box(large), "has too many extents, or too large ones"));
  }
  for (auto const* const outside :
       {"3,4 at 9223372036854775807,0 of 3,4", "3,4 at 1,0 of 3,4", "3,4 at 0,0,0 of 3,4", "3 at 0,0 of 3,4",
        "0,4 at 0,0 of 0,0", "5,4 at 0,0 of 3,4", "3,4 at 0,9223372036854775804 of 3,9223372036854775807"}) {
    CHECK((contains(box(outside), "is not a box within its tensor") ||
           contains(box(outside), "has too many extents, or too large ones")));
  }
  for (auto const* const empty : {"0,4", "0", "3,0 at 0,0 of 3,4", "0,4 at 0,0 of 0,4"}) {
    CHECK(contains(box(empty), "ends beyond its box of"));
  }
  for (auto const* const other : {"3,4 at 0,0 of 4,4", "12,1 at 0,0 of 4611686018427387904,1"}) {
    CHECK(contains(box(other), "but this run's has 12"));
  }
  for (auto const* const unreadable :
       {"a", "3,,4", "3,4 at 0 of 3,4", "-3,4", "3,4 of 3,4 at 0,0", "3.0,4", "99999999999999999999"})
    CHECK_FALSE(box(unreadable) == "");
  for (auto const* const far : {"value/table@9223372036854775807", "value/table@9223372036854775800", "value/table@1",
                                "value/table@-1", "value/table@", "value/table@99999999999999999999", "value/table"}) {
    CHECK_FALSE(refusal([&](crafted& with) { with.shard = far; }) == "");
  }
  CHECK(contains(progress(R"({"step":9223372036854775807,"updates":1,"seed":0,"epoch":0,"position":0})"),
                 "not a step number"));
  CHECK(contains(progress(R"({"step":-1,"updates":1,"seed":0,"epoch":0,"position":0})"), "not a step number"));
  CHECK(contains(progress(R"({"step":1,"updates":2,"seed":0,"epoch":0,"position":0})"), "more updates than steps"));
  CHECK(contains(progress(R"({"step":1,"updates":1,"seed":0,"epoch":0,"position":-1})"), "not a position in an epoch"));
}
