#pragma once

#include <string>

#include <fmt/core.h>

#include "tables.hpp"

// docs/on-paper.md, made of the tables.
namespace on_paper {

[[nodiscard]] inline std::string table_of_meshes() {
  auto out = std::string(
      "| ranks | mesh | m | parameters | gradients | optimizer | activations | buffers | sum | bubble | formula |"
      " sent | computing |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (auto const& it : cells()) {
    auto const gb = [](auto bytes) { return 1e-9 * static_cast<double>(bytes); };
    auto const percent = [](double share) {
      if (share < 0) return std::string("-");
      return share == 0 ? std::string("0") : fmt::format("{:.1f} %", 100 * share);
    };
    auto const& held = it.memory;
    out += fmt::format(
        "| {} | `{}` | {} | {:.2f} | {:.2f} | {:.2f} | {:.1f} | {:.1f} | {:.1f}{} | {} | {} | {:.0f} |"
        " {:.2f} s |\n",
        it.ranks, it.mesh, it.micro_batches, gb(held.parameters), gb(held.gradients), gb(held.optimizer),
        gb(held.activations), gb(held.buffers), gb(held.total()), it.fits() ? "" : ": too much", percent(it.bubble),
        percent(it.formula), gb(it.sent), it.computing);
  }
  return out;
}

[[nodiscard]] inline std::string table_of_bubbles() {
  auto out = std::string(
      "| p | m | schedule | v | bubble | formula | in flight | formula |\n|---|---|---|---|---|---|---|---|\n");
  for (auto const& it : bubbles()) {
    out += fmt::format("| {} | {} | `{}` | {} | {:.2f} % | {:.2f} % | {} | {} |\n", it.stages, it.micro_batches,
                       it.schedule, it.chunks, 100 * it.found, 100 * it.formula, it.peak, it.peak_formula);
  }
  return out;
}

[[nodiscard]] inline std::string table_of_sharing() {
  auto out = std::string(
      "| ranks N | stage 1: plan | 6 + 12/N | published | stage 2: plan | 2 + 16/N | published | stage 3: plan | 18/N |"
      " published |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (auto const& it : sharings()) {
    out += fmt::format("| {}", it.ranks);
    for (std::size_t stage = 0; stage < 3; ++stage) {
      int const digits = stage < 2 ? 2 : 4;
      out += fmt::format(" | {:.{}f} | {:.{}f} | {:.{}f}", it.found[stage], digits, it.formula[stage], digits,
                         it.published[stage], digits);
    }
    out += " |\n";
  }
  return out;
}

[[nodiscard]] inline std::string table_of_activations() {
  auto out = std::string("| a layer on | plan | without masks | published |\n|---|---|---|---|\n");
  for (auto const& it : kept_by_layers())
    out += fmt::format("| {} | {:.3f} | {:.3f} | {:.3f} |\n", it.what, it.found, it.formula, it.published);
  return out;
}

[[nodiscard]] inline std::string page() {
  auto const example = [](std::size_t stage) { return 1e-9 * parameters_of(middle) * sharing_of(64).found[stage]; };
  return fmt::format(
      R"(# On paper

What `plan_for` and the schedule simulator ([plan.md](plan.md), [strategies.md](strategies.md)) answer for worlds that
are larger than any test machine, beside published figures. `examples/on_paper` makes this page in about ten seconds on
one core: no model is allocated, and no rank exists. The test `train.on_paper` makes it again and compares.

## A large GPT on 8 to 16384 ranks

{:.1f} billion parameters (80 layers of 8192 channels, 64 heads, 128000 tokens, context 4096) in bfloat16 with AdamW;
a step has {} samples, one a micro-batch, so m falls as replicas are added. `tensor=8` stands for `tensor` with
`sequence`; interleaved has two chunks a stage. Memory in GB of the rank that has most, each stage planned by itself;
*bubble* is idle time over working time; *sent* in GB a step by the rank that sends most; *computing* is what the
slowest stage takes at 400 TFLOP/s.

{}
* The bubble of `1f1b` and `interleaved` is the published one, (p - 1)/m and (p - 1)/(v m) [Narayanan et al., 2021].
* `zbv` has none by [Qi et al., 2024] if m >= 2 p - 1 (the rows of 16384 ranks have fewer) and F = B = W; a GPT's
  stages compute a little more in B, where attention's backward is, and idle a little. (With F = B = W the next table
  shows what is published.) Between B and W it keeps all rows of what `sequence` otherwise cuts, hence its memory.
* The memory of `1f1b`'s first stage is that of 80 layers whatever p is, 4 x 80 bytes an element: 10.7 GB. Parts are
  cut by units, evenly by their operations, and a head of 128000 tokens weighs as much as 1.2 layers: some parts of
  `interleaved` have 3 layers where 2.5 would be even, so that with p = 16 it holds more than p + (p - 1)/v
  micro-batches of 5 layers.
* The slowest stage computes more than its share for the same reason: work, unlike bubbles, is not taken for equal.
* No time of a step is given. A plan knows one rate for all links, and most of what is sent here stays within `tensor`,
  eight ranks of one machine: of the bytes only those of `zero` and `pipeline` leave it.

## Bubbles and micro-batches in flight

The simulator on p stages, with F = B = W (a forward, the input's half of a backward, the weights' half). Formulas:
`gpipe` and `1f1b` (p - 1)/m, `interleaved` (p - 1)/(v m) [Narayanan et al., 2021]; `zbh1` a third of `1f1b`, `zbv`
none [Qi et al., 2024]. In flight: activations of the stage that holds most, in micro-batches of a whole stage.

{}
All are equal. 64 stages x 8 ways of `tensor` x 32 replicas are 16384 ranks.

## ZeRO

Bytes a parameter that a rank keeps of parameters, gradients and optimizer state: {:.2f} billion parameters (36 layers
of 4096 channels, 50257 tokens), 25 MiB buckets. Published is [Rajbhandari et al., 2020]: 2 + 2 + 12 bytes, of which
stage 1 divides the last by N, stage 2 the gradients too, and stage 3 everything. Their example of 7.5 billion
parameters on 64 ranks: 31.4, 16.6 and 1.9 GB; the plan's rows below make {:.1f}, {:.1f} and {:.2f} GB.

{}
* Gradients are kept in float here, 4 bytes and not 2: micro-batches and ranks are added without rounding each sum. So
  a parameter has 18 bytes, and stages 1 and 2 are 6 + 12/N and 2 + 16/N.
* The tied table has two gradients where gradients are whole, and is reduced for each of its uses.
* A slice is a whole number of blocks of 1024 elements, so a bucket has a multiple of 1024 N: 16 MiB of gradients on
  4096 ranks, 64 MiB on 16384, where a third is padding. Beside `tensor` and `pipeline` N is the number of replicas.

## Activations

Bytes that a layer keeps of a micro-batch, over sequence x batch x channels. Published is [Korthikanti et al., 2022]:
34 + 5 a s/h, whose second term is the matrix of attention; on t ways of tensor parallelism 10 + 24/t, with sequence
parallelism 34/t, checkpointed 2. (8192 channels, 4096 tokens, t = 8, dropout on.)

{}
* Attention is computed in blocks, and its s^2 term is not there; a number a row and head is kept instead (0.03 bytes).
* Masks of dropout are made again from a counter in backward, where the others keep a byte for each of two: 32, not 34.
* A checkpoint keeps the rows that lie here, 1/t of them, where the published 2 bytes are replicated.

## Operations

A step computes {:.4g} operations a sample. [Narayanan et al., 2021] have 72 s l h^2 (1 + s/(6 h) + V/(12 l h)) without
a second forward pass: {:.4g}; with attention to the tokens before each one only, which is half of its term, {:.4g}.
The rest is that backward forms the scores of attention again, five products where others count four.
)",
      1e-9 * parameters_of(large), batch, table_of_meshes(), table_of_bubbles(), 1e-9 * parameters_of(middle),
      example(0), example(1), example(2), table_of_sharing(), table_of_activations(), operations(),
      published_operations(1), published_operations(0.5));
}

}  // namespace on_paper
