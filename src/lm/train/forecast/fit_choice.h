// Chooses the microbatch size and the amount of recomputation so that training fits a device's memory
// (`primus train pretrain --fit`).
//
// At the end of this file: the choice of microbatches for reinforcement learning on GPUs.
//
// Measures each possible choice on all pipeline stages, as a run does at its start (session.h). The global
// batch size does not change; only the number of microbatches does. Deterministic: the same experiment,
// number of ranks and memory give the same choice on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "lm/train/forecast/memory_fit.h"

namespace primus {

struct FitChoice {
  // The chosen settings as overrides: "micro_batch_size=4", "recompute_granularity=none".
  std::vector<std::string> settings;
  MemoryNeed need;                    // memory need of the rank that needs the most memory
  std::int64_t microbatches = 1;      // number of microbatches of each data-parallel rank per step
  bool microbatch_was_given = false;  // true: the user set micro_batch_size; false: it was chosen
  double extra_work = 0;  // work of recomputation, as a fraction of the work of a step without recomputation
  std::string next;       // the next faster choice, which needs too much memory; empty if there is none
};

// Returns the choice with the least work per step that fits `supply`. If several choices have equal work,
// returns the choice with the largest microbatch. Work is the FLOPs of all kernels plus, with pipelines, the
// FLOPs that would fit into the idle time of stages. `model` is the experiment's model; `world` is the number
// of ranks. `keep_microbatch` keeps the experiment's micro_batch_size, for a run that resumes. If no choice
// fits, throws Error(kInvalid) with at most three changes that would help. Also throws the errors of the
// experiment's own settings.
FitChoice choose_fit(const config::Experiment& experiment, const ModelConfig& model,
                     const FamilyRegistry& families, const MemorySupply& supply, int world = 1,
                     bool keep_microbatch = false);

// Returns two lines for the user: the choice, and the reason for it.
std::string describe_choice(const FitChoice& choice, const MemorySupply& supply);

// ---- Microbatches of reinforcement learning -------------------------------------------------------

// The choice of micro_batch_size for reinforcement learning on GPUs, if the user leaves it open.
//
// A rank packs the answers of a step into rows of seq_length tokens, and learns from micro_batch_size rows at
// a time. With few rows, a GPU waits for the starts of kernels. With many rows, it computes more padding,
// because the last microbatch of a step is rarely full. Therefore the choice has at most kMaxTokens tokens,
// and at most a quarter of the rows. The choice does not depend on memory, so that the same experiment
// computes the same sums on every GPU. Only if it does not fit into memory, it is decreased, down to 1. Free
// functions; thread-safe.
struct MicrobatchChoice {
  static constexpr std::int64_t kMaxTokens = 16384;  // of a microbatch of one context rank
  std::int64_t rows = 1;                             // micro_batch_size
  std::string why;                                   // a sentence for the log
};

// Returns whether no experiment, command line or preset of the user sets micro_batch_size, so that it may be
// chosen.
bool leaves_microbatch_open(const config::Experiment& experiment);

// Returns the choice for a run on `world` ranks. A run that resumes keeps the size with which it was started.
// Empty on CPUs, where larger microbatches are not faster; if micro_batch_size is not open; and if it would
// not become larger.
std::optional<MicrobatchChoice> choose_microbatch(const config::Experiment& experiment, int world);

// Sets micro_batch_size to a chosen size.
void set_chosen_microbatch(config::Experiment& experiment, std::int64_t rows);
// Returns whether micro_batch_size was set by set_chosen_microbatch().
bool has_chosen_microbatch(const config::Experiment& experiment);
// Returns the next smaller size; empty after 1.
std::optional<std::int64_t> smaller_microbatch(const config::Experiment& experiment, int world);

// Returns whether `need` leaves a tenth of the device's memory free. A chosen size is meant to be safe, not
// to use the last byte.
bool fits_with_reserve(const MemoryNeed& need, MemorySupply supply);

// Decreases a chosen micro_batch_size until each pipeline stage fits with reserve. Returns a sentence about
// the result; empty if nothing was chosen, or if nothing had to be decreased. `model`: the model of the
// experiment.
std::string fit_chosen_microbatch(config::Experiment& experiment, const ModelConfig& model,
                                  const FamilyRegistry& families, const MemorySupply& supply, int world);
// Returns the sentence of fit_chosen_microbatch() about a size that was decreased from `before`.
std::string describe_decrease(std::int64_t before, std::int64_t after);

}  // namespace primus
