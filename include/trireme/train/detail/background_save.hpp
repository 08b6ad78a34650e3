#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "trireme/train/checkpoint.hpp"
#include "trireme/train/detail/held_state.hpp"
#include "trireme/train/patience.hpp"

namespace trireme::checkpoint::detail {

/// A checkpoint that a thread writes while this rank goes on. Only the rank itself talks to the others.
template <class Comm>
class background_save {
 public:
  /// Collective. Copies the state that for_each shows, and starts to write it.
  /// @param memory  for the copy; it and the world are this object's until it is destroyed.
  template <class ForEach>
  background_save(Comm& world, std::string const& path, identity& own, run_description const& run, progress const& at,
                  patience patience, keeping const& keep, formats::file_system& files, held_state& memory,
                  ForEach&& for_each)
      : step_(at.step), patience_(std::move(patience)), writing_(world, path, own, run, at, keep, files) {
    trireme::detail::together(world, [&] { memory.copy(for_each); });
    thread_ = std::thread([this, &memory] {
      try {
        auto const pieces = [&](auto&& piece) { memory.for_each(piece); };
        told_progress told(patience_, 2, pieces);  // hashed, and then written
        writing_.write([&](auto&& piece) { pieces(told.after(piece)); });
      } catch (std::exception const&) {
        failure_ = std::current_exception();
      }
      done_.store(true, std::memory_order_release);
    });
  }
  ~background_save() {
    if (thread_.joinable()) thread_.join();
  }
  background_save(background_save const&) = delete;
  background_save& operator=(background_save const&) = delete;

  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  /// Whether this rank's file is there, or has failed.
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] double seconds() const noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  /// Collective. Waits for all ranks' files and makes the checkpoint the newest one.
  void publish() {
    thread_.join();
    patient_world<Comm>::within([&] { writing_.publish(failure_); });
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t step_;
  patience patience_;
  writing<Comm> writing_;
  std::exception_ptr failure_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace trireme::checkpoint::detail
