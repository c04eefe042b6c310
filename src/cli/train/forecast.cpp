#include "cli/train/forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/terminal/terminal.h"
#include "base/text/counted.h"
#include "cli/options/hardware.h"
#include "cli/train/expert_traffic.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/train/continued_run.h"
#include "lm/train/settings/training_settings.h"

namespace primus::cli {
namespace {

// Calls visit(group, kind of collective, its line) for all collectives of a rank in a step.
template <class Visit>
void for_each_line(const StepMeasurement& step, Visit visit) {
  for (const GroupTraffic& group : step.communication) {
    for (std::size_t kind = 0; kind < group.traffic.lines.size(); ++kind) {
      const comm::Traffic::Line& line = group.traffic.lines[kind];
      if (line.bytes > 0) visit(group, comm::name_of(static_cast<comm::Kind>(kind)), line);
    }
  }
}

// Returns the mesh of a job with several ranks, and the memory and communication of each stage's first rank.
nlohmann::json mesh_json(const TrainingForecast& f) {
  nlohmann::json stages = nlohmann::json::array();
  for (std::size_t i = 0; i < f.stages.size(); ++i) {
    const StepMeasurement& stage = f.stages[i];
    nlohmann::json sent = nlohmann::json::array();
    for_each_line(stage,
                  [&](const GroupTraffic& group, std::string_view kind, const comm::Traffic::Line& line) {
                    sent.push_back({{"group", group.group},
                                    {"ranks", group.ranks},
                                    {"kind", kind},
                                    {"calls_per_step", line.calls},
                                    {"bytes_per_step", line.bytes}});
                  });
    stages.push_back({{"memory_bytes",
                       {{"persistent", stage.memory.persistent},
                        {"stash", stage.memory.stash},
                        {"scratch", stage.memory.scratch}}},
                      {"kernel_flops_per_step", f.expected_stages()[i].kernels.total_flops()},
                      {"communication", sent}});
    if (nlohmann::json hosts = expert_traffic_json(f, stage); !hosts.is_null())
      stages.back()["experts_over_hosts"] = std::move(hosts);
  }
  return {{"ranks", f.world},
          {"tensor", f.mesh.tensor},
          {"context", f.mesh.context},
          {"data", f.mesh.data(f.world)},
          {"pipeline", f.mesh.pipeline},
          {"expert", f.mesh.expert},
          {"expert_tensor", f.mesh.expert_tensor},
          {"pipeline_bubble", f.bubble},
          {"stages", stages}};
}

// Returns whether the number of steps follows from train_epochs and is unknown, because the data was not
// read.
bool steps_are_unknown(const TrainingForecast& f) {
  return f.steps == 0 && f.experiment.trainer->train_epochs.has_value();
}

// Returns the number of steps that are left of a run that continues from `continued` steps.
std::int64_t steps_left(const TrainingForecast& f, std::optional<std::int64_t> continued) {
  return std::max<std::int64_t>(0, f.steps - continued.value_or(0));
}

// Returns the limits that end a process before its run has made all steps, as text.
std::vector<std::string> early_stops(const TrainingForecast& f) {
  const config::TrainerConfig& c = f.experiment.trainer;
  std::vector<std::string> stops;
  const auto interval = c.exit_interval;
  if (interval && (*interval < f.steps || steps_are_unknown(f))) {
    stops.push_back(
        fmt::format("an iteration that is a multiple of {} (exit_interval); the command can be "
                    "repeated to continue",
                    *interval));
  }
  if (c.exit_duration_in_mins) {
    stops.push_back(
        fmt::format("{} minute{} (exit_duration_in_mins); the command can be repeated to continue",
                    *c.exit_duration_in_mins, *c.exit_duration_in_mins == 1 ? "" : "s"));
  }
  return stops;
}

bool generates_answers(const TrainingForecast& f) { return config::generates_answers(f.experiment.trainer); }

// Returns the mesh as text.
std::string mesh_text(const TrainingForecast& f) {
  std::string text = fmt::format("{:<22}{}: tensor {} x context {} x data {} x pipeline {}", "ranks", f.world,
                                 f.mesh.tensor, f.mesh.context, f.mesh.data(f.world), f.mesh.pipeline);
  if (f.mesh.expert * f.mesh.expert_tensor > 1)
    text += fmt::format("; experts over {} x {}", f.mesh.expert, f.mesh.expert_tensor);
  text += "\n";
  if (f.mesh.pipeline > 1) {
    text +=
        fmt::format("{:<22}{:.1f} % of the time, if a backward pass takes twice as long as a forward pass\n",
                    "pipeline bubble", 100 * f.bubble);
  }
  for (std::size_t i = 0; i < f.stages.size(); ++i) {
    const StepMeasurement& stage = f.stages[i];
    text += fmt::format("{:<22}{} on the device, {:.3g} FLOPs a step\n",
                        f.stages.size() == 1 ? "a rank" : fmt::format("a rank of stage {}", i),
                        human_bytes(static_cast<double>(stage.memory.total())),
                        f.expected_stages()[i].kernels.total_flops());
    for_each_line(stage,
                  [&](const GroupTraffic& group, std::string_view kind, const comm::Traffic::Line& line) {
                    text += fmt::format("  {:<20}{} a step, {} in {} calls\n",
                                        fmt::format("{} ({})", group.group, group.ranks),
                                        human_bytes(line.bytes), kind, line.calls);
                  });
    text += expert_traffic_text(f, stage);
  }
  if (!f.expert_rows.empty()) text += fmt::format("{:<22}{}\n", "tokens for experts", f.expert_rows);
  return text;
}

// Returns the changes that make a run fit into memory.
nlohmann::json changes_of(const MemoryFit& fit) {
  nlohmann::json list = nlohmann::json::array();
  for (const MemoryChange& change : fit.changes) {
    list.push_back({{"settings", change.settings},
                    {"price", change.price},
                    {"memory_bytes", claimed(change.need, fit.supply)}});
  }
  return list;
}

// For a run that does not fit, returns the names of devices with enough memory. Assumes that the run needs
// the same memory and the same reserve on every device.
std::vector<std::string> larger_hardware(const TrainingForecast& f) {
  std::vector<std::string> names;
  if (f.memory.fits) return names;
  for (const config::Hardware& h : known_hardware()) {
    PlannedMemory memory = f.hardware->memory;
    memory.installed = h.memory_bytes();
    if (h.can_be_planned() && fits(f.memory.need, supply_of(h, memory))) names.push_back(h.short_name);
  }
  return names;
}

nlohmann::json hardware_json(const TrainingForecast& f) {
  const HardwarePlan& plan = *f.hardware;
  const config::Hardware& h = *plan.profile;
  return {{"name", h.name},
          {"file", h.file},
          {"source", h.source},
          {"device", h.device},
          {"workspaces_by", plan.by_cpu_kernels ? "kernels of the CPU" : "kernels of the device"},
          {"memory_bytes",
           {{"installed", plan.memory.installed},
            {"reserved_for_driver", plan.memory.context},
            {"reserved_for_collectives", plan.memory.collectives},
            {"reserved_for_libraries", plan.memory.libraries},
            {"for_the_run", f.memory.supply.device}}},
          {"peak_bf16_flops_per_second", 1e12 * h.peak_tflops},
          {"peak_fp8_flops_per_second", 1e12 * h.peak_fp8_tflops},
          {"peak_fp32_flops_per_second", 1e12 * h.peak_fp32_tflops},
          {"step_share", h.step_share},
          {"fp8_step_share", h.fp8_share_of_step()},
          {"peak_memory_bytes_per_second", 1e9 * h.peak_memory},
          {"link_bytes_per_second", 1e9 * h.link},
          {"network_bytes_per_second", 1e9 * h.network},
          {"gpus_per_host", static_cast<int>(h.gpus_per_host)},
          {"estimated_seconds_per_step",
           {{"computing", plan.time.computing},
            {"communication", plan.time.communication},
            {"all_communication_hidden", plan.time.quickest},
            {"none_hidden", plan.time.slowest}}},
          {"would_fit_on", larger_hardware(f)},
          {"doubts", plan.doubts}};
}

std::int64_t largest_of(const std::vector<StepMeasurement>& stages) {
  std::int64_t maximum = 0;
  for (const StepMeasurement& stage : stages) maximum = std::max(maximum, stage.memory.total());
  return maximum;
}

// Describes the memory reserved for unequal shares of the experts, up to the worst case.
std::string experts_text(const TrainingForecast& f) {
  const std::int64_t even = largest_of(f.balanced);
  const MemoryNeed need{.device = {.persistent = even, .stash = 0, .scratch = 0},
                        .snapshot = f.memory.need.snapshot,
                        .memory_snapshots = f.memory.need.memory_snapshots,
                        .host_buffers = f.memory.need.host_buffers};
  return fmt::format(
      "  {:<20}{}  reserved for unequal shares of the experts, up to all tokens of {} ranks on one rank\n  "
      "{:<20}{}  on the device if experts get equal shares{}\n",
      "worst case", human_bytes(static_cast<double>(f.step().memory.total() - even)),
      f.mesh.expert * f.mesh.expert_tensor, "expected", human_bytes(static_cast<double>(even)),
      f.memory.fits                 ? ""
      : fits(need, f.memory.supply) ? ", which would fit"
                                    : ", which would not fit, either");
}

// Describes memory and time on the planned hardware, and whether the run fits.
std::string hardware_text(const TrainingForecast& f) {
  const HardwarePlan& plan = *f.hardware;
  const config::Hardware& h = *plan.profile;
  const auto bytes = [](std::int64_t value) { return human_bytes(static_cast<double>(value)); };
  std::string text = fmt::format("{:<22}{} ({})\n", "planned for", h.name, h.file);
  text +=
      fmt::format("  {:<20}{} of {}: {} are reserved for the driver and kernels", "memory for the run",
                  bytes(f.memory.supply.device), bytes(plan.memory.installed), bytes(plan.memory.context));
  if (plan.memory.collectives > 0)
    text += fmt::format(", {} for the communication library", bytes(plan.memory.collectives));
  if (plan.memory.libraries > 0) {
    text += fmt::format(", {} for libraries' workspaces (an estimate, because no {} plug-in is installed)",
                        bytes(plan.memory.libraries), h.device);
  }
  text += "\n";
  if (f.memory.fits) {
    text += fmt::format("  FITS                {} of {}\n", bytes(claimed(f.memory.need, f.memory.supply)),
                        bytes(f.memory.supply.device));
  }
  for (const std::string& doubt : plan.doubts) text += fmt::format("  but                 {}\n", doubt);
  return text;
}

// Describes how much memory a run lacks that does not fit, and the changes of settings or of hardware with
// which it would fit.
std::string lack_text(const TrainingForecast& f) {
  std::string text = "  DOES NOT FIT: " + describe_lack(f.memory) + "\n";
  if (f.memory.changes.empty()) text += "    " + describe_changes(f.memory) + "\n";
  for (const MemoryChange& change : f.memory.changes) {
    text +=
        fmt::format("    {:<28}  needs {} ({})\n", fmt::format("{}", fmt::join(change.settings, " ")),
                    human_bytes(static_cast<double>(claimed(change.need, f.memory.supply))), change.price);
  }
  if (f.hardware) {
    const std::vector<std::string> larger = larger_hardware(f);
    text +=
        fmt::format("    {:<28}  {}\n", "other hardware",
                    larger.empty() ? "no known hardware has so much memory: use more ranks, and shard more"
                                   : fmt::format("it would fit on {}", fmt::join(larger, ", ")));
  }
  return text;
}

// Returns how the ranks are assumed to share hosts: within a host, they communicate through faster links.
std::string hosts_text(const TrainingForecast& f) {
  if (f.world == 1) return "";
  const int each = std::clamp(static_cast<int>(f.hardware->profile->gpus_per_host), 1, f.world);
  const int hosts = (f.world + each - 1) / each;
  return fmt::format("  {:<20}{} with {} each ({})\n", "hosts, assumed", hosts,
                     each == 1 ? "1 GPU" : fmt::format("{} GPUs", each),
                     "gpus_per_host of the hardware file, 1 if absent, or --nnodes");
}

// Returns the estimated times. `open`: the number of steps is unknown.
std::string time_text(const TrainingForecast& f, bool open) {
  const HardwarePlan& plan = *f.hardware;
  const config::Hardware& h = *plan.profile;
  const auto tokens = static_cast<double>(f.tokens_per_step) / f.world;
  std::string text =
      f.world == 1
          ? fmt::format("{:<22}{} a step", "time, an estimate", human_duration(plan.time.slowest))
          : fmt::format("{:<22}{} a step if all communication is hidden, {} if none is", "time, an estimate",
                        human_duration(plan.time.quickest), human_duration(plan.time.slowest));
  if (!open)
    text += fmt::format("; {} in all", human_duration(plan.time.slowest * static_cast<double>(f.steps)));
  text += fmt::format("\n  {:<20}{:.0f} tokens/s of each device\n", "that is", tokens / plan.time.slowest);
  text += fmt::format("  {:<20}{:g} TFLOP/s in bf16, of which steps reach {:.0f} %; memory {:g} GB/s", "by",
                      h.peak_tflops, 100 * h.step_share, h.peak_memory);
  if (f.world > 1) text += fmt::format("; links {:g} GB/s, network {:g} GB/s", h.link, h.network);
  return text + "\n" + hosts_text(f);
}

// Returns the lines about the answers of a step.
std::string answers_text(const TrainingForecast& f, const config::TrainerConfig& c) {
  const std::int64_t of_rank = c.global_batch_size / f.mesh.data(f.world);
  if (config::stage_of(c).has_teacher) {
    return fmt::format("{:<22}{}, {} on a rank; generated in {:g} % of the steps, with up to {} tokens\n",
                       "answers per step", c.global_batch_size, of_rank, 100 * c.distillation_on_policy_share,
                       c.max_completion_length) +
           fmt::format("{:<22}generating the answers\n", "  not in the time");
  }
  return fmt::format("{:<22}{}: {} to each of {}, of up to {} tokens; {} on a rank\n", "answers per step",
                     c.global_batch_size, c.num_generations,
                     counted(c.global_batch_size / c.num_generations, "prompt"), c.max_completion_length,
                     of_rank) +
         fmt::format("{:<22}{} of {} microbatches, if all answers have that length\n", "  packed into",
                     f.step().microbatches, of_rank / c.micro_batch_size) +
         (f.microbatch.empty() ? "" : fmt::format("{:<22}{}\n", "  rows", f.microbatch)) +
         fmt::format("{:<22}generating the answers, and scoring them\n", "  not in the time");
}

}  // namespace

nlohmann::json to_json(const TrainingForecast& f, std::optional<std::int64_t> continued) {
  const engine::MemoryPlan& memory = f.step().memory;
  const bool unknown = steps_are_unknown(f);
  nlohmann::json json = {
      {"parameters", f.step().parameters},
      {"memory_bytes",
       {{"persistent", memory.persistent},
        {"stash", memory.stash},
        {"scratch", memory.scratch},
        {"checkpoint_copy", f.memory.need.snapshot},
        {"memory_snapshots", f.memory.need.memory_snapshots},
        {"host_buffers", f.memory.need.host_buffers},
        {"program", f.program_bytes},
        {"total", claimed(f.memory.need, f.memory.supply)},
        {"available", f.memory.supply.device},
        {"host", f.memory.supply.shared ? 0 : f.memory.need.host()},
        {"host_available", f.memory.supply.shared ? 0 : f.memory.supply.host},
        {"fits", f.memory.fits}}},
      {"model_flops_per_step", f.model_flops_per_step},
      {"kernel_flops_per_step", f.executed_flops_per_step()},
      {"steps", unknown ? nlohmann::json() : nlohmann::json(f.steps)},
      {"tokens_per_step", f.tokens_per_step},
      {"checkpoint_bytes", f.checkpoint_bytes},
      {"matmul_flops_per_second",
       f.hardware ? 1e12 * f.hardware->profile->peak_tflops : f.matmul_flops_per_second},
      {"seconds_per_step", f.seconds_per_step},
      {"timed", f.timed},
      {"with_communication", f.world == 1},
      {"seconds", unknown
                      ? nlohmann::json()
                      : nlohmann::json(f.seconds_per_step * static_cast<double>(steps_left(f, continued)))}};
  if (generates_answers(f)) json["answers_per_step"] = f.experiment.trainer->global_batch_size;
  if (!f.microbatch.empty()) json["microbatch_choice"] = f.microbatch;
  if (f.world > 1) json["mesh"] = mesh_json(f);
  json["memory_changes"] = changes_of(f.memory);
  if (f.hardware) json["hardware"] = hardware_json(f);
  if (!f.balanced.empty()) {
    json["memory_bytes"]["device_with_equal_shares_of_experts"] = largest_of(f.balanced);
    json["memory_bytes"]["reserved_for_the_worst_case_of_experts"] =
        f.step().memory.total() - largest_of(f.balanced);
  }
  return json;
}

std::string to_text(const TrainingForecast& f, const config::TrainerConfig& c,
                    std::optional<std::int64_t> continued) {
  const engine::MemoryPlan& memory = f.step().memory;
  std::string text;
  auto line = [&](std::string_view what, const std::string& value) {
    text += fmt::format("{:<22}{}\n", what, value);
  };
  auto bytes = [](std::int64_t value) { return human_bytes(static_cast<double>(value)); };
  line("parameters", human_count(static_cast<double>(f.step().parameters)));
  if (f.step().trained_parameters < f.step().parameters)
    line("  trained", human_count(static_cast<double>(f.step().trained_parameters)));
  if (f.step().second_parameters > 0)
    line("  of the value model", human_count(static_cast<double>(f.step().second_parameters)));
  if (f.world > 1) text += mesh_text(f);
  const MemoryNeed& need = f.memory.need;
  const bool shared = f.memory.supply.shared;
  line(f.world > 1 ? "memory of a rank" : "memory",
       bytes(claimed(need, f.memory.supply)) + (shared ? "" : " on the device"));
  line("  persistent", bytes(memory.persistent) + "  weights, gradients, optimizer states");
  line("  stash", bytes(memory.stash) + (generates_answers(f) ? "  activations, or the cache of the decoder"
                                                              : "  activations"));
  line("  scratch", bytes(memory.scratch) + "  workspaces");
  const auto host_lines = [&] {
    if (need.snapshot > 0)
      line("  checkpoint copy", bytes(need.snapshot) + "  from the first save; async_save=false needs none");
    if (need.memory_snapshots > 0)
      line("  snapshots",
           bytes(need.memory_snapshots) + "  two in memory and a copy; snapshot_interval=0 needs none");
    line("  host buffers", bytes(need.host_buffers) + "  batches read ahead");
  };
  if (shared) host_lines();
  if (!f.balanced.empty()) text += experts_text(f);
  if (!f.hardware && f.program_bytes > 0) {
    line("  program", bytes(f.program_bytes) +
                          (shared ? "  process overhead" : "  process overhead on the device, about") +
                          (f.world == 1 ? ""
                           : shared     ? ", with the shared memory between ranks"
                                        : ", with the communication library"));
  }
  if (!shared) {
    line("host memory", bytes(need.host()) + (f.world > 1 ? " for each rank" : ""));
    host_lines();
  }
  if (f.hardware) text += hardware_text(f);
  if (!f.memory.fits) text += lack_text(f);
  const bool open = steps_are_unknown(f);
  line("steps",
       open ? fmt::format("as many as {} epochs need, each of {} tokens", *c.train_epochs, f.tokens_per_step)
            : fmt::format("{}{} of {} tokens",
                          !c.train_minutes ? ""
                          : f.world > 1    ? "at most "
                                           : "about ",
                          f.steps, f.tokens_per_step));
  for (const std::string& stop : early_stops(f)) line("  stops after", stop);
  if (generates_answers(f)) text += answers_text(f, c);
  line("model FLOPs per step", fmt::format("{:.3g}", f.model_flops_per_step));
  line("executed per step", fmt::format("{:.3g}{}", f.executed_flops_per_step(),
                                        f.world == 1         ? ""
                                        : f.balanced.empty() ? "  by the kernels of all ranks"
                                                             : "  by the kernels of all ranks, if experts "
                                                               "get equal shares"));
  line("checkpoint", bytes(f.checkpoint_bytes));
  if (f.hardware) return text + time_text(f, open);
  if (f.matmul_flops_per_second == 0) return text;  // the experiment's device is not on this machine
  line("matrix products", fmt::format("{:.1f} GFLOP/s measured here", f.matmul_flops_per_second / 1e9));
  const std::string each = human_duration(f.seconds_per_step) + " a step";
  line("time, about",
       (open ? each
             : human_duration(f.seconds_per_step * static_cast<double>(steps_left(f, continued))) +
                   (continued ? " for the steps that are left, " : ", ") + each) +
           (f.timed       ? ""
            : f.world > 1 ? " (estimated: computation only, without communication and waiting)"
                          : " (estimated: a part of a step takes too long to measure)"));
  return text;
}

std::optional<std::int64_t> note_continuation(const TrainingForecast& f, const FamilyRegistry& families,
                                              const Console& console) {
  if (f.hardware) return std::nullopt;
  config::Experiment e = f.experiment;
  if (config::length_is_open(e.trainer) && f.steps > 0) config::set_train_iters(e, f.steps);
  const std::optional<Continuation> run =
      plan_continuation(e, f.model, session_settings_of(e, f.model, f.world), families);
  if (!run) return std::nullopt;
  for (const std::string& warning : run->warnings) console.note("warning: " + warning);
  std::string text;
  if (!steps_are_unknown(f) && run->iteration >= f.steps) {
    text = fmt::format("note: nothing is left to do: the run has reached iteration {}", run->iteration);
  } else {
    text = fmt::format("note: the run continues from iteration {}", run->iteration);
    if (!steps_are_unknown(f))
      text += fmt::format(": {} of its {} steps are left", f.steps - run->iteration, f.steps);
  }
  if (!run->compared_data && !e.trainer->mock_data)
    text += "; this dry run does not compare the data with those of the checkpoint";
  console.note(text);
  return run->iteration;
}

}  // namespace primus::cli
