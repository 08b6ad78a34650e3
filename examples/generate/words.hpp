#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"

#ifdef GENERATE_UTF8PROC
#include "trireme/formats/tokenizer.hpp"
#endif

/// What tokens are: those of a tokenizer.json, or bytes.
class words {
 public:
  /// @param path  of a tokenizer.json; empty: bytes.
  explicit words(std::string const& path) {
    if (path.empty()) return;
#ifdef GENERATE_UTF8PROC
    known_ = std::make_unique<trireme::formats::tokenizer>(trireme::formats::tokenizer::read(path));
    shown_ = std::make_unique<trireme::formats::token_stream>(*known_);
#else
    throw trireme::config_error(trireme::text("to read ", path,
                                              " this program needs utf8proc, and was built without it; install "
                                              "libutf8proc-dev and build again"));
#endif
  }

  [[nodiscard]] std::int64_t count() const {
#ifdef GENERATE_UTF8PROC
    if (known_) return known_->vocabulary();
#endif
    return 256;
  }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const {
#ifdef GENERATE_UTF8PROC
    if (known_) return known_->encode(text, trireme::formats::special_tokens::without);
#endif
    std::vector<std::int32_t> tokens;
    for (auto const letter : text) tokens.push_back(static_cast<unsigned char>(letter));
    return tokens;
  }
  /// What a token adds to the text of those before it, maybe nothing.
  [[nodiscard]] std::string add(std::int32_t token) {
#ifdef GENERATE_UTF8PROC
    if (shown_) return shown_->add(token);
#endif
    return {static_cast<char>(static_cast<unsigned char>(token))};
  }

#ifdef GENERATE_UTF8PROC
 private:
  std::unique_ptr<trireme::formats::tokenizer> known_;
  std::unique_ptr<trireme::formats::token_stream> shown_;
#endif
};
