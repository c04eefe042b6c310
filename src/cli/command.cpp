#include "cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/files/file.h"

namespace primus::cli {

void Console::print(std::string_view text) const { write_raw(printable(text)); }

void Console::print(Color color, std::string_view text) const {
  write_raw(paint(out, color, printable(text)));
}

void Console::write(std::string_view bytes) const { out.tty ? print(bytes) : write_raw(bytes); }

void Console::write_raw(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::write(out.fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw FileError("cannot write to standard output", errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Console::note(std::string_view text) const {
  constexpr int kWaitMs = 1000;
  try_write(err.fd, printable(text) + "\n", kWaitMs);
}

void Console::notes(const std::vector<std::string>& texts) const {
  for (const std::string& text : texts) note("note: " + text);
}

namespace {

std::vector<std::string> split_names(std::string_view names) {
  std::vector<std::string> out;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    out.emplace_back(name);
  }
  return out;
}

}  // namespace

std::vector<std::string> all_of_them(const std::vector<std::string>& values) { return values; }

Argument& Argument::between(double minimum, double maximum) {
  range.emplace(minimum, maximum);
  return *this;
}

Argument& Arguments::option(std::string_view names, std::string value, Target target, std::string help) {
  return arguments_.emplace_back(Argument{split_names(names), std::move(value), std::move(help), target});
}

Argument& Arguments::flag(std::string_view names, bool& target, std::string help) {
  return option(names, "", &target, std::move(help));
}

Argument& Arguments::positional(std::string value, Target target, std::string help) {
  Argument& argument = option("", std::move(value), target, std::move(help));
  argument.required = true;
  return argument;
}

Argument& Arguments::rest(std::string value, std::vector<std::string>& target, std::string help) {
  return rest_.emplace(Argument{{}, std::move(value), std::move(help), &target});
}

const Argument* Arguments::find(std::string_view name) const {
  name = name.substr(0, name.find('='));
  for (const Argument& argument : arguments_) {
    const auto& names = argument.names;
    if (std::find(names.begin(), names.end(), name) != names.end()) return &argument;
  }
  return nullptr;
}

void Arguments::refuse(std::string_view names, const std::string& reason, const std::string& instead) {
  for (std::string& name : split_names(names)) refusals_.push_back({std::move(name), reason, instead});
}

}  // namespace primus::cli
