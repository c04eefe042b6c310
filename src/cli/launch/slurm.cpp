// primus slurm
#include "launch/slurm.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cli/launch/mode.h"
#include "cli/parse.h"
#include "launch/tables.h"

namespace primus::cli {
namespace {

class Slurm final : public Mode {
 public:
  void declare(Arguments& args) override {
    args.rest("[srun|sbatch] [options of Slurm]", words_,
              "srun (the default) or sbatch, and any of its options");
  }

  // Options of Slurm look like those of a command.
  std::size_t count_own(const Arguments&, Words words) const override { return words.size(); }

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

    // Primus's rule: a container, unless 'direct' is asked for.
    const ModeEntry* entry = words.empty() ? nullptr : find_mode(words[0]);
    if (entry && entry != find_mode("direct") && entry != find_mode("container")) {
      throw invalid(fmt::format("'slurm' does not start '{}'", words[0]),
                    "it starts 'container' and 'direct'");
    }
    if (entry) words = words.subspan(1);
    if (!entry) entry = find_mode("container");
    Arguments arguments;
    const DeclaredMode inner = cli::declare(*entry, arguments);
    const auto split = std::find(words.begin(), words.end(), "--");
    const std::size_t own = split == words.end() ? inner.mode->count_own(arguments, words)
                                                 : static_cast<std::size_t>(split - words.begin());
    parse(arguments, words.first(own), fmt::format("primus {}", entry->about.name));
    const Words command = split == words.end() ? words.subspan(own) : Words(split + 1, words.end());
    if (command.empty() && inner.mode->needs_command(context.settings)) {
      throw invalid(
          "'slurm' has no command to run",
          "put it at the end: primus slurm srun -N 2 -- direct -- train pretrain --config exp.yaml");
    }

    request.inner = {context.surroundings.program};
    if (context.debug) request.inner.emplace_back("--debug");
    for (const std::string& file : context.config)
      request.inner.insert(request.inner.end(), {"--config", file});
    request.inner.emplace_back(entry->about.name);
    request.inner.insert(request.inner.end(), words.begin(),
                         words.begin() + static_cast<std::ptrdiff_t>(own));
    request.inner.emplace_back("--");
    request.inner.insert(request.inner.end(), command.begin(), command.end());
    request.has_ranks = has_ranks(command);

    launch::SlurmPlan plan = launch::plan_slurm(context.settings.slurm, request, context.surroundings);
    const launch::LauncherSettings on_nodes = settings_within(context, *inner.common);
    const ModeContext there{.surroundings = context.surroundings,
                            .settings = on_nodes,
                            .debug = context.debug || inner.common->debug,
                            .config = context.config};
    launch::Plan chain = inner.mode->plan_elsewhere(there, command, plan.nodes);
    chain.steps.insert(chain.steps.begin(), std::move(plan.step));
    return chain;
  }

 private:
  // Scripts have ranks, too; what stands behind "direct --" within a container is the command.
  static bool has_ranks(Words command) {
    try {
      return check_command(direct_words(command).command, false, Experiments::kElsewhere).has_ranks;
    } catch (const Error&) {
      return true;  // a script's words, or a mistake, which the plan of the node finds
    }
  }

  std::vector<std::string> words_;
};

}  // namespace

const ModeEntry kSlurm{
    {"slurm", "Runs a command on the nodes of a Slurm job",
     "In front of the first '--' stand srun (the default) or sbatch and their options; behind it "
     "'container'\n"
     "(the default) or 'direct' with its options, '--', and the command. Each node runs one launcher, which\n"
     "knows its place from Slurm's variables and starts the node's ranks: one for each GPU, GPUS_PER_NODE, "
     "or\n"
     "slurm.gpus_per_node in .primus.yaml. With --ntasks-per-node, Slurm's tasks are the ranks "
     "themselves.\n\n"
     "A batch job is warned two minutes before its time limit (--signal=B:USR1@120): its ranks save and "
     "stop.\n"
     "With --requeue it is queued again then, and when a node or a rank is lost, and goes on from there; "
     "when it\n"
     "lasted less than ten minutes, three times at the most.",
     "primus slurm srun -N 4 -p gpu -- direct -- train pretrain --config exp.yaml\n"
     "primus slurm sbatch -N 8 -t 8:00:00 --requeue -- direct --numa -- train pretrain --config exp.yaml\n"
     "primus slurm srun -N 2 -- container --image rocm/primus:v26.5 -- train pretrain --config exp.yaml\n"
     "primus --dry-run slurm srun -N 2 --gres gpu:8 -- direct -- train pretrain --config exp.yaml",
     nullptr},
    []() -> std::unique_ptr<Mode> { return std::make_unique<Slurm>(); }};

}  // namespace primus::cli
