// Trains a model from an experiment: data, model, loop, evaluation, checkpoints, reports.
//
// Output goes to the experiment's folder (lm/events/run_folder.h). Running the same experiment again resumes
// from its newest valid checkpoint. One thread; logger and registry must outlive the trainer.
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
  // True if the hardware's plug-in is missing, so that workspace sizes are those of CPU kernels.
  bool by_cpu_kernels = false;
  PlannedMemory memory;             // memory of a rank in the stage that needs most
  PlannedTime time;                 // time of a step
  std::vector<std::string> doubts;  // features that the hardware or the program lacks
};

// The forecast of a run. Computing it does not touch the output folder.
struct TrainingForecast {
  config::Experiment experiment;  // the experiment with the objective's planned settings (Objective::plan)
  ModelConfig model;
  int world = 1;           // number of ranks
  engine::MeshShape mesh;  // parallel layout of the ranks
  // First rank of each pipeline stage: memory by arena, kernels, parameters, communication.
  std::vector<StepMeasurement> stages;
  std::size_t neediest = 0;  // index of the stage that `memory` describes
  const StepMeasurement& step() const { return stages[neediest]; }
  double bubble = 0;  // idle fraction of the pipeline, if backward takes twice as long as forward
  double model_flops_per_step = 0;  // training_flops() of the global batch
  // The stages if experts get equal shares of the tokens. Memory is planned for the worst case, but work and
  // time are planned for this expected case.
  const std::vector<StepMeasurement>& expected_stages() const { return balanced.empty() ? stages : balanced; }
  // FLOPs of the kernels of all ranks; the ranks of a stage do equal work.
  double executed_flops_per_step() const {
    double sum = 0;
    for (const StepMeasurement& stage : expected_stages()) sum += stage.kernels.total_flops();
    return sum * mesh.stage_ranks(world);
  }
  // `steps` is 0 if it is unknown, because it depends on train_epochs and the data was not read.
  std::int64_t steps = 0, tokens_per_step = 0;
  std::int64_t checkpoint_bytes = 0;   // size of a checkpoint on disk
  std::int64_t program_bytes = 0;      // see memory_fit.h; 0 if the device has its own memory
  double matmul_flops_per_second = 0;  // rate per rank, from a short measurement on this machine
  double seconds_per_step = 0;         // seconds of a step; with several ranks, of its computation only
  bool timed = false;                  // whether a small part of a step was measured; false: estimated
  MemoryFit memory;
  std::optional<HardwarePlan> hardware;  // set with Experiment::hardware
  // With expert parallelism, ranks reserve memory for the largest possible number of rows. `balanced` has the
  // same stages with tokens balanced over all experts. Empty if the reserved memory is for balanced tokens.
  std::vector<StepMeasurement> balanced;
};

struct TrainingSummary {
  std::int64_t first_step = 0, last_step = 0;  // numbers of completed steps before and after this process
  double last_loss = 0;
  std::optional<double> validation_loss = {}, test_loss = {};
  bool reached_target = false;  // whether the run ended because it reached target_eval_loss
  bool interrupted = false;     // whether the run stopped by request, with a checkpoint saved
  std::string stopped_by = {};  // cause of an interruption: "SIGTERM", "exit_interval"
  // Settings that changed since training, if the run had nothing left to do: "lr was 1e-3, and is 1e-4".
  std::vector<std::string> unused_changes = {};
  double seconds = 0;
  std::optional<std::string> checkpoint = {};  // folder of the newest checkpoint
};

struct TrainerOptions {
  comm::Job* job = nullptr;     // the ranks that train together; null: only this process
  RunListener* view = nullptr;  // terminal view; must outlive the trainer
  bool ignore_memory = false;   // whether to start even if memory looks too small
  std::string version = {};     // version of this program; all ranks must have the same version
  // Returns who asked the run to stop, for its record: "SIGTERM". May be empty.
  std::function<std::string()> asked_by = {};
};

class Trainer {
 public:
  Trainer(const config::Experiment& experiment, const FamilyRegistry& families, Logger& log,
          const TrainerOptions& options = {});
  ~Trainer();

  // Forecasts a run on one device, or on `world` ranks with `on_host` of them on this machine.
  TrainingForecast forecast(int world = 1, int on_host = 1);
  // Chooses microbatch size and recomputation for the device's memory (fit_choice.h), or for the given bytes
  // or fraction of the installed memory. A run that resumes keeps its microbatch size. Throws Error(kInvalid)
  // if nothing fits, or if the device's memory is unknown. Writes no file.
  struct Fit {
    FitChoice choice;
    MemorySupply supply;
  };
  struct FitMemory {
    std::int64_t bytes = 0;  // memory in bytes; 0: not given
    double share = 0;        // fraction of the installed memory; 0: not given
  };
  Fit fit(const FitMemory& memory, int world = 1, int on_host = 1);
  // Does everything before the first step: opens data (tokenising it if necessary), checks memory, loads
  // weights or a checkpoint. Locks the output folder for this process. If the process is killed meanwhile,
  // nothing is lost. Throws Error(kInvalid) with changes that would help if there is not enough memory.
  void prepare();
  // Trains. When a signal handler sets `stop`, the run leaves its current step, saves, and returns. Call
  // prepare() first.
  TrainingSummary run(const std::atomic<bool>& stop);

 private:
  struct Run;
  std::vector<std::string> notes_;       // texts shown to the user once
  const config::Experiment experiment_;  // the experiment with the loaded model's tokenizer
                                         // (loaded_tokenizer.h)
  const FamilyRegistry& families_;
  Logger& log_;
  TrainerOptions options_;
  std::unique_ptr<Run> run_;
};

}  // namespace primus
