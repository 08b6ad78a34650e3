#include "trireme/serve/openai.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "../catch.hpp"
#include "../support/sentence.hpp"

using namespace trireme;
namespace openai = serve::openai;
namespace json = formats::json;
using openai::endpoint;

namespace {

openai::limits const most{.model = "small", .vocabulary = 300, .most_tokens = 100, .most_answers = 8};

openai::asked completion(std::string_view body) { return openai::parse(endpoint::completions, body, most); }
openai::asked chat(std::string_view body) { return openai::parse(endpoint::chat, body, most); }

// What a body is refused with; status 0 if it is not.
openai::refusal refused(endpoint to, std::string_view body) {
  try {
    static_cast<void>(openai::parse(to, body, most));
  } catch (openai::refusal const& problem) {
    return problem;
  }
  return openai::refusal("", "", 0);
}

openai::token_texts bytes() {
  auto const one = [](std::int32_t token) { return std::string(1, static_cast<char>(token)); };
  return {one, [one] { return one; }};
}

serve::event told(char letter, serve::finish why = serve::finish::none) {
  return {.token = static_cast<unsigned char>(letter), .logprob = -0.5F, .finish = why};
}

}  // namespace

TEST_CASE("a completion's members become a request", "[serve]") {
  auto const plain = completion(R"({"model": "small", "prompt": "Once"})");
  CHECK(std::get<std::string>(plain.prompts.at(0)) == "Once");
  CHECK(plain.how.max_tokens == 16);
  CHECK(plain.n == 1);
  CHECK((!plain.stream && !plain.seeded && !plain.logprobs && !plain.how.echo));

  auto const full = completion(R"({"prompt": ["a", "b"], "max_tokens": 3, "temperature": 0, "top_p": 0.5, "top_k": -1,
      "min_p": 0.1, "repetition_penalty": 1.5, "seed": -1, "n": 4, "stop": ["x", "yz"], "stream": true,
      "stream_options": {"include_usage": true}, "logit_bias": {"7": -100, "299": 1.5}, "ignore_eos": true,
      "echo": true, "logprobs": 2, "best_of": 4, "user": "me", "presence_penalty": 0.0, "suffix": null})");
  CHECK(full.prompts.size() == 2);
  CHECK(full.how.max_tokens == 3);
  CHECK(full.how.temperature == 0);
  CHECK(full.how.top_p == 0.5);
  CHECK(full.how.top_k == 0);
  CHECK(full.how.seed == std::numeric_limits<std::uint64_t>::max());
  CHECK(full.how.logit_bias == std::vector<std::pair<std::int32_t, float>>{{7, -100.0F}, {299, 1.5F}});
  CHECK(full.stop == std::vector<std::string>{"x", "yz"});
  CHECK((full.stream && full.usage && full.seeded && full.ignore_end && full.how.echo && full.logprobs));
  CHECK(full.how.logprobs == 2);
  CHECK(full.n == 4);

  using tokens = std::vector<std::int32_t>;
  CHECK(std::get<tokens>(completion(R"({"prompt": [1, 2]})").prompts.at(0)) == tokens{1, 2});
  auto const many = completion(R"({"prompt": [[1], [2, 299]], "max_tokens": 0})");
  CHECK(std::get<tokens>(many.prompts.at(1)) == tokens{2, 299});
}

