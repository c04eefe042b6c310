// primus direct
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/grammar.h"
#include "cli/launch/in_folder.h"
#include "cli/launch/mode.h"
#include "launch/direct/direct_network.h"
#include "launch/network/network.h"
#include "launch/network/node_order.h"
#include "launch/options/assignment.h"

namespace primus::cli {
namespace {

// The Python program of AMD Primus that this program replaces.
constexpr std::string_view kPrimusScript = "primus/cli/main.py";

class Direct final : public Mode {
 public:
  void declare(Arguments& args) override {
    args.option("--env", "NAME=VALUE", &environment_,
                "set an environment variable, or those of a file with such lines; may be repeated");
    args.flag("--single", single_, "start one process on this node, even if it has several GPUs");
    args.option("--script", "FILE", &script_,
                "run this instead of Primus: a Python script (by torchrun), or a program once per rank");
    args.option("--patch", "FILE", &patches_, "run this script before the command; may be repeated");
    args.option("--hooks", "FOLDER", &hooks_,
                "run the hooks of this folder before the command; may be repeated");
    args.option("--log_file,--log-file", "PATH", &log_file_, "also append all output to this file");
    args.option("--rank-order,--rank_order", "ORDER", &rank_order_,
                "order of the nodes: given (the default), switch (consecutive nodes share a switch), or "
                "pipeline (pipeline neighbors share a switch)")
        .choices = {"given", "switch", "pipeline"};
    args.option("--topology", "SOURCE", &topology_,
                "network of the nodes: slurm (scontrol; the default in a Slurm job), slices=N (N consecutive "
                "nodes share a switch), or a file with lines 'NODES SWITCH ...'");
    args.flag("--numa", numa_, "bind each rank to the cores and memory next to its GPU");
    args.flag("--no-numa,--no_numa", no_numa_, "do not bind ranks (the default)");
    args.flag("--silent", silent_,
              "show only warnings and errors of the launcher; output goes to the log file (--log_file, or "
              "logs/log_<time>.txt)");
  }

  launch::LauncherSettings::Switches switches(const launch::LauncherSettings& settings) const override {
    return settings.direct_switches;
  }

  bool needs_command(const launch::LauncherSettings& settings) const override {
    const std::string script = script_.value_or(settings.direct.script.value_or(""));
    return script.empty() || script == kPrimusScript;
  }

  launch::Plan plan(const ModeContext& context, Words words) override {
    const launch::DirectSettings settings = merged(context.settings.direct);
    return launch::plan_direct(settings, command(context, settings, words, Experiments::kHere),
                               context.surroundings)
        .plan;
  }

  launch::Plan plan_elsewhere(const ModeContext& context, Words words,
                              const launch::ElsewhereNodes& nodes) override {
    const launch::DirectSettings settings = merged(context.settings.direct);
    const InFolder folder(nodes.folder);
    launch::ElsewhereNodes there = nodes;
    if (folder.changed()) there.folder.reset();
    const Experiments experiments = there.folder        ? Experiments::kInAbsentFolder
                                    : there.same_folder ? Experiments::kInThisFolder
                                                        : Experiments::kElsewhere;
    const launch::DirectCommand planned = command(context, settings, words, experiments);
    launch::Plan plan = launch::plan_direct_elsewhere(settings, planned, there, context.surroundings.program);
    launch::add_network_elsewhere(settings, planned, there, context.surroundings, plan);
    return plan;
  }

  int run(const ModeContext& context, Words words, Console& console) override {
    const launch::DirectSettings settings = merged(context.settings.direct);
    return launch::run_direct(settings, command(context, settings, words, Experiments::kHere),
                              context.surroundings, [&](std::string_view line) {
                                const bool silences = settings.silent && !line.starts_with("error: ");
                                if (!silences) console.note(line);
                              });
  }

 private:
  // Applies command-line options over the settings from files.
  launch::DirectSettings merged(launch::DirectSettings settings) const {
    refuse_secrets(environment_, kDirect.about.name);
    launch::refuse_repeated(environment_, "--env");
    for (const std::string& text : environment_) {
      if (text.find('=') != std::string::npos) {
        settings.environment.push_back(text);
      } else {
        settings.environment_files.emplace_back(text);
      }
    }
    if (single_) settings.single = true;
    if (script_) settings.script = *script_ == kPrimusScript ? "" : *script_;
    settings.patches.insert(settings.patches.end(), patches_.begin(), patches_.end());
    settings.hooks.insert(settings.hooks.end(), hooks_.begin(), hooks_.end());
    if (log_file_) settings.log_file = log_file_;
    if (numa_ && no_numa_) throw invalid("--numa and --no-numa exclude each other", "remove one of them");
    if (numa_ || no_numa_) settings.numa = numa_ ? launch::Numa::kOn : launch::Numa::kOff;
    if (silent_) settings.silent = true;
    if (rank_order_) settings.rank_order = launch::rank_order_of(*rank_order_);
    if (topology_) {
      launch::check_network_source(*topology_);
      settings.topology = topology_;
    }
    return settings;
  }

  static launch::DirectCommand command(const ModeContext& context, const launch::DirectSettings& settings,
                                       Words words, Experiments experiments) {
    refuse_secret_settings(words, kDirect.about.name);
    if (!settings.script || settings.script->empty()) return check_command(words, context.debug, experiments);
    launch::DirectCommand command{.words = {words.begin(), words.end()}, .debug = context.debug};
    // The first two words of a script select its hooks, like the first two words of a command.
    const auto first = std::find_if(words.begin(), words.end(),
                                    [](const std::string& word) { return !word.starts_with('-'); });
    command.hooks.words.assign(first, words.end());
    if (command.hooks.words.size() >= 2) {
      command.hooks.group = command.hooks.words[0];
      command.hooks.name = command.hooks.words[1];
    }
    return command;
  }

  std::vector<std::string> environment_, patches_, hooks_;
  std::optional<std::string> script_, log_file_, rank_order_, topology_;
  bool single_ = false, numa_ = false, no_numa_ = false, silent_ = false;
};

}  // namespace

const ModeEntry kDirect{
    {"direct", "Runs a command on this node",
     "Write the command after '--'. Commands that use several ranks ('train pretrain') get one rank per GPU "
     "of the node, or GPUS_PER_NODE ranks. For several nodes, run this on each node, and set NNODES, "
     "NODE_RANK, MASTER_ADDR, MASTER_PORT and a secret, PRIMUS_JOB_TOKEN; in a Slurm job Primus sets these. "
     "docs/launch.md describes hooks, patches, settings (.primus.yaml) and the environment.\n\n"
     "The exit code is that of the command, 128 + N if signal N killed it, or 1 if a hook or a patch failed.",
     "primus direct -- train pretrain --config exp.yaml\n"
     "primus direct --env GPUS_PER_NODE=2 --env OMP_NUM_THREADS=2 -- train pretrain --config exp.yaml\n"
     "primus direct --dry-run -- train pretrain --config exp.yaml\n"
     "primus direct --script my_job.py --single -- --steps 10\n"
     "primus direct --rank-order pipeline --topology network.txt -- train pretrain --config exp.yaml\n"
     "primus direct --patch fix.sh --log_file run.log -- train pretrain --config exp.yaml",
     nullptr},
    []() -> std::unique_ptr<Mode> { return std::make_unique<Direct>(); }};

}  // namespace primus::cli
