#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/core/error.hpp"
#include "trireme/formats/file.hpp"
#include "trireme/formats/json.hpp"

/// The options of the command line. Every option has a name, a default and one line of help; a run stores the text of
/// its options, so that --resume needs only the name of the run.
class options {
 public:
  options() {
    add("ranks", "", "N", "ranks: threads, or processes under --mpi (default: one per core)");
    add("text", "", "FILE", "a UTF-8 text, whose last 10 % is held out; each byte is a token");
    add("data", "", "FILES",
        "token shards instead of a text: a file, a directory or a pattern in quotes (\"data/train_*.bin\"); or "
        "conversations, FILE.jsonl; the last 10 % of them are held out");
    add("data-kind", "recognised", "KIND",
        "recognised | u16 | u32 | llm_c | megatron | npy | safetensors (nanoGPT's files are u16, and not recognised)");
    add("chat", "auto", "C",
        "of --data FILE.jsonl, whose lines are conversations ({\"messages\": [...]}, or {\"prompt\": ..., "
        "\"completion\": ...}); losses are those of answers alone: auto (the chat template in the tokenizer's folder) "
        "| chatml | llama3 | plain");
    add("chat-longer", "refused", "L", "of conversations that --context does not hold: refused | cut | left_out");
    add("chat-packing", "none", "P", "none | best_fit (as many whole conversations in a sequence as fit)");
    add("vocabulary", "0", "N", "with --data and without --tokenizer: the number of different tokens");
    add("tokenizer", "", "FILE",
        "a tokenizer.json of Hugging Face or a .model of sentencepiece, whose tokens are used instead of bytes");
    add("steps", "700", "N", "steps of the whole schedule (0 = only evaluate, and write the summary)");
    add("seed", "1", "S", "of initial parameters, order of the data and dropout");
    add("name", "gpt", "NAME", "the run's directory is runs/NAME");
    add("parallel", "data", "P",
        "data | zero1 | zero2 | zero3 | diloco[:PERIOD] | parameter_server[:STALENESS] | tensor | sequence | "
        "context[:ring | :ulysses] | pipeline[:SCHEDULE] | expert, "
        "or a mesh of them, outermost first: data=2,tensor=2,pipeline=2:1f1b (one degree may be left out; sequence, "
        "beside tensor, has none; schedules: gpipe 1f1b interleaved zbh1 zbv dualpipe dualpipev; no pipeline beside "
        "zero2 and zero3)");
    add_flag("reproducible",
             "the same bits on 1, 2, 4, 8 ranks that split samples (with 8 micro-batches per step if --micro-batches "
             "is 0); also with pipeline 1f1b or interleaved");
    add("device", "cpu", "D",
        "cpu | cuda (one GPU, which all ranks share) | simt (the kernels of a GPU in a simulator of its threads, on "
        "the CPU: to check them; very slow)");
    add("precision", "bf16", "P",
        "fp32 | tf32 (fp32 whose products are rounded to TF32, on a GPU only) | bf16 | fp16 (with a dynamic loss "
        "scale; on the CPU products by Eigen, slower) | fp8 | mxfp8 | nvfp4 "
        "(products of 8 and 4 bits, emulated in bf16, on the CPU only: to try a format)");
    add("compression", "none", "C",
        "none | bf16 | int8 | int4 | int2 | sign | random_k | top_k | top_k_sampled | dgc | power_sgd (int2 "
        "and the following ones with error feedback; random_k, top_k and dgc send 1 % of the gradients, power_sgd has "
        "rank 4; dgc needs --optimizer sgd, whose momentum it applies); only with data, zero1 and diloco");
    add("model", "gpt", "M",
        "gpt | llama | deepseek (GPT-2's blocks, LLaMA's, or DeepSeek V3's: latent attention, and experts after the "
        "first block)");
    add("from", "", "DIR",
        "start from the model and the parameters in Hugging Face's files: "
        "config.json and model.safetensors, or an index of several (GPT-2, Llama, Qwen 2 and 3, Mistral, DeepSeek V3)");
    add("lora", "0", "RANK",
        "with --from: train only low-rank changes of its linear layers, of this rank; "
        "model/ has them merged into its weights (0 = train all parameters)");
    add("lora-alpha", "16", "A", "changes are multiplied by alpha / rank");
    add("lora-layers", "*", "NAMES",
        "which layers: patterns of full names or of their last parts, separated by spaces: \"self_attn.* down_proj\"");
    add("layers", "4", "N", "blocks of the model");
    add("heads", "4", "N", "attention heads per block");
    add("channels", "192", "N", "width of the residual stream; divisible by the heads");
    add("kv-heads", "0", "N", "llama: heads of keys and values, each shared by several queries (0 = as many as heads)");
    add("hidden", "0", "N",
        "llama or deepseek: width of the mlp (0 = 8/3 of the channels, rounded up to a multiple of 32)");
    add("experts", "0", "N",
        "gpt or deepseek: mlps per block, of which each token chooses some (0 = one mlp for all tokens; 8 for "
        "deepseek)");
    add("experts-a-token", "2", "K", "number of experts that a token chooses");
    add("ahead", "0", "N",
        "deepseek: modules that also learn to predict the N words after the next one; "
        "the loss of steps includes theirs, the held-out loss does not (with --from: given by the files)");
    add("balance", "0", "W", "gpt: weight of the loss that balances the choice of experts");
    add("context", "128", "N", "tokens per sequence");
    add("dropout", "0", "P", "of a gpt: probability, 0 <= P < 1");
    add("batch", "32", "N", "sequences per step, over all ranks");
    add("micro-batches", "0", "N", "logical micro-batches of a batch (0 = one per rank; four per rank in a pipeline)");
    add("shares", "even", "S",
        "even | auto[:STEPS] | weights such as 2:1, one per rank: which part of a batch each rank gets "
        "(auto: what the ranks' speed asks for, measured every 20 steps or as said); only with data, zero1 and zero2");
    add("optimizer", "adamw", "O",
        "adamw | sgd | muon | adafactor | lamb | adamw8 (moments of 8 bits, on the CPU; the last four cannot be used "
        "with "
        "tensor)");
    add("rate", "", "R",
        "peak learning rate; warm-up, then a cosine down to a tenth (default 0.002; for sgd 0.1, for muon and "
        "adafactor 0.02, for lamb 0.01)");
    add("stop-after", "-1", "N", "save and exit after N of the schedule's steps");
    add("save-every", "200", "N", "steps between two checkpoints, written during training (0 = only at the end)");
    add("keep-last", "2", "N", "number of newest checkpoints that are kept");
    add("keep-best", "0", "K",
        "number of checkpoints kept for their lowest held-out loss, which is then evaluated at each checkpoint");
    add("most-failed-saves", "3", "N",
        "number of consecutive saves that may fail (a full disk, say) before the run ends");
    add("check-every", "100", "N",
        "steps between comparisons of the copies that several ranks keep, "
        "and of the ranks' speeds (0 = only in saves)");
    add("workers", "0", "N",
        "threads of each rank that read its sequences ahead (0 = one, or cores / ranks for data that is slow to read)");
    add("bad-samples", "0", "N",
        "number of sequences that may be left out because they cannot be read; each is reported, and another is in its "
        "place");
    add("sample", "", "N",
        "tokens of the text that the model writes at the end (0 = none; default: 240 bytes, or 80 tokens of a "
        "tokenizer)");
    add("deadline", "60", "SECONDS", "how long ranks wait for each other in a step");
    add("save-deadline", "1800", "SECONDS", "how long ranks wait while one of them saves or loads");
    add("grace", "25", "SECONDS", "time limit for saving and exiting after SIGTERM, SIGHUP or SIGUSR1");
    add("recover", "0", "N",
        "if a rank fails the others continue in the same processes from the newest checkpoint, "
        "at most N times (threads, or processes not started by mpirun)");
    add("recover-ranks", "0", "M",
        "with at least this many ranks: threads one fewer each time (0 = as many as before), "
        "processes those that are left");
    add("heartbeat", "1", "SECONDS",
        "least time between two writes of heartbeat.json during training; fractions are possible");
    add("preemption-notice", "", "FILE",
        "save and exit, as on SIGTERM, as soon as this file exists (checked twice per second)");
    add("runs", "runs", "DIR", "directory of the runs");
  }

