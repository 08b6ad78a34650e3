#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "../catch.hpp"
#include "../support/golden.hpp"
#include "../support/missing.hpp"
#include "trireme/core/text.hpp"
#include "trireme/formats/file.hpp"

/// The files that tests/golden/make_tokenizers.py writes.
namespace tokenizer_cases {

inline std::string golden_file(std::string const& name) { return golden::path("tokenizers/" + name); }

/// Reads one of its files, number by number.
class numbers {
 public:
  explicit numbers(std::string const& path) : bytes_(trireme::formats::read_text(path, std::uint64_t{1} << 32)) {}
  [[nodiscard]] bool done() const { return at_ == bytes_.size(); }
  std::uint32_t number() {
    std::uint32_t out = 0;
    std::memcpy(&out, letters(sizeof out).data(), sizeof out);
    return out;
  }
  std::vector<std::int32_t> ids(std::size_t count) {
    std::vector<std::int32_t> out(count);
    auto const from = letters(count * sizeof(std::int32_t));
    if (count > 0) std::memcpy(out.data(), from.data(), from.size());
    return out;
  }
  std::string_view letters(std::size_t count) {
    auto const out = std::string_view(bytes_).substr(at_, count);
    REQUIRE(out.size() == count);
    at_ += count;
    return out;
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

inline std::vector<std::string> inputs(std::string const& folder) {
  std::vector<std::string> out;
  for (numbers file(folder + "/inputs"); !file.done();) out.emplace_back(file.letters(file.number()));
  return out;
}

/// Compares with PATH.ids.
/// @param ties  whether the same tokens may be in another order.
template <class Tokenizer, class Encode>
void expect_equal(std::string const& path, std::vector<std::string> const& inputs, Tokenizer const& made,
                  Encode const& encode, bool ties = false) {
  std::size_t wrong = 0;
  numbers expected(path + ".ids");
  for (auto const& input : inputs) {
    auto const ids = expected.ids(expected.number());
    auto const decoded = expected.letters(expected.number());
    auto ours = encode(input);
    if (ties && std::is_permutation(ours.begin(), ours.end(), ids.begin(), ids.end())) ours = ids;
    if ((ours != ids || made.decode(ids) != decoded) && ++wrong <= 5) {
      auto const first = std::mismatch(ours.begin(), ours.end(), ids.begin(), ids.end()).first - ours.begin();
      INFO(path << " of " << input.substr(0, 500) << ": the tokens differ at " << first << " of " << ids.size());
      CHECK((ours == ids));  // double parentheses: the many numbers are not printed
      CHECK((made.decode(ids) == decoded));
    }
  }
  INFO(path);
  CHECK(wrong == 0);
  CHECK(expected.done());
}

/// Runs make_tokenizers.py, which writes a long text, random inputs and the packages' results for them; false if a
/// package is missing. TRIREME_TOKENIZER_BYTES and TRIREME_TOKENIZER_INPUTS set their number.
inline bool make(std::string const& folder, std::string const& options) {
  auto const given = [](char const* name, char const* otherwise) {
    auto const* const value = std::getenv(name);
    return value == nullptr ? otherwise : value;
  };
  auto const* const python = std::getenv("TRIREME_PYTHON");
  if (python == nullptr || *python == '\0') {
    missing("TRIREME_PYTHON is not set: the comparison was left out");
    return false;
  }
  auto const command =
      trireme::text("'", python, "' '", tests_folder(), "/golden/make_tokenizers.py' '", folder,
                    "' --vocabulary 4000 --seed 2 --text-bytes ", given("TRIREME_TOKENIZER_BYTES", "500000"),
                    " --inputs ", given("TRIREME_TOKENIZER_INPUTS", "2000"), " ", options);
  auto const status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) {
    missing("a package that it compares with is missing: the comparison was left out");
    return false;
  }
  REQUIRE(WEXITSTATUS(status) == 0);
  return true;
}

}  // namespace tokenizer_cases
