#include "engine/operators/gates.h"

#include <algorithm>

#include "base/check.h"
#include "engine/runtime/parameter_values.h"
#include "tensor/scratch_tensor.h"
#include "turbo/delta_gates/delta_gates.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::ColumnRun;
using turbo::CopyColumns;
using turbo::launch;

// --- split_columns

struct Parts {
  struct Part {
    std::array<ColumnRun, CopyColumns::kMaxRuns> runs;
    int run_count;
  };
  std::array<Part, Entry::kMaxOutputs> parts;
};

struct SplitColumns {
  enum In : InputName { kX };
  enum Out : OutputName { kFirst, kSecond, kThird };  // outputs: one per part
};

void split_columns_forward(OperatorCall& op) {
  const auto a = op.attributes<Parts>();
  for (int i = 0; i < op.output_count(); ++i) {
    const Parts::Part& part = a.parts[static_cast<std::size_t>(i)];
    launch(op.context(), CopyColumns{.from = op.in(SplitColumns::kX),
                                     .to = op.out(OutputPlace(i)),
                                     .runs = part.runs,
                                     .run_count = part.run_count});
  }
}

void split_columns_backward_input(OperatorCall& op) {
  const auto a = op.attributes<Parts>();
  const auto target = op.fresh_d_in(SplitColumns::kX);
  bool all = true;
  for (int i = 0; i < op.output_count(); ++i) all = all && !op.d_out(OutputPlace(i)).absent();
  if (!all) launch(op.context(), turbo::Fill{.out = target.out, .value = 0});
  for (int i = 0; i < op.output_count(); ++i) {
    const Tensor d_part = op.d_out(OutputPlace(i));
    if (d_part.absent()) continue;
    Parts::Part part = a.parts[static_cast<std::size_t>(i)];
    for (ColumnRun& run : part.runs) {
      std::swap(run.from, run.to);
      std::swap(run.from_stride, run.to_stride);
    }
    launch(op.context(),
           CopyColumns{.from = d_part, .to = target.out, .runs = part.runs, .run_count = part.run_count});
  }
  add_previous(op, target);
}

constexpr Operator kSplitColumns{.name = "split_columns",
                                 .operator_class = OperatorClass::kAdd,
                                 .forward = split_columns_forward,
                                 .backward_input = split_columns_backward_input};

// --- gated

struct Gated {
  enum In : InputName { kX, kGate };
  enum Out : OutputName { kY };
};

void gated_forward(OperatorCall& op) {
  launch(op.context(),
         turbo::GateForward{.x = op.in(Gated::kX), .gate = op.in(Gated::kGate), .y = op.out(Gated::kY)});
}

void gated_backward_input(OperatorCall& op) {
  const auto d_x = op.fresh_d_in(Gated::kX), d_gate = op.fresh_d_in(Gated::kGate);
  launch(op.context(), turbo::GateBackward{.x = op.in(Gated::kX),
                                           .gate = op.in(Gated::kGate),
                                           .d_y = op.d_out(Gated::kY),
                                           .d_x = d_x.out,
                                           .d_gate = d_gate.out});
  add_previous(op, d_x);
  add_previous(op, d_gate);
}

constexpr Operator kGated{.name = "gated",
                          .operator_class = OperatorClass::kActivation,
                          .forward = gated_forward,
                          .backward_input = gated_backward_input,
                          .for_input = saves(Gated::kX, Gated::kGate)};

// --- gated_norm

struct GatedNormAttributes {
  turbo::GateActivation activation;
  float epsilon;
};

struct GatedNorm {
  enum In : InputName { kX, kGate };
  enum Out : OutputName { kY, kRstd };
};

void gated_norm_forward(OperatorCall& op) {
  const auto a = op.attributes<GatedNormAttributes>();
  launch(op.context(), turbo::GatedNormForward{.activation = a.activation,
                                               .x = op.in(GatedNorm::kX),
                                               .gate = op.in(GatedNorm::kGate),
                                               .weight = op.weight(),
                                               .y = op.out(GatedNorm::kY),
                                               .rstd = op.out(GatedNorm::kRstd),
                                               .eps = a.epsilon});
}