  /// @param arguments  without the program's name. Throws config_error.
  void parse(std::vector<std::string> const& arguments) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      std::string_view given = arguments[i];
      if (given == "--help" || given == "-h") {
        help_ = true;
      } else if (given == "--resume") {
        resume_ = going_on::yes;
      } else if (given == "--resume=auto") {
        resume_ = going_on::if_begun;
      } else if (given.starts_with("--resume=")) {
        fail(text_of("\"", given,
                     "\" is unknown; --resume continues a run, --resume=auto also begins one if there is none"));
      } else if (given == "--accept-new-text") {
        accept_new_text_ = true;
      } else if (given.starts_with("--")) {
        auto const equals = given.find('=');
        auto const name = given.substr(2, equals == given.npos ? given.npos : equals - 2);
        if (equals == given.npos && is_flag(std::string(name))) {
          set(std::string(name), "yes");
          continue;
        }
        if (equals == given.npos && i + 1 == arguments.size()) fail(text_of("--", name, " needs a value"));
        set(std::string(name), equals == given.npos ? arguments[++i] : std::string(given.substr(equals + 1)));
      } else {
        fail(text_of("unexpected argument \"", given, "\": options begin with --; see --help"));
      }
    }
  }

  [[nodiscard]] bool help() const noexcept { return help_; }
  [[nodiscard]] bool resume() const noexcept { return resume_ == going_on::yes; }
  /// Whether --resume=auto is given and resume_if() has not yet decided whether this run is resumed.
  [[nodiscard]] bool may_resume() const noexcept { return resume_ == going_on::if_begun; }
  void resume_if(bool begun) noexcept { resume_ = begun ? going_on::yes : going_on::no; }
  [[nodiscard]] bool accept_new_text() const noexcept { return accept_new_text_; }
  [[nodiscard]] bool was_given(std::string const& name) const { return all_.at(name).given; }
  [[nodiscard]] std::vector<std::string> const& names() const { return order_; }
  [[nodiscard]] std::string const& text(std::string const& name) const { return all_.at(name).value; }
  [[nodiscard]] std::int64_t number(std::string const& name, std::int64_t least) const {
    return parsed<std::int64_t>(name, least, "a whole number");
  }
  /// At least one, and at most 31 years.
  [[nodiscard]] std::chrono::seconds seconds(std::string const& name) const {
    return std::chrono::seconds(std::min<std::int64_t>(number(name, 1), 1'000'000'000));
  }
  [[nodiscard]] double real(std::string const& name) const { return parsed<double>(name, 0, "a number"); }
  [[nodiscard]] bool flag(std::string const& name) const { return choice(name, {"no", "yes"}) == 1; }
  /// The index of the value among choices.
  [[nodiscard]] std::size_t choice(std::string const& name, std::vector<std::string> const& choices) const {
    std::string list;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      if (choices[i] == text(name)) return i;
      list += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
    }
    fail(text_of("--", name, " is \"", text(name), "\"; it is one of ", list));
  }

  /// Sets an option that the command line left open.
  void decide(std::string const& name, std::string value) { all_.at(name).value = std::move(value); }
  /// Takes options that are not on this command line from the run that is resumed.
  void take_rest_from(std::string const& path) {
    auto const saved = trireme::formats::json::parse(trireme::formats::read_text(path), path);
    for (auto& [name, option] : all_) {
      if (option.given || name == "runs" || name == "name" || name == "stop-after") continue;
      if (auto const* value = saved.find(name)) option.value = value->as_string();
    }
  }
  [[nodiscard]] std::string to_json() const {
    trireme::formats::json::object members;
    for (auto const& name : order_) members.push_back({name, text(name)});
    return trireme::formats::json::to_string(trireme::formats::json::value(std::move(members)), 2) + "\n";
  }
  [[nodiscard]] std::string usage() const {
    std::string out = "options:\n";
    auto const line = [&](std::string left, std::string const& right) {
      left.resize(std::max<std::size_t>(left.size() + 1, 25), ' ');
      out += "  " + left + right + "\n";
    };
    for (auto const& name : order_) {
      auto const& option = all_.at(name);
      line("--" + name + " " + option.what, option.help + (option.value.empty() ? "" : " [" + option.value + "]"));
    }
    line("--resume", "continue from the run's checkpoint, with its options unless given again");
    line("--resume=auto", "the same if the run has a checkpoint; if there is no run yet, begin it");
    line("--accept-new-text",
         "with --resume: continue with a different text or other shards; the held-out part begins at the same byte as "
         "before");
    line("--help", "this");
    return out;
  }

 private:
  struct option {
    std::string value;
    std::string what;
    std::string help;
    bool given = false;
  };

  template <class... Parts>
  static std::string text_of(Parts const&... parts) {
    return trireme::text(parts...);
  }
  [[noreturn]] static void fail(std::string const& sentence) { throw trireme::config_error(sentence); }

  void add(std::string const& name, char const* value, char const* what, char const* help) {
    order_.push_back(name);
    all_[name] = {value, what, help, false};
  }
  void add_flag(std::string const& name, char const* help) { add(name, "no", "", help); }
  [[nodiscard]] bool is_flag(std::string const& name) const {
    auto const found = all_.find(name);
    return found != all_.end() && found->second.what.empty();
  }
  void set(std::string const& name, std::string const& value) {
    auto const found = all_.find(name);
    if (found == all_.end()) fail(text_of("unknown option --", name, "; see --help"));
    found->second.value = value;
    found->second.given = true;
  }
  template <class Number>
  [[nodiscard]] Number parsed(std::string const& name, Number least, char const* what) const {
    auto const& value = text(name);
    Number out{};
    auto const* const end = value.data() + value.size();
    auto const [stopped, problem] = std::from_chars(value.data(), end, out);
    bool const finite = out <= std::numeric_limits<Number>::max();  // "inf" and "nan" are read as numbers
    if (problem != std::errc{} || stopped != end || !finite) {
      fail(text_of("--", name, " is \"", value, "\"; it takes ", what));
    }
    if (out < least) fail(text_of("--", name, " is ", value, "; it must be at least ", least));
    return out;
  }

  enum class going_on { no, yes, if_begun };

  std::vector<std::string> order_;
  std::map<std::string, option> all_;
  bool help_ = false;
  going_on resume_ = going_on::no;
  bool accept_new_text_ = false;
};
