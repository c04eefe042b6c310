#include "engine/operators/row_adapters.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "engine/operators/row_adapter_tables.h"

namespace primus::engine {
namespace {

struct CopiedRows {
  enum In : InputName { kAll, kRows };  // kAll is absent if all rows are copied from kRows
  enum Out : OutputName { kY };
  // Rows [begin, end) of kRows are copied to row `to` of the output.
  std::int64_t begin, end, to;

  static void forward(OperatorCall& op) {
    const auto a = op.attributes<CopiedRows>();
    const Tensor y = op.out(kY), from = op.in(kRows).slice(a.begin, a.end),
                 to = y.slice(a.to, a.to + a.end - a.begin);
    if (op.context().measuring()) return;
    if (op.has_in(kAll)) {
      const Tensor all = op.in_or_out(kAll, kY);
      if (all.data != y.data) op.context().stream.copy_on_device(y.data, all.data, all.bytes());
    }
    op.context().stream.copy_on_device(to.data, from.data, from.bytes());
  }
};

constexpr Operator kRowsOf{
    .name = "rows_of", .operator_class = OperatorClass::kLinear, .forward = CopiedRows::forward};
constexpr Operator kReplaceRows{.name = "replace_rows",
                                .operator_class = OperatorClass::kLinear,
                                .forward = CopiedRows::forward,
                                .in_place = true};

// Returns a copy of the rows for which a run's adapters are computed.
Value rows_of(const Value& x, const AdapterRun& run) {
  const Shape shape = x.shape().rank() == 1 ? Shape{run.count} : Shape{run.count, x.shape()[1]};
  return x.tape().record(kRowsOf, {{CopiedRows::kRows, x}}, nullptr, {{CopiedRows::kY, x.dtype(), shape}},
                         CopiedRows{run.first, run.first + run.count, 0})[CopiedRows::kY];
}

// Replaces the rows of a run by those that were computed for it.
Value replace_rows(const Value& all, const Value& computed, const AdapterRun& run) {
  return all.tape().record(kReplaceRows, {{CopiedRows::kAll, all}, {CopiedRows::kRows, computed}}, nullptr,
                           {{CopiedRows::kY, all.dtype(), all.shape()}},
                           CopiedRows{run.begin - run.first, run.end - run.first, run.begin})[CopiedRows::kY];
}

bool is_adapted(const Parameter& weight) { return weight.low_rank || !weight.low_rank.parts.empty(); }

}  // namespace

void RowAdapters::add(ParameterStore& base, ParameterStore& model) {
  std::unordered_map<std::string_view, const Parameter*> by_name;
  for (const Parameter& p : base.parameters()) by_name.emplace(p.name, &p);
  for (Parameter& p : model.parameters()) {
    if (!is_adapted(p)) continue;
    std::vector<Parameter*>& models = adapted_[by_name.at(p.name)];
    models.resize(models_ + 1);
    models[models_] = &p;
  }
  ++models_;
}

Parameter* RowAdapters::of(const Parameter& base, std::size_t model) const {
  const auto found = adapted_.find(&base);
  return found != adapted_.end() && model < found->second.size() ? found->second[model] : nullptr;
}

bool RowAdapterPass::adapts(const Parameter& weight) const {
  return (tables && tables->of(weight)) || std::ranges::any_of(runs, [&](const AdapterRun& run) {
           return adapters.of(weight, run.model) != nullptr;
         });
}

bool adapts_rows(const Tape& tape, const Parameter& weight) {
  return tape.row_adapters() && tape.row_adapters()->adapts(weight);
}

Value with_row_adapters(Value y, const Value& x, const Parameter& weight,
                        FunctionRef<Value(Value y, const Value& x, Parameter& weight)> apply) {
  const RowAdapterPass* const pass = y.tape().row_adapters();
  if (!pass) return y;
  PRIMUS_CHECK("with_row_adapters", !y.tape().training());
  if (const RowAdapterTables::Table* const table = pass->tables ? pass->tables->of(weight) : nullptr)
    return add_row_adapters(y, x, *table, pass->models);
  for (const AdapterRun& run : pass->runs) {
    Parameter* const own = pass->adapters.of(weight, run.model);
    if (!own) continue;
    y = replace_rows(y, apply(rows_of(y, run), rows_of(x, run), *own), run);
  }
  return y;
}

}  // namespace primus::engine
