#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../vocabulary.hpp"
#include "tensors.hpp"

#include "trireme/data/chat_lines.hpp"
#include "trireme/serve/engine.hpp"
#include "trireme/serve/openai.hpp"

struct http_options {
  std::string host = "127.0.0.1";
  int port = 8000;                       ///< 0: any
  std::string certificate, private_key;  ///< PEM files; empty: no TLS
  trireme::serve::openai::limits limits{};
  trireme::serve::openai::api_keys keys{};
  trireme::data::chat_lines chat{};
  std::vector<std::int32_t> ends{};   ///< the model's end tokens
  std::size_t most_bytes = 4U << 20;  ///< of a request's body
  std::int64_t most_streams = 128;    ///< requests that are answered at a time
  std::int64_t context = 0;           ///< of the model
};

/// What answers: the engine of a language model, or a model of tensors.
struct served {
  trireme::serve::engine* engine = nullptr;
  tensor_model* tensors = nullptr;
};

/// Answers HTTP with what a model computes. Each connection has a thread and one request.
class http_server {
 public:
  /// @param model, words  outlive the server.
  http_server(served model, vocabulary const& words, http_options options);
  http_server(http_server const&) = delete;
  http_server& operator=(http_server const&) = delete;
  ~http_server();

  /// The port that is listened at.
  [[nodiscard]] int port() const noexcept;
  /// Requests that are answered now.
  [[nodiscard]] std::int64_t open() const noexcept;
  /// Accepts no more requests for answers: 503.
  void drain() noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};
