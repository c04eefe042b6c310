// What Muon takes for matrices.
#pragma once

#include <vector>

#include "engine/parameters.h"

namespace primus {

// The matrices of a parameter that Muon updates, as rows of [rows, last extent]: each expert, and in it each
// tensor of the published checkpoint, is one of its own.
std::vector<engine::FlatRange> muon_matrices(const engine::Parameter& parameter, bool split_qkv);

}  // namespace primus
