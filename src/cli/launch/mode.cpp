#include "cli/launch/mode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text/secrets.h"
#include "cli/grammar.h"
#include "cli/parse.h"
#include "launch/process.h"

namespace primus::cli {

std::size_t Mode::count_own(const Arguments& arguments, Words words) const {
  return count_options(arguments, words);
}

launch::Plan Mode::plan_elsewhere(const ModeContext&, Words, const launch::ElsewhereNodes&) {
  throw std::logic_error("another mode cannot start this mode");
}

int Mode::run(const ModeContext& context, Words command, Console&) {
  launch::become(plan(context, command).steps.front());
}

void ModeOptions::declare(Arguments& arguments) {
  arguments.option("--config", "FILE", &config,
                   "file with launcher settings that override .primus.yaml; may be repeated");
  arguments.flag("--debug", debug, "show the log on the screen");
  arguments.flag("--dry-run,--dry_run", dry_run, "check everything, show the commands, and run nothing");
}

launch::LauncherSettings settings_within(const ModeContext& context, const ModeOptions& inner) {
  if (inner.config.empty()) return context.settings;
  std::vector<std::string> files = context.config;
  files.insert(files.end(), inner.config.begin(), inner.config.end());
  return launch::load_settings(files, context.surroundings);
}

std::optional<std::string> dry_run_of(const DeclaredMode& inner, const ModeEntry& entry,
                                      const ModeContext& context, Words command) {
  if (inner.common->dry_run) return fmt::format("--dry-run must come before '{}'", entry.about.name);
  const launch::LauncherSettings settings = settings_within(context, *inner.common);
  if (settings.dry_run) return settings.dry_run_at;
  const launch::LauncherSettings::Switches switches = inner.mode->switches(settings);
  if (switches.dry_run) return switches.dry_run_at;
  const ModeContext there{
      .surroundings = context.surroundings, .settings = settings, .config = context.config};
  return inner.mode->asks_for_dry_run_within(there, command);
}

std::span<const ModeEntry> modes() {
  // The entries are globals of other files, initialized before main() runs.
  static const std::array all{kDirect, kContainer, kSlurm, kKubernetes};
  return all;
}

const ModeEntry* find_mode(std::string_view name) {
  const auto all = modes();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const ModeEntry& entry) { return entry.about.name == name; });
  return found == all.end() ? nullptr : &*found;
}

DeclaredMode declare(const ModeEntry& entry, Arguments& arguments) {
  DeclaredMode declared{entry.make(), std::make_unique<ModeOptions>()};
  declared.mode->declare(arguments);
  declared.common->declare(arguments);
  return declared;
}

DirectWords direct_words(Words words) {
  const bool named = !words.empty() && words[0] == kDirect.about.name;
  if (named) words = words.subspan(1);
  const auto split = std::find(words.begin(), words.end(), "--");
  Arguments arguments;
  const DeclaredMode direct = declare(kDirect, arguments);
  // Leading options before "--" belong to 'direct' even if this word is omitted, since a command does not
  // begin with an option.
  const bool has_options = !words.empty() && words[0].starts_with('-') && !is_help(words[0]) &&
                           (split != words.end() || arguments.find(words[0]));
  if (!named && !has_options) return {{}, {words.begin(), words.end()}};
  const std::size_t own = split == words.end() ? direct.mode->count_own(arguments, words)
                                               : static_cast<std::size_t>(split - words.begin());
  const Words command = words.subspan(split == words.end() ? own : own + 1);
  return {{words.begin(), words.begin() + static_cast<std::ptrdiff_t>(own)},
          {command.begin(), command.end()}};
}

std::optional<std::string> dry_run_of_direct(const ModeContext& context, Words words) {
  const DirectWords inner = direct_words(words);
  Arguments arguments;
  const DeclaredMode direct = declare(kDirect, arguments);
  parse(arguments, inner.options, "primus direct");
  return dry_run_of(direct, kDirect, context, inner.command);
}

void refuse_secrets(const std::vector<std::string>& assignments, std::string_view mode) {
  for (const std::string& text : assignments) {
    const std::size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    if (equals == std::string::npos || !is_secret(name, text.substr(equals + 1))) continue;
    throw invalid(
        fmt::format("{} is a secret, but other users can read a command line", name),
        mode == "direct" ? fmt::format("export {} first, or put it into a file: --env FILE", name)
        : mode == "k8s"
            ? fmt::format("store it as a Secret of the cluster, and name the Secret: --secret {}=SECRET/KEY",
                          name)
            : fmt::format("export {0} first, and pass it on by name: --env {0}", name));
  }
}

namespace {

constexpr std::string_view kVariable = "env.";

// Returns whether the name of a setting shows that its value is a secret. Names of settings follow stricter
// rules than names of variables, because "token" and "key" also are words of models (fim_pad_token).
bool is_secret_setting(std::string_view name) {
  static constexpr std::string_view kEnds[] = {"access_token", "auth_token", "hf_token", "api_key",
                                               "secret_key",   "password",   "secret"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

bool has_secret(std::string_view name, std::string_view value) {
  if (value.empty() || value.starts_with("${")) return false;  // the name of a variable instead of its value
  if (name.starts_with(kVariable)) return is_secret(name.substr(kVariable.size()), value);
  // Text of several words, such as a prompt, may mention the name of a secret.
  const bool is_one_word =
      value.find("://") != std::string_view::npos || value.find_first_of(":= ") == std::string_view::npos;
  return is_secret_setting(name) || (is_one_word && is_secret_value(value));
}

}  // namespace

void refuse_secret_settings(Words command, std::string_view mode) {
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string_view word = command[i];
    const std::size_t equals = word.find('=');
    std::string_view name = word.substr(0, equals), value;
    const bool is_option = name.starts_with("--");
    if (is_option) name.remove_prefix(2);
    if (equals != std::string_view::npos) {
      value = word.substr(equals + 1);
    } else if (is_option && i + 1 < command.size()) {
      value = command[i + 1];
    }
    if (!has_secret(name, value)) continue;
    const bool is_variable = name.starts_with(kVariable);
    const std::string variable(is_variable ? name.substr(kVariable.size()) : "NAME");
    const std::string remedy = mode == "k8s"
                                   ? fmt::format(
                                         "store it as a Secret of the cluster, and name the Secret: --secret "
                                         "{}=SECRET/KEY",
                                         variable)
                                   : fmt::format("export {} first", variable);
    throw invalid(fmt::format("{}: the value is a secret, but other users can read a command line", name),
                  is_variable ? fmt::format("remove it; {}", remedy)
                              : fmt::format("write {}: ${{NAME}} into the experiment; {}", name, remedy));
  }
}

}  // namespace primus::cli
