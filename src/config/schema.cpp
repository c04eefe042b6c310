// Writes the key table as a JSON Schema for editors, and as docs/config.md for readers.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/experiment.h"
#include "config/experiment_keys.h"
#include "config/framework.h"
#include "config/keys.h"

namespace primus::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLineWidth = 118;  // width of lists in docs/config.md

// For every type of key, the schema also allows text with a variable, and null, which unsets the key.
constexpr std::string_view kVariablePattern = "\\$\\{[A-Za-z_][A-Za-z0-9_.-]*(:[^}]*)?\\}";

Json strings(const std::vector<std::string_view>& texts) {
  Json list = Json::array();
  for (std::string_view text : texts) list.push_back(std::string(text));
  return list;
}

// Returns the JSON Schema of the value, without null and variables.
Json value_schema(const KeySpec& key) {
  Json schema;
  switch (key.type) {
    case KeyType::kBool:
      schema["type"] = "boolean";
      break;
    case KeyType::kInt:
      schema["type"] = "integer";
      break;
    case KeyType::kFloat:
      schema["type"] = "number";
      break;
    case KeyType::kString:
      if (key.choices.empty())
        schema["type"] = Json::array({"string", "number"});
      else
        schema["enum"] = strings(key.choices);
      break;
    case KeyType::kStrings: {
      Json item;
      if (key.choices.empty())
        item["type"] = Json::array({"string", "number"});
      else
        item["enum"] = strings(key.choices);
      schema["anyOf"] = Json::array({item, Json{{"type", "array"}, {"items", item}}});
      break;
    }
    case KeyType::kList:
      schema["type"] = "array";
      break;
    case KeyType::kMap:
      schema["type"] = "object";
      break;
    case KeyType::kAny:
      break;
  }
  if (key.lower) schema[key.lower_open ? "exclusiveMinimum" : "minimum"] = *key.lower;
  if (key.upper) schema[key.upper_open ? "exclusiveMaximum" : "maximum"] = *key.upper;
  return schema;
}

Json key_schema(const KeySpec& key) {
  Json schema;
  if (!key.help.empty())
    schema["description"] = std::string(key.help);
  else
    schema["description"] = fmt::format(
        "{}; {}", key.group_title,
        key.native_values.empty()
            ? "no effect in the native engine"
            : fmt::format("the native engine accepts only {}", fmt::join(key.native_values, ", ")));
  if (!std::holds_alternative<std::monostate>(key.field) && !key.is_required && key.derived_from.empty()) {
    const Value value = default_value(key);
    if (value.kind == Value::Kind::kString) schema["default"] = value.text;
    if (value.kind == Value::Kind::kBool) schema["default"] = value.boolean;
    if (value.kind == Value::Kind::kInt) schema["default"] = value.integer;
    if (value.kind == Value::Kind::kFloat) schema["default"] = value.real;
  }
  const Json value = value_schema(key);
  if (!value.is_null()) schema["anyOf"] = Json::array({value, {{"$ref", "#/$defs/unset"}}});
  return schema;
}

Json described(const ExperimentKey& key, Json schema) {
  schema["description"] = std::string(key.help);
  return schema;
}

Json required_of(const auto& keys) {
  Json names = Json::array();
  for (const ExperimentKey& key : keys) {
    if (key.required) names.push_back(std::string(key.name));
  }
  return names;
}

Json text_or_number() { return {{"type", Json::array({"string", "number"})}}; }

Json extends_schema() {
  return {
      {"anyOf", Json::array({{{"type", "string"}}, {{"type", "array"}, {"items", {{"type", "string"}}}}})}};
}

Json module_schema() {
  Json schema = {{"type", "object"}, {"additionalProperties", false}};
  Json& properties = schema["properties"];
  for (const ExperimentKey& key : kModuleKeys) {
    Json value = {{"type", Json::array({"string", "null"})}};
    if (key.name == "framework") {
      Json frameworks = Json::array();
      for (std::string_view name : framework_names()) frameworks.push_back(std::string(name));
      value = {{"anyOf", Json::array({{{"enum", frameworks}}, {{"$ref", "#/$defs/unset"}}})}};
    }
    // Omits anyOf for null: with anyOf, editors report an inner error for the entire map.
    if (key.name == "overrides") value = {{"$ref", "#/$defs/trainer"}};
    properties[std::string(key.name)] = described(key, value);
  }
  return schema;
}

