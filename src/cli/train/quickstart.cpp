// primus quickstart
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <thread>

#include "base/files/file.h"
#include "base/system/shell.h"
#include "base/system/threads.h"
#include "base/system/user_name.h"
#include "base/text/json_text.h"
#include "base/text/utf8.h"
#include "bench/train_benchmark.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "cli/options/experiment.h"
#include "cli/train/metrics_tail.h"
#include "cli/train/stop_signal.h"
#include "config/trainer_config.h"
#include "lm/data/train_tokenizer.h"
#include "lm/decode/decoder.h"
#include "lm/events/run_folder.h"
#include "lm/generate/generate.h"
#include "lm/generate/model_folder.h"
#include "lm/report/run_list.h"
#include "lm/train/trainer.h"

namespace primus::cli {
namespace {

constexpr std::int64_t kMicroBatch = 8, kSequence = 128;
constexpr std::int32_t kVocabulary = 2048;
constexpr const char* kWorkspace = "output";
constexpr double kSeconds = 30;  // training time by default

std::string absolute_path(const Path& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

// Returns `text` as a YAML double-quoted string. Every JSON string is also a YAML double-quoted string.
std::string quoted(const std::string& text) { return json_text(nlohmann::json(text), -1); }

class Quickstart final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--text", "FILE", &text_,
                "text file to train on (default: the text that ./quickstart.sh prepares)")
        .reads = all_of_them;
    args.option("--workspace", "FOLDER", &workspace_, "folder for the run");
    args.option("--seconds", "N", &seconds_, "approximate training time").default_note(kSeconds);
    args.option("--steps", "N", &steps_, "number of training steps, instead of a time").between(1, 1e9);
    args.flag("--again", again_, "train again even if an earlier quickstart is complete");
    args.flag("--json", json_, "print the result as JSON");
  }

  int run(Console& console) override {
    check_options();
    const RunFolder folder({.workspace = workspace_,
                            .work_group = "primus",
                            .user_name = user_name(),
                            .exp_name = "quickstart"});
    const Path file = folder.root() / "quickstart.yaml";
    if (again_ && Env::posix().status(folder.root())) put_aside(folder.root(), console);
    const bool chosen = text_ || steps_ || seconds_;
    if (!Env::posix().status(file) || (chosen && !has_trained(folder))) {
      prepare(folder, file, find_text(), console);
    } else if (const std::string_view other = other_option(file, console); !other.empty()) {
      throw invalid(
          fmt::format("'{}' already has a quickstart, which began with another {}", folder.root().string(),
                      other),
          "add --again to train again there, choose another folder with --workspace, or remove the option to "
          "continue it");
    }

    follow_move(folder, file, console);
    const config::Experiment experiment = config::load_experiment(file);
    const TrainingSummary summary = train(experiment, folder, console);
    const std::string text =
        summary.interrupted ? "" : sample(folder, experiment.trainer->data_path.at(0), console);
    if (json_) {
      nlohmann::json json{{"config", file.string()},
                          {"run", folder.root().string()},
                          {"last_step", summary.last_step},
                          {"interrupted", summary.interrupted},
                          {"sample", text}};
      add_losses(summary, folder, json);
      console.write(json_text(json) + "\n");
    } else if (summary.interrupted) {
      const std::string where = workspace_ == kWorkspace ? "" : " --workspace " + shell_quoted(workspace_);
      console.print(fmt::format("Stopped and saved. To continue:\n  {} quickstart{}\n",
                                shell_quoted(console.invocation), where));
    } else {
      console.print(next_steps(folder, file, shell_quoted(console.invocation)));
    }
    return 0;
  }

 private:
  // Adds the losses of this process. If an earlier process has finished the run, adds the recorded losses.
  static void add_losses(const TrainingSummary& summary, const RunFolder& folder, nlohmann::json& json) {
    std::optional<double> last = summary.last_loss, validation = summary.validation_loss;
    if (summary.last_step == summary.first_step) {
      const RunStatus recorded = run_status(folder.root());
      last = recorded.loss;
      if (!validation) validation = recorded.validation_loss;
    }
    if (last) json["last_loss"] = *last;
    if (validation) json["validation_loss"] = *validation;
  }

