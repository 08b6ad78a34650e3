// test-timeout: 300
// test-sanitize: none
#include "trireme/train/pretrained.hpp"

#include <fcntl.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../support/missing.hpp"
#include "../support/sentence.hpp"
#include "../watchdog.hpp"
#include "trireme/nn/bert_files.hpp"
#include "trireme/trireme.hpp"

// Models of transformers, and models of this library for transformers: losses equal those of transformers, under any
// mesh.

using namespace trireme;
namespace safetensors = formats::safetensors;

namespace {

std::string tests() {
  auto const* const folder = std::getenv("TRIREME_TEST_DATA");  // set by ctest: the path of tests/
  return folder == nullptr ? "tests" : folder;
}
std::string golden(std::string const& kind) { return tests() + "/golden/pretrained/" + kind; }

template <class T>
std::vector<T> numbers(std::string const& name) {
  safetensors::reader const file(golden("golden.safetensors"));
  std::vector<T> values(static_cast<std::size_t>(file.at(name).extents.size()));
  file.read(name, 0, std::span(values));
  return values;
}

/// The inputs of the golden losses.
class golden_data {
 public:
  explicit golden_data(std::string const& kind)
      : tokens_(numbers<std::int32_t>(kind.starts_with("bert") ? "bert/tokens" : "tokens")),
        targets_(numbers<std::int32_t>(kind.starts_with("bert") ? kind + "/targets" : "targets")) {}
  [[nodiscard]] data::in_memory<std::int32_t, std::int32_t> operator()() const {
    auto const each = static_cast<std::int64_t>(targets_.size()) / samples;
    return data::in_memory(
        tensor_view<std::int32_t const>(tokens_.data(), {samples, static_cast<std::int64_t>(tokens_.size()) / samples}),
        tensor_view<std::int32_t const>(targets_.data(), each == 1 ? shape{samples} : shape{samples, each}));
  }

 private:
  static constexpr std::int64_t samples = 4;
  std::vector<std::int32_t> tokens_, targets_;
};

template <class Model>
Model described(std::string const& directory) {
  auto out = nn::read_description<Model>(directory);
  if constexpr (requires { out.separator; }) out.separator = 3;  // transformers does not write it
  return out;
}

template <class Model, class World, class... Policies>
double loss_of(World& world, std::string const& kind, Policies const&... policies) {
  golden_data const data(kind);
  auto trainer = make_trainer(described<Model>(golden(kind)), optim::sgd{}, world, policies...);
  load_pretrained(trainer, golden(kind));
  return trainer.evaluate(data(), 4);
}

template <class Model, class... Policies>
double loss_on(int ranks, std::string const& kind, Policies const&... policies) {
  double loss = 0;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto const mine = loss_of<Model>(world, kind, policies...);
    if (world.rank() == 0) loss = mine;
  });
  return loss;
}

template <class Model>
void has_their_loss_under_meshes(std::string const& kind) {
  watchdog const guard("the loss of " + kind);
  INFO(kind);
  auto const theirs = numbers<double>(kind + "/loss")[0];
  using parallel::mesh;
  parallel::tensor const two{.ways = 2};
  CHECK(loss_on<Model>(1, kind) == Approx(theirs).epsilon(1e-6));
  CHECK(loss_on<Model>(2, kind, mesh{parallel::data{}, two}) == Approx(theirs).epsilon(1e-6));
  CHECK(loss_on<Model>(3, kind, parallel::zero<3>{.bucket_bytes = 1024}) == Approx(theirs).epsilon(1e-6));
  CHECK(loss_on<Model>(2, kind, parallel::pipeline<>{.stages = 2}) == Approx(theirs).epsilon(1e-6));
  CHECK(loss_on<Model>(4, kind, mesh{parallel::zero<3>{.bucket_bytes = 1024, .ways = 2}, two}) ==
        Approx(theirs).epsilon(1e-6));
}

