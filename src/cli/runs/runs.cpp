// primus runs
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/report/run_list.h"

namespace primus::cli {
namespace {

Color color_of(RunState state) {
  switch (state) {
    case RunState::kRunning:
      return Color::kGreen;
    case RunState::kWaiting:
    case RunState::kFinished:
      return Color::kBlue;
    case RunState::kRestarting:
    case RunState::kDiverged:
    case RunState::kInterrupted:
      return Color::kYellow;
    default:
      return Color::kRed;
  }
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", drop_nan_sign(*loss)) : "-";
}

// Returns null for infinity and NaN, because JSON cannot express them.
nlohmann::ordered_json number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

// Returns the width of a text in columns, counting each UTF-8 character as one.
std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

class Runs final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("FOLDER", &folder_, "folder to search, at any depth").required = false;
    args.option("--sort", "BY", &sort_,
                "order of the runs (age: newest first; step: highest first; loss: lowest first)")
        .choices = {"age", "name", "state", "step", "loss"};
    Argument& state = args.option("--state", "STATE", &state_, "list only runs in this state");
    for (const RunState one : run_states()) state.choices.emplace_back(name_of(one));
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    const RunSearch found = find_runs(folder_);
    std::vector<RunStatus> runs;
    for (const Path& folder : found.folders) {
      RunStatus run = run_status(folder);
      if (state_.empty() || name_of(run.state) == state_) runs.push_back(std::move(run));
    }
    order(runs);
    console.notes(found.notes);
    if (json_) {
      print_json(runs, console);
    } else if (runs.empty()) {
      console.print(fmt::format("no {}runs in '{}'\n", state_.empty() ? "" : state_ + " ", folder_));
    } else {
      print_table(runs, console);
    }
    return 0;
  }

 private:
  void order(std::vector<RunStatus>& runs) const {
    auto by = [&](auto key) {
      std::stable_sort(runs.begin(), runs.end(),
                       [&](const RunStatus& a, const RunStatus& b) { return key(a) < key(b); });
    };
    // Runs without a loss, or with NaN, come last.
    auto loss = [](const RunStatus& run) {
      return run.loss && !std::isnan(*run.loss) ? std::pair(false, *run.loss) : std::pair(true, 0.0);
    };
    if (sort_ == "age") by([](const RunStatus& run) { return run.age_seconds; });
    if (sort_ == "state") by([](const RunStatus& run) { return run.state; });
    if (sort_ == "step") by([](const RunStatus& run) { return -run.step; });
    if (sort_ == "loss") by(loss);
  }

  std::string name(const RunStatus& run) const {
    const Path name = run.folder.lexically_relative(folder_);
    return name.empty() || name == "." ? run.folder.string() : name.string();
  }