TEST_CASE("a chat's members become a request", "[serve]") {
  auto const asked = chat(R"({"model": "small", "max_completion_tokens": 5, "logprobs": true, "top_logprobs": 3,
      "tools": [], "response_format": {"type": "text"}, "messages": [{"role": "developer", "content": "Be brief."},
      {"role": "user", "name": "me", "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "llo"}]}]})");
  CHECK(asked.messages == std::vector<openai::message>{{"system", "Be brief."}, {"user", "Hello"}});
  CHECK(asked.how.max_tokens == 5);
  CHECK(asked.how.logprobs == 3);
  CHECK(chat(R"({"messages": [{"role": "user", "content": ""}]})").how.max_tokens == 100);

  using data::chat_template;
  CHECK(openai::text_of(asked.messages, {.format = chat_template::chatml}) ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
  CHECK(openai::text_of({{"user", " Hi\n"}}, {.format = chat_template::llama3}) ==
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
  CHECK(openai::text_of({{"user", "1+1="}, {"assistant", "2"}, {"user", "2+2="}},
                        {.format = chat_template::plain, .end = "</s>"}) == "1+1=2</s>2+2=");
}

TEST_CASE("a request that cannot be answered is refused with one sentence", "[serve]") {
  struct wrong {
    char const* body;
    char const* field;
    char const* words;
  };
  for (auto const& [body, field, words] : std::vector<wrong>{
           {"", "", "not JSON"},
           {"{\"prompt\": \"a\"", "", "not JSON"},
           {"{\"prompt\": \"\xff\"}", "", "UTF-8"},
           {"{\"prompt\": \"\\ud800\"}", "", "not JSON"},
           {"{\"prompt\": \"a\", \"prompt\": \"b\"}", "", "prompt"},
           {"{\"prompt\": \"a\", \"temperature\": 1e999}", "", "not JSON"},
           {"[1]", "", "object"},
           {"{}", "prompt", "there is none"},
           {R"({"prompt": ""})", "prompt", "empty"},
           {R"({"prompt": 7})", "prompt", "array"},
           {R"({"prompt": []})", "prompt", "no prompt"},
           {R"({"prompt": [[]]})", "prompt", "no tokens"},
           {R"({"prompt": [1, "a"]})", "prompt", "integer"},
           {R"({"prompt": ["a", 1]})", "prompt", "string"},
           {R"({"prompt": [300]})", "prompt", "0 to 299"},
           {R"({"prompt": [-1]})", "prompt", "0 to 299"},
           {R"({"prompt": ["a","a","a","a","a","a","a","a","a"]})", "prompt", "at most 8"},
           {R"({"prompt": ["a","b"], "n": 5})", "n", "more than 8"},
           {R"({"prompt": "a", "n": 0})", "n", "1 to 8"},
           {R"({"prompt": "a", "max_tokens": -1})", "max_tokens", "0 to 100"},
           {R"({"prompt": "a", "max_tokens": 101})", "max_tokens", "0 to 100"},
           {R"({"prompt": "a", "max_tokens": 1e300})", "max_tokens", "integer"},
           {R"({"prompt": "a", "max_tokens": 99999999999999999999999})", "max_tokens", "integer"},
           {R"({"prompt": "a", "max_tokens": 1.5})", "max_tokens", "integer"},
           {R"({"prompt": "a", "max_tokens": true})", "max_tokens", "integer"},
           {R"({"prompt": "a", "temperature": "hot"})", "temperature", "number"},
           {R"({"prompt": "a", "temperature": -1})", "temperature", "0 to 100"},
           {R"({"prompt": "a", "top_p": 0})", "top_p", "above 0"},
           {R"({"prompt": "a", "min_p": 2})", "min_p", "0 to 1"},
           {R"({"prompt": "a", "seed": 0.5})", "seed", "integer"},
           {R"({"prompt": "a", "stop": ""})", "stop", "empty"},
           {R"({"prompt": "a", "stop": [1]})", "stop", "string"},
           {R"({"prompt": "a", "stop": ["","","","","","","","","","","","","","","","",""]})", "stop", "16"},
           {R"({"prompt": "a", "logprobs": true})", "logprobs", "integer"},
           {R"({"prompt": "a", "logprobs": 21})", "logprobs", "0 to 20"},
           {R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias", "token"},
           {R"({"prompt": "a", "logit_bias": {"300": 1}})", "logit_bias", "0 to 299"},
           {R"({"prompt": "a", "logit_bias": {"1": 101}})", "logit_bias", "-100 to 100"},
           {R"({"prompt": "a", "frequency_penalty": 0.5})", "frequency_penalty", "repetition_penalty"},
           {R"({"prompt": "a", "best_of": 2})", "best_of", "give n"},
           {R"({"prompt": "a", "suffix": "b"})", "suffix", "leave it out"},
           {R"({"prompt": "a", "stream_options": {"x": 1}})", "stream_options", "x"},
           {R"({"prompt": "a", "messages": []})", "messages", "does not know"},
       }) {
    CAPTURE(body);
    auto const problem = refused(endpoint::completions, body);
    CHECK(problem.status == 400);
    CHECK(problem.field == field);
    CHECK(contains(problem.what(), words));
  }
  for (auto const& [body, field, words] : std::vector<wrong>{
           {"{}", "messages", "there are none"},
           {R"({"messages": []})", "messages", "no message"},
           {R"({"messages": ["hello"]})", "messages", "object"},
           {R"({"messages": [{"role": "user"}]})", "messages", "content"},
           {R"({"messages": [{"content": "a"}]})", "messages", "role"},
           {R"({"messages": [{"role": "tool", "content": "a"}]})", "messages", "roles are"},
           {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages", "only texts"},
           {R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1})", "top_logprobs", "logprobs"},
           {R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})", "tools", "no tools"},
           {R"({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}})",
            "response_format", "text"},
           {R"({"messages": [{"role": "user", "content": "a"}], "echo": true})", "echo", "does not know"},
       }) {
    CAPTURE(body);
    auto const problem = refused(endpoint::chat, body);
    CHECK(problem.status == 400);
    CHECK(problem.field == field);
    CHECK(contains(problem.what(), words));
  }
  auto const other = refused(endpoint::completions, R"({"model": "large", "prompt": "a"})");
  CHECK(other.status == 404);
  CHECK(openai::body_of(other) == R"({"error":{"message":"the model \"large\" is not here; there is \"small\"",)"
                                  R"("type":"invalid_request_error","param":"model","code":"model_not_found"}})");
  // What is quoted of a long name ends within a character, and a path of a URL may have any bytes.
  for (auto const& each :
       {refused(endpoint::completions, "{\"prompt\": \"a\", \"" + std::string(79, 'x') + "\xe2\x82\xac\": 1}"),
        openai::refusal("\"\xff\" is not here", "\xc3")}) {
    auto const error = formats::json::parse(openai::body_of(each), "body").at("error");
    CHECK(contains(error.at("message").as_string(), "\xef\xbf\xbd"));
  }
}

TEST_CASE("texts are cut before stop strings, whatever the pieces are", "[serve]") {
  std::string const whole = "one \xe2\x82\xac two\n\nthree";
  for (std::size_t size = 1; size < whole.size(); ++size) {
    openai::answer_text cut({"\n\nt", "four"}), all;
    std::string out, same;
    for (std::size_t at = 0; at < whole.size(); at += size) {
      out += cut.add(whole.substr(at, size));
      same += all.add(whole.substr(at, size));
    }
    CHECK(out + cut.finish() == "one \xe2\x82\xac two");
    CHECK(cut.stopped());
    CHECK(same + all.finish() == whole);
    CHECK(all.characters() == 16);
  }
  openai::answer_text held({"END"});
  CHECK(held.add("at the E").empty() == false);
  CHECK(held.add("N") == "");
  CHECK(held.add("?") == "EN?");
  CHECK(held.add("EN") == "");
  CHECK(held.finish() == "EN");
  openai::answer_text prompt({"END"});
  CHECK(prompt.add("END", false) == "END");

  openai::answer_text broken;
  CHECK(broken.add("a\xff\xe2\x82") == "a\xef\xbf\xbd");
  CHECK(broken.add("b\xc0\xed\xa0") ==
        "\xef\xbf\xbd"
        "b\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  CHECK(broken.add("\xf0\x9f") == "");
  CHECK(broken.finish() == "\xef\xbf\xbd");
  CHECK(openai::token_name("\xe2\x82") == "bytes:\\xe2\\x82");
  CHECK(openai::token_name("\xe2\x82\xac") == "\xe2\x82\xac");
}

TEST_CASE("events become a completion with log-probabilities", "[serve]") {
  auto const what = completion(R"({"prompt": [72, 255], "echo": true, "logprobs": 1, "max_tokens": 1})");
  auto const texts = bytes();
  openai::answer one(what, 0, texts);
  auto first = told('H');
  first.in_prompt = true;
  first.logprob = std::numeric_limits<float>::quiet_NaN();
  auto second = told('\xff');
  second.in_prompt = true;
  second.top = {{65, -0.25F}};
  auto third = told('A', serve::finish::length);
  third.top = {{65, -0.5F}};
  auto whole = one.take(first);
  whole.append(one.take(second));
  whole.append(one.take(third));
  CHECK(one.ended());
  CHECK(one.tokens() == 1);
  auto const out = json::parse(openai::response(what, {"cmpl-1", 7, "small"}, {whole}, {2, 1}), "response");
  CHECK(out == json::parse(R"({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "small",
      "choices": [{"index": 0, "text": "H\ufffdA", "logprobs": {"tokens": ["H", "bytes:\\xff", "A"],
      "token_logprobs": [null, -0.5, -0.5], "top_logprobs": [null, {"A": -0.25, "bytes:\\xff": -0.5}, {"A": -0.5}],
      "text_offset": [0, 1, 2]}, "finish_reason": "length"}],
      "usage": {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}})",
                           "expected"));
}

TEST_CASE("events become a chat, whole and in parts", "[serve]") {
  auto const what = chat(R"({"messages": [{"role": "user", "content": "a"}], "logprobs": true, "stop": "!",
      "stream_options": {"include_usage": true}})");
  auto const texts = bytes();
  openai::answer one(what, 0, texts);
  openai::heading const head{"chatcmpl-1", 7, "small"};
  auto const part = one.take(told('H'));
  auto const begin = openai::chunk(what, head, part);
  CHECK(begin.starts_with("data: {"));
  CHECK(begin.ends_with("}\n\n"));
  CHECK(json::parse(begin.substr(6), "chunk") ==
        json::parse(R"({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "small",
      "choices": [{"index": 0, "delta": {"role": "assistant", "content": "H"}, "logprobs": {"content": [{"token": "H",
      "logprob": -0.5, "bytes": [72], "top_logprobs": []}], "refusal": null}, "finish_reason": null}],
      "usage": null})",
                    "expected"));
  auto const end = one.take(told('!'));
  CHECK(one.ended());
  CHECK(end.finish == "stop");
  CHECK(end.text.empty());
  CHECK(contains(openai::chunk(what, head, end), R"("delta":{"content":""})"));
  CHECK(contains(openai::usage_chunk(what, head, {3, 2}), R"("choices":[],"usage":{"prompt_tokens":3,)"));
  CHECK(one.take(told('x')).text.empty());

  openai::answer other(what, 0, texts);
  auto whole = other.take(told('H'));
  whole.append(other.take(told('\0', serve::finish::stop)));  // an end token
  CHECK(contains(openai::response(what, head, {whole}, {1, 2}), R"("message":{"role":"assistant","content":"H"})"));
  CHECK(whole.finish == "stop");

  openai::answer failed(what, 0, texts);
  static_cast<void>(failed.take({.finish = serve::finish::error, .problem = "no memory"}));
  CHECK(failed.ended());
  CHECK(failed.problem() == "no memory");
}

