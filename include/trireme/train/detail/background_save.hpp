#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "trireme/train/checkpoint.hpp"
#include "trireme/train/detail/held_state.hpp"
#include "trireme/train/patience.hpp"

namespace trireme::checkpoint::detail {

/// A checkpoint that is written during training: the part of the interface that a trainer needs even if it never makes
/// one.
class pending_save {
 public:
  explicit pending_save(std::int64_t step) : step_(step) {}
  virtual ~pending_save() = default;
  pending_save(pending_save const&) = delete;
  pending_save& operator=(pending_save const&) = delete;

  [[nodiscard]] std::int64_t step() const noexcept { return step_; }
  [[nodiscard]] double seconds() const noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  /// Whether this rank's file is complete, or has failed.
  [[nodiscard]] virtual bool done() const noexcept = 0;
  /// Collective. Waits for all ranks' files and makes the checkpoint the newest one.
  virtual void publish() = 0;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t step_;
};

/// A checkpoint that a thread writes while this rank trains. The thread does not communicate; only the rank itself
/// does.
template <class Comm>
class background_save final : public pending_save {
 public:
  /// Collective. Copies the state of the pieces, and starts to write the copy.
  /// @param memory  for the copy; this object uses it and the world until it is destroyed.
  background_save(Comm& world, std::string const& path, identity& own, run_description const& run, progress const& at,
                  patience patience, keeping const& keep, formats::file_system& files, held_state& memory,
                  std::span<state_shard const> shards, std::vector<formats::model_file> const& model_files)
      : pending_save(at.step),
        patience_(std::move(patience)),
        writing_(world, path, own, run, at, keep, files, model_files) {
    trireme::detail::together(world, [&] { memory.copy(shards); });
    thread_ = std::thread([this, &memory] {
      try {
        progress_reporter reporter(patience_, 2, memory.shards());
        writing_.write(memory.shards(), reporter);
      } catch (std::exception const&) {
        failure_ = std::current_exception();
      }
      done_.store(true, std::memory_order_release);
    });
  }
  ~background_save() override {
    if (thread_.joinable()) thread_.join();
  }

  [[nodiscard]] bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  void publish() override {
    thread_.join();
    patient_world<Comm>::within([&] { writing_.publish(failure_); });
  }

 private:
  patience patience_;
  writing<Comm> writing_;
  std::exception_ptr failure_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace trireme::checkpoint::detail
