#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/core/hash.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/detail/tokenizer_splits.hpp"
#include "trireme/formats/detail/tokenizer_unicode.hpp"

// The models that turn a word into tokens.
namespace trireme::formats::detail {

using token_id = std::int32_t;
inline constexpr token_id no_token = -1;

/// Tokens and their ids.
class vocabulary {
 public:
  /// Returns false if the token or the id is already in use.
  bool add(std::string token, token_id id) {
    if (id_of(token) != no_token || tokens_.contains(id)) return false;
    longest_ = std::max(longest_, token.size());
    end_ = std::max(end_, id + 1);
    tokens_.emplace(id, token);
    ids_.emplace(std::move(token), id);
    return true;
  }
  [[nodiscard]] token_id id_of(std::string_view token) const {
    auto const found = ids_.find(token);
    return found == ids_.end() ? no_token : found->second;
  }
  [[nodiscard]] std::string const* token_of(token_id id) const {
    auto const found = tokens_.find(id);
    return found == tokens_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] std::size_t longest() const noexcept { return longest_; }  ///< bytes
  [[nodiscard]] token_id end() const noexcept { return end_; }             ///< one more than the largest id

 private:
  struct hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, token_id, hash, std::equal_to<>> ids_;
  std::unordered_map<token_id, std::string> tokens_;
  std::size_t longest_ = 0;
  token_id end_ = 0;
};

/// A set of strings as a trie of their bytes, to find those that start at a position of a text.
class byte_tree {
 public:
  static constexpr token_id none = no_token;

  /// If a string is added twice, the last value is used; an empty string is never found.
  void add(std::string_view word, token_id value) {
    if (word.empty()) return;
    std::uint32_t node = 0;
    for (auto const letter : word) {
      auto const byte = static_cast<unsigned char>(letter);
      auto const after = child(node, byte);
      if (after != 0) {
        node = after;
        continue;
      }
      auto const made = static_cast<std::uint32_t>(values_.size());
      values_.push_back(none);
      if (node == 0) {
        first_[byte] = made;
      } else {
        if (2 * ++held_ > slots_.size()) grow();
        slots_[index_of(key_of(node, byte))] = {key_of(node, byte), made};
      }
      node = made;
    }
    values_[node] = value;
  }

  /// Calls take(value, end) for each string that starts at a byte of a text, shortest first.
  template <class Take>
  void each_at(std::string_view text, std::size_t at, Take const& take) const {
    std::uint32_t node = 0;
    while (at < text.size()) {
      node = child(node, static_cast<unsigned char>(text[at++]));
      if (node == 0) return;
      if (values_[node] != none) take(values_[node], at);
    }
  }
  /// The value of this string, or none.
  [[nodiscard]] token_id find(std::string_view word) const {
    std::uint32_t node = 0;
    for (auto const letter : word) {
      node = child(node, static_cast<unsigned char>(letter));
      if (node == 0) return none;
    }
    return values_[node];
  }

 private:
  struct slot {
    std::uint64_t key = 0;
    std::uint32_t child = 0;  // 0: the slot is free
  };
  static std::uint64_t key_of(std::uint32_t node, unsigned char byte) noexcept {
    return std::uint64_t{node} << 8 | byte;
  }
  [[nodiscard]] std::uint32_t child(std::uint32_t node, unsigned char byte) const noexcept {
    return node == 0 ? first_[byte] : slots_[index_of(key_of(node, byte))].child;
  }
  [[nodiscard]] std::size_t index_of(std::uint64_t key) const noexcept {
    auto const mask = slots_.size() - 1;
    std::size_t index = mix(key) & mask;
    while (slots_[index].child != 0 && slots_[index].key != key) index = (index + 1) & mask;
    return index;
  }
  void grow() {
    auto const old = std::exchange(slots_, std::vector<slot>(slots_.size() * 2));
    for (auto const& each : old) {
      if (each.child != 0) slots_[index_of(each.key)] = each;
    }
  }

