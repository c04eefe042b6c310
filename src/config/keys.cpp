#include "config/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/text/suggest.h"
#include "config/framework.h"
#include "config/key_hints.h"
#include "config/loading/elsewhere.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/not_yet.h"

namespace primus::config {
namespace {

template <class T>
constexpr KeyType key_type() {
  if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>) return KeyType::kBool;
  if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::optional<std::int64_t>>)
    return KeyType::kInt;
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>) return KeyType::kFloat;
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return KeyType::kStrings;
  return KeyType::kString;
}

template <class T>
KeySpec native_key(std::string_view name, T TrainerConfig::*field, std::string_view help) {
  KeySpec spec;
  spec.name = name;
  spec.help = help;
  spec.type = key_type<T>();
  spec.field = field;
  spec.frameworks =
      static_cast<std::uint8_t>(Framework::kNative) | static_cast<std::uint8_t>(Framework::kMegatron);
  return spec;
}

class Table {
 public:
  Table() {
    fill_native();
    fill_others();
    for (const KeySpec& key : keys_) {
      index_.emplace(key.name, &key);
      for (std::string_view alias : key.aliases) index_.emplace(alias, &key);
    }
    for (const auto& [name, key] : index_) names_.push_back(name);
    std::sort(names_.begin(), names_.end());
  }

  std::span<const KeySpec> keys() const { return keys_; }
  std::span<const std::string_view> names() const { return names_; }
  const KeySpec* find(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : found->second;
  }

 private:
  void open_group(std::string_view id, std::string_view title) {
    group_ = id;
    title_ = title;
  }
  void add(KeySpec key) {
    key.group = group_;
    key.group_title = title_;
    keys_.push_back(std::move(key));
  }

  void fill_native() {
#define GROUP(id, title) open_group(#id, title);
// In KEY, the rules after the help text are chained calls on the new KeySpec.
#define KEY(type, name, fallback, help, ...) add(native_key(#name, &TrainerConfig::name, help) __VA_ARGS__);
#include "config/keys.def"
#undef KEY
#undef GROUP
  }

  void fill_others() {
    const auto other_key = [](KeyType type, std::string_view name) {
      KeySpec key;
      key.name = name;
      key.type = type;
      return key;
    };
#define OTHER_GROUP(id, title) open_group(#id, title);
#define OTHER(kind, name, ...) add(other_key(KeyType::kind, #name) __VA_ARGS__);
#include "config/other_keys.def"
#undef OTHER
#undef OTHER_GROUP
  }

  std::vector<KeySpec> keys_;
  std::unordered_map<std::string_view, const KeySpec*> index_;
  std::vector<std::string_view> names_;
  std::string_view group_, title_;
};

const Table& table() {
  static const Table instance;
  return instance;
}

// Returns whether the text begins like a list or map but lacks a closing bracket. A pattern such as
// [0]*3+[1]*58 lacks no bracket.
bool is_open_list(const Value& value) {
  const std::string& text = value.text;
  if (value.kind != Value::Kind::kString || value.quoted || !(text.starts_with('[') || text.starts_with('{')))
    return false;
  return std::ranges::count(text, '[') != std::ranges::count(text, ']') ||
         std::ranges::count(text, '{') != std::ranges::count(text, '}');
}

[[noreturn]] void refuse_type(const KeySpec& key, const Value& value) {
  std::string hint;
  if (value.kind == Value::Kind::kString) {
    const Value unquoted = plain_scalar(value.text, value.origin);
    const bool number = unquoted.kind == Value::Kind::kInt || unquoted.kind == Value::Kind::kFloat;
    if (value.quoted && ((number && (key.type == KeyType::kInt || key.type == KeyType::kFloat)) ||
                         (unquoted.kind == Value::Kind::kBool && key.type == KeyType::kBool))) {
      hint = "remove the quotes";
    }
  }
  if (is_open_list(value)) {
    throw error_at(value.origin,
                   fmt::format("{} expects {}, but {} is not closed, or is not valid", key.name,
                               expected(key.type), value.show()),
                   "close every bracket and quote, and put the argument in quotes for the shell",
                   value.width());
  }
  if (hint.empty() && key.type == KeyType::kBool) hint = "write true or false";
  if (key.name == "sft_dataset_name" && value.is_list()) {
    hint =
        "name one file, or a folder with train-1.jsonl, train-2.jsonl, ...; "
        "'cat A.jsonl B.jsonl > ALL.jsonl' joins files";
  }
  if (hint.empty()) hint = hint_about(key.name);
  throw error_at(value.origin,
                 fmt::format("{} expects {}, not {}", key.name, expected(key.type), value.show()),
                 std::move(hint), value.width());
}

