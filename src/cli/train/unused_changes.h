// Changed settings of a run that has ended.
#pragma once

#include "lm/train/trainer.h"

namespace primus::cli {

// Throws Error(kInvalid) if the run had ended before, and the command has other settings, which would have
// trained another model. A script would otherwise take the old model for the new one. Another length is no
// error: a run that is already long enough has nothing left to do. New content of a data file and newer
// checkpoints of `load` are no error either, because a launcher may repeat the command of a finished run.
void refuse_unused_changes(const TrainingSummary& summary);

}  // namespace primus::cli
