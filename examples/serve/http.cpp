#include "http.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <sys/socket.h>

#include <httplib.h>

#include "page.hpp"

#include "trireme/core/text.hpp"
#include "trireme/serve/engine.hpp"
#include "trireme/serve/kserve.hpp"
#include "trireme/serve/openai.hpp"
#include "trireme/version.hpp"

using namespace trireme;
namespace openai = serve::openai;

namespace {

constexpr char const* json_type = "application/json";

/// Threads for connections, made as they are needed. Where all are busy and many connections wait, accepting waits too.
class connections final : public httplib::TaskQueue {
 public:
  explicit connections(std::size_t most) : most_(most) {}
  // Newer versions of the library want to know whether the job was taken.
  using taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>{}));
  taken enqueue(std::function<void()> job) override {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return jobs_.size() < most_ || ends_; });
    jobs_.push_back(std::move(job));
    if (idle_ < jobs_.size() && threads_.size() < most_) threads_.emplace_back([this] { run(); });
    news_.notify_one();
    return taken(true);
  }
  void shutdown() override {
    {
      std::lock_guard const lock(mutex_);
      ends_ = true;
      news_.notify_all();
      room_.notify_all();
    }
    for (auto& each : threads_) each.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      news_.wait(lock, [&] { return ends_ || !jobs_.empty(); });
      --idle_;
      if (jobs_.empty()) return;
      auto const job = std::move(jobs_.front());
      jobs_.pop_front();
      room_.notify_one();
      lock.unlock();
      job();
      lock.lock();
    }
  }

  std::size_t const most_;
  std::mutex mutex_;
  std::condition_variable news_, room_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;
  bool ends_ = false;
};

/// What the engine's thread tells a connection's.
class mailbox {
 public:
  struct letter {
    std::size_t index;
    serve::event told;
  };
  void put(std::size_t index, serve::event const& told) {
    std::lock_guard const lock(mutex_);
    letters_.push_back({index, told});
    changed_.notify_one();
  }
  /// All that has come; waits a while for the first.
  [[nodiscard]] std::vector<letter> take(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [&] { return !letters_.empty(); });
    return std::exchange(letters_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<letter> letters_;
};

/// A request that is answered. When it goes, what is not computed yet is cancelled.
class job {
 public:
  job(serve::engine& computes, std::atomic<std::int64_t>& open, openai::asked what)
      : what(std::move(what)), computes_(computes), open_(open) {
    ++open_;
  }
  job(job const&) = delete;
  job& operator=(job const&) = delete;
  ~job() {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (!ended_[i]) computes_.cancel(ids_[i]);
    }
    --open_;
  }

  /// @param prompts  of tokens.
  void begin(std::vector<std::vector<std::int32_t>> const& prompts, openai::token_texts const& texts) {
    auto const n = static_cast<std::size_t>(what.n);
    ids_.reserve(prompts.size() * n);
    for (auto const& each : prompts) used.prompt_tokens += static_cast<std::int64_t>(each.size());
    for (std::size_t i = 0; i < prompts.size() * n; ++i) {
      answers_.emplace_back(what, static_cast<std::int64_t>(i), texts);
      whole.push_back({.index = static_cast<std::int64_t>(i), .first = true});
      auto how = what.how;
      how.prompt = prompts[i / n];
      how.seed += i % n;  // answers to one prompt differ
      ids_.push_back(computes_.submit(std::move(how), [box = box_, i](auto const& told) { box->put(i, told); }));
      ended_.push_back(false);
    }
  }
  /// Waits for what comes next, and returns a part of each answer that it adds to.
  /// Errors   refusal, where the engine has a problem.
  [[nodiscard]] std::vector<openai::part> next(std::chrono::milliseconds most) {
    std::vector<openai::part> out;
    for (auto const& [index, told] : box_->take(most)) {
      auto& one = answers_[index];
      if (told.finish != serve::finish::none) ended_[index] = true;
      if (one.ended()) continue;
      auto more = one.take(told);
      if (!one.problem().empty()) throw openai::refusal(one.problem(), {}, 500);
      if (one.ended()) {
        ++all_ended_;
        used.completion_tokens += one.tokens();
        if (!ended_[index]) computes_.cancel(ids_[index]);
      }
      if (!out.empty() && out.back().index == more.index)
        out.back().append(std::move(more));
      else
        out.push_back(std::move(more));
    }
    return out;
  }
  [[nodiscard]] bool ended() const noexcept { return all_ended_ == answers_.size(); }

