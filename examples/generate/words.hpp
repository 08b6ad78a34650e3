#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/token_stream.hpp"

#ifdef GENERATE_UTF8PROC
#include "trireme/formats/tokenizer.hpp"
#endif
#ifdef GENERATE_SENTENCEPIECE
#include "trireme/formats/sentencepiece.hpp"
#endif

/// The tokens: those of a tokenizer.json, of a .model of sentencepiece, or bytes.
class words {
 public:
  /// @param path  of the tokenizer's file; empty: bytes.
  explicit words(std::string const& path) {
    if (path.ends_with(".model")) {
#ifdef GENERATE_SENTENCEPIECE
      take(trireme::formats::sentencepiece::read(path),
           [](auto const& known, std::string_view text) { return known.encode(text); });
#else
      fail(path, "sentencepiece");
#endif
    } else if (!path.empty()) {
#ifdef GENERATE_UTF8PROC
      take(trireme::formats::tokenizer::read(path), [](auto const& known, std::string_view text) {
        return known.encode(text, trireme::formats::special_tokens::without);
      });
#else
      fail(path, "utf8proc");
#endif
    }
  }

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const { return encode_(text); }
  /// The text that a token adds to the text of those before it; may be empty.
  [[nodiscard]] std::string add(std::int32_t token) { return add_(token); }

 private:
  [[noreturn, maybe_unused]] static void fail(std::string const& path, std::string_view library) {
    throw trireme::config_error(trireme::text("to read ", path, " this program needs ", library,
                                              ", and was built without it; install lib", library,
                                              "-dev and build again"));
  }
  template <class Tokenizer, class Encode>
  void take(Tokenizer read, Encode encode) {
    auto const known = std::make_shared<Tokenizer const>(std::move(read));
    auto const shown = std::make_shared<trireme::formats::token_stream<Tokenizer>>(*known);
    count_ = known->vocabulary();
    encode_ = [known, encode](std::string_view text) { return encode(*known, text); };
    add_ = [known, shown](std::int32_t token) { return shown->add(token); };
  }

  std::int64_t count_ = 256;
  std::function<std::vector<std::int32_t>(std::string_view)> encode_ = [](std::string_view text) {
    std::vector<std::int32_t> tokens;
    for (auto const letter : text) tokens.push_back(static_cast<unsigned char>(letter));
    return tokens;
  };
  std::function<std::string(std::int32_t)> add_ = [](std::int32_t token) {
    return std::string{static_cast<char>(static_cast<unsigned char>(token))};
  };
};
