#include "config/loading/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/text/utf8.h"
#include "config/experiment_keys.h"
#include "config/key_hints.h"
#include "config/keys.h"
#include "config/readers.h"

namespace primus::config {
namespace {

// A parsed setting: one argument, or an argument and the next argument, which is its value.
struct Setting {
  std::vector<std::string> path;
  Origin key_origin;
  Value value;
};

std::vector<std::string> split_path(std::string_view key) {
  std::vector<std::string> path;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = key.find('.', begin);
    std::string part(key.substr(begin, dot - begin));
    path.push_back(std::move(part));
    if (dot == std::string_view::npos) return path;
    begin = dot + 1;
  }
}

Origin argument_origin(std::string text, std::size_t column) {
  auto source = std::make_shared<Source>();
  source->name = "command line";
  source->text = std::move(text);
  source->is_file = false;
  return {std::move(source), 1, static_cast<int>(column) + 1, {}};
}

bool is_bool_key(const std::string& dotted) {
  const std::size_t dot = dotted.rfind('.');
  const KeySpec* key = find_key(dot == std::string::npos ? dotted : dotted.substr(dot + 1));
  return key && key->type == KeyType::kBool;
}

bool is_bool_text(std::string_view text) { return plain_scalar(text, {}).kind == Value::Kind::kBool; }

// Returns the end of a hint if the argument is the name of a file, which may be data.
std::string hint_for_file(const std::string& argument) {
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(argument, unreadable)) return {};
  return fmt::format("; data_path={0} names a text, and sft_dataset_name={0} conversations, pairs or prompts",
                     argument);
}

class ArgumentReader {
 public:
  explicit ArgumentReader(std::span<const std::string> arguments) : arguments_(arguments) {}

  bool done() const { return next_ == arguments_.size(); }

  Setting read() {
    const std::string& argument = arguments_[next_++];
    if (argument.size() > kMaxDocumentBytes) throw invalid("a command-line argument is too long");
    refuse_other_bytes(argument);
    const std::size_t dashes = argument.starts_with("--") ? 2 : 0;
    const std::size_t equals = argument.find('=');
    std::string key = argument.substr(dashes, equals == std::string::npos ? equals : equals - dashes);
    // Replaces dashes by underscores, since users write flags with dashes. Environment variables keep their
    // names.
    if (!key.starts_with("env.")) std::replace(key.begin(), key.end(), '-', '_');

    if (equals != std::string::npos) {
      if (equals + 1 == argument.size()) throw no_value(argument, equals, dashes, '=');
      return make(argument, dashes, key, argument.substr(equals + 1), equals + 1);
    }
    if (dashes == 0) {
      throw error_at(argument_origin(argument, 0),
                     fmt::format("'{}' is not a setting", argument.substr(0, 80)),
                     std::string("settings are key=value, --key value or --flag") + hint_for_file(argument),
                     argument.size());
    }
    const bool more = !done();
    if (is_bool_key(key) && !(more && is_bool_text(arguments_[next_]))) {
      return make(argument, dashes, key, "true", 0);
    }
    if (!more || (arguments_[next_].starts_with("--") && arguments_[next_].size() > 2)) {
      // Reports an unknown key, which is more probable than a missing value.
      if (key.find('.') == std::string::npos && !find_key(key) && !is_experiment_key(key)) {
        throw error_at(argument_origin(argument, dashes), fmt::format("unknown key '{}'", key.substr(0, 80)),
                       hint_for_unknown_key(key), key.size());
      }
      throw error_at(argument_origin(argument, dashes), fmt::format("{} needs a value", key.substr(0, 80)),
                     key == "lora" ? hint_about(key) : fmt::format("write --{} VALUE", key.substr(0, 80)),
                     key.size());
    }
    const std::string& value = arguments_[next_++];
    if (value.empty()) throw no_value(argument, argument.size(), dashes, ' ');
    refuse_other_bytes(value);
    return make(argument + " " + value, dashes, key, value, argument.size() + 1);
  }