template <class Model>
void has_their_loss_in_double(std::string const& kind) {
  INFO(kind);
  CHECK(loss_on<Model>(1, kind, precision::fp64{}) == Approx(numbers<double>(kind + "/loss")[0]).epsilon(1e-9));
}

/// All tensors of a model's files, as floats.
std::map<std::string, std::pair<shape, std::vector<float>>> content(std::string const& directory) {
  std::map<std::string, std::pair<shape, std::vector<float>>> out;
  formats::weight_files const files(directory);
  for (auto const& each : files.tensors()) {
    auto& values = out[each.what->name];
    values.first = each.what->extents;
    values.second.resize(static_cast<std::size_t>(each.what->extents.size()));
    if (each.what->type == dtype::bf16) {
      std::vector<bfloat16> narrow(values.second.size());
      each.file->read(each.what->name, 0, std::span(narrow));
      for (std::size_t i = 0; i < narrow.size(); ++i) values.second[i] = static_cast<float>(narrow[i]);
    } else {
      each.file->read(each.what->name, 0, std::span(values.second));
    }
  }
  return out;
}

/// Whether transformers computes the golden losses of the models in directories KIND or KIND.anything; true if
/// transformers is missing.
bool transformers_agrees(std::string const& directories) {
  char const* const python = std::getenv("TRIREME_PYTHON");
  if (python == nullptr || *python == '\0') {
    missing_part("TRIREME_PYTHON is not set: transformers was not asked");
    return true;
  }
  auto const status = std::system(text("'", python, "' '", tests(), "/python/check_pretrained.py' '", directories,
                                       "' '", golden("golden.safetensors"), "'")
                                      .c_str());
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) missing_part("transformers is missing and was not asked");
  return WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 0;
}

template <class Model>
void writes_what_it_has_read(std::string const& kind, std::string const& to, pretrained_options const& options) {
  watchdog const guard("writing " + kind);
  INFO(kind);
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer = make_trainer(described<Model>(golden(kind)), optim::sgd{}, world,
                                parallel::mesh{parallel::data{}, parallel::tensor{.ways = 2}});
    load_pretrained(trainer, golden(kind));
    save_pretrained(trainer, to, options);
  });
  CHECK(nn::read_description<Model>(to) == described<Model>(golden(kind)));
  if (options.stored == dtype::f32) CHECK(content(to) == content(golden(kind)));
}

/// A disk with room for this many more bytes.
class small_disk : public formats::file_system {
 public:
  explicit small_disk(std::size_t room) : room_(room) {}
  ::ssize_t write(int descriptor, void const* from, std::size_t bytes) override {
    if (room_ == 0) {
      errno = ENOSPC;
      return -1;
    }
    auto const done = file_system::write(descriptor, from, std::min(bytes, room_));
    if (done > 0) room_ -= static_cast<std::size_t>(done);
    return done;
  }

 private:
  std::size_t room_;
};

/// The bytes of all files below a directory.
std::map<std::string, std::string> all_files(std::string const& directory) {
  std::map<std::string, std::string> out;
  for (auto const& each : std::filesystem::recursive_directory_iterator(directory)) {
    if (each.is_regular_file()) out[each.path().string()] = formats::read_text(each.path().string());
  }
  return out;
}

/// Counts bytes that are read.
class counting_files : public formats::file_system {
 public:
  ::ssize_t read(int descriptor, void* to, std::size_t bytes, ::off_t at) override {
    if (bytes <= std::size_t{1} << 30) total += bytes;
    return file_system::read(descriptor, to, bytes, at);
  }
  std::atomic<std::uint64_t> total = 0;
};

}  // namespace

