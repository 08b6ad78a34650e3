#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/core/assertion.hpp"
#include "trireme/core/text.hpp"
#include "trireme/parallel/bucket_plan.hpp"

namespace trireme::parallel::detail {

/// What must follow the update of a step: nothing; publish(), because each rank has updated only its part; or
/// publish(), because the strategy acts at the end of a step.
enum class publishing : std::uint8_t { nothing, parts, ends };

/// Checks the order of calls on an exchange: begin, then a ready for each use (after an open, if gradients have memory
/// only from there), finish, and publish if each rank has updated only its part, or the strategy acts at the end of a
/// step.
///
/// It counts two numbers a use and sends nothing. It always counts; the assertion level only decides whether it throws.
///
/// Errors   assertion_error (light) that names the parameter and the call that is missing.
class exchange_protocol {
 public:
  /// @param publishes  what must follow an update.
  /// @param opens      gradients have memory from open() on, in each micro-batch.
  exchange_protocol(bucket_plan const& plan, int uses, publishing publishes, bool opens)
      : plan_(plan), uses_(static_cast<std::size_t>(uses)), publishes_(publishes), opens_(opens) {}

  /// Checked before a step begins.
  void may_begin() const {
    expect(phase_ != phase::begun,
           [] { return std::string("begin() during a step; call finish() first, or abandon() to give the step up"); });
    expect_published("begin()");
  }
  /// @param own  micro-batches in which this rank reports each use; 0 if it has no samples.
  /// @param all  micro-batches in which it may, including those of other ranks in which it takes part.
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
                  "), whose gradient may be in transit; call accumulate() before the first ready() of a step");
    });
  }
  void weight() const { expect_begun("weight()"); }
  void sit_out() const { expect_begun("sit_out()"); }

  /// Checked before finish() takes part in the remaining micro-batches of other ranks.
  void may_finish() const {
    expect_begun("finish()");
    if (own_ > 0 && complete_ < uses_.size()) refuse_finish();
  }
  /// @param finite  false: there will be no update.
  void finished(bool finite) noexcept { phase_ = finite ? phase::finished : phase::idle; }
  /// Gradients are about to be read as sums.
  void update() const {
    expect(phase_ != phase::begun,
           [] { return std::string("segments() before the sums are complete; call finish() first"); });
  }
  void publish() {
    expect(phase_ != phase::begun,
           [] { return std::string("publish() before the end of a step; call finish() first"); });
    phase_ = phase::idle;
  }
  /// @param reader  the call that is about to read parameters.
  void expect_published(std::string_view reader) const {
    expect(publishes_ == publishing::nothing || phase_ != phase::finished, [&] {
      if (publishes_ == publishing::ends)
        return text(reader, " during a step, in which \"", plan_.at(0).info.name,
                    "\" was to be updated; call publish() after finish(): this strategy ends its steps there");
      return text(reader, " after an update, in which each rank changes only its part of the parameters, such as \"",
                  plan_.at(0).info.name, "\"; call publish() after finish()");
    });
  }
  void abandon() noexcept { phase_ = phase::idle; }
  /// @param call  the name of a call that reads all state.
  void expect_between_steps(std::string_view call) const {
    expect(phase_ != phase::begun, [&] { return text(call, " during a step; call finish() first"); });
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
           [&] { return text("use ", use, " is out of range; the number of uses is ", uses_.size()); });
    expect(phase_ == phase::begun, [&] { return text("ready(", named(use), ") outside a step; call begin() first"); });
    expect(false, [&] {
      if (opens_ && at(use).reports == 0)
        return text("ready(", named(use), ") without memory for it; call open() first");
      return text("ready(", named(use), ") a second time in one ", opens_ ? "micro-batch" : "step",
                  "; call it once, when the gradient is final",
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
                  "; call it for each gradient of the step (a rank without samples calls begin(0))");
    });
  }
  void expect_begun(char const* call) const {
    expect(phase_ == phase::begun, [&] { return text(call, " outside a step; call begin() first"); });
  }
  [[nodiscard]] use_state& at(int use) noexcept { return uses_[static_cast<std::size_t>(use)]; }
  [[nodiscard]] use_state const& at(int use) const noexcept { return uses_[static_cast<std::size_t>(use)]; }
  // The parameter, and the number of the use if there are several.
  [[nodiscard]] std::string named(int use) const {
    auto const& entry = plan_.at(plan_.entry_of_use(use));
    auto const which = entry.uses.size() > 1 ? text(" (use ", use, ")") : std::string();
    return text("\"", entry.info.name, "\"", which);
  }

  bucket_plan const& plan_;
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