TEST_CASE("keys, models and metrics", "[serve]") {
  openai::api_keys const keys("# for tests\n\n  secret-1 \r\nsecret-22");
  CHECK(!keys.empty());
  CHECK(keys.accepts("Bearer secret-1"));
  CHECK(keys.accepts("Bearer secret-22"));
  for (auto const* const wrong : {"", "Bearer ", "Bearer secret-2", "secret-1", "bearer secret-1", "Bearer secret-1 ",
                                  "Bearer # for tests", "Basic secret-1"}) {
    CHECK(!keys.accepts(wrong));
  }
  CHECK(openai::api_keys().accepts(""));
  CHECK(contains(openai::models("small", 7, 64), R"("data":[{"id":"small","object":"model")"));
  CHECK(contains(openai::metrics({.pages_used = 3}), "# TYPE trireme_pages_used gauge\ntrireme_pages_used 3\n"));
}

TEST_CASE("embeddings are asked for and written as OpenAI's clients do it", "[serve]") {
  auto const embedding = [](std::string_view body) { return openai::parse(endpoint::embeddings, body, most); };
  auto const asked = embedding(R"({"model": "small", "input": ["a", "b"], "encoding_format": "base64", "user": "me"})");
  CHECK(asked.prompts.size() == 2);
  CHECK((asked.base64 && asked.begin_token));
  CHECK(std::get<std::vector<std::int32_t>>(embedding(R"({"input": [1, 2]})").prompts.at(0)).size() == 2);
  for (auto const* const wrong :
       {"{}", R"({"input": ""})", R"({"input": []})", R"({"input": [300]})", R"({"input": "a", "dimensions": 7})",
        R"({"input": "a", "encoding_format": "int8"})", R"({"input": "a", "temperature": 0})", R"({"prompt": "a"})"}) {
    CAPTURE(wrong);
    CHECK(refused(endpoint::embeddings, wrong).status == 400);
  }

  std::vector<std::vector<float>> const vectors{{1, -2}, {0.5F, 0}};
  auto const told = json::parse(openai::embeddings({}, "small", vectors, {.prompt_tokens = 3}), "answer");
  CHECK(told.at("data").as_array().at(1).at("embedding").as_array().at(0).as_double() == 0.5);
  CHECK(told.at("usage").at("total_tokens").as_int64() == 3);
  auto const packed = json::parse(openai::embeddings(asked, "small", vectors, {}), "answer");
  CHECK(packed.at("data").as_array().at(0).at("embedding").as_string() == "AACAPwAAAMA=");
  auto const three = json::parse(openai::embeddings(asked, "small", {{1, -2, 3}}, {}), "answer");
  CHECK(three.at("data").as_array().at(0).at("embedding").as_string() == "AACAPwAAAMAAAEBA");
}
