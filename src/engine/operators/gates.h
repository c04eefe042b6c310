// Gates of layers as operators of the tape: splitting of fused projections, a layer's output times a gate
// (turbo/gate), and the gates of a delta rule (turbo/delta_gates).
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "engine/operators/operators.h"
#include "turbo/column_runs/column_runs.h"
#include "turbo/gate/gate.h"

namespace primus::engine {

// The column ranges of one part, at most turbo::CopyColumns::kMaxRuns. Each range has an offset in the fused
// projection and an offset in the part.
using ColumnRuns = std::vector<turbo::ColumnRun>;

// Splits the columns of x into up to three parts, which together cover all columns: [T, n] -> [T, columns of
// part i]. Unused results are empty.
std::array<Value, 3> split_columns(const Value& x, const std::vector<ColumnRuns>& parts);

// Returns x * sigmoid(gate): [T, n] -> [T, n]. The gate is [T, n], or [T, 1] in x's type or fp32.
Value gated(const Value& x, const Value& gate);

// Applies RMSNorm to each head of x, and multiplies by an activation of the gate (turbo::GatedNormForward): x
// and gate [T, heads * dim], `weight` [dim] -> [T, heads * dim].
Value gated_norm(const Value& x, const Value& gate, Parameter& weight, turbo::GateActivation activation,
                 double epsilon);

// Computes the gates that delta_rule() reads, g and beta, both [T, heads] fp32, from [T, 2 * heads] (b of all
// heads, then a) and parameters of [heads] each.
std::pair<Value, Value> delta_gates(const Value& ba, Parameter& a_log, Parameter& dt_bias);

}  // namespace primus::engine
