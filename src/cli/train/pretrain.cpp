// primus train pretrain, train posttrain, and the options of all training commands
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "cli/options/experiment.h"
#include "cli/options/hardware.h"
#include "cli/options/rank_options.h"
#include "cli/train/external.h"
#include "cli/train/fit_options.h"
#include "cli/train/forecast.h"
#include "cli/train/lost_rank_record.h"
#include "cli/train/plan_notes.h"
#include "cli/train/rank_run.h"
#include "cli/train/stage_command.h"
#include "cli/train/supervise_options.h"
#include "comm/mpi/current_job.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/missing_data.h"
#include "launch/ranks/local_launch.h"
#include "launch/ranks/rank_channel.h"
#include "lm/events/run_folder.h"
#include "lm/train/job_start.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/missing_inputs.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/trainer.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

// Returns the loss as it is shown with four digits: without the sign of a NaN, and not as -0.0000.
double shown_loss(double loss) {
  constexpr double kShownAsZero = 0.5e-4;
  return std::abs(loss) < kShownAsZero ? 0 : drop_nan_sign(loss);
}

// `module`: the module to run if the experiment has several. `stage`: the stage that the command trains;
// empty: any stage of the module.
class Train : public Command {
 public:
  explicit Train(std::string module, std::string stage = {})
      : module_(std::move(module)), stage_(std::move(stage)) {}

  void declare(Arguments& args) override {
    experiment_.declare(args, false, module_, stage_.empty() ? "sft" : stage_);
    args.option("--backend", "NAME", &backend_,
                "engine to train with, instead of the experiment's framework: native, megatron, torchtitan "
                "or maxtext");
    args.option("--backend_path,--backend-path", "FOLDER", &backend_path_,
                "folder with the sources of that framework ('primus deps' finds or fetches them)")
        .reads = all_of_them;
    args.flag("--dry-run,--dry_run", dry_run_,
              "show the plan of the run (for another framework, its command and files), and change nothing");
    args.option("--world", "N", &world_,
                "with --dry-run: forecast memory, communication and pipeline bubble for N ranks");
    hardware_.declare(args);
    args.option("--export-config,--export_config", "OUT", &export_,
                "before training, write the resolved experiment to this file (with --dry-run: without "
                "training)");
    overwrite_.declare(args, "with --export-config: replace an existing file");
    ranks_.declare(args,
                   "train with N ranks on this machine; each is a process with a GPU, or with a part of the "
                   "cores (default: 1)");
    supervise_.declare(args);
    args.flag("--quiet,-q", quiet_, "show only warnings, errors and, on a terminal, one line of progress");
    args.flag("--plain", plain_, "print log lines also on a terminal, instead of the live view");
    args.flag("--fit", fit_,
              "pick the fastest micro_batch_size and recomputation that fit the free memory; keep the global "
              "batch");
    args.option("--fit-memory,--fit_memory", "SIZE", &fit_memory_,
                "as --fit, but for this much memory per device: 80GiB, or 90% of the device's memory");
    args.flag("--force", force_, "start even if memory or disk looks too small");
    args.flag("--json", json_, "print the result (or the forecast) as JSON");
  }

  // Reports meshes and batches that the native engine refuses. Files that exist only on the job's nodes are
  // checked on the nodes.
  void check_job(int nodes, int ranks_per_node,
                 const std::map<std::string, std::string>& variables) override {
    check_words();
    supervise_.check(nodes);
    nodes = supervise_.without_spares(nodes);
    if (is_elsewhere()) return;
    const int here = static_cast<int>(ranks_.here().value_or(ranks_per_node));
    const int world = nodes * here;
    config::Experiment experiment = chosen().read(std::max(world, 1), variables);
    check_stage(experiment);
    if (experiment.framework != "native") {
      external_options(experiment);  // refuses options of the native engine
      // If the size is unknown, checks with one process: this finds the errors that do not depend on the
      // size.
      check_external(experiment, std::max(nodes, 1), std::max(here, 1));
      return;
    }
    refuse_backend_path();
    check_device_name(experiment.trainer->device);
    if (fit_ || fit_memory_) experiment.trainer->micro_batch_size = 1;  // --fit chooses the size
    if (world > 0) check_mesh(experiment, builtin_families(), world);
  }

