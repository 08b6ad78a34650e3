#pragma once

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trireme/comm/detail/handshake.hpp"
#include "trireme/comm/detail/socket.hpp"
#include "trireme/core/plural.hpp"

namespace trireme::comm::detail {

/// The connection of two ranks that have authenticated each other.
class meeting_line {
 public:
  static constexpr std::size_t most_content = std::size_t{64} << 10;  ///< of one rank
  static constexpr std::chrono::seconds handshake_time{5};

  meeting_line(descriptor socket, sha256::digest const& key, bool is_rank_0, int size) noexcept
      : socket_(std::move(socket)),
        out_(key, is_rank_0, 0),
        in_(key, !is_rank_0, is_rank_0 ? most_content : static_cast<std::size_t>(size) * (most_content + 4) + 4) {}

  [[nodiscard]] int number() const noexcept { return socket_.number(); }
  [[nodiscard]] bool send(frame_kind kind, std::string_view content, steady_time until) {
    return send_all(number(), out_.pack(kind, content), until);
  }
  /// Returns nothing if the peer has gone, is too slow, or sends an invalid frame.
  [[nodiscard]] std::optional<frame> receive(steady_time until) {
    while (!in_.is_whole()) {
      piece_.resize(in_.wanted());
      if (!receive_all(number(), piece_, until) || !in_.take(piece_)) return std::nullopt;
    }
    return in_.unpack();
  }
  /// Whether the peer has closed the connection.
  [[nodiscard]] bool is_over() const noexcept {
    std::byte one{};
    auto const got = ::recv(number(), &one, 1, MSG_PEEK);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }

 private:
  descriptor socket_;
  frame_channel out_, in_;
  std::vector<std::byte> piece_;
};

/// Rank 0 until all ranks have connected: accepts those that prove that they know the secret, and ignores all others.
class meeting_host {
 public:
  static constexpr std::size_t most_pending = 64;

  meeting_host(descriptor listener, std::string secret, std::string job, int size)
      : listener_(std::move(listener)), secret_(std::move(secret)), job_(std::move(job)), size_(size) {
    lines_.resize(static_cast<std::size_t>(size));
  }

  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> out;
    for (int rank = 1; rank < size_; ++rank)
      if (lines_[static_cast<std::size_t>(rank)] == nullptr) out.push_back(rank);
    return out;
  }
  [[nodiscard]] std::string const& note() const noexcept { return note_; }
  [[nodiscard]] std::vector<std::unique_ptr<meeting_line>>& lines() noexcept { return lines_; }

  /// Handles arrivals until `until`, or until something has arrived.
  void serve(steady_time until) {
    auto const now = std::chrono::steady_clock::now();
    std::erase_if(pending_, [&](visitor const& each) { return now - each.since > meeting_line::handshake_time; });
    std::vector<::pollfd> polled{{listener_.number(), POLLIN, 0}};
    for (auto const& each : pending_) polled.push_back({each.socket.number(), POLLIN, 0});
    for (auto const& line : lines_)
      if (line != nullptr) polled.push_back({line->number(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), poll_time(until)) <= 0) return;

    for (auto& line : lines_)  // a rank whose connection has ended may connect again
      if (line != nullptr && line->is_over()) line.reset();
    // Pending connections before new ones, so that many new ones cannot keep the others from finishing.
    std::erase_if(pending_, [this](visitor& each) { return !advance(each); });
    for (std::size_t i = 0; i < most_pending / 4; ++i) {
      descriptor socket(::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.is_open()) {
        // If no descriptor is left, the oldest pending connection is dropped.
        if ((errno == EMFILE || errno == ENFILE) && !pending_.empty()) pending_.pop_front();
        break;
      }
      if (pending_.size() >= most_pending) pending_.pop_front();
      pending_.push_back({std::move(socket), std::chrono::steady_clock::now()});
    }
  }

 private:
  struct visitor {
    descriptor socket;
    steady_time since;
    std::array<std::byte, hello::bytes> bytes{};
    std::size_t have = 0;
    hello claim{};
    std::optional<proofs> proof{};
  };

  /// Reads the bytes that have arrived, at most hello and answer (80 bytes). False if the connection is no longer
  /// pending.
  bool advance(visitor& it) {
    for (;;) {
      auto const needed = it.proof ? sizeof(sha256::digest) : hello::bytes;
      auto const got = ::recv(it.socket.number(), it.bytes.data() + it.have, needed - it.have, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
      it.have += static_cast<std::size_t>(got);
      if (it.have < needed) continue;
      it.have = 0;
      if (!it.proof) {
        auto const claim = hello::parse(it.bytes);
        if (!claim) return false;
        it.claim = *claim;
        challenge asked;
        fill_random(asked.random);
        it.proof.emplace(secret_, job_, it.claim, asked.random);
        asked.proof = it.proof->of_rank_0;
        if (!send_all(it.socket.number(), asked.packed(), std::chrono::steady_clock::now())) return false;
      } else {
        if (equal_in_constant_time(std::span(it.bytes).first<32>(), it.proof->of_rank)) admit(it);
        return false;
      }
    }
  }
  void admit(visitor& it) {
    auto const rank = it.claim.rank;
    auto const soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    auto line = std::make_unique<meeting_line>(std::move(it.socket), it.proof->key, true, size_);
    std::string refusal;
    if (it.claim.size != static_cast<std::uint32_t>(size_))
      refusal = text("rank ", rank, " was started with ", how_many(it.claim.size, "rank"), ", but rank 0 with ", size_);
    else if (rank < 1 || rank >= it.claim.size)
      refusal = text("rank ", rank, " is not one of the ", how_many(size_, "rank"), " that may connect to rank 0");
    else if (lines_[rank] != nullptr)
      refusal = text("rank ", rank, " has connected twice; give each process a rank of its own");
    if (!refusal.empty()) {
      static_cast<void>(line->send(frame_kind::refused, refusal, soon));
      note_ = refusal;
    } else if (line->send(frame_kind::welcome, {}, soon)) {
      lines_[rank] = std::move(line);
    }
  }

  descriptor listener_;
  std::string secret_, job_;
  int size_;
  std::list<visitor> pending_;
  std::vector<std::unique_ptr<meeting_line>> lines_;  ///< by rank; 0's is empty
  std::string note_;
};

}  // namespace trireme::comm::detail
