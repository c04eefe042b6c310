#include "config/readers.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "base/text/utf8.h"

namespace primus::config {
namespace {

// Limits the tokens of a document, because yaml-cpp queues all tokens after an open bracket. check_text()
// counts the characters that can start or separate tokens.
constexpr std::size_t kMaxTokens = 3 * kMaxValues;

bool is_toml(const std::string& name) {
  return name.size() >= 5 && name.compare(name.size() - 5, 5, ".toml") == 0;
}

std::string read_file(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw invalid(fmt::format("'{}' is a folder, not a file", path.string()),
                  "name the experiment file in that folder");
  }
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) {
    // Reports a missing or unreadable experiment as kInvalid instead of kIo, because the user gave a wrong
    // path.
    throw invalid(io_error(fmt::format("cannot read '{}'", path.string()), errno).what(),
                  "--config FILE names the experiment; examples/native/configs has some to copy");
  }
  std::string text;
  char block[65536];
  while (const std::size_t n = std::fread(block, 1, sizeof block, file.get())) {
    text.append(block, n);
    if (text.size() > kMaxDocumentBytes) break;
  }
  if (std::ferror(file.get())) throw io_error(fmt::format("cannot read '{}'", path.string()), errno);
  return text;
}

}  // namespace

void check_text(const std::shared_ptr<const Source>& source) {
  const std::string_view text = source->text;
  if (text.size() > kMaxDocumentBytes) {
    throw error_at({source},
                   fmt::format("settings files of more than {} MB are refused", kMaxDocumentBytes >> 20),
                   "is it an experiment? data belongs in other files");
  }
  int line = 1;
  const std::size_t valid = unicode::valid_prefix(text);
  std::size_t line_begin = 0, tokens = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const Origin here{source, line, static_cast<int>(i - line_begin) + 1, {}};
    if (i == valid)
      throw error_at(here, "this byte is not UTF-8, as settings files must be", "save the file as UTF-8");
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F) {
      throw error_at(here, fmt::format("control character 0x{:02x} in a settings file", static_cast<int>(c)),
                     "delete it, or write it as \\xNN in double quotes");
    }
    const char next = i + 1 < text.size() ? text[i + 1] : ' ';
    const bool before_blank = next == ' ' || next == '\t' || next == '\n' || next == '\r';
    if (std::string_view("[]{},:'\"&*!\n").find(c) != std::string_view::npos ||
        ((c == '-' || c == '?') && before_blank)) {
      if (++tokens > kMaxTokens) throw error_at(here, "too many values for a settings file", kTooMuchHint);
    }
    if (c == '\n') {
      ++line;
      line_begin = i + 1;
    }
  }
}

Value read_document(const std::shared_ptr<const Source>& source) {
  check_text(source);
  return is_toml(source->name) ? read_toml(source) : read_yaml(source);
}

std::shared_ptr<const Source> read_source(const std::filesystem::path& path) {
  return make_source(path.string(), read_file(path));
}

Value read_document(const std::filesystem::path& path) { return read_document(read_source(path)); }

std::shared_ptr<const Source> make_source(std::string name, std::string text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  auto source = std::make_shared<Source>();
  source->columns_in_bytes = !is_toml(name);
  source->name = std::move(name);
  source->text = std::move(text);
  return source;
}

}  // namespace primus::config
