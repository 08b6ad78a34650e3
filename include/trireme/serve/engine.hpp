#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trireme/contract/paged_rows.hpp"
#include "trireme/core/error.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/core/text.hpp"
#include "trireme/ops/host.hpp"
#include "trireme/serve/decoder.hpp"
#include "trireme/serve/pages.hpp"
#include "trireme/serve/request.hpp"
#include "trireme/serve/sampler.hpp"

namespace trireme::serve {

/// Serves requests to a language model, many at once: one pass computes a row of each running answer and, as far as
/// tokens_in_pass allows, parts of prompts. Requests come and go with any pass.
///
/// Keys and values lie in pages of 16 positions. When there are none left, the request that came last loses its own and
/// is computed again later; its tokens stay the same. Prompts that begin like an earlier one take that one's pages,
/// unless `echo` asks for their log-probabilities.
///
/// Bytes    of the model's keys and values: engine_options::positions, in every attention layer.
/// Numerics the tokens of a request do not depend on what else is served, in host memory: every row of a pass has the
///          same bits, whatever else is in it.
/// Threads  submit(), cancel() and now() may be called by any thread, also in callbacks. Between start() and stop()
///          the decoder belongs to the engine's thread; work() and pass() compute in the caller's. stop() and drain()
///          are called by one thread at a time.
/// Method   [Yu et al., "Orca", 2022], passes over rows of many requests; pages: [Kwon et al., "Efficient memory
///          management for large language model serving with PagedAttention", 2023].
/// Errors   config_error for options that do not fit.
/// @example docs/serving.md
class engine {
 public:
  /// @param model  outlives the engine, and its parameters do not change meanwhile.
  explicit engine(decoder& model, engine_options const& options = {})
      : model_(model), options_(checked(model, options)), pages_(options_.positions / paged_rows::page) {
    told_.pages_total = pages_.count();
  }
  engine(engine const&) = delete;
  engine& operator=(engine const&) = delete;
  /// As stop().
  ~engine() { end(); }

  /// Accepts a request, whose events go to `tell`.
  /// Errors   config_error, one sentence, for a request that can never be served; overloaded_error where most_waiting
  ///          requests wait, or the engine drains or has stopped.
  request_id submit(request what, callback tell) {
    check(what);
    auto one = std::make_shared<sequence>();
    one->tokens = what.prompt;
    one->what = std::move(what);
    one->tell = std::move(tell);
    std::lock_guard const lock(mutex_);
    if (closed_) throw overloaded_error("trireme::serve::engine: it takes no more requests, as it is about to stop");
    if (told_.waiting >= options_.most_waiting) {
      throw overloaded_error(text("trireme::serve::engine: ", how_many(told_.waiting, "request"), " ",
                                  agreeing(told_.waiting, "waits", "wait"), " already; try again later"));
    }
    one->id = ++last_;
    ++told_.requests;
    ++told_.waiting;
    told_.prompt_tokens += static_cast<std::int64_t>(one->tokens.size());
    arrived_.push_back(one);
    changed_.notify_all();
    return one->id;
  }
  /// Ends a request before the next pass: its callback gets finish::cancelled. Does nothing if it has ended.
  void cancel(request_id which) {
    std::lock_guard const lock(mutex_);
    if (idle()) return;
    cancelled_.push_back(which);
    changed_.notify_all();
  }
  [[nodiscard]] statistics now() const {
    std::lock_guard const lock(mutex_);
    return told_;
  }
  [[nodiscard]] engine_options const& options() const noexcept { return options_; }

  /// Computes in a thread of its own from now on.
  void start() {
    begin();
    thread_ = std::thread([this] { run(); });
  }
  /// Computes in the caller's thread, until another thread (not a callback) calls stop().
  void work() {
    begin();
    run();
  }
  /// Takes no more requests, and returns when all have ended.
  void drain() {
    expect_other_thread("drain");
    {
      std::unique_lock lock(mutex_);
      closed_ = true;
      changed_.wait(lock, [&] { return !works_ || idle(); });
      if (works_ || idle()) return;
    }
    while (pass()) {
    }
  }
  /// Cancels all requests that there are, and ends the thread.
  void stop() {
    expect_other_thread("stop");
    end();
  }

