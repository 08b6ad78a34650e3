// Trireme 0.1.0: trireme/formats/token_stream.hpp in one header. Made by scripts/single-header: change the sources, not this file.
// SHA-256 of the sources: 4375e23572c37903936d100fc1cc44c01257e41388510f41b87ef69f51d9e566
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

/// Converts tokens to text one by one, to show a text while it is generated: a character whose bytes are in several
/// tokens appears with the last of them.
///
/// Bytes    the tokens since the last two complete pieces.
/// Threads  one caller; the tokenizer must outlive it.
///
/// @tparam Tokenizer  a tokenizer or a sentencepiece.
template <class Tokenizer>
class token_stream {
 public:
  explicit token_stream(Tokenizer const& from) : from_(&from) {}

  /// The new part of the text; may be empty.
  [[nodiscard]] std::string add(std::int32_t id) {
    ids_.push_back(id);
    auto whole = from_->decode(ids_);
    // Complete tokens are decoded again, because a token at the beginning of a text may be decoded differently.
    if (whole.size() <= shown_.size() || whole.ends_with("\xef\xbf\xbd")) return {};
    auto fresh = whole.substr(shown_.size());
    // If the last tokens alone decode to no text, a space in them would be lost: the earlier ones are kept.
    std::vector<std::int32_t> last(ids_.begin() + static_cast<std::ptrdiff_t>(complete_), ids_.end());
    auto text = from_->decode(last);
    if (!text.empty()) ids_ = std::move(last);
    shown_ = text.empty() ? std::move(whole) : std::move(text);
    complete_ = ids_.size();
    return fresh;
  }

 private:
  Tokenizer const* from_;
  std::vector<std::int32_t> ids_;  // [0, complete_) were returned before
  std::size_t complete_ = 0;
  std::string shown_;  // the text of those
};

}  // namespace trireme::formats
