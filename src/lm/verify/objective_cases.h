// Shared code for the cases of all objectives (verify_objective.h): texts, batches and comparisons.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lm/checkpoint/safetensors.h"
#include "lm/data/batch.h"
#include "lm/verify/verify_objective.h"

namespace primus {

// A text of the batch, and which of its tokens are learned.
struct Text {
  std::vector<std::int32_t> ids;
  std::vector<bool> learned;
  data::DocumentRole role = data::DocumentRole::kNone;
  float value = 0;  // Batch::document_values
  // ln p of each token of `ids`; empty: the batch has no such values.
  std::vector<float> old_log_probs = {}, sampled_log_probs = {};
};

// Returns the values of an integer tensor [rows, columns] or [rows].
std::vector<std::vector<std::int64_t>> integers(const SafetensorsFile& file, const std::string& name);
// Returns the values of an fp32 tensor [rows, columns].
std::vector<std::vector<float>> numbers(const SafetensorsFile& file, const std::string& name);

// Returns a token id as the type of batches. Throws an Error, which names `where`, for numbers that are no
// id.
std::int32_t token_id(std::int64_t value, const std::string& where);

// Packs all texts into one row.
data::Batch batch_of(const std::vector<Text>& texts, std::int64_t vocab, const std::string& where);

// Adds the comparison of a loss or a metric to the case.
void compare_number(ObjectiveCase& c, std::string name, double value, double reference, double limit);
// Adds the comparison of a norm.
void compare_norm(ObjectiveCase& c, std::string name, double value, double reference, double limit);
// Adds the comparison of a tensor with the fp32 tensor `key` of the file.
void compare_tensor(ObjectiveCase& c, std::string name, const std::vector<float>& values,
                    const SafetensorsFile& file, const std::string& key, double limit);

}  // namespace primus