  /// One pass over the requests that there are, in the caller's thread, of an engine that was not started. Returns
  /// whether there is more to do.
  bool pass() {
    take_news();
    plan();
    if (!tokens_.empty()) compute();
    count();
    std::lock_guard const lock(mutex_);
    return !idle();
  }

 private:
  struct sequence {
    request_id id = 0;
    request what;
    callback tell;
    std::vector<std::int32_t> tokens;  // of the prompt, then those of the answer
    std::int64_t computed = 0;         // positions whose keys and values are in pages
    std::int64_t in_pass = 0;          // rows of the next pass
    std::int64_t scored = 0;           // tokens of the prompt that were told
    std::vector<page_list::page> pages;
    bool ended = false;

    [[nodiscard]] std::int64_t length() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::int64_t prompt() const noexcept { return static_cast<std::int64_t>(what.prompt.size()); }
    [[nodiscard]] std::int64_t generated() const noexcept { return length() - prompt(); }
    // Positions that are to be computed before the next token: the last one of a prompt that is only scored is not.
    [[nodiscard]] std::int64_t needed() const noexcept { return length() - (what.max_tokens == 0 ? 1 : 0); }
    [[nodiscard]] std::int64_t left() const noexcept { return needed() - computed; }
  };
  using pointer = std::shared_ptr<sequence>;

  static constexpr std::int64_t page = paged_rows::page;

  static engine_options checked(decoder const& model, engine_options options) {
    if (options.context == 0) options.context = model.context();
    if (options.known == 0) options.known = model.vocabulary();
    if (options.positions == 0) {
      constexpr std::int64_t contexts = 8, many = 16384;
      auto const one = paged_rows::pages_for(options.context) * page;
      options.positions = std::max(one, std::min(contexts * one, many));
    }
    options.positions = options.positions / page * page;
    bool const fits = options.context > 0 && options.context <= model.context() && options.known > 0 &&
                      options.known <= model.vocabulary() && options.positions >= page && options.most_running > 0 &&
                      options.most_waiting > 0 && options.tokens_in_pass >= options.most_running;
    if (fits) return options;
    throw config_error(text("trireme::serve::engine: a context of ", options.context, " of the model's ",
                            model.context(), ", ", options.known, " known tokens of ", model.vocabulary(), ", ",
                            options.positions, " positions, ", options.most_running, " requests at a time, ",
                            options.most_waiting, " waiting, ", options.tokens_in_pass,
                            " tokens in a pass; all are above 0, context and tokens are the model's at most, positions "
                            "are 16 at least, and a pass has a token for each request"));
  }
  void check(request const& what) const {
    auto const refuse = [](auto const&... why) { throw config_error(text("trireme::serve::request: ", why...)); };
    if (what.prompt.empty()) refuse("the prompt has no tokens; give it one at least");
    auto const length = static_cast<std::int64_t>(what.prompt.size());
    for (auto const token : what.prompt) {
      if (token < 0 || token >= model_.vocabulary())
        refuse("the prompt has a token ", token, ", but the model's are 0 to ", model_.vocabulary() - 1);
    }
    if (length > options_.context) {
      refuse("the prompt has ", how_many(length, "token"), ", but the model's context is ", options_.context,
             "; shorten it");
    }
    if (what.max_tokens < 0) refuse("max_tokens is ", what.max_tokens, "; it is 0 or more");
    if (auto const all = paged_rows::pages_for(positions_of(what)) * page; all > options_.positions) {
      refuse("prompt and answer may take ", all, " positions, but the engine has ", options_.positions,
             " for all requests; ask for fewer tokens, or give the engine more positions");
    }
    constexpr auto most = std::numeric_limits<double>::max();
    if (!(what.temperature >= 0 && what.temperature <= most))
      refuse("temperature is ", what.temperature, "; it is finite, and 0 or more");
    if (what.top_k < 0) refuse("top_k is ", what.top_k, "; it is 0 (all tokens) or more");
    if (!(what.top_p > 0 && what.top_p <= 1)) refuse("top_p is ", what.top_p, "; it is in (0, 1]");
    if (!(what.min_p >= 0 && what.min_p <= 1)) refuse("min_p is ", what.min_p, "; it is in [0, 1]");
    if (!(what.repetition_penalty > 0 && what.repetition_penalty <= most))
      refuse("repetition_penalty is ", what.repetition_penalty, "; it is finite and above 0");
    if (what.logprobs < 0) refuse("logprobs is ", what.logprobs, "; it is 0 or more");
    for (auto const& [token, bias] : what.logit_bias) {
      if (token < 0 || token >= model_.vocabulary())
        refuse("logit_bias has a token ", token, ", but the model's are 0 to ", model_.vocabulary() - 1);
      if (!std::isfinite(bias)) refuse("the logit_bias of token ", token, " is ", bias, "; it is finite");
    }
  }
  // Most positions that are computed for a request: its last token's never is.
  [[nodiscard]] std::int64_t positions_of(request const& what) const noexcept {
    auto const length = static_cast<std::int64_t>(what.prompt.size());
    auto const room = options_.context - length + 1;
    return length - 1 + std::min(std::max<std::int64_t>(1, what.max_tokens), room);
  }