std::string code(std::string_view text) { return fmt::format("`{}`", text); }

// Escapes '|', which would end a table cell.
std::string cell(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// Returns the default, and AMD Primus's default if it differs.
std::string default_text(const KeySpec& key) {
  const bool is_value = !key.is_required && key.derived_from.empty() && describe_default(key) != "null";
  std::string text = is_value ? code(describe_default(key)) : cell(describe_default(key));
  if (!key.primus_default.empty()) text += fmt::format(" (Primus: {})", cell(key.primus_default));
  return text;
}

std::string type_text(const KeySpec& key) {
  std::string text = describe_type(key);
  if (const std::string range = describe_range(key); !range.empty()) text += ", " + range;
  if (!key.choices.empty()) text += fmt::format(": {}", fmt::join(key.choices, ", "));
  return cell(text);
}

std::string frameworks_text(const KeySpec& key) {
  std::string text;
  for (std::string_view name : engine_names()) {
    if (key.has_meaning_for(*parse_framework(name))) text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

// Returns "only `false`", or empty.
std::string only_text(const KeySpec& key) {
  if (key.native_values.empty()) return {};
  std::vector<std::string> values;
  for (const std::string_view value : key.native_values) values.push_back(code(value));
  return fmt::format("only {}", fmt::join(values, ", "));
}

std::string meaning_text(const KeySpec& key) {
  std::string text = cell(key.help);
  if (!key.native_values.empty()) text += ". Native: " + only_text(key);
  for (std::string_view alias : key.aliases) text += fmt::format(". Also {}", code(alias));
  return text;
}

// Returns how the native engine treats a key, for the reference.
std::string natively(const KeySpec& key) {
  switch (key.native_class) {
    case KeyClass::kSaidBy:
      return fmt::format("set by {}", key.instead);
    case KeyClass::kRefused:
      return only_text(key) + "; other values are refused";
    case KeyClass::kReplaced:
      return key.neutral_values.empty()
                 ? cell(key.instead)
                 : fmt::format("{} (no note for {})", cell(key.instead),
                               code(fmt::format("{}", fmt::join(key.neutral_values, ", "))));
    case KeyClass::kNone:
      return cell(key.help);
    case KeyClass::kNoEffect:
      break;
  }
  return std::string(describe(key.native_class));
}

// Returns "`a` (bool), `b` (int)", wrapped to kLineWidth.
std::string list_of(const std::vector<const KeySpec*>& keys) {
  std::string text;
  std::size_t column = 0;
  for (const KeySpec* key : keys) {
    const std::string item = fmt::format("{} ({})", code(key->name), describe_type(*key));
    if (column > 0) {
      const bool wrap = column + item.size() + 3 > kLineWidth;
      text += wrap ? ",\n" : ", ";
      column = wrap ? 0 : column + 2;
    }
    text += item;
    column += item.size();
  }
  return text;
}

// Returns the keys of other_keys.def by group: a table of keys that need an explanation, and a list of the
// other keys.
std::string keys_without_meaning() {
  std::string text =
      "\n"
      "## Keys without a field in the native engine\n\n"
      "These keys occur in AMD Primus's Megatron presets and experiments, and the Megatron back end passes "
      "them on. The native engine treats each in one of these ways:\n\n"
      "* **no effect**: the key changes neither results nor memory. A note lists the ones that are set.\n"
      "* **set by** other keys, which have this meaning here.\n"
      "* **replaced**: the engine does something else. A note says what, if an experiment or the command "
      "line sets the key.\n"
      "* **refused**: values other than the neutral ones would change the model, training, data or memory "
      "needs. They are an error with the key's name and place.\n";
  const std::span<const KeySpec> keys = all_keys();
  for (auto at = keys.begin(); at != keys.end();) {
    const auto end = std::find_if(at, keys.end(), [&](const KeySpec& key) { return key.group != at->group; });
    std::string rows;
    std::vector<const KeySpec*> harmless;
    for (const KeySpec& key : std::span(at, end)) {
      if (!std::holds_alternative<std::monostate>(key.field)) continue;
      if (key.native_class == KeyClass::kNoEffect) {
        harmless.push_back(&key);
      } else {
        rows += fmt::format("| {} | {} | {} |\n", code(key.name), describe_type(key), natively(key));
      }
    }
    if (!rows.empty() || !harmless.empty()) text += fmt::format("\n### {} (not native)\n", at->group_title);
    if (!rows.empty()) text += "\n| Key | Type | Natively |\n|---|---|---|\n" + rows;
    if (!harmless.empty()) text += "\nNo effect: " + list_of(harmless) + "\n";
    at = end;
  }
  return text;
}

template <class Keys>
std::string experiment_table(const Keys& keys) {
  std::string text = "| Key | Required | Meaning |\n|---|---|---|\n";
  for (const ExperimentKey& key : keys) {
    text += fmt::format("| {} | {} | {} |\n", code(key.name), key.required ? "yes" : "no", key.help);
  }
  return text;
}

// The reference contains this text, because users of AMD Primus look for these differences next to the keys.
constexpr std::string_view kDifferences = R"(
## Where this differs from AMD Primus

| Here | AMD Primus |
|---|---|
| Unknown keys are refused | Files: they are merged in and do nothing. Command line: refused |
| `lr: 1e-5` and `lr=1e-5` are numbers, `${X:null}` is null | `1e-5` is text in files, and before v26.8 on the command line; `null` from a variable is text |
| `None` is null everywhere | `None` is null on the command line, and text in files |
| `yes`, `no`, `on`, `off` are text | They are booleans (YAML 1.1) |
| A number with leading zeros is text, and so is 12:30; `-.5` is a number (YAML 1.2) | `007` is 7, 12:30 is 750, `-.5` is text (YAML 1.1) |
| `${X:[1, 2]}` is a list, `${X:}` is null | Both are text |
| On the command line `key=[a, true]` is a list, `key='"12"'` is the text 12, `~` and `null` are null | Lists must be Python's (`["a", True]`); everything else is text, quotes included |
| A key given twice is refused | The last value is used |
| `bases:` and `includes:` are refused | `bases:` is silently ignored |
| `--flag d.e=3` sets both | The flag takes `d.e=3` as its value |
| A list that is not closed (`data_path=[0,`) is refused | It is the text `[0,` |
| The default of a variable cannot contain a brace, and `:-` is refused | `:-x` is the default `-x` |
| `norm_epsilon` is used, or `layernorm_epsilon` if that is set | Only `layernorm_epsilon` is used |
| `model_type: mamba` with the `spec` of a hybrid becomes `gated_deltanet` or `kda`, and `num_layers` counts its blocks (models.md) | Mixers and feed-forwards count as separate layers |
| `moe_router_dtype: null` computes the router in fp32 | It computes the router in the model's type |
| `router_logit_softcapping` caps the router's logits, and their gradients include the slope of the cap | A kernel outside autograd overwrites the logits, so gradients lack the slope |
| `final_logit_softcapping` caps the output logits | No code reads the key, so it has no effect |
| `deterministic_mode` is true by default, and covers the native engine's products, attention and sums | False by default, with faster kernels that are not deterministic |
| A `data_path` that overrides the file turns off `mock_data: true` | The run trains on mock data |
| `--data_path PATH` is training data, as `data_path=PATH`; the folder of data sets is the variable `DATA_PATH` | `--data_path DIR` of `train` is that folder, and `data_path=PATH` is training data |
| If a file has several modules, `train pretrain` runs `pre_trainer`, and a note lists the others | It runs `pre_trainer` without a note |
| The resolved configuration can be exported and loaded again | `--export_config` writes nothing |
| `grad_reduce_in_bf16` sends gradients in bf16 and keeps them in fp32; `main_grads_dtype: bf16` also keeps them in bf16 | It does both |
| `data_parallel_sharding_strategy` needs no other key | It works only with `use_megatron_fsdp` |
| `optimizer_cpu_offload: true` is refused | It keeps optimizer states in host memory |
| `patch_zero_bubble` always means ZB-H1 | With `zero_bubble_max_pending_backward: auto` it may use up to ZB-H2 |
| `recompute_modules: [mlp]` recomputes the activation function of MLPs, which is cheap; products are not repeated | It recomputes the whole MLP, which saves more memory |
| `auto_continue_train` works, and is on by default | It is accepted and has no effect |
| In the native engine, `save: null` means `checkpoints/` in the output folder, and a note says so. For Megatron-LM it means that no checkpoint is written | It means that no checkpoint is written |
| TensorBoard events are on by default | They are off by default |
| Presets hold the published models' values | Llama 3.1 and later lack rope scaling, 3.2 is untied, 405B has 8192 positions |

The tables above show defaults that differ ("Primus: ..."), and `config show --origin` marks them.

## Limits

Keys that other programs have and this page does not list are errors, with the nearest key as a suggestion.
Commands check more than types and ranges: `primus config validate` reports keys that exclude each other.
)";

}  // namespace

std::string json_schema() {
  Json trainer = {{"type", Json::array({"object", "null"})}, {"additionalProperties", false}};
  Json& keys = trainer["properties"];
  for (const KeySpec& key : all_keys()) {
    keys[std::string(key.name)] = key_schema(key);
    for (std::string_view alias : key.aliases) keys[std::string(alias)] = key_schema(key);
  }

  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Primus experiment"},
               {"type", "object"},
               {"additionalProperties", false}};
  Json& properties = root["properties"];
  for (const ExperimentKey& key : kExperimentKeys) {
    Json value = text_or_number();
    if (key.name == "extends") value = extends_schema();
    if (key.name == "env") value = {{"type", "object"}, {"additionalProperties", Json::object()}};
    if (key.name == "platform") value = {{"type", Json::array({"object", "null"})}};
    if (key.name == "modules") {
      value = {{"type", "object"},
               {"minProperties", 1},
               {"patternProperties", {{"trainer", {{"$ref", "#/$defs/module"}}}}}};
    }
    properties[std::string(key.name)] = described(key, value);
  }
  // A file that extends another file may inherit all required keys.
  root["anyOf"] =
      Json::array({{{"required", required_of(kExperimentKeys)}}, {{"required", Json::array({"extends"})}}});
  root["$defs"]["unset"] = {
      {"description", "null unsets the key; text with ${VARIABLE} is replaced before types are checked"},
      {"anyOf",
       Json::array({{{"type", "null"}}, {{"type", "string"}, {"pattern", std::string(kVariablePattern)}}})}};
  root["$defs"]["module"] = module_schema();
  root["$defs"]["trainer"] = std::move(trainer);
  return root.dump(2) + "\n";
}

