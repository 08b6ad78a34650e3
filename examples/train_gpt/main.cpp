// Trains a GPT or a LLaMA on the bytes of a text (or on the tokens of a tokenizer), with one rank per core (or per
// process), and writes a run directory. scripts/train builds and starts it; --help lists the options.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/core.h>

#include "asked.hpp"
#include "conversations.hpp"
#include "deadline_options.hpp"
#include "device.hpp"
#include "generate.hpp"
#include "heartbeat.hpp"
#include "late_calls.hpp"
#include "memory.hpp"
#include "model_choice.hpp"
#include "one_run.hpp"
#include "options.hpp"
#include "preemption_notice.hpp"
#include "presets.hpp"
#include "run_files.hpp"
#include "run_lock.hpp"
#include "save_watch.hpp"
#include "shares_choice.hpp"
#include "stragglers.hpp"
#include "text_record.hpp"
#include "tokens.hpp"
#include "trireme/comm/bootstrap.hpp"
#include "trireme/comm/report.hpp"
#include "trireme/core/cores.hpp"
#include "trireme/core/plural.hpp"
#include "trireme/formats/chrome_trace.hpp"
#include "trireme/formats/tensorboard.hpp"
#include "trireme/observe/progress.hpp"
#include "trireme/observe/timeline.hpp"
#include "trireme/train/environment.hpp"
#include "world.hpp"

namespace json = trireme::formats::json;
using namespace trireme;

namespace {

using steady = std::chrono::steady_clock;
double seconds_since(steady::time_point start) { return std::chrono::duration<double>(steady::now() - start).count(); }

optimizer_choice::method method_of(options const& given) {
  return static_cast<optimizer_choice::method>(given.choice("optimizer", optimizer_choice::names()));
}

/// The settings from all options, checked, and equal on every rank.
struct plan {
  run_files files;
  bool resume, accept_new_text;
  std::string runs, text, from;
  trireme::data::token_shards shards;  // none of --text and of conversations
  bool has_chats;
  std::int64_t steps, stop_after, batch, micro_batches, save_every, keep_last, keep_best, most_failed_saves;
  trireme::data::shares shares;
  std::int64_t check_every, grace, workers, bad_samples, sample;
  int recover, recover_ranks;
  std::chrono::milliseconds save_deadline;
  std::chrono::duration<double> heartbeat_interval;
  std::uint64_t seed;
  language_model model;
  std::int64_t context;  // tokens of a sequence
  optimizer_choice optimizer;
  preset policies;
  std::string parallel, precision, compression, device;
  std::string saved_options;

  plan(options const& given, language_model described)
      : files{given.text("runs") + "/" + given.text("name")},
        resume(given.resume()),
        accept_new_text(given.accept_new_text()),
        runs(given.text("runs")),
        text(given.text("text")),
        from(given.text("from")),
        shards(shards_of(given)),
        has_chats(names_conversations(given)),
        steps(given.number("steps", 0)),
        stop_after(given.number("stop-after", -1)),
        batch(given.number("batch", 1)),
        micro_batches(given.number("micro-batches", 0)),
        save_every(given.number("save-every", 0)),
        keep_last(given.number("keep-last", 1)),
        keep_best(given.number("keep-best", 0)),
        most_failed_saves(given.number("most-failed-saves", 0)),
        shares(shares_of(given.text("shares"))),
        check_every(given.number("check-every", 0)),
        grace(given.number("grace", 1)),
        workers(given.number("workers", 0)),
        bad_samples(given.number("bad-samples", 0)),
        sample(given.text("sample").empty() ? -1 : given.number("sample", 0)),
        recover(static_cast<int>(std::min<std::int64_t>(given.number("recover", 0), 1 << 20))),
        recover_ranks(static_cast<int>(std::min<std::int64_t>(given.number("recover-ranks", 0), 1 << 20))),
        save_deadline(given.seconds("save-deadline")),
        heartbeat_interval(given.real("heartbeat")),
        seed(static_cast<std::uint64_t>(given.number("seed", 0))),
        model(std::move(described)),
        context(given.number("context", 2)),
        optimizer{
            .chosen = method_of(given), .learning_rate = given.real("rate"), .steps = std::max<std::int64_t>(1, steps)},
        policies{{given.text("parallel"), given.flag("reproducible")},
                 static_cast<compression_preset>(given.choice("compression", compression_names))},
        parallel(given.text("parallel")),
        precision(given.text("precision")),
        compression(given.text("compression")),
        device(given.text("device")),
        saved_options(given.to_json()) {
    static_cast<void>(given.choice("precision", {"fp32", "tf32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"}));
    static_cast<void>(given.choice("device", {"cpu", "cuda", "simt"}));
    if (on_device() && is_rounded())
      throw config_error("--precision " + precision + " is emulated on CPUs only; take --device cpu, or bf16");
    policies.tf32 = precision == "tf32";
    if (policies.tf32 && !on_device())
      throw config_error("--precision tf32 is for products on a GPU; take --device cuda, or --precision fp32");
    if (on_device()) expect_device(device);
    model.validate();
    if (shares.given()) policies.parallel.expect_shares();
    if (policies.compression == compression_preset::dgc) {
      if (optimizer.chosen != optimizer_choice::method::sgd)
        throw config_error("--compression dgc applies the momentum of sgd itself; use it with --optimizer sgd");
      optimizer.momentum = 0;
    }
    if (steps == 0 && resume) throw config_error("--steps 0 evaluates and trains nothing; leave out --resume");
    bool const has_data = has_shards() || has_chats;
    if (text.empty() && !has_data) throw config_error("--text names no file; scripts/train gives one");
    if (!text.empty() && has_data) throw config_error("a run has --text or --data; give one of them");
    if (accept_new_text && !resume) throw config_error("--accept-new-text goes with --resume; leave it out");
    constexpr std::int64_t most_counted = std::int64_t{1} << 31;  // the loader's limit
    if (batch > most_counted) throw config_error(trireme::text("--batch is ", batch, "; at most ", most_counted));
    constexpr std::int64_t always = 256,
                           ever = 1 << 20;  // empty ones cost no computation, but each takes part in the step
    auto const most = std::min(std::max(batch, always), ever);
    if (micro_batches > most) {
      throw config_error(trireme::text("--micro-batches is ", micro_batches, ", but with --batch ", batch, " at most ",
                                       most, " ", trireme::agreeing(most, "is", "are"), " of any use; give no more"));
    }
    if (grace > 86400) throw config_error(trireme::text("--grace is ", grace, " seconds; a day is the most"));
    auto const& name = given.text("name");
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
      throw config_error(
          trireme::text("--name is \"", name, "\"; it is the name of a directory in ", given.text("runs")));
    }
  }

