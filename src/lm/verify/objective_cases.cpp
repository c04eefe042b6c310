#include "lm/verify/objective_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace primus {

// Returns the values of an integer tensor [rows, columns] or [rows].
std::vector<std::vector<std::int64_t>> integers(const SafetensorsFile& file, const std::string& name) {
  const auto tensor = file.find(name);
  if (!tensor) throw invalid("tensor '" + name + "' is missing").at(file.name());
  if (tensor->dtype != DType::kI64 || tensor->shape.empty() || tensor->shape.size() > 2)
    throw invalid("tensor '" + name + "' must be int64 [rows, columns]").at(file.name());
  const auto rows = static_cast<std::size_t>(tensor->shape[0]);
  const auto columns = tensor->shape.size() == 2 ? static_cast<std::size_t>(tensor->shape[1]) : 1;
  std::vector<std::vector<std::int64_t>> values(rows, std::vector<std::int64_t>(columns));
  for (std::size_t row = 0; row < rows && columns > 0; ++row)
    std::memcpy(values[row].data(), tensor->data.data() + 8 * row * columns, 8 * columns);
  return values;
}

std::vector<std::vector<float>> numbers(const SafetensorsFile& file, const std::string& name) {
  const auto tensor = file.find(name);
  if (!tensor) throw invalid("tensor '" + name + "' is missing").at(file.name());
  if (tensor->dtype != DType::kF32 || tensor->shape.size() != 2)
    throw invalid("tensor '" + name + "' must be fp32 [rows, columns]").at(file.name());
  const auto rows = static_cast<std::size_t>(tensor->shape[0]);
  const auto columns = static_cast<std::size_t>(tensor->shape[1]);
  std::vector<std::vector<float>> values(rows, std::vector<float>(columns));
  for (std::size_t row = 0; row < rows && columns > 0; ++row)
    std::memcpy(values[row].data(), tensor->data.data() + 4 * row * columns, 4 * columns);
  return values;
}

std::int32_t token_id(std::int64_t value, const std::string& where) {
  if (value < 0 || value > INT32_MAX) throw invalid(fmt::format("{} is not a token id", value)).at(where);
  return static_cast<std::int32_t>(value);
}

// Packs all texts into one row.
data::Batch batch_of(const std::vector<Text>& texts, std::int64_t vocab, const std::string& where) {
  data::Batch batch;
  const bool has_old = !texts.front().old_log_probs.empty();
  const bool has_sampled = !texts.front().sampled_log_probs.empty();
  for (const Text& text : texts) {
    batch.document_starts.push_back(static_cast<std::int32_t>(batch.tokens.size()));
    batch.document_roles.push_back(text.role);
    batch.document_values.push_back(text.value);
    for (std::size_t t = 0; t < text.ids.size(); ++t) {
      if (text.ids[t] >= vocab)
        throw invalid(fmt::format("input id {} is outside the vocabulary of {}", text.ids[t], vocab))
            .at(where);
      const bool last = t + 1 == text.ids.size();
      batch.tokens.push_back(text.ids[t]);
      batch.labels.push_back(last ? 0 : text.ids[t + 1]);
      batch.loss_mask.push_back(!last && text.learned[t + 1] ? 1.0F : 0.0F);
      batch.positions.push_back(static_cast<std::int32_t>(t));
      const bool learned = batch.loss_mask.back() != 0;
      if (has_old) batch.old_log_probs.push_back(learned ? text.old_log_probs[t + 1] : 0.0F);
      if (has_sampled) batch.sampled_log_probs.push_back(learned ? text.sampled_log_probs[t + 1] : 0.0F);
    }
  }
  batch.document_starts.push_back(static_cast<std::int32_t>(batch.tokens.size()));
  return batch;
}

void compare_number(ObjectiveCase& c, std::string name, double value, double reference, double limit) {
  const double error = std::abs(value - reference) / std::max(std::abs(reference), 1.0);
  c.checks.push_back({std::move(name), value, reference, error, limit});
}
void compare_norm(ObjectiveCase& c, std::string name, double value, double reference, double limit) {
  const double difference = std::abs(value - reference);
  const double error = difference == 0 ? 0 : difference / std::abs(reference);
  c.checks.push_back({std::move(name), value, reference, error, limit});
}
void compare_tensor(ObjectiveCase& c, std::string name, const std::vector<float>& values,
                    const SafetensorsFile& file, const std::string& key, double limit) {
  const auto found = file.find(key);
  if (!found) throw invalid("tensor '" + key + "' is missing").at(file.name());
  const TensorView& expected = *found;
  if (expected.dtype != DType::kF32 || expected.data.size() != 4 * values.size())
    throw invalid(fmt::format("tensor '{}' must be fp32 with {} elements", key, values.size()))
        .at(file.name());
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    float b = 0;
    std::memcpy(&b, expected.data.data() + 4 * i, 4);
    const double d = std::abs(static_cast<double>(values[i]) - static_cast<double>(b));
    // std::max() would drop a NaN in its second argument.
    difference = std::isnan(d) ? d : std::max(difference, d);
    largest = std::max(largest, std::abs(static_cast<double>(b)));
    if (std::isnan(difference)) break;
  }
  const double error = difference == 0 ? 0 : difference / largest;
  c.checks.push_back({std::move(name), difference, largest, error, limit});
}

}  // namespace primus
