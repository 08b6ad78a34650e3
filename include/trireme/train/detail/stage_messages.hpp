#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/contract/stage_link.hpp"
#include "trireme/core/arena.hpp"
#include "trireme/core/tensor.hpp"
#include "trireme/ops/types.hpp"
#include "trireme/train/detail/stage_program.hpp"

namespace trireme::detail {

/// Transfers of activations and gradients between stages, as an engine uses them. An engine that runs all units has
/// none, and programs that use only such engines do not compile what follows.
template <class Env>
class stage_messages {
 public:
  using view = tensor_view<typename Env::compute, typename Env::space>;

  virtual ~stage_messages() = default;
  /// Begins a step. `key(micro_batch)`: the extents of its inputs, which determine all shapes.
  virtual void begin(message_plan const& plan, std::vector<shape> const& keys) = 0;
  /// Sets the extents of what crosses a boundary, for a micro-batch whose inputs have the extents `key`: no message
  /// sends them.
  virtual void predict_shapes(int boundary, shape const& key, shape const& extents) = 0;
  /// Bytes    of the buffers for values in transit.
  [[nodiscard]] virtual std::int64_t bytes() const noexcept = 0;
  virtual void send(int to, int number, view values) = 0;
  /// The value of that number, in memory of `arena`.
  [[nodiscard]] virtual view receive(int from, int number, arena<typename Env::space>& arena) = 0;
  /// Ends the step: everything that was sent has arrived.
  virtual void end() = 0;
};

/// Transfers through a link. A send never waits while the schedule is followed: the value is copied to a buffer, and
/// there are as many buffers as values can be in transit. Receives are posted ahead, in the sender's order. The first
/// message of a shape is preceded by its extents; both sides remember them.
template <class Env>
class linked_stage_messages final : public stage_messages<Env> {
 public:
  using space = typename Env::space;
  using value = typename Env::compute;
  using typename stage_messages<Env>::view;

  explicit linked_stage_messages(stage_link<space>* link) : link_(link) {}
  linked_stage_messages(linked_stage_messages const&) = delete;
  linked_stage_messages& operator=(linked_stage_messages const&) = delete;
  ~linked_stage_messages() override {
    try {
      end();
      for (auto& peer : peers_) {
        for (auto& each : peer.in) {
          if (each.number != none) link_->order(each.ticket);
        }
      }
    } catch (...) {  // the error has ended the training and is reported by another call
    }
  }

  void begin(message_plan const& plan, std::vector<shape> const& keys) override {
    plan_ = &plan;
    keys_ = &keys;
    if (peers_.size() < plan.room.size()) peers_.resize(plan.room.size());
    for (std::size_t p = 0; p < plan.room.size(); ++p) {
      auto& peer = peers_[p];
      peer.posted = peer.sends = 0;
      auto const room = static_cast<std::size_t>(plan.room[p]);
      if (peer.out.size() < room) peer.out.resize(room);
      if (!plan.values[p].empty() && peer.in.size() < room) peer.in.resize(room);
      post_ahead(p);
    }
  }

  void predict_shapes(int boundary, shape const& key, shape const& extents) override {
    predicted_.push_back({boundary, key, extents});
  }

  [[nodiscard]] std::int64_t bytes() const noexcept override {
    std::int64_t sum = 0;
    for (auto const& peer : peers_) {
      for (auto const& each : peer.in) sum += static_cast<std::int64_t>(each.buffer.view().bytes());
      for (auto const& each : peer.out) sum += static_cast<std::int64_t>(each.buffer.view().bytes());
    }
    return sum;
  }

  void send(int to, int number, view values) override {
    auto& peer = peers_[static_cast<std::size_t>(to)];
    auto& out = peer.out[peer.sends++ % peer.out.size()];
    finish(out);
    auto const copy = out.room_for(values.extents());
    ops::on<space>::copy(copy, values);
    transfer<space> messages[2]{};
    std::size_t many = 0;
    if (is_activation(number) && find(peer.sent_shapes, number) == nullptr) {
      peer.sent_shapes.push_back({boundary(number), key_of(number), values.extents()});
      if (find(predicted_, number) == nullptr) {
        write(out.header, values.extents());
        messages[many++] = send_to(to, out.header.view());
      }
    }
    messages[many++] = send_to(to, copy);
    out.ticket = link_->start(std::span<transfer<space> const>(messages, many));
  }

  [[nodiscard]] view receive(int from, int number, arena<space>& arena) override {
    auto const p = static_cast<std::size_t>(from);
    auto& peer = peers_[p];
    auto found = posted(peer, number);
    while (found == nullptr) {
      if (!post(p, true)) peer.in.emplace_back();  // values of evaluations, whose number no backward pass limits
      found = posted(peer, number);
    }
    link_->order(found->ticket);
    auto const here = arena.template take<value>(found->extents);
    ops::on<space>::copy(here, found->room_for(found->extents));
    found->number = none;
    post_ahead(p);
    return here;
  }