  void check_options() const {
    constexpr double kMaxSeconds = 1e6;
    if (seconds_ && !(*seconds_ > 0 && *seconds_ <= kMaxSeconds)) {
      throw invalid(
          fmt::format("--seconds must be above 0 and at most {:.0f}, not {}", kMaxSeconds, *seconds_));
    }
    if (steps_ && seconds_) throw invalid("--steps and --seconds exclude each other");
  }

  // Returns whether the run has trained at least one step. If the run has trained no step, for example
  // because of an error in its text, new options replace the run's experiment.
  static bool has_trained(const RunFolder& folder) {
    const RunLock nobody_trains_there(folder.root());
    const auto metrics = Env::posix().status(folder.metrics_file());
    return (metrics && metrics->size > 0) || Env::posix().status(folder.checkpoints() / "latest").has_value();
  }

  // Returns the option that differs from the run in the experiment file; "" if the run can continue. The file
  // contains the number of steps and not the time, so a time never differs.
  std::string_view other_option(const Path& file, const Console& console) const {
    if (!text_ && !steps_ && !seconds_) return "";
    const config::Experiment begun = config::load_experiment(file);
    // If the recorded text no longer exists, --text gives its new place (follow_move).
    const std::vector<std::string>& recorded = begun.trainer->data_path;
    const bool there = recorded.size() != 1 || Env::posix().status(recorded.front());
    if (text_ && there && std::vector{absolute_path(*text_)} != recorded) return "--text";
    if (steps_ && *steps_ != begun.trainer->train_iters) return "--steps";
    if (seconds_) {
      say(console,
          fmt::format("Continues  the earlier run up to its {} steps; --seconds applies only to a new "
                      "run (--again)\n",
                      begun.trainer->train_iters));
    }
    return "";
  }

  // Corrects the paths in the experiment file of a folder that was moved or renamed: the workspace, the
  // folder's tokenizer and token cache, and a text that no longer exists. Throws if that text is not found.
  void follow_move(const RunFolder& folder, const Path& file, const Console& console) const {
    const config::Experiment recorded = config::load_experiment(file);
    const config::TrainerConfig& c = recorded.trainer;
    std::string text = read_file(file);
    bool changed = false;
    // Replaces a value as experiment_text() writes it. A line that the user wrote differently stays.
    const auto replace = [&](const std::string& key, const std::string& before, const std::string& now) {
      const std::string line = fmt::format("{}: {}\n", key, before);
      const std::size_t at = text.find(line);
      if (before == now || at == std::string::npos) return;
      text.replace(at, line.size(), fmt::format("{}: {}\n", key, now));
      changed = true;
    };
    const Path root = absolute_path(folder.root());
    const auto was_written = [](const std::optional<std::string>& path, const char* name) {
      return path && Path(*path).filename() == name && Path(*path).is_absolute();
    };
    if (recorded.exp_name == "quickstart" && absolute_path(recorded.output_dir()) != root.string())
      replace("workspace", quoted(recorded.workspace), quoted(workspace_));
    if (was_written(c.tokenizer_model, "tokenizer") && Env::posix().status(root / "tokenizer"))
      replace("tokenizer_model", quoted(*c.tokenizer_model), quoted((root / "tokenizer").string()));
    if (was_written(c.data_cache_path, "data"))
      replace("data_cache_path", quoted(*c.data_cache_path), quoted((root / "data").string()));
    if (c.data_path.size() == 1 && !Env::posix().status(c.data_path.front())) {
      const std::string& lost = c.data_path.front();
      if (!text_ && Path(lost).filename() != prepared_text().filename()) {
        throw invalid(
            fmt::format("'{}', the text of this quickstart, does not exist ({})", lost, file.string()),
            "name its new location with --text FILE, or start a new training run with --again --text FILE");
      }
      replace("data_path", fmt::format("[{}]", quoted(lost)), fmt::format("[{}]", quoted(find_text())));
    }
    if (!changed) return;
    write_file_atomic(file, text);
    say(console, fmt::format("Moved      the paths in {} are corrected\n", file.string()));
  }

