// Tensors of generated answers in checkpoints (kept_answers.h, answers_ahead.h). Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/train/objectives/rollouts/rollouts.h"

namespace primus {

// Returns the error that the answer with this number has impossible values in a checkpoint.
Error impossible_answer(const CheckpointReader& checkpoint, std::int64_t number);

// A tensor [answers, columns] of which a rank has some rows.
template <class T>
struct SavedTable {
  SavedTable(std::int64_t rows, std::int64_t columns) : width(columns) {
    values.resize(static_cast<std::size_t>(rows * columns));
  }
  std::span<T> row(std::int64_t index) {
    return std::span(values).subspan(static_cast<std::size_t>(index * width),
                                     static_cast<std::size_t>(width));
  }
  std::int64_t width;
  std::vector<T> values;
};

// Returns the tensor [answers, columns] of a checkpoint. `held`: the number of the answer of each row of the
// table, ascending.
template <class T>
TensorSource saved_tensor(std::string name, DType dtype, std::int64_t answers, SavedTable<T> table,
                          std::span<const std::int64_t> held) {
  TensorSource source;
  source.name = std::move(name);
  source.dtype = dtype;
  source.shape = {answers, table.width};
  HeldRuns runs;
  for (const std::int64_t number : held)
    runs.push_back({.begin = number * table.width, .length = table.width});
  source.runs = std::move(runs);
  const auto kept = std::make_shared<const std::vector<T>>(std::move(table.values));
  source.fill = [kept](std::uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), std::as_bytes(std::span(*kept)).data() + offset, out.size());
  };
  return source;
}

// Reads a whole tensor [answers, columns]. Empty if the checkpoint has no such tensor.
template <class T>
std::optional<SavedTable<T>> read_table(const CheckpointReader& checkpoint, std::string_view name,
                                        DType dtype, std::int64_t answers, std::int64_t columns) {
  const std::optional<TensorView> saved = checkpoint.find(TensorPart::kOptimizer, name);
  const std::array shape = {answers, columns};
  if (!saved || !std::ranges::equal(saved->shape, shape)) return std::nullopt;
  SavedTable<T> table(answers, columns);
  checkpoint.read(TensorPart::kOptimizer, name, dtype, shape,
                  std::as_writable_bytes(std::span(table.values)));
  return table;
}

// Returns the number of columns of the texts of answers for rows of `sequence` tokens.
std::int64_t text_columns(std::int64_t sequence);
// Writes record, prompt, answer and `finished` of an answer into a row of a table of texts.
void write_text(const Rollout& answer, std::span<std::int32_t> row);
// Reads an answer. `number`: its number, for messages. Throws impossible_answer() if its tokens do not fit
// into a row of `sequence` tokens or are not below `vocab`.
Rollout read_text(const CheckpointReader& checkpoint, std::int64_t number, std::span<const std::int32_t> row,
                  std::int64_t sequence, std::int64_t vocab);

}  // namespace primus
