// Requests of OpenAI's and of KServe's clients, and texts that are cut at stop strings. Besides not crashing: what is
// accepted keeps to the limits, a refusal is one line of JSON, and pieces of a text give the same as all of it at once.
// test-mutations: 20000
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

#include "trireme/serve/kserve.hpp"
#include "trireme/serve/openai.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace trireme::serve;
  std::string_view const body(reinterpret_cast<char const*>(data), size);
  openai::limits const most{.model = "m", .vocabulary = 300, .most_tokens = 100, .most_answers = 8};
  for (auto const to : {openai::endpoint::completions, openai::endpoint::chat, openai::endpoint::embeddings}) {
    try {
      auto const asked = openai::parse(to, body, most);
      auto const& how = asked.how;
      if (asked.prompts.empty() == asked.messages.empty()) std::abort();
      if (asked.n < 1 || static_cast<std::int64_t>(asked.prompts.size()) * asked.n > 8) std::abort();
      if (how.max_tokens < 0 || how.max_tokens > 100 || how.logprobs < 0 || how.logprobs > 20) std::abort();
      if (!(how.temperature >= 0 && how.top_p > 0 && how.top_p <= 1 && how.min_p >= 0)) std::abort();
      for (auto const& each : asked.prompts) {
        if (auto const* const tokens = std::get_if<1>(&each)) {
          if (tokens->empty()) std::abort();
          for (auto const token : *tokens) {
            if (token < 0 || token >= 300) std::abort();
          }
        } else if (std::get<0>(each).empty()) {
          std::abort();
        }
      }
      for (auto const format : {trireme::data::chat_template::chatml, trireme::data::chat_template::llama3})
        static_cast<void>(openai::text_of(asked.messages, {.format = format}));
    } catch (openai::refusal const& problem) {
      auto const told = trireme::formats::json::parse(openai::body_of(problem), "refusal");
      if (told.at("error").at("message").as_string().empty() || problem.status < 400) std::abort();
    }
  }
  try {
    auto const asked = kserve::parse(body, {.most_inputs = 4, .most_numbers = 64});
    if (asked.inputs.empty() || asked.inputs.size() > 4) std::abort();
    std::int64_t numbers = 0;
    for (auto const& each : asked.inputs) {
      auto const count = std::visit([](auto const& data) { return data.size(); }, each.data);
      if (each.size() < 1 || count != static_cast<std::size_t>(each.size())) std::abort();
      numbers += each.size();
    }
    if (numbers > 64) std::abort();
    static_cast<void>(trireme::formats::json::parse(kserve::response(asked, "m", asked.inputs), "response"));
  } catch (openai::refusal const& problem) {
    auto const told = trireme::formats::json::parse(kserve::body_of(problem), "refusal");
    if (told.at("error").as_string().empty()) std::abort();
  }
  openai::answer_text pieces({"ab", "\"}"}), once({"ab", "\"}"});
  std::string out;
  for (std::size_t at = 0; at < size; at += 3) out += pieces.add(body.substr(at, 3));
  out += pieces.finish();
  auto same = once.add(body);
  same += once.finish();
  if (out != same || pieces.stopped() != once.stopped()) std::abort();
  static_cast<void>(openai::token_name(body.substr(0, 4)));
  return 0;
}
