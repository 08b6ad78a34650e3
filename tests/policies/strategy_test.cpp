// test-sanitize: none
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <trireme/trireme.hpp>

#include "../catch.hpp"
#include "../formats/scratch.hpp"
#include "../watchdog.hpp"

// A parallel strategy and a precision as a user writes them from docs/write_a_policy.md, with public headers only.

using namespace trireme;

namespace {

/// Ranks train alone and average their parameters after every `period` steps; what they keep besides is how often.
struct averaging {
  using policy_category = slot::parallel;
  std::int64_t period = 4;
  std::int64_t bucket_bytes = 4096;
  int ways = 0;
  friend bool operator==(averaging const&, averaging const&) = default;

  static constexpr distribution optimizer_state = distribution::replicate;
  static constexpr distribution gradients = distribution::replicate;
  static constexpr distribution parameters = distribution::replicate;
  static constexpr std::string_view name = "averaging";

  template <class Env, class Comm, class Compressor>
  class instance : public parallel::local_exchange<Env, Comm, Compressor> {
    using base = parallel::local_exchange<Env, Comm, Compressor>;

   public:
    template <class Parameters, class... More>
    instance(Parameters all, Comm& replicas, averaging const& what, Compressor const& compressor, More&&... more)
        : base(std::move(all), replicas, what.bucket_bytes, compressor, std::forward<More>(more)...),
          period_(what.period) {}
    std::int64_t period() const { return period_; }
    bool end(std::int64_t step) {
      if ((step + 1) % period_ != 0) return false;
      this->for_each_tensor([&](int bucket, auto const& piece) {
        this->world().all_reduce(this->master_of(bucket, piece), reduction::mean{});
      });
      this->refresh_parameters();
      ++meetings_;
      return true;
    }
    template <class F>
    void visit_numbers(F&& f) {
      f("averaging/meetings", meetings_);
    }
    std::int64_t meetings() const { return meetings_; }

   private:
    std::int64_t period_;
    std::int64_t meetings_ = 0;
  };
};
std::string to_string(averaging const& a) { return text("averaging{.period = ", a.period, "}"); }

/// Float with a running scale.
struct scaled {
  using policy_category = slot::precision;
  using param = float;
  using compute = float;
  using accumulate = float;
  using reduce = float;
  using master = float;
  static constexpr double tolerance = 1e-5;
  static constexpr std::string_view name = "scaled";
  friend bool operator==(scaled const&, scaled const&) = default;

  class instance {
   public:
    explicit instance(scaled const&) {}
    double scale() const { return scale_; }
    bool decide(bool finite) {
      scale_ = finite && scale_ < 4096 ? 2 * scale_ : 16;
      return finite;
    }
    std::int64_t normal_skips() const { return 30; }
    template <class F>
    void visit_numbers(F&& f) {
      f("precision/scale", scale_);
    }

   private:
    double scale_ = 16;
  };
};

auto const sine = data::function([](float x) { return std::sin(x); }, {.samples = 96});

template <class... Policies>
std::uint64_t run(int ranks, std::int64_t steps, std::string const& load, std::string const& save,
                  Policies const&... policies) {
  std::uint64_t hash = 0;
  launch(comm::threads{.ranks = ranks}, [&](auto& world) {
    auto trainer = make_trainer(nn::mlp{.hidden = {24}}, optim::adamw{.rate = 1e-2}, world, policies...);
    if (!load.empty()) trainer.load(load);
    auto const report = trainer.fit(sine, {.steps = 30, .batch = 16, .stop_after = steps});
    if (load.empty() && steps == 30 && !(report.last_loss < 0.7 * report.first_loss)) throw error("it does not learn");
    if (!save.empty()) trainer.save(save);
    if constexpr (requires { trainer.exchange().meetings(); }) {
      if (trainer.exchange().meetings() != steps / 4) throw error("the number of meetings is not state");
    }
    auto const mine = trainer.state_hash();
    if (world.rank() == 0) hash = mine;
  });
  return hash;
}

template <class... Policies>
void trains_and_goes_on(Policies const&... policies) {
  watchdog const guard("a policy of a user's own");
  for (int const ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    scratch folder;
    auto const saved = run(ranks, 11, "", folder.path(), policies...);
    CHECK(run(ranks, 11, folder.path(), "", policies...) == saved);
    CHECK(run(ranks, 30, folder.path(), "", policies...) == run(ranks, 30, "", "", policies...));
  }
}

}  // namespace

TEST_CASE("a user's strategy that averages every few steps trains and goes on bit for bit", "[policies]") {
  trains_and_goes_on(averaging{});
}

TEST_CASE("a user's precision with a running scale trains and goes on bit for bit", "[policies]") {
  trains_and_goes_on(scaled{});
  // A power of two changes no bit of a float's gradient.
  CHECK(run(2, 30, "", "", scaled{}) != 0);
}
