// What files of models, checkpoints and tokens hold, without reading their numbers: see `usage`.
// test: --help
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/shape.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/gguf.hpp"
#include "trireme/formats/json.hpp"
#include "trireme/formats/safetensors.hpp"
#include "trireme/formats/token_files.hpp"

using namespace trireme;

namespace {

constexpr char const* usage = R"(inspect [--tensors] FILE|FOLDER...

Says in a line what a file holds, without reading its numbers: weights (.safetensors, .gguf), manifests of checkpoints,
summaries of runs, config.json and tokenizer.json, and token shards of llm.c's format. Of a FOLDER (a run, a checkpoint,
a model) it lists every file that it knows. A damaged header is one sentence that says where.

  --tensors    also each tensor: its type, shape and name
  --help       this
)";

struct totals {
  std::int64_t tensors = 0, numbers = 0;
  std::map<std::string, std::uint64_t, std::less<>> bytes_of{};  // by type

  void add(std::string_view type, shape const& extents, std::uint64_t bytes) {
    ++tensors;
    numbers += extents.size();
    bytes_of[std::string(type)] += bytes;
  }
  [[nodiscard]] std::string line() const {
    auto out = text(how_many(tensors, "tensor"), ", ", how_many(numbers, "number"));
    for (auto const& [type, bytes] : bytes_of) out += text(", ", type, " ", how_many(bytes, "byte"));
    return out;
  }
};

template <class Entries>
std::string weights(char const* kind, Entries const& entries, auto const& name_of_type, bool tensors) {
  totals all;
  std::string list;
  for (auto const& each : entries) {
    auto const type = name_of_type(each.type);
    all.add(type, each.extents, each.bytes);
    if (tensors) list += text("\n  ", type, " ", to_string(each.extents), " ", each.name);
  }
  return text(kind, ": ", all.line()) + list;
}

std::string as_text(formats::json::value const* found) {
  if (found == nullptr) return "?";
  return found->is_string() ? found->as_string() : formats::json::to_string(*found);
}

/// @returns nothing if it is none of the known files of JSON.
std::optional<std::string> known_json(formats::json::value const& it) {
  if (!it.is_object()) return {};
  if (auto const* run = it.find("run"); run != nullptr && it.find("progress") != nullptr) {
    std::uint64_t bytes = 0;
    auto const& files = it.at("files").as_array();
    for (auto const& file : files) bytes += file.at("bytes").as_uint64();
    auto const& progress = it.at("progress");
    return text("checkpoint of step ", progress.at("step").as_int64(), ", epoch ", progress.at("epoch").as_int64(),
                ": ", run->at("model").as_string(), ", ", run->at("optimizer").as_string(), ", ",
                run->at("precision").as_string(), "; ", how_many(files.size(), "rank"), ", ", how_many(bytes, "byte"));
  }
  if (it.find("held_out_last") != nullptr && it.find("steps") != nullptr) {
    return text("summary of a run: ", as_text(it.find("model")), ", ", as_text(it.find("parallel")), " on ",
                as_text(it.find("ranks")), " ranks, ", as_text(it.find("steps")), " steps, held-out loss ",
                as_text(it.find("held_out_first")), " -> ", as_text(it.find("held_out_last")));
  }
  if (it.find("model_type") != nullptr) {
    return text("description of a model of Hugging Face's format: ", as_text(it.find("model_type")), ", vocabulary ",
                as_text(it.find("vocab_size")));
  }
  if (auto const* model = it.find("model"); model != nullptr && model->is_object() && model->find("vocab") != nullptr) {
    auto const& words = model->at("vocab");
    return text("tokenizer: ", as_text(model->find("type")), ", ",
                how_many(words.is_array() ? words.as_array().size() : words.as_object().size(), "token"));
  }
  return {};
}

/// @returns nothing if it is not a file that this program knows.
std::optional<std::string> described(std::string const& path, bool tensors) {
  if (path.ends_with(".safetensors")) {
    formats::safetensors::reader const from(path);
    return weights(
        "safetensors", from.entries(), [](auto const& type) { return type.name(); }, tensors);
  }
  if (path.ends_with(".json")) {
    return known_json(formats::json::parse(formats::read_text(path, std::uint64_t{1} << 28), path));
  }
  formats::file const from(path, formats::file::access::read);
  std::array<std::byte, 16> start{};
  auto const size = from.size();
  auto const some = std::span(start).first(static_cast<std::size_t>(std::min<std::uint64_t>(size, start.size())));
  from.read(0, some);
  std::string_view const magic(reinterpret_cast<char const*>(some.data()), some.size());
  if (magic.starts_with("GGUF")) {
    formats::gguf::reader const model(path);
    auto const* const found = formats::gguf::find(model.metadata(), "general.architecture");
    auto const* const name = found != nullptr ? std::get_if<std::string>(found) : nullptr;
    return weights(
        text("gguf of ", name != nullptr ? *name : std::string("?")).c_str(), model.entries(),
        [](auto type) { return formats::gguf::name_of(type); }, tensors);
  }
  if (formats::token_files::is_llm_c(some)) {
    auto const tokens = formats::token_files::parse_llm_c(some, size, path);
    return text("tokens of llm.c's format: ", how_many(tokens.count, "token"), " of ",
                formats::token_files::name_of(tokens.type));
  }
  return {};
}

/// @returns the number of files that were described.
int inspect(std::string const& path, bool tensors) {
  if (!std::filesystem::is_directory(path)) {
    auto const found = described(path, tensors);
    if (!found) {
      throw config_error(text(path, " is none of the files that inspect knows: .safetensors, .gguf, manifests, ",
                              "summaries, config.json, tokenizer.json and token shards of llm.c's format"));
    }
    std::printf("%s: %s\n", path.c_str(), found->c_str());
    return 1;
  }
  std::vector<std::string> files;
  for (auto const& each : std::filesystem::recursive_directory_iterator(path)) {
    if (each.is_regular_file()) files.push_back(each.path().string());
  }
  std::ranges::sort(files);
  int count = 0;
  for (auto const& file : files) {
    if (auto const found = described(file, tensors)) {
      std::printf("%s: %s\n", file.c_str(), found->c_str());
      ++count;
    }
  }
  if (count == 0) throw config_error(text(path, " holds no file that inspect knows"));
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  bool tensors = false;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    std::string_view const word = argv[i];
    if (word == "--help") {
      std::fputs(usage, stdout);
      return 0;
    }
    if (word == "--tensors") {
      tensors = true;
    } else if (word.starts_with("--")) {
      std::fprintf(stderr, "inspect: unknown option %s; see --help\n", argv[i]);
      return 2;
    } else {
      paths.emplace_back(word);
    }
  }
  if (paths.empty()) {
    std::fputs("inspect: name a file or a folder; see --help\n", stderr);
    return 2;
  }
  try {
    for (auto const& path : paths) inspect(path, tensors);
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "inspect: %s\n", problem.what());
    return 1;
  }
}
