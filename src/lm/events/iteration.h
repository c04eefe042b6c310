// The record of a training iteration, and the line printed for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "lm/events/throughput.h"

namespace primus {

// Memory of this rank's device, in bytes.
struct DeviceMemory {
  std::string label;  // kind of device: "hip", "cuda" or "cpu"
  double used = 0.0, total = 0.0;
};

// How the tokens are distributed over the experts of one layer in one iteration.
struct ExpertLoads {
  std::int64_t layer = 0;
  double imbalance = 1.0;                   // largest load of an expert divided by the mean load
  double dropped = 0.0;                     // fraction of the router's choices that exceed the experts'
                                            // capacity, 0..1
  std::optional<double> balance_loss = {};  // load-balancing loss before its coefficient; empty if the model
                                            // is trained without this loss
};

// The own work of one rank in a step: the time without waiting for other ranks, in seconds.
struct RankWork {
  int stage = 0;               // the rank's pipeline stage; ranks of a stage have equal work
  double data = 0;             // waiting for the batch
  double passes = 0;           // forward and backward passes
  double update = 0;           // gradient norm, update and copies of checkpoints, of the step before
  std::uint32_t symptoms = 0;  // what the rank's machine reports (Symptom), as bits

  double total() const { return data + passes + update; }
};

// Conditions of a rank's machine that make the rank slow. The values are bits of RankWork::symptoms.
enum class Symptom : std::uint8_t {
  kCpuLimit = 1,       // the control group's CPU limit held the process up
  kCpuBusy = 2,        // threads of the rank wait for cores
  kSwapping = 4,       // memory is swapped in
  kSlowDisk = 8,       // programs wait for disks
  kSlowClock = 16,     // CPU clocks are far below their maximum
  kGpuThrottled = 32,  // the GPU has lowered its clock because of heat or power
  kGpuLink = 64,       // the GPU's PCIe link is narrower than possible
  kPortErrors = 128    // a network port reports errors
};
// Returns the symptoms as text: "its control group limits the CPU, and memory is swapped"; "" for none.
std::string describe_symptoms(std::uint32_t symptoms);

struct IterationRecord {
  std::int64_t iteration = 0;  // number of the iteration; the first is 1
  std::int64_t train_iters = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch_size = 0;
  double learning_rate = 0.0;
  double lm_loss = 0.0;  // mean loss over the tokens of the global batch
  double loss_scale = 1.0;
  std::optional<double> grad_norm = {};        // gradient norm before clipping
  std::optional<std::int64_t> num_zeros = {};  // number of zeros in the gradient
  std::int64_t skipped_iterations = 0;         // number of skipped iterations since the run started
  std::int64_t nan_iterations = 0;             // number of iterations with NaN since the run started
  // Further losses by name, such as {"load_balancing_loss", 1.02}.
  std::vector<std::pair<std::string, double>> other_losses = {};
  std::vector<ExpertLoads> routing = {};  // expert loads of each layer that has experts
  std::optional<DeviceMemory> memory = {};
  // The work of each rank, by rank; empty if it is not measured, and on ranks other than 0.
  std::vector<RankWork> ranks = {};
  Throughput throughput = {};
};

// Mean imbalance over the layers, the layer with the largest imbalance, and the mean fraction of dropped
// choices. `routing` must not be empty.
struct RoutingSummary {
  double imbalance = 0.0, dropped = 0.0;
  ExpertLoads worst = {};
};
RoutingSummary summarise(const std::vector<ExpertLoads>& routing);

struct EvaluationRecord {
  std::int64_t iteration = 0;
  std::string data_set = "validation";  // "validation" or "test"
  double lm_loss = 0.0;
  std::int64_t tokens = 0;
  double seconds = 0.0;
  // Loss in bits per byte of text, which is comparable between tokenizers.
  std::optional<double> bits_per_byte = {};
};

// A text that the model generated during training: a sample text (sample_interval), or an answer from which
// reinforcement learning learns.
struct SampleRecord {
  std::int64_t iteration = 0;
  std::string prompt, text;  // prompt, and text generated after the prompt
  std::int64_t tokens = 0;   // number of generated tokens
  double seconds = 0.0;
  // Only for an answer: its rewards by function (empty: the function gave none), and whether the model ended
  // the answer.
  std::vector<std::pair<std::string, std::optional<double>>> rewards = {};
  std::optional<bool> finished = {};
};

// The finding of a detector: one line of warnings.jsonl (docs/formats/metrics.md).
struct RunWarning {
  std::int64_t iteration = 0;
  std::string detector = {};  // name of the detector (DetectorEntry::name)
  double value = 0.0;         // the value that caused the warning
  double usual = 0.0;         // the value to which it is compared
  double limit = 0.0;         // the smallest value that causes a warning
  std::string text = {};      // one sentence that states the numbers, without a final period
  std::string advice = {};    // advice to the user: what to do next
  int rank = -1;              // the rank that the warning is about; -1: the complete job
};

// A quantity that is NaN or infinite. The trainer then stops with the error to_error().
struct NumericsFault {
  std::int64_t iteration = 0;
  std::string quantity = {};  // name of the quantity: "lm loss", "gradient norm"
  double value = 0.0;         // NaN, +infinity or -infinity
  // The first operator that produced a non-finite value, e.g. "layers.3.attention"; empty if no search was
  // made.
  std::string first_operator = {};
  bool clips_gradients = true;  // whether gradients are clipped (clip_grad is not 0)
  // The weights with which the step was computed. kUntrained: the run has made no update yet. kDamaged: the
  // loaded weights already contained a NaN or an infinity.
  enum class Weights : std::uint8_t { kTrained, kUntrained, kDamaged };
  Weights weights = Weights::kTrained;
  std::string damaged = {};  // with kDamaged: a damaged parameter; empty if it is on another rank
  Error to_error() const;

 private:
  std::string hint() const;
};

// Returns AMD Primus's training line without the log prefix, followed by fields that AMD Primus does not
// print: MFU, ETA, and the fraction of time spent waiting for data. The text is one line; here it is shown in
// several lines:
//
//    iteration        3/      50 | consumed samples:           24 |
//     elapsed time per iteration (ms): 812.3/810.9 | compute per GPU (TFLOP/s/GPU): 1.2 (avg 1.2) |
//     tokens/s/GPU inst/harmonic mean: 5043.1/5051.8 | learning rate: 1.000000E-05 |
//     global batch size:     8 | lm loss: 1.083412E+01 | loss scale: 1.0 | grad norm: 2.113 |
//     num zeros: 0 | number of skipped iterations:   0 | number of nan iterations:   0 |
//     MFU: 41.3% | ETA: 3m 12s | data wait: 0.4%
//
// While there are no averages, the line uses AMD Primus's other form: "throughput per GPU (TFLOP/s/GPU): 1.2
// | tokens per GPU (tokens/s/GPU): 5043.1". Parsers of AMD Primus's logs accept both forms.
std::string format_iteration(const IterationRecord& record);

// Returns the line in Megatron's format, such as " validation loss at iteration 100 | lm loss value:
// 3.214567E+00 | lm loss PPL: 2.489...E+01". If bits per byte are known, " | bits per byte: 1.2345" follows.
std::string format_evaluation(const EvaluationRecord& record);

}  // namespace primus