  std::vector<token_id> values_{none};  // of each node; 0 is the root
  std::array<std::uint32_t, 256> first_{};
  std::vector<slot> slots_ = std::vector<slot>(16);  // (node, byte) -> node
  std::size_t held_ = 0;
};

/// The merges of pairs of neighbouring tokens, with their ranks. Open addressing, because encoding spends most of its
/// time here.
class merge_table {
 public:
  struct merge {
    std::uint32_t rank = 0;
    token_id made = no_token;
  };

  /// @param most  number of merges that will be added.
  explicit merge_table(std::size_t most = 0) : slots_(std::bit_ceil(most * 2 + 2)) {}

  /// If a pair is added twice, the last merge is used.
  void add(token_id left, token_id right, merge what) {
    auto& slot = slots_[index_of(key_of(left, right))];
    slot = {key_of(left, right), what};
  }
  [[nodiscard]] merge find(token_id left, token_id right) const noexcept {
    return slots_[index_of(key_of(left, right))].what;
  }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  struct slot_type {
    std::uint64_t key = empty;
    merge what;
  };
  static std::uint64_t key_of(token_id left, token_id right) noexcept {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }
  [[nodiscard]] std::size_t index_of(std::uint64_t key) const noexcept {
    auto const mask = slots_.size() - 1;
    std::size_t index = mix(key) & mask;
    while (slots_[index].key != empty && slots_[index].key != key) index = (index + 1) & mask;
    return index;
  }
  std::vector<slot_type> slots_;
};

/// The name of a token for a single byte: <0x41>.
[[nodiscard]] inline std::string byte_name(unsigned char byte) {
  static constexpr std::string_view digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
}

/// Byte pair encoding: of all neighbours that can be merged, the pair with the lowest rank is merged, leftmost first,
/// until none is left.
///
/// Method   [Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", 2016]; a heap of
///          candidates over a linked list, O(n log n) for a word of n characters.
class byte_pairs {
 public:
  bool byte_level = false;  ///< words are bytes, each written as one of byte_characters
  bool byte_fallback = false;
  bool fuse_unknown = false;
  bool whole_words_first = false;  ///< ignore_merges
  token_id unknown = no_token;
  merge_table merges;

