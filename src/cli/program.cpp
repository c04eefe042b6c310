#include "cli/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "base/suggest.h"
#include "cli/parse.h"

namespace primus::cli {
namespace {

using Words = std::span<const std::string>;

struct Globals {
  std::optional<std::string> config;
  bool dry_run = false;
};

const CommandEntry* find_entry(std::string_view name) {
  for (const CommandEntry& entry : commands()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool is_group(std::string_view word) {
  for (const CommandEntry& entry : commands()) {
    if (entry.name.starts_with(std::string(word) + " ")) return true;
  }
  return false;
}

std::string command_table(std::string_view group) {
  std::string text;
  for (const CommandEntry& entry : commands()) {
    if (!group.empty() && !entry.name.starts_with(std::string(group) + " ")) continue;
    text += fmt::format("  {:<22}{}\n", entry.name, entry.summary);
  }
  return text;
}

std::string overview(const std::string& program) {
  return fmt::format(
      "Primus trains foundation models: one program, from a laptop to a cluster.\n\n"
      "Usage:\n"
      "  {0} <command> [options]\n"
      "  {0} [--config FILE] [--debug] [--dry-run] <direct|container|slurm> [mode options] -- <command> "
      "[options]\n\n"
      "Commands:\n{1}\n"
      "Options:\n"
      "  --debug               show the log on the screen\n"
      "  --version             print the version\n"
      "  -h, --help            this text; after a command, all about it\n\n"
      "Examples:\n"
      "  {0} quickstart\n"
      "  {0} train pretrain --config examples/native/configs/CPU/llama_tiny-pretrain.yaml --dry-run\n"
      "  {0} generate output/primus/root/quickstart --prompt 'In the beginning'\n",
      program, command_table({}));
}

std::string group_help(const std::string& group, const std::string& program) {
  return fmt::format(
      "Usage:\n  {0} {1} <command> [options]\n\nCommands:\n{2}\n'{0} {1} <command> --help' has all about "
      "one.\n",
      program, group, command_table(group));
}

bool is_help(const std::string& word) { return word == "--help" || word == "-h"; }

// The command that `words` begin with, and how many words name it. Prints help and returns null where only
// help is wanted.
const CommandEntry* resolve(Words words, std::size_t& used, Console& console) {
  const std::string& first = words[0];
  if (const CommandEntry* entry = find_entry(first)) {
    used = 1;
    return entry;
  }
  if (!is_group(first)) {
    std::vector<std::string_view> known{"help", "direct", "container", "slurm"};
    for (const CommandEntry& entry : commands()) known.push_back(entry.name.substr(0, entry.name.find(' ')));
    const std::string near = did_you_mean(first, known);
    throw invalid(fmt::format("there is no {} '{}'", first.starts_with('-') ? "option" : "command", first),
                  near.empty() ? fmt::format("'{} --help' lists what there is", console.program) : near);
  }
  if (words.size() < 2 || is_help(words[1])) {
    console.print(group_help(first, console.program));
    return nullptr;
  }
  if (const CommandEntry* entry = find_entry(first + " " + words[1])) {
    used = 2;
    return entry;
  }
  std::vector<std::string_view> known;
  for (const CommandEntry& entry : commands()) {
    if (entry.name.starts_with(first + " ")) known.push_back(entry.name.substr(first.size() + 1));
  }
  const std::string near = did_you_mean(words[1], known);
  throw invalid(fmt::format("there is no command '{} {}'", first, words[1]),
                near.empty() ? fmt::format("it is one of {}", fmt::join(known, ", ")) : near);
}

bool wants_json(const Arguments& arguments) {
  for (const Argument& argument : arguments.all()) {
    const bool json =
        std::find(argument.names.begin(), argument.names.end(), "--json") != argument.names.end();
    if (json && std::holds_alternative<bool*>(argument.target)) return *std::get<bool*>(argument.target);
  }
  return false;
}

std::string to_json(const Error& error) {
  const nlohmann::json json{{"error", error.what()},
                            {"location", error.location()},
                            {"hint", error.hint()},
                            {"exit_code", error.exit_code()}};
  return json_text(json, -1) + "\n";
}

int run_command(Words words, Console& console) {
  std::size_t used = 0;
  const CommandEntry* entry = resolve(words, used, console);
  if (!entry) return 0;
  const std::unique_ptr<Command> command = entry->make();
  Arguments arguments;
  command->declare(arguments);
  if (!parse(arguments, words.subspan(used), fmt::format("{} {}", console.program, entry->name))) {
    console.print(help_text(*entry, arguments, console.program));
    return 0;
  }
  try {
    return command->run(console);
  } catch (const Error& error) {
    // Whoever asked for JSON gets the failure as JSON too, besides the text on standard error.
    if (wants_json(arguments)) console.write(to_json(error));
    throw;
  }
}

// `direct [--single] [--env K=V]... -- <command>`
int run_direct(Words words, const Globals& globals, Console& console) {
  std::vector<std::string> environment;
  bool single = false;
  Arguments arguments;
  arguments.flag("--single", single, "one process (there is no other choice yet)");
  arguments.option("--env", "NAME=VALUE", &environment,
                   "set an environment variable for the command; may be repeated");
  const auto split = std::find(words.begin(), words.end(), "--");
  const CommandEntry entry{"direct",
                           "Runs a command on this machine",
                           {},
                           "direct --env OMP_NUM_THREADS=2 -- train pretrain --config exp.yaml",
                           nullptr};
  if (!parse(arguments, Words(words.begin(), split), console.program + " direct")) {
    console.print(help_text(entry, arguments, console.program));
    return 0;
  }
  const Words command = split == words.end() ? Words() : Words(split + 1, words.end());
  if (command.empty()) {
    throw invalid(
        "'direct' has no command to run",
        fmt::format("put it after '--': {} direct -- train pretrain --config exp.yaml", console.program));
  }
  for (const std::string& setting : environment) {
    const std::size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw invalid(fmt::format("--env needs NAME=VALUE, not '{}'", setting));
    }
  }
  if (globals.dry_run) {
    std::string line = "env";
    for (const std::string& setting : environment) line += fmt::format(" {}", shell_quoted(setting));
    line = environment.empty() ? "primus" : line + " primus";
    for (const std::string& word : command) line += fmt::format(" {}", shell_quoted(word));
    console.print(line + "\n");
    return 0;
  }
  for (const std::string& setting : environment) {
    const std::size_t equals = setting.find('=');
    setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
  }
  return run_command(command, console);
}

int run_words(Words words, Console& console) {
  Globals globals;
  std::size_t at = 0;
  for (; at < words.size() && words[at].starts_with('-'); ++at) {
    const std::string& word = words[at];
    if (is_help(word)) {
      console.print(overview(console.program));
      return 0;
    }
    if (word == "--version") {
      console.print("primus " PRIMUS_VERSION "\n");
      return 0;
    }
    if (word == "--debug") {
      console.debug = true;
    } else if (word == "--dry-run") {
      globals.dry_run = true;
    } else if (word == "--config" && at + 1 < words.size()) {
      globals.config = words[++at];
    } else if (word.starts_with("--config=")) {
      globals.config = word.substr(9);
    } else {
      constexpr std::string_view known[] = {"--config", "--debug", "--dry-run", "--version", "--help"};
      const std::string near = did_you_mean(word, known);
      throw invalid(fmt::format("there is no option '{}' before the command", word),
                    near.empty() ? fmt::format("'{} --help' lists what there is", console.program) : near);
    }
  }
  const Words rest = words.subspan(at);
  if (rest.empty()) {
    console.print(overview(console.program));
    return 0;
  }
  const std::string& mode = rest[0];
  const bool is_mode = mode == "direct" || mode == "container" || mode == "slurm";
  if (is_mode && globals.config) {
    throw unsupported("--config before the mode names a launcher file, which is not read yet",
                      "put the experiment's --config after the command, and variables into its env:");
  }
  if (mode == "direct") return run_direct(rest.subspan(1), globals, console);
  if (is_mode) {
    throw unsupported(fmt::format("the mode '{}' is not there yet", mode),
                      fmt::format("run on this machine: {} direct -- ...", console.program));
  }
  if (globals.config || globals.dry_run) {
    throw invalid(fmt::format("--{} stands before the command", globals.config ? "config" : "dry-run"),
                  fmt::format("write it after: {} {} --{} ...", console.program, mode,
                              globals.config ? "config FILE" : "dry-run"));
  }
  if (mode == "help") {
    std::vector<std::string> topic(rest.begin() + 1, rest.end());
    if (topic.empty()) {
      console.print(overview(console.program));
      return 0;
    }
    topic.emplace_back("--help");
    return run_command(topic, console);
  }
  return run_command(rest, console);
}

}  // namespace

int run(std::span<const std::string> words, Console& console) {
  try {
    return run_words(words, console);
  } catch (const Error& error) {
    console.note(error.render());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    const bool trains = std::any_of(words.begin(), words.end(), [](const std::string& word) {
      return word == "train" || word == "quickstart";
    });
    console.note(
        fmt::format("error: this machine has not enough memory for that\n  hint: {}",
                    trains ? "a smaller micro_batch_size or seq_length, or recomputation, needs less; "
                             "--dry-run shows how much"
                           : "a smaller batch or context, or --dtype bf16 where there is one, needs less"));
    return 3;
  } catch (const std::exception& error) {
    console.note(fmt::format("error: {}", error.what()));
    return 3;
  }
}

}  // namespace primus::cli