std::string markdown_reference() {
  std::string text =
      "# Configuration reference\n\n"
      "This page is for users who write experiments, and lists every key.\n"
      "[formats/experiment.md](formats/experiment.md) says how files are written and merged. The page is\n"
      "generated from `src/config/keys/` and `src/config/other_keys.def`; a test keeps it current (run\n"
      "`PRIMUS_UPDATE_DOCS=1 build/tests/config_test` to rewrite it).\n\n"
      "## Experiment\n\n";
  text += experiment_table(kExperimentKeys);
  text += "\n## Module (`modules.pre_trainer`)\n\n";
  text += experiment_table(kModuleKeys);
  text +=
      "\n## Trainer keys (`modules.pre_trainer.overrides`, presets, command line)\n\n"
      "`null` unsets a key. Names and meanings are Megatron-LM's where Megatron-LM has the key.\n"
      "After \"Native: only\" come the values that the native engine accepts; it refuses other values by "
      "name.\n";
  std::string_view group;
  for (const KeySpec& key : all_keys()) {
    if (std::holds_alternative<std::monostate>(key.field)) continue;
    if (key.group != group) {
      group = key.group;
      text +=
          fmt::format("\n### {}\n\n| Key | Type | Default | Frameworks | Meaning |\n|---|---|---|---|---|\n",
                      key.group_title);
    }
    text += fmt::format("| {} | {} | {} | {} | {} |\n", code(key.name), type_text(key), default_text(key),
                        frameworks_text(key), meaning_text(key));
  }
  text += keys_without_meaning();
  text += kDifferences;
  return text;
}

}  // namespace primus::config