TEST_CASE("files of transformers give its loss in double", "[train][pretrained]") {
  has_their_loss_in_double<nn::llama>("llama");
  has_their_loss_in_double<nn::llama>("qwen2");
  has_their_loss_in_double<nn::llama>("mistral");
  for (auto const* kind : {"llama3", "qwen3", "mistral_window"}) has_their_loss_in_double<nn::llama>(kind);
  has_their_loss_in_double<nn::gpt>("gpt2");
  has_their_loss_in_double<nn::gpt>("gpt2_base");
  has_their_loss_in_double<nn::bert>("bert_masked");
  has_their_loss_in_double<nn::bert>("bert_classifier");
}

TEST_CASE("files of transformers give its loss under every mesh", "[train][pretrained]") {
  has_their_loss_under_meshes<nn::llama>("llama");
  has_their_loss_under_meshes<nn::llama>("qwen2");
  for (auto const* kind : {"llama3", "qwen3", "mistral_window"}) has_their_loss_under_meshes<nn::llama>(kind);
  has_their_loss_under_meshes<nn::gpt>("gpt2");
  has_their_loss_under_meshes<nn::bert>("bert_masked");
  has_their_loss_under_meshes<nn::bert>("bert_classifier");
}

TEST_CASE("written files equal those that were read, and transformers computes the same loss", "[train][pretrained]") {
  scratch dir;
  writes_what_it_has_read<nn::llama>("llama", dir / "llama", {});
  writes_what_it_has_read<nn::llama>("llama", dir / "llama.files", {.most_file_bytes = 5000});
  writes_what_it_has_read<nn::llama>("qwen2", dir / "qwen2", {.stored = dtype::bf16});
  for (auto const* kind : {"llama3", "mistral_window"}) writes_what_it_has_read<nn::llama>(kind, dir / kind, {});
  writes_what_it_has_read<nn::llama>("qwen3", dir / "qwen3", {.stored = dtype::bf16});
  writes_what_it_has_read<nn::gpt>("gpt2", dir / "gpt2", {.most_file_bytes = 5000});
  writes_what_it_has_read<nn::gpt>("gpt2_base", dir / "gpt2_base", {.stored = dtype::f16});
  writes_what_it_has_read<nn::bert>("bert_masked", dir / "bert_masked", {});
  writes_what_it_has_read<nn::bert>("bert_classifier", dir / "bert_classifier.files", {.most_file_bytes = 5000});
  CHECK(transformers_agrees(dir.path()));
}

TEST_CASE("an encoder becomes a classifier with a new head, if .fresh allows it", "[train][pretrained]") {
  watchdog const guard("an encoder");
  scratch dir;
  auto model = described<nn::bert>(golden("bert_encoder"));
  CHECK(model.classes == 0);
  model.classes = 3;
  auto const encoder = golden("bert_encoder"), classifier = golden("bert_classifier");
  launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto trainer =
        make_trainer(model, optim::sgd{}, world, parallel::mesh{parallel::data{}, parallel::tensor{.ways = 2}});
    save_pretrained(trainer, dir / "before");
    auto const before = trainer.state_hash();
    auto const refused = [&](auto const& load, std::string const& sentence) {
      auto const said = sentence_of([&] { load(); });
      if (!contains(said, sentence)) throw error("said: " + said);
      if (trainer.state_hash() != before) throw error("the state has changed");
    };
    refused([&] { load_pretrained(trainer, encoder); }, "describes nn::bert{.vocabulary = 37");
    refused([&] { load_pretrained(trainer, encoder, {.fresh = "bert.pooler.*"}); }, "no tensor \"classifier.weight\"");
    refused([&] { load_pretrained(trainer, encoder, {.fresh = "lm_head.*"}); },
            "no parameter of the model is \"lm_head.*\", which .fresh names");
    load_pretrained(trainer, encoder, {.fresh = "classifier.*"});
    save_pretrained(trainer, dir / "fresh");
    // The head of one and the encoder of the other are the classifier that transformers wrote.
    load_pretrained(trainer, classifier);
    load_pretrained(trainer, encoder, {.fresh = "classifier.*"});
    save_pretrained(trainer, dir / "both");
  });
  auto expected = content(classifier);
  CHECK(content(dir / "both") == expected);
  auto before = content(dir / "before");
  for (auto const* name : {"classifier.weight", "classifier.bias"}) expected[name] = before[name];
  CHECK(content(dir / "fresh") == expected);

  // With another number of classes, and from a model of masked words: the pooler is initialised too.
  model.classes = 5;
  comm::self_world alone;
  auto trainer = make_trainer(model, optim::sgd{}, alone);
  save_pretrained(trainer, dir / "five");
  load_pretrained(trainer, classifier, {.fresh = "classifier.*"});
  load_pretrained(trainer, golden("bert_masked"), {.fresh = "classifier.* bert.pooler.*"});
  save_pretrained(trainer, dir / "masked");
  auto const masked = content(golden("bert_masked")), after = content(dir / "masked");
  CHECK(after.at("classifier.weight") == content(dir / "five").at("classifier.weight"));
  CHECK(after.at("bert.pooler.dense.bias") == expected.at("bert.pooler.dense.bias"));
  for (auto const* name : {"bert.embeddings.LayerNorm.bias", "bert.encoder.layer.1.attention.self.key.weight"})
    CHECK(after.at(name) == masked.at(name));
}

