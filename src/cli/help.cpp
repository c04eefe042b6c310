#include <fmt/format.h>

#include <algorithm>

#include "cli/grammar.h"
#include "cli/launch/mode.h"
#include "cli/parse.h"

namespace primus::cli {
namespace {

constexpr std::size_t kColumn = 26;  // column where explanations begin
constexpr std::size_t kNarrowest = 40, kWidest = 100;

std::size_t used(std::size_t width) { return std::clamp(width, kNarrowest, kWidest); }

std::string default_of(const Argument& argument) {
  struct Show {
    std::string operator()(const bool*) const { return {}; }
    std::string operator()(const std::string* value) const { return *value; }
    std::string operator()(const std::int64_t* value) const { return fmt::format("{}", *value); }
    std::string operator()(const double* value) const { return fmt::format("{}", *value); }
    std::string operator()(const std::optional<std::string>*) const { return {}; }
    std::string operator()(const std::optional<std::int64_t>*) const { return {}; }
    std::string operator()(const std::optional<double>*) const { return {}; }
    std::string operator()(const std::vector<std::string>*) const { return {}; }
  };
  const std::string value =
      argument.shown_default.empty() ? std::visit(Show{}, argument.target) : argument.shown_default;
  return value.empty() || argument.required ? std::string() : fmt::format(" (default: {})", value);
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string out;
  std::size_t column = indent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (column > indent && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

// Wraps paragraphs, which are separated by empty lines. Lines that begin with a space keep their breaks.
std::string paragraphs(std::string_view text, std::size_t width) {
  std::string out, paragraph;
  const auto end = [&] {
    if (!paragraph.empty()) out += wrapped(paragraph, 0, width) + "\n";
    paragraph.clear();
  };
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty() || line.starts_with(' ')) {
      end();
      out += std::string(line) + "\n";
    } else {
      paragraph += (paragraph.empty() ? "" : " ") + std::string(line);
    }
  }
  end();
  return out;
}

std::string row(const std::string& left, const std::string& right, std::size_t width) {
  std::string line = "  " + left;
  if (line.size() + 2 > kColumn) {
    line += "\n" + std::string(kColumn, ' ');
  } else {
    line.resize(kColumn, ' ');
  }
  return line + wrapped(right, kColumn, width) + "\n";
}

std::string indented(std::string_view lines) {
  std::string out;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    out += fmt::format("  {}\n", line);
  }
  return out;
}

std::string option_rows(const Arguments& arguments, std::size_t width) {
  std::string rows;
  for (const Argument& a : arguments.all()) {
    if (a.names.empty()) continue;
    rows += row(fmt::format("{}{}{}", fmt::join(a.names, ", "), a.value.empty() ? "" : " ", a.value),
                explanation(a), width);
  }
  return rows;
}

std::string command_table(std::string_view group, std::size_t width) {
  std::string text;
  for (const CommandEntry& entry : commands()) {
    if (!group.empty() && !entry.name.starts_with(std::string(group) + " ")) continue;
    text += row(std::string(entry.name), std::string(entry.summary), width);
  }
  return text;
}

std::string mode_table(std::size_t width) {
  std::string text;
  for (const ModeEntry& mode : modes()) {
    text += row(std::string(mode.about.name), std::string(mode.about.summary), width);
  }
  return text;
}

}  // namespace

std::string explanation(const Argument& argument) {
  std::string text = argument.help;
  if (!argument.choices.empty()) text += fmt::format(": {}", fmt::join(argument.choices, ", "));
  return text + (argument.required && !argument.names.empty() ? " (required)" : default_of(argument));
}

std::string overview_text(const std::string& program, std::size_t width) {
  width = used(width);
  GlobalOptions globals;
  Arguments arguments;
  globals.declare(arguments);
  const std::string with_mode =
      wrapped(program + " [--debug] [--dry-run] [--config FILE] <mode> [mode options] -- <command> [options]",
              4, width);
  return fmt::format(
      "{1}.\n\n"
      "Usage:\n"
      "  {0} [--debug] <command> [options]\n"
      "  {7}\n\n"
      "Commands:\n{2}\n"
      "Modes:\n{3}\n"
      "Options:\n{4}{5}\n"
      "Examples:\n{6}",
      program, wrapped(kProgramSummary, 0, width - 1), command_table({}, width), mode_table(width),
      option_rows(arguments, width),
      row("-h, --help", "show this text; after a command, the help of that command", width),
      indented(kProgramExamples), with_mode);
}

std::string group_help_text(const std::string& group, const std::string& program, std::size_t width) {
  return fmt::format(
      "Usage:\n  {0} {1} <command> [options]\n\nCommands:\n{2}\n'{0} {1} <command> --help' shows the help of "
      "a command.\n",
      program, group, command_table(group, used(width)));
}

std::string help_text(const CommandEntry& entry, const Arguments& arguments, const std::string& program,
                      std::size_t width) {
  width = used(width);
  std::string usage = fmt::format("{} {}", program, entry.name), positionals;
  for (const Argument& a : arguments.all()) {
    if (a.names.empty()) {
      usage += a.required ? " " + a.value : fmt::format(" [{}]", a.value);
      positionals += row(a.value, explanation(a), width);
      continue;
    }
    if (a.required) usage += fmt::format(" {} {}", a.names.front(), a.value);
  }
  usage += " [options]";
  if (entry.make == nullptr) usage += " -- <command> [options]";  // a mode
  if (arguments.rest()) {
    if (entry.make != nullptr) usage += fmt::format(" [{}]", arguments.rest()->value);
    positionals += row(arguments.rest()->value, arguments.rest()->help, width);
  }
  std::string text =
      fmt::format("{}.\n\nUsage:\n  {}\n", wrapped(entry.summary, 0, width - 1), wrapped(usage, 2, width));
  if (!entry.details.empty()) text += "\n" + paragraphs(entry.details, width);
  if (!positionals.empty()) text += "\nArguments:\n" + positionals;
  text += "\nOptions:\n" + option_rows(arguments, width) + row("-h, --help", "this text", width);
  if (!entry.examples.empty()) text += "\nExamples:\n" + indented(entry.examples);
  return text;
}

}  // namespace primus::cli
