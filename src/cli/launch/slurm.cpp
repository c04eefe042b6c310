// primus slurm
#include "launch/slurm/slurm.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/grammar.h"
#include "cli/launch/in_folder.h"
#include "cli/launch/mode.h"
#include "cli/parse.h"
#include "launch/options/tables.h"
#include "launch/process.h"

namespace primus::cli {
namespace {

class Slurm final : public Mode {
 public:
  void declare(Arguments& args) override {
    args.rest("[srun|sbatch] [options of Slurm]", words_,
              "srun (the default) or sbatch, and any of its options");
  }

  // Only '--' marks where the command begins, because Slurm's options look like a command's options.
  std::size_t count_own(const Arguments& arguments, Words words) const override {
    for (std::size_t at = 0; at < words.size(); ++at) {
      if (is_option_with_value(arguments, words, at)) {
        ++at;
      } else if (find_mode(words[at]) || find_command(words[at]) || is_group(words[at])) {
        const bool has_mode = find_mode(words[at]) != nullptr;
        throw invalid(
            fmt::format("'--' is missing before '{}'", words[at]),
            fmt::format("write: primus slurm {}{}-- {}{}", fmt::join(words.first(at), " "), at > 0 ? " " : "",
                        has_mode ? "" : "direct -- ", fmt::join(words.subspan(at), " ")));
      }
    }
    return words.size();
  }

  launch::LauncherSettings::Switches switches(const launch::LauncherSettings& settings) const override {
    return settings.slurm_switches;
  }

  launch::Plan plan(const ModeContext& context, Words words) override {
    launch::SlurmRequest request;
    std::span<const std::string> options = words_;
    if (!options.empty() && (options[0] == "srun" || options[0] == "sbatch")) {
      request.batch = options[0] == "sbatch";
      options = options.subspan(1);
    }
    request.given = launch::read_options(launch::slurm_options(), options, request.batch ? "sbatch" : "srun");

    const Inner inner = inner_of(words);
    if (inner.command.empty() && inner.declared.mode->needs_command(context.settings)) {
      throw invalid(
          "'slurm' has no command to run",
          "put it at the end: primus slurm srun -N 2 -- direct -- train pretrain --config exp.yaml");
    }

    request.inner = {context.surroundings.program};
    if (context.debug) request.inner.emplace_back("--debug");
    for (const std::string& file : context.config)
      request.inner.insert(request.inner.end(), {"--config", file});
    request.inner.emplace_back(inner.entry->about.name);
    request.inner.insert(request.inner.end(), inner.options.begin(), inner.options.end());
    request.inner.emplace_back("--");
    request.inner.insert(request.inner.end(), inner.command.begin(), inner.command.end());
    const launch::LauncherSettings on_nodes = settings_within(context, *inner.declared.common);
    const InFolder folder(folder_of(context, request));
    find_ranks(inner, on_nodes, request);

    launch::SlurmPlan plan = launch::plan_slurm(context.settings.slurm, request, context.surroundings);
    const ModeContext there{.surroundings = context.surroundings,
                            .settings = on_nodes,
                            .debug = context.debug || inner.declared.common->debug,
                            .config = context.config};
    if (folder.changed()) plan.nodes.folder.reset();
    launch::Plan chain = inner.declared.mode->plan_elsewhere(there, inner.command, plan.nodes);
    chain.steps.insert(chain.steps.begin(), std::move(plan.step));
    return chain;
  }

  // Submits the job. A job may wait in the queue for hours, so its notes are shown now.
  int run(const ModeContext& context, Words words, Console& console) override {
    const launch::Plan chain = plan(context, words);
    for (const launch::Step& step : chain.steps)
      for (const std::string& note : step.notes) console.note("note: " + note);
    launch::become(chain.steps.front());
  }

  std::optional<std::string> asks_for_dry_run_within(const ModeContext& context, Words words) const override {
    const Inner inner = inner_of(words);
    return dry_run_of(inner.declared, *inner.entry, context, inner.command);
  }

 private:
  // Returns the folder in which the launchers on the nodes start; nullopt: the current folder.
  static std::optional<std::string> folder_of(const ModeContext& context,
                                              const launch::SlurmRequest& request) {
    const std::vector<launch::GivenOption> options =
        launch::merged(launch::slurm_options(), context.settings.slurm.options, request.given);
    const launch::GivenOption* const given = launch::find_given(options, "chdir");
    return given ? given->value : std::nullopt;
  }

