// Gates of layers as operators of the tape: projections that hold several things side by side, what comes out
// of a layer times a gate (turbo/gate), and the gates of a delta rule (turbo/delta_gates).
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "engine/operators.h"
#include "turbo/column_runs/column_runs.h"
#include "turbo/gate/gate.h"

namespace primus::engine {

// One part of a projection: its columns, by their places there and in the part. Up to
// turbo::CopyColumns::kMostRuns runs.
using ColumnRuns = std::vector<turbo::ColumnRun>;

// The parts of each row of x, up to three, which together are all its columns: [T, n] -> [T, columns of part
// i]. Parts that are not there are empty.
std::array<Value, 3> take_apart(const Value& x, const std::vector<ColumnRuns>& parts);

// x * sigmoid(gate): [T, n], and of the gate [T, n], or [T, 1] in x's type or fp32 -> [T, n].
Value gated(const Value& x, const Value& gate);

// RMSNorm of each head of x times an activation of the gate (turbo::GatedNormForward): [T, heads * dim] both,
// with `weight` [dim] -> [T, heads * dim].
Value gated_norm(const Value& x, const Value& gate, Parameter& weight, turbo::GateActivation activation,
                 double epsilon);

// What delta_rule() reads, from [T, 2 * heads] (b of all heads, then a) and parameters [heads] each: g and
// beta, both [T, heads] fp32.
std::pair<Value, Value> delta_gates(const Value& ba, Parameter& a_log, Parameter& dt_bias);

}  // namespace primus::engine