TEST_CASE("each rank reads only the parts that it keeps", "[train][pretrained]") {
  watchdog const guard("counting what is read");
  auto const directory = golden("mistral");
  formats::weight_files const all(directory);
  std::uint64_t headers = formats::read_text(directory + "/config.json").size(), numbers = 0;
  for (auto const& each : all.tensors()) numbers += each.what->bytes;
  headers += formats::file(directory + "/model.safetensors", formats::file::access::read).size() - numbers;
  auto const once = formats::read_text(directory + "/config.json").size();  // the first rank keeps it
  auto const read_by = [&](int ranks, auto const& parallel) {
    counting_files files;
    launch(comm::threads{.ranks = ranks}, [&](auto& world) {
      auto trainer = make_trainer(nn::read_description<nn::llama>(directory), optim::sgd{}, world, parallel);
      load_pretrained(trainer, directory, files);
    });
    return files.total - static_cast<std::uint64_t>(ranks) * headers - once;
  };
  CHECK(read_by(2, parallel::data{}) == 2 * numbers);
  CHECK(read_by(3, parallel::zero<3>{.bucket_bytes = 1024}) == numbers);
  CHECK(read_by(2, parallel::pipeline<>{.stages = 2}) == numbers);
  // Tensors that are not split are read by every rank of a tensor group: the five norms.
  CHECK(read_by(2, parallel::mesh{parallel::data{}, parallel::tensor{.ways = 2}}) == numbers + 5 * 16 * 4);
}

TEST_CASE("files of another model, or with missing parts, change nothing on any rank", "[train][pretrained]") {
  watchdog const guard("files that do not fit");
  scratch dir;
  std::vector<std::string> said(4);
  auto const value_of_rank = [&](std::size_t at, nn::llama const& model, std::string const& directory) {
    launch(comm::threads{.ranks = 2}, [&](auto& world) {
      auto trainer = make_trainer(model, optim::sgd{}, world, parallel::zero<1>{});
      auto const before = trainer.state_hash();
      auto const sentence = sentence_of([&] { load_pretrained(trainer, directory); });
      if (trainer.state_hash() != before) throw error("the state has changed");
      said[at + static_cast<std::size_t>(world.rank())] = sentence;
    });
  };
  auto model = nn::read_description<nn::llama>(golden("llama"));
  model.rotary = 1000;
  value_of_rank(0, model, golden("llama"));
  CHECK(contains(said[0], "/config.json describes nn::llama{.vocabulary = 37"));
  CHECK(contains(said[1], ".rotary = 100, "));
  model.rotary = 100;
  std::filesystem::copy(golden("llama"), dir / "m");
  formats::file(dir / "m/model-00002-of-00002.safetensors", formats::file::access::extend).truncate(9000);
  value_of_rank(2, model, dir / "m");
  CHECK(contains(said[2], "model-00002-of-00002.safetensors: byte "));
  CHECK(contains(said[3], "model-00002-of-00002.safetensors: byte "));
}