void gated_norm_backward_input(OperatorCall& op) {
  const auto d_x = op.fresh_d_in(GatedNorm::kX), d_gate = op.fresh_d_in(GatedNorm::kGate);
  launch(op.context(),
         turbo::GatedNormBackwardInput{.activation = op.attributes<GatedNormAttributes>().activation,
                                       .x = op.in(GatedNorm::kX),
                                       .gate = op.in(GatedNorm::kGate),
                                       .weight = op.weight(),
                                       .rstd = op.out(GatedNorm::kRstd),
                                       .d_y = op.d_out(GatedNorm::kY),
                                       .d_x = d_x.out,
                                       .d_gate = d_gate.out});
  add_previous(op, d_x);
  add_previous(op, d_gate);
}

void gated_norm_backward_weight(OperatorCall& op) {
  const auto [d_weight, accumulate] = op.d_weight();
  launch(op.context(),
         turbo::GatedNormBackwardWeight{.activation = op.attributes<GatedNormAttributes>().activation,
                                        .x = op.in(GatedNorm::kX),
                                        .gate = op.in(GatedNorm::kGate),
                                        .rstd = op.out(GatedNorm::kRstd),
                                        .d_y = op.d_out(GatedNorm::kY),
                                        .d_weight = d_weight,
                                        .accumulate = accumulate,
                                        .workspace = {}});
}

constexpr Operator kGatedNorm{.name = "gated_norm",
                              .operator_class = OperatorClass::kNorm,
                              .forward = gated_norm_forward,
                              .backward_input = gated_norm_backward_input,
                              .backward_weight = gated_norm_backward_weight,
                              .for_input = saves(GatedNorm::kX, GatedNorm::kGate, GatedNorm::kRstd),
                              .for_weight = saves(GatedNorm::kX, GatedNorm::kGate, GatedNorm::kRstd)};

// --- delta_gates

struct DeltaGates {
  enum In : InputName { kBa, kALog, kDtBias };
  enum Out : OutputName { kG, kBeta };
};

void delta_gates_forward(OperatorCall& op) {
  launch(op.context(), turbo::DeltaGatesForward{.ba = op.in(DeltaGates::kBa),
                                                .a_log = op.in(DeltaGates::kALog),
                                                .dt_bias = op.in(DeltaGates::kDtBias),
                                                .g = op.out(DeltaGates::kG),
                                                .beta = op.out(DeltaGates::kBeta)});
}

void delta_gates_backward_input(OperatorCall& op) {
  const Tensor ba = op.in(DeltaGates::kBa);
  const std::int64_t heads = ba.cols() / 2;
  if (op.needs_d_in(DeltaGates::kBa)) {
    const auto target = op.fresh_d_in(DeltaGates::kBa);
    launch(op.context(), turbo::DeltaGatesBackwardInput{.ba = ba,
                                                        .a_log = op.in(DeltaGates::kALog),
                                                        .dt_bias = op.in(DeltaGates::kDtBias),
                                                        .d_g = op.d_out(DeltaGates::kG),
                                                        .d_beta = op.d_out(DeltaGates::kBeta),
                                                        .d_ba = target.out});
    add_previous(op, target);
  }
  if (!op.needs_d_in(DeltaGates::kALog) && !op.needs_d_in(DeltaGates::kDtBias)) return;
  const ScratchTensor sums(op.context().scratch, DType::kF32, {2 * heads});
  launch(op.context(), turbo::DeltaGatesBackwardWeight{.ba = ba,
                                                       .a_log = op.in(DeltaGates::kALog),
                                                       .dt_bias = op.in(DeltaGates::kDtBias),
                                                       .d_g = op.d_out(DeltaGates::kG),
                                                       .d_weights = sums.get(),
                                                       .workspace = {}});
  Tensor sum = sums.get();
  for (const DeltaGates::In i : {DeltaGates::kALog, DeltaGates::kDtBias}) {
    if (op.needs_d_in(i)) {
      const auto target = op.fresh_d_in(i);
      launch(op.context(), turbo::Cast{.x = sum.slice(0, heads), .out = target.out});
      add_previous(op, target);
    }
    sum = sum.from(heads);
  }
}

