// Determines which matrices Muon updates.
#pragma once

#include <vector>

#include "engine/runtime/parameters.h"

namespace primus {

// Returns the matrices of a parameter as ranges of rows, where the parameter is seen as [rows, last extent].
// Each tensor of the published checkpoint is a separate matrix; a tensor of experts has one matrix per
// expert.
std::vector<engine::FlatRange> muon_matrices(const engine::Parameter& parameter, bool split_qkv);

}  // namespace primus