  std::vector<launch::AbsentInput> absent_inputs(
      const std::map<std::string, std::string>& variables) override {
    if (is_elsewhere()) return {};
    const config::Experiment experiment = chosen().read(1, variables);
    std::vector<launch::AbsentInput> absent;
    if (experiment.framework != "native") return absent;
    for (const MissingInput& input : missing_inputs(experiment))
      absent.push_back({input.key, input.path, experiment.provenance_of(input.key).describe()});
    return absent;
  }

  launch::JobOutline outline(int nodes, int ranks_per_node,
                             const std::map<std::string, std::string>& variables) override {
    if (is_elsewhere()) return {};
    const ExperimentArguments arguments = chosen();
    nodes = supervise_.without_spares(nodes);
    const int here = std::max(1, static_cast<int>(ranks_.here().value_or(ranks_per_node)));
    return outline_of(arguments, arguments.read(std::max(nodes, 1) * here, variables), std::max(nodes, 1),
                      here);
  }

  bool needs_token() const override {
    if (dry_run_) return false;
    if (!experiment_.names_a_file() || is_elsewhere()) return true;
    return chosen().read().framework == "native";
  }

  int run(Console& console) override {
    if (backend_) experiment_.choose_framework(*backend_);
    check_ranks(console);
    const auto place = comm::current_job();
    supervise_.check(ranks_.machines(), place);
    ranks_.leave_out(supervise_.spares());
    const std::int64_t world =
        place ? place->world : world_.value_or(ranks_.here().value_or(1) * ranks_.nodes());
    config::Experiment experiment = dry_run_ ? experiment_to_plan(world, console) : experiment_.read(world);
    // Prints no warnings if this process starts ranks, because rank 0 loads the experiment again.
    const bool starts_ranks = !place && !dry_run_ && (ranks_.several() || supervise_.given());
    const bool is_first = !place || place->rank == 0;  // the warnings are the same on all ranks
    if (is_first && (experiment.framework != "native" || !starts_ranks))
      ExperimentArguments::announce(experiment, console);
    check_stage(experiment);
    if (experiment.framework != "native") {
      if (export_ && !place) export_to(experiment, place, static_cast<int>(world), console);
      return run_external(experiment, external_options(experiment), console);
    }
    refuse_backend_path();
    if (supervise_.given() && !dry_run_)
      return supervise_.run(experiment, ranks_.here().value_or(1), ranks_, console);
    if (dry_run_) {
      if (is_first) note_unused_settings(experiment, console);
      hardware_.apply(experiment, experiment_.file(), console);
      if (experiment.hardware && ranks_.nodes() > 1) {
        // --nnodes determines how many ranks share a host.
        config::Hardware hardware = *experiment.hardware;
        if (is_first) note_unused_gpus(hardware, world / ranks_.nodes(), console);
        hardware.gpus_per_host = static_cast<double>(world / ranks_.nodes());
        experiment.hardware = std::make_shared<const config::Hardware>(std::move(hardware));
      }
    }
    if (fit_ || fit_memory_) experiment = fitted(experiment, place, world, console);
    if (dry_run_) {
      if (place && place->rank != 0) return 0;  // only rank 0 prints the forecast
      apply_environment(experiment);
      check_transport(experiment, place);
      if (export_) export_to(experiment, place, static_cast<int>(world), console);
      return forecast(experiment, place, console);
    }
    ranks_.check_place(place);
    apply_environment(experiment);
    starts_anew_ = !experiment.trainer->auto_continue_train;
    if (continue_own_job(experiment) && is_first)
      console.note("note: this job continues the run that it began, although auto_continue_train is false");
    // If this process starts ranks, their rank 0 does the work that is done once per job.
    if (starts_ranks) {
      check_transport(experiment, place);
      check_mesh(experiment, builtin_families(), static_cast<int>(world));
      return launch_ranks(experiment, console);
    }
    // The lost process that this one replaces has written it.
    const bool exports = export_ && !std::getenv(launch::kReplacesVariable);
    if (exports && (!place || place->rank == 0))
      export_to(experiment, place, static_cast<int>(world), console);
    return train(experiment, place, console);
  }

