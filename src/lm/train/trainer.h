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
#include "lm/events/rank_health.h"
#include "lm/events/run_listener.h"
#include "lm/model/family.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/forecast/fit_choice.h"
#include "lm/train/forecast/memory_fit.h"
#include "lm/train/forecast/planned_hardware.h"
#include "lm/train/step/session.h"

namespace primus {

// The part of a forecast that concerns hardware which may not be in this machine.
struct HardwarePlan {
  std::shared_ptr<const config::Hardware> profile;
  // Whether the hardware's plug-in is missing, so that workspace sizes are sizes for CPU kernels.
  bool by_cpu_kernels = false;
  PlannedMemory memory;             // memory of a rank in the stage that needs the most
  PlannedTime time;                 // time of a step
  std::vector<std::string> doubts;  // sentences about features that the hardware or Primus lacks
};

// The forecast of a run. Computing it does not touch the output folder.
struct TrainingForecast {
  config::Experiment experiment;  // the experiment, with the settings of planned_experiment()
                                  // (Objective::plan)
  std::string microbatch;         // why micro_batch_size was chosen (fit_choice.h); empty: it was not
  ModelConfig model;
  int world = 1;           // number of ranks
  engine::MeshShape mesh;  // parallel layout of the ranks
  // Measurements of the first rank of each pipeline stage: memory by arena, kernels, parameters,
  // communication.
  std::vector<StepMeasurement> stages;
  std::size_t neediest = 0;  // index of the stage that needs the most memory, which `memory` describes
  const StepMeasurement& step() const { return stages[neediest]; }
  double bubble = 0;  // fraction of time in which stages are idle, if the backward pass takes twice as long
                      // as the forward pass
  double model_flops_per_step = 0;  // training_flops() of the global batch
  // Returns the measurements for the case that experts get equal numbers of tokens. Memory is planned for the
  // worst case, but work and time are planned for this expected case.
  const std::vector<StepMeasurement>& expected_stages() const { return balanced.empty() ? stages : balanced; }
  // FLOPs of the kernels of all ranks; the ranks of a stage do equal work.
  double executed_flops_per_step() const {
    double sum = 0;
    for (const StepMeasurement& stage : expected_stages()) sum += stage.kernels.total_flops();
    return sum * mesh.stage_ranks(world);
  }
  // Number of steps, and tokens per step. `steps` is 0 if the number of steps depends on train_epochs and the
  // data was not read.
  std::int64_t steps = 0, tokens_per_step = 0;
  std::int64_t checkpoint_bytes = 0;   // size of a checkpoint on disk
  std::int64_t program_bytes = 0;      // memory of the program itself (memory_fit.h); 0 if the device has its
                                       // own memory
  double matmul_flops_per_second = 0;  // matrix product FLOP/s per rank, from a short measurement on this
                                       // machine
  double seconds_per_step = 0;         // seconds per step; with several ranks, without communication
  bool timed = false;                  // true: seconds_per_step comes from running a small part of a step;
                                       // false: it is estimated
  MemoryFit memory;
  std::optional<HardwarePlan> hardware;  // set if Experiment::hardware is set
  std::string expert_rows;  // how GPUs send tokens to the experts of other ranks (comm::planned_rows); empty
                            // if they do not, or without the plug-in of these GPUs
  // Measurements of the stages with tokens distributed evenly over all experts. `stages` contains the
  // measurements for the largest possible number of rows, for which ranks reserve memory with expert
  // parallelism. Empty if ranks reserve memory only for evenly distributed tokens.
  std::vector<StepMeasurement> balanced;
};

// The highest mean reward of a step.
struct BestReward {
  double reward = 0;
  std::int64_t step = 0;
};

struct TrainingSummary {
  std::int64_t first_step = 0, last_step = 0;  // numbers of completed steps before and after this process
  double last_loss = 0;
  std::optional<double> last_reward = {};      // mean reward of the last step; empty without rewards
  std::optional<BestReward> best_reward = {};  // of the steps of this process
  std::optional<double> validation_loss = {}, test_loss = {};
  bool reached_target = false;  // whether the run ended because it reached target_eval_loss
  bool interrupted = false;     // whether the run stopped by request, with a checkpoint saved
  std::string stopped_by = {};  // why the run was interrupted: "SIGTERM", "exit_interval"
  // Settings that have changed since training, if the run had no steps left: "lr was 1e-3, and is 1e-4".
  std::vector<std::string> unused_changes = {};
  // The length that such a run has reached, and the setting that makes it longer: "its length is 20 epochs
  // (200 steps)" and "train_epochs=..., above 20".
  std::string length = {}, longer = {};
  double seconds = 0;
  std::optional<std::string> checkpoint = {};  // folder of the newest checkpoint
};

struct TrainerOptions {
  comm::Job* job = nullptr;       // the ranks that train together; null: only this process
  RunListener* view = nullptr;    // terminal view; must outlive the trainer
  bool ignore_memory = false;     // true: the run starts even if the memory seems too small
  std::string version = {};       // version of this program; all ranks must have the same version
  RunListener* alerts = nullptr;  // further listener to the events of the run; must outlive the trainer
  RankHealth* health = nullptr;   // watches the machine of this rank; must outlive the trainer; null: nothing
                                  // does
  // Above 0: the bytes that each rank may use, in place of the free memory of its machine; for tests.
  std::int64_t memory_of_rank = 0;
  // Returns what requested the stop, for the record of the run: "SIGTERM". May be empty.
  std::function<std::string()> asked_by = {};
};

class Trainer {
 public:
  Trainer(const config::Experiment& experiment, const FamilyRegistry& families, Logger& log,
          const TrainerOptions& options = {});
  ~Trainer();

  // Forecasts a run on one device, or on `world` ranks, `on_host` of which are on this machine.
  TrainingForecast forecast(int world = 1, int on_host = 1);
  // Chooses microbatch size and recomputation for the device's memory (fit_choice.h), or for the given number
  // of bytes or fraction of the installed memory. A run that resumes keeps its microbatch size. Throws
  // Error(kInvalid) if no choice fits, or if the device's memory is unknown. Writes no file.
  struct Fit {
    FitChoice choice;
    MemorySupply supply;
  };
  struct FitMemory {
    std::int64_t bytes = 0;  // memory in bytes; 0: not specified
    double share = 0;        // fraction of the installed memory; 0: not specified
  };
  Fit fit(const FitMemory& memory, int world = 1, int on_host = 1);
  // Does everything that precedes the first step: opens data (tokenizing it if necessary), checks memory,
  // loads weights or a checkpoint. Locks the output folder for this process. The process may be killed at any
  // time without loss of data. If there is not enough memory, throws Error(kInvalid), which lists changes
  // that would help.
  void prepare();
  // Trains. When a signal handler sets `stop`, the run leaves its current step, saves, and returns. Call
  // prepare() first.
  TrainingSummary run(const std::atomic<bool>& stop);

 private:
  struct Run;
  std::vector<std::string> notes_;       // texts to show to the user once
  const config::Experiment experiment_;  // the experiment, with the tokenizer of the loaded model
                                         // (loaded_tokenizer.h)
  const FamilyRegistry& families_;
  Logger& log_;
  TrainerOptions options_;
  std::unique_ptr<Run> run_;
};

}  // namespace primus