  /// Whether products are of 8 or 4 bits.
  [[nodiscard]] bool is_rounded() const { return precision == "fp8" || precision == "mxfp8" || precision == "nvfp4"; }
  /// Whether it trains in the memory of a device.
  [[nodiscard]] bool on_device() const noexcept { return device != "cpu"; }
  [[nodiscard]] bool has_shards() const noexcept { return !shards.files.patterns.empty(); }
  static trireme::data::token_shards shards_of(options const& given) {
    using trireme::data::shard_kind;
    trireme::data::token_shards out{.context = given.number("context", 2)};
    if (given.text("data").empty() || names_conversations(given)) return out;
    out.files = given.text("data");
    out.kind = static_cast<shard_kind>(
        given.choice("data-kind", {"recognised", "u16", "u32", "llm_c", "megatron", "npy", "safetensors"}));
    return out;
  }

  /// The fixed number if sums depend on it; else as many as keep all ranks busy (0: one per rank).
  [[nodiscard]] std::int64_t micro_batches_on(int ranks) const {
    auto const& split = policies.parallel;
    if (!split.reproducible()) return micro_batches > 0 ? micro_batches : std::min(split.micro_batches(ranks), batch);
    auto const fixed = micro_batches > 0 ? micro_batches : 8;
    if (fixed % split.replicas(ranks) != 0) {
      throw config_error(trireme::text("--reproducible sums whole micro-batches, but ", fixed,
                                       " of them are shared by ", split.replicas(ranks),
                                       " ranks; give --micro-batches a multiple of that"));
    }
    return fixed;
  }

  /// The memory for a machine with `here` of the ranks, with `known` sequences to train on.
  [[nodiscard]] memory_need need(int ranks, int here, std::int64_t known) const {
    auto const parts = std::max<std::int64_t>(1, micro_batches > 0 ? micro_batches : micro_batches_on(ranks));
    return {.parameters = model.model.with([](auto const& each) { return model_choice::parameters(each); }),
            .channels = model.model.with([](auto const& each) { return static_cast<double>(each.channels); }),
            .layers = model.model.with([](auto const& each) { return static_cast<double>(each.layers); }),
            .context = static_cast<double>(context),
            .sequences = std::ceil(static_cast<double>(std::min(batch, known)) / static_cast<double>(parts)),
            .ranks = static_cast<double>(ranks),
            .ranks_here = static_cast<double>(here),
            .moments = optimizer.least_moments(),
            .each_has_all = policies.parallel.cuts_nothing() &&
                            policies.parallel.samples() == parallel_choice::splits_samples::data,
            .on_device = on_device(),
            .simulated = device == "simt"};
  }
};

/// Collective. Whether a signal has made a request on any rank; every rank checks at the same time.
bool asked_anywhere(comm::any_world& world, bool asked_here) {
  std::int32_t any = asked_here ? 1 : 0;
  world.all_reduce(tensor_view<std::int32_t>(&any, shape{1}), reduction::max{});
  return any != 0;
}

/// Held-out loss in float, whatever the run's precision: the loss of the model that is written to disk.
class float_evaluation {
 public:
  explicit float_evaluation(language_model const& model)
      : engine_(model), exchange_(engine_.uses(), self_, trireme::parallel::data{}, trireme::compression::none{}) {}

