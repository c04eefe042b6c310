// The key table: keys.def and other_keys.def as data. Parsing, validation, did-you-mean, the JSON Schema, the
// generated reference and the dumps all read this table.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/value.h"

namespace primus::config {

struct TrainerConfig;

// The frameworks in which a key has a meaning, as bits. kOther: frameworks with their own settings,
// where only keys marked .everywhere() have a counterpart.
enum class Framework : std::uint8_t { kNone = 0, kNative = 1, kMegatron = 2, kOther = 4 };

// Returns nullopt if no framework has this name (config/framework.h).
std::optional<Framework> parse_framework(std::string_view name);

enum class KeyType : std::uint8_t { kAny, kBool, kInt, kFloat, kString, kStrings, kList, kMap };
// Returns the name of the type in messages: "an integer".
std::string_view expected(KeyType type);

// The field of TrainerConfig for a key; monostate for keys without one.
using KeyField =
    std::variant<std::monostate, bool TrainerConfig::*, std::int64_t TrainerConfig::*,
                 double TrainerConfig::*, std::string TrainerConfig::*, std::optional<bool> TrainerConfig::*,
                 std::optional<std::int64_t> TrainerConfig::*, std::optional<double> TrainerConfig::*,
                 std::optional<std::string> TrainerConfig::*, std::vector<std::string> TrainerConfig::*>;

// A condition: the other key `key` has one of these values (spelled as in config files).
struct KeyCondition {
  std::string_view key;
  std::vector<std::string_view> values;
};

// How the native engine treats a key. kNone: implemented keys. All other keys have one of the other classes.
enum class KeyClass : std::uint8_t {
  kNone,      // the key is implemented
  kNoEffect,  // does not affect results or memory: logging, choices between kernels, buffer sizes
  kSaidBy,    // other keys, which KeySpec::instead names, have the meaning of this key
  kReplaced,  // the engine does KeySpec::instead; a value that requests something else causes one note per
              // key
  kRefused,   // a value outside native_values is an error, which names the key
};
std::string_view describe(KeyClass key_class);

// The items of a list.
enum class ListItems : std::uint8_t {
  kWords,      // texts; a single text is split at blanks
  kNumbers,    // numbers if they parse as numbers, and otherwise texts; a single text is split at blanks
  kWholeText,  // texts; a single text is one item, which may contain blanks
};

struct KeySpec {
  std::string_view name;
  std::string_view help;
  KeyType type = KeyType::kAny;
  KeyField field;
  std::string_view group, group_title;
  std::uint8_t frameworks = static_cast<std::uint8_t>(Framework::kMegatron);

  std::optional<double> lower, upper;
  bool lower_open = false, upper_open = false;  // true: the bound itself is excluded
  std::vector<std::string_view> choices;        // choices of a string, or of the items of a list
  std::vector<std::string_view> native_values;  // values that the native engine supports; empty: all
  std::vector<std::string_view> aliases;
  std::vector<KeyCondition> conditions;  // the key has an effect only if one of them holds; empty: always
  KeyClass native_class = KeyClass::kNone;
  std::string_view instead;  // kSaidBy: names of the other keys; kReplaced: what the engine does
  // kReplaced: values for which no note is reported, in addition to false and null
  std::vector<std::string_view> neutral_values;
  std::string_view derived_from;    // sources of the value if the key is unset
  std::string_view primus_default;  // default in AMD Primus's presets, if different
  bool is_required = false;
  bool is_no_part_of_training = false;  // does not affect training results
  ListItems items = ListItems::kWords;

  bool has_meaning_for(Framework framework) const {
    return (frameworks & static_cast<std::uint8_t>(framework)) != 0;
  }

  // Whether the key describes the model. With `load`, an unset key of this kind has the value of the loaded
  // config.json.
  bool describes_model() const {
    return group == "model" || group == "latent" || group == "compressed" || group == "moe";
  }

