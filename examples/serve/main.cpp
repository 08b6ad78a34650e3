// Answers OpenAI's clients with a language model, by serve::engine (docs/serving.md): see `usage`.
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "../vocabulary.hpp"
#include "encoder.hpp"
#include "encodings.hpp"
#include "http.hpp"
#include "images.hpp"
#include "model.hpp"

#include "trireme/formats/file.hpp"
#include "trireme/nn/pretrained.hpp"
#include "trireme/ops/host/integer_products.hpp"
#include "trireme/serve/engine.hpp"
#include "trireme/trireme.hpp"

using namespace trireme;

namespace {

constexpr char const* usage =
    R"(serve DIR [--port P] [--host H] [--api-key-file F] [--name NAME] [--tokenizer FILE] [--chat-template T]
      [--max-tokens N] [--max-body BYTES] [--max-streams N] [--queue N] [--running N] [--positions N]
      [--pass-tokens N] [--drain-seconds S] [--precision fp32|bf16] [--weights int8|int4]
      [--tls-cert FILE --tls-key FILE]

Answers OpenAI's clients with the model in DIR (GPT-2, Llama, Qwen 2 and 3, Mistral, DeepSeek V3) in Hugging Face's
format, as scripts/train writes it to RUN/model: /v1/completions, /v1/chat/completions, /v1/models, /health,
/metrics, and a page at /. With a BERT it is /v1/embeddings, or of a classifier logits only, and
/v2/models/NAME/infer of KServe's protocol, which also answers for images with a ViT or a convnet. See docs/serving.md.

  --host H             the address to listen at (127.0.0.1: only programs of this machine reach it)
  --port P             0 takes a free one; the first line of the output tells it (8000)
  --api-key-file F     a line each; requests need one of them, but for / and /health
  --tls-cert FILE      a certificate and those that sign it, in PEM; with --tls-key FILE, its private key, clients
                       speak HTTPS (where the program was built with OpenSSL)
  --name NAME          of the model in requests (the last part of DIR)
  --tokenizer FILE     a tokenizer.json or a .model of sentencepiece (those in DIR, or else bytes)
  --chat-template T    chatml, llama3 or plain (what the tokenizer has tokens for)
  --max-tokens N       most tokens of an answer (the context)
  --max-body BYTES     of a request (4194304)
  --max-streams N      requests that are answered at a time; more are refused with 429 (128)
  --queue N            prompts that wait for a place in the engine; more are refused with 429 (256)
  --running N          prompts that are computed at a time (64)
  --positions N        places for keys and values of all of them (eight contexts, but not more than 16384)
  --pass-tokens N      positions that are computed in one pass (256)
  --precision P        fp32 or bf16: of what is read in each pass; the weights in DIR may have any type (fp32)
  --weights W          int8 or int4: weights and what they are multiplied with are rounded to integers (as P says)
  --drain-seconds S    after SIGTERM or SIGINT, running answers have so long to end (60); a second signal ends them
)";

struct options {
  std::string directory, name, tokenizer, chat, keys, precision = "fp32";
  std::optional<ops::weight_form> weights;
  std::int64_t max_tokens = 0, drain_seconds = 60;
  http_options http{};
  serve::engine_options engine{.most_waiting = 256};
};

std::int64_t number(std::string_view name, std::string_view given, std::int64_t least, std::int64_t most) {
  std::int64_t out{};
  auto const [end, problem] = std::from_chars(given.data(), given.data() + given.size(), out);
  if (problem != std::errc{} || end != given.data() + given.size() || out < least || out > most)
    throw config_error(text(name, " is \"", given, "\"; it is a number from ", least, " to ", most));
  return out;
}

options parse(std::vector<std::string_view> const& given) {
  constexpr std::int64_t many = 1'000'000'000;
  options out;
  for (std::size_t i = 0; i < given.size(); ++i) {
    auto const name = given[i];
    if (!name.starts_with("--")) {
      if (!out.directory.empty()) throw config_error(text("unexpected argument \"", name, "\": give one directory"));
      out.directory = name;
      continue;
    }
    if (++i == given.size()) throw config_error(text(name, " needs a value"));
    auto const value = given[i];
    if (name == "--host")
      out.http.host = value;
    else if (name == "--port")
      out.http.port = static_cast<int>(number(name, value, 0, 65535));
    else if (name == "--api-key-file")
      out.keys = value;
    else if (name == "--tls-cert")
      out.http.certificate = value;
    else if (name == "--tls-key")
      out.http.private_key = value;
    else if (name == "--name")
      out.name = value;
    else if (name == "--tokenizer")
      out.tokenizer = value;
    else if (name == "--chat-template")
      out.chat = value;
    else if (name == "--max-tokens")
      out.max_tokens = number(name, value, 1, many);
    else if (name == "--max-body")
      out.http.most_bytes = static_cast<std::size_t>(number(name, value, 1, many));
    else if (name == "--max-streams")
      out.http.most_streams = number(name, value, 1, 10000);
    else if (name == "--queue")
      out.engine.most_waiting = number(name, value, 1, many);
    else if (name == "--running")
      out.engine.most_running = number(name, value, 1, many);
    else if (name == "--positions")
      out.engine.positions = number(name, value, 16, many);
    else if (name == "--pass-tokens")
      out.engine.tokens_in_pass = number(name, value, 1, many);
    else if (name == "--precision")
      out.precision = value;
    else if (name == "--weights")
      out.weights = ops::weight_form_of(value);
    else if (name == "--drain-seconds")
      out.drain_seconds = number(name, value, 0, many);
    else
      throw config_error(text("unknown option ", name));
  }
  if (out.precision != "fp32" && out.precision != "bf16")
    throw config_error(text("--precision is \"", out.precision, "\"; it is fp32 or bf16"));
  if (out.http.certificate.empty() != out.http.private_key.empty())
    throw config_error("--tls-cert and --tls-key belong together: give both");
  if (out.directory.empty()) throw config_error("usage: serve DIR [--port P] [--host H] [--api-key-file F] and so on");
  return out;
}

