// primus plan pipeline
#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "base/files/file.h"
#include "cli/command.h"
#include "cli/options/experiment.h"
#include "config/trainer_config.h"
#include "lm/train/settings/training_settings.h"
#include "plan/measured_pipeline.h"
#include "plan/pipeline_plan.h"

namespace primus::cli {
namespace {

class PlanPipeline final : public Command {
 public:
  void declare(Arguments& args) override {
    experiment_.declare(args, false);
    args.option("--world", "N", &world_,
                "with an experiment: number of ranks (default: the fewest possible)");
    args.option("--schedule", "NAME", &schedule_, "the schedule").choices = names();
    args.option("--stages", "N", &stages_, "pipeline stages");
    args.option("--chunks", "N", &chunks_,
                "parts of the model on each stage (default: the number that the schedule needs)");
    args.option("--microbatches", "N", &microbatches_, "microbatches per step (default: 2 for each stage)");
    args.option("--forward", "TIME", &costs_.forward, "time of a chunk's forward pass, in any unit");
    args.option("--backward", "TIME", &costs_.backward, "time of a chunk's input gradient");
    args.option("--weight", "TIME", &costs_.weight, "time of a chunk's weight gradient");
    args.option("--transfer", "TIME", &costs_.transfer, "time of sending activations or their gradients");
    args.option("--trace", "FOLDER", &traces_,
                "draw the measured timeline from the traces of a run: its folder, or trace files (all "
                "arguments up to the next option)")
        .several = true;
    args.option("--step", "N", &step_,
                "with --trace: the step to draw (default: the last one in the traces)");
    args.option("--svg", "FILE", &svg_, "write the drawing as an SVG image");
    overwrite_.declare(args);
    args.flag("--json", json_, "print the results as JSON");
  }

  int run(Console& console) override {
    overwrite_.require(!svg_.empty(), "--svg");
    if (!svg_.empty()) refuse_existing(svg_, overwrite_.existing());
    if (!traces_.empty()) {
      draw_traces(console);
      return 0;
    }
    if (step_) throw invalid("--step needs --trace", "name a run with --trace FOLDER");
    const PipelinePlan plan = experiment_.names_a_file() ? of_experiment(console) : of_options();
    if (!svg_.empty()) write_output(svg_, to_svg(plan), overwrite_.existing());
    if (json_) {
      console.write(to_json(plan));
    } else {
      console.print(to_text(plan, console.out.tty ? console.out.width() : 160));
    }
    return 0;
  }

 private:
  void draw_traces(Console& console) const {
    const engine::PipelineCosts usual;
    const bool times = costs_.forward != usual.forward || costs_.backward != usual.backward ||
                       costs_.weight != usual.weight || costs_.transfer != usual.transfer;
    const bool other = experiment_.names_a_file() || !experiment_.overrides().empty() || world_ ||
                       schedule_ || stages_ || chunks_ || microbatches_ || times;
    if (other) {
      throw invalid(
          "--trace excludes options of the schedule, because the traces contain the schedule and its times",
          "remove the experiment and the options of the schedule");
    }
    const MeasuredPipeline pipeline = measure_pipeline(traces_, step_);
    console.notes(pipeline.notes);
    if (!svg_.empty()) write_output(svg_, to_svg(pipeline), overwrite_.existing());
    if (json_) {
      console.write(to_json(pipeline));
    } else {
      console.print(to_text(pipeline, console.out.tty ? console.out.width() : 160));
    }
  }

  static std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const engine::ScheduleTraits& traits : engine::schedule_kinds()) names.emplace_back(traits.name);
    return names;
  }

  static int limited(const char* option, std::int64_t value, std::int64_t maximum) {
    if (value < 1 || value > maximum) throw invalid(fmt::format("{} must be from 1 to {}", option, maximum));
    return static_cast<int>(value);
  }