  openai::asked const what;
  openai::heading head;
  openai::usage used;
  std::vector<openai::part> early;  // came before the answer's head was sent
  std::vector<openai::part> whole;

 private:
  serve::engine& computes_;
  std::atomic<std::int64_t>& open_;
  std::shared_ptr<mailbox> box_ = std::make_shared<mailbox>();
  std::deque<openai::answer> answers_;
  std::vector<serve::request_id> ids_;
  std::vector<bool> ended_;
  std::size_t all_ended_ = 0;
};

std::string random_name(std::string_view prefix) {
  std::random_device source;
  std::string out(prefix);
  for (int i = 0; i < 24; ++i) out += "0123456789abcdefghijklmnopqrstuv"[source() % 32];
  return out;
}

enum class form { openai, kserve };

void refuse(httplib::Response& to, openai::refusal const& problem, form how = form::openai) {
  to.status = problem.status;
  to.set_content(how == form::kserve ? serve::kserve::body_of(problem) : openai::body_of(problem), json_type);
  if (problem.status == 429 || problem.status == 503) to.set_header("Retry-After", "1");
  if (problem.status == 401) to.set_header("WWW-Authenticate", "Bearer");
}

std::string without_name(std::string_view sentence) {
  constexpr std::string_view name = "trireme::serve::request: ";
  if (sentence.starts_with(name)) sentence.remove_prefix(name.size());
  return std::string(sentence);
}

std::unique_ptr<httplib::Server> make_server(http_options const& options) {
  if (options.certificate.empty()) return std::make_unique<httplib::Server>();
#ifdef CPPHTTPLIB_OPENSSL_SUPPORT
  auto out = std::make_unique<httplib::SSLServer>(options.certificate.c_str(), options.private_key.c_str());
  if (out->is_valid()) return out;
  throw config_error(text("--tls-cert ", options.certificate, " and --tls-key ", options.private_key,
                          " are not a certificate and its private key, both in PEM files"));
#else
  throw config_error("this program was built without OpenSSL, so it has no TLS; install libssl-dev and build again");
#endif
}

}  // namespace

