// The headers between what other libraries leave behind: macros of Qt, X11, C and the kernel, all names of the standard
// library in the global namespace before them, and both namespaces open behind them (tests/headers.cmake).
#if __has_include(<bits/stdc++.h>)
#include <bits/stdc++.h>
#endif
#include <complex.h>
#include <fcntl.h>
#include <sys/param.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <termios.h>

#define slots
#define signals public
#define emit
#define forever for (;;)
#define foreach(each, all) for (each : all)
#define Bool int
#define Status int
#define None 0L
#define Always 2
#define True 1
#define False 0
#define OVERFLOW 3
#define DOMAIN 1
#define ERROR 0
#define IN
#define OUT
#define interface struct
#define verify(x) (x)
#define require(x) (x)
#define ensure(x) (x)
#define stringify(x) #x
#define unreachable() __builtin_unreachable()
#define likely(x) __builtin_expect(x, 1)
#define unlikely(x) __builtin_expect(x, 0)
#undef assert
#define assert(x) static_cast<void>(0)
#undef I
#define I _Complex_I

namespace std {}
using namespace std;

#include <trireme/trireme.hpp>

using namespace trireme;

double program() {
  double loss = 0;
  trireme::launch(comm::threads{.ranks = 2}, [&](auto& world) {
    auto const data = data::function([](float x) { return sin(x); }, {.samples = 64});
    auto trainer = make_trainer(nn::mlp{.inputs = 1, .hidden = {4}, .outputs = 1}, optim::adamw{.learning_rate = 3e-3},
                                world, parallel::zero<1>{}, precision::bf16{}, compression::top_k{.ratio = 0.5F});
    auto const report = trainer.fit(data, {.steps = 2, .batch = 8});
    vector<float> const features{0.5F};
    if (world.rank() == 0) loss = report.last_loss + trainer.predict(features)[0];
    vector<double> numbers(3, 1.0);
    world.all_reduce(tensor_view{numbers}, reduction::sum{});
  });
  return loss;
}
