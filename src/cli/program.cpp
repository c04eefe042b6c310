#include "cli/program.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.h"
#include "base/json_text.h"
#include "base/suggest.h"
#include "base/terminal.h"
#include "cli/completion.h"
#include "cli/grammar.h"
#include "cli/parse.h"
#include "cli/problem_json.h"

namespace primus::cli {
namespace {

using Words = std::span<const std::string>;

// The command that `words` begin with, and how many words name it. Prints help and returns null where only
// help is wanted.
const CommandEntry* resolve(Words words, std::size_t& used, Console& console) {
  const std::string& first = words[0];
  if (const CommandEntry* entry = find_command(first)) {
    used = 1;
    return entry;
  }
  if (!is_group(first)) {
    std::vector<std::string_view> known{"help", kDirect.name};
    for (const CommandEntry& entry : commands()) known.push_back(entry.name.substr(0, entry.name.find(' ')));
    const std::string near = did_you_mean(first, known);
    throw invalid(fmt::format("there is no {} '{}'", first.starts_with('-') ? "option" : "command", first),
                  near.empty() ? fmt::format("'{} --help' lists what there is", console.program) : near);
  }
  if (words.size() < 2 || is_help(words[1])) {
    console.print(group_help_text(first, console.program));
    return nullptr;
  }
  if (const CommandEntry* entry = find_command(first + " " + words[1])) {
    used = 2;
    return entry;
  }
  std::vector<std::string_view> known;
  for (const CommandEntry& entry : commands()) {
    if (entry.name.starts_with(first + " ")) known.push_back(entry.name.substr(first.size() + 1));
  }
  if (first == "train" && words[1] == "posttrain") {
    throw unsupported("'train posttrain' is not there yet: Primus pre-trains so far",
                      "'train pretrain' with load=FOLDER goes on training a model on text of your own");
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

std::string to_json(const Error& error) { return json_text(problem_json(error), -1) + "\n"; }

// Below these limits kernels crash without a word, where libraries do not ask whether memory was given.
void require_limits() {
  struct Need {
    decltype(RLIMIT_STACK) resource;
    rlim_t least;
    const char *what, *option;
  };
  for (const Need& need : {Need{RLIMIT_STACK, rlim_t{512} << 10, "the stack", "-s"},
                           Need{RLIMIT_AS, rlim_t{64} << 20, "all memory of a process", "-v"}}) {
    rlimit limit{};
    if (::getrlimit(need.resource, &limit) != 0) continue;
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need.least) continue;
    throw invalid(fmt::format("{} is limited to {}, and Primus needs {}", need.what,
                              human_bytes(static_cast<double>(limit.rlim_cur)),
                              human_bytes(static_cast<double>(need.least))),
                  fmt::format("raise the limit: 'ulimit {} {}', or 'ulimit {} unlimited'", need.option,
                              need.least >> 10, need.option));
  }
}

// Parses and runs a command; with `check`, only parses it.
int run_command(Words words, Console& console, bool check = false) {
  std::size_t used = 0;
  const CommandEntry* entry = resolve(words, used, console);
  if (!entry) return 0;
  const std::unique_ptr<Command> command = entry->make();
  Arguments arguments;
  command->declare(arguments);
  if (!parse(arguments, words.subspan(used), fmt::format("{} {}", console.program, entry->name))) {
    if (!check) console.print(help_text(*entry, arguments, console.program));
    return 0;
  }
  if (check) return 0;
  try {
    require_limits();
    return command->run(console);
  } catch (const Error& error) {
    // Whoever asked for JSON gets the failure as JSON too, besides the text on standard error.
    if (wants_json(arguments)) console.write(to_json(error));
    throw;
  }
}

int run_help(Words topic, Console& console) {
  if (topic.empty()) {
    console.print(overview_text(console.program));
    return 0;
  }
  if (topic[0] == kDirect.name) {
    DirectOptions options;
    Arguments arguments;
    options.declare(arguments);
    console.print(help_text(kDirect, arguments, console.program));
    return 0;
  }
  std::vector<std::string> words(topic.begin(), topic.end());
  words.emplace_back("--help");
  return run_command(words, console);
}

void set_variable(const std::string& setting) {
  const std::size_t equals = setting.find('=');
  setenv(setting.substr(0, equals).c_str(), setting.substr(equals + 1).c_str(), 1);
}

// `direct [--single] [--env K=V]... -- <command>`
int run_direct(Words words, bool dry_run, Console& console) {
  DirectOptions options;
  Arguments arguments;
  options.declare(arguments);
  const auto split = std::find(words.begin(), words.end(), "--");
  if (!parse(arguments, Words(words.begin(), split), fmt::format("{} {}", console.program, kDirect.name))) {
    return run_help(std::vector<std::string>{std::string(kDirect.name)}, console);
  }
  const Words command = split == words.end() ? Words() : Words(split + 1, words.end());
  if (command.empty()) {
    throw invalid(
        "'direct' has no command to run",
        fmt::format("put it after '--': {} direct -- train pretrain --config exp.yaml", console.program));
  }
  for (const std::string& setting : options.environment) {
    const std::size_t equals = setting.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw invalid(fmt::format("--env needs NAME=VALUE, not '{}'", setting));
    }
  }
  if (!dry_run) {
    for (const std::string& setting : options.environment) set_variable(setting);
    return run_command(command, console);
  }
  run_command(command, console, true);
  std::string line = options.environment.empty() ? "primus" : "env";
  for (const std::string& setting : options.environment) line += fmt::format(" {}", shell_quoted(setting));
  if (!options.environment.empty()) line += " primus";
  for (const std::string& word : command) line += fmt::format(" {}", shell_quoted(word));
  console.print(line + "\n");
  return 0;
}

int run_words(Words words, Console& console) {
  GlobalOptions globals;
  Arguments arguments;
  globals.declare(arguments);
  const std::size_t at = count_options(arguments, words);
  if (!parse(arguments, words.first(at), console.program)) return run_help({}, console);
  if (globals.version) {
    console.print("primus " PRIMUS_VERSION "\n");
    return 0;
  }
  console.debug = globals.debug;
  const Words rest = words.subspan(at);
  if (rest.empty()) return run_help({}, console);
  const std::string& first = rest[0];
  const bool missing =
      std::find(std::begin(kMissingModes), std::end(kMissingModes), first) != std::end(kMissingModes);
  const bool direct = first == kDirect.name;
  if (direct) return run_direct(rest.subspan(1), globals.dry_run, console);
  if (missing) {
    throw unsupported(fmt::format("the mode '{}' is not there yet", first),
                      fmt::format("run on this machine: {} direct -- ...", console.program));
  }
  if (globals.dry_run) {
    throw invalid("--dry-run stands before the command",
                  fmt::format("write it after: {} {} --dry-run ...", console.program, first));
  }
  if (first == "help") return run_help(rest.subspan(1), console);
  if (first == kCompleteWord) {
    console.write(completion_reply(rest.subspan(1)));
    return 0;
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
  } catch (const std::logic_error& error) {
    console.note(fmt::format(
        "error: {}\n  hint: this is a bug in Primus: please report it with the command line", error.what()));
    return 3;
  } catch (const std::exception& error) {
    console.note(fmt::format("error: {}", error.what()));
    return 3;
  }
}

}  // namespace primus::cli