struct http_server::state {
  state(served what, vocabulary const& tokens, http_options with)
      : model(what), words(tokens), options(std::move(with)) {
    auto const threads = static_cast<std::size_t>(options.most_streams) + 16;  // some that say no
    server->new_task_queue = [threads] { return new connections(threads); };   // NOLINT: the library deletes it
    server->set_socket_options([](auto socket) {  // the library's own let two servers share a port
      int const yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server->set_keep_alive_max_count(1);
    server->set_keep_alive_timeout(5);
    server->set_read_timeout(10);
    server->set_write_timeout(10);
    server->set_pre_routing_handler([this](auto const& asked, auto& to) { return before(asked, to); });
    server->set_exception_handler([](auto const&, auto& to, std::exception_ptr) {
      refuse(to, openai::refusal("the server could not answer this request", {}, 500));
    });
    server->set_error_handler(httplib::Server::Handler([](httplib::Request const&, httplib::Response& to) {
      if (to.body.empty())
        refuse(to, openai::refusal("this is not a request of HTTP that the server knows", {}, to.status));
    }));
    server->Get("/", [](auto const&, auto& to) { to.set_content(page, "text/html; charset=utf-8"); });
    server->Get("/health", [this](auto const&, auto& to) {
      if (draining) return refuse(to, openai::refusal("the server is about to stop", {}, 503));
      to.set_content("{\"status\":\"ok\"}", json_type);
    });
    server->Get("/metrics", [this](auto const&, auto& to) {
      auto const now = model.engine != nullptr ? model.engine->now() : model.tensors->now();
      to.set_content(openai::metrics(now), "text/plain; version=0.0.4");
    });
    server->Get("/v1/models", [this](auto const&, auto& to) {
      to.set_content(openai::models(options.limits.model, started, options.context), json_type);
    });
    if (model.engine != nullptr)
      complete();
    else
      infer();
  }

  // The addresses of a language model.
  void complete() {
    for (auto const& [path, endpoint] : {std::pair{"/v1/completions", openai::endpoint::completions},
                                         std::pair{"/v1/chat/completions", openai::endpoint::chat}}) {
      server->Post(path, [this, which = endpoint](auto const& asked, auto& to, auto const& read) {
        guarded(form::openai, to, [&] { post(which, asked, to, read); });
      });
      posts.emplace_back(path);
    }
  }
  // Those of a model of tensors.
  void infer() {
    auto const computed = [this](std::string const& path, auto answer) {
      server->Post(pattern_of(path), [this, answer](auto const& asked, auto& to, auto const& read) {
        guarded(form_of(asked.path), to, [&] {
          one_more const counted(open);
          if (open > options.most_streams) throw serve::overloaded_error("requests");
          to.set_content(answer(body_of(read)), json_type);
        });
      });
      posts.push_back(path);
    };
    auto const told = [this](std::string const& path, auto answer) {
      server->Get(pattern_of(path), [answer](auto const&, auto& to) { to.set_content(answer(), json_type); });
      gets.push_back(path);
    };
    auto* const it = model.tensors;
    auto const one = "/v2/models/" + options.limits.model;
    if (it->embeds()) computed("/v1/embeddings", [it](std::string const& body) { return it->embeddings(body); });
    computed(one + "/infer", [it](std::string const& body) { return it->infer(body); });
    told(one, [it] { return it->metadata(); });
    told(one + "/ready", [] { return "{\"ready\":true}"; });
    told("/v2", [] { return "{\"name\":\"trireme\",\"version\":\"" TRIREME_VERSION "\",\"extensions\":[]}"; });
    told("/v2/health/live", [] { return "{\"live\":true}"; });
    server->Get("/v2/health/ready", [this](auto const&, auto& to) {
      if (draining) return refuse(to, openai::refusal("the server is about to stop", {}, 503), form::kserve);
      to.set_content("{\"ready\":true}", json_type);
    });
    gets.emplace_back("/v2/health/ready");
  }
  // How errors are told.
  [[nodiscard]] form form_of(std::string_view path) const noexcept {
    return model.tensors != nullptr && path.starts_with("/v2") ? form::kserve : form::openai;
  }
  struct one_more {
    explicit one_more(std::atomic<std::int64_t>& of) : count(of) { ++count; }
    one_more(one_more const&) = delete;
    one_more& operator=(one_more const&) = delete;
    ~one_more() { --count; }
    std::atomic<std::int64_t>& count;
  };
  // Addresses are regular expressions for the library.
  static std::string pattern_of(std::string_view path) {
    std::string out;
    for (auto const letter : path) {
      if (std::string_view("\\^$.|?*+()[]{}").find(letter) != std::string_view::npos) out += '\\';
      out += letter;
    }
    return out;
  }
  // Calls f, and answers with the sentence of what it throws.
  template <class F>
  static void guarded(form how, httplib::Response& to, F&& f) {
    try {
      f();
    } catch (openai::refusal const& problem) {
      refuse(to, problem, how);
    } catch (serve::overloaded_error const&) {
      refuse(to, openai::refusal("too many requests wait already; try again later", {}, 429), how);
    } catch (config_error const& problem) {
      refuse(to, openai::refusal(without_name(problem.what())), how);
    } catch (format_error const& problem) {
      refuse(to, openai::refusal(problem.what()), how);
    }
  }

  // Checks what can be checked without the body.
  httplib::Server::HandlerResponse before(httplib::Request const& asked, httplib::Response& to) {
    auto const no = [&](openai::refusal const& problem) {
      refuse(to, problem, form_of(asked.path));
      return httplib::Server::HandlerResponse::Handled;
    };
    auto const in = [&](auto const& list) {
      return std::find(std::begin(list), std::end(list), asked.path) != std::end(list);
    };
    bool const post = in(posts);
    if (!post && !in(gets)) return no(openai::refusal(text("there is no ", quoted(asked.path)), {}, 404));
    static constexpr std::string_view open_to_all[] = {"/", "/health", "/v2/health/live", "/v2/health/ready"};
    if (!in(open_to_all) && !options.keys.accepts(asked.get_header_value("Authorization")))
      return no(openai::refusal("this server needs an API key, as \"Authorization: Bearer KEY\"", {}, 401,
                                "invalid_api_key"));
    if (post ? asked.method != "POST" : asked.method != "GET" && asked.method != "HEAD") {
      to.set_header("Allow", post ? "POST" : "GET, HEAD");
      return no(openai::refusal(text("this address takes ", post ? "POST" : "GET", " only"), {}, 405));
    }
    if (!post) {
      bool const body = asked.has_header("Content-Length") && asked.get_header_value("Content-Length") != "0";
      if (body || asked.has_header("Transfer-Encoding")) return no(openai::refusal("a GET has no body here"));
      return httplib::Server::HandlerResponse::Unhandled;
    }
    if (draining) return no(openai::refusal("the server is about to stop and takes no more requests", {}, 503));
    auto const type = asked.get_header_value("Content-Type");
    if (!type.starts_with(json_type))
      return no(openai::refusal("the body must have the Content-Type application/json", {}, 415));
    if (asked.has_header("Transfer-Encoding")) return httplib::Server::HandlerResponse::Unhandled;
    if (!asked.has_header("Content-Length")) return no(openai::refusal("Content-Length is missing", {}, 411));
    auto const length = asked.get_header_value("Content-Length");
    std::uint64_t bytes = 0;
    auto const [end, problem] = std::from_chars(length.data(), length.data() + length.size(), bytes);
    if (problem == std::errc::invalid_argument || end != length.data() + length.size())
      return no(openai::refusal("Content-Length is not a number"));
    if (problem != std::errc{} || bytes > most_discarded()) return no(too_large());
    return httplib::Server::HandlerResponse::Unhandled;
  }
  // A client that sends somewhat too much is let to its end, so that it reads the answer.
  [[nodiscard]] std::uint64_t most_discarded() const noexcept { return 8 * std::uint64_t{options.most_bytes}; }
  [[nodiscard]] openai::refusal too_large() const {
    return openai::refusal(text("the body is larger than ", options.most_bytes, " bytes"), {}, 413);
  }
  static std::string quoted(std::string_view path) { return text("\"", path.substr(0, 80), "\" here"); }

  [[nodiscard]] std::string body_of(httplib::ContentReader const& read) const {
    std::string body;
    std::uint64_t bytes = 0;
    bool const all = read([&](char const* data, std::size_t size) {
      bytes += size;
      if (bytes <= options.most_bytes) body.append(data, size);
      return bytes <= most_discarded();
    });
    if (bytes > options.most_bytes) throw too_large();
    if (!all) throw openai::refusal("the body did not come whole");
    return body;
  }
  void post(openai::endpoint which, httplib::Request const&, httplib::Response& to,
            httplib::ContentReader const& read) {
    auto const work = begin(openai::parse(which, body_of(read), options.limits));
    // A request that fails at once gets a status that says so; the status of a longer one is sent before its end.
    constexpr std::chrono::milliseconds a_moment{250};
    work->early = work->next(a_moment);
    // Also answers that are not streamed: the sink tells whether the client is still there.
    to.set_chunked_content_provider(
        work->what.stream ? "text/event-stream" : json_type,
        [this, work](std::size_t, httplib::DataSink& sink) { return send(*work, sink, !options.certificate.empty()); });
    if (work->what.stream) to.set_header("Cache-Control", "no-cache");
  }
  [[nodiscard]] std::shared_ptr<job> begin(openai::asked what) {
    bool const chat = what.endpoint == openai::endpoint::chat;
    std::vector<std::vector<std::int32_t>> prompts;
    if (chat) prompts.push_back(encode(openai::text_of(what.messages, options.chat), what.begin_token, "messages"));
    for (auto const& each : what.prompts) {
      auto const* const words_of = std::get_if<std::string>(&each);
      prompts.push_back(words_of == nullptr ? std::get<std::vector<std::int32_t>>(each)
                                            : encode(*words_of, what.begin_token, "prompt"));
    }
    for (auto const& each : prompts) {
      if (static_cast<std::int64_t>(each.size()) <= options.context) continue;
      throw openai::refusal(
          text("the prompt has ", each.size(), " tokens, but the model's context is ", options.context, "; shorten it"),
          chat ? "messages" : "prompt", 400, "context_length_exceeded");
    }
    if (!what.ignore_end) what.how.stop = options.ends;
    if (!what.seeded) {
      std::random_device source;
      what.how.seed = (std::uint64_t{source()} << 32) + source();
    }
    auto const out = std::make_shared<job>(*model.engine, open, std::move(what));
    if (open > options.most_streams) throw serve::overloaded_error("streams");
    out->head = {random_name(chat ? "chatcmpl-" : "cmpl-"), seconds_now(), options.limits.model};
    out->begin(prompts, texts);
    return out;
  }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view what, bool begin_token, char const* field) const {
    auto out = words.encode(what, begin_token);
    if (out.empty()) throw openai::refusal(text(field, ": it has no tokens"), field);
    auto const most = *std::max_element(out.begin(), out.end());
    if (most < options.limits.vocabulary) return out;
    throw openai::refusal(
        text(field, ": it has the token ", most, ", but the model's are 0 to ", options.limits.vocabulary - 1), field);
  }
  [[nodiscard]] static std::int64_t seconds_now() {
    using namespace std::chrono;
    return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
  }

  // Sends what there is, or waits a little; false when the client has gone.
  static bool send(job& work, httplib::DataSink& sink, bool tls) {
    auto const write = [&](std::string const& some) { return sink.write(some.data(), some.size()); };
    try {
      constexpr std::chrono::milliseconds a_while{100};
      auto parts = std::exchange(work.early, {});
      if (parts.empty() && !work.ended()) parts = work.next(a_while);
      if (!sink.is_writable()) return false;
      for (auto& each : parts) {
        if (!work.what.stream)
          work.whole[static_cast<std::size_t>(each.index)].append(std::move(each));
        else if ((each.first || !each.text.empty() || !each.tokens.empty() || !each.finish.empty()) &&
                 !write(openai::chunk(work.what, work.head, each)))
          return false;
      }
      // Of a connection with TLS the sink may not know that it has ended, before something is written.
      if (!work.ended()) return !tls || work.what.stream || write(" ");
      if (!work.what.stream) {
        if (!write(openai::response(work.what, work.head, work.whole, work.used))) return false;
      } else {
        if (work.what.usage && !write(openai::usage_chunk(work.what, work.head, work.used))) return false;
        if (!write(std::string(openai::last_chunk))) return false;
      }
      sink.done();
      return true;
    } catch (openai::refusal const& problem) {  // the transfer ends early, so that the client sees an error in any case
      write(work.what.stream ? openai::error_chunk(problem) : openai::body_of(problem));
      return false;
    } catch (std::exception const&) {
      return false;
    }
  }

  served const model;
  vocabulary const& words;
  openai::token_texts const texts{[this](auto token) { return words.alone(token); },
                                  [this] { return words.new_stream(); }};
  http_options const options;
  std::int64_t const started = seconds_now();
  std::atomic<std::int64_t> open = 0;
  std::atomic<bool> draining = false;
  std::vector<std::string> posts, gets{"/", "/health", "/metrics", "/v1/models"};  // addresses
  std::unique_ptr<httplib::Server> server = make_server(options);
  int port = 0;
  std::thread listens;
};

http_server::http_server(served model, vocabulary const& words, http_options options)
    : state_(std::make_unique<state>(model, words, std::move(options))) {
  auto& it = *state_;
  auto const& [host, port] = std::pair(it.options.host, it.options.port);
  it.port = port == 0 ? it.server->bind_to_any_port(host) : it.server->bind_to_port(host, port) ? port : -1;
  if (it.port <= 0) {
    throw config_error(text("cannot listen at ", host, ", port ", port,
                            "; is another program there already, or is it not an address of this machine?"));
  }
  it.listens = std::thread([&it] { it.server->listen_after_bind(); });
  while (!it.server->is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}
http_server::~http_server() {
  state_->draining = true;
  state_->server->stop();
  if (state_->listens.joinable()) state_->listens.join();
}
int http_server::port() const noexcept { return state_->port; }
std::int64_t http_server::open() const noexcept { return state_->open; }
void http_server::drain() noexcept { state_->draining = true; }