constexpr Operator kDeltaGates{.name = "delta_gates",
                               .operator_class = OperatorClass::kActivation,
                               .forward = delta_gates_forward,
                               .backward_input = delta_gates_backward_input,
                               .for_input = saves(DeltaGates::kBa, DeltaGates::kALog, DeltaGates::kDtBias)};

}  // namespace

std::array<Value, 3> split_columns(const Value& x, const std::vector<ColumnRuns>& parts) {
  PRIMUS_CHECK("split_columns", !parts.empty() && parts.size() <= Entry::kMaxOutputs);
  Parts attributes{};
  std::array<std::int64_t, Entry::kMaxOutputs> columns{};
  std::int64_t all = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    PRIMUS_CHECK("split_columns", parts[i].size() <= CopyColumns::kMaxRuns);
    Parts::Part& part = attributes.parts[i];
    part.run_count = static_cast<int>(parts[i].size());
    std::ranges::copy(parts[i], part.runs.begin());
    for (const ColumnRun& run : parts[i]) columns[i] += run.size();
    all += columns[i];
  }
  PRIMUS_CHECK("split_columns", all == x.shape()[1]);
  const auto record = [&](std::initializer_list<Tape::Output> outputs) {
    return x.tape().record(kSplitColumns, {{SplitColumns::kX, x}}, nullptr, outputs, attributes).values;
  };
  const auto part = [&](OutputPlace j) {
    return Tape::Output{j, x.dtype(), Shape{x.shape()[0], columns[static_cast<std::size_t>(j.index())]}};
  };
  if (parts.size() == 1) return record({part(SplitColumns::kFirst)});
  if (parts.size() == 2) return record({part(SplitColumns::kFirst), part(SplitColumns::kSecond)});
  return record({part(SplitColumns::kFirst), part(SplitColumns::kSecond), part(SplitColumns::kThird)});
}

Value gated(const Value& x, const Value& gate) {
  return x.tape().record(kGated, {{Gated::kX, x}, {Gated::kGate, gate}}, nullptr,
                         {{Gated::kY, x.dtype(), x.shape()}})[Gated::kY];
}

Value gated_norm(const Value& x, const Value& gate, Parameter& weight, turbo::GateActivation activation,
                 double epsilon) {
  const Shape statistics{x.shape()[0], x.shape()[1] / weight.shape[0]};
  return x.tape().record(
      kGatedNorm, {{GatedNorm::kX, x}, {GatedNorm::kGate, gate}}, &weight,
      {{GatedNorm::kY, x.dtype(), x.shape()}, {GatedNorm::kRstd, DType::kF32, statistics, false}},
      GatedNormAttributes{activation, static_cast<float>(epsilon)})[GatedNorm::kY];
}

std::pair<Value, Value> delta_gates(const Value& ba, Parameter& a_log, Parameter& dt_bias) {
  Tape& tape = ba.tape();
  const Value a = parameter_values(tape, a_log), dt = parameter_values(tape, dt_bias);
  const Shape heads{ba.shape()[0], ba.shape()[1] / 2};
  Tape::Outputs gates =
      tape.record(kDeltaGates, {{DeltaGates::kBa, ba}, {DeltaGates::kALog, a}, {DeltaGates::kDtBias, dt}},
                  nullptr, {{DeltaGates::kG, DType::kF32, heads}, {DeltaGates::kBeta, DType::kF32, heads}});
  return {std::move(gates[DeltaGates::kG]), std::move(gates[DeltaGates::kBeta])};
}

}  // namespace primus::engine
