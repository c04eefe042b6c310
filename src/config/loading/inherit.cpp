#include "config/loading/inherit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <utility>

#include "base/text/suggest.h"
#include "base/text/utf8.h"
#include "config/readers.h"
#include "config/validation/not_yet.h"

namespace primus::config {
namespace fs = std::filesystem;
namespace {

// Limits the number of files. If each file of a chain extends the next file twice (a extends [b, b], b
// extends [c, c], ...), every further file doubles the work.
constexpr int kMaxFiles = 64;
// Limits the text that variables can add to one document.
constexpr std::size_t kMaxExpandedBytes = 1u << 20;

// Names may contain dashes and dots. Shells cannot export such names, but containers and `env` can, and AMD
// Primus's files may use such names.
bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
}

// Returns the position of `reference` inside the string that starts at `origin`, if `reference` is on the
// line of `origin`.
Origin place_of(const Origin& origin, std::string_view reference) {
  if (!origin.source || origin.line < 1 || !origin.source->columns_in_bytes) return origin;
  const std::string_view text = origin.source->text;
  std::size_t begin = 0;
  for (int i = 1; i < origin.line; ++i) begin = text.find('\n', begin) + 1;
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  const std::size_t found = line.find(reference, static_cast<std::size_t>(std::max(origin.column - 1, 0)));
  if (found == std::string_view::npos) return origin;
  Origin place = origin;
  place.column = static_cast<int>(found) + 1;
  return place;
}

struct Reference {
  std::string name;
  std::optional<std::string> fallback;
  std::size_t length = 0;  // length of ${...} including the braces
};

// Parses the reference at the start of `text`, which begins with "${".
Reference parse_reference(std::string_view text, const Origin& origin) {
  const std::size_t end = text.find('}');
  if (end == std::string_view::npos) {
    throw error_at(place_of(origin, "${"), "'${' without a closing '}'",
                   "write ${NAME} or ${NAME:default}, or $${ for a literal ${", 2);
  }
  Reference reference;
  reference.length = end + 1;
  const std::string_view whole = text.substr(0, end + 1), inside = text.substr(2, end - 2);
  std::size_t i = 0;
  while (i < inside.size() && is_name_char(inside[i])) ++i;
  reference.name = std::string(inside.substr(0, i));
  const bool starts_well = i > 0 && (std::isalpha(static_cast<unsigned char>(inside[0])) || inside[0] == '_');
  if (!starts_well || (i < inside.size() && inside[i] != ':')) {
    throw error_at(place_of(origin, whole),
                   fmt::format("'{}' is not the name of a variable", whole.substr(0, 80)),
                   "write ${NAME} or ${NAME:default}", whole.size());
  }
  if (i < inside.size()) {
    reference.fallback = std::string(inside.substr(i + 1));
    if (reference.fallback->starts_with('-') &&
        plain_scalar(*reference.fallback, {}).kind == Value::Kind::kString) {
      throw error_at(place_of(origin, whole),
                     fmt::format("'{}' uses ':-' as in a shell", whole.substr(0, 80)),
                     fmt::format("write the default right after the colon: ${{{}:{}}}", reference.name,
                                 reference.fallback->substr(1, 80)),
                     whole.size());
    }
  }
  return reference;
}

void expand_string(Value& value, const ReadVariable& read, std::size_t& budget) {
  std::string result, used;
  bool replaced = false;
  const std::string_view text = value.text;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t next = text.find('$', i);
    result.append(text.substr(i, next - i));
    if (next == std::string_view::npos) break;
    i = next;
    if (text.substr(i, 3) == "$${") {
      result += "${";
      i += 3;
    } else if (text.substr(i, 2) == "${") {
      const Reference reference = parse_reference(text.substr(i), value.origin);
      const std::optional<std::string> found = read(reference.name);
      if (!found && !reference.fallback) {
        const std::string whole = "${" + reference.name + "}";
        throw error_at(
            place_of(value.origin, whole), fmt::format("environment variable {} is not set", reference.name),
            fmt::format("export {}=..., or give a default: ${{{}:default}}", reference.name, reference.name),
            whole.size());
      }
      if (found && !unicode::is_valid(*found)) {
        const std::string whole(text.substr(i, reference.length));
        throw error_at(
            place_of(value.origin, whole),
            fmt::format("environment variable {} is not UTF-8 text, as settings must be", reference.name),
            "export it again from a UTF-8 terminal", whole.size());
      }
      if (found && used.empty()) used = reference.name;
      const std::string& text_of_variable = found ? *found : *reference.fallback;
      if (text_of_variable.size() > budget)
        throw error_at(value.origin, "these settings are too long after their variables are replaced",
                       "shorten the variables' values");
      budget -= text_of_variable.size();
      result += text_of_variable;
      replaced = true;
      i += reference.length;
    } else {
      result += '$';
      ++i;
    }
  }
  if (!replaced) {
    value.text = std::move(result);  // the text with its escapes replaced
    return;
  }
  Origin origin = value.origin;
  origin.variable = used;
  try {
    value = parse_inline(result, origin);
  } catch (const Error&) {
    // A text that looks quoted but cannot be parsed stays a text.
    value = Value{};
    value.kind = Value::Kind::kString;
    value.text = std::move(result);
    value.origin = origin;
  }
}

