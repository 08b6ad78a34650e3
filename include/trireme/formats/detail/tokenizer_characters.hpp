#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::formats::detail::unicode {

/// Characters that are missing in an older Unicode version, or have other properties there.
struct newer_range {
  std::uint32_t first, last;
  std::string_view category;
  std::string_view properties{};  ///< a: Alphabetic, l: Lowercase, u: Uppercase, e: Emoji, i: Ideographic
  std::string_view script{};      ///< in lower case; only for scripts that Unicode 14 has
  std::string_view before{"Cn"};  ///< the category in Unicode 14
  std::string_view properties_before{};
};

/// The differences between Unicode 16, whose properties the package tokenizers uses, and Unicode 14, that of PCRE2
/// 10.40 to 10.42 (utf8proc 2.8 has 15): sorted. Found by comparing both for every character.
// clang-format off
inline constexpr std::array newer_ranges = std::to_array<newer_range>({
    {0x363, 0x36f, "Mn", "a", "", "Mn"}, {0x897, 0x897, "Mn", "a", "arabic"}, {0xc04, 0xc04, "Mn", "a", "", "Mn"},
    {0xcf3, 0xcf3, "Mc", "a", "kannada"}, {0xece, 0xece, "Mn", "", "lao"}, {0xf82, 0xf83, "Mn", "a", "", "Mn"},
    {0x10fc, 0x10fc, "Lm", "al", "", "Lm", "a"}, {0x1b4e, 0x1b4f, "Po", "", "balinese"},
    {0x1b7f, 0x1b7f, "Po", "", "balinese"}, {0x1c89, 0x1c89, "Lu", "au", "cyrillic"},
    {0x1c8a, 0x1c8a, "Ll", "al", "cyrillic"}, {0x1dd3, 0x1de6, "Mn", "a", "", "Mn"},
    {0x2427, 0x2429, "So", "", "common"}, {0x2ffc, 0x2fff, "So", "", "common"}, {0x31e4, 0x31e5, "So", "", "common"},
    {0x31ef, 0x31ef, "So", "", "common"}, {0xa7cb, 0xa7cc, "Lu", "au", "latin"}, {0xa7cd, 0xa7cd, "Ll", "al", "latin"},
    {0xa7da, 0xa7da, "Lu", "au", "latin"}, {0xa7db, 0xa7db, "Ll", "al", "latin"}, {0xa7dc, 0xa7dc, "Lu", "au", "latin"},
    {0xa7f2, 0xa7f4, "Lm", "al", "", "Lm", "a"}, {0xab69, 0xab69, "Lm", "al", "", "Lm", "a"},
    {0x105c0, 0x105f3, "Lo", "a"}, {0x10d40, 0x10d49, "Nd"}, {0x10d4a, 0x10d4d, "Lo", "a"},
    {0x10d4e, 0x10d4e, "Lm", "a"}, {0x10d4f, 0x10d4f, "Lo", "a"}, {0x10d50, 0x10d65, "Lu", "au"},
    {0x10d69, 0x10d69, "Mn", "a"}, {0x10d6a, 0x10d6d, "Mn"}, {0x10d6e, 0x10d6e, "Pd"}, {0x10d6f, 0x10d6f, "Lm", "a"},
    {0x10d70, 0x10d85, "Ll", "al"}, {0x10d8e, 0x10d8f, "Sm"}, {0x10ec2, 0x10ec4, "Lo", "a", "arabic"},
    {0x10efc, 0x10efc, "Mn", "a", "arabic"}, {0x10efd, 0x10eff, "Mn", "", "arabic"},
    {0x11080, 0x11081, "Mn", "a", "", "Mn"}, {0x1123f, 0x11240, "Lo", "a", "khojki"},
    {0x11241, 0x11241, "Mn", "a", "khojki"}, {0x11380, 0x11389, "Lo", "a"}, {0x1138b, 0x1138b, "Lo", "a"},
    {0x1138e, 0x1138e, "Lo", "a"}, {0x11390, 0x113b5, "Lo", "a"}, {0x113b7, 0x113b7, "Lo", "a"},
    {0x113b8, 0x113ba, "Mc", "a"}, {0x113bb, 0x113c0, "Mn", "a"}, {0x113c2, 0x113c2, "Mc", "a"},
    {0x113c5, 0x113c5, "Mc", "a"}, {0x113c7, 0x113ca, "Mc", "a"}, {0x113cc, 0x113cd, "Mc", "a"},
    {0x113ce, 0x113ce, "Mn"}, {0x113cf, 0x113cf, "Mc"}, {0x113d0, 0x113d0, "Mn"}, {0x113d1, 0x113d1, "Lo", "a"},
    {0x113d2, 0x113d2, "Mn"}, {0x113d3, 0x113d3, "Lo", "a"}, {0x113d4, 0x113d5, "Po"}, {0x113d7, 0x113d8, "Po"},
    {0x113e1, 0x113e2, "Mn"}, {0x116d0, 0x116e3, "Nd", "", "myanmar"}, {0x1171e, 0x1171e, "Mc", "a", "", "Mn", "a"},
    {0x11b00, 0x11b09, "Po", "", "devanagari"}, {0x11bc0, 0x11be0, "Lo", "a"}, {0x11be1, 0x11be1, "Po"},
    {0x11bf0, 0x11bf9, "Nd"}, {0x11f00, 0x11f01, "Mn", "a"}, {0x11f02, 0x11f02, "Lo", "a"},
    {0x11f03, 0x11f03, "Mc", "a"}, {0x11f04, 0x11f10, "Lo", "a"}, {0x11f12, 0x11f33, "Lo", "a"},
    {0x11f34, 0x11f35, "Mc", "a"}, {0x11f36, 0x11f3a, "Mn", "a"}, {0x11f3e, 0x11f3f, "Mc", "a"},
    {0x11f40, 0x11f40, "Mn", "a"}, {0x11f41, 0x11f41, "Mc"}, {0x11f42, 0x11f42, "Mn"}, {0x11f43, 0x11f4f, "Po"},
    {0x11f50, 0x11f59, "Nd"}, {0x11f5a, 0x11f5a, "Mn"}, {0x1342f, 0x1342f, "Lo", "a", "egyptianhieroglyphs"},
    {0x13439, 0x1343f, "Cf", "", "egyptianhieroglyphs"}, {0x13440, 0x13440, "Mn", "", "egyptianhieroglyphs"},
    {0x13441, 0x13446, "Lo", "a", "egyptianhieroglyphs"}, {0x13447, 0x13455, "Mn", "", "egyptianhieroglyphs"},
    {0x13460, 0x143fa, "Lo", "a", "egyptianhieroglyphs"}, {0x16100, 0x1611d, "Lo", "a"}, {0x1611e, 0x16129, "Mn", "a"},
    {0x1612a, 0x1612c, "Mc", "a"}, {0x1612d, 0x1612e, "Mn", "a"}, {0x1612f, 0x1612f, "Mn"}, {0x16130, 0x16139, "Nd"},
    {0x16d40, 0x16d42, "Lm", "a"}, {0x16d43, 0x16d6a, "Lo", "a"}, {0x16d6b, 0x16d6c, "Lm", "a"},
    {0x16d6d, 0x16d6f, "Po"}, {0x16d70, 0x16d79, "Nd"}, {0x18cff, 0x18cff, "Lo", "ai", "khitansmallscript"},
    {0x1b132, 0x1b132, "Lo", "a", "hiragana"}, {0x1b155, 0x1b155, "Lo", "a", "katakana"},
    {0x1cc00, 0x1ccef, "So", "", "common"}, {0x1ccf0, 0x1ccf9, "Nd", "", "common"},
    {0x1cd00, 0x1ceb3, "So", "", "common"}, {0x1d2c0, 0x1d2d3, "No", "", "common"},
    {0x1df25, 0x1df2a, "Ll", "al", "latin"}, {0x1e030, 0x1e06d, "Lm", "al", "cyrillic"},
    {0x1e08f, 0x1e08f, "Mn", "a", "cyrillic"}, {0x1e4d0, 0x1e4ea, "Lo", "a"}, {0x1e4eb, 0x1e4eb, "Lm", "a"},
    {0x1e4ec, 0x1e4ef, "Mn"}, {0x1e4f0, 0x1e4f9, "Nd"}, {0x1e5d0, 0x1e5ed, "Lo", "a"}, {0x1e5ee, 0x1e5ef, "Mn"},
    {0x1e5f0, 0x1e5f0, "Lo", "a"}, {0x1e5f1, 0x1e5fa, "Nd"}, {0x1e5ff, 0x1e5ff, "Po"},
    {0x1f6dc, 0x1f6dc, "So", "e", "common"}, {0x1f774, 0x1f776, "So", "", "common"},
    {0x1f77b, 0x1f77f, "So", "", "common"}, {0x1f7d9, 0x1f7d9, "So", "", "common"},
    {0x1f8b2, 0x1f8bb, "So", "", "common"}, {0x1f8c0, 0x1f8c1, "So", "", "common"},
    {0x1fa75, 0x1fa77, "So", "e", "common"}, {0x1fa87, 0x1fa89, "So", "e", "common"},
    {0x1fa8f, 0x1fa8f, "So", "e", "common"}, {0x1faad, 0x1faaf, "So", "e", "common"},
    {0x1fabb, 0x1fabf, "So", "e", "common"}, {0x1fac6, 0x1fac6, "So", "e", "common"},
    {0x1face, 0x1facf, "So", "e", "common"}, {0x1fada, 0x1fadc, "So", "e", "common"},
    {0x1fadf, 0x1fadf, "So", "e", "common"}, {0x1fae8, 0x1fae9, "So", "e", "common"},
    {0x1faf7, 0x1faf8, "So", "e", "common"}, {0x1fbcb, 0x1fbef, "So", "", "common"},
    {0x2b739, 0x2b739, "Lo", "ai", "han"}, {0x2ebf0, 0x2ee5d, "Lo", "ai", "han"}, {0x31350, 0x323af, "Lo", "ai", "han"},
});
// clang-format on

/// The row of a character, or nullptr.
[[nodiscard]] constexpr newer_range const* find_newer(std::uint32_t code) noexcept {
  auto const* const end = newer_ranges.data() + newer_ranges.size();
  auto const* const found =
      std::partition_point(newer_ranges.data(), end, [&](newer_range const& each) { return each.last < code; });
  return found == end || found->first > code ? nullptr : found;
}

}  // namespace trireme::formats::detail::unicode