 private:
  // Returns whether the experiment is a file that exists only on the job's machines.
  bool is_elsewhere() const { return experiment_.names_a_file() && !Env::posix().status(experiment_.file()); }

  // Returns the experiment with the framework of --backend.
  ExperimentArguments chosen() const {
    ExperimentArguments chosen = experiment_;
    if (backend_) chosen.choose_framework(*backend_);
    return chosen;
  }

  // Uses mock data if the experiment names no data, because a plan does not depend on the data's content.
  config::Experiment experiment_to_plan(std::int64_t world, const Console& console) {
    try {
      return experiment_.read(world);
    } catch (const Error& error) {
      if (std::string_view(error.what()) != config::kNoTrainingData) throw;
    }
    config::Experiment experiment = experiment_.load_with({"mock_data=true"}, world);
    console.note(
        "note: the experiment names no data, so the plan assumes mock_data: true; training needs data_path "
        "or train_data_path");
    return experiment;
  }

  ExternalOptions external_options(const config::Experiment& experiment) const {
    const auto refuse = [&](bool given, const char* option) {
      if (!given) return;
      throw invalid(
          fmt::format("{} is for the native engine, but the framework is {}", option, experiment.framework),
          dry_run_ ? fmt::format("remove the option, or plan the experiment for the native engine: --backend "
                                 "native --dry-run {}",
                                 option)
                   : "remove the option, or choose --backend native");
    };
    refuse(world_.has_value(), "--world");
    refuse(force_, "--force");
    refuse(supervise_.given(), "--supervise");
    refuse(fit_ || fit_memory_, "--fit");
    refuse(hardware_.given(), "--hardware");
    return {
        .backend_path = backend_path_, .ranks = ranks_, .dry_run = dry_run_, .json = json_, .quiet = quiet_};
  }

  // Refuses a stage that the command does not train. 'train pretrain' accepts every stage, as in AMD Primus,
  // but 'train posttrain' must not pre-train by accident.
  void check_stage(const config::Experiment& experiment) const {
    const config::Stage& stage = config::stage_of(experiment.trainer);
    if (!stage_.empty() && (experiment.framework != "native" || stage.name != stage_)) {
      throw experiment.error_for(
          experiment.framework != "native" ? "framework" : "stage",
          experiment.framework != "native"
              ? fmt::format("'train {}' trains with framework: native, and not with {}", stage_,
                            experiment.framework)
              : fmt::format("stage is {}, but 'train {}' needs stage: {}", stage.name, stage_, stage_),
          fmt::format("config: {}_trainer.yaml sets the stage; 'train posttrain' accepts every stage that "
                      "fine-tunes",
                      stage_));
    }
    if (module_ == "post_trainer" && experiment.framework != "native") {
      throw experiment.error_for(
          "framework",
          fmt::format("'train posttrain' fine-tunes with framework: native; with {} it would pre-train",
                      experiment.framework),
          "pre-train with 'train pretrain', or set framework: native and stage: sft");
    }
    if (module_ != "post_trainer" || stage.fine_tunes) return;
    throw experiment.error_for(
        "stage", fmt::format("stage is {}, but posttrain needs a stage that fine-tunes", stage.name),
        "set stage: sft (config: sft_trainer.yaml sets it), or start it with 'train pretrain'");
  }

  void refuse_backend_path() const {
    if (!backend_path_) return;
    throw invalid(
        "--backend_path names another framework's sources, but this run is native",
        "choose a framework with --backend megatron, torchtitan or maxtext, or remove --backend_path");
  }

  void check_ranks(const Console& console) const {
    ranks_.check(!dry_run_, console);
    check_words();
  }

