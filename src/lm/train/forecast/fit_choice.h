// Chooses the microbatch size and the amount of recomputation so that training fits a device's memory
// (`primus train pretrain --fit`).
//
// Measures each possible choice on all pipeline stages, as a run does at its start (session.h). The global
// batch size does not change; only the number of microbatches does. Deterministic: the same experiment,
// number of ranks and memory give the same choice on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/family.h"
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

}  // namespace primus
