// Ranks that are not equally fast: seconds per step with even shares of a batch, with measured ones, and with those
// that the known speeds ask for. One JSON object a row: {"shares": "even" | "auto" | "ideal", "seconds_per_step"}, the
// median of rounds in which the three take turns.
//   unequal [--slow RANK:SPEED (1:0.5)] [--ranks N (2)] [--rounds N (9)]
// A rank of speed 0.5 sleeps after each pass for as long as the pass has taken. The model is a perceptron
// 256 - 512 - 256, a batch has 192 samples; ranks are threads.

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "trireme/trireme.hpp"

namespace {

using namespace trireme;
using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using rows_of = Eigen::Map<matrix const>;

constexpr std::int64_t inputs = 256, hidden = 512;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Until it is destroyed the processor has such a speed: then it sleeps for the time that it would take more.
class slowed {
 public:
  explicit slowed(double speed) : speed_(speed), begin_(now()) {}
  slowed(slowed const&) = delete;
  slowed& operator=(slowed const&) = delete;
  ~slowed() {
    double const more = (now() - begin_) * (1 / speed_ - 1);
    if (more > 0) std::this_thread::sleep_for(std::chrono::duration<double>(more));
  }

 private:
  double speed_, begin_;
};

/// The perceptron, on a processor of such a speed.
class perceptron {
 public:
  explicit perceptron(double speed) : speed_(speed), values_(2 * inputs * hidden), gradient_(values_.size()) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = 0.05F * std::sin(static_cast<float>(i) * 1.7F);
  }

  void visit_parameters(auto&& visit) { visit("weights", tensor_view{values_}, tensor_view{gradient_}); }
  float forward(samples const& batch) {
    slowed const pass(speed_);
    auto const n = batch.count();
    x_ = rows_of(batch.inputs.as<float>().address(), n, inputs);
    middle_.noalias() = x_ * first();
    middle_ = middle_.array().tanh();
    error_.noalias() = middle_ * second();
    error_ -= rows_of(batch.targets.as<float>().address(), n, inputs);
    return error_.squaredNorm() / static_cast<float>(n);
  }
  void backward(auto&& ready) {
    compute_gradient();
    ready("weights");
  }

 private:
  void compute_gradient() {
    slowed const pass(speed_);
    error_ *= 2 / static_cast<float>(x_.rows());
    Eigen::Map<matrix>(gradient_.data() + inputs * hidden, hidden, inputs).noalias() = middle_.transpose() * error_;
    slope_.noalias() = error_ * second().transpose();
    slope_.array() *= 1 - middle_.array().square();
    Eigen::Map<matrix>(gradient_.data(), inputs, hidden).noalias() = x_.transpose() * slope_;
  }
  [[nodiscard]] rows_of first() const { return {values_.data(), inputs, hidden}; }
  [[nodiscard]] rows_of second() const { return {values_.data() + inputs * hidden, hidden, inputs}; }

  double speed_;
  std::vector<float> values_, gradient_;
  matrix x_, middle_, error_, slope_;
};

struct asked {
  int slow = 1;
  double speed = 0.5;
  int ranks = 2;
  int rounds = 9;

  asked(int count, char** words) {
    std::string const usage = "unequal [--slow RANK:SPEED] [--ranks N] [--rounds N]";
    for (int i = 1; i + 1 < count; i += 2) {
      std::string const name = words[i], value = words[i + 1];
      auto const colon = value.find(':');
      if (name == "--slow" && colon != value.npos) {
        slow = std::atoi(value.c_str());
        speed = std::atof(value.c_str() + colon + 1);
      } else if (name == "--ranks") {
        ranks = std::atoi(value.c_str());
      } else if (name == "--rounds") {
        rounds = std::atoi(value.c_str());
      } else {
        throw config_error(text("unequal: \"", name, " ", value, "\" is no option; ", usage));
      }
    }
    if (count % 2 == 0) throw config_error(text("unequal: an option lacks its value; ", usage));
    if (ranks < 2 || ranks > 64 || rounds < 1)
      throw config_error(text("unequal: ", ranks, " ranks and ", rounds, " rounds; give 2 to 64, and at least one"));
    if (slow < 0 || slow >= ranks || !(speed > 0 && speed <= 1))
      throw config_error(text("unequal: --slow ", slow, ":", speed, "; give a rank of ", ranks,
                              ", and a speed above 0 and "
                              "up to 1"));
  }
  [[nodiscard]] double speed_of(int rank) const { return rank == slow ? speed : 1; }
};

}  // namespace

int main(int count, char** words) try {
  asked const how(count, words);
  tensor<float> x({1024, inputs}), y({1024, inputs});
  for (std::int64_t i = 0; i < x.size(); ++i) {
    x.span()[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(i % 9973));
    y.span()[static_cast<std::size_t>(i)] = std::cos(static_cast<float>(i % 7919));
  }
  auto const data = data::in_memory(x.view(), y.view());
  launch(comm::threads{.ranks = how.ranks}, [&](auto& world) {
    struct row {
      char const* name;
      data::shares shares;
      std::vector<double> seconds{};
    };
    std::array<row, 3> rows{{{"even", {}}, {"auto", {.measure_every = 10}}, {"ideal", {}}}};
    for (int rank = 0; rank < how.ranks; ++rank)
      rows[2].shares.weights.push_back(static_cast<std::int64_t>(1000 * how.speed_of(rank) + 0.5));
    constexpr std::int64_t warm = 40, steps = 20, batch = 192;
    auto const train = [&] {
      return make_trainer(perceptron(how.speed_of(world.rank())), optim::sgd{.learning_rate = 1e-3}, world);
    };
    auto even = train(), measured = train(), ideal = train();
    auto const run = [&](auto& trainer, row& to, std::int64_t last) {
      auto const report = trainer.fit(
          data, {.steps = 1 << 30, .batch = batch, .stop_after = last, .check_every = 0, .shares = to.shares});
      if (last > warm) to.seconds.push_back(report.seconds / static_cast<double>(report.steps));
    };
    for (int round = 0; round <= how.rounds; ++round) {
      auto const last = warm + round * steps;
      run(even, rows[0], last);
      run(measured, rows[1], last);
      run(ideal, rows[2], last);
    }
    if (world.rank() != 0) return;
    for (auto& each : rows) {
      auto const middle = each.seconds.begin() + static_cast<std::ptrdiff_t>(each.seconds.size() / 2);
      std::nth_element(each.seconds.begin(), middle, each.seconds.end());
      std::printf("{\"shares\": \"%s\", \"seconds_per_step\": %.6f}\n", each.name, *middle);
    }
  });
} catch (std::exception const& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