  // Rules of keys.def.
  KeySpec&& at_least(double x) && { return lower = x, std::move(*this); }
  KeySpec&& above(double x) && { return lower = x, lower_open = true, std::move(*this); }
  KeySpec&& at_most(double x) && { return upper = x, std::move(*this); }
  KeySpec&& below(double x) && { return upper = x, upper_open = true, std::move(*this); }
  KeySpec&& alias(std::string_view x) && { return aliases.push_back(x), std::move(*this); }
  KeySpec&& primus(std::string_view x) && { return primus_default = x, std::move(*this); }
  KeySpec&& derived(std::string_view from) && { return derived_from = from, std::move(*this); }
  template <class... Values>
  KeySpec&& with(std::string_view key, Values... values) && {
    return conditions.push_back({key, {values...}}), std::move(*this);
  }
  KeySpec&& with(std::string_view key, std::vector<std::string_view> values) && {
    return conditions.push_back({key, std::move(values)}), std::move(*this);
  }
  KeySpec&& required() && { return is_required = true, std::move(*this); }
  KeySpec&& numbers() && { return items = ListItems::kNumbers, std::move(*this); }
  KeySpec&& whole_text() && { return items = ListItems::kWholeText, std::move(*this); }
  KeySpec&& own() && { return frameworks = static_cast<std::uint8_t>(Framework::kNative), std::move(*this); }
  KeySpec&& also_native(std::string_view meaning) && {
    return help = meaning, frameworks |= static_cast<std::uint8_t>(Framework::kNative), std::move(*this);
  }
  KeySpec&& trains_the_same() && { return is_no_part_of_training = true, std::move(*this); }
  KeySpec&& not_native() && {
    frameworks &= static_cast<std::uint8_t>(~static_cast<std::uint8_t>(Framework::kNative));
    return std::move(*this).no_effect();
  }
  // Rules of other_keys.def.
  KeySpec&& no_effect() && { return native_class = KeyClass::kNoEffect, std::move(*this); }
  KeySpec&& stated_by(std::string_view keys) && {
    return native_class = KeyClass::kSaidBy, instead = keys, std::move(*this);
  }
  template <class... Values>
  KeySpec&& replaced(std::string_view by, Values... neutral) && {
    native_class = KeyClass::kReplaced;
    instead = by;
    neutral_values = {neutral...};
    return std::move(*this);
  }
  KeySpec&& everywhere() && { return frameworks = 0x07, std::move(*this); }
  template <class... Names>
  KeySpec&& one_of(Names... names) && {
    return choices = {names...}, std::move(*this);
  }
  template <class... Values>
  KeySpec&& only(Values... values) && {
    native_values = {values...};
    if (!has_meaning_for(Framework::kNative)) native_class = KeyClass::kRefused;
    return std::move(*this);
  }
};

// Returns whether two choices, or other texts of settings, are equal, ignoring case.
bool same_ignoring_case(std::string_view a, std::string_view b);

// Returns all keys, in the order of the two files.
std::span<const KeySpec> all_keys();

// Finds a key by name or alias; null if there is none.
const KeySpec* find_key(std::string_view name);

// Returns the names and aliases of all keys, sorted.
std::span<const std::string_view> key_names();
// Returns the name of the key that has this field.
std::string_view name_of_key(const KeyField& field);

// Checks type, range and choices of `value`. If the key has a field, stores `value` in the field; null
// restores the default. Throws an Error at the value's position.
void assign(const KeySpec& key, const Value& value, TrainerConfig& config);

// Throws kUnsupported at the value's position if the native engine does not support the value.
void require_native_support(const KeySpec& key, const Value& value);

// Returns whether `value` of a kReplaced key requests something that the native engine does in another way.
bool asks_for_more(const KeySpec& key, const Value& value);

// Returns the field's current value (null for an empty optional); items of number lists are numbers. The key
// must have a field.
Value current_value(const KeySpec& key, const TrainerConfig& config);
// Returns the default value of the field, as current_value() does. The key must have a field.
Value default_value(const KeySpec& key);

// Returns whether the key's field is equal in both configurations. The key must have a field.
bool same_value(const KeySpec& key, const TrainerConfig& a, const TrainerConfig& b);

// Returns whether one of the key's conditions holds and the key that this condition names has an effect, too.
// Returns true for a key without conditions.
bool has_effect(const KeySpec& key, const TrainerConfig& config);

// For the reference: describe_type returns "int", describe_range "at least 1", and describe_default
// "required", the source of a derived value, or the value.
std::string describe_type(const KeySpec& key);
std::string describe_range(const KeySpec& key);
std::string describe_default(const KeySpec& key);

}  // namespace primus::config