  /// Collective. NaN if, before a batch, `asked` says on some rank that there is no time for it.
  template <class Asked>
  double operator()(any_trainer& trainer, comm::any_world& world, text_windows const& windows, Asked const& asked) {
    trainer.for_each_parameter([&](std::string const& name, shape const&, std::span<float const> values) {
      for (auto const& entry : exchange_.plan().entries()) {
        if (entry.info.name == name)
          std::copy(values.begin(), values.end(), exchange_.parameter_values(entry).span().begin());
      }
    });
    exchange_.refresh_parameters();
    loss_sum sum;
    data::evaluation_batches parts(windows, 8, world.rank(), world.size());
    auto const most = (windows.size() + 8LL * world.size() - 1) / (8LL * world.size());  // of any rank
    auto part = parts.begin();
    for (std::int64_t turn = 0; turn < most; ++turn) {
      if (asked_anywhere(world, asked())) return std::numeric_limits<double>::quiet_NaN();
      if (part == parts.end()) continue;
      sum += engine_.evaluate(*part, exchange_);
      ++part;
    }
    double both[2] = {sum.sum, static_cast<double>(sum.count)};
    world.all_reduce(tensor_view<double>(both, shape{2}), reduction::sum{});
    return both[0] / both[1];
  }

 private:
  using env = environment<precision::fp32>;
  comm::self_world self_;
  staged_engine<env> engine_;
  basic_exchange<env, comm::self_world, trireme::parallel::data, trireme::compression::none> exchange_;
};

std::unique_ptr<any_trainer> trainer_of(plan const& what, comm::any_world& world) {
  if (what.is_rounded()) return make_rounded(what.precision, what.policies, what.model, what.optimizer, world);
  auto* const make = what.precision == "fp32" || what.policies.tf32
                         ? (what.on_device() ? make_fp32_on_device : make_fp32)
                     : what.precision == "bf16" ? (what.on_device() ? make_bf16_on_device : make_bf16)
                     : what.on_device()         ? make_fp16_on_device
                                                : make_fp16;
  return make(what.policies, what.model, what.optimizer, world);
}

/// One rank's part of a run.
class run {
 public:
  run(plan const& what, comm::any_world& world, comm::any_world& saving, run_text const& text,
      token_choice const& tokens, text_record const& about_text)
      : plan_(what),
        world_(world),
        saving_(saving),
        about_text_(about_text),
        text_(text),
        words_(tokens),
        held_out_(text.held_out(most_held_out_tokens)),
        timeline_(world.rank(), std::size_t{1} << 15),
        trainer_(trainer_of(what, world)),
        held_out_loss_(what.model),
        micro_batches_(what.micro_batches_on(world.size())) {
    what.shares.validate(world.size());
    trainer_->initialise(what.seed);
    if (!what.from.empty() && !what.resume) trainer_->load_pretrained(what.from);
    // Reports a mesh that does not fit the model before anything is written.
    static_cast<void>(trainer_->evaluate(text.held_out(world.size() * what.context), 1));
    trainer_->record(timeline_);
  }

  /// @returns the program's exit code.
  int operator()() {
    auto const start = steady::now();
    if (writes()) beat_.emplace(plan_.files.directory, world_.size(), plan_.steps, plan_.heartbeat_interval);
    begin();
    if (writes()) {
      log_.emplace(plan_.files.at(formats::tensorboard::event_file_name().c_str()));
      if (trainer_->steps() > 0) log_->restart(trainer_->steps());
    }
    sent_ = trainer_->bytes_sent();
    enter(heartbeat::phase::training);
    trainer_->on_step([&](step_report const& done) { after_step(done); });
    trainer_->on_save([&](save_report const& done) { after_save(done); });
    trainer_->on_read_problem([&](data::read_problem const& problem) {
      if (writes()) progress_.finish();
      std::fprintf(stderr, "train_gpt: %s\n", to_string(problem).c_str());
    });
    fit_report report{.stopped = true};
    if (plan_.steps == 0) {
      report.stopped = false;
    } else if (!asked_anywhere(world_, asked::most() >= asked::stop)) {
      report = trainer_->fit(text_.training(), {.steps = plan_.steps,
                                                .batch = plan_.batch,
                                                .micro_batches = micro_batches_,
                                                .stop_after = plan_.stop_after,
                                                .check_every = plan_.check_every,
                                                .workers = plan_.workers,
                                                .bad_samples = plan_.bad_samples,
                                                .shares = plan_.shares});
    }
    progress_.finish();
    if (plan_.steps > 0 && saved_at_ != trainer_->steps()) save();
    asked::all_is_saved();
    if (report.steps > 0) heard_ = asked::times();
    enter(heartbeat::phase::finishing);
    auto const code = finish(report, seconds_since(start));
    enter(heartbeat::phase::ended);
    return code;
  }

 private:
  static constexpr std::int64_t most_held_out_tokens = 1 << 17;

