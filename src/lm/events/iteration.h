// What is known after one training iteration, and the line Primus prints of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "lm/events/throughput.h"

namespace primus {

// Memory of the rank's device, bytes.
struct DeviceMemory {
  std::string label;  // "hip", "cuda", "cpu"
  double used = 0.0, total = 0.0;
};

// How the tokens of an iteration spread over the experts of one layer.
struct ExpertLoads {
  std::int64_t layer = 0;
  double imbalance = 1.0;                   // the largest load over the mean
  double dropped = 0.0;                     // share of choices beyond the experts' capacity, 0..1
  std::optional<double> balance_loss = {};  // without its coefficient; where it is trained
};

struct IterationRecord {
  std::int64_t iteration = 0;  // counted from 1
  std::int64_t train_iters = 0;
  std::int64_t consumed_samples = 0;
  std::int64_t global_batch_size = 0;
  double learning_rate = 0.0;
  double lm_loss = 0.0;  // mean over the tokens of the global batch
  double loss_scale = 1.0;
  std::optional<double> grad_norm = {};                           // before clipping
  std::optional<std::int64_t> num_zeros = {};                     // zeros in the gradient
  std::int64_t skipped_iterations = 0;                            // since the run began
  std::int64_t nan_iterations = 0;                                // since the run began
  std::vector<std::pair<std::string, double>> other_losses = {};  // e.g. {"load_balancing_loss", 1.02}
  std::vector<ExpertLoads> routing = {};                          // of the layers with experts
  std::optional<DeviceMemory> memory = {};
  Throughput throughput = {};
};

// The mean imbalance over layers, the layer whose imbalance is largest, and the mean share of dropped
// choices. `routing` is not empty.
struct RoutingSummary {
  double imbalance = 0.0, dropped = 0.0;
  ExpertLoads worst = {};
};
RoutingSummary summarise(const std::vector<ExpertLoads>& routing);

struct EvaluationRecord {
  std::int64_t iteration = 0;
  std::string data_set = "validation";  // or "test"
  double lm_loss = 0.0;
  std::int64_t tokens = 0;
  double seconds = 0.0;
  std::optional<double> bits_per_byte = {};  // of the text: comparable between tokenizers
};

// A text that the model wrote while it is trained.
struct SampleRecord {
  std::int64_t iteration = 0;
  std::string prompt, text;  // what it was given, and what it wrote behind that
  std::int64_t tokens = 0;   // written
  double seconds = 0.0;
};

// A finding of a detector: a line of warnings.jsonl (docs/formats/metrics.md).
struct RunWarning {
  std::int64_t iteration = 0;
  std::string detector = {};  // DetectorEntry::name
  double value = 0.0;         // what was seen
  double usual = 0.0;         // what it is compared with
  double limit = 0.0;         // values from here on are warned of
  std::string text = {};      // one sentence with the figures, without a final period
  std::string advice = {};    // the next step
};

// A number that is none. The trainer stops with to_error().
struct NumericsFault {
  std::int64_t iteration = 0;
  std::string quantity = {};  // "lm loss", "gradient norm"
  double value = 0.0;         // NaN or an infinity
  std::string first_operator =
      {};  // where the first one appeared, e.g. "layers.3.attention"; empty: not looked for
  bool clips_gradients = true;  // clip_grad is not 0
  Error to_error() const;
};

// Primus's training line without the log's prefix, and at its end what Primus lacks: MFU, ETA, the share of
// time spent waiting for data:
//
//  iteration        3/      50 | consumed samples:           24 | elapsed time per iteration (ms):
//  812.3/810.9 | compute per GPU (TFLOP/s/GPU): 1.2 (avg 1.2) | tokens/s/GPU inst/harmonic mean:
//  5043.1/5051.8 | learning rate: 1.000000E-05 | global batch size:     8 | lm loss: 1.083412E+01 | loss
//  scale: 1.0 | grad norm: 2.113 | num zeros: 0 | number of skipped iterations:   0 | number of nan
//  iterations:   0 | MFU: 41.3% | ETA: 3m 12s | data wait: 0.4%
//
// While averages are skipped it has Primus's other form: "throughput per GPU (TFLOP/s/GPU): 1.2 | tokens per
// GPU (tokens/s/GPU): 5043.1". What reads Primus's logs accepts both.
std::string format_iteration(const IterationRecord& record);

// " validation loss at iteration 100 | lm loss value: 3.214567E+00 | lm loss PPL: 2.489...E+01", as Megatron
// has it; where it is known, " | bits per byte: 1.2345" follows.
std::string format_evaluation(const EvaluationRecord& record);

}  // namespace primus