  // Checks the options without examining the machine or the ranks. Throws Error.
  void check_words() const {
    if (fit_memory_) parse_fit_memory(*fit_memory_);
    constexpr std::int64_t kMaxWorld = 1 << 20;
    if (world_ && (*world_ < 1 || *world_ > kMaxWorld))
      throw invalid(fmt::format("--world {}: not a number of ranks", *world_),
                    fmt::format("give 1 to {}", kMaxWorld));
    if (hardware_.given() && !dry_run_) {
      throw invalid("--hardware needs --dry-run: it plans for a device that this machine may not have",
                    "add --dry-run; a run uses the device of the key 'device'");
    }
    hardware_.check();
    if (!export_ && overwrite_.existing() == Existing::kReplace)
      throw invalid("--overwrite needs --export-config", "add --export-config FILE, or remove --overwrite");
    if (world_ && !dry_run_)
      throw invalid("--world needs --dry-run", "add --dry-run after 'train pretrain', or set --nproc");
    if (world_) ranks_.check_world(*world_);
  }

  // Checks the name of the requested transport (PRIMUS_TRANSPORT). If this process starts CPU ranks, also
  // checks whether they can use the transport.
  void check_transport(const config::Experiment& experiment,
                       const std::optional<comm::JobEnvironment>& place) const {
    const comm::Transport transport = comm::wanted_transport();
    const bool started_here = !place && !world_ && ranks_.several();
    if (started_here && turbo::choose_device(device_spec_of(experiment)).kind == "cpu")
      comm::check_transport(transport, ranks_.nodes() == 1, false);
  }

  // Returns the experiment with microbatches and recomputation that fit. Ranks started by a launcher choose
  // separately, but must find the same result. These ranks therefore use the memory size of --fit-memory.
  config::Experiment fitted(const config::Experiment& experiment,
                            const std::optional<comm::JobEnvironment>& place, std::int64_t world,
                            const Console& console) {
    const Trainer::FitMemory memory = fit_memory_ ? parse_fit_memory(*fit_memory_) : Trainer::FitMemory{};
    const bool elsewhere = (place && place->world > 1) || (!dry_run_ && ranks_.nodes() > 1);
    if (elsewhere && memory.bytes == 0) {
      throw invalid("--fit: ranks could choose different settings, because their free memory differs",
                    "give all ranks the same size: --fit-memory 80GiB");
    }
    Logger log(LogOptions{.console_level = LogLevel::kWarning, .console = console.err});
    const FamilyRegistry families = builtin_families();
    const auto fit = Trainer(experiment, families, log).fit(memory, static_cast<int>(world), on_host(place));
    fit_settings_ = fit.choice.settings;
    if (!place || place->rank == 0) console.note(describe_choice(fit.choice, fit.supply));
    config::Experiment fitted = experiment_.load_with(fit.choice.settings, world);
    fitted.hardware = experiment.hardware;
    fitted.trainer->device = experiment.trainer->device;
    if (!place || place->rank == 0) note_replaced_by_fit(fit_settings_, experiment, fitted, console);
    return fitted;
  }

  // Returns the number of ranks on each host, for planning; 1 if only --world gives the number of ranks.
  int on_host(const std::optional<comm::JobEnvironment>& place) const {
    return place ? place->local_world : world_ ? 1 : static_cast<int>(ranks_.here().value_or(1));
  }

  // Writes the experiment with derived settings. Training with the file gives the same results.
  void export_to(const config::Experiment& experiment, const std::optional<comm::JobEnvironment>& place,
                 int world, Console& console) const {
    const std::string text = exported_text(experiment, builtin_families(), world, on_host(place));
    if (*export_ == "-" || *export_ == "/dev/stdout") return console.write(text);
    write_output(*export_, text, overwrite_.existing());
  }

