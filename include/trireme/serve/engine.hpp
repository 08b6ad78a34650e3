#pragma once

#include <cstdint>

#include "trireme/serve/request.hpp"

namespace trireme::serve {

/// A decoder, of which an engine computes many sequences at once.
class decoder {
 public:
  virtual ~decoder() = default;
  [[nodiscard]] virtual std::int64_t vocabulary() const = 0;
  [[nodiscard]] virtual std::int64_t context() const = 0;
};

/// The decoder of a trainer, which outlives it: serve::decoder_of(trainer, model.context).
///
/// Serves requests. start() begins a thread that computes; submit(), cancel() and now() may be called by any thread,
/// also from callbacks.
class engine {
 public:
  /// @param model  outlives the engine.
  explicit engine(decoder& model, engine_options const& options = {});
  ~engine();  ///< as stop()
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;

  /// Accepts a request. Errors: config_error for a request that is wrong (HTTP 400), overloaded_error (429) where too
  /// many wait or the engine drains or has stopped.
  request_id submit(request what, callback tell);
  /// Ends a request, before the next pass: its callback gets finish::cancelled. Of one that has ended: nothing.
  void cancel(request_id which);
  [[nodiscard]] statistics now() const;

  void start();  ///< computes in a thread of its own from now on
  void drain();  ///< takes no more requests; returns when all have ended
  void stop();   ///< cancels what there is, and ends the thread
};

}  // namespace trireme::serve