// Accepts 0 and 1 for false and true, since AMD Primus's experiments use them.
bool to_bool(const KeySpec& key, const Value& value) {
  if (value.kind == Value::Kind::kBool) return value.boolean;
  if (value.kind == Value::Kind::kInt && (value.integer == 0 || value.integer == 1))
    return value.integer == 1;
  refuse_type(key, value);
}

// 2^53: a double represents all smaller integers exactly.
constexpr double kExactIntegers = 9007199254740992.0;

std::int64_t to_integer(const KeySpec& key, const Value& value) {
  if (value.kind == Value::Kind::kInt) return value.integer;
  // Accepts a float with an integer value, such as 1e6.
  if (value.kind == Value::Kind::kFloat && value.real == std::floor(value.real) &&
      std::abs(value.real) <= kExactIntegers) {
    return static_cast<std::int64_t>(value.real);
  }
  refuse_type(key, value);
}

void check_range(const KeySpec& key, const Value& value) {
  const double x = value.real;
  const bool low = key.lower && !(key.lower_open ? x > *key.lower : x >= *key.lower);
  const bool high = key.upper && !(key.upper_open ? x < *key.upper : x <= *key.upper);
  if (!low && !high && std::isfinite(x)) return;
  std::string range = describe_range(key);
  throw error_at(value.origin,
                 fmt::format("{} is {}; it must be {}", key.name, value.show(),
                             range.empty() || (!low && !high) ? "finite" : range),
                 hint_about(key.name), value.width());
}

// Returns "fp32, bf16" if the native engine supports all choices; otherwise lists the remaining choices
// separately: "fp32, bf16 (with other frameworks also fp16)".
std::string describe_choices(const KeySpec& key) {
  std::vector<std::string_view> native, others;
  for (const std::string_view choice : key.choices) {
    const bool has = key.native_values.empty() || std::ranges::count(key.native_values, choice) > 0;
    (has ? native : others).push_back(choice);
  }
  if (native.empty() || others.empty()) return fmt::format("{}", fmt::join(key.choices, ", "));
  return fmt::format("{} (with other frameworks also {})", fmt::join(native, ", "), fmt::join(others, ", "));
}

// Returns the text of a string key. Numbers are kept as written (exp_name: 2024); booleans are an error.
std::string to_text(const KeySpec& key, const Value& value) {
  if (!value.is_scalar() || value.is_null() || value.kind == Value::Kind::kBool) refuse_type(key, value);
  if (key.choices.empty()) return value.text;
  for (std::string_view choice : key.choices) {
    if (same_ignoring_case(choice, value.text)) return std::string(choice);
  }
  if (const std::string_view reason = reason_without_value(key.name, value.text); !reason.empty()) {
    throw unsupported(fmt::format("{} {}: {}", key.name, value.show(), reason),
                      fmt::format("set {} to one of {}", key.name, describe_choices(key)))
        .at(value.origin.location(), value.origin.snippet(value.width()));
  }
  const std::string near = did_you_mean(value.text, key.choices);
  const std::string hint = near.empty() ? hint_about(key.name) : near;
  throw error_at(value.origin,
                 fmt::format("{} is {}; it must be one of {}", key.name, value.show(), describe_choices(key)),
                 key.name == "stage" ? answer_for(value.text).value_or(hint) : hint, value.width());
}

// Returns whether a file, a folder, or the pair PATH.bin and PATH.idx exists.
bool is_data(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error) || std::filesystem::exists(path + ".idx", error);
}