namespace {

/// A model from elsewhere in bfloat16, with all files that may be beside its weights.
void write_theirs(std::string const& to, std::string const& kind) {
  std::filesystem::create_directories(to + "/additional_chat_templates");
  auto const layout = described<nn::llama>(golden(kind)).in_files();
  nn::pretrained_writer out(layout, dtype::bf16);
  std::map<std::string, std::vector<float>> parameters;
  nn::pretrained_reader const from(layout, golden(kind));
  for (auto const& each : layout.tensors) {
    auto& values = parameters[each.parameter];
    if (!values.empty()) continue;
    values.resize(static_cast<std::size_t>(each.size()));
    parameter_info info;
    info.name = each.parameter;
    info.extents = each.inputs == 1 ? shape{each.columns} : shape{each.inputs, each.columns};
    from.read(info, 0, std::span(values));
    out.add(each.parameter, values);
  }
  auto config = formats::read_json(golden(kind) + "/config.json", 1'000'000);
  config.set("bos_token_id", 1);
  config.set("eos_token_id", formats::json::array{2, 5});
  config.set("pad_token_id", 0);
  config.set("a_key_of_theirs", formats::json::value::make({{"deep", formats::json::array{1, 2.5, "x"}}}));
  out.write(formats::directory(to), config);
  auto const written = formats::read_json(to + "/config.json", 1'000'000);
  formats::atomic_write(to + "/config.json",
                        formats::json::to_string(written, 4) + "\n\n");  // formatted as other programs may do
  for (auto const* const name :
       {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
        "merges.txt", "tokenizer.model", "chat_template.jinja", "additional_chat_templates/tool.jinja", "README.md"})
    formats::atomic_write(to + "/" + name, std::string("of theirs\0\xff: ", 12) + name);
}
/// Expects all of it, unchanged.
void expect_theirs(std::string const& from, std::string const& to, bool same_types = true) {
  INFO(to);
  for (auto const* const name :
       {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
        "merges.txt", "tokenizer.model", "chat_template.jinja", "additional_chat_templates/tool.jinja"})
    CHECK(formats::read_text(from + "/" + name) == formats::read_text(to + "/" + name));
  CHECK_FALSE(std::filesystem::exists(to + "/README.md"));
  auto theirs = formats::read_json(from + "/config.json", 1'000'000);
  if (!same_types) theirs.set(theirs.find("dtype") != nullptr ? "dtype" : "torch_dtype", "float32");
  CHECK(formats::json::to_string(theirs) ==
        formats::json::to_string(formats::read_json(to + "/config.json", 1'000'000)));
  if (same_types) CHECK(formats::read_text(from + "/config.json") == formats::read_text(to + "/config.json"));
  formats::weight_files const files(to);
  for (auto const& each : files.tensors()) CHECK(each.what->type == (same_types ? dtype::bf16 : dtype::f32));
}

}  // namespace

