// schema:COLUMN or schema:FILE: the answer is JSON that a JSON schema accepts.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "base/text/json_text.h"
#include "lm/reward/answer_text.h"
#include "lm/reward/column_reward.h"
#include "lm/reward/json_schema.h"
#include "lm/reward/reward_entry.h"
#include "lm/reward/reward_json.h"

namespace primus {
namespace {

Reward schema_reward(const JsonSchema& schema, const ScoredAnswer& answer) {
  const std::string_view text = after_thoughts(answer.completion);
  bool is_json = false;
  const nlohmann::json value = bounded_json(trimmed(last_code_block(text).value_or(text)), is_json);
  if (!is_json) return reward_if(false);
  const SchemaResult result = schema.validate(value);
  if (result == SchemaResult::kLimit) {
    return {.value = {}, .problem = "the validation of this answer needs too many steps"};
  }
  return reward_if(result == SchemaResult::kValid);
}

// Scores with the schema in a column, which is an object or its JSON text.
Reward column_schema_reward(const std::string& column, const ScoredAnswer& answer) {
  Reward reward;
  const nlohmann::json* const found = find_column(answer, column, reward.problem);
  if (found == nullptr) return reward;
  bool is_json = true;
  const nlohmann::json schema =
      found->is_string() ? bounded_json(found->get<std::string>(), is_json) : *found;
  if (!is_json) {
    reward.problem = fmt::format("the column '{}' is no JSON", printable(column));
    return reward;
  }
  try {
    return schema_reward(JsonSchema(schema), answer);
  } catch (const Error& error) {
    reward.problem = error.what();
    return reward;
  }
}

std::unique_ptr<RewardFunction> make_schema(const RewardText& text, const RewardSettings& settings) {
  const auto file = (std::filesystem::path(settings.folder) / text.argument).lexically_normal();
  const bool names_file = text.argument.ends_with(".json") || text.argument.find('/') != std::string::npos;
  if (!names_file) {
    return make_answer_reward("schema", [column = text.argument](const ScoredAnswer& answer) {
      return column_schema_reward(column, answer);
    });
  }
  std::shared_ptr<const JsonSchema> schema;
  try {
    schema = std::make_shared<const JsonSchema>(parse_json_object(read_file(file), file.string()));
  } catch (Error& error) {
    if (error.location().empty()) error.at(file.string());
    throw;
  }
  return make_answer_reward("schema",
                            [schema](const ScoredAnswer& answer) { return schema_reward(*schema, answer); });
}

}  // namespace

extern const RewardEntry kSchemaReward{"schema", "schema:COLUMN or schema:FILE.json",
                                       "1 if the answer is JSON that the schema accepts", make_schema};

}  // namespace primus
