#include "cli/program.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "base/text/suggest.h"
#include "cli/completion.h"
#include "cli/grammar.h"
#include "cli/launch/mode.h"
#include "cli/options/device.h"
#include "cli/parse.h"
#include "cli/problem_json.h"
#include "config/loading/elsewhere.h"
#include "launch/direct/direct.h"
#include "launch/node/node.h"
#include "launch/node/numa.h"
#include "launch/process.h"

namespace primus::cli {
namespace {

// Returns the second words of a group's commands.
std::vector<std::string_view> subcommands(const std::string& group) {
  std::vector<std::string_view> names;
  for (const CommandEntry& entry : commands()) {
    if (entry.name.starts_with(group + " ")) names.push_back(entry.name.substr(group.size() + 1));
  }
  return names;
}

// Suggests commands whose last word is `word` ("train pretrain" for "pretrain"), and commands and groups that
// begin with `word` ("benchmark" for "bench"). Empty if none match.
std::string named_shortly(const std::string& word) {
  constexpr std::size_t kMin = 3;  // shorter prefixes match too many commands
  std::vector<std::string> names;
  for (const CommandEntry& entry : commands()) {
    const std::string name(entry.name), group = name.substr(0, name.find(' '));
    if (name.ends_with(" " + word)) names.push_back(name);
    if (word.size() >= kMin && group.starts_with(word) && std::ranges::find(names, group) == names.end())
      names.push_back(group);
  }
  for (std::string& name : names) name = "'" + name + "'";
  return names.empty() ? "" : fmt::format("did you mean {}?", fmt::join(names, " or "));
}

// Returns the error for an unknown word: suggests the equivalent of another program's word, or else the
// nearest command, or else `otherwise`.
Error unknown_command(const std::string& what, const std::string& word,
                      std::span<const std::string_view> known, const std::string& otherwise) {
  if (const auto answer = config::answer_for(word)) return invalid(what, *answer);
  const std::string near = did_you_mean(word, known);
  return invalid(what, near.empty() ? otherwise : near);
}

// Finds the command that `words` begin with, and the number of words in its name. If only help is requested,
// prints it and returns null.
const CommandEntry* resolve(Words words, std::size_t& used, Console& console) {
  const std::string& first = words[0];
  if (const CommandEntry* entry = find_command(first)) {
    used = 1;
    return entry;
  }
  if (find_mode(first)) {
    throw invalid(fmt::format("'{}' is a mode, but a command is expected here", first),
                  fmt::format("remove '{}': another mode already starts the command", first));
  }
  if (!is_group(first)) {
    std::vector<std::string_view> known{"help"};
    for (const ModeEntry& mode : modes()) known.push_back(mode.about.name);
    for (const CommandEntry& entry : commands()) known.push_back(entry.name.substr(0, entry.name.find(' ')));
    const std::string what = first.starts_with('-') ? "option" : "command";
    const std::string meant = named_shortly(first);
    throw unknown_command(
        fmt::format("there is no {} '{}'", what, first), first, known,
        meant.empty() ? fmt::format("'{} --help' lists all of them", console.program) : meant);
  }
  if (words.size() < 2 || is_help(words[1])) {
    console.print(group_help_text(first, console.program, console.out.width()));
    return nullptr;
  }
  if (const CommandEntry* entry = find_command(first + " " + words[1])) {
    used = 2;
    return entry;
  }
  const std::vector<std::string_view> known = subcommands(first);
  if (first == "data" && words[1].starts_with("diffusion")) {
    throw unsupported(
        fmt::format("Primus has no 'data {}', because it does not train diffusion models", words[1]),
        "'primus data' lists the commands that prepare text");
  }
  const std::string what = fmt::format("there is no command '{} {}'", first, words[1]);
  if (const auto answer = config::answer_for(first + "-" + words[1])) throw invalid(what, *answer);
  throw unknown_command(what, words[1], known, fmt::format("choose one of {}", fmt::join(known, ", ")));
}

// Returns the given values of a text argument, or its defaults.
std::vector<std::string> values_of(const Argument& argument) {
  if (const auto* const text = std::get_if<std::string*>(&argument.target)) return {**text};
  if (const auto* const text = std::get_if<std::optional<std::string>*>(&argument.target))
    return **text ? std::vector<std::string>{***text} : std::vector<std::string>();
  if (const auto* const list = std::get_if<std::vector<std::string>*>(&argument.target)) return **list;
  return {};
}

// Looks for --json in the words, because a parse error may have occurred before the switch was set. Returns
// false if there is no command, because the arguments are then unknown.
bool wants_json(const CommandEntry* entry, const Arguments& arguments, Words words) {
  const Argument* const json = arguments.find("--json");
  return (!entry || (json && std::holds_alternative<bool*>(json->target))) &&
         std::find(words.begin(), words.end(), "--json") != words.end();
}

std::string to_json(const Error& error) { return json_text(problem_json(error), -1) + "\n"; }

// Refuses resource limits that are too low: kernels could crash without an error message, because some
// libraries do not check allocations.
void require_limits() {
  struct Need {
    decltype(RLIMIT_STACK) resource;
    rlim_t minimum;
    const char *what, *option;
  };
  for (const Need& need : {Need{RLIMIT_STACK, rlim_t{512} << 10, "the stack", "-s"},
                           Need{RLIMIT_AS, rlim_t{64} << 20, "the memory of a process", "-v"}}) {
    rlimit limit{};
    if (::getrlimit(need.resource, &limit) != 0) continue;
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need.minimum) continue;
    throw invalid(fmt::format("{} is limited to {}, but Primus needs {}", need.what,
                              human_bytes(static_cast<double>(limit.rlim_cur)),
                              human_bytes(static_cast<double>(need.minimum))),
                  fmt::format("raise the limit: 'ulimit {} {}', or 'ulimit {} unlimited'", need.option,
                              need.minimum >> 10, need.option));
  }
}

// Parses and runs a command.
int run_command(Words words, Console& console) {
  std::size_t used = 0;
  const CommandEntry* entry = nullptr;
  std::unique_ptr<Command> command;
  Arguments arguments;
  try {
    entry = resolve(words, used, console);
    if (!entry) return 0;
    command = entry->make();
    command->declare(arguments);
    if (!parse(arguments, words.subspan(used), fmt::format("{} {}", console.program, entry->name))) {
      console.print(help_text(*entry, arguments, console.program, console.out.width()));
      return 0;
    }
    require_limits();
    return command->run(console);
  } catch (const Error& error) {
    // With --json, the failure is also written as JSON, in addition to the text on standard error.
    if (wants_json(entry, arguments, words.subspan(used))) console.write(to_json(error));
    throw;
  }
}

int run_help(Words topic, Console& console) {
  if (topic.empty()) {
    console.print(overview_text(console.program, console.out.width()));
    return 0;
  }
  if (const ModeEntry* const mode = find_mode(topic[0])) {
    Arguments arguments;
    const DeclaredMode declared = declare(*mode, arguments);
    console.print(help_text(mode->about, arguments, console.program, console.out.width()));
    return 0;
  }
  std::vector<std::string> words(topic.begin(), topic.end());
  words.emplace_back("--help");
  return run_command(words, console);
}

// Whether the user typed the mode, or gave only a command, to which the mode was added.
enum class Typed : std::uint8_t { kMode, kCommand };

// Runs `<mode> [options] -- <command>`.
int run_mode(const ModeEntry& entry, Words words, const GlobalOptions& globals, Typed typed,
             Console& console) {
  Arguments arguments;
  const DeclaredMode declared = declare(entry, arguments);
  Mode& mode = *declared.mode;
  const auto split = std::find(words.begin(), words.end(), "--");
  const std::size_t own = split == words.end() ? mode.count_own(arguments, words)
                                               : static_cast<std::size_t>(split - words.begin());
  const std::string name(entry.about.name);
  if (!parse(arguments, words.first(own), fmt::format("{} {}", console.program, name))) {
    return run_help(std::span(&name, 1), console);
  }
  const Words command = split == words.end() ? words.subspan(own) : Words(split + 1, words.end());
  launch::Surroundings surroundings = launch::Surroundings::here();
  std::vector<std::string> config = globals.config;
  config.insert(config.end(), declared.common->config.begin(), declared.common->config.end());
  const launch::LauncherSettings settings = launch::load_settings(config, surroundings);
  if (command.empty() && mode.needs_command(settings)) {
    throw invalid(
        fmt::format("'{}' has no command to run", name),
        fmt::format("put it after '--': {} {} -- train pretrain --config exp.yaml", console.program, name));
  }
  console.notes(settings.notes);
  const launch::LauncherSettings::Switches switches = mode.switches(settings);
  ModeContext context{.surroundings = surroundings, .settings = settings};
  context.debug = globals.debug || declared.common->debug || settings.debug || switches.debug;
  context.config = config;
  bool dry_run = globals.dry_run || declared.common->dry_run;
  std::optional<std::string> asked = settings.dry_run   ? std::optional(settings.dry_run_at)
                                     : switches.dry_run ? std::optional(switches.dry_run_at)
                                                        : std::nullopt;
  // If the options ask a later launcher for a dry run, the entire chain is only shown. Without this rule,
  // this process would queue a job whose nodes only print plans and exit successfully.
  if (!asked && !dry_run) asked = mode.asks_for_dry_run_within(context, command);
  if (asked) {
    // The setting dry_run does not apply to a command without a launcher: the command would end with code 0,
    // and a check or a training that did not run would look successful.
    if (typed == Typed::kCommand) {
      console.note(
          "note: the setting dry_run applies only to launchers, so this command runs; 'primus --dry-run "
          "direct -- ...' shows what would run");
    } else {
      if (!dry_run) console.note(fmt::format("note: nothing is run: {}", *asked));
      dry_run = true;
    }
  }
  if (dry_run) {
    surroundings.dry_run = true;
    console.print(launch::render(mode.plan(context, command)));
    return 0;
  }
  return mode.run(context, command, console);
}

// `__numa COMMAND...`: starts a rank that was requested with --numa.
int run_bound(Words command) {
  if (command.empty()) throw invalid("there is no command to bind");
  launch::bind_to_gpu(launch::Surroundings::here());
  launch::become({.name = "process", .where = {}, .argv = {command.begin(), command.end()}});
}

// Returns whether this process is one of several tasks that srun started without a launcher, and `words` are
// a command with ranks. Together, such tasks form one job, as with 'srun primus direct --'. If the command
// sets its number of ranks, each task is a separate job.
bool is_bare_rank(Words words) {
  const auto task = launch::task_of_step(launch::Surroundings::here());
  if (!task || task->launched || std::getenv("OMPI_COMM_WORLD_SIZE")) return false;
  if (launch::asks_for_ranks({words.begin(), words.end()})) return false;
  if (std::any_of(words.begin(), words.end(), is_help)) return false;
  Console nowhere{.out = {}, .err = {}, .program = "primus", .invocation = "primus"};
  std::size_t used = 0;
  const CommandEntry* const entry = resolve(words, used, nowhere);
  return entry && entry->has_ranks;
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
  if (const ModeEntry* const mode = find_mode(first))
    return run_mode(*mode, rest.subspan(1), globals, Typed::kMode, console);
  if (!globals.config.empty()) {
    throw invalid("--config before a command names launcher settings, which only modes use",
                  fmt::format("to name an experiment, write --config after the command: {} {} --config FILE",
                              console.program, first));
  }
  if (globals.dry_run) {
    throw invalid("--dry-run must come after the command",
                  fmt::format("write {} {} --dry-run ...", console.program, first));
  }
  if (first == "help") return run_help(rest.subspan(1), console);
  if (first == kCompleteWord) {
    console.write(completion_reply(rest.subspan(1)));
    return 0;
  }
  if (first == launch::kNumaWord) return run_bound(rest.subspan(1));
  if (is_bare_rank(rest)) {
    // An empty --script makes the typed command run even if the launcher's settings name a script.
    std::vector<std::string> script_words{"--script", "", "--"};
    script_words.insert(script_words.end(), rest.begin(), rest.end());
    return run_mode(*find_mode("direct"), script_words, globals, Typed::kCommand, console);
  }
  return run_command(rest, console);
}

}  // namespace