  void end() override {
    for (auto& peer : peers_) {
      for (auto& out : peer.out) finish(out);
    }
  }

 private:
  static constexpr int none = -1;
  using numbers = tensor<std::int32_t, space>;

  struct message_buffer {
    int number = none;  // of the value being received
    int ticket = none;  // of the request
    shape extents;
    tensor<value, space> buffer;
    numbers header;

    view room_for(shape const& wanted) {
      if (buffer.size() < wanted.size()) buffer = tensor<value, space>(shape{wanted.size()});
      return buffer.view().flat(0, wanted.size()).reshaped(wanted);
    }
  };
  struct known_shape {
    int boundary;
    shape key;
    shape extents;
  };
  struct peer_state {
    std::vector<message_buffer> in;
    std::vector<message_buffer> out;
    std::vector<known_shape>
        sent_shapes;  // extents of activations sent to that stage, and so of gradients that come back
    std::vector<known_shape> received_shapes;  // extents of activations received from that stage
    std::size_t posted = 0;
    std::size_t sends = 0;
  };

  [[nodiscard]] int boundaries() const noexcept { return plan_->where.virtual_stages() - 1; }
  [[nodiscard]] bool is_activation(int number) const noexcept {
    return number < boundaries() * plan_->where.micro_batches;
  }
  [[nodiscard]] int boundary(int number) const noexcept { return number / plan_->where.micro_batches % boundaries(); }
  [[nodiscard]] shape const& key_of(int number) const noexcept {
    return (*keys_)[static_cast<std::size_t>(number % plan_->where.micro_batches)];
  }
  [[nodiscard]] shape const* find(std::vector<known_shape> const& shapes, int number) const noexcept {
    for (auto const& each : shapes) {
      if (each.boundary == boundary(number) && each.key == key_of(number)) return &each.extents;
    }
    return nullptr;
  }

  [[nodiscard]] message_buffer* posted(peer_state& peer, int number) noexcept {
    for (auto& each : peer.in) {
      if (each.number == number) return &each;
    }
    return nullptr;
  }
  void post_ahead(std::size_t p) {
    while (post(p, false)) continue;
  }
  // Posts the next receive from a stage. Returns false if there is none or no buffer is free, or if its shape is not
  // known and `wait` is false.
  bool post(std::size_t p, bool wait) {
    auto& peer = peers_[p];
    if (peer.posted == plan_->values[p].size()) return false;
    auto* const room = posted(peer, none);
    if (room == nullptr) return false;
    int const number = plan_->values[p][peer.posted];
    auto const* extents = find(is_activation(number) ? peer.received_shapes : peer.sent_shapes, number);
    if (extents == nullptr && !wait) return false;
    int const from = static_cast<int>(p);
    if (extents == nullptr) {
      auto const* const predicted = find(predicted_, number);
      peer.received_shapes.push_back(
          {boundary(number), key_of(number), predicted != nullptr ? *predicted : receive_extents(from, *room)});
      extents = &peer.received_shapes.back().extents;
    }
    room->number = number;
    room->extents = *extents;
    room->ticket = link_->start(one(receive_from(from, room->room_for(*extents))));
    ++peer.posted;
    return true;
  }
  [[nodiscard]] shape receive_extents(int from, message_buffer& into) {
    if (into.header.size() == 0) into.header = numbers(shape{1 + shape::max_rank});
    link_->wait(link_->start(one(receive_from(from, into.header.view()))));
    return read(into.header);
  }
  [[nodiscard]] std::span<transfer<space> const> one(transfer<space> const& message) noexcept {
    message_ = message;
    return {&message_, 1};
  }
  void finish(message_buffer& out) {
    if (out.ticket != none) link_->order(out.ticket);
    out.ticket = none;
  }

  static void write(numbers& to, shape const& extents) {
    std::int32_t list[1 + shape::max_rank]{extents.rank()};
    for (int axis = 0; axis < extents.rank(); ++axis) list[1 + axis] = static_cast<std::int32_t>(extents[axis]);
    if (to.size() == 0) to = numbers(shape{1 + shape::max_rank});
    ops::on<space>::upload(to.view(), std::span<std::int32_t const>(list));
  }
  static shape read(numbers const& from) {
    std::int32_t list[1 + shape::max_rank]{};
    ops::on<space>::download(std::span<std::int32_t>(list), from.view());
    shape extents;
    for (int axis = 0; axis < list[0]; ++axis) extents.push_back(list[1 + axis]);
    return extents;
  }

  stage_link<space>* link_;
  message_plan const* plan_ = nullptr;
  std::vector<shape> const* keys_ = nullptr;
  std::vector<peer_state> peers_;
  std::vector<known_shape> predicted_;  // known without messages
  transfer<space> message_;
};

}  // namespace trireme::detail