  // Renames the folder of an earlier run, so that the earlier run survives even if the new run fails.
  void put_aside(const Path& root, const Console& console) const {
    const RunLock nobody_trains_there(root);
    int number = 1;
    const auto place = [&] { return Path(fmt::format("{}.previous-{}", root.string(), number)); };
    while (Env::posix().status(place())) ++number;
    Env::posix().rename(root, place());
    say(console, fmt::format("Kept       the earlier run, in {}\n", place().string()));
  }

  // Prints text for people. With --json, standard output contains only JSON.
  void say(const Console& console, std::string_view text) const {
    if (!json_) console.print(text);
  }

  // Returns the place of the text that quickstart.sh prepares, next to the program's folder.
  static Path prepared_text() {
    const Path program = std::filesystem::read_symlink("/proc/self/exe");
    return program.parent_path().parent_path() / "quickstart" / "kjv.txt";
  }

  std::string find_text() const {
    if (text_) {
      const auto status = Env::posix().status(*text_);
      if (!status) throw invalid(fmt::format("there is no '{}'", *text_));
      if (status->type != FileStatus::Type::kFile) {
        throw invalid(fmt::format("'{}' is not a text file", *text_),
                      "--text accepts one file; 'train pretrain' with data_path accepts folders");
      }
      return absolute_path(*text_);
    }
    const Path prepared = prepared_text();
    if (!Env::posix().status(prepared)) {
      throw invalid(
          "there is no text to train on",
          "./quickstart.sh prepares one (the King James Bible, from Debian's bible-kjv), or name your own "
          "with --text FILE");
    }
    return prepared.string();
  }

  // Writes the tokenizer and the experiment file.
  void prepare(const RunFolder& folder, const Path& file, const std::string& text,
               const Console& console) const {
    say(console, fmt::format("Text       {}, {}\n", text,
                             human_bytes(static_cast<double>(std::filesystem::file_size(text)))));
    const double start = steady_seconds();
    folder.create();
    make_folders(folder.root() / "tokenizer");
    data::TrainTokenizerOptions options;
    options.inputs = {text};
    options.bpe.vocab_size = kVocabulary;
    const std::string tokenizer = data::train_tokenizer(options);
    write_file_atomic(folder.root() / "tokenizer" / "tokenizer.json", tokenizer);
    say(console, fmt::format("Tokenizer  {} byte-pair tokens, trained on it in {}\n",
                             nlohmann::json::parse(tokenizer).at("model").at("vocab").size(),
                             human_duration(steady_seconds() - start)));
    const std::string name = file.string();
    const auto experiment = config::load_experiment_text(experiment_text(folder, text, 1), name);
    const std::int64_t steps = steps_ ? *steps_ : steps_for(experiment, seconds_.value_or(kSeconds));
    write_file_atomic(file, experiment_text(folder, text, steps));
  }

  // Estimates the number of steps that fit into `seconds`, by timing a few steps.
  static std::int64_t steps_for(const config::Experiment& experiment, double seconds) {
    const TrainBenchmarkReport report =
        benchmark_training(experiment, builtin_families(), {.steps = 5, .warmup = 2});
    constexpr double kFewest = 50, kMax = 2000;
    return static_cast<std::int64_t>(std::clamp(seconds / report.seconds, kFewest, kMax));
  }

