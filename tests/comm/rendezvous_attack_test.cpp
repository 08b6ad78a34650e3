// test-sanitize: address
// Attacks on a rendezvous: which addresses are open, wrong secrets, replays, changed bytes, invalid data, port scans.
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"
#include "child.hpp"
#include "trireme/comm/processes.hpp"
#include "trireme/comm/rendezvous.hpp"

namespace {

using namespace trireme;
using namespace std::chrono_literals;
namespace inner = comm::detail;
using clock_type = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

inner::endpoint at(int port) { return *inner::resolve("127.0.0.1", port); }
int free_port() {
  int failed = 0;
  return inner::port_of(inner::listen_at(at(0), failed));
}
comm::rendezvous at_port(int port, std::chrono::milliseconds deadline = 40s) {
  return {.port = port, .secret = "a secret of thirty-two characters", .deadline = deadline};
}
/// A connection to a rank 0 that listens now or soon.
inner::descriptor connect(int port) {
  int failed = 0;
  for (auto const until = clock_type::now() + 10s; clock_type::now() < until; std::this_thread::sleep_for(1ms)) {
    auto socket = inner::connect_to(at(port), until, failed);
    if (socket.is_open()) return socket;
  }
  throw comm_error("nobody listens");
}
/// The bytes that the peer sends until it closes, or 2 s have passed (then a '?' at the end).
std::string rest_of(inner::descriptor const& socket) {
  std::string out;
  for (std::byte one{}; inner::ready_before(socket.number(), POLLIN, clock_type::now() + 2s);) {
    if (::recv(socket.number(), &one, 1, 0) <= 0) return out;
    out += static_cast<char>(one);
  }
  return out + "?";
}

/// One attempt to join: the bytes of both sides in the handshake, and those after it.
struct attempt {
  std::string said;  ///< bytes of hello and answer
  std::string then;  ///< bytes after the handshake; empty: the connection was closed
};
attempt try_to_join(int port, std::string const& secret, int rank, int size, std::size_t flipped = ~std::size_t{0}) {
  auto const socket = connect(port);
  auto const until = clock_type::now() + 5s;
  inner::hello claim{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size), {}};
  inner::fill_random(claim.random);
  auto opening = claim.packed();
  if (flipped < opening.size()) opening[flipped] ^= std::byte{1};
  std::array<std::byte, inner::challenge::bytes> bytes{};
  static_cast<void>(inner::send_all(socket.number(), opening, until));
  attempt out;
  out.said.assign(reinterpret_cast<char const*>(opening.data()), opening.size());
  if (!inner::receive_all(socket.number(), bytes, until)) return out;
  auto const asked = inner::challenge::parse(bytes);
  if (!asked) return out;
  auto answer = inner::proofs(secret, "", claim, asked->random).of_rank;
  if (flipped >= opening.size() && flipped - opening.size() < answer.size())
    answer[flipped - opening.size()] ^= std::byte{1};
  static_cast<void>(inner::send_all(socket.number(), answer, until));
  out.said.append(reinterpret_cast<char const*>(answer.data()), answer.size());
  out.then = rest_of(socket);
  return out;
}