  /// Looks up the tokens of single bytes; call it when the vocabulary is complete.
  void prepare(vocabulary const& tokens) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::string name;
      unicode::append(name, byte_characters[byte]);
      of_byte_[byte] = tokens.id_of(name);
      fallback_[byte] = tokens.id_of(byte_name(static_cast<unsigned char>(byte)));
    }
  }

  /// Working memory for a word; reused for the next one.
  struct workspace {
    struct symbol {
      token_id id;
      std::uint32_t before, after;
      bool gone;
    };
    struct candidate {
      std::uint32_t rank, at;
      token_id made;
    };
    std::vector<symbol> symbols;
    std::vector<candidate> heap;
    std::string written;
  };

  /// Appends the tokens of a word.
  void encode(std::string_view word, vocabulary const& tokens, workspace& in, std::vector<token_id>& out) const {
    if (whole_words_first) {
      in.written.clear();
      for (auto const byte : word) unicode::append(in.written, byte_characters[static_cast<unsigned char>(byte)]);
      if (auto const id = tokens.id_of(byte_level ? std::string_view(in.written) : word); id != no_token)
        return out.push_back(id);
    }
    spell(word, tokens, in);
    merge_all(in);
    for (auto const& each : in.symbols) {
      if (!each.gone) out.push_back(each.id);
    }
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  /// Splits the word into characters.
  void spell(std::string_view word, vocabulary const& tokens, workspace& in) const {
    in.symbols.clear();
    auto const add = [&](token_id id) {
      auto const at = static_cast<std::uint32_t>(in.symbols.size());
      in.symbols.push_back({id, at == 0 ? none : at - 1, at + 1, false});
    };
    bool pending = false;  // an unknown character, with which the next one may be merged
    for (std::size_t at = 0; at < word.size();) {
      auto const bytes = byte_level ? 1 : unicode::character_at(word, at).bytes;
      auto const character = word.substr(at, bytes);
      at += bytes;
      auto const id = byte_level ? of_byte_[static_cast<unsigned char>(character[0])] : tokens.id_of(character);
      if (id != no_token) {
        if (std::exchange(pending, false)) add(unknown);
        add(id);
      } else if (byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) {
                   return fallback_[static_cast<unsigned char>(byte)] != no_token;
                 })) {
        for (auto const byte : character) add(fallback_[static_cast<unsigned char>(byte)]);
      } else if (unknown != no_token) {
        if (pending && !fuse_unknown) add(unknown);
        pending = true;
      }
    }
    if (pending) add(unknown);
    if (!in.symbols.empty()) in.symbols.back().after = none;
  }

  void merge_all(workspace& in) const {
    auto& symbols = in.symbols;
    auto& heap = in.heap;
    auto const later = [](auto const& a, auto const& b) { return std::pair(a.rank, a.at) > std::pair(b.rank, b.at); };
    auto const offer = [&](std::uint32_t at) {
      auto const after = symbols[at].after;
      if (after == none) return false;
      auto const found = merges.find(symbols[at].id, symbols[after].id);
      if (found.made == no_token) return false;
      heap.push_back({found.rank, at, found.made});
      return true;
    };
    heap.clear();
    for (std::uint32_t at = 0; at < symbols.size(); ++at) offer(at);
    std::make_heap(heap.begin(), heap.end(), later);
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), later);
      auto const best = heap.back();
      heap.pop_back();
      auto& left = symbols[best.at];
      if (left.gone || left.after == none) continue;
      auto& right = symbols[left.after];
      if (merges.find(left.id, right.id).made != best.made) continue;  // one of the two has been merged otherwise
      left.id = best.made;
      left.after = right.after;
      right.gone = true;
      if (left.after != none) symbols[left.after].before = best.at;
      if (left.before != none && offer(left.before)) std::push_heap(heap.begin(), heap.end(), later);
      if (offer(best.at)) std::push_heap(heap.begin(), heap.end(), later);
    }
  }

  std::array<token_id, 256> of_byte_{};
  std::array<token_id, 256> fallback_{};
};

/// Takes the longest token that a word begins with, then the longest that continues it; a word that cannot be divided
/// so is unknown as a whole.
///
/// Method   [Wu et al., "Google's Neural Machine Translation System", 2016], as BERT uses it.
class word_pieces {
 public:
  token_id unknown = no_token;
  std::string continuing = "##";
  std::size_t most_characters = 100;

  struct workspace {
    std::string candidate;
  };

  void encode(std::string_view word, vocabulary const& tokens, workspace& in, std::vector<token_id>& out) const {
    auto const characters = std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xc0) != 0x80; });
    if (static_cast<std::size_t>(characters) > most_characters) return out.push_back(unknown);
    auto const before = out.size();
    for (std::size_t start = 0; start < word.size();) {
      auto end = std::min(word.size(), start + tokens.longest());
      auto id = no_token;
      for (; end > start; --end) {
        if (end < word.size() && (word[end] & 0xc0) == 0x80) continue;  // in the middle of a character
        in.candidate.assign(start > 0 ? std::string_view(continuing) : std::string_view());
        id = tokens.id_of(in.candidate.append(word.substr(start, end - start)));
        if (id != no_token) break;
      }
      if (id == no_token) {
        out.resize(before);
        return out.push_back(unknown);
      }
      out.push_back(id);
      start = end;
    }
  }
};

/// Chooses the tokens with the largest sum of scores, which are logarithms of probabilities; a character without a
/// token has a lower score than all of them. Consecutive unknown characters are one token.
///
/// Method   [Kudo, "Subword Regularization", 2018], section 3.2; Viterbi's algorithm, O(n) steps of a token's length.
class unigram {
 public:
  bool byte_fallback = false;
  token_id unknown = no_token;

  /// Adds the token whose id is the number of tokens so far.
  void add(std::string_view token, double score) {
    pieces_.add(token, static_cast<token_id>(scores_.size()));
    scores_.push_back(score);
    least_ = std::min(least_, score);
  }