  int forecast(const config::Experiment& experiment, const std::optional<comm::JobEnvironment>& place,
               Console& console) const {
    Logger log(LogOptions{.console_level = LogLevel::kWarning, .console = console.err});
    const FamilyRegistry families = builtin_families();
    const int here = place ? place->local_world : ranks_.here().value_or(1);
    const auto world = static_cast<int>(world_.value_or(place ? place->world : here * ranks_.nodes()));
    const TrainingForecast forecast = Trainer(experiment, families, log).forecast(world, world_ ? 1 : here);
    const std::optional<std::int64_t> continued = note_continuation(forecast, families, console);
    const std::vector<MissingInput> missing = missing_inputs(experiment);
    for (const MissingInput& input : missing) {
      console.note(fmt::format("warning: {} is '{}' ({}), which does not exist: training will need it",
                               input.key, input.path, experiment.provenance_of(input.key).describe()));
    }
    if (!world_ && !experiment.hardware) note_storage(experiment, forecast.checkpoint_bytes, console);
    if (json_) {
      nlohmann::json json = to_json(forecast, continued);
      json["output_dir"] = experiment.output_dir().string();
      json["continues_from"] = continued ? nlohmann::json(*continued) : nlohmann::json();
      json["experiment"] = nlohmann::json::parse(config::to_json(forecast.experiment, false));
      json["missing"] = nlohmann::json::array();
      for (const MissingInput& input : missing)
        json["missing"].push_back({{"key", input.key}, {"path", input.path}});
      if (supervise_.given()) json["supervise"] = supervise_.plan_json(experiment, here, ranks_.nodes());
      console.write(json_text(json) + "\n");
    } else {
      console.print(config::show(forecast.experiment, false) + "\n" +
                    to_text(forecast, forecast.experiment.trainer, continued) +
                    (supervise_.given() ? supervise_.plan(experiment, here, ranks_.nodes()) : ""));
    }
    return forecast.memory.fits ? 0 : 1;
  }

  // Starts this command again, once per rank, and supervises the ranks.
  int launch_ranks(const config::Experiment& experiment, Console& console) const {
    const RunFolder folder = run_folder_of(experiment);
    launch::LocalLaunch start = ranks_.start(ranks_.here().value_or(1));
    // Passes the settings that --fit has chosen to the ranks, instead of --fit.
    if (!fit_settings_.empty()) {
      start.command = without_fit(start.command);
      start.command.insert(start.command.end(), fit_settings_.begin(), fit_settings_.end());
    }
    start.output_file = [folder, module = experiment.module_name](int rank) {
      return folder.rank_logs(module, rank) / "output.log";
    };
    launch::Channel supervisor = launch::Channel::inherited(launch::kSupervisorChannel);
    std::optional<LostRankRecord> record(folder.root());
    std::string loss;
    if (supervisor.valid() && restarts_single_ranks(experiment)) {
      start.restarts = {.supervisor = &supervisor,
                        .lost = [&](const launch::LaunchResult& failure) { loss = record->add(failure); },
                        .joined = [&] { record.emplace(folder.root()); }};
    } else {
      supervisor.close();  // tells the supervisor
    }
    const launch::LaunchResult result = launch::run_local(start);
    if (result.failed_rank >= 0) console.note("error: " + (result.reported ? loss : record->add(result)));
    return result.exit_code;
  }

  int train(const config::Experiment& experiment, const std::optional<comm::JobEnvironment>& place,
            Console& console) const {
    const RankRun::Options options{
        .json = json_,
        .plain = plain_,
        .quiet = quiet_,
        .force = force_,
        .report = [&](const TrainingSummary& summary) { report(experiment, summary, console); }};
    return RankRun(experiment, place, options, console).run();
  }