  [[nodiscard]] bool writes() const { return world_.rank() == 0; }
  void enter(heartbeat::phase phase) {
    if (beat_) beat_->begin(phase, trainer_->steps());
  }
  // Starts from the checkpoint, or from the beginning. A new run saves a first checkpoint at once, so that it can be
  // resumed even if it is stopped in its first evaluation.
  void begin() {
    if (plan_.resume) {
      trireme::detail::together(world_, [&] {
        if (!writes() || checkpoint::exists(plan_.files.checkpoints())) return;
        throw io_error(plan_.files.checkpoints(),
                       "there is no checkpoint of this run; start it without --resume to begin a new run");
      });
      save_watch watch("loading", world_.rank(), plan_.save_deadline);
      auto const found = trainer_->load(plan_.files.checkpoints(), watch.patience());
      saved_at_ = trainer_->steps();
      history_ = history::read(plan_.files.at("history.json"));
      if (writes()) {
        checkpoint::remove_unfinished(plan_.files.checkpoints());
        if (auto const reached = heartbeat::steps_of_broken_run(plan_.files.directory)) {
          ++history_.restarts;
          history_.lost_steps += std::max<std::int64_t>(0, *reached - trainer_->steps());
          history_.write(plan_.files.at("history.json"));
        }
        enter(heartbeat::phase::starting);
        formats::atomic_write(plan_.files.at("options.json"), plan_.saved_options);
        about_text_.write(plan_.files.at("text.json"));
        for (auto const& each : found.damaged) {
          std::fprintf(stderr, "%s is damaged and was passed over (%s); it is kept as %s\n", each.path.c_str(),
                       each.reason.c_str(), each.kept_as.empty() ? "it was" : each.kept_as.c_str());
        }
        std::fprintf(stderr, "resuming from step %lld\n", static_cast<long long>(trainer_->steps()));
      }
    } else {
      enter(heartbeat::phase::starting);
      if (plan_.steps > 0) save();
    }
    asked::save_first(static_cast<int>(plan_.grace));
    if (trainer_->steps() > 0 || std::isfinite(history_.held_out_first)) return;
    enter(heartbeat::phase::evaluating);
    history_.held_out_first = held_out_loss_(*trainer_, world_, held_out_, [] { return asked::most() >= asked::stop; });
    if (writes() && plan_.steps > 0) history_.write(plan_.files.at("history.json"));
  }

  // Collective. The checkpoints to keep with the one being saved. A run that was asked to stop does not evaluate it.
  checkpoint::keeping to_keep() {
    checkpoint::keeping keep{.last = plan_.keep_last, .best = plan_.keep_best};
    if (keep.best == 0 || trainer_->steps() == 0) return keep;
    enter(heartbeat::phase::evaluating);
    keep.held_out = held_out_loss_(*trainer_, world_, held_out_, [] { return asked::most() >= asked::leave; });
    enter(heartbeat::phase::training);
    return keep;
  }
  // The history may contain later steps than the checkpoint, never earlier ones.
  void save() {
    auto const keep = to_keep();
    save_watch watch("saving", world_.rank(), plan_.save_deadline);
    write_history();
    trainer_->save(plan_.files.checkpoints(), watch.patience(), keep);
    saved_at_ = trainer_->steps();
  }
  void write_history() {
    trireme::detail::together(saving_, [&] {
      if (writes()) history_.write(plan_.files.at("history.json"));
    });
  }
  void save_in_background() {
    trainer_->finish_save();
    auto const keep = to_keep();
    watch_.emplace("saving", world_.rank(), plan_.save_deadline);
    try {
      write_history();
    } catch (comm_error const&) {
      throw;
    } catch (error const& problem) {
      return after_save({trainer_->steps(), 0, problem.what()});
    }
    trainer_->save_in_background(plan_.files.checkpoints(), watch_->patience(), keep);
  }
  void after_save(save_report const& done) {
    watch_.reset();
    if (done.failure.empty()) {
      saved_at_ = done.step;
      failed_saves_ = 0;
      return;
    }
    if (++failed_saves_ > plan_.most_failed_saves) {
      auto const before = plan_.most_failed_saves == 0
                              ? std::string()
                              : text(", nor could the ", plan_.most_failed_saves, " before it");
      throw error(text("the checkpoint of step ", done.step, " could not be saved (", done.failure, ")", before,
                       "; the newest that is whole is of step ", saved_at_));
    }
    if (!writes()) return;
    progress_.finish();
    std::fprintf(stderr, "train_gpt: the checkpoint of step %lld could not be saved (%s); training goes on\n",
                 static_cast<long long>(done.step), done.failure.c_str());
  }

  // Of the time of steps, in which this rank waited for data.
  [[nodiscard]] double waiting_share() const { return waited_ > 0 ? waited_ / (waited_ + busy_) : 0.0; }

  // An incomplete record would make later ones unreadable, so after a failure no more are written.
  void log(step_report const& done, double rate) {
    if (!log_) return;
    try {
      log_->add(done.step, {{"loss/train", static_cast<float>(done.loss)},
                            {"gradient/norm", static_cast<float>(done.norm)},
                            {"learning_rate", static_cast<float>(done.learning_rate)},
                            {"tokens_per_second", static_cast<float>(rate)},
                            {"data/waiting_share", static_cast<float>(done.waited / (done.waited + done.seconds))}});
    } catch (io_error const& problem) {
      log_.reset();
      std::fprintf(stderr, "train_gpt: %s; training goes on without events for TensorBoard\n", problem.what());
    }
  }