  /// Working memory for a word; reused for the next one.
  struct workspace {
    struct path {
      double score = 0;            ///< of the best tokens for the text before this byte
      std::uint32_t begin = none;  ///< the beginning of the last of them
      token_id id = no_token;
    };
    std::vector<path> paths;
    std::vector<std::uint32_t> ends;
  };

  void encode(std::string_view word, vocabulary const&, workspace& in, std::vector<token_id>& out) const {
    auto& paths = in.paths;
    paths.assign(word.size() + 1, {});
    for (std::size_t at = 0, next = 0; at < word.size(); at = next) {
      next = at + unicode::character_at(word, at).bytes;
      auto const before = paths[at].score;
      auto const offer = [&](std::size_t end, double score, token_id id) {
        auto& path = paths[end];
        if (path.begin == none || before + score > path.score)
          path = {before + score, static_cast<std::uint32_t>(at), id};
      };
      auto is_token = false;
      pieces_.each_at(word, at, [&](token_id id, std::size_t end) {
        offer(end, scores_[static_cast<std::size_t>(id)], id);
        is_token |= end == next;
      });
      if (is_token) continue;
      if (unknown == no_token)
        throw config_error(trireme::text("trireme::formats::tokenizer: no token stands for \"",
                                         word.substr(at, next - at), "\", and the file defines no unknown token"));
      offer(next, least_ - unknown_penalty, unknown);
    }
    in.ends.clear();
    for (auto end = static_cast<std::uint32_t>(word.size()); end > 0; end = paths[end].begin) in.ends.push_back(end);
    std::size_t unread = 0;  // the beginning of a run of unknown characters
    for (auto each = in.ends.rbegin(); each != in.ends.rend(); ++each) {
      auto const id = paths[*each].id;
      auto const joins = id == unknown && each + 1 != in.ends.rend() && paths[*(each + 1)].id == unknown;
      if (joins) continue;
      id == unknown ? add_unknown(word.substr(unread, *each - unread), out) : out.push_back(id);
      unread = *each;
    }
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};
  static constexpr double unknown_penalty = 10;

  /// Unknown characters together may still be a token, of a bad score.
  void add_unknown(std::string_view letters, std::vector<token_id>& out) const {
    if (auto const id = pieces_.find(letters); id != no_token) return out.push_back(id);
    if (byte_fallback) {
      auto const before = out.size();
      for (auto const letter : letters) {
        auto const byte = static_cast<unsigned char>(letter);
        auto const id = pieces_.find(byte_name(byte));
        if (id == no_token) {
          out.resize(before);
          return out.push_back(unknown);
        }
        out.push_back(id);
      }
      return;
    }
    out.push_back(unknown);
  }

  byte_tree pieces_;
  std::vector<double> scores_;
  double least_ = std::numeric_limits<double>::infinity();
};

/// The tokens of recent words; limited in size, and for one caller.
class word_cache {
 public:
  static constexpr std::size_t longest_word = 48;

