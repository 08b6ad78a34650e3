#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/assertion.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/layout.hpp"

namespace trireme::parallel::detail {

/// What a step with an update may not be left without: nothing; publish(), because each rank has updated only its part;
/// or publish(), because the strategy does something when a step ends.
enum class publishing : std::uint8_t { nothing, parts, ends };

/// Which calls of an exchange may come now: begin, then a ready for each use (after an open where gradients have memory
/// only then), finish, and publish where each rank has updated only its part, or the strategy ends a step with
/// something.
///
/// It counts two numbers a use and sends nothing, and it always counts: only whether it speaks depends on the assertion
/// level.
///
/// Errors   assertion_error (light) that names the parameter and the call that is missing.
class exchange_protocol {
 public:
  /// @param publishes  updated values reach the other ranks by publish().
  /// @param opens      gradients have memory from open() on, in each micro-batch.
  exchange_protocol(layout const& plan, int uses, publishing publishes, bool opens)
      : plan_(plan), uses_(static_cast<std::size_t>(uses)), publishes_(publishes), opens_(opens) {}

  /// Before anything is done for a step.
  void may_begin() const {
    expect(phase_ != phase::begun, [] {
      return std::string(
          "begin() in a step that is not over; finish() of that step is missing, or abandon() to give it up");
    });
    expect_published("begin()");
  }
  /// @param own  micro-batches in which this rank reports each use; 0 where it has no samples.
  /// @param all  those in which it may: the ones that it only takes part in are among them.
  void begin(std::int64_t own, std::int64_t all) noexcept {
    phase_ = phase::begun;
    own_ = own;
    all_ = all;
    complete_ = 0;
    some_reported_ = false;
    std::fill(uses_.begin(), uses_.end(), use_state{0, !opens_});
  }
  void open(int first, int last) {
    expect_begun("open()");
    for (int use = first; use < last; ++use) at(use).open = true;
  }
  void ready(int use) {
    if (phase_ != phase::begun || static_cast<std::size_t>(use) >= uses_.size() || !at(use).open ||
        at(use).reports >= all_)
      return refuse_ready(use);
    auto& it = at(use);
    it.open = !opens_;
    some_reported_ = true;
    if (++it.reports == own_) ++complete_;
  }
  void accumulate() const {
    expect_begun("accumulate()");
    expect(!some_reported_, [&] {
      std::size_t use = 0;
      while (uses_[use].reports == 0) ++use;
      return text("accumulate() after ready(", named(static_cast<int>(use)),
                  "), whose gradient may be on its way; accumulate() belongs before the first ready() of a step");
    });
  }
  void weight() const { expect_begun("weight()"); }
  void sit_out() const { expect_begun("sit_out()"); }

  /// Before finish() takes part in what other ranks have more of.
  void may_finish() const {
    expect_begun("finish()");
    if (own_ > 0 && complete_ < uses_.size()) refuse_finish();
  }
  /// @param finite  false: nothing is to be updated.
  void finished(bool finite) noexcept { phase_ = finite ? phase::finished : phase::idle; }
  /// Gradients are about to be read as sums.
  void update() const {
    expect(phase_ != phase::begun,
           [] { return std::string("for_each_segment() before the sums; finish() is missing"); });
  }
  void publish() {
    expect(phase_ != phase::begun, [] { return std::string("publish() in a step; finish() is missing"); });
    phase_ = phase::idle;
  }
  /// @param reader  the call that is about to read parameters.
  void expect_published(std::string_view reader) const {
    expect(publishes_ == publishing::nothing || phase_ != phase::finished, [&] {
      if (publishes_ == publishing::ends)
        return text(reader, " in a step that is not over, in which \"", plan_.at(0).info.name,
                    "\" was to be updated; publish(), with which this strategy's steps end, is missing after finish()");
      return text(reader, " after an update in which each rank has changed only its part of the parameters, \"",
                  plan_.at(0).info.name, "\" among them; publish() is missing after finish()");
    });
  }
  void abandon() noexcept { phase_ = phase::idle; }
  /// @param call  that sees all state.
  void expect_between_steps(std::string_view call) const {
    expect(phase_ != phase::begun,
           [&] { return text(call, " in a step that is not over; finish() of that step is missing"); });
    expect_published(call);
  }

 private:
  enum class phase : std::uint8_t { idle, begun, finished };
  struct use_state {
    std::int32_t reports = 0;  // in this step
    bool open = false;         // may be reported now
  };

  template <class Sentence>
  static void expect(bool condition, Sentence&& sentence) {
    expects(assertion_level::light, condition, [&] { return "trireme::exchange: " + sentence(); });
  }
  [[gnu::noinline]] void refuse_ready(int use) const {
    expect(static_cast<std::size_t>(use) < uses_.size(),
           [&] { return text("there is no use ", use, " of ", uses_.size()); });
    expect(phase_ == phase::begun, [&] { return text("ready(", named(use), ") outside a step; begin() is missing"); });
    expect(false, [&] {
      if (opens_ && at(use).reports == 0)
        return text("ready(", named(use), ") without memory for it; open() is missing");
      return text("ready(", named(use), ") a second time in one ", opens_ ? "micro-batch" : "step",
                  "; call it once, when nothing is added to the gradient any more",
                  opens_ ? "" : " (accumulate() adds an earlier micro-batch)");
    });
  }
  [[gnu::noinline]] void refuse_finish() const {
    int missing = 0;
    int first = 0;
    for (int use = static_cast<int>(uses_.size()); use-- > 0;) {
      if (at(use).reports >= own_) continue;
      ++missing;
      first = use;
    }
    expect(missing == 0, [&] {
      return text("finish() without ready(", named(first), ")",
                  missing > 1 ? text(", nor for ", missing - 1, " more") : std::string(),
                  "; ready() is missing for each gradient of the step (a rank without samples calls begin(0))");
    });
  }
  void expect_begun(char const* call) const {
    expect(phase_ == phase::begun, [&] { return text(call, " outside a step; begin() is missing"); });
  }
  [[nodiscard]] use_state& at(int use) noexcept { return uses_[static_cast<std::size_t>(use)]; }
  [[nodiscard]] use_state const& at(int use) const noexcept { return uses_[static_cast<std::size_t>(use)]; }
  // The parameter, and which of its uses where there are several.
  [[nodiscard]] std::string named(int use) const {
    auto const& entry = plan_.at(plan_.entry_of_use(use));
    auto const which = entry.uses.size() > 1 ? text(" (use ", use, ")") : std::string();
    return text("\"", entry.info.name, "\"", which);
  }

  layout const& plan_;
  std::vector<use_state> uses_;
  publishing publishes_;
  bool opens_;
  phase phase_ = phase::idle;
  std::int64_t own_ = 0;
  std::int64_t all_ = 0;
  std::size_t complete_ = 0;  // uses that have been reported in all own micro-batches
  bool some_reported_ = false;
};

}  // namespace trireme::parallel::detail
