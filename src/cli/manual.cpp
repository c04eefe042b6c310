#include "cli/manual.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/grammar.h"
#include "cli/launch/mode.h"
#include "cli/parse.h"

namespace primus::cli {
namespace {

constexpr std::size_t kDocumentWidth = 100;  // line width of docs/commands.md
// The date of the pages' texts. The date of the build would make builds irreproducible.
constexpr std::string_view kDate = "2026-11-22";

struct Named {
  std::string_view name, text;
};
constexpr Named kExitCodes[] = {
    {"0", "done"},
    {"1", "a library or driver is missing"},
    {"2", "wrong arguments, experiment or input, or a full disk; nothing was started or lost"},
    {"3", "failed while running, or a verification failed"},
    {"42", "the container has no Primus"},
};
constexpr Named kEnvironment[] = {
    {"NO_COLOR", "when set and not empty, no colors (https://no-color.org)"},
    {"OMP_NUM_THREADS", "number of CPU threads, if no option or key sets it"},
    {"NNODES, NODE_RANK, GPUS_PER_NODE, MASTER_ADDR, MASTER_PORT",
     "the node's place in a job, for the modes; docs/launch.md lists all such variables"},
    {"PRIMUS_LAUNCHED_STEP", "set by the launcher: the Slurm step of this process"},
    {"PRIMUS_JOB_TOKEN, PRIMUS_JOB_TOKEN_FILE", "the secret that the ranks of a job on several nodes share"},
    {"PRIMUS_FLIP_BIT", "inverts a bit to test the checks for silent corruption; docs/watching.md"},
    {"PRIMUS_PRESETS", "folder of presets, used instead of the program's own"},
};

// Escapes text for man(7): backslashes and leading dots are literal, and '-' stays a minus that can be copied
// into a shell.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool line_begins = out.empty() || out.back() == '\n';
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '`':
        out += "\\(ga";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '~':
        out += "\\(ti";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Converts text, in which empty lines separate paragraphs, to man(7) source.
std::string paragraphs(std::string_view text) {
  std::string out;
  bool first = true;
  while (!text.empty()) {
    const std::string_view paragraph = text.substr(0, text.find("\n\n"));
    text.remove_prefix(std::min(text.size(), paragraph.size() + 2));
    out += (first ? "" : ".PP\n") + escaped(paragraph) + "\n";
    first = false;
  }
  return out;
}

std::string bold(std::string_view text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string slanted(std::string_view text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string tagged(const std::string& tag, std::string_view text) {
  return ".TP\n" + tag + "\n" + escaped(text) + "\n";
}

std::string list(std::span<const Named> items) {
  std::string out;
  for (const Named& item : items) out += tagged(bold(item.name), item.text);
  return out;
}

std::string examples(std::string_view lines) {
  return lines.empty() ? std::string() : ".SH EXAMPLES\n.nf\n" + escaped(lines) + "\n.fi\n";
}

std::string heading(std::string_view name, std::string_view summary) {
  std::string title(name);
  std::transform(title.begin(), title.end(), title.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  std::string line(summary);
  line[0] = line[0] >= 'A' && line[0] <= 'Z' && !(line[1] >= 'A' && line[1] <= 'Z') && name != "primus"
                ? static_cast<char>(line[0] - 'A' + 'a')
                : line[0];
  return fmt::format(".TH {} 1 {} \"primus {}\" \"Primus Manual\"\n.SH NAME\n{} \\- {}\n", escaped(title),
                     kDate, PRIMUS_VERSION, escaped(name), escaped(line));
}

std::string option_list(const Arguments& arguments) {
  std::string out;
  for (const Argument& argument : arguments.all()) {
    if (argument.names.empty()) continue;
    std::string tag;
    for (const std::string& name : argument.names) tag += (tag.empty() ? "" : ", ") + bold(name);
    if (!argument.value.empty()) tag += " " + slanted(argument.value);
    out += tagged(tag, explanation(argument));
  }
  return out;
}

std::string synopsis(const CommandEntry& entry, const Arguments& arguments) {
  std::string line = bold("primus " + std::string(entry.name));
  for (const Argument& argument : arguments.all()) {
    if (!argument.names.empty() && !argument.required) continue;
    const std::string name = argument.names.empty() ? std::string() : bold(argument.names.front()) + " ";
    const std::string word = name + slanted(argument.value);
    line += argument.required ? " " + word : " [" + word + "]";
  }
  line += " [" + slanted("options") + "]";
  const bool is_mode = entry.make == nullptr;
  if (is_mode) line += " \\-\\- " + slanted("command");
  if (arguments.rest() && !is_mode) line += " [" + slanted(arguments.rest()->value) + "]";
  return ".SH SYNOPSIS\n" + line + "\n";
}

std::string positional_list(const Arguments& arguments) {
  std::string out;
  for (const Argument& argument : arguments.all()) {
    if (argument.names.empty()) out += tagged(slanted(argument.value), explanation(argument));
  }
  if (arguments.rest()) out += tagged(slanted(arguments.rest()->value), arguments.rest()->help);
  return out.empty() ? out : ".SH ARGUMENTS\n" + out;
}

std::string page(const CommandEntry& entry, const Arguments& arguments) {
  std::string out = heading(manual_name(entry), entry.summary) + synopsis(entry, arguments);
  if (!entry.details.empty()) out += ".SH DESCRIPTION\n" + paragraphs(entry.details);
  out += positional_list(arguments);
  out +=
      ".SH OPTIONS\n" + option_list(arguments) + tagged(bold("-h") + ", " + bold("--help"), "show the help");
  out += examples(entry.examples);
  return out + ".SH SEE ALSO\n.BR primus (1)\n";
}

}  // namespace

std::string manual_name(const CommandEntry& entry) {
  std::string name = "primus-" + std::string(entry.name);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string command_manual(const CommandEntry& entry) {
  const std::unique_ptr<Command> command = entry.make();
  Arguments arguments;
  command->declare(arguments);
  return page(entry, arguments);
}

std::string mode_manual(const ModeEntry& mode) {
  Arguments arguments;
  const DeclaredMode declared = declare(mode, arguments);
  return page(mode.about, arguments);
}

std::string program_manual() {
  GlobalOptions globals;
  Arguments arguments;
  globals.declare(arguments);
  std::string out = heading("primus", "trains foundation models");
  out += ".SH SYNOPSIS\n" + bold("primus") + " [" + slanted("options") + "] " + slanted("command") + " [" +
         slanted("command options") + "]\n.br\n" + bold("primus") + " [" + slanted("options") + "] " +
         slanted("mode") + " [" + slanted("mode options") + "] \\-\\- " + slanted("command") + " [" +
         slanted("command options") + "]\n";
  out += ".SH DESCRIPTION\n" + paragraphs(std::string(kProgramSummary) + ".");
  out += ".SH COMMANDS\n";
  for (const CommandEntry& entry : commands()) {
    out += tagged(bold(entry.name), fmt::format("{}; see {}(1)", entry.summary, manual_name(entry)));
  }
  out +=
      ".SH OPTIONS\n" + option_list(arguments) +
      tagged(bold("-h") + ", " + bold("--help"), "show the help; after a command, the help of that command");
  out += ".SH MODES\n";
  for (const ModeEntry& mode : modes()) {
    out += tagged(bold(mode.about.name),
                  fmt::format("{}; see {}(1)", mode.about.summary, manual_name(mode.about)));
  }
  out += ".SH EXIT STATUS\n" + list(kExitCodes) + ".SH ENVIRONMENT\n" + list(kEnvironment);
  return out + examples(kProgramExamples);
}

std::string commands_markdown() {
  std::string out =
      "# The commands\n\nThis page is for users, and contains the help of every command. It is written by "
      "`primus man --markdown`.\nCompletion for bash, zsh and fish: `primus completion --help`; manual "
      "pages: `primus man --help`.\n\n```\n" +
      overview_text("primus", kDocumentWidth) + "```\n";
  for (const CommandEntry& entry : commands()) {
    const std::unique_ptr<Command> command = entry.make();
    Arguments arguments;
    command->declare(arguments);
    out += fmt::format("\n## {}\n\n```\n{}```\n", entry.name,
                       help_text(entry, arguments, "primus", kDocumentWidth));
  }
  for (const ModeEntry& mode : modes()) {
    Arguments arguments;
    const DeclaredMode declared = declare(mode, arguments);
    out += fmt::format("\n## {}\n\n```\n{}```\n", mode.about.name,
                       help_text(mode.about, arguments, "primus", kDocumentWidth));
  }
  return out +
         "\n## Limits\n\nThis page does not describe the keys of experiments ([config.md](config.md)), and "
         "no "
         "programs of other\nframeworks. [status.md](status.md) lists the features that do not exist.\n";
}

}  // namespace primus::cli