TEST_CASE("files that came with a model are kept with it, also through a checkpoint without the directory",
          "[train][pretrained]") {
  watchdog const guard("what came with a model");
  scratch dir;
  for (std::string const kind : {"llama", "llama3", "qwen2", "mistral"}) {
    auto const from = dir / kind;
    write_theirs(from, kind);
    launch(comm::threads{.ranks = 2}, [&](auto& world) {
      auto trainer = make_trainer(described<nn::llama>(from), optim::sgd{}, world, parallel::zero<1>{});
      load_pretrained(trainer, from);
      auto const done = save_pretrained(trainer, dir / kind + ".saved");
      CHECK((done.copied.size() == (world.rank() == 0 ? 9U : 0U)));
      save_pretrained(trainer, dir / kind + ".wide", {.stored = dtype::f32});
      if (kind == "llama") trainer.save(dir / kind + ".checkpoint");
      if (kind != "llama") trainer.save_in_background(dir / kind + ".checkpoint"), trainer.finish_save();
    });
    expect_theirs(from, dir / kind + ".saved");
    expect_theirs(from, dir / kind + ".wide", false);
    CHECK(content(dir / kind + ".saved") == content(from));
    std::filesystem::rename(from, dir / "moved." + kind);
    comm::self_world alone;
    // Trained on shorter samples, with low-rank changes or without.
    auto shorter = described<nn::llama>(dir / "moved." + kind);
    shorter.context /= 2;
    auto trainer = make_trainer(shorter, optim::sgd{}, alone);
    if (describe(shorter) == describe(described<nn::llama>(dir / "moved." + kind))) continue;
    load_pretrained(trainer, dir / "moved." + kind);
    save_pretrained(trainer, dir / kind + ".shorter");
    expect_theirs(dir / "moved." + kind, dir / kind + ".shorter");
    auto again = make_trainer(described<nn::llama>(dir / "moved." + kind), optim::sgd{}, alone);
    again.load(dir / kind + ".checkpoint");
    save_pretrained(again, dir / kind + ".again");
    expect_theirs(dir / "moved." + kind, dir / kind + ".again");
    again.initialise(1);
    CHECK(again.model_files().empty());
  }
  auto const damaged = dir / "llama.checkpoint/step-0000000000/model_files.safetensors";
  formats::atomic_write(damaged, formats::read_text(damaged) + "x");
  comm::self_world alone;
  auto trainer = make_trainer(described<nn::llama>(dir / "moved.llama"), optim::sgd{}, alone);
  CHECK(contains(sentence_of([&] { trainer.load(dir / "llama.checkpoint"); }), "model_files.safetensors"));
}

TEST_CASE("existing files in a model's directory are kept under names that are not read as the model",
          "[train][pretrained]") {
  scratch dir;
  auto const from = dir / "theirs", to = dir / "to";
  write_theirs(from, "llama");
  comm::self_world alone;
  auto trainer = make_trainer(described<nn::llama>(from), optim::sgd{}, alone);
  load_pretrained(trainer, from);
  std::filesystem::create_directories(to);
  auto const index = R"({"weight_map": {"a": "model-00001-of-00001.safetensors"}})";
  formats::atomic_write(to + "/model.safetensors.index.json", index);
  formats::atomic_write(to + "/model-00001-of-00001.safetensors", "theirs");
  formats::atomic_write(to + "/notes.txt", "theirs");
  save_pretrained(trainer, to);
  CHECK(content(to) == content(from));
  CHECK(formats::read_text(to + "/model.safetensors.index.json.replaced") == index);
  CHECK(formats::read_text(to + "/model-00001-of-00001.safetensors") == "theirs");
  CHECK(formats::read_text(to + "/notes.txt") == "theirs");
  // Files of this library are removed, so that no reader takes them for a part of the model.
  formats::atomic_write(to + "/model.safetensors", "theirs");
  std::filesystem::remove(to + "/model-00001-of-00001.safetensors");
  save_pretrained(trainer, to, {.most_file_bytes = 4096});
  CHECK(formats::read_text(to + "/model.safetensors.replaced") == "theirs");
  CHECK(content(to) == content(from));
  save_pretrained(trainer, to);
  CHECK(content(to) == content(from));
  for (auto const& name : formats::directory(to).names()) {
    CHECK_FALSE(name.starts_with("model-"));
    CHECK(name != "model.safetensors.index.json");
  }
}

