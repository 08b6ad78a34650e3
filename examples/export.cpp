// Writes a model as a file for llama.cpp, ollama or onnxruntime: see `usage`.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/gguf.hpp"
#include "trireme/nn/gguf.hpp"
#include "trireme/nn/gguf_reader.hpp"
#include "trireme/nn/onnx.hpp"

using namespace trireme;

namespace {

constexpr char const* usage =
    R"(export DIR --to gguf [--type TYPE] [--out FILE]

Writes the model in DIR (runs/NAME/model, or a directory in Hugging Face's format: GPT-2, Llama, Mistral, Qwen 2 and
3, DeepSeek V3, BERT's encoder) as a file for llama.cpp and ollama, with its tokenizer. The file appears whole or not
at all.

  --type TYPE        f32 | f16 | bf16 | q8_0 | q5_1 | q5_0 | q4_1 | q4_0 (f16)
  --like FILE        a GGUF file of such a model, whose tensors' types and order are taken
  --out FILE         (DIR/model-TYPE.gguf)

export FILE.gguf --to huggingface --out DIR

Writes the model in a GGUF file (gpt2, llama, qwen2, qwen3; the types above) as a directory in Hugging Face's format, in
F32, with its tokenizer.

export DIR --to onnx [--dialect D] [--past yes|no] [--out FILE|FOLDER]

Writes GPT-2, Llama, Mistral, Qwen 2 and 3, DeepSeek V3, BERT, ViT or a convnet as a graph for onnxruntime. Weights of
more than 1 GiB lie beside it, in FILE.safetensors.

  --dialect D        portable: opset 18, standard operators; native: opset 23, with its Attention; ort: opset 21, with
                     onnxruntime's GroupQueryAttention (portable)
  --type TYPE        f32 | q4_0, of the dialect ort: products' weights in 4 bits, for its MatMulNBits (f32)
  --past yes|no      whether a decoder takes and gives keys and values of earlier positions (yes)
  --out FILE|FOLDER  a FOLDER, which exists or ends in "/", gets model.onnx with the tokenizer's files,
                     generation_config.json and onnxruntime-genai's genai_config.json (DIR/model.onnx)
  --help             this
)";

struct options {
  std::string directory, to, out, type, dialect, past, like;
};

options parse(std::vector<std::string_view> const& given) {
  options out;
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto const name = given[i];
    if (!name.starts_with("--")) {
      if (!out.directory.empty()) throw config_error(text("unexpected argument \"", name, "\": give one directory"));
      out.directory = name;
      continue;
    }
    auto* const value = name == "--to"        ? &out.to
                        : name == "--type"    ? &out.type
                        : name == "--out"     ? &out.out
                        : name == "--dialect" ? &out.dialect
                        : name == "--past"    ? &out.past
                        : name == "--like"    ? &out.like
                                              : nullptr;
    if (value == nullptr) throw config_error(text("unknown option ", name, "; see --help"));
    if (++i == given.size()) throw config_error(text(name, " needs a value"));
    *value = given[i];
  }
  if (out.directory.empty() || out.to.empty()) {
    throw config_error("a directory and --to gguf or --to onnx are needed; see --help");
  }
  if (out.to != "gguf" && out.to != "onnx" && out.to != "huggingface") {
    throw config_error(text("--to is \"", out.to, "\"; only gguf, onnx and huggingface are written"));
  }
  bool const graph = out.to == "onnx", back = out.to == "huggingface";
  if (back && out.out.empty()) throw config_error("--to huggingface needs --out DIR");
  if (back && !out.type.empty()) throw config_error("--type is of gguf; huggingface has F32");
  if (out.to != "gguf" && !out.like.empty()) throw config_error("--like is of gguf; leave it out");
  if (graph && !out.type.empty() && out.type != "f32" && (out.type != "q4_0" || out.dialect != "ort"))
    throw config_error("--type of onnx is f32, or with --dialect ort also q4_0");
  if (!graph && !out.dialect.empty()) throw config_error("--dialect is of onnx; leave it out");
  if (!graph && !out.past.empty()) throw config_error("--past is of onnx; leave it out");
  if (!out.dialect.empty() && !nn::onnx_dialect_named(out.dialect))
    throw config_error(text("--dialect is \"", out.dialect, "\"; it is portable, native or ort"));
  if (!out.past.empty() && out.past != "yes" && out.past != "no")
    throw config_error(text("--past is \"", out.past, "\"; it is yes or no"));
  if (out.type.empty()) out.type = "f16";
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::find(argv + 1, argv + argc, std::string_view("--help")) != argv + argc) {
    std::fputs(usage, stdout);
    return 0;
  }
  options given;
  nn::gguf_options how;
  try {
    given = parse({argv + 1, argv + argc});
    auto const type = formats::gguf::kind_named(given.type);
    if (!type)
      throw config_error(text("--type is \"", given.type, "\"; it is f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0"));
    how.type = *type;
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "export: %s\n", problem.what());
    return 2;
  }
  try {
    bool const graph = given.to == "onnx";
    if (given.out.empty())
      given.out = graph ? given.directory + "/model.onnx" : text(given.directory, "/model-", given.type, ".gguf");
    std::uint64_t bytes = 0;
    nn::onnx_options const of_graph{
        .past = given.past != "no",
        .dialect = nn::onnx_dialect_named(given.dialect).value_or(nn::onnx_dialect::portable),
        .four_bits = graph && given.type == "q4_0"};
    if (given.to == "huggingface") {
      bytes = nn::write_pretrained_of_gguf(given.directory, given.out);
    } else if (!graph) {
      how.like = given.like;
      bytes = nn::write_gguf(given.directory, given.out, how);
    } else if (given.out.ends_with('/') || std::filesystem::is_directory(given.out)) {
      bytes = nn::write_onnx_directory(given.directory, given.out, of_graph);
    } else {
      bytes = nn::write_onnx(given.directory, given.out, of_graph);
    }
    std::printf("wrote %s (%llu bytes)\n", given.out.c_str(), static_cast<unsigned long long>(bytes));
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "export: %s\n", problem.what());
    return 1;
  }
}