  std::string experiment_text(const RunFolder& folder, const std::string& text, std::int64_t steps) const {
    return fmt::format(
        "# Written by 'primus quickstart'. Change it and train again: primus train pretrain --config "
        "THIS_FILE\n"
        "work_group: primus\n"
        "user_name: {user}\n"
        "exp_name: quickstart\n"
        "workspace: {workspace}\n"
        "modules:\n"
        "  pre_trainer:\n"
        "    framework: native\n"
        "    config: pre_trainer.yaml\n"
        "    model: llama_tiny.yaml\n"
        "    overrides:\n"
        "      train_iters: {steps}\n"
        "      micro_batch_size: {batch}\n"
        "      global_batch_size: {batch}\n"
        "      seq_length: {sequence}\n"
        "      bf16: false\n"
        "      lr: 2.0e-3\n"
        "      min_lr: 2.0e-4\n"
        "      lr_warmup_iters: {warmup}\n"
        "      weight_decay: 0.1\n"
        "      adam_beta2: 0.95\n"
        "      data_path: [{text}]\n"
        "      data_cache_path: {cache}\n"
        "      tokenizer_type: HuggingFaceTokenizer\n"
        "      tokenizer_model: {tokenizer}\n"
        "      eval_interval: {steps}\n"
        "      eval_iters: 10\n"
        "      save_interval: {steps}\n",
        fmt::arg("user", quoted(user_name())), fmt::arg("workspace", quoted(workspace_)),
        fmt::arg("steps", steps), fmt::arg("batch", kMicroBatch), fmt::arg("sequence", kSequence),
        fmt::arg("warmup", std::min<std::int64_t>(steps / 10, 40)), fmt::arg("text", quoted(text)),
        fmt::arg("cache", quoted(absolute_path(folder.root() / "data"))),
        fmt::arg("tokenizer", quoted(absolute_path(folder.root() / "tokenizer"))));
  }

