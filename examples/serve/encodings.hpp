#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "../vocabulary.hpp"
#include "encoder.hpp"

#include "trireme/serve/kserve.hpp"
#include "trireme/serve/openai.hpp"

/// How the vectors of a text's tokens become one.
enum class pooling { mean, first };
/// As sentence-transformers' files in a directory say; without them, the mean.
pooling pooling_in(std::string const& directory);

/// Answers of a BERT, without HTTP. Any thread may ask; one request is computed at a time.
class encodings {
 public:
  /// @param model, words  outlive it.
  encodings(text_encoder& model, vocabulary const& words, std::string name, pooling how);

  /// The response to /v1/embeddings: vectors of length 1.
  /// Errors   refusal; also the next one's.
  [[nodiscard]] std::string embeddings(std::string_view body);
  /// The response to /v2/models/NAME/infer.
  [[nodiscard]] std::string infer(std::string_view body);
  /// That to GET /v2/models/NAME.
  [[nodiscard]] std::string metadata() const;
  /// Whether it has embeddings: a classifier has none.
  [[nodiscard]] bool embeds() const noexcept { return model_.classes == 0; }
  [[nodiscard]] trireme::serve::statistics now() const;

 private:
  using tokens = std::vector<std::int32_t>;
  [[nodiscard]] tokens encode(std::string_view text, bool specials, char const* field) const;
  void expect_length(std::size_t length, char const* field) const;
  /// Outputs of rows, all of a length.
  [[nodiscard]] trireme::tensor<float> compute(tokens const& rows, std::int64_t length);
  /// Padded rows, and their length.
  [[nodiscard]] std::pair<tokens, std::int64_t> rows_of(trireme::serve::kserve::asked const& what) const;
  [[nodiscard]] std::pair<tokens, std::int64_t> rows_of_ids(trireme::serve::kserve::asked const& what) const;

  text_encoder& model_;
  vocabulary const& words_;
  std::string const name_;
  pooling const how_;
  trireme::serve::openai::limits limits_;
  std::mutex mutable computing_, counting_;
  trireme::serve::statistics told_;
};
