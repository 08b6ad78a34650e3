// Tokenizer files. Besides not crashing: what is accepted encodes a text in many scripts, gives only numbers of its
// vocabulary, and decodes them.
// test-mutations: 5000
#include <cstdint>
#include <cstdlib>
#include <string>

#include "trireme/formats/tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace trireme;
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  static std::string const sample =
      "The 12 oxen's yoke,\r\n  <s>ab</s> [CLS] \xc3\xa9\xcc\x81 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80 \t\xd9\xa1 ";
  try {
    auto const made = formats::tokenizer::parse(text, "input");
    auto const ids = made.encode(sample);
    for (auto const id : made.encode_pair(sample, "it").ids) {
      if (id < 0 || id >= made.vocabulary()) std::abort();
    }
    static_cast<void>(made.decode(ids, formats::special_tokens::with));
    formats::token_stream stream(made);
    for (auto const id : ids) static_cast<void>(stream.add(id));
  } catch (format_error const& problem) {
    if (problem.path() != "input" || problem.offset() > size) std::abort();
  } catch (config_error const&) {  // the text grows too large
  }
  return 0;
}
