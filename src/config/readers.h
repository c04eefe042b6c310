// From text to a Value tree. Both readers are strict, because experiment files come from anywhere: at most 1
// MB, 64 levels deep, 65536 values; UTF-8 only; no duplicate keys, and in YAML no tags. What YAML's aliases
// and merge keys repeat counts as if it were written out. Everything else is an Error at its file:line:col.
// Memory stays within a few times the input.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "config/value.h"

namespace primus::config {

inline constexpr std::size_t kMaxDocumentBytes = 1u << 20;
inline constexpr int kMaxDepth = 64;
inline constexpr std::size_t kMaxValues = 65536;
inline constexpr std::size_t kMaxMembers = 4096;  // keys of one map

// The next step where one of these is exceeded.
inline constexpr const char* kTooMuchHint = "settings are small: is it an experiment?";
inline constexpr const char* kNoSettingsHint =
    "an experiment says what to run under modules:; examples/native/configs has some to copy";

// A source for text that came from the file `name`, without its byte order mark.
std::shared_ptr<const Source> make_source(std::string name, std::string text);

// Reads a file by its ending: .toml is TOML, everything else YAML (and so JSON). The result is always a map.
Value read_document(const std::filesystem::path& path);

// The same for text already in memory; source->name decides as the file's name does.
Value read_document(const std::shared_ptr<const Source>& source);

// One YAML value of an argument; every value in it has the origin `origin`.
Value read_yaml_inline(std::string_view text, const Origin& origin);

// The parts of read_document. `check_text` refuses what no reader should see.
void check_text(const std::shared_ptr<const Source>& source);
Value read_yaml(const std::shared_ptr<const Source>& source);
Value read_toml(const std::shared_ptr<const Source>& source);

}  // namespace primus::config
