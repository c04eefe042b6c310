// Repeats the samples of another data set in the same order, for runs whose number of steps is not known in
// advance (train_minutes).
#pragma once

#include <memory>

#include "lm/data/dataset.h"

namespace primus::data {

// Returns the repeated data set. A null pointer, or a data set that already repeats without end, is returned
// unchanged.
std::unique_ptr<const Dataset> make_repeated(std::unique_ptr<const Dataset> dataset);

}  // namespace primus::data
