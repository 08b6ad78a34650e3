#pragma once

#include <string>
#include <vector>

#include <fmt/core.h>

#include "layouts.hpp"
#include "published.hpp"

// docs/on_paper.md, generated from the tables.
namespace on_paper {

[[nodiscard]] inline double gb(double bytes) { return 1e-9 * bytes; }
[[nodiscard]] inline double gb(std::int64_t bytes) { return 1e-9 * static_cast<double>(bytes); }

[[nodiscard]] inline std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }
[[nodiscard]] inline std::string ratio(compared const& it) {
  return it.published == 0 ? std::string("-") : fmt::format("{:.2f}", it.ratio());
}

[[nodiscard]] inline std::string table_of_memory(std::vector<row> const& all) {
  auto out = std::string(
      "| model | ranks | mesh | parameters | gradients | optimizer | published | ratio | activations | published | "
      "ratio |"
      " buffers | sum |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (auto const& it : all) {
    auto const& held = it.memory;
    out += fmt::format(
        "| {} | {} | `{}` | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {} | {:.1f} | {:.1f} | {} | {:.1f} |"
        " {:.1f}{} |\n",
        it.model, it.on.ranks, it.on.name(), gb(held.parameters), gb(held.gradients), gb(held.optimizer),
        gb(it.state.published), ratio(it.state), gb(held.activations), gb(it.activations.published),
        ratio(it.activations), gb(held.buffers), gb(held.total()), it.fits() ? "" : ": does not fit");
  }
  return out;
}

[[nodiscard]] inline std::string table_of_time(std::vector<row> const& all) {
  auto out = std::string(
      "| model | ranks | mesh | m | bubble | published | ratio | sent inside | outside | messages | computing | step "
      "|\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (auto const& it : all) {
    out += fmt::format(
        "| {} | {} | `{}` | {} | {} | {} | {} | {:.1f} | {:.1f} | {:.0f} | {:.2f} | {:.2f} - {:.2f} s |\n", it.model,
        it.on.ranks, it.on.name(), it.micro_batches, it.on.stages > 1 ? percent(it.bubble.plan) : "-",
        it.on.stages > 1 ? percent(it.bubble.published) : "-", ratio(it.bubble), gb(it.inside), gb(it.outside),
        it.messages, it.computing, it.at_best, it.at_worst);
  }
  return out;
}

[[nodiscard]] inline std::string table_of_bubbles() {
  auto out = std::string(
      "| p | schedule | v | m = 2p | published | ratio | m = 8p | published | ratio | in flight | published | ratio |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (auto const& it : bubbles()) {
    out += fmt::format("| {} | `{}` | {}", it.stages, it.schedule, it.chunks);
    for (auto const& share : {it.few, it.many})
      out += fmt::format(" | {} | {} | {}", percent(share.plan), percent(share.published), ratio(share));
    out += fmt::format(" | {} | {} | {} |\n", it.in_flight.plan, it.in_flight.published, ratio(it.in_flight));
  }
  return out;
}

[[nodiscard]] inline std::string table_of_states() {
  auto out = std::string("| N |");
  for (auto const* stage : {"data", "stage 1", "stage 2", "stage 3"})
    out += fmt::format(" {} | published | ratio |", stage);
  out += "\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (auto const& it : states()) {
    out += fmt::format("| {}", it.ranks);
    for (auto const& one : it.stages)
      out += fmt::format(" | {:.{}f} | {:.{}f} | {}", one.plan, one.plan < 1 ? 3 : 1, one.published,
                         one.plan < 1 ? 3 : 1, ratio(one));
    out += " |\n";
  }
  return out;
}

[[nodiscard]] inline std::string table_of_layers() {
  auto out = std::string(
      "| a layer on | kept | published | ratio | sent | published | ratio |\n|---|---|---|---|---|---|---|\n");
  auto const published = [](compared const& it) {
    return it.published == 0 ? std::string("-") : fmt::format("{:.2f}", it.published);
  };
  for (auto const& it : layers()) {
    out += fmt::format("| {} | {:.2f} | {} | {} | {:.2f} | {} | {} |\n", it.on, it.kept.plan, published(it.kept),
                       ratio(it.kept), it.sent.plan, published(it.sent), ratio(it.sent));
  }
  return out;
}

[[nodiscard]] inline std::string table_of_exchanges() {
  auto out = std::string("| | plan | published | ratio |\n|---|---|---|---|\n");
  char const* const names[] = {"`data`", "`zero<1>`", "`zero<2>`", "`zero<3>`"};
  auto const all = exchanges();
  for (std::size_t stage = 0; stage < all.size(); ++stage)
    out += fmt::format("| {} | {:.3f} | {:.3f} | {} |\n", names[stage], all[stage].plan, all[stage].published,
                       ratio(all[stage]));
  return out;
}