  // Trains in a separate thread, so that this thread can show the metrics.
  TrainingSummary train(const config::Experiment& experiment, const RunFolder& folder,
                        const Console& console) const {
    Logger log(LogOptions{.folder = folder.rank_logs(experiment.module_name, 0),
                          .console_level = console.debug ? LogLevel::kDebug : LogLevel::kWarning,
                          .console = console.err});
    const FamilyRegistry families = builtin_families();
    TrainingSummary summary;
    std::exception_ptr error;
    std::atomic<bool> over{false};
    // declared last, so that the thread is joined before the objects that the thread uses are destroyed
    ThreadGroup thread;
    thread.start(
        [&] {
          try {
            Trainer trainer(experiment, families, log, {.asked_by = stop_signal_name});
            trainer.prepare();
            // From now on, a signal lets the run save its progress. Before this call, a signal would end the
            // program.
            summary = trainer.run(catch_stop_signals());
          } catch (...) {
            error = std::current_exception();
          }
          over = true;
        },
        "trains");

    ProgressLine progress(json_ ? Terminal{} : console.err,
                          {.label = "training",
                           .total = static_cast<std::uint64_t>(experiment.trainer->train_iters),
                           .plain_seconds = 3});
    MetricsTail metrics(folder.metrics_file());
    std::vector<double> losses;
    std::string note;
    auto show = [&] {
      for (const MetricsPoint& point : metrics.read()) {
        losses.push_back(point.loss);
        note = fmt::format("loss {:.3f}  {} tokens/s", point.loss, human_count(point.tokens_per_second));
        progress.update(static_cast<std::uint64_t>(point.iteration), steady_seconds(), note);
      }
    };
    while (!over) {
      show();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    thread.join();
    if (error) std::rethrow_exception(error);
    show();
    progress.finish(steady_seconds(), note);
    if (losses.size() > 1) {
      constexpr std::size_t kWidth = 60;
      say(console, fmt::format("Loss       {:.2f} {} {:.2f}\n", losses.front(), sparkline(losses, kWidth),
                               losses.back()));
    }
    if (summary.validation_loss) {
      say(console,
          fmt::format("           {:.2f} on held-out text\n", drop_nan_sign(*summary.validation_loss)));
    }
    return summary;
  }

  // Returns the first words of a line (or of a sentence, if there are no lines) near the end of the text. In
  // a text of 400 kB or more, this part is held out: the model has not seen this part.
  static std::string prompt_of(const Path& text) {
    constexpr std::uint64_t kEnd = 8 << 10;
    constexpr std::size_t kWords = 4, kMax = 60;
    const auto file = Env::posix().open(text, OpenMode::kRead);
    const std::uint64_t size = file->size();
    std::string end(std::min(kEnd, size), '\0');
    end.resize(file->read_at(std::as_writable_bytes(std::span(end.data(), end.size())), size - end.size()));
    // Searches from the middle of the held-out part, so that a complete line follows.
    const std::size_t middle = end.size() / 2;
    std::size_t begin = end.find('\n', middle);
    if (begin == std::string::npos) begin = end.find(". ", middle);
    begin = begin == std::string::npos ? 0 : end.find_first_not_of(". \n", begin);
    std::istringstream words(begin == std::string::npos ? end : end.substr(begin));
    std::string prompt, word;
    for (std::size_t i = 0; i < kWords && words >> word; ++i) prompt += (i > 0 ? " " : "") + word;
    prompt.resize(unicode::valid_prefix(prompt.substr(0, kMax)));
    return prompt.empty() ? "The" : prompt;
  }

  // Prints a sample and returns it. After a stop signal, the sample ends early.
  std::string sample(const RunFolder& folder, const Path& corpus, const Console& console) const {
    const std::atomic<bool>& stop = catch_stop_signals();
    const FamilyRegistry families = builtin_families();
    const ModelFolder model = find_model_folder(folder.root());
    const ModelConfig config = load_model_config(model, families);
    const auto tokenizer = load_model_tokenizer(model, config, {}, {});
    const std::string prompt = prompt_of(corpus);
    const std::vector<std::int32_t> ids = tokenizer->encode(prompt);
    constexpr std::int64_t kTokens = 100;
    const std::int64_t capacity =
        std::min(config.max_positions, static_cast<std::int64_t>(ids.size()) + kTokens);
    Decoder decoder(DeviceOptions().make(console), config, families, {.capacity = capacity});
    load_model_weights(model, decoder.store(), decoder.rank());
    std::string text = prompt;
    say(console, "\nA sample, from the model that was just trained:\n\n  " + prompt);
    StreamDecoder stream(*tokenizer);
    auto show = [&](std::string piece) {
      text += piece;
      for (std::size_t at = 0; (at = piece.find('\n', at)) != std::string::npos; at += 3)
        piece.insert(at + 1, "  ");
      say(console, piece);
    };
    generate(decoder, ids,
             {.sampling = {.temperature = 0.7, .top_k = 40},
              .max_tokens = kTokens,
              .vocab = tokenizer->vocab_size(),
              .stop_ids = {}},
             [&](std::int32_t id) {
               show(stream.push(id));
               return !stop;
             });
    show(stream.finish());
    say(console, "\n\n");
    return text;
  }

  static std::string next_steps(const RunFolder& folder, const Path& file, const std::string& primus) {
    const std::string run = folder.root().string();
    const std::string model = find_model_folder(folder.root()).path.string();
    return fmt::format(
        "What next:\n"
        "  {2} generate {0} --prompt 'In the beginning'\n"
        "  {2} eval loss {0} --data book.txt\n"
        "  {2} train pretrain --config {1} --train_iters 5000 exp_name=longer\n"
        "  {2} quickstart --again --text your_own.txt\n"
        "Hugging Face transformers loads the model in {3} directly;\n"
        "tensorboard --logdir {4} draws the curves.\n",
        shell_quoted(run), shell_quoted(file.string()), primus, model, shell_quoted(run + "/tensorboard"));
  }

  std::optional<std::string> text_;
  std::string workspace_ = kWorkspace;
  std::optional<double> seconds_;
  std::optional<std::int64_t> steps_;
  bool again_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kQuickstart{
    "quickstart",
    "Trains a small Llama on real text in a minute and prints a sample",
    "Trains a tokenizer and a model of 2 million parameters, then prints a sample and what to try next. "
    "Works offline and on any CPU. Run it again to continue an interrupted run.",
    "primus quickstart\n"
    "primus quickstart --text book.txt --seconds 300 --again",
    make_command<Quickstart>,
    {Section::kTrain, 1}};

}  // namespace primus::cli