// Splits a text into words. In a data path, words separated by blanks are one path if a file of this name
// exists.
std::vector<std::string> words_of(const std::string& text, bool paths) {
  constexpr const char* kBlanks = " \t\n";
  std::vector<std::string> words;
  for (std::size_t begin = 0; (begin = text.find_first_not_of(kBlanks, begin)) != std::string::npos;) {
    std::size_t end = std::min(text.find_first_of(kBlanks, begin), text.size());
    for (std::size_t stop = text.find_last_not_of(kBlanks) + 1; paths && stop > end;
         stop = text.find_last_not_of(kBlanks, text.find_last_of(kBlanks, stop - 1)) + 1) {
      if (is_data(text.substr(begin, stop - begin))) end = stop;
    }
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

std::vector<std::string> to_texts(const KeySpec& key, const Value& value) {
  std::vector<std::string> texts;
  if (value.is_list()) {
    for (const Value& item : value.items) texts.push_back(to_text(key, item));
  } else if (value.is_scalar() && key.choices.empty()) {
    if (is_open_list(value)) refuse_type(key, value);
    const std::string text = to_text(key, value);
    if (key.items == ListItems::kWholeText && !text.empty()) return {text};
    // One string may hold several words, as on Megatron's command line: "0.3 a 0.7 b".
    texts = words_of(text, key.name.ends_with("data_path"));
  } else {
    if (!value.is_scalar()) refuse_type(key, value);
    texts.push_back(to_text(key, value));
  }
  return texts;
}

// Checks type, range and choices of a key without a field.
void check_other(const KeySpec& key, const Value& value) {
  const auto require = [&](bool fits) {
    if (!fits) refuse_type(key, value);
  };
  switch (key.type) {
    case KeyType::kBool:
      to_bool(key, value);
      return;
    case KeyType::kInt:
      to_integer(key, value);
      return;
    case KeyType::kFloat:
      return require(value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat);
    case KeyType::kString:
      to_text(key, value);
      return;
    case KeyType::kStrings:
      to_texts(key, value);
      return;
    case KeyType::kList:
      return require(value.is_list());
    case KeyType::kMap:
      return require(value.is_map());
    case KeyType::kAny:
      return;
  }
}

template <class T>
struct BareType {
  using type = T;
};
template <class T>
struct BareType<std::optional<T>> {
  using type = T;
};

}  // namespace

std::string_view expected(KeyType type) {
  switch (type) {
    case KeyType::kBool:
      return "true or false";
    case KeyType::kInt:
      return "an integer";
    case KeyType::kFloat:
      return "a number";
    case KeyType::kString:
      return "text";
    case KeyType::kStrings:
      return "a list of text";
    case KeyType::kList:
      return "a list";
    case KeyType::kMap:
      return "a map";
    case KeyType::kAny:
      return "a value";
  }
  return "a value";
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::optional<Framework> parse_framework(std::string_view name) {
  const FrameworkEntry* entry = find_framework(name);
  return entry ? std::optional(entry->keys) : std::nullopt;
}

std::span<const KeySpec> all_keys() { return table().keys(); }

const KeySpec* find_key(std::string_view name) { return table().find(name); }

std::span<const std::string_view> key_names() { return table().names(); }

std::string_view name_of_key(const KeyField& field) {
  const auto keys = all_keys();
  const auto key = std::ranges::find(keys, field, &KeySpec::field);
  PRIMUS_CHECK("config::name_of_key", key != keys.end());
  return key->name;
}

void assign(const KeySpec& key, const Value& value, TrainerConfig& config) {
  static const TrainerConfig defaults;
  std::visit(
      [&](auto field) {
        using Field = decltype(field);
        if constexpr (std::is_same_v<Field, std::monostate>) {
          if (!value.is_null()) check_other(key, value);
        } else if (value.is_null()) {
          config.*field = defaults.*field;
        } else {
          using T = typename BareType<std::remove_reference_t<decltype(config.*field)>>::type;
          if constexpr (std::is_same_v<T, bool>) {
            config.*field = to_bool(key, value);
          } else if constexpr (std::is_same_v<T, std::int64_t>) {
            const std::int64_t number = to_integer(key, value);
            check_range(key, value);
            config.*field = number;
          } else if constexpr (std::is_same_v<T, double>) {
            if (value.kind != Value::Kind::kInt && value.kind != Value::Kind::kFloat) refuse_type(key, value);
            check_range(key, value);
            config.*field = value.real + 0.0;  // avoids negative zero, which would be written as -0 and read
                                               // back as the integer 0
          } else if constexpr (std::is_same_v<T, std::string>) {
            config.*field = to_text(key, value);
          } else {
            config.*field = to_texts(key, value);
          }
        }
      },
      key.field);
}

std::string_view describe(KeyClass key_class) {
  switch (key_class) {
    case KeyClass::kNone:
      return "has an effect";
    case KeyClass::kNoEffect:
      return "no effect on results or memory";
    case KeyClass::kSaidBy:
      return "set by other keys";
    case KeyClass::kReplaced:
      return "replaced";
    case KeyClass::kRefused:
      return "other values are refused";
  }
  return "";
}

bool asks_for_more(const KeySpec& key, const Value& value) {
  if (key.native_class != KeyClass::kReplaced || value.is_null()) return false;
  const auto is_neutral = [&](std::string_view text) {
    const Value neutral = plain_scalar(text, {});
    if (key.type == KeyType::kBool) return to_bool(key, value) == neutral.boolean;
    return value.is_scalar() && same_ignoring_case(value.text, text);
  };
  // `false` is the only neutral value of a boolean key that lists no neutral values.
  if (key.type == KeyType::kBool && key.neutral_values.empty()) return !is_neutral("false");
  return std::ranges::none_of(key.neutral_values, is_neutral);
}

void require_native_support(const KeySpec& key, const Value& value) {
  if (key.native_values.empty() || value.is_null()) return;
  if (value.is_list() && value.items.empty()) return;
  if (value.is_map()) {
    const Value* enabled = value.find("enabled");
    if (value.members.empty() || (enabled && enabled->kind == Value::Kind::kBool && !enabled->boolean))
      return;
  }
  for (std::string_view text : key.native_values) {
    const Value allowed = plain_scalar(text, {});
    if (key.type == KeyType::kBool && to_bool(key, value) == allowed.boolean) return;
    const bool both_numbers = allowed.kind >= Value::Kind::kInt && allowed.kind <= Value::Kind::kFloat &&
                              value.kind >= Value::Kind::kInt && value.kind <= Value::Kind::kFloat;
    if (both_numbers ? allowed.real == value.real
                     : value.is_scalar() && same_ignoring_case(value.text, allowed.text)) {
      return;
    }
  }
  const bool none = key.native_values.front() == "null";
  const std::string_view reason = reason_without_value(key.name, value.text);
  Error error = unsupported(
      !reason.empty() ? fmt::format("{} is {}: {}", key.name, value.show(), reason)
      : none ? fmt::format("the native engine does not support {} (here it is {})", key.name, value.show())
             : fmt::format("{} is {}; the native engine supports only {}", key.name, value.show(),
                           fmt::join(key.native_values, ", ")),
      hint_for_unsupported(key, value.text));
  throw error.at(value.origin.location(), value.origin.snippet(value.width()));
}

Value current_value(const KeySpec& key, const TrainerConfig& config) {
  Value value;
  const auto set_scalar = [](Value& target, const auto& x) {
    using T = std::decay_t<decltype(x)>;
    if constexpr (std::is_same_v<T, std::string>) {
      target.kind = Value::Kind::kString;
      target.quoted = true;
      target.text = x;
    } else {
      target = plain_scalar(fmt::format("{}", x), {});
    }
  };
  std::visit(
      [&](auto field) {
        if constexpr (!std::is_same_v<decltype(field), std::monostate>) {
          const auto& x = config.*field;
          using T = std::decay_t<decltype(x)>;
          if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            value.kind = Value::Kind::kList;
            for (const std::string& text : x) {
              Value& item = value.items.emplace_back();
              if (key.items == ListItems::kNumbers)
                item = plain_scalar(text, {});
              else
                set_scalar(item, text);
            }
          } else if constexpr (std::is_same_v<T, typename BareType<T>::type>) {
            set_scalar(value, x);
          } else if (x) {
            set_scalar(value, *x);
          }
        }
      },
      key.field);
  return value;
}

Value default_value(const KeySpec& key) { return current_value(key, TrainerConfig{}); }

bool same_value(const KeySpec& key, const TrainerConfig& a, const TrainerConfig& b) {
  return std::visit(
      [&](auto field) {
        if constexpr (std::is_same_v<decltype(field), std::monostate>)
          return true;
        else
          return a.*field == b.*field;
      },
      key.field);
}

bool has_effect(const KeySpec& key, const TrainerConfig& config) {
  const auto holds = [&config](const KeyCondition& condition) {
    const KeySpec& other = *find_key(condition.key);
    const Value value = current_value(other, config);
    return std::ranges::find(condition.values, value.text) != condition.values.end() &&
           has_effect(other, config);
  };
  return key.conditions.empty() || std::ranges::any_of(key.conditions, holds);
}

std::string describe_type(const KeySpec& key) {
  switch (key.type) {
    case KeyType::kBool:
      return "bool";
    case KeyType::kInt:
      return "int";
    case KeyType::kFloat:
      return "float";
    case KeyType::kString:
      return "string";
    case KeyType::kStrings:
      return key.items == ListItems::kNumbers ? "list of numbers" : "list of strings";
    case KeyType::kList:
      return "list";
    case KeyType::kMap:
      return "map";
    case KeyType::kAny:
      return "any";
  }
  return "any";
}

std::string describe_range(const KeySpec& key) {
  std::string low, high;
  if (key.lower) low = fmt::format("{} {}", key.lower_open ? "above" : "at least", *key.lower);
  if (key.upper) high = fmt::format("{} {}", key.upper_open ? "below" : "at most", *key.upper);
  if (low.empty() || high.empty()) return low + high;
  return low + " and " + high;
}

std::string describe_default(const KeySpec& key) {
  if (key.is_required) return "required";
  if (!key.derived_from.empty()) return std::string(key.derived_from);
  const Value value = default_value(key);
  if (value.is_null()) return "null";
  if (!value.is_list()) return value.text;
  std::string text = "[";
  for (const Value& item : value.items) text += (text.size() > 1 ? ", " : "") + item.text;
  return text + "]";
}

}  // namespace primus::config