  /// The tokens of a word; empty if it is not stored.
  [[nodiscard]] std::optional<std::span<token_id const>> find(std::string_view word) {
    if (word.size() > longest_word) return std::nullopt;
    auto const& found = slots_[index_of(hash_of(word), word)];
    if (found.length == 0) return std::nullopt;
    return std::span(ids_).subspan(found.first_id, found.ids);
  }
  void add(std::string_view word, std::span<token_id const> ids) {
    if (word.empty() || word.size() > longest_word || words_ >= most_words) return;
    if (2 * ++words_ > slots_.size()) grow();
    auto const hash = hash_of(word);
    slots_[index_of(hash, word)] = {hash, static_cast<std::uint32_t>(bytes_.size()),
                                    static_cast<std::uint32_t>(ids_.size()), static_cast<std::uint16_t>(word.size()),
                                    static_cast<std::uint16_t>(ids.size())};
    bytes_ += word;
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  static constexpr std::size_t most_words = std::size_t{1} << 18;
  struct slot {
    std::uint64_t hash = 0;
    std::uint32_t first_byte = 0, first_id = 0;
    std::uint16_t length = 0, ids = 0;
  };

  static std::uint64_t hash_of(std::string_view word) noexcept {
    std::uint64_t hash = word.size();
    for (; word.size() > 8; word.remove_prefix(8)) hash = mix(hash ^ eight_of(word, 8));
    return mix(hash ^ eight_of(word, word.size()));
  }
  static std::uint64_t eight_of(std::string_view word, std::size_t count) noexcept {
    std::uint64_t out = 0;
    std::memcpy(&out, word.data(), count);
    return out;
  }
  [[nodiscard]] std::size_t index_of(std::uint64_t hash, std::string_view word) const noexcept {
    auto const mask = slots_.size() - 1;
    for (std::size_t index = hash & mask;; index = (index + 1) & mask) {
      auto const& each = slots_[index];
      if (each.length == 0) return index;
      if (each.hash == hash && std::string_view(bytes_).substr(each.first_byte, each.length) == word) return index;
    }
  }
  void grow() {
    auto const old = std::exchange(slots_, std::vector<slot>(slots_.size() * 4));
    auto const mask = slots_.size() - 1;
    for (auto const& each : old) {
      if (each.length == 0) continue;
      auto index = static_cast<std::size_t>(each.hash) & mask;
      while (slots_[index].length != 0) index = (index + 1) & mask;
      slots_[index] = each;
    }
  }

  std::vector<slot> slots_ = std::vector<slot>(64);
  std::string bytes_;
  std::vector<token_id> ids_;
  std::size_t words_ = 0;
};

/// Tokens that are searched for in the text before any other rule: the longest match, from left to right.
class added_tokens {
 public:
  struct entry {
    std::string content;
    token_id id = no_token;
    bool single_word = false, left_strip = false, right_strip = false;
  };

  void add(entry what) {
    contents_.add(what.content, static_cast<token_id>(tokens_.size()));
    tokens_.push_back(std::move(what));
  }

  /// Calls between(piece) and found(id) for the pieces of a text and the tokens between them, in order.
  template <class Between, class Found>
  void split(std::string_view text, Between const& between, Found const& found) const {
    std::size_t begin = 0;
    if (tokens_.empty()) return between(text);
    for (std::size_t at = 0; at < text.size();) {
      auto match = byte_tree::none;
      contents_.each_at(text, at, [&](token_id which, std::size_t) { match = which; });
      if (match == byte_tree::none) {
        ++at;
        continue;
      }
      auto const& token = tokens_[static_cast<std::size_t>(match)];
      auto first = at, last = at + token.content.size();
      at = last;
      if (token.single_word && (ends_in_word(text.substr(0, first)) || begins_word(text.substr(last)))) continue;
      if (token.left_strip) first = std::max(begin, unicode::spaces_before(text, first));
      if (token.right_strip) last = unicode::spaces_behind(text, last);
      if (begin < first) between(text.substr(begin, first - begin));
      found(token.id);
      begin = last;
      at = std::max(at, last);
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  /// \w
  static bool in_word(std::uint32_t code) {
    auto const what = unicode::category(code);
    return (what >= UTF8PROC_CATEGORY_LU && what <= UTF8PROC_CATEGORY_ND) || what == UTF8PROC_CATEGORY_NL ||
           what == UTF8PROC_CATEGORY_PC || code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
           (code >= 0x1f130 && code <= 0x1f149) ||  // letters in circles, ...
           (code >= 0x1f150 && code <= 0x1f169) || (code >= 0x1f170 && code <= 0x1f189);
  }
  static bool ends_in_word(std::string_view text) {
    return !text.empty() && in_word(unicode::character_at(text, unicode::last_character(text)).code);
  }
  static bool begins_word(std::string_view text) {
    return !text.empty() && in_word(unicode::character_at(text, 0).code);
  }

  std::vector<entry> tokens_;
  byte_tree contents_;
};

}  // namespace trireme::formats::detail
