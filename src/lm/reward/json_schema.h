// Validates JSON values against JSON Schema (draft 2020-12), for untrusted values and schemas.
//
// Supported keywords: type, enum, const, properties, required, additionalProperties, patternProperties,
// propertyNames, minProperties, maxProperties, dependentRequired, items, prefixItems, contains, minItems,
// maxItems, uniqueItems, minLength, maxLength, pattern, minimum, maximum, exclusiveMinimum, exclusiveMaximum,
// multipleOf, allOf, anyOf, oneOf, not, if, then, else, $defs, definitions, and $ref within the schema.
// Keywords that describe a value without restricting it (title, format ...) have no effect. Other keywords
// are errors.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lm/reward/search_pattern.h"

namespace primus {

enum class SchemaResult : std::uint8_t {
  kValid,
  kInvalid,
  kLimit,  // the validation needs more than 1 million steps, or a pattern needs too many steps
};

// Thread-safety: validate() may be called from several threads at once.
class JsonSchema {
 public:
  // Throws Error(kInvalid) for a keyword that is not supported, a keyword with a value of the wrong type, an
  // invalid pattern, and a $ref that names no part of the schema.
  explicit JsonSchema(nlohmann::json schema);
  SchemaResult validate(const nlohmann::json& value) const;

 private:
  friend class SchemaRun;
  void check(const nlohmann::json& schema, int depth);
  void check_keyword(const std::string& key, const nlohmann::json& value, int depth);
  void add_pattern(const std::string& pattern);
  const nlohmann::json* target(const std::string& reference) const;

  nlohmann::json schema_;
  std::map<std::string, SearchPattern> patterns_;
  std::map<std::string, const nlohmann::json*> targets_;  // targets of $ref
};

}  // namespace primus
