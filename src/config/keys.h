// The key table: what keys.def and other_keys.def say, as data. Parsing, validation, did-you-mean, the JSON
// Schema, the generated reference and the dumps all read this one table.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/trainer_config.h"
#include "config/value.h"

namespace primus::config {

// The frameworks that our keys have a meaning for, as bits. kOther: those with settings of their own, which
// have a counterpart of the keys that say .everywhere().
enum class Framework : std::uint8_t { kNone = 0, kNative = 1, kMegatron = 2, kOther = 4 };

// Nothing for a name that is no framework's (config/framework.h).
std::optional<Framework> parse_framework(std::string_view name);

enum class KeyType : std::uint8_t { kAny, kBool, kInt, kFloat, kString, kStrings, kList, kMap };
// What a value of the type is called in messages: "an integer".
std::string_view expected(KeyType type);

// The field of TrainerConfig behind a key; monostate for keys without one.
using KeyField =
    std::variant<std::monostate, bool TrainerConfig::*, std::int64_t TrainerConfig::*,
                 double TrainerConfig::*, std::string TrainerConfig::*, std::optional<bool> TrainerConfig::*,
                 std::optional<std::int64_t> TrainerConfig::*, std::optional<double> TrainerConfig::*,
                 std::optional<std::string> TrainerConfig::*, std::vector<std::string> TrainerConfig::*>;

// Another key, and values of it (as config files have them).
struct KeyCondition {
  std::string_view key;
  std::vector<std::string_view> values;
};

// How the native engine treats a key that it does not implement. Every such key has one class.
enum class KeyClass : std::uint8_t {
  kNone,      // it has a meaning
  kNoEffect,  // results and memory are the same whatever it says: logging, choices between kernels, sizes of
              // buffers
  kSaidBy,    // other keys say the same here: KeySpec::instead names them
  kReplaced,  // something else happens: KeySpec::instead, which is said once for each key that asks for more
  kRefused,   // values but native_values are refused by name
};
std::string_view describe(KeyClass key_class);

struct KeySpec {
  std::string_view name;
  std::string_view help;
  KeyType type = KeyType::kAny;
  KeyField field;
  std::string_view group, group_title;
  std::uint8_t frameworks = static_cast<std::uint8_t>(Framework::kMegatron);

  std::optional<double> lower, upper;
  bool lower_open = false, upper_open = false;  // the bound itself is excluded
  std::vector<std::string_view> choices;        // of a string, or of the items of a list
  std::vector<std::string_view> native_values;  // all that the native engine can do today; empty: everything
  std::vector<std::string_view> aliases;
  std::vector<KeyCondition> conditions;  // one of them must hold, or the key has no effect; none: always
  KeyClass native_class = KeyClass::kNone;
  std::string_view instead;                      // of kSaidBy: names of keys; of kReplaced: what happens
  std::vector<std::string_view> neutral_values;  // of kReplaced: besides false and null, what changes nothing
  std::string_view derived_from;                 // filled in from other keys when unset
  std::string_view primus_default;               // of Primus's presets, where it is not the one here
  bool is_required = false;
  bool is_no_part_of_training = false;  // whatever it says, the same is trained
  bool holds_numbers = false;  // a list whose items are numbers where they read as such, and not text

  bool has_meaning_for(Framework framework) const {
    return (frameworks & static_cast<std::uint8_t>(framework)) != 0;
  }

  // The rules of keys.def.
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
  KeySpec&& required() && { return is_required = true, std::move(*this); }
  KeySpec&& numbers() && { return holds_numbers = true, std::move(*this); }
  KeySpec&& own() && { return frameworks = static_cast<std::uint8_t>(Framework::kNative), std::move(*this); }
  KeySpec&& also_native(std::string_view meaning) && {
    return help = meaning, frameworks |= static_cast<std::uint8_t>(Framework::kNative), std::move(*this);
  }
  KeySpec&& trains_the_same() && { return is_no_part_of_training = true, std::move(*this); }
  KeySpec&& not_native() && {
    frameworks &= static_cast<std::uint8_t>(~static_cast<std::uint8_t>(Framework::kNative));
    return std::move(*this).no_effect();
  }
  // The rules of other_keys.def.
  KeySpec&& no_effect() && { return native_class = KeyClass::kNoEffect, std::move(*this); }
  KeySpec&& said_by(std::string_view keys) && {
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

// Choices and text of settings are compared so.
bool same_ignoring_case(std::string_view a, std::string_view b);

// Every key, in the order of the two files.
std::span<const KeySpec> all_keys();

// By name or alias; null when there is none.
const KeySpec* find_key(std::string_view name);

// Names and aliases of all keys, sorted.
std::span<const std::string_view> key_names();

// Checks type, range and choices of `value` and, when the key has a field, puts it there; null restores the
// default. Throws an Error at the value's place.
void assign(const KeySpec& key, const Value& value, TrainerConfig& config);

// Throws kUnsupported at the value's place when the native engine cannot do what it asks.
void require_native_support(const KeySpec& key, const Value& value);

// Whether `value` of a key of class kReplaced asks for what the native engine does in another way.
bool asks_for_more(const KeySpec& key, const Value& value);

// The field's present value (null for an empty optional), with numbers in lists of numbers. The key must have
// a field.
Value current_value(const KeySpec& key, const TrainerConfig& config);

// Whether the key's field is the same in both. The key must have a field.
bool same_value(const KeySpec& key, const TrainerConfig& a, const TrainerConfig& b);

// Whether one of the key's conditions holds, by a key that has an effect itself; true where it has none.
bool has_effect(const KeySpec& key, const TrainerConfig& config);

// For the reference: "int"; "at least 1"; "required", what it is derived from, or the value.
std::string describe_type(const KeySpec& key);
std::string describe_range(const KeySpec& key);
std::string describe_default(const KeySpec& key);

}  // namespace primus::config