/// @param digits  after the decimal point.
[[nodiscard]] inline std::string table_of_collectives(std::vector<collective_row> const& all, int digits) {
  auto out = std::string(
      "| collective, published as | bytes | p | plan, us | published, us | ratio |\n|---|---|---|---|---|---|\n");
  for (auto const& it : all) {
    auto const size = it.bytes >= 1 << 30   ? fmt::format("{} GiB", it.bytes / (1 << 30))
                      : it.bytes >= 1 << 20 ? fmt::format("{} MiB", it.bytes / (1 << 20))
                      : it.bytes >= 1 << 10 ? fmt::format("{} KiB", it.bytes / (1 << 10))
                                            : fmt::format("{} B", it.bytes);
    out += fmt::format("| {} | {} | {} | {:.{}f} | {:.{}f} | {} |\n", it.what, size, it.ranks, 1e6 * it.seconds.plan,
                       digits, 1e6 * it.seconds.published, digits, ratio(it.seconds));
  }
  return out;
}

/// @param all  large_rows().
[[nodiscard]] inline std::string page(std::vector<row> const& all) {
  return fmt::format(
      R"(# On paper

The results of `plan_for` and the schedule simulator ([plan.md](plan.md), [strategies.md](strategies.md)) for worlds
larger than any test machine, compared with published figures. `examples/on_paper` generates this page in seconds on one
core: no model is allocated, and no rank exists. The test `train.on_paper` generates it again, and checks it and the
ratios.

A ratio is the plan's figure over the published one. If it is not 1, the reasons are below its table.

## 7 and 70 billion parameters on 8 to 16384 ranks

GPTs of {:.2f} billion (32 layers of 4096 channels) and {:.2f} billion parameters (86 layers of 8192), 128000 tokens, in
bfloat16 with AdamW, without dropout. A step has 2048 samples of 4096 tokens, one per micro-batch; the last row has 128
of 131072, on the mesh that [Llama team, 2024] used for such samples. Meshes are written outermost first; `tensor` means
`tensor` with `sequence`, `interleaved` has two chunks per stage.

### Memory

GB of the rank that has most, with each stage planned separately. Ranks have 80 GB. The first published column is for
parameters, gradients and optimizer together: [Rajbhandari et al., 2020], 4 + 12/d bytes per parameter at stage 1 and
16/d at stage 3 on d ranks, for 1/(p t) of the model. The second is for activations: [Korthikanti et al., 2022], 32/t
bytes per element and layer (34/t without the dropout masks), times the micro-batches in flight.

{}
* Gradients are kept in float, 4 bytes and not 2, so that sums of micro-batches and ranks are not rounded each time.
  This changes the formulas to 6 + 12/d and 18/d: ratios of up to 1.5, and of 1.13.
* A tied table has two gradients if gradients are whole (7B: 2 of 30 GB). In pipelines the first stage has the table and
  the positions besides its share of layers, since they cost no operations (1.16 of 6 + 12/d); for 131072 tokens the
  positions are a billion parameters, which `tensor` does not split (3).
* Slices are whole blocks of 1024 elements, which pads each bucket to a multiple of 1024 d: 8 MiB of gradients for 2048
  replicas. This padding grows from 512 replicas on (1.68, 1.95).
* Parts are whole units with nearly equal operations, and a head of 128000 tokens costs as much as 1.2 layers: of 8
  parts, the last has 9 layers and the others 11 (1.06). Chunks of `interleaved` have 5 or 6 layers. The memory of a
  micro-batch in flight is reused for both sizes, so in a long step all of it grows to the larger one (1.15; in a short
  one 1.06).
* `zbv` keeps two more gradients of each layer between the halves of a backward (1.29), and sends a fifth more within
  `tensor`: the second half gathers once more what `sequence` splits.
* Scratch memory of one layer is additional: 0.1 to 0.8 GB.

### Bubble, bytes and time

Bubble: idle time over the time of the work; published (p - 1)/m and (p - 1)/(v m) [Narayanan et al., 2021], and none
for `zbv` [Qi et al., 2024]. Bytes and messages per step are those of the rank that sends most: *inside*, GB to ranks of
its machine (eight, the `tensor` group), *outside*, to all others. Computing is the slowest stage's. The two times of a
step are with all communication overlapped and with none, at 400 TFLOP/s per rank, 450 GB/s inside, 50 GB/s outside and
5 us for each latency that a rank waits for: an H100 at the speed of large trainings, with a port of 400 Gbit/s.
Collectives of p ranks wait for ceil(log2 p) latencies, as in `comm::mpi` (docs/plan.md); the processor's time per
message is not included.

{}
* `zbv` is published with no bubble between the first and the last step of a stage, if F = B - W = W and m >= 2p - 1
  (not the case in the rows of 16384 ranks). A plan also counts a stage's waiting before and after these steps, since
  training steps do not overlap here; and the halves of a GPT's backward differ: attention's is all in the first.
* Bubbles assume equal stages. They are not equal: of 8, seven have 11 layers, 1 % more than an eighth. The step's time
  assumes that all are like the slowest, so it is an upper estimate.
* `zero3` sends values twice and gradients once for every micro-batch, and one sample is too little work for that on
  slow links: use larger micro-batches, or a pipeline.
* Large values are sent directly from each rank to each other one, so messages grow with N. [Collectives](#collectives)
  compares their cost with published algorithms.
* These are first estimates, without kernels that only move memory, the optimizer and congested links.

## Schedules

The simulator on p stages, with F = W and B = 2 F (F a forward, B a backward, W its half that computes the weights'
gradients), m micro-batches and v chunks per stage. Bubbles are relative to the time of the work, m (F + B). In flight:
the most activations of a stage, at m = 8p, in micro-batches of a p-th of the model. Published:

| | bubble | in flight | |
|---|---|---|---|
| `gpipe` | (p - 1)(F + B) | m | [Huang et al., 2019] |
| `1f1b` | (p - 1)(F + B) | p | [Narayanan et al., 2021] |
| `interleaved` | (p - 1)(F + B)/v | p + (p - 1)/v | [Narayanan et al., 2021] |
| `zbh1` | (p - 1)(F + B - 2 W) | p | [Qi et al., 2023] |
| `zbv` | 0 | p | [Qi et al., 2024] |
| `dualpipe` | (p/2 - 1)(F&B + B - 3 W) | p + 1 | [DeepSeek-AI, 2024] |
| `dualpipev` | of 2p parts (p - 1)(F&B + B - 3 W) | 2p + 1 | [Qi et al., 2025] |

{}
All are equal. F&B, a forward and a backward that overlap, is counted as F + B; `dualpipe` keeps the parameters twice.
The engine runs the two of a pair one after the other, each as soon as it can: then the dual pipes wait half as long,
(p/2 - 1)(F + B - 2 W) and (p - 1)(F + B - 2 W), and plans predict this.
As a share of the whole step a bubble of (p - 1)/m is (p - 1)/(m + p - 1), which some papers give.

## ZeRO

GB of parameters, gradients and optimizer state on each of N ranks, for 7.5 billion parameters in mixed precision with
Adam: the example of [Rajbhandari et al., 2020]. Theirs are 120 GB whole, and on 64 ranks 31.4, 16.6 and 1.9 GB.
Planned are {:.4f} billion parameters, 36 layers of 4096 channels. Beyond 1024 ranks the published column is
their formula.

{}
* With gradients of 4 bytes it is 18, 6 + 12/N, 2 + 16/N and 18/N bytes per parameter, and not 16, 4 + 12/N, 2 + 14/N
  and 16/N. Up to 64 ranks the plan is at most 2.3 % above that: the table's second gradient.
* From stage 2 on the gradients of two units are whole for a time; plans count them with the buffers.
* Buckets are padded to a multiple of 1024 N elements; on 16384 ranks that is a third of them. For so many ranks use
  `tensor` and `pipeline` as well, which divide N.

What each of 64 ranks sends in a step of one micro-batch, in elements per parameter; published 2, 2, 2 and 3, times
63/64 ([Rajbhandari et al., 2020]: stages 1 and 2 send as much as plain data parallelism, stage 3 1.5 times as much).

{}
Stages 2 and 3 reduce the tied table for each of its uses. With several micro-batches they send more; see
[strategies.md](strategies.md#axes). A gradient has 4 bytes, a value 2.

## Layers

What a layer keeps of a micro-batch in bytes, and what its rank sends for it in elements, over sequence x batch x
channels: 8192 channels, 4096 tokens, t = 8, dropout. Published: kept 34 on one rank (and 5 a s/h for the attention
matrix), 10 + 24/t with `tensor` of degree t, 34/t with `sequence`, 2 if checkpointed [Korthikanti et al., 2022]; sent
four all-reduces [Shoeybi et al., 2019], or four gathers, four scatters and two more gathers in backward.

{}
* Attention is computed in blocks, without its matrix of s^2 numbers; one number per row and head is kept (0.03).
* Dropout masks are recomputed from a counter in backward; the others keep a byte for each of two: 2 less on one rank
  and under `tensor`, 2/t less with `sequence`.
* A checkpoint keeps the rank's own rows, 1/t of them; the published one keeps a whole input (0.13). Its second forward
  pass sends again.

## Collectives

Microseconds of one collective of floats on p ranks at 5 us per latency and 50 GB/s. The plan counts the latencies that
a rank waits for, ceil(log2 p) or twice that, and the bytes of the rank that sends most. Published are the costs of the
algorithms among which MPICH chooses, according to [Thakur et al., 2005] (a barrier: [Hensgen et al., 1988]), with the
same latencies and bytes, without the time for additions. They are formulas, not measurements.

{}
* A small all_reduce in rank order cannot add on the way. Its terms are scattered and the results gathered, which takes
  twice log p (a vote of 536 B: 2.0, and 2.3 if each of 16384 ranks sends a cache line to all). For 1 GiB it is the
  other way round: slices are sent directly, so a rank waits for log p.
* all_to_all and other large values take p - 1 messages per rank. A network transfers them at the same time; the
  processor's time per message is not in the plan (0.8 and less).
* A broadcast has its lowest cost in the plan: log p latencies, and all bytes once, which each rank forwards to the next
  while it receives, as NCCL does. With scatter and gather, as in `comm::mpi` between machines, large ones are sent
  twice, in p - 1 messages (0.17 to 0.45).

No measurements were found for so many ranks together with their network's data. For up to 128 nodes there are:
MPI_Allreduce on Lassen (InfiniBand, one rank per node) by the OSU benchmarks 5.8, means of 20 runs [Converged
Computing, 2023], which also measured the network: 1.13 us per latency, 13.6 GB/s.

{}
* Up to 1 KiB the measured time is 1.1 to 1.7 times the plan's: a round of many ranks waits for the slowest of them.
* From 64 KiB on it is 1.7 to 4.8 times the plan's. A plan includes neither additions nor copies, and the measured
  library has more than one algorithm: 1 MiB took twice as long with 4 ranks as with 16.

## Operations

[Narayanan et al., 2021] count 72 s l h^2 (1 + s/(6 h) + V/(12 l h)) operations a sample without a second forward pass.
For the larger GPT that is {:.3e}; the plan has {:.3e}, {:.3f} of it. Half of the term of attention belongs to
tokens that come later, which need not be computed; without it the ratio is {:.3f}. The rest is that backward computes
the scores of attention again: five products where the formula has four.

## Sources

* [Converged Computing, 2023] metrics-operator-experiments, google/kubecon/hpc/lassen-run1, a repository of
  github.com/converged-computing
* [DeepSeek-AI, 2024] DeepSeek-V3 technical report, arXiv 2412.19437, and the notes of its program DualPipe
* [Hensgen et al., 1988] Two algorithms for barrier synchronization, International Journal of Parallel Programming 17
* [Huang et al., 2019] GPipe: efficient training of giant neural networks using pipeline parallelism, arXiv 1811.06965
* [Korthikanti et al., 2022] Reducing activation recomputation in large transformer models, arXiv 2205.05198
* [Llama team, 2024] The Llama 3 herd of models, arXiv 2407.21783
* [Narayanan et al., 2021] Efficient large-scale language model training on GPU clusters, arXiv 2104.04473
* [Qi et al., 2023] Zero bubble pipeline parallelism, arXiv 2401.10241
* [Qi et al., 2024] Pipeline parallelism with controllable memory, arXiv 2405.15362
* [Qi et al., 2025] DualPipe could be better without the Dual, the notes of its program
* [Rajbhandari et al., 2020] ZeRO: memory optimizations toward training trillion parameter models, arXiv 1910.02054
* [Shoeybi et al., 2019] Megatron-LM: training multi-billion parameter language models, arXiv 1909.08053
* [Thakur et al., 2005] Optimization of collective communication operations in MPICH, International Journal of High
  Performance Computing Applications 19
)",
      1e-9 * parameters_of(small), 1e-9 * parameters_of(large), table_of_memory(all), table_of_time(all),
      table_of_bubbles(), 1e-9 * parameters_of(example), table_of_states(), table_of_exchanges(), table_of_layers(),
      table_of_collectives(collectives(), 0), table_of_collectives(measured(), 1), operations(1).published,
      operations(1).plan, operations(1).ratio(), operations(0.5).ratio());
}

}  // namespace on_paper