/// The listening sockets of a process, with their local addresses as the kernel prints them.
std::set<std::string> listening(::pid_t pid) {
  std::set<std::string> own, out;
  for (auto const& each : std::filesystem::directory_iterator(text("/proc/", pid, "/fd"))) {
    std::error_code gone;
    auto const target = std::filesystem::read_symlink(each.path(), gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  for (auto const* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::vector<std::string> word{std::istream_iterator<std::string>(words), {}};
      if (word.size() > 9 && word[3] == "0A" && own.contains(word[9])) out.insert(word[1]);
    }
  }
  return out;
}
std::size_t descriptors(::pid_t pid) {
  std::filesystem::directory_iterator const all(text("/proc/", pid, "/fd"));
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}
long peak_kilobytes() {
  ::rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

/// Attacks a port again and again, in all these ways, until it is destroyed.
class crowd {
 public:
  explicit crowd(int port) : thread_([this, port] { run(port); }) {}
  ~crowd() {
    over_ = true;
    thread_.join();
  }
  [[nodiscard]] int came() const { return came_; }

 private:
  void run(int port) {
    std::vector<inner::descriptor> open;  // half-open: connected, silent
    std::string const garbage(100'000, 'G');
    std::string const magic(inner::rendezvous_magic);
    for (int i = 0; !over_; ++i) {
      int failed = 0;
      auto socket = inner::connect_to(at(port), clock_type::now() + 1s, failed);
      if (!socket.is_open()) {
        std::this_thread::sleep_for(100us);
        continue;
      }
      ++came_;
      auto const say = [&](std::string const& what) {
        static_cast<void>(!::send(socket.number(), what.data(), what.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
      };
      switch (i % 6) {
        case 0:
          say(garbage);
          break;
        case 1:
          say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
          break;
        case 2:
          say(magic + garbage);
          break;  // an invalid hello
        case 3:
          say(magic + std::string(20, '\xff'));
          open.push_back(std::move(socket));
          break;
        case 4:
          open.push_back(std::move(socket));
          break;
        default:
          break;  // a port scan: connect and go
      }
      if (open.size() > 300) open.clear();
    }
  }
  std::atomic<bool> over_{false};
  std::atomic<int> came_{0};
  std::thread thread_;
};

/// A small training during the attacks: data-parallel descent on a linear model. The hash of the weights, and by how
/// many kilobytes its process grew.
std::string train_as(int rank, int port) {
  ::setenv("TRIREME_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("TRIREME_SIZE", "2", 1);
  ::setenv("TRIREME_RENDEZVOUS", text("127.0.0.1:", port).c_str(), 1);
  ::setenv("TRIREME_SECRET", "a secret of thirty-two characters", 1);
  long const before = peak_kilobytes();
  std::vector<float> weights(64, 0.0F), gradient(64);
  launch(comm::processes{.deadline = 40s}, [&](auto& world) {
    for (int step = 0; step < 3000; ++step) {
      auto const sample = static_cast<float>((step * 2 + world.rank()) % 17) / 17.0F;
      float predicted = 0;
      for (std::size_t i = 0; i < 64; ++i) predicted += weights[i] * sample / static_cast<float>(i + 1);
      for (std::size_t i = 0; i < 64; ++i)
        gradient[i] = (predicted - sample * sample) * sample / static_cast<float>(i + 1);
      world.all_reduce(tensor_view<float>(gradient));
      for (std::size_t i = 0; i < 64; ++i) weights[i] -= 0.05F * gradient[i];
    }
  });
  std::string_view const bytes(reinterpret_cast<char const*>(weights.data()), weights.size() * sizeof(float));
  return text(sha256().update(bytes).hexadecimal(), " ", peak_kilobytes() - before);
}

}  // namespace

TEST_CASE("a meeting listens on loopback only, and not at all after all ranks have met", "[comm][rendezvous]") {
  scratch const folder;
  watchdog const guard("who listens");
  auto const port = free_port();
  for (auto const& where : {comm::rendezvous{.file = folder / "meeting", .deadline = 40s}, at_port(port)}) {
    child host([&] {
      comm::meeting met(where, 0, 2);
      auto const left = listening(::getpid());
      static_cast<void>(met.all_gather(""));
      return text("listening: ", left.size());
    });
    std::set<std::string> found;
    for (auto const until = clock_type::now() + 10s; found.empty() && clock_type::now() < until;)
      found = listening(host.pid);
    REQUIRE(found.size() == 1);
    CHECK(found.begin()->starts_with("0100007F:"));  // 127.0.0.1
    comm::meeting met(where, 1, 2);
    static_cast<void>(met.all_gather(""));
    CHECK(host.result() == "listening: 0");
  }
}

TEST_CASE("without the secret no connection is accepted, in a thousand tries", "[comm][rendezvous]") {
  watchdog const guard("wrong secrets");
  auto const port = free_port();
  auto const where = at_port(port);
  child host([&] {
    comm::meeting met(where, 0, 2);
    return met.all_gather("zero")[1];
  });
  int answered = 0;
  for (int i = 0; i < 1000; ++i) {
    auto secret = where.secret;
    secret[static_cast<std::size_t>(i) % secret.size()] ^= static_cast<char>(1 + i / 100);
    if (!try_to_join(port, i % 10 == 0 ? std::string() : secret, 1, 2).then.empty()) ++answered;
  }
  CHECK(answered == 0);
  comm::meeting met(where, 1, 2);
  static_cast<void>(met.all_gather("one"));
  CHECK(host.result() == "one");
}

TEST_CASE("a recorded handshake can be neither replayed nor modified in transit", "[comm][rendezvous]") {
  watchdog const guard("replays");
  auto const port = free_port();
  auto const where = at_port(port);
  child host([&] {
    comm::meeting met(where, 0, 3);
    return std::string("met");
  });
  auto const good = try_to_join(port, where.secret, 1, 3);  // a valid rank, which then leaves
  REQUIRE(good.then.size() > 16);                           // it was accepted
  auto const say_again = [&](std::string const& what) {
    auto const socket = connect(port);
    static_cast<void>(inner::send_all(socket.number(), std::as_bytes(std::span(what)), clock_type::now() + 2s));
    return rest_of(socket);
  };
  for (int i = 0; i < 20; ++i)
    REQUIRE(say_again(good.said).size() <= inner::challenge::bytes);  // a challenge at most, no welcome
  for (std::size_t byte = 0; byte < inner::hello::bytes + 32; ++byte) {
    INFO("byte " << byte);
    REQUIRE(try_to_join(port, where.secret, 1, 3, byte).then.empty());
  }
  std::thread other([&] { comm::meeting const met(where, 2, 3); });
  comm::meeting const met(where, 1, 3);
  other.join();
  CHECK(host.result() == "met");
}

TEST_CASE("an impostor of rank 0 without the secret learns nothing and is not accepted", "[comm][rendezvous]") {
  watchdog const guard("an impostor");
  int failed = 0;
  auto const listener = inner::listen_at(at(0), failed);
  std::atomic<bool> over{false};
  std::atomic<std::size_t> most{0};
  std::thread impostor([&] {
    while (!over) {
      if (!inner::ready_before(listener.number(), POLLIN, clock_type::now() + 20ms)) continue;
      inner::descriptor const socket(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      inner::challenge asked;  // with a proof of zeros
      static_cast<void>(inner::send_all(socket.number(), asked.packed(), clock_type::now() + 1s));
      std::size_t got = 0;
      for (std::array<char, 512> bytes{}; inner::ready_before(socket.number(), POLLIN, clock_type::now() + 1s);) {
        auto const part = ::recv(socket.number(), bytes.data(), bytes.size(), 0);
        if (part <= 0) break;
        got += static_cast<std::size_t>(part);
      }
      most = std::max<std::size_t>(most, got);
    }
  });
  std::string said;
  try {
    comm::meeting const met(at_port(inner::port_of(listener), 500ms), 1, 2);
  } catch (comm_error const& e) {
    said = e.what();
  }
  over = true;
  impostor.join();
  CHECK(said.find("the process that listens there has another secret") != said.npos);
  CHECK(most == inner::hello::bytes);  // its own proof was not sent
}

TEST_CASE("many foreign connections do not keep ranks from meeting, and take no memory", "[comm][rendezvous]") {
  watchdog const guard("a crowd while ranks meet");
  auto const port = free_port();
  auto const where = at_port(port);
  child host([&] {
    long const before = peak_kilobytes();
    comm::meeting met(where, 0, 3);
    auto const all = met.all_gather("0");
    auto const grown = peak_kilobytes() - before;
    return all[0] + all[1] + all[2] + (sanitized || grown <= 4096 ? "" : text(" grew by ", grown, " kB"));
  });
  std::size_t most_descriptors = 0;
  std::vector<std::string> heard(2);
  {
    crowd const strangers(port);
    while (strangers.came() < 1000) {
      most_descriptors = std::max(most_descriptors, descriptors(host.pid));
      std::this_thread::sleep_for(1ms);
    }
    std::thread other([&] { heard[0] = comm::meeting(where, 2, 3).all_gather("2")[0]; });
    heard[1] = comm::meeting(where, 1, 3).all_gather("1")[2];
    other.join();
  }
  CHECK(heard == std::vector<std::string>{"0", "2"});
  CHECK(host.result() == "012");
  CHECK(most_descriptors < 64 + 16);
}

TEST_CASE("training gives the same bits while many foreign connections arrive", "[comm][rendezvous]") {
  watchdog const guard("a crowd while ranks train");
  struct outcome {
    std::string hash;
    long grown = 0;
    int came = 0;
  };
  auto const run = [](bool attacked) {
    auto const port = free_port();
    child zero([&] { return train_as(0, port); });
    child one([&] {
      std::this_thread::sleep_for(300ms);
      return train_as(1, port);
    });
    std::optional<crowd> strangers;  // a thread: made after the forks
    if (attacked) strangers.emplace(port);
    auto const first = zero.result(), second = one.result();
    CHECK(first.substr(0, 65) == second.substr(0, 65));
    return outcome{first.substr(0, 64), std::atol(first.substr(std::min<std::size_t>(65, first.size())).c_str()),
                   strangers ? strangers->came() : 0};
  };
  auto const alone = run(false), attacked = run(true);
  CHECK(alone.hash.find_first_not_of("0123456789abcdef") == alone.hash.npos);
  CHECK(attacked.hash == alone.hash);
  CHECK(attacked.came > 100);
  if (!sanitized) CHECK(attacked.grown - alone.grown <= 4096);
}
