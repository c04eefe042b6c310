#include "cli/use/adapters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/suggest.h"

namespace primus::cli {
namespace {

// Returns the folders of NAME=FOLDER.
std::vector<std::string> folders_of(const std::vector<std::string>& given) {
  std::vector<std::string> folders;
  for (const std::string& word : given) {
    const std::size_t at = word.find('=');
    if (at != std::string::npos) folders.push_back(word.substr(at + 1));
  }
  return folders;
}

bool is_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

}  // namespace

void AdapterArguments::declare(Arguments& arguments) {
  Argument& option =
      arguments.option("--adapters", "NAME=FOLDER", &adapters_,
                       "adapters, several of which are in memory next to one copy of MODEL: PEFT folders, or "
                       "runs with lora. NAME chooses MODEL with these adapters, and 'base' chooses MODEL "
                       "without adapters; may be repeated");
  option.several = true;
  option.reads = folders_of;
}

void AdapterArguments::declare_choice(Arguments& arguments, const std::string& help) {
  arguments.option("--adapter", "NAME", &chosen_, help);
}

std::pair<std::string, std::string> AdapterArguments::parts_of(const std::string& given) {
  const std::size_t at = given.find('=');
  const std::string name = given.substr(0, at);
  if (at == std::string::npos || at + 1 == given.size() || !is_name(name)) {
    throw invalid(fmt::format("--adapters '{}' is not a name and a folder", given),
                  "write NAME=FOLDER, with a name of letters, digits, '.', '_' and '-'");
  }
  if (name == kBaseName) {
    throw invalid(
        fmt::format("--adapters '{}': the name '{}' is that of MODEL without adapters", given, name),
        "choose another name");
  }
  return {name, given.substr(at + 1)};
}

std::vector<std::string> AdapterArguments::names() const {
  std::vector<std::string> names = {std::string(kBaseName)};
  for (const std::string& given : adapters_) {
    std::string name = parts_of(given).first;
    if (std::ranges::find(names, name) != names.end())
      throw invalid(fmt::format("--adapters has the name '{}' twice", name), "give each its own name");
    names.push_back(std::move(name));
  }
  return names;
}

std::size_t AdapterArguments::find(std::string_view name, const std::string& where) const {
  const std::vector<std::string> all = names();
  const auto found = std::ranges::find(all, name);
  if (found != all.end()) return static_cast<std::size_t>(found - all.begin());
  Error error = invalid(fmt::format("there are no adapters '{}'", name),
                        given() ? fmt::format("the names are {}", fmt::join(all, ", "))
                                : fmt::format("name their folder: --adapters {}=FOLDER", name));
  if (!where.empty()) error.at(where);
  throw error;
}

std::vector<std::size_t> AdapterArguments::chosen() const {
  std::vector<std::size_t> numbers;
  for (const std::string& name : chosen_) {
    const std::size_t number = find(name);
    if (std::ranges::find(numbers, number) == numbers.end()) numbers.push_back(number);
  }
  return numbers;
}

std::vector<UsedModel> AdapterArguments::models(const ModelArguments& model, const FamilyRegistry& families,
                                                const Console& console) const {
  const std::vector<std::string> all = names();
  chosen();  // refuses a wrong name before anything is read
  std::vector<UsedModel> models(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    UsedModel& used = models[i];
    used.name = all[i];
    const ModelFolder& base = models.front().folder;
    used.folder = i == 0 ? model.folder() : find_adapters(parts_of(adapters_[i - 1]).second, base, families);
    used.config = ModelArguments::config(used.folder, families, console);
    // Adapters without their own tokenizer use the base model's tokenizer.
    if (i > 0 && folder_with(used.folder, "tokenizer.json") == base.path) {
      used.tokenizer = models.front().tokenizer;
    } else {
      used.tokenizer = model.tokenizer(used.folder, used.config, console);
    }
    const std::string warning = i > 0 ? warn_of_another_base(used, base) : std::string();
    if (!warning.empty()) console.note("warning: " + warning);
  }
  return models;
}

std::vector<ModelConfig> configs_of(const std::vector<UsedModel>& models) {
  std::vector<ModelConfig> configs;
  for (const UsedModel& model : models) configs.push_back(model.config);
  return configs;
}

}  // namespace primus::cli