  void after_step(step_report const& done) {
    traffic_ += trainer_->bytes_sent() - sent_;
    busy_ += done.seconds;
    waited_ += done.waited;
    tokens_ += done.samples * plan_.context;
    if (done.step == 0) history_.loss_first = done.loss;
    history_.loss_last = done.loss;
    history_.gradient_norm = done.norm;
    history_.skipped_last = done.skipped ? history_.skipped_last + 1 : 0;
    if (writes()) {
      auto const rate = static_cast<double>(tokens_) / busy_;
      log(done, rate);
      progress_.update({.step = done.step + 1,
                        .steps = plan_.steps,
                        .loss = done.loss,
                        .tokens_per_second = rate,
                        .elapsed_seconds = seconds_since(start_),
                        .waiting_share = waiting_share()});
      beat_->step(done.step + 1, done.loss, done.seconds);
    }
    stragglers_.add(done.seconds, trainer_->times().exposed);
    if (plan_.check_every > 0 && trainer_->steps() % plan_.check_every == 0) {
      if (auto const said = stragglers_.compare(world_); said && writes()) {
        progress_.finish();
        std::fprintf(stderr, "train_gpt: %s\n", said->c_str());
      }
    }
    if (asked::most() >= asked::stop) trainer_->request_stop();
    if (plan_.save_every > 0 && trainer_->steps() % plan_.save_every == 0) save_in_background();
    sent_ = trainer_->bytes_sent();
  }

  // A run that was asked to stop exits with what is saved; the same applies to a signal after the training.
  int finish(fit_report const& report, double seconds) {
    auto const no_time = [this] { return asked::most() >= asked::leave || asked::times() > heard_; };
    bool const trained = plan_.steps > 0;
    auto const held_out = trained ? held_out_loss_(*trainer_, world_, held_out_, no_time) : history_.held_out_first;
    auto const hash = trainer_->state_hash();
    bool const hurried = asked_anywhere(world_, no_time());
    std::string sample;
    if (!hurried && trained) {
      trireme::detail::together(saving_,
                                [&] { write_model(plan_.files.directory, plan_.model, words_, *trainer_, writes()); });
      write_timeline();
      try {
        auto const length = plan_.sample >= 0 ? plan_.sample : words_.bytes() ? 240 : 80;
        if (words_.is_text() && length > 0)
          sample = generate(*trainer_, words_, "In the beginning", plan_.context, length, plan_.seed,
                            [&] { return asked_anywhere(world_, no_time()); });
      } catch (numeric_error const&) {  // a diverged run has no text; its summary says how it ended
      }
    }
    bool const lost = history_.skipped_last > 0 || (std::isnan(held_out) && !hurried);
    if (!writes()) return lost ? 1 : 0;
    auto const steps = std::max<std::int64_t>(report.steps, 1);
    auto const of_training = [&](double number) { return trained ? json::value(number) : json::value(nullptr); };
    auto summary =
        json::value::make({{"communicator", std::string(ranks_are())},
                           {"ranks", world_.size()},
                           {"parallel", plan_.parallel},
                           {"precision", plan_.precision},
                           {"compression", plan_.compression},
                           {"device", plan_.on_device() ? text(plan_.device, ": ", device_name()) : plan_.device},
                           {"steps", trainer_->steps()},
                           {"seed", plan_.seed},
                           {"loss_first", of_training(history_.loss_first)},
                           {"loss_last", of_training(history_.loss_last)},
                           {"steps_skipped_last", history_.skipped_last},
                           {"restarts", history_.restarts},
                           {"lost_steps", history_.lost_steps},
                           {"gradient_norm", of_training(history_.gradient_norm)},
                           {"held_out_first", history_.held_out_first},
                           {"held_out_last", held_out},
                           {"text", about_text_.path},
                           {"text_sha256", about_text_.sha256},
                           {"context", plan_.context},
                           {"held_out_begin", about_text_.held_out_begin},
                           {"held_out_windows", held_out_.size()},
                           {"tokens_per_second", busy_ > 0 ? static_cast<double>(tokens_) / busy_ : 0.0},
                           {"bytes_sent_per_step", static_cast<double>(traffic_) / static_cast<double>(steps)},
                           {"exchange_hidden", trainer_->times().hidden()},
                           {"data_waiting_share", waiting_share()},
                           {"samples_left_out", report.left_out},
                           {"state_hash", hexadecimal(hash)},
                           {"seconds", seconds},
                           {"model", to_string(plan_.model)},
                           {"optimizer", to_string(plan_.optimizer)}});
    if (auto const& chats = text_.chats()) {
      summary.set("conversations", chats->conversations);
      summary.set("conversations_cut", chats->cut);
      summary.set("conversations_left_out", chats->left_out);
      summary.set("tokens_to_learn", chats->targets);
    }
    if (!words_.bytes()) {
      summary.set("tokenizer_sha256", words_.sha256());
    }
    if (!words_.bytes() && text_.tokens_a_byte() > 0) {
      summary.set("held_out_tokens_a_byte", text_.tokens_a_byte());
      summary.set("held_out_last_a_byte", held_out * text_.tokens_a_byte());
    }
    if (plan_.keep_best > 0) {
      best_ = checkpoint::best_in(plan_.files.checkpoints());
      if (best_) {
        summary.set("best_step", best_->step);
        summary.set("best_held_out", best_->held_out);
      }
    }
    formats::atomic_write(plan_.files.at("summary.json"), json::to_string(summary, 2) + "\n");
    trained ? tell(report, held_out, sample, hurried) : tell(held_out);
    return lost ? 1 : 0;
  }

  // The unit of a loss; if tokens are not bytes, also the loss per byte.
  [[nodiscard]] std::string a_token(double held_out) const {
    if (!words_.is_text() || !(text_.tokens_a_byte() > 0)) return "a token";
    if (words_.bytes()) return "a byte";
    return fmt::format("a token ({:.4f} a byte)", held_out * text_.tokens_a_byte());
  }