  void begin() {
    std::lock_guard const lock(mutex_);
    if (works_) throw config_error("trireme::serve::engine: it computes already; call start() or work() once");
    if (closed_) throw config_error("trireme::serve::engine: it has stopped; make another one");
    works_ = true;
  }
  void expect_other_thread(char const* who) const {
    {
      std::lock_guard const lock(mutex_);
      if (std::this_thread::get_id() != worker_) return;
    }
    throw config_error(text("trireme::serve::engine::", who, ": a callback called it; call it in another thread"));
  }
  // Whether there is nothing to do; mutex_ is locked.
  [[nodiscard]] bool idle() const { return arrived_.empty() && told_.running == 0 && told_.waiting == 0; }

  void run() {
    std::unique_lock lock(mutex_);
    worker_ = std::this_thread::get_id();
    while (!stopping_) {
      auto const busy = changed_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_ || !idle(); });
      if (stopping_) break;
      lock.unlock();
      try {
        if (busy)
          pass();
        else
          model_.idle();
      } catch (std::exception const& problem) {  // the memory is used up, or a rank has failed
        end_all(finish::error, problem.what());
      }
      lock.lock();
    }
    works_ = false;
    worker_ = {};
    changed_.notify_all();
  }
  void end() {
    {
      std::lock_guard const lock(mutex_);
      closed_ = stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !works_; });
    }
    take_news();
    end_all(finish::cancelled);
  }
  void end_all(finish why, std::string const& problem = {}) {
    auto rest = running_;
    rest.insert(rest.end(), waiting_.begin(), waiting_.end());
    for (auto const& each : rest) finish_without_token(*each, why, problem);
    count();
  }

  // What other threads have asked for since the last pass.
  void take_news() {
    std::vector<request_id> cancelled;
    {
      std::lock_guard const lock(mutex_);
      waiting_.insert(waiting_.end(), arrived_.begin(), arrived_.end());
      arrived_.clear();
      cancelled.swap(cancelled_);
    }
    if (cancelled.empty()) return;
    std::sort(cancelled.begin(), cancelled.end());
    auto const end_some = [&](auto const& list) {
      for (auto const& each : list) {
        if (std::binary_search(cancelled.begin(), cancelled.end(), each->id))
          finish_without_token(*each, finish::cancelled);
      }
    };
    end_some(running_);
    end_some(waiting_);
    drop_ended();
  }
  void drop_ended() {
    std::erase_if(running_, [](pointer const& each) { return each->ended; });
    std::erase_if(waiting_, [](pointer const& each) { return each->ended; });
  }
  void count() {
    drop_ended();
    std::lock_guard const lock(mutex_);
    told_.running = static_cast<std::int64_t>(running_.size());
    told_.waiting = static_cast<std::int64_t>(waiting_.size() + arrived_.size());
    told_.pages_used = pages_.used();
    told_.tokens_generated += std::exchange(more_.tokens_generated, 0);
    told_.prompt_tokens_reused += std::exchange(more_.prompt_tokens_reused, 0);
    told_.rows_computed += std::exchange(more_.rows_computed, 0);
    told_.passes += std::exchange(more_.passes, 0);
    told_.cancelled += std::exchange(more_.cancelled, 0);
    told_.errors += std::exchange(more_.errors, 0);
    told_.preemptions += std::exchange(more_.preemptions, 0);
    changed_.notify_all();
  }

  // ---- which rows are computed

  // The rows of the next pass: those of running answers, then parts of prompts, oldest requests first.
  void plan() {
    auto left = options_.tokens_in_pass;
    for (auto const& each : running_) each->in_pass = 0;
    for (bool const prompts : {false, true}) {
      for (std::size_t i = 0; i < running_.size() && left > 0; ++i) {  // later ones may lose their pages meanwhile
        auto& one = *running_[i];
        if ((one.left() > 1) != prompts || one.in_pass > 0) continue;
        left -= give_rows(i, std::min(left, one.left()));
      }
    }
    while (left > 0 && !waiting_.empty() && static_cast<std::int64_t>(running_.size()) < options_.most_running) {
      auto const one = waiting_.front();
      if (one->what.max_tokens == 0 && one->needed() == 0) {  // one token, which nothing is before
        waiting_.pop_front();
        tell_first(*one);
        if (!one->ended) finish_without_token(*one, finish::length);
        continue;
      }
      begin_with_known_pages(*one);
      // A prompt begins when all of it finds room, and running answers can go on, so that they do not take each other's
      // pages.
      auto const more = paged_rows::pages_for(one->needed()) - static_cast<std::int64_t>(one->pages.size());
      if (more + static_cast<std::int64_t>(running_.size()) > pages_.free()) {
        give_back_pages(*one);
        break;
      }
      waiting_.pop_front();
      running_.push_back(one);
      more_.prompt_tokens_reused += one->computed;
      one->in_pass = 0;
      left -= give_rows(running_.size() - 1, std::min(left, one->left()));
    }
    make_rows();
  }
  // Gives a running request as many rows as it finds pages for, and returns their number. Requests that came later lose
  // theirs; the request itself, if it is the last and still has none.
  std::int64_t give_rows(std::size_t which, std::int64_t wanted) {
    auto& one = *running_[which];
    auto const room = [&] { return static_cast<std::int64_t>(one.pages.size()) * page - one.computed; };
    while (room() < wanted) {
      if (auto const next = pages_.take()) {
        one.pages.push_back(*next);
      } else if (room() > 0) {
        break;
      } else if (which + 1 < running_.size()) {
        preempt_last();
      } else {
        preempt_last();
        return 0;
      }
    }
    one.in_pass = std::min(wanted, room());
    return one.in_pass;
  }
  void preempt_last() {
    auto const last = running_.back();
    running_.pop_back();
    give_back_pages(*last);
    waiting_.push_front(last);
    ++more_.preemptions;
  }
  void give_back_pages(sequence& one) {
    while (!one.pages.empty()) {
      pages_.give_back(one.pages.back());
      one.pages.pop_back();
    }
    one.computed = one.in_pass = 0;
  }
  [[nodiscard]] static page_list::tokens tokens_of(sequence const& one, std::int64_t which) {
    page_list::tokens out{};
    std::copy_n(one.tokens.begin() + which * page, page, out.begin());
    return out;
  }
  // Pages that others, or it itself before it lost them, have computed.
  void begin_with_known_pages(sequence& one) {
    if (one.what.echo && one.scored < one.prompt()) return;
    std::uint64_t before = 0;
    while (one.computed + page < one.needed()) {
      auto const found = pages_.find(before, tokens_of(one, one.computed / page));
      if (!found) break;
      one.pages.push_back(*found);
      before = found->content;
      one.computed += page;
    }
  }
  void make_rows() {
    tokens_.clear();
    places_.clear();
    page_numbers_.clear();
    outputs_.clear();
    for (auto const& each : running_) {
      auto& one = *each;
      if (one.in_pass == 0) continue;
      auto const first_page = static_cast<std::int64_t>(page_numbers_.size());
      for (auto const& every : one.pages) page_numbers_.push_back(every.number);
      for (auto at = one.computed; at < one.computed + one.in_pass; ++at) {
        if (is_told(one, at)) outputs_.push_back(static_cast<std::int64_t>(tokens_.size()));
        tokens_.push_back(one.tokens[static_cast<std::size_t>(at)]);
        places_.push_back({at, first_page});
      }
    }
  }
  // Whether somebody wants to know what follows this position: a token to be sampled, or one of the prompt to be
  // scored.
  [[nodiscard]] static bool is_told(sequence const& one, std::int64_t at) noexcept {
    if (at + 1 == one.length()) return true;
    return one.what.echo && at + 1 < one.prompt() && at + 1 >= one.scored;
  }

  // ---- a pass

  void compute() {
    auto const part = running_;
    tensor<float> logits;
    try {
      logits = model_.compute(tokens_, {places_, page_numbers_, pages_.count(), outputs_});
    } catch (std::exception const& problem) {
      for (auto const& each : part) {
        if (each->in_pass > 0) finish_without_token(*each, finish::error, problem.what());
      }
      return;
    }
    ++more_.passes;
    more_.rows_computed += static_cast<std::int64_t>(tokens_.size());
    auto const outputs = static_cast<std::int64_t>(outputs_.size()), words = model_.vocabulary();
    auto const rows = logits.view().reshaped({outputs, words});
    logs_of_sums(rows);
    std::int64_t output = 0;
    for (auto const& each : part) {
      auto& one = *each;
      auto const first = one.computed, end = first + one.in_pass;  // both are 0 when it has ended
      for (auto at = first; at < end; ++at) {
        bool const told = is_told(one, at);
        if (told && !one.ended) tell_row(one, at, rows.rows(output, 1).span(), logs_[static_cast<std::size_t>(output)]);
        if (told) ++output;
      }
      if (one.ended) continue;
      one.computed = end;
      remember_pages(one, first);
      if (one.what.max_tokens == 0 && one.left() == 0) finish_without_token(one, finish::length);
    }
  }
  // The logarithm of each row's sum of exponentials.
  void logs_of_sums(tensor_view<float> rows) {
    auto const n = rows.extent(0);
    logs_.assign(static_cast<std::size_t>(n), 0);
    if (n == 0) return;
    tensor<float> peaks({n}), masses({n}), chosen({n});
    std::vector<std::int32_t> const any(static_cast<std::size_t>(n), 0);
    using kernels = ops::on<host>;
    kernels::row_peaks(rows, peaks.view());
    kernels::row_masses(rows, tensor_view<std::int32_t const>(any.data(), {n}), {0, rows.extent(1)}, peaks.view(),
                        masses.view(), chosen.view());
    for (std::int64_t i = 0; i < n; ++i) {
      logs_[static_cast<std::size_t>(i)] = static_cast<double>(peaks.span()[static_cast<std::size_t>(i)]) +
                                           std::log(static_cast<double>(masses.span()[static_cast<std::size_t>(i)]));
    }
  }
  void remember_pages(sequence& one, std::int64_t first) {
    for (auto which = first / page; (which + 1) * page <= one.computed; ++which) {
      auto const at = static_cast<std::size_t>(which);
      pages_.fill(one.pages[at], which == 0 ? 0 : one.pages[at - 1].content, tokens_of(one, which));
    }
  }

  // ---- what is told

  void tell_row(sequence& one, std::int64_t at, std::span<float> logits, double log_of_sum) {
    if (at + 1 < one.prompt() || one.what.max_tokens == 0) {
      tell_first(one);
      if (!one.ended && at + 1 < one.prompt()) tell_scored(one, logits, log_of_sum);
      return;
    }
    if (one.what.echo) tell_first(one);
    if (one.ended) return;
    event out{.request = one.id};
    out.top = most_probable(logits, one.what.logprobs, log_of_sum);
    try {
      auto const sampled = logits.first(static_cast<std::size_t>(options_.known));
      original_.assign(logits.begin(), logits.end());
      out.token = sampler_(sampled, one.what, one.tokens, static_cast<std::uint64_t>(one.generated()));
    } catch (std::exception const& problem) {
      return finish_without_token(one, finish::error, problem.what());
    }
    out.logprob = logprob(original_, out.token, log_of_sum);
    one.tokens.push_back(out.token);
    ++more_.tokens_generated;
    auto const& stop = one.what.stop;
    if (std::find(stop.begin(), stop.end(), out.token) != stop.end())
      out.finish = finish::stop;
    else if (one.generated() == one.what.max_tokens || one.length() > options_.context)
      out.finish = finish::length;
    tell(one, out);
  }
  [[nodiscard]] static float logprob(std::span<float const> logits, std::int32_t token, double log_of_sum) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_of_sum);
  }
  // The prompt's first token, of which nothing is known.
  void tell_first(sequence& one) {
    if (!one.what.echo || one.scored > 0) return;
    one.scored = 1;
    tell(one, {.request = one.id,
               .token = one.tokens[0],
               .logprob = std::numeric_limits<float>::quiet_NaN(),
               .in_prompt = true});
  }
  // The next token of the prompt, from the logits before it.
  void tell_scored(sequence& one, std::span<float const> logits, double log_of_sum) {
    event out{.request = one.id, .token = one.tokens[static_cast<std::size_t>(one.scored++)], .in_prompt = true};
    out.logprob = logprob(logits, out.token, log_of_sum);
    out.top = most_probable(logits, one.what.logprobs, log_of_sum);
    tell(one, out);
  }
  void finish_without_token(sequence& one, finish why, std::string problem = {}) {
    if (one.ended) return;
    event out{.request = one.id, .finish = why, .problem = std::move(problem)};
    tell(one, out);
  }
  void tell(sequence& one, event const& what) {
    auto why = what.finish;
    try {
      if (one.tell) one.tell(what);
    } catch (...) {
      if (why == finish::none) why = finish::cancelled;
    }
    if (why == finish::none) return;
    one.ended = true;
    give_back_pages(one);
    if (why == finish::cancelled) ++more_.cancelled;
    if (why == finish::error) ++more_.errors;
  }

  decoder& model_;
  engine_options const options_;
  page_list pages_;
  sampler sampler_;

  // Of the thread that computes.
  std::vector<pointer> running_;  // oldest first
  std::deque<pointer> waiting_;
  std::vector<std::int32_t> tokens_, page_numbers_;  // of the next pass
  std::vector<paged_rows::place> places_;
  std::vector<std::int64_t> outputs_;
  std::vector<double> logs_;
  std::vector<float> original_;
  statistics more_;  // since the last count()

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<pointer> arrived_;
  std::vector<request_id> cancelled_;
  statistics told_;
  request_id last_ = 0;
  bool closed_ = false, stopping_ = false;
  bool works_ = false;      // start() or work() was called, and its thread has not ended
  std::thread::id worker_;  // that thread
  std::thread thread_;
};

}  // namespace trireme::serve
