// Pre-training from an experiment: data, model, loop, evaluation, checkpoints, reports.
//
// Output goes to the experiment's folder (lm/events/run_folder.h). Running the same experiment again
// continues from its newest good checkpoint. One thread; logger and registry must outlive the trainer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "comm/job.h"
#include "config/experiment.h"
#include "lm/data/dataset.h"
#include "lm/events/run_listener.h"
#include "lm/model/family.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/fit_choice.h"
#include "lm/train/memory_fit.h"
#include "lm/train/planned_hardware.h"
#include "lm/train/session.h"

namespace primus {

// A plan for hardware that may be absent.
struct HardwarePlan {
  std::shared_ptr<const config::Hardware> profile;
  bool by_cpu_kernels = false;      // no plug-in of its kind is here to tell workspaces
  PlannedMemory memory;             // of the neediest stage's rank
  PlannedTime time;                 // of a step
  std::vector<std::string> doubts;  // what the hardware or the program lacks for it
};

// What a run would be, found without touching a file of the output folder.
struct TrainingForecast {
  config::Experiment experiment;  // with what its objective chose (Objective::plan)
  ModelConfig model;
  int world = 1;           // ranks
  engine::MeshShape mesh;  // how they share the work
  // Of the first rank of each pipeline stage: memory by arena, kernels, parameters, communication.
  std::vector<StepMeasurement> stages;
  std::size_t neediest = 0;  // the stage that `memory` is about
  const StepMeasurement& step() const { return stages[neediest]; }
  double bubble =
      0;  // share of the stages' time in which the schedule leaves them idle; backward twice forward
  double model_flops_per_step = 0;  // training_flops of the global batch
  // Of the kernels of all ranks, of which those of a stage do the same.
  double executed_flops_per_step() const {
    double sum = 0;
    for (const StepMeasurement& stage : stages) sum += stage.kernels.total_flops();
    return sum * mesh.stage_ranks(world);
  }
  // 0 steps: as many as train_epochs need, which only the tokens tell.
  std::int64_t steps = 0, tokens_per_step = 0;
  std::int64_t checkpoint_bytes = 0;   // one checkpoint on disk
  std::int64_t program_bytes = 0;      // see memory_fit.h; 0 where the device has memory of its own
  double matmul_flops_per_second = 0;  // of a rank, measured for a moment on this machine
  double seconds_per_step = 0;         // of several ranks: what computing alone takes
  bool timed = false;  // seconds_per_step was measured with a small part of a step; otherwise it is estimated
  MemoryFit memory;
  std::optional<HardwarePlan> hardware;  // of experiments with Experiment::hardware
  // Ranks that share experts reserve memory for the most rows that can come. The same stages where every
  // expert gets its equal share of the tokens; empty where that is what is reserved.
  std::vector<StepMeasurement> balanced;
};

struct TrainingSummary {
  std::int64_t first_step = 0, last_step = 0;  // steps completed before and after
  double last_loss = 0;
  std::optional<double> validation_loss = {}, test_loss = {};
  bool reached_target = false;  // target_eval_loss, which ended the run
  bool interrupted = false;     // stopped by request; a checkpoint was saved
  std::string stopped_by = {};  // of an interrupted run: "SIGTERM", "exit_interval"
  // Of a run that had nothing left to do: settings that differ from those it was trained with, "lr was 1e-3,
  // and is 1e-4".
  std::vector<std::string> unused_changes = {};
  double seconds = 0;
  std::optional<std::string> checkpoint = {};  // the newest one's folder
};

struct TrainerOptions {
  comm::Job* job = nullptr;     // the ranks that train together; null: this one alone
  RunListener* view = nullptr;  // of a terminal; must outlive the trainer
  bool ignore_memory = false;   // start although the memory does not seem to be there
  std::string version = {};     // of this program; ranks of another one are refused
  // Who set the flag that stops the run, for its record: "SIGTERM". May be empty.
  std::function<std::string()> asked_by = {};
};

class Trainer {
 public:
  Trainer(const config::Experiment& experiment, const FamilyRegistry& families, Logger& log,
          const TrainerOptions& options = {});
  ~Trainer();

  // Of one device, or of a job of `world` ranks, `on_host` of them on this machine.
  TrainingForecast forecast(int world = 1, int on_host = 1);
  // Microbatches and recomputation for the memory of the device (fit_choice.h), or for `bytes` of it or the
  // share `share` of what is installed. A run that goes on keeps its microbatches. Throws Error(kInvalid)
  // where nothing fits, and where the device's memory is not known here. Writes no file.
  struct Fit {
    FitChoice choice;
    MemorySupply supply;
  };
  struct FitMemory {
    std::int64_t bytes = 0;  // 0: not given
    double share = 0;        // 0: not given
  };
  Fit fit(const FitMemory& memory, int world = 1, int on_host = 1);
  // Everything before the first step: data (tokenised if need be), memory, weights or checkpoint. Takes the
  // output folder for this process alone. Nothing is lost when it is killed. Throws Error(kInvalid) with what
  // would help where the memory is not there.
  void prepare();
  // Trains. `stop`: set by a signal handler; the run then leaves the step it is in, saves, and returns. Call
  // prepare() first.
  TrainingSummary run(const std::atomic<bool>& stop);

 private:
  struct Run;
  std::vector<std::string> notes_;       // for the user to see once
  const config::Experiment experiment_;  // with the tokenizer of what is loaded (loaded_tokenizer.h)
  const FamilyRegistry& families_;
  Logger& log_;
  TrainerOptions options_;
  std::unique_ptr<Run> run_;
};

}  // namespace primus
