// Changed settings of a run that has ended.
#pragma once

#include "lm/train/trainer.h"

namespace primus::cli {

// Throws Error(kInvalid) if the run had ended before, and settings or data have changed that would have
// trained another model. A script would otherwise take the old model for the new one. Another length alone is
// no error: a run that is already long enough has nothing left to do.
void refuse_unused_changes(const TrainingSummary& summary);

}  // namespace primus::cli
