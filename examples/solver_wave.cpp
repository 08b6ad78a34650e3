// solver_wave: a drum that is struck, with MPI between strips and OpenMP in them, and a network that learns what a
// costly boundary does.
//
//   scripts/example --mpirun 2 solver_wave
//
// Only the thread that has called MPI_Init_thread calls MPI (MPI_THREAD_FUNNELED). The drum's skin is damped by a law
// that takes long to compute; all threads fill a matrix of Eigen with what the law has seen and said, a column a cell,
// which the trainer reads where it lies. Lines that are Trireme's have a "+".
//
// test-ranks: 1 3 7
// test:
#include <mpi.h>
#include <omp.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/core.h>

#include "trireme/comm/mpi.hpp"  // +
#include "trireme/trireme.hpp"   // +

namespace {

constexpr int width = 32, height = 42, steps = 150;
constexpr double speed = 0.2, pi = 3.14159265358979;

/// The damping of a cell that stands at `place` and moves with `velocity`: friction that a root has to be found for.
double damping(double place, double velocity) {
  double force = 0;
  for (int i = 0; i < 40; ++i) force -= 0.5 * (force + 0.3 * std::sin(force) - velocity * (1 + 5 * place * place));
  return force;
}

struct drum {
  int rank = 0, ranks = 1, rows = 0;
  std::vector<double> place, velocity, next;
  Eigen::MatrixXf seen, said;  // (2, cells) and (1, cells)

  drum() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int const first = height * rank / ranks;
    rows = height * (rank + 1) / ranks - first;
    for (auto* const field : {&place, &velocity, &next}) field->assign(static_cast<std::size_t>((rows + 2) * width), 0);
    for (int y = 1; y <= rows; ++y)
      for (int x = 0; x < width; ++x)
        place[at(x, y)] = std::sin(2 * pi * x / width) * std::sin(2 * pi * (first + y - 0.5) / height);
    seen.resize(2, rows * width), said.resize(1, rows * width);
  }
  static std::size_t at(int x, int y) { return static_cast<std::size_t>(y * width + x); }

  void exchange_ghosts() {
    int const up = (rank + ranks - 1) % ranks, down = (rank + 1) % ranks;
    MPI_Sendrecv(&place[at(0, 1)], width, MPI_DOUBLE, up, 0, &place[at(0, rows + 1)], width, MPI_DOUBLE, down, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&place[at(0, rows)], width, MPI_DOUBLE, down, 1, &place[at(0, 0)], width, MPI_DOUBLE, up, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void advance() {
    exchange_ghosts();
#pragma omp parallel for
    for (int y = 1; y <= rows; ++y) {
      for (int x = 0; x < width; ++x) {
        auto const i = at(x, y);
        double const left = place[at((x + width - 1) % width, y)], right = place[at((x + 1) % width, y)];
        double const force = damping(place[i], velocity[i]);
        auto const cell = static_cast<Eigen::Index>(i) - width;
        seen.col(cell) << static_cast<float>(place[i]), static_cast<float>(velocity[i]);
        said(0, cell) = static_cast<float>(force);
        velocity[i] += speed * (left + right + place[i - width] + place[i + width] - 4 * place[i]) - 0.002 * force;
        next[i] = place[i] + velocity[i];
      }
    }
    place.swap(next);
  }
};

int run() {
  drum drum;
  omp_set_num_threads(std::max(1, omp_get_num_procs() / drum.ranks));
  auto world = trireme::comm::mpi::borrow(MPI_COMM_WORLD);                                    // +
  auto trainer = trireme::make_trainer(trireme::nn::mlp{.inputs = 2, .hidden = {24, 24}},     // +
                                       trireme::optim::adamw{.learning_rate = 5e-3}, world);  // +
  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    drum.advance();
    auto const seen = trireme::samples_in_columns(drum.seen);  // +
    auto const said = trireme::samples_in_columns(drum.said);  // +
    for (int again = 0; again < 4; ++again) {                  // +
      last = trainer.step(seen, said).loss;                    // +
      if (step + again == 0) first = last;                     // +
    }                                                          // +
  }
  auto const predicted = trainer.predict(trireme::samples_in_columns(drum.seen));             // +
  Eigen::Map<Eigen::RowVectorXf const> const law(predicted.span().data(), predicted.size());  // +
  float const worst = (law - drum.said).cwiseAbs().maxCoeff();
  if (drum.rank == 0)
    fmt::print("{} ranks: loss {:.3e} -> {:.3e}; worst {:.3f}\n", drum.ranks, first, last, double{worst});
  return last < 0.05 * first ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  int const code = run();
  MPI_Finalize();
  return code;
}
