// Repeats the samples of another data set in the same order, for runs whose number of steps is not known in
// advance (train_minutes).
#pragma once

#include <memory>

#include "lm/data/dataset.h"

namespace primus::data {

// A null pointer and a data set that never ends are returned unchanged.
std::unique_ptr<const Dataset> make_repeated(std::unique_ptr<const Dataset> dataset);

}  // namespace primus::data
