#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/token_stream.hpp"

#ifdef EXAMPLES_UTF8PROC
#include "trireme/formats/tokenizer.hpp"
#endif
#ifdef EXAMPLES_SENTENCEPIECE
#include "trireme/formats/sentencepiece.hpp"
#endif

/// The tokens: those of a tokenizer.json, of a .model of sentencepiece, or bytes. Any thread may use them.
class vocabulary {
 public:
  /// What a token adds to the text of those that were given before.
  using stream = std::function<std::string(std::int32_t)>;

  /// A model's: the file that was given, or else the one in the model's directory.
  vocabulary(std::string const& path, std::string const& directory)
      : vocabulary(path.empty() ? file_in(directory) : path) {}
  /// @param path  of the tokenizer's file; empty: bytes.
  explicit vocabulary(std::string const& path) {
    if (path.ends_with(".model")) {
#ifdef EXAMPLES_SENTENCEPIECE
      take(trireme::formats::sentencepiece::read(path), [](auto const& known, std::string_view text, bool begin) {
        auto out = known.encode(text);
        if (begin && known.begin()) out.insert(out.begin(), *known.begin());
        return out;
      });
#else
      fail(path, "sentencepiece");
#endif
    } else if (!path.empty()) {
#ifdef EXAMPLES_UTF8PROC
      take(trireme::formats::tokenizer::read(path), [](auto const& known, std::string_view text, bool begin) {
        using trireme::formats::special_tokens;
        return known.encode(text, begin ? special_tokens::with : special_tokens::without);
      });
#else
      fail(path, "utf8proc");
#endif
    } else {
      alone_ = [](std::int32_t token) {
        return std::string(token < 256 ? 1 : 0, static_cast<char>(static_cast<unsigned char>(token)));
      };
      stream_ = [byte = alone_] { return byte; };
      encode_ = [](std::string_view text, bool) {
        std::vector<std::int32_t> tokens;
        for (auto const letter : text) tokens.push_back(static_cast<unsigned char>(letter));
        return tokens;
      };
      piece_ = [](std::int32_t) { return std::string(); };
    }
  }

  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  /// @param begin  with the special tokens that the tokenizer puts around a text.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, bool begin = false) const {
    return encode_(text, begin);
  }
  [[nodiscard]] bool has(std::string_view special) const { return encode_(special, false).size() == 1; }
  /// A token as the tokenizer's file writes it; empty if there is none.
  [[nodiscard]] std::string piece(std::int32_t token) const { return piece_(token); }
  /// A token's text by itself; of one that has none, as the tokenizer's file writes it.
  [[nodiscard]] std::string alone(std::int32_t token) const { return alone_(token); }
  [[nodiscard]] stream new_stream() const { return stream_(); }

 private:
  [[nodiscard]] static std::string file_in(std::string const& directory) {
    for (auto const* const name : {"/tokenizer.json", "/tokenizer.model"}) {
      if (std::filesystem::exists(directory + name)) return directory + name;
    }
    return {};
  }
  [[noreturn, maybe_unused]] static void fail(std::string const& path, std::string_view library) {
    throw trireme::config_error(trireme::text("to read ", path, " this program needs ", library,
                                              ", and was built without it; install lib", library,
                                              "-dev and build again"));
  }
  template <class Tokenizer, class Encode>
  void take(Tokenizer read, Encode encode) {
    auto const known = std::make_shared<Tokenizer const>(std::move(read));
    count_ = known->vocabulary();
    encode_ = [known, encode](std::string_view text, bool begin) { return encode(*known, text, begin); };
    piece_ = [known](std::int32_t token) {
      auto const* const found = known->token_of(token);
      return found == nullptr ? std::string() : *found;
    };
    alone_ = [known, piece = piece_](std::int32_t token) {
      auto out = known->decode(std::vector<std::int32_t>{token});
      // A special token has no text, and that of a part of a character says nothing.
      return out.empty() || out.find("\xef\xbf\xbd") != out.npos ? piece(token) : out;
    };
    stream_ = [known] {
      auto const shown = std::make_shared<trireme::formats::token_stream<Tokenizer>>(*known);
      return [shown](std::int32_t token) { return shown->add(token); };
    };
  }

  std::int64_t count_ = 256;
  std::function<std::vector<std::int32_t>(std::string_view, bool)> encode_;
  std::function<std::string(std::int32_t)> piece_;
  stream alone_;
  std::function<stream()> stream_;
};