 private:
  // Returns the error for a setting without a value. A frequent cause is an unset shell variable.
  static Error no_value(const std::string& argument, std::size_t end, std::size_t dashes, char between) {
    const std::string key = argument.substr(0, std::min<std::size_t>(end, 80));
    return error_at(argument_origin(argument, dashes), fmt::format("'{}{}' has no value", key, between),
                    fmt::format("write {0}=null to unset it, or {0}='\"\"' for an empty text", key),
                    end - dashes);
  }

  static void refuse_other_bytes(const std::string& argument) {
    if (unicode::is_valid(argument)) return;
    throw error_at(argument_origin(argument, 0), "this argument is not UTF-8 text, as settings must be",
                   "this includes file names, because Primus stores them in JSON, which must be UTF-8");
  }

  static Setting make(const std::string& shown, std::size_t key_column, const std::string& key,
                      const std::string& text, std::size_t value_column) {
    Setting setting;
    setting.path = split_path(key);
    setting.key_origin = argument_origin(shown, key_column);
    Origin value_origin = setting.key_origin;
    value_origin.column = static_cast<int>(value_column) + 1;
    const bool empty_part = std::any_of(setting.path.begin(), setting.path.end(),
                                        [](const std::string& part) { return part.empty(); });
    if (empty_part || setting.path.size() > static_cast<std::size_t>(kMaxDepth)) {
      throw error_at(setting.key_origin, fmt::format("'{}' is not a key", key.substr(0, 80)),
                     "settings are key=value, --key value or --flag");
    }
    setting.value = parse_inline(text, value_origin);
    return setting;
  }

  std::span<const std::string> arguments_;
  std::size_t next_ = 0;
};

// Stores `setting` in `root` at `path`, the last parts of the setting's own path.
void place(Value& root, const Setting& setting, std::span<const std::string> path) {
  Value nested = setting.value;
  std::size_t left = setting.path.size();  // number of parts of the path that remain
  for (std::size_t i = path.size(); i-- > 0;) {
    if (left > 0) --left;
    Origin origin = setting.key_origin;
    for (std::size_t before = 0; before < left; ++before) {
      origin.column += static_cast<int>(setting.path[before].size()) + 1;
    }
    Value map;
    map.kind = Value::Kind::kMap;
    map.origin = setting.key_origin;
    map.set(path[i], std::move(origin), std::move(nested));
    nested = std::move(map);
  }
  merge(root, nested);
}

// Returns the value as it was typed.
std::string typed_value(const Setting& setting) {
  const std::string& text = setting.key_origin.source->text;
  return text.substr(static_cast<std::size_t>(setting.value.origin.column) - 1);
}

// Collects settings that are given more than once with different values.
class Repetitions {
 public:
  void add(const Setting& setting, std::span<const std::string> path, std::vector<std::string>& notes) {
    std::string key = fmt::format("{}", fmt::join(path, "."));
    const std::string value = typed_value(setting);
    const auto [before, is_new] = values_.emplace(key, value);
    if (!is_new && before->second != value) {
      notes.push_back(fmt::format("{} is given more than once: the value {} is used, not {}", key,
                                  value.substr(0, 80), before->second.substr(0, 80)));
    }
    before->second = value;
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace

Overrides parse_overrides(std::span<const std::string> arguments) {
  Overrides result;
  result.experiment.kind = result.trainer.kind = Value::Kind::kMap;
  Repetitions repetitions;
  for (ArgumentReader reader(arguments); !reader.done();) {
    const Setting setting = reader.read();
    const std::span<const std::string> path = setting.path;
    if (path[0] == "modules" && path.size() > 3 && path[2] == "overrides") {
      result.modules.emplace_back(setting.path[1], setting.key_origin);
      place(result.trainer, setting, path.subspan(3));
      repetitions.add(setting, path.subspan(3), result.notes);
      continue;
    } else if (is_module_key(path[0]) && path.size() == 1) {
      const std::string full[] = {"modules", "*", path[0]};
      place(result.experiment, setting, full);
    } else if (is_experiment_key(path[0])) {
      place(result.experiment, setting, path);
    } else {
      place(result.trainer, setting, path);
    }
    const bool of_module = path[0] == "modules" && path.size() == 3 && is_module_key(path[2]);
    repetitions.add(setting, of_module ? path.last(1) : path, result.notes);
  }
  return result;
}

}  // namespace primus::config
