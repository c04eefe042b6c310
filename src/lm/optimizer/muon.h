// The matrices that Muon updates.
#pragma once

#include <vector>

#include "engine/parameters.h"

namespace primus {

// Returns the matrices of a parameter, as ranges of rows of [rows, last extent]. Each expert is a separate
// matrix, and within it each tensor of the published checkpoint.
std::vector<engine::FlatRange> muon_matrices(const engine::Parameter& parameter, bool split_qkv);

}  // namespace primus
