#include "lm/reward/program_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/system/subprocess.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"

namespace primus {
namespace {

std::vector<std::string> words_of(const std::string& command, const std::string& setting,
                                  std::string_view form) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (const char c : command) {
    const bool space = quote == 0 && (c == ' ' || c == '\t');
    if (space) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) throw invalid(fmt::format("{}: a quote is not closed", setting));
  if (words.empty() || words.front().empty()) {
    throw invalid(fmt::format("{} names no program", setting), fmt::format("write {}", form));
  }
  return words;
}

// Returns whether a file is a script without the line "#!INTERPRETER". Binary programs contain zero bytes.
bool is_text_without_interpreter(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return false;  // the system may run files that this process cannot read
  std::string start(256, '\0');
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(in.gcount()));
  return !start.starts_with("#!") && start.find('\0') == std::string::npos;
}

std::string file_of(const std::string& name, const std::string& setting, const std::string& folder) {
  const auto local = std::filesystem::absolute(std::filesystem::path(folder) / name).lexically_normal();
  if (const std::string found = find_program(local.string(), {}); !found.empty()) {
    if (is_text_without_interpreter(local)) {
      throw invalid(
          fmt::format("{}: the system cannot run '{}', because its first line does not name an interpreter",
                      setting, printable(local.string())),
          fmt::format("begin the file with '#!/usr/bin/env python3', or put the interpreter before its name: "
                      "'python3 {}'",
                      name));
    }
    return found;
  }
  if (std::filesystem::is_regular_file(local)) {
    throw invalid(
        fmt::format("{}: '{}' is not executable", setting, printable(local.string())),
        fmt::format("run 'chmod +x {}', or put its interpreter before it: 'python3 {}'", name, name));
  }
  if (name.find('/') == std::string::npos) {
    const char* const path = std::getenv("PATH");
    if (const std::string found = find_program(name, path == nullptr ? "" : path); !found.empty())
      return found;
  }
  throw invalid(fmt::format("{}: the program '{}' does not exist", setting, printable(local.string())),
                "paths are relative to the current folder");
}

}  // namespace

ProgramCommand program_command(const std::string& command, const std::string& setting, std::string_view form,
                               const std::string& folder) {
  ProgramCommand made{.name = {}, .words = words_of(command, setting, form)};
  // The last word that names a file, as in "python3 reward.py".
  made.name = std::filesystem::path(made.words.front()).filename();
  for (std::size_t i = 1; i < made.words.size(); ++i) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(std::filesystem::path(folder) / made.words[i], ignored)) continue;
    made.name = std::filesystem::path(made.words[i]).filename();
    break;
  }
  made.words.front() = file_of(made.words.front(), setting, folder);
  return made;
}

std::string ended_program(const std::string& problem, const std::string& errors) {
  constexpr int kLines = 3;
  std::vector<std::string> lines;
  std::string_view text = errors;
  while (!text.empty() && std::ssize(lines) < kLines) {
    const std::size_t before = text.rfind('\n');
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    const std::string_view line = text.substr(begin);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      lines.insert(lines.begin(), printable(excerpt(line.substr(line.find_first_not_of(" \t\r")))));
    text = text.substr(0, before == std::string_view::npos ? 0 : before);
  }
  return lines.empty()
             ? problem
             : fmt::format("{}; its standard error ends with: {}", problem, fmt::join(lines, " | "));
}

Error broken_program(std::string_view kind, const std::string& name, int times, const std::string& problem,
                     const std::string& errors, std::string hint) {
  const std::string_view text = errors;
  const std::size_t end = text.find_last_not_of('\n') + 1;
  std::string lines;
  std::size_t begin = end;
  for (int line = 0; line < 8 && begin > 0; ++line) {
    const std::size_t before = text.rfind('\n', begin - 1);
    begin = before == std::string_view::npos ? 0 : before;
  }
  for (const char c : text.substr(begin, end - begin))
    lines += c == '\n' ? std::string("\n  ") : printable(std::string(1, c));
  return invalid(
      fmt::format("the {} '{}' failed {} times in a row: {}", kind, printable(name), times, problem) +
          (lines.empty() ? std::string(". It wrote nothing to its standard error")
                         : ". The end of its standard error:\n  " + lines),
      std::move(hint));
}

}  // namespace primus