  void report(const config::Experiment& experiment, const TrainingSummary& s, Console& console) const {
    if (json_) {
      nlohmann::json json{{"first_step", s.first_step}, {"last_step", s.last_step},
                          {"last_loss", s.last_loss},   {"interrupted", s.interrupted},
                          {"seconds", s.seconds},       {"output_dir", experiment.output_dir().string()}};
      if (s.last_reward) json["last_reward"] = *s.last_reward;
      if (s.best_reward) {
        json["best_reward"] = s.best_reward->reward;
        json["best_reward_step"] = s.best_reward->step;
      }
      if (s.validation_loss) json["validation_loss"] = *s.validation_loss;
      if (s.test_loss) json["test_loss"] = *s.test_loss;
      if (!s.unused_changes.empty()) json["unused_changes"] = s.unused_changes;
      if (s.checkpoint) json["checkpoint"] = *s.checkpoint;
      if (experiment.trainer->target_eval_loss) json["reached_target"] = s.reached_target;
      console.write(json_text(json) + "\n");
      return;
    }
    std::string text;
    const bool did_nothing = s.first_step == s.last_step && !s.interrupted;
    const bool evaluated = s.validation_loss || s.test_loss;
    if (did_nothing && s.last_step == 0) {
      text = fmt::format("{}: the run has no steps, so nothing was trained\n",
                         evaluated ? "evaluated" : "nothing to do");
    } else if (did_nothing && evaluated) {
      text = fmt::format(
          "evaluated: the run had reached iteration {} and was stopped before its evaluation\n", s.last_step);
    } else if (did_nothing) {
      text = fmt::format("nothing left to do: the run had reached iteration {}\n", s.last_step);
      if (s.unused_changes.empty()) text += fmt::format("{}; to train longer: {}\n", s.length, s.longer);
    } else if (s.last_step == 0) {
      text = fmt::format("stopped before the end of the first step, {}: nothing to save\n",
                         human_duration(s.seconds));
    } else {
      const std::string reward = s.last_reward ? fmt::format(" and reward {:.4f}", *s.last_reward) : "";
      const std::string best = s.best_reward ? fmt::format(" (best reward {:.4f} in step {})",
                                                           s.best_reward->reward, s.best_reward->step)
                                             : "";
      text = fmt::format("{} after iteration {}, loss {:.4f}{} in the last step{}, {}\n",
                         s.interrupted ? "stopped" : "done", s.last_step, shown_loss(s.last_loss), reward,
                         best, human_duration(s.seconds));
    }
    if (!s.unused_changes.empty()) {
      text += fmt::format("{}, which does not change a finished run: {}\n", fmt::join(s.unused_changes, "; "),
                          s.length) +
              fmt::format(
                  "choose another name for a new run (exp_name=...; load={} starts it from these weights), "
                  "or train this run longer, on the present data ({})\n",
                  s.checkpoint.value_or("CHECKPOINT"), s.longer);
    }
    if (s.validation_loss) text += fmt::format("validation loss {:.4f}\n", drop_nan_sign(*s.validation_loss));
    if (s.test_loss) text += fmt::format("test loss {:.4f}\n", drop_nan_sign(*s.test_loss));
    if (const auto target = experiment.trainer->target_eval_loss) {
      text +=
          fmt::format("target_eval_loss {} was {}\n", *target, s.reached_target ? "reached" : "not reached");
    }
    if (s.checkpoint) text += fmt::format("checkpoint {}\n", *s.checkpoint);
    if (!s.checkpoint && s.last_step > 0) text += "no checkpoint was written\n";
    if (s.interrupted && s.last_step > 0)
      text += fmt::format("run the same command again{} to continue\n",
                          starts_anew_ ? " with auto_continue_train=true" : "");
    console.print(text);
  }

  std::string module_, stage_;
  ExperimentArguments experiment_;
  std::optional<std::string> export_;
  OverwriteFlag overwrite_;
  RankOptions ranks_;
  std::optional<std::int64_t> world_;
  HardwareOption hardware_;
  SuperviseOptions supervise_;
  std::optional<std::string> backend_, backend_path_, fit_memory_;
  std::vector<std::string> fit_settings_;
  bool fit_ = false, dry_run_ = false, quiet_ = false, plain_ = false, force_ = false, json_ = false;
  bool starts_anew_ = false;  // the experiment sets auto_continue_train to false
};

class TrainPretrain final : public Train {
 public:
  TrainPretrain() : Train("pre_trainer") {}
};

class TrainPosttrain final : public Train {
 public:
  TrainPosttrain() : Train("post_trainer") {}
};

}  // namespace

std::unique_ptr<Command> make_stage_command(std::string stage) {
  return std::make_unique<Train>("post_trainer", std::move(stage));
}