data::chat_lines chat_of(options const& given, vocabulary const& words, std::vector<std::int32_t> const& ends) {
  using data::chat_template;
  for (auto const format : {chat_template::chatml, chat_template::llama3}) {
    auto const mark = format == chat_template::chatml ? "<|im_end|>" : "<|eot_id|>";
    if (given.chat == name_of(format) || (given.chat.empty() && words.has(mark))) return {.format = format};
  }
  if (!given.chat.empty() && given.chat != name_of(chat_template::plain))
    throw config_error(text("--chat-template is \"", given.chat, "\"; it is chatml, llama3 or plain"));
  return {.format = chat_template::plain, .end = ends.empty() ? "" : words.piece(ends.front())};
}

/// Serves until a signal comes, and running answers have ended.
void answer(served what, vocabulary const& words, options const& given, sigset_t const& signals) {
  http_server server(what, words, given.http);
  std::printf("%s at %s://%s:%d\n", given.name.c_str(), given.http.certificate.empty() ? "http" : "https",
              given.http.host.c_str(), server.port());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  server.drain();
  std::printf("stopping: %s\n", server.open() == 0 ? "no answer runs" : "running answers end first");
  std::fflush(stdout);
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(given.drain_seconds);
  while (server.open() > 0 && std::chrono::steady_clock::now() < end) {
    timespec const moment{0, 20'000'000};
    if (sigtimedwait(&signals, nullptr, &moment) > 0) break;
  }
  if (what.engine != nullptr) what.engine->stop();
}

void encode(options given, vocabulary const& words, sigset_t const& signals) {
  if (given.precision != "fp32")
    throw config_error(text(given.directory, " has a BERT, which is served in fp32; leave out --precision"));
  if (given.weights)
    throw config_error(text(given.directory, " has a BERT, which is served in fp32; leave out --weights"));
  auto const separator = words.encode("[SEP]");  // one token, where the tokenizer has it
  auto const model = load_encoder(given.directory, separator.size() == 1 ? separator.front() : -1);
  encodings encoder(*model, words, given.name, pooling_in(given.directory));
  given.http.context = model->context;
  answer({.tensors = &encoder}, words, given, signals);
}

void classify(options const& given, vocabulary const& words, sigset_t const& signals) {
  if (given.precision != "fp32")
    throw config_error(text(given.directory, " has a model of images, which is served in fp32; leave out --precision"));
  auto const model = load_images(given.directory);
  classifications images(*model, given.name);
  answer({.tensors = &images}, words, given, signals);
}

void complete(options given, vocabulary const& words, sigset_t const& signals) {
  auto const load = given.precision == "bf16" ? load_bf16 : load_fp32;
  std::optional<ops::integer_products> integers;  // of the model that is made meanwhile
  if (given.weights) integers.emplace(*given.weights);
  auto const decoder = load(read_model(given.directory), given.directory);
  given.engine.known = std::min(words.count(), decoder->vocabulary());
  serve::engine engine(*decoder, given.engine);

  auto& http = given.http;
  auto const context = engine.options().context;
  http.context = context;
  http.ends = nn::end_tokens_in(given.directory);
  http.chat = chat_of(given, words, http.ends);
  // The token that ends an answer of a chat; the model's configuration may not tell it.
  if (http.chat.format != data::chat_template::plain) {
    auto const mark = words.encode(data::detail::end_mark(http.chat));
    if (mark.size() == 1) http.ends.push_back(mark.front());
  }
  http.limits.vocabulary = decoder->vocabulary();
  http.limits.most_tokens = given.max_tokens > 0 ? std::min(given.max_tokens, context) : context;
  http.limits.most_answers = std::min(http.limits.most_answers, engine.options().most_waiting);
  engine.start();
  answer({.engine = &engine}, words, given, signals);
}

void run(options given, sigset_t const& signals) {
  if (given.name.empty()) {
    auto const path = std::filesystem::absolute(given.directory).lexically_normal();
    given.name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  }
  if (!given.keys.empty()) {
    constexpr std::uint64_t most = 1U << 20;
    given.http.keys = serve::openai::api_keys(formats::read_text(given.keys, most));
    if (given.http.keys.empty()) throw config_error(text(given.keys, " has no key; write one in a line"));
  }
  given.http.limits.model = given.name;
  vocabulary const words(given.tokenizer, given.directory);
  if (is_encoder(given.directory))
    encode(given, words, signals);
  else if (is_of_images(given.directory))
    classify(given, words, signals);
  else
    complete(given, words, signals);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--help") {
      std::fputs(usage, stdout);
      return 0;
    }
  }
  // Signals come to this thread alone, which waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    run(parse({argv + 1, argv + argc}), signals);
  } catch (std::exception const& problem) {
    std::fprintf(stderr, "serve: %s\n", problem.what());
    return 1;
  }
}