  void tell(double held_out) const {  // if nothing was trained
    // Not printf, whose number format depends on the program's locale.
    fmt::print("\nheld-out loss {:.4f} nats {} on {} ranks\n\nthe run     {}/summary.json\n", held_out,
               a_token(held_out), world_.size(), plan_.files.directory);
    std::fflush(stdout);
    if (std::isnan(held_out)) std::fprintf(stderr, "train_gpt: the held-out loss is not a number\n");
  }

  void tell(fit_report const& report, double held_out, std::string const& sample, bool hurried) const {
    auto const* const directory = plan_.files.directory.c_str();
    auto const rate = busy_ > 0 ? static_cast<double>(tokens_) / busy_ : 0.0;
    std::printf("\n%s after %lld of %lld steps", report.stopped ? "stopped" : "done",
                static_cast<long long>(trainer_->steps()), static_cast<long long>(plan_.steps));
    if (!hurried) {
      fmt::print(": held-out loss {:.4f} -> {:.4f} nats {}", history_.held_out_first, held_out, a_token(held_out));
    }
    fmt::print(", {:.0f} tokens/s on {} ranks\n\n", rate, world_.size());
    if (!sample.empty()) std::printf("%s\n\n", sample.c_str());
    std::printf("the run     %s/summary.json\n", directory);
    if (!hurried) {
      std::printf("the model   %s/model%s\n", directory, readers_of(plan_.model).c_str());
    }
    if (best_) fmt::print("the best    {} (held-out loss {:.4f})\n", best_->path, best_->held_out);
    std::printf("checkpoint  %s (--name and --resume go on from it)\nto look at  tensorboard --logdir %s",
                plan_.files.checkpoints().c_str(), directory);
    if (!hurried) std::printf("; %s/timeline.json in ui.perfetto.dev", directory);
    std::printf("\n");
    std::fflush(stdout);
    if (report.left_out > 0) {
      std::fprintf(stderr, "train_gpt: %s left out because %s cannot be read\n",
                   trireme::text(trireme::how_many(report.left_out, "sequence"),
                                 trireme::agreeing(report.left_out, " was", " were"))
                       .c_str(),
                   report.left_out == 1 ? "it" : "they");
    }
    if (auto const slow = report.slow_data(); !slow.empty()) std::fprintf(stderr, "train_gpt: %s\n", slow.c_str());
    if (history_.skipped_last > 0) {
      std::fprintf(stderr,
                   "train_gpt: the last %lld steps were skipped, because a gradient was not finite, "
                   "so the model did not learn in them; start again with a lower --rate, or check the text\n",
                   static_cast<long long>(history_.skipped_last));
    } else if (std::isnan(held_out) && !hurried) {
      std::fprintf(
          stderr,
          "train_gpt: the held-out loss is not a number, so the model is useless; start again with a lower --rate\n");
    }
  }

  // Every rank's timeline is sent to rank 0, padded to one length.
  void write_timeline() {
    auto const own = observe::pack(timeline_);
    std::int64_t longest = static_cast<std::int64_t>(own.size());
    world_.all_reduce(tensor_view<std::int64_t>(&longest, shape{1}), reduction::max{});
    std::vector<std::uint8_t> all(static_cast<std::size_t>(longest * world_.size()));
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(world_.size()));
    sizes[static_cast<std::size_t>(world_.rank())] = static_cast<std::int64_t>(own.size());
    std::copy_n(reinterpret_cast<std::uint8_t const*>(own.data()), own.size(), all.begin() + longest * world_.rank());
    world_.all_gather(tensor_view<std::int64_t>(sizes));
    world_.all_gather(tensor_view<std::uint8_t>(all));
    if (!writes()) return;
    std::vector<observe::unpacked_timeline> ranks;
    std::vector<trace_process> processes;
    for (int rank = 0; rank < world_.size(); ++rank) {
      ranks.push_back(observe::unpack(std::as_bytes(std::span(all).subspan(
          static_cast<std::size_t>(longest * rank), static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)])))));
    }
    for (auto const& each : ranks) processes.push_back(each.process());
    formats::chrome_trace::write(plan_.files.at("timeline.json"), processes);
  }

  plan const& plan_;
  comm::any_world& world_;
  comm::any_world& saving_;  // used while ranks wait for each other's disks
  text_record const& about_text_;
  run_text const& text_;
  token_choice const& words_;
  text_windows held_out_;
  observe::timeline timeline_;
  std::unique_ptr<any_trainer> trainer_;
  float_evaluation held_out_loss_;
  std::int64_t micro_batches_;
  std::optional<formats::tensorboard::writer> log_;
  observe::progress progress_;
  std::optional<heartbeat> beat_;  // on rank 0
  stragglers stragglers_;
  history history_;
  steady::time_point start_ = steady::now();
  std::optional<save_watch> watch_;  // of a save in the background
  std::int64_t failed_saves_ = 0;    // in a row
  std::int64_t saved_at_ = -1;
  std::optional<checkpoint::kept> best_;
  std::int64_t tokens_ = 0;
  int heard_ = 0;  // signals received when training was over
  std::uint64_t sent_ = 0;
  std::uint64_t traffic_ = 0;
  double busy_ = 0;
  double waited_ = 0;  // for data
};