extern const CommandEntry kTrainPretrain{
    "train pretrain",
    "Trains a language model as an experiment file describes it",
    "Writes logs, metrics.jsonl, TensorBoard events and checkpoints, which transformers loads, to "
    "workspace/work_group/user_name/exp_name. Without --config, load=FOLDER names the model to start from (a "
    "Hugging Face folder, a checkpoint, or a run) and data_path=FILE the text. The run then takes one epoch, "
    "unless train_iters, epochs, tokens or minutes is set. On a terminal the run has a live view; elsewhere, "
    "and with --plain, it prints log lines.\n\n"
    "Run the same command again to continue from the newest checkpoint. Ctrl-C, SIGTERM or SIGUSR1 saves and "
    "ends with exit code 0. A second signal ends the run at once, unless a launcher or Slurm started the "
    "process.\n\n"
    "--dry-run ends with exit code 1 if the run does not fit the device's memory. --hardware NAME plans for "
    "a GPU that this machine may not have.\n\n"
    "An experiment whose framework is megatron, torchtitan or maxtext is translated for that framework and "
    "started with it; --backend chooses another one. Primus writes metrics.jsonl from the framework's "
    "log.\n\n"
    "Overrides change the experiment for this command only: key=value, --key value, --key=value or --flag. "
    "The key is a trainer key (lr), a top-level key (exp_name) or a dotted path. 'primus config reference' "
    "lists all keys.",
    "primus train pretrain --config examples/native/configs/CPU/llama_124M-pretrain.yaml\n"
    "primus train pretrain --config exp.yaml --dry-run\n"
    "primus train pretrain --config exp.yaml --dry-run --world 64 tensor_model_parallel_size=8\n"
    "primus train pretrain --config exp.yaml --dry-run --hardware mi300x --world 8\n"
    "primus train pretrain --config exp.yaml --fit\n"
    "primus train pretrain --config exp.yaml --dry-run --world 64 --fit-memory 80GiB "
    "tensor_model_parallel_size=8\n"
    "primus train pretrain --config exp.yaml lr=3e-4 --train_iters 100 exp_name=try1\n"
    "primus train pretrain --config exp.yaml data_path=corpus.txt --minutes 5\n"
    "primus train pretrain --config exp.yaml --nproc 4 data_parallel_sharding_strategy=optim_grads_params\n"
    "primus train pretrain --config exp.yaml --backend megatron --backend_path ~/Megatron-LM --nproc 8\n"
    "primus train pretrain --config exp.yaml --backend torchtitan --dry-run\n"
    "primus train pretrain load=path/to/model data_path=corpus.txt --epochs 2",
    make_command<TrainPretrain>,
    {Section::kTrain, 2},
    true};

extern const CommandEntry kTrainPosttrain{
    "train posttrain",
    "Fine-tunes a language model on conversations (stage: sft)",
    "Fine-tunes all weights or LoRA (lora) on chats, with the loss on answers only. Options, output folder "
    "and resuming are those of 'train pretrain'. The tutorial docs/posttrain.md begins with a file of JSON "
    "lines and a Hugging Face folder, and ends with a model that answers.\n\n"
    "sft_dataset_name is a file of JSON lines ({\"messages\": [...]}, {\"instruction\", \"output\"}, ...), "
    "or a folder with train.jsonl and optionally validation.jsonl. The format of conversations is that of "
    "the model's chat template, or sft_conversation_format. The log names the format, and the template is "
    "saved with the model. --skip-bad leaves broken records out and counts them. 'primus data conversations' "
    "shows the learned text.\n\n"
    "Without --config, load=FOLDER names the model and sft_dataset_name=FILE the conversations. Primus then "
    "chooses batch, epochs and lr from the number of conversations and the model's size (sft_fit_to_data), "
    "unless the command line sets them.",
    "primus train posttrain --config examples/native/configs/CPU/llama_tiny-sft.yaml\n"
    "primus train posttrain --config exp.yaml --dry-run\n"
    "primus train posttrain load=path/to/model sft_dataset_name=train.jsonl\n"
    "primus train posttrain load=path/to/model sft_dataset_name=data/ sft_conversation_format=chatml "
    "--epochs 3 "
    "lr=2e-5 exp_name=my-chats\n"
    "primus train posttrain load=path/to/model sft_dataset_name=train.jsonl lora='{enabled: true, dim: 16}' "
    "exp_name=my-lora\n"
    "primus train posttrain --config exp.yaml --nproc 4",
    make_command<TrainPosttrain>,
    {Section::kTrain, 3},
    true};

}  // namespace primus::cli