  static bool is_option_with_value(const Arguments& arguments, Words words, std::size_t at) {
    const std::string& word = words[at];
    if (!word.starts_with('-') || word.find('=') != std::string::npos) return false;
    if (const Argument* const own = arguments.find(word)) return !own->value.empty();
    const bool is_short = !word.starts_with("--");
    if (is_short && word.size() > 2) return false;  // an option with its value in one word, as -N4
    const launch::ForeignOption* const option = launch::find_option(launch::slurm_options(), word);
    return option && option->takes == launch::ForeignOption::Takes::kValue;
  }

  // The words after the first "--": the launcher that each node runs, the launcher's options, and its
  // command.
  struct Inner {
    const ModeEntry* entry;
    Arguments arguments;
    DeclaredMode declared;
    Words options, command;
  };

  static Inner inner_of(Words words) {
    // As in AMD Primus, each node starts a container, unless the words begin with 'direct'.
    const ModeEntry* entry = words.empty() ? nullptr : find_mode(words[0]);
    if (entry && entry != find_mode("direct") && entry != find_mode("container")) {
      throw invalid(fmt::format("'slurm' cannot start '{}'", words[0]), "choose 'container' or 'direct'");
    }
    if (entry) words = words.subspan(1);
    if (!entry) entry = find_mode("container");
    Inner inner{.entry = entry, .arguments = {}, .declared = {}, .options = {}, .command = {}};
    inner.declared = cli::declare(*entry, inner.arguments);
    const auto split = std::find(words.begin(), words.end(), "--");
    const std::size_t own = split == words.end() ? inner.declared.mode->count_own(inner.arguments, words)
                                                 : static_cast<std::size_t>(split - words.begin());
    inner.options = words.first(own);
    parse(inner.arguments, inner.options, fmt::format("primus {}", entry->about.name));
    inner.command = split == words.end() ? words.subspan(own) : Words(split + 1, words.end());
    return inner;
  }

  // Determines whether the command uses ranks. Scripts always use ranks. Inside a container, the command
  // follows "direct --".
  static void find_ranks(const Inner& inner, const launch::LauncherSettings& on_nodes,
                         launch::SlurmRequest& request) {
    request.has_ranks = true;
    try {
      const DirectWords words = direct_words(inner.command);
      const bool is_script = !inner.declared.mode->needs_command(on_nodes) ||
                             std::ranges::any_of(words.options, [](const std::string& word) {
                               return word == "--script" || word.starts_with("--script=");
                             });
      if (is_script) {
        request.deaf = "the program of --script";
        return;
      }
      const launch::DirectCommand command = check_command(words.command, false, Experiments::kElsewhere);
      request.has_ranks = command.has_ranks;
      request.own_ranks = command.has_ranks && (!command.needs_token || command.needs_token());
      if (!command.has_ranks || !command.outline) return;
      const launch::JobOutline outline = command.outline(0, 0, {});
      request.deaf = outline.deaf;
      request.starts_anew = outline.starts_anew;
    } catch (const Error&) {
      // Errors are reported when the node's launcher is planned.
    }
  }

  std::vector<std::string> words_;
};

}  // namespace

const ModeEntry kSlurm{
    {"slurm", "Runs a command on the nodes of a Slurm job",
     "Write srun (the default) or sbatch and its options before the first '--'. After it, write 'container' "
     "(the default) or 'direct' with its options, '--', and the command. Each node runs one launcher, which "
     "reads its place from Slurm's variables and starts the node's ranks: one per GPU, GPUS_PER_NODE, or "
     "slurm.gpus_per_node of .primus.yaml. With --ntasks-per-node, each Slurm task is a rank.\n\n"
     "Slurm signals a batch job two minutes before its time limit (--signal=B:USR1@120): its ranks save and "
     "stop. With --requeue the job is then queued again and resumes. It is also queued again when a node or "
     "a rank is lost; if it ran for less than ten minutes, at most three times.",
     "primus slurm srun -N 4 -p gpu -- direct -- train pretrain --config exp.yaml\n"
     "primus slurm sbatch -N 8 -t 8:00:00 --requeue -- direct --numa -- train pretrain --config exp.yaml\n"
     "primus slurm srun -N 2 -- container --image rocm/primus:v26.8 -- train pretrain --config exp.yaml\n"
     "primus --dry-run slurm srun -N 2 --gres gpu:8 -- direct -- train pretrain --config exp.yaml",
     nullptr},
    []() -> std::unique_ptr<Mode> { return std::make_unique<Slurm>(); }};

}  // namespace primus::cli