/// Collective. Rank 0 takes the lock of an existing run, to continue it or to rename it; the lock is released when the
/// returned object is destroyed.
std::optional<run_lock> lock(plan const& what, comm::any_world& world) {
  std::optional<run_lock> held;
  trireme::detail::together(world, [&] {
    if (world.rank() == 0 && (what.files.exists("options.json") || what.files.has_only_begun())) {
      held.emplace(what.files.directory);
    }
  });
  return held;
}

/// Collective. Whether a failed run has a checkpoint from which it can continue, as rank 0 sees it.
bool can_go_on(plan const& what, comm::any_world& world) {
  std::int32_t yes = 0;
  trireme::detail::together(world, [&] {
    if (world.rank() == 0) yes = what.files.can_be_resumed() ? 1 : 0;
  });
  world.broadcast(tensor_view<std::int32_t>(&yes, shape{1}), 0);
  return yes != 0;
}

/// Collective. Rank 0 prepares the run's directory; the others wait for it.
void prepare(plan const& what, text_record const& text, token_choice const& tokens, comm::any_world& world,
             std::optional<run_lock>& held) {
  if (what.resume) return;  // an existing run is prepared already
  trireme::detail::together(world, [&] { asked::save_first(static_cast<int>(what.grace)); });
  trireme::detail::together(world, [&] {
    if (world.rank() != 0) return;
    std::string aside;
    try {
      aside = what.files.make_new(held.has_value());
    } catch (io_error const&) {  // perhaps because another process has just begun; then the lock reports it
      if (!held) run_lock::expect_free(what.files.directory);
      throw;
    }
    held = run_lock(what.files.directory);  // the earlier run's lock is released
    if (what.files.exists("options.json"))
      throw io_error(what.files.directory, "another process has just begun a run here; choose another --name");
    if (!aside.empty()) {
      std::fprintf(stderr, "%s held an earlier run, which is now %s\n", what.files.directory.c_str(), aside.c_str());
    }
    formats::atomic_write(what.files.at("options.json"), what.saved_options);
    if (!what.from.empty())
      formats::atomic_write(what.files.at("config.json"), json::to_string(config_of(what.model), 2) + "\n");
    if (!tokens.bytes()) formats::atomic_write(what.files.at(tokens.file_name()), tokens.content());
    text.write(what.files.at("text.json"));
  });
}

/// The tokens of a run; a resumed run keeps its tokenizer.
token_choice tokens_of(options const& given, run_files const& files, std::optional<text_record> const& before) {
  auto path = given.text("tokenizer");
  if (given.resume() && !given.was_given("tokenizer")) {
    for (auto const* const kept : {"tokenizer.json", "tokenizer.model"}) {
      if (files.exists(kept)) path = files.at(kept);
    }
  }
  auto const vocabulary = given.number("vocabulary", 0);
  bool const chats = names_conversations(given);
  if (chats && path.empty()) {
    throw config_error("--data FILE.jsonl holds conversations; give the --tokenizer, with its chat template beside it");
  }
  bool const shards = !chats && !given.text("data").empty();
  if (vocabulary > 0 && (!shards || !path.empty())) {
    throw config_error(
        "--vocabulary goes with --data and without --tokenizer, whose vocabulary is known; leave it out");
  }
  if (shards && path.empty() && vocabulary < 1) {
    throw config_error("--data holds tokens as numbers; give --vocabulary N, or the --tokenizer that made them");
  }
  if (!shards && given.text("data-kind") != "recognised") {
    throw config_error("--data-kind goes with --data; leave it out");
  }
  auto const tokens = shards && path.empty() ? token_choice::numbers(vocabulary) : token_choice(path);
  if (before && before->tokenizer != tokens.sha256()) {
    throw config_error(text("the tokens of this run are ",
                            before->tokenizer.empty() ? "bytes"
                                                      : text("those of a tokenizer with the SHA-256 ",
                                                             before->tokenizer.substr(0, 12), "..."),
                            ", not ", tokens.of_what(), "; leave out --tokenizer with --resume"));
  }
  return tokens;
}

