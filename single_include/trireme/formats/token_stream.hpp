// Trireme 0.1.0: trireme/formats/token_stream.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 9d102d0fc298ee07654b9f74648860269c98917a20bc1b0429ad700a7b087d7f
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/trireme.hpp"

// ---- trireme/formats/token_stream.hpp
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::formats {

/// The text of tokens that arrive one by one, as somebody who writes has them: a character whose bytes are spread over
/// several tokens appears with the last of them.
///
/// Bytes    the tokens since the last two pieces that were complete.
/// Threads  one caller; the tokenizer must outlive it.
///
/// @tparam Tokenizer  a tokenizer or a sentencepiece.
template <class Tokenizer>
class token_stream {
 public:
  explicit token_stream(Tokenizer const& from) : from_(&from) {}

  /// What is new in the text, maybe nothing.
  [[nodiscard]] std::string add(std::int32_t id) {
    ids_.push_back(id);
    auto whole = from_->decode(ids_);
    // Tokens that were complete are decoded again, because what comes first in a text may look otherwise.
    if (whole.size() <= shown_.size() || whole.ends_with("\xef\xbf\xbd")) return {};
    auto fresh = whole.substr(shown_.size());
    // Where the last ones alone are no text, a space that they stand for would be lost: those before them stay.
    std::vector<std::int32_t> last(ids_.begin() + static_cast<std::ptrdiff_t>(complete_), ids_.end());
    auto text = from_->decode(last);
    if (!text.empty()) ids_ = std::move(last);
    shown_ = text.empty() ? std::move(whole) : std::move(text);
    complete_ = ids_.size();
    return fresh;
  }

 private:
  Tokenizer const* from_;
  std::vector<std::int32_t> ids_;  // [0, complete_) were shown before
  std::size_t complete_ = 0;
  std::string shown_;  // the text of those
};

}  // namespace trireme::formats
