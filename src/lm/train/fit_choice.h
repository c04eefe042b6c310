// Which microbatches and how much recomputation a device's memory allows: `primus train pretrain --fit`.
//
// Every choice is measured as a start is (session.h), on all stages of a pipeline. The global batch stays as
// the experiment says, so that only the number of microbatches changes. Pure but for measuring, and
// deterministic: the same experiment, ranks and memory give the same choice everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "lm/model/family.h"
#include "lm/train/memory_fit.h"

namespace primus {

struct FitChoice {
  std::vector<std::string> settings;  // "micro_batch_size=4", "recompute_granularity=none": as overrides
  MemoryNeed need;                    // of the rank that needs most
  std::int64_t microbatches = 1;      // of a data-parallel rank and step
  bool microbatch_was_given = false;  // and not chosen
  double extra_work = 0;              // beyond a step without recomputation, as a share of it
  std::string next;                   // what would be cheaper or larger, and needs too much; empty: nothing
};

// The least work of a step that fits `supply`, and of choices with equal work the largest microbatch. Work is
// the kernels' FLOPs, and with pipelines the time that stages wait. `model` is the experiment's; `world`:
// ranks; `keep_microbatch`: micro_batch_size stays as the experiment says, for a run that goes on. Throws
// Error(kInvalid) with at most three changes that would help where nothing fits, and what the experiment's
// own settings throw.
FitChoice choose_fit(const config::Experiment& experiment, const ModelConfig& model,
                     const FamilyRegistry& families, const MemorySupply& supply, int world = 1,
                     bool keep_microbatch = false);

// Two lines for people: what was chosen, and why.
std::string describe_choice(const FitChoice& choice, const MemorySupply& supply);

}  // namespace primus
