#include "engine/operators/row_adapter_tables.h"

#include <algorithm>
#include <ranges>
#include <span>
#include <vector>

namespace primus::engine {
namespace {

using turbo::AddRowAdapters;
using turbo::RowAdapter;

struct AddedAdapters {
  enum In : InputName { kAll, kX };
  enum Out : OutputName { kY };
  Tensor table, models;
  std::int64_t low_columns;

  static void forward(OperatorCall& op) {
    const auto a = op.attributes<AddedAdapters>();
    const Tensor y = op.out(kY), all = op.in_or_out(kAll, kY);
    if (all.data != y.data && !op.context().measuring())
      op.context().stream.copy_on_device(y.data, all.data, all.bytes());
    turbo::launch(op.context(), AddRowAdapters{.x = op.in(kX),
                                               .y = y,
                                               .models = a.models,
                                               .table = a.table,
                                               .low_columns = a.low_columns,
                                               .workspace = {}});
  }
};

constexpr Operator kAddRowAdapters{.name = "add_row_adapters",
                                   .operator_class = OperatorClass::kLinear,
                                   .forward = AddedAdapters::forward,
                                   .in_place = true};

// Returns the adapters of a weight; empty if the weight is null.
std::span<const LowRank> adapters_of(const Parameter* weight) {
  if (!weight) return {};
  if (weight->low_rank) return {&weight->low_rank, 1};
  return weight->low_rank.parts;
}

bool has_table(const Parameter& base, std::span<Parameter* const> models) {
  return !base.vocabulary && std::ranges::all_of(models, [](const Parameter* weight) {
    return std::ranges::none_of(adapters_of(weight), [](const LowRank& a) { return a.magnitude; });
  });
}

// Sets the entries of a model's adapters. Returns the number of columns of their products with A. `table`:
// the address of the table.
std::int64_t set_entries(std::span<const LowRank> adapters, const void* table,
                         std::span<RowAdapter> entries) {
  const auto address = [&](const Parameter* matrix) {
    return matrix
               ? reinterpret_cast<std::intptr_t>(matrix->value.data) - reinterpret_cast<std::intptr_t>(table)
               : 0;
  };
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const LowRank& a = adapters[i];
    entries[i] = {.down = address(a.down),
                  .up = address(a.up),
                  .bias = address(a.bias),
                  .first = a.first,
                  .columns = a.up->shape[0],
                  .low = columns,
                  .rank = a.up->shape[1],
                  .scale = a.scale};
    columns += (entries[i].rank + RowAdapter::kLowMultiple - 1) / RowAdapter::kLowMultiple *
               RowAdapter::kLowMultiple;
  }
  return columns;
}

}  // namespace

RowAdapterTables::RowAdapterTables(Rank& rank, Phase& phase, const RowAdapters& adapters) {
  const bool taken = turbo::is_taken(rank.device(), AddRowAdapters{});
  std::size_t parts = 1;
  for (const auto& [base, models] : adapters.adapted()) {
    if (!taken || !has_table(*base, models)) {
      complete_ = false;
      continue;
    }
    tables_.try_emplace(base);
    for (const Parameter* weight : models) parts = std::max(parts, adapters_of(weight).size());
  }
  if (tables_.empty()) return;
  models_ = phase.tensor(DType::kI32, {AddRowAdapters::kMaxRows});
  const std::size_t entries_of_table = adapters.models() * parts;
  const auto rows = static_cast<std::int64_t>(adapters.models()), cols = static_cast<std::int64_t>(parts);
  const Tensor all = phase.tensor(DType::kI64, {std::ssize(tables_) * rows, cols, RowAdapter::kWords});
  std::vector<RowAdapter> entries(tables_.size() * entries_of_table);
  std::int64_t number = 0;
  for (auto& [base, table] : tables_) {
    table.entries = all.slice(number * rows, (number + 1) * rows);
    const std::span<RowAdapter> own =
        std::span(entries).subspan(static_cast<std::size_t>(number++) * entries_of_table, entries_of_table);
    const std::vector<Parameter*>& models = adapters.adapted().at(base);
    for (std::size_t model = 0; model < models.size(); ++model) {
      const std::int64_t columns =
          set_entries(adapters_of(models[model]), table.entries.data, own.subspan(model * parts, parts));
      table.low_columns = std::max(table.low_columns, columns);
    }
  }
  if (rank.measuring()) return;
  rank.compute().copy_to_device(all.data, entries.data(), all.bytes());
  rank.compute().synchronize();  // the entries are freed
}

const RowAdapterTables::Table* RowAdapterTables::of(const Parameter& weight) const {
  const auto found = tables_.find(&weight);
  return found == tables_.end() ? nullptr : &found->second;
}

Value add_row_adapters(const Value& y, const Value& x, const RowAdapterTables::Table& table,
                       const Tensor& models) {
  return y.tape().record(kAddRowAdapters, {{AddedAdapters::kAll, y}, {AddedAdapters::kX, x}}, nullptr,
                         {{AddedAdapters::kY, y.dtype(), y.shape()}},
                         AddedAdapters{table.entries, models, table.low_columns})[AddedAdapters::kY];
}

}  // namespace primus::engine