  PipelinePlan of_options() const {
    if (!experiment_.overrides().empty()) {
      throw invalid(fmt::format("'{}' is not an option, and there is no experiment that it could change",
                                experiment_.overrides().front()),
                    "name an experiment with --config FILE, or see --help");
    }
    if (world_) throw invalid("--world needs an experiment", "name one with --config FILE");
    const engine::ScheduleKind kind = *engine::schedule_named(schedule_.value_or("1f1b"));
    const bool two = engine::traits_of(kind).v_shaped || kind == engine::ScheduleKind::kInterleaved;
    const int stages = limited("--stages", stages_.value_or(4), 1024);
    return plan_pipeline(kind, stages, limited("--chunks", chunks_.value_or(two ? 2 : 1), 64),
                         limited("--microbatches", microbatches_.value_or(2 * stages), 4096), costs_);
  }

  PipelinePlan of_experiment(const Console& console) const {
    for (const auto& [option, given] :
         {std::pair("--schedule", schedule_.has_value()), std::pair("--stages", stages_.has_value()),
          std::pair("--chunks", chunks_.has_value()),
          std::pair("--microbatches", microbatches_.has_value())}) {
      if (given) {
        throw invalid(
            fmt::format("{} cannot be combined with an experiment, which sets it", option),
            "override the experiment's keys instead: pipeline_model_parallel_size=4 global_batch_size=64");
      }
    }
    const config::Experiment e = experiment_.load(console);
    const config::TrainerConfig& c = e.trainer;
    const std::int64_t expert_tensor = c.expert_tensor_parallel_size.value_or(
        c.num_experts.value_or(0) > 0 ? c.tensor_model_parallel_size : 1);
    const auto size = [](const char* key, std::int64_t value) -> std::int64_t {
      return limited(key, value, 4096);
    };
    const std::int64_t stage_ranks =
        std::lcm(size("tensor_model_parallel_size", c.tensor_model_parallel_size) *
                     size("context_parallel_size", c.context_parallel_size),
                 size("expert_model_parallel_size", c.expert_model_parallel_size) *
                     size("expert_tensor_parallel_size", expert_tensor));
    const std::int64_t fewest =
        stage_ranks * size("pipeline_model_parallel_size", c.pipeline_model_parallel_size);
    const int world = limited("--world", world_.value_or(fewest), 1 << 20);
    const FamilyRegistry families = builtin_families();
    const ModelConfig model = model_config_of(e, e.trainer->vocab_size.value_or(1), families);
    const StepSettings step = session_settings_of(e, model, world).step;
    return plan_pipeline(step.pipeline.schedule, mesh_shape_of(e, world).pipeline, step.pipeline.chunks,
                         step.microbatches, costs_);
  }

  ExperimentArguments experiment_;
  OverwriteFlag overwrite_;
  std::optional<std::string> schedule_;
  std::vector<std::string> traces_;
  std::optional<std::int64_t> step_;
  std::optional<std::int64_t> world_, stages_, chunks_, microbatches_;
  engine::PipelineCosts costs_;
  std::string svg_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kPlanPipeline{
    "plan pipeline",
    "Draws a pipeline schedule, its idle times and the activations it stores",
    "Draws the work that training runs on each stage. --config draws the schedule of an experiment; without "
    "it, --schedule, --stages and --microbatches choose the schedule. --transfer makes stages wait for "
    "transfers. The whole backward pass of a chunk takes the sum of --backward and --weight.\n\n"
    "--trace draws the measured timeline of a step, from ranks that train with profile=true and "
    "profile_ranks=all. Below it is the timeline that the schedule gives for the same times of work, and the "
    "bubbles of both.",
    "primus plan pipeline --schedule zero-bubble --stages 4 --microbatches 8\n"
    "primus plan pipeline --schedule v-half --stages 8 --microbatches 32 --transfer 0.1 --svg schedule.svg\n"
    "primus plan pipeline --trace output/amd/root/run --svg measured.svg\n"
    "primus plan pipeline --config examples/native/configs/CPU/llama_124M-pretrain.yaml "
    "pipeline_model_parallel_size=2",
    make_command<PlanPipeline>,
    {Section::kPlan, 1}};

}  // namespace primus::cli