launch::DirectCommand check_command(Words words, bool debug, Experiments experiments) {
  launch::DirectCommand result{.words = {words.begin(), words.end()}, .debug = debug};
  GlobalOptions globals;
  Arguments global_arguments;
  globals.declare(global_arguments);
  words = words.subspan(count_options(global_arguments, words));
  result.one_process = true;
  if (words.empty() || words[0] == "help" || is_help(words[0])) return result;
  Console nowhere{.out = {}, .err = {}, .program = "primus", .invocation = "primus"};
  std::size_t used = 0;
  // If the words ask for a group's help, the program that the launcher starts prints this help. A group
  // without a subcommand is an error, because a printed help text would look like a finished job.
  if (is_group(words[0]) && words.size() > 1 && is_help(words[1])) return result;
  if (is_group(words[0]) && !find_command(words[0]) && (words.size() == 1 || words[1].starts_with('-'))) {
    throw invalid(fmt::format("'{}' needs a subcommand", words[0]),
                  fmt::format("choose one of {}: {} {} ...", fmt::join(subcommands(words[0]), ", "), words[0],
                              subcommands(words[0]).front()));
  }
  const CommandEntry* const entry = resolve(words, used, nowhere);
  if (!entry) return result;
  const std::shared_ptr<Command> command = entry->make();
  const auto declared = std::make_shared<Arguments>();  // shared, because the command may refer to it
  Arguments& arguments = *declared;
  command->declare(arguments);
  if (!parse(arguments, words.subspan(used), fmt::format("primus {}", entry->name))) return result;
  const bool in_this_folder = experiments == Experiments::kHere || experiments == Experiments::kInThisFolder;
  bool is_readable = true;  // a file here with the experiment's name is the experiment
  if (const Argument* const device = arguments.find("--device"); device && in_this_folder) {
    for (const std::string& name : values_of(*device)) check_device_name(name);
  }
  for (const Argument& argument : arguments.all()) {
    const bool is_experiment = &argument == arguments.find("--config");
    const std::vector<std::string> values = values_of(argument);
    const std::string what = is_experiment            ? "experiment"
                             : argument.names.empty() ? argument.value
                                                      : argument.names.front();
    for (const std::string& path : is_experiment    ? values
                                   : argument.reads ? argument.reads(values)
                                                    : std::vector<std::string>()) {
      if (path.empty()) continue;
      const bool is_relative = Path(path).is_relative();
      const bool is_absent = experiments == Experiments::kInAbsentFolder && is_relative;
      if (!is_absent && Env::posix().status(path)) {
        result.reads.push_back(path);
        if (is_experiment && experiments == Experiments::kElsewhere && is_relative)
          result.notes.push_back(launch::looked_for_in_this_folder("the experiment", path));
        continue;
      }
      if (is_experiment && is_absent) is_readable = false;
      if (launch::is_looked_for_here(path, in_this_folder, experiments == Experiments::kHere)) {
        throw invalid(is_experiment ? fmt::format("there is no experiment '{}'", path)
                                    : fmt::format("{}: there is no '{}'", what, path),
                      "'primus " + std::string(entry->name) + " --help' has examples");
      }
      result.notes.push_back(launch::not_looked_for(is_experiment ? "the experiment" : what, path));
    }
  }
  if (is_readable) {
    result.check_job = [command, declared](int nodes, int ranks_per_node, const auto& variables) {
      require_limits();
      command->check_job(nodes, ranks_per_node, variables);
    };
    result.absent_inputs = [command, declared](const auto& variables) {
      return command->absent_inputs(variables);
    };
    result.outline = [command, declared](int nodes, int ranks_per_node, const auto& variables) {
      return command->outline(nodes, ranks_per_node, variables);
    };
    result.needs_token = [command, declared] { return command->needs_token(); };
  }
  result.has_ranks = entry->has_ranks;
  result.one_process = !entry->has_ranks;
  const std::size_t space = entry->name.find(' ');
  result.hooks.group = entry->name.substr(0, space);
  if (space != std::string_view::npos) result.hooks.name = entry->name.substr(space + 1);
  result.hooks.words.assign(words.begin(), words.end());
  return result;
}

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
        fmt::format("error: this machine does not have enough memory\n  hint: {}",
                    trains ? "reduce micro_batch_size or seq_length, or use recomputation; --dry-run shows "
                             "the memory that a run needs"
                           : "reduce the batch or the context, or use --dtype bf16 if the command has it"));
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