TEST_CASE("a model that does not fit on the disk leaves the earlier one unchanged", "[train][pretrained]") {
  watchdog const guard("a full disk");
  scratch dir;
  write_theirs(dir / "theirs", "llama");
  comm::self_world alone;
  auto model = described<nn::llama>(dir / "theirs");
  auto theirs = make_trainer(model, optim::sgd{}, alone);
  load_pretrained(theirs, dir / "theirs");
  auto fresh = make_trainer(model, optim::sgd{}, alone);  // another model, without a tokenizer
  for (std::uint64_t const most : {std::uint64_t{1} << 30, std::uint64_t{4096}}) {
    auto const to = dir / text("to.", most);
    save_pretrained(fresh, to, {.most_file_bytes = most});
    auto const before = all_files(to);
    std::size_t all = 0;
    save_pretrained(theirs, dir / text("whole.", most), {.most_file_bytes = most});
    for (auto const& [name, content] : all_files(dir / text("whole.", most))) all += content.size();
    for (auto const room : {std::size_t{0}, std::size_t{100}, all / 4, all / 2, all - 1}) {
      INFO(room << " of " << all);
      small_disk files(room);
      auto const said = sentence_of<io_error>([&] { save_pretrained(theirs, to, {.most_file_bytes = most}, files); });
      CHECK(contains(said, "no space left on device"));
      CHECK(all_files(to) == before);
    }
    small_disk files(all);
    save_pretrained(theirs, to, {.most_file_bytes = most}, files);
    CHECK(content(to) == content(dir / "theirs"));
    expect_theirs(dir / "theirs", to);
  }
}

TEST_CASE("a full file system leaves the earlier model unchanged", "[train][pretrained]") {
  watchdog const guard("a full file system");
  scratch dir;
  auto const disk = dir / "disk";
  formats::make_directories(disk);
  auto const mounted = std::system(text("mount -t tmpfs -o size=64k tmpfs '", disk, "' 2>/dev/null").c_str()) == 0;
  if (!mounted) return missing_part("no file system can be mounted here (for that one has to be root)");
  std::map<std::string, std::string> before, after;
  std::string said;
  {
    comm::self_world alone;
    nn::llama small{.vocabulary = 37, .context = 16, .layers = 1, .heads = 2, .channels = 16};
    auto trainer = make_trainer(small, optim::sgd{}, alone);
    save_pretrained(trainer, disk + "/model");
    before = all_files(disk);
    trainer.initialise(2);
    trainer.keep_model_files({{"tokenizer.json", "of the new one"}});
    formats::atomic_write(disk + "/filler", std::string(30'000, 'x'));
    before = all_files(disk);
    said = sentence_of<io_error>([&] { save_pretrained(trainer, disk + "/model"); });
    after = all_files(disk);
  }
  CHECK(std::system(text("umount '", disk, "'").c_str()) == 0);
  CHECK(contains(said, "no space left on device"));
  CHECK(after == before);
}

TEST_CASE("before the training a program can check whether a model's directory can be written", "[train][pretrained]") {
  scratch dir;
  formats::expect_writable(dir / "new/below");
  CHECK(std::filesystem::is_empty(dir / "new/below"));
  formats::atomic_write(dir / "file", "x");
  CHECK(sentence_of<io_error>([&] { formats::expect_writable(dir / "file"); }) ==
        (dir / "file") + ": cannot open the directory: not a directory");
  CHECK(contains(sentence_of<io_error>([&] { formats::expect_writable(dir / "file/below"); }), "not a directory"));
  class no_files : public formats::file_system {
   public:
    int open(int at, char const* path, int flags, ::mode_t mode) override {
      if ((flags & O_CREAT) == 0) return file_system::open(at, path, flags, mode);
      errno = EROFS;
      return -1;
    }
  } files;
  CHECK(sentence_of<io_error>([&] { formats::expect_writable(dir / "new", files); }) ==
        (dir / "new") + ": cannot make files in it: read-only file system");
}
