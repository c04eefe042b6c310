// Samples of another data set again and again, in the same order: for runs whose number of steps is not known
// before (train_minutes).
#pragma once

#include <memory>

#include "lm/data/dataset.h"

namespace primus::data {

// A null pointer, and a data set that never ends, stay as they are.
std::unique_ptr<const Dataset> make_repeated(std::unique_ptr<const Dataset> dataset);

}  // namespace primus::data