  void print_json(const std::vector<RunStatus>& runs, Console& console) const {
    const std::vector<std::string> differing = differing_settings(runs);
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const RunStatus& run : runs) {
      nlohmann::ordered_json json{{"folder", run.folder.string()}, {"state", name_of(run.state)}};
      if (!run.problem.empty()) json["problem"] = run.problem;
      json["step"] = run.step;
      json["steps"] = run.steps ? nlohmann::ordered_json(*run.steps) : nlohmann::ordered_json();
      json["loss"] = number(run.loss);
      json["validation_loss"] = number(run.validation_loss);
      json["bits_per_byte"] = number(run.bits_per_byte);
      json["tokens_per_second_per_device"] = number(run.tokens_per_second);
      json["age_seconds"] = run.age_seconds;
      json["reason"] = run.reason;
      if (!run.failure.empty()) json["failure"] = run.failure;
      if (!run.next.empty()) json["next"] = run.next;
      if (run.supervision) {
        json["restarts"] = run.supervision->restarts;
        json["rank_restarts"] = run.supervision->rank_restarts;
        json["goodput"] = number(run.supervision->goodput());
        json["times"] = nlohmann::ordered_json::parse(to_json(run.supervision->times));
      }
      json["warnings"] = nlohmann::ordered_json::array();
      for (const RunWarning& warning : run.warnings) {
        json["warnings"].push_back({{"iteration", warning.iteration},
                                    {"detector", warning.detector},
                                    {"text", warning.text},
                                    {"advice", warning.advice}});
      }
      json["settings"] = nlohmann::ordered_json::object();
      for (const std::string& key : differing) {
        const auto found = run.settings.find(key);
        if (found != run.settings.end()) json["settings"][key] = found->second;
      }
      list.push_back(std::move(json));
    }
    console.write(json_text(list) + "\n");
  }

  void print_table(const std::vector<RunStatus>& runs, Console& console) const {
    std::size_t width = 3;
    for (const RunStatus& run : runs) width = std::max(width, columns(printable(name(run))));
    auto padded = [&](const std::string& text) {
      return text + std::string(width - std::min(width, columns(text)), ' ');
    };
    console.print(
        Color::kBold,
        padded("RUN") + fmt::format("  {:<11}  {:>15}  {:>8}  {:>8}  {:>6}  {:>9}  {:>8}  {}\n", "STATE",
                                    "STEP", "LOSS", "VALID", "BITS/B", "TOKENS/S", "AGE", "WHY, WARNINGS"));
    const std::vector<std::string> differing = differing_settings(runs);
    const std::map<std::string, std::string> usual = usual_settings(runs, differing);
    for (const RunStatus& run : runs) {
      console.print(padded(printable(name(run))) + "  ");
      console.print(color_of(run.state), fmt::format("{:<11}", name_of(run.state)));
      if (run.state == RunState::kDamaged) {
        console.print("  " + run.problem + "\n");
        continue;
      }
      const std::string step =
          run.steps ? fmt::format("{}/{}", run.step, *run.steps) : fmt::format("{}", run.step);
      const std::string speed = run.tokens_per_second ? human_count(*run.tokens_per_second) : "-";
      const std::string bits =
          run.bits_per_byte ? fmt::format("{:.3f}", drop_nan_sign(*run.bits_per_byte)) : "-";
      const std::string notes = notes_of(run);
      console.print(fmt::format("  {:>15}  {:>8}  {:>8}  {:>6}  {:>9}  {:>8}{}\n", step, loss_text(run.loss),
                                loss_text(run.validation_loss), bits, speed, human_duration(run.age_seconds),
                                notes.empty() ? "" : "  " + notes));
      print_details(run, differing, usual, console);
    }
  }

  // Returns, for example, "disk full; 3 restarts (1 rank restart); 2 warnings".
  static std::string notes_of(const RunStatus& run) {
    std::string notes = printable(run.reason);
    if (!run.next.empty()) notes += (notes.empty() ? "" : "; ") + run.next;
    const auto add = [&](std::int64_t count, const char* what) {
      if (count == 0) return;
      notes += fmt::format("{}{} {}{}", notes.empty() ? "" : "; ", count, what, count == 1 ? "" : "s");
    };
    add(run.supervision ? run.supervision->restarts : 0, "restart");
    if (const std::int64_t of_ranks = run.supervision ? run.supervision->rank_restarts : 0; of_ranks > 0)
      notes += fmt::format(" ({} {}{})", of_ranks, kRankRestart, of_ranks == 1 ? "" : "s");
    const std::string ended = run.supervision ? run.supervision->ended : "";
    if (run.state == RunState::kCrashed && !ended.empty() && ended != run.reason)
      notes += fmt::format("{}the supervisor ended: {}", notes.empty() ? "" : "; ", printable(ended));
    add(static_cast<std::int64_t>(run.warnings.size()), "warning");
    return notes;
  }

  // Returns the last warning of each kind, the oldest first, but at most three.
  static std::vector<const RunWarning*> newest_warnings(const RunStatus& run) {
    constexpr std::size_t kMost = 3;
    std::vector<const RunWarning*> found;
    for (auto one = run.warnings.rbegin(); one != run.warnings.rend() && found.size() < kMost; ++one) {
      const bool known = std::ranges::any_of(
          found, [&](const RunWarning* later) { return later->detector == one->detector; });
      if (!known) found.push_back(&*one);
    }
    std::ranges::reverse(found);
    return found;
  }

  // Prints below the run's line: its error, the last warning of each kind, where the time went if it was
  // restarted, and the settings that most runs do not share.
  static void print_details(const RunStatus& run, const std::vector<std::string>& differing,
                            const std::map<std::string, std::string>& usual, Console& console) {
    if (!run.failure.empty()) console.print(Color::kRed, "    " + printable(run.failure) + "\n");
    for (const RunWarning* const warning : newest_warnings(run)) {
      console.print(Color::kYellow,
                    fmt::format("    iteration {}: {}\n", warning->iteration, printable(warning->text)));
    }
    if (run.supervision && run.supervision->goodput())
      console.print("    " + describe(run.supervision->times) + "\n");
    // Limits of the settings that are shown. 'primus report' shows all settings.
    constexpr std::size_t kMaxSettings = 8, kMaxCharacters = 40;
    std::string settings;
    std::size_t shown = 0;
    for (const std::string& key : differing) {
      const auto found = run.settings.find(key);
      if (found == run.settings.end()) continue;
      const auto maximum = usual.find(key);
      if (maximum != usual.end() && maximum->second == found->second) continue;
      if (++shown > kMaxSettings) continue;
      const std::string value = printable(found->second);
      settings +=
          fmt::format(" {}={}", printable(key),
                      value.size() > kMaxCharacters ? value.substr(0, kMaxCharacters) + "..." : value);
    }
    if (shown > kMaxSettings) settings += fmt::format(" ({} more)", shown - kMaxSettings);
    if (!settings.empty()) console.print("   " + settings + "\n");
  }

  std::string folder_ = "output", sort_ = "age", state_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kRuns{
    "runs",
    "Lists the runs under a folder: state, step, loss, speed, why they ended, warnings, settings",
    "States: running: a process is training. waiting: its supervisor waits for the other machines of the "
    "job, or for a spare. restarting: a fault ended its processes, and its supervisor starts them again. "
    "finished: the last step is done, or target_eval_loss was "
    "reached. diverged: finished, but the loss rose and stayed high. interrupted: the run was stopped, and "
    "its newest checkpoint has its last step. crashed: the run failed or was killed, perhaps before its "
    "first "
    "step; the same command continues from the newest checkpoint. damaged: the files cannot be read.\n\nThe "
    "last column shows why "
    "a run ended (SIGTERM, exit_interval, NaN, disk full, out of memory, killed, error) and its number of "
    "warnings (warnings.jsonl). For a supervised run (train ... --supervise), it also has the number of "
    "restarts, and the share of useful steps (the goodput) and of lost time. Below a run are its error, the "
    "last warning of each kind (at most three), and its settings that differ from most of the listed runs. "
    "LOSS is the loss of the last "
    "step, and VALID is the newest validation loss; both are per token. BITS/B is the validation loss in "
    "bits per byte of text, which is comparable between runs with different tokenizers. Tokens per second "
    "are per device. Age is the time since the run last wrote metrics.",
    "primus runs\n"
    "primus runs output/team --state running\n"
    "primus runs output --sort loss --json",
    make_command<Runs>,
    {Section::kTrain, 10}};

}  // namespace primus::cli