bool is_settings_file(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".yaml" || extension == ".yml" || extension == ".toml";
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Returns the settings files of `dirs`, without `except`, in order. If `name` has no extension, omits the
// files' extensions.
std::vector<std::string> settings_files(const fs::path& name, const std::vector<fs::path>& dirs,
                                        const fs::path& except) {
  std::vector<std::string> names;
  for (const fs::path& dir : dirs) {
    std::error_code error;
    for (fs::directory_iterator it(dir.empty() ? "." : dir, error), end; !error && it != end;
         it.increment(error)) {
      const fs::path& file = it->path();
      if (is_settings_file(file) && file.lexically_normal() != except.lexically_normal())
        names.push_back((is_settings_file(name) ? file.filename() : file.stem()).string());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// Returns the first file of `dirs` with this name, with or without its ending.
std::optional<fs::path> find_file(const std::string& name, const std::vector<fs::path>& dirs) {
  for (const fs::path& dir : dirs) {
    for (const char* ending : {"", ".yaml", ".toml"}) {
      const fs::path candidate = dir / (name + ending);
      std::error_code error;
      if (fs::is_regular_file(candidate, error)) return candidate.lexically_normal();
    }
  }
  return std::nullopt;
}

// Returns the hint "did you mean ..." with the closest settings file of `dirs`, without `except`.
std::string suggest_file(const fs::path& name, const std::vector<fs::path>& dirs, const fs::path& except) {
  const std::vector<std::string> names = settings_files(name, dirs, except);
  const std::vector<std::string_view> views(names.begin(), names.end());
  return did_you_mean(name.string(), views);
}

// Returns a list of the presets whose names contain `name` ("llama"), with names that begin with `name`
// first; "" if no name contains it.
std::string presets_containing(const std::string& name, const std::vector<fs::path>& dirs,
                               const fs::path& except) {
  constexpr std::size_t kFewestLetters = 3, kMax = 12;
  if (name.size() < kFewestLetters) return "";
  const std::string wanted = lower(name);
  std::vector<std::string> found;
  for (std::string& preset : settings_files(name, dirs, except)) {
    const bool is_part = preset.ends_with("_base");  // a base that other presets extend
    if (!is_part && lower(preset).find(wanted) != std::string::npos) found.push_back(std::move(preset));
  }
  std::stable_partition(found.begin(), found.end(),
                        [&](const std::string& preset) { return lower(preset).starts_with(wanted); });
  if (found.empty()) return "";
  const std::size_t shown = std::min(found.size(), kMax);
  return fmt::format("presets with '{}' in their names: {}{}", name,
                     fmt::join(std::span(found).first(shown), ", "),
                     found.size() > shown ? fmt::format(" and {} more", found.size() - shown) : "");
}

void expand_tree(Value& value, const ReadVariable& read, std::size_t& budget) {
  if (value.kind == Value::Kind::kString) return expand_string(value, read, budget);
  for (Value& item : value.items) expand_tree(item, read, budget);
  for (Member& member : value.members) expand_tree(member.value, read, budget);
}

// Adds each variable that the text uses as ${VAR} or ${VAR:default} to `names`.
void collect_variables(const Value& value, std::set<std::string>& names) {
  if (value.kind == Value::Kind::kString) {
    const std::string_view text = value.text;
    for (std::size_t i = text.find("${"); i != std::string_view::npos; i = text.find("${", i + 2)) {
      const bool escaped = i > 0 && text[i - 1] == '$';
      if (!escaped) names.insert(parse_reference(text.substr(i), value.origin).name);
    }
  }
  for (const Value& item : value.items) collect_variables(item, names);
  for (const Member& member : value.members) collect_variables(member.value, names);
}

}  // namespace

void expand_variables(Value& value, const ReadVariable& read) {
  std::size_t budget = kMaxExpandedBytes;
  expand_tree(value, read, budget);
}

std::shared_ptr<const Source> SettingsFiles::read(const fs::path& path) {
  std::shared_ptr<const Source>& source = sources_[path];
  if (!source) source = read_source(path);
  return source;
}

Value FileLoader::load(const fs::path& path) {
  return load(read_document(settings_files_->read(path)), path);
}

Value FileLoader::load(const std::shared_ptr<const Source>& source) {
  return load(read_document(source), source->name);
}

Value FileLoader::load(Value document, const fs::path& path) {
  std::error_code error;
  if (first_.empty()) first_ = path;
  loaded_.insert(path);
  fs::path canonical = fs::weakly_canonical(path, error);
  chain_.push_back(error ? path : std::move(canonical));
  ++files_;
  // Skips env, where "NAME: ${NAME:default}" gives a variable a default.
  for (const Member& member : document.members)
    if (member.key != "env") collect_variables(member.value, variables_);
  expand_variables(document, read_variable_);
  apply_extends(document, path);
  chain_.pop_back();
  return document;
}

void FileLoader::apply_extends(Value& document, const fs::path& path) {
  const Value* extends = document.find("extends");
  if (!extends) return;
  const std::vector<Value> names = extends->is_list() ? extends->items : std::vector<Value>{*extends};
  Value merged;
  merged.kind = Value::Kind::kMap;
  merged.origin = document.origin;
  for (const Value& name : names) {
    if (name.kind != Value::Kind::kString || name.text.empty()) {
      throw error_at(name.origin, fmt::format("extends expects file names, not {}", name.show()),
                     "write extends: FILE.yaml, or a list of files", name.width());
    }
    fs::path target = path.parent_path() / name.text;
    std::error_code error;
    if (!fs::exists(target, error) && !fs::path(name.text).has_parent_path()) {
      if (const auto preset = find_file(name.text, extended_dirs_)) target = *preset;
    }
    // Reads only regular files, because a pipe or a terminal could block forever.
    if (!fs::is_regular_file(target, error)) {
      const std::string hint = suggest_file(target.filename(), {target.parent_path()}, path);
      throw error_at(name.origin,
                     fmt::format("'{}' {}", target.string(),
                                 fs::exists(target, error) ? "is not a file" : "does not exist"),
                     hint.empty() ? "paths are relative to the file that has 'extends'" : hint, name.width());
    }
    const fs::path canonical = fs::weakly_canonical(target, error);
    if (const auto again = std::find(chain_.begin(), chain_.end(), canonical); again != chain_.end()) {
      std::string cycle;
      for (auto it = again; it != chain_.end(); ++it) cycle += it->filename().string() + " > ";
      throw error_at(name.origin, "extends forms a cycle: " + cycle + canonical.filename().string(),
                     "remove one of them", name.width());
    }
    if (files_ >= kMaxFiles) {
      throw error_at(name.origin, fmt::format("extends reaches more than {} files", kMaxFiles),
                     "extend fewer files", name.width());
    }
    merge(merged, load(target));
  }
  std::erase_if(document.members, [](const Member& member) { return member.key == "extends"; });
  merge(merged, document);
  document = std::move(merged);
}

std::vector<fs::path> FileLoader::preset_folders(std::string_view kind, std::string_view framework) const {
  std::vector<fs::path> dirs;
  for (const fs::path& root : preset_dirs_) {
    dirs.push_back(root / kind / framework);
    dirs.push_back(root / kind);
    // AMD Primus has one folder of presets per engine. The native engine also uses Megatron-LM's presets,
    // because both have the same keys.
    if (framework == "native") dirs.push_back(root / kind / "megatron");
  }
  return dirs;
}

Value FileLoader::load_preset(const Value& name, std::string_view kind, std::string_view framework,
                              const fs::path& experiment_dir) {
  const fs::path file = find_preset(name, kind, framework, experiment_dir);
  extended_dirs_ = preset_folders(kind, framework);
  Value preset = load(file);
  extended_dirs_.clear();
  return preset;
}

fs::path FileLoader::find_preset(const Value& name, std::string_view kind, std::string_view framework,
                                 const fs::path& experiment_dir) const {
  std::vector<fs::path> dirs = {experiment_dir};
  for (fs::path& dir : preset_folders(kind, framework)) dirs.push_back(std::move(dir));
  if (const auto file = find_file(name.text, dirs)) return *file;
  // TorchTitan's configurations write sizes with a lower-case b: qwen3_4b. Therefore the comparison ignores
  // case. The names of presets never differ only in case, because some file systems could not hold both
  // files.
  for (const fs::path& dir : dirs) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(dir.empty() ? "." : dir, error)) {
      const std::string file = lower(entry.path().filename().string()), wanted = lower(name.text);
      const bool same = file == wanted || file == wanted + ".yaml" || file == wanted + ".toml";
      if (same && entry.is_regular_file(error)) return entry.path().lexically_normal();
    }
  }
  if (const std::string_view reason = kind == "models" ? reason_without_preset(name.text) : "";
      !reason.empty()) {
    Error error = unsupported(fmt::format("there is no model preset {}: {}", name.show(), reason),
                              "PRIMUS_PRESETS=FOLDER adds a folder with your own presets");
    throw error.at(name.origin.location(), name.origin.snippet(name.width()));
  }
  std::string hint = kind == "models" ? presets_containing(name.text, dirs, first_) : "";
  if (hint.empty()) hint = suggest_file(name.text, dirs, first_);
  if (hint.empty()) {
    std::vector<std::string> searched;
    for (const fs::path& dir : dirs) {
      std::error_code error;
      if (dir.empty() || fs::is_directory(dir, error)) searched.push_back(dir.empty() ? "." : dir.string());
    }
    hint = fmt::format("looked in {}", fmt::join(searched, ", "));
  }
  throw error_at(name.origin,
                 fmt::format("there is no {} preset {}", kind == "models" ? "model" : "module", name.show()),
                 std::move(hint), name.width());
}

std::vector<fs::path> default_preset_dirs(const ReadVariable& read) {
  std::vector<fs::path> dirs;
  // Skips a folder that is already in the list. A folder can be listed twice if the program runs from its
  // build folder.
  const auto add = [&](const fs::path& dir) {
    const fs::path normal = dir.lexically_normal();
    if (std::find(dirs.begin(), dirs.end(), normal) == dirs.end()) dirs.push_back(normal);
  };
  std::error_code error;
  if (const auto chosen = read("PRIMUS_PRESETS"); chosen && !chosen->empty()) {
    if (!fs::is_directory(*chosen, error)) {
      throw invalid(fmt::format("PRIMUS_PRESETS names the folder '{}', which does not exist", *chosen),
                    "correct the path, or unset PRIMUS_PRESETS to use the program's own presets");
    }
    add(*chosen);
  }
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path prefix = program.parent_path().parent_path();
    add(prefix / "share" / "primus" / "presets");
    add(prefix.parent_path() / "presets");
  }
  add(PRIMUS_SOURCE_PRESETS);
  return dirs;
}

}  // namespace primus::config