int train(options& given) {
  check_environment();
  std::optional<text_record> text_before;
  run_files const files{given.text("runs") + "/" + given.text("name")};
  if (given.may_resume()) given.resume_if(files.can_be_resumed());
  if (given.resume()) {
    if (!files.exists("options.json")) {
      throw io_error(files.directory, "there is no run here to resume; start it without --resume, or give its --name");
    }
    given.take_rest_from(files.at("options.json"));
    if (files.exists("text.json")) text_before = text_record::read(files.at("text.json"));
  }
  if (given.text("ranks").empty() && !given.was_given("ranks"))
    given.decide("ranks", std::to_string(given.text("device") == "cpu" ? usable_cores() : 1));
  if (given.text("rate").empty() && !given.was_given("rate"))
    given.decide("rate", optimizer_choice::usual_rate(method_of(given)));
  auto const ranks = static_cast<int>(std::min<std::int64_t>(given.number("ranks", 1), 1 << 20));
  auto const [world_ranks, ranks_here] = ranks_to_come(ranks);
  auto const tokens = tokens_of(given, files, text_before);
  auto const begun = given.resume() && files.exists("config.json");
  if (given.resume() && given.was_given("from") && !begun)
    throw config_error("--from begins a run, but this one began without it; leave it out with --resume");
  auto const chosen =
      given.text("from").empty()
          ? model_choice::described_by(given, tokens.vocabulary())
          : model_choice::from_files(given, begun ? files.directory : given.text("from"), tokens.vocabulary());
  if (names_conversations(given))
    given.decide("chat", std::string(name_of(chat_format(given, given.text("tokenizer")))));
  plan const what(given, model_choice::with_changes(given, chosen));
  preemption_notice const notice(given.text("preemption-notice"), comm::reports(""));
  late_calls const late(what.files.directory);
  auto const of_device = what.on_device() ? device_bytes() : 0;
  expect_room(what.need(world_ranks, ranks_here, 0));
  static_cast<void>(expect_device_room(what.need(world_ranks, ranks_here, 0), of_device));
  auto shards = what.shards;
  shards.vocabulary = tokens.vocabulary();
  std::optional<data::chat_samples> chats;
  if (what.has_chats) chats = read_conversations(given, tokens);
  auto text = chats               ? examine_conversations(*chats, given.text("data"))
              : what.has_shards() ? examine_shards(shards)
                                  : examine_text(what.text, what.runs, comm::reports(""));
  text.tokenizer = tokens.sha256();
  auto const parts = chats ? run_text(cut_conversations(*chats, text, text_before, what.accept_new_text))
                     : what.has_shards()
                         ? run_text(cut_shards(shards, text, text_before, what.accept_new_text))
                         : run_text(cut_text(text, text_before, what.context, what.accept_new_text), tokens);
  if (auto const& count = parts.chats(); count && comm::reports("")) {
    std::fprintf(stderr, "%s\n",
                 trireme::text(trireme::how_many(count->conversations, "conversation"), " with ", count->targets,
                               " tokens to learn, ", count->cut, " of them cut, and ", count->left_out,
                               " left out because of --context ", what.context)
                     .c_str());
  }
  auto const need = what.need(world_ranks, ranks_here, parts.training().size());
  expect_room(need);
  if (auto const both = expect_device_room(need, of_device); !both.empty() && comm::reports(""))
    std::fprintf(stderr, "%s\n", both.c_str());
  comm::recovery const again{
      .attempts = what.recover, .min_ranks = what.recover_ranks, .on_failure = [&](comm::recovered const& now) {
        if (now.rank != 0) return;
        std::fprintf(stderr, "\ntrain_gpt: a rank has failed (%s); recovery %d of %d, with %d ranks\n",
                     with_deadline_option(now.reason, what.save_deadline).c_str(), now.attempt, what.recover, now.size);
      }};
  auto const on_each_rank = [&](comm::any_world& world, int attempt) {
    if (attempt == 0 && given.was_given("ranks") && world.size() != ranks) {
      throw config_error(trireme::text("--ranks is ", ranks, ", but the launcher started ",
                                       trireme::how_many(world.size(), "process")));
    }
    expect_one_run(world, given,
                   trireme::text(trireme::how_many(text.bytes, what.has_chats      ? "sample"
                                                               : what.has_shards() ? "token"
                                                                                   : "byte"),
                                 " with the SHA-256 ", text.sha256),
                   tokens.of_what());
    if (what.on_device()) remember_device_plan(need.least_device_bytes() / need.ranks_here);
    auto saving = world.duplicate(what.save_deadline);
    auto held = lock(what, saving);
    plan now = what;
    if (attempt > 0) now.resume = can_go_on(what, saving);
    run one(now, world, saving, parts, tokens, text);
    prepare(now, text, tokens, saving, held);
    return one();
  };
  try {
    return on_all_ranks(ranks, given.seconds("deadline"), again, on_each_rank);
  } catch (comm_error const& problem) {
    throw comm_error(with_deadline_option(problem.what(), what.save_deadline));
  }
}

}  // namespace

int main(int argc, char** argv) {
  // If standard streams are closed, files of the run would get their descriptors, and receive what is printed.
  for (int opened = 0; opened >= 0 && opened <= STDERR_FILENO;) {
    opened = ::open("/dev/null", O_RDWR);
    if (opened > STDERR_FILENO) ::close(opened);
  }
  options given;
  try {
    given.parse({argv + 1, argv + argc});
    if (given.help()) {
      std::printf("%s", given.usage().c_str());
      return 0;
    }
    asked::listen(comm::reports(""));
    return train(given);
  } catch (device_memory_error const& problem) {
    if (comm::reports(problem.what())) std::fprintf(stderr, "train_gpt: %s\n", problem.what());
    return 1;
  } catch (std::bad_alloc const&) {
    if (comm::reports("")) {
      std::fprintf(stderr,
                   "train_gpt: there is not enough memory for this run; "
                   "choose fewer --layers or --channels, a smaller --batch, or fewer --ranks\n");
    }
    return 1;
  } catch (std::exception const& problem) {
    if (comm::reports(problem.what())) {
      std::fprintf(stderr, "train_gpt: %s\n", problem.what());
    } else {  // a launcher kills the others when one exits, so the one with the message exits first
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    return 1;
  }
}
