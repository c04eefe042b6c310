// Parses text to a Value tree. Both readers are strict, because experiment files are untrusted. The readers
// accept at most 1 MB, 64 levels and 65536 values, only UTF-8, no duplicate keys and no YAML tags. The
// contents of YAML aliases and merge keys count each time they are used. All errors have a position
// file:line:col. Memory use is at most a small multiple of the input's size.
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
inline constexpr std::size_t kMaxMembers = 4096;  // max keys of one map

// The hint of errors about these limits.
inline constexpr const char* kTooMuchHint = "settings files are small: is this an experiment?";
inline constexpr const char* kNoSettingsHint =
    "an experiment lists what to run under modules:; examples/native/configs has some to copy";

// Makes a source from `text`, the content of the file `name`; removes a byte order mark.
std::shared_ptr<const Source> make_source(std::string name, std::string text);

// Makes a source from a file. Throws Error if the file cannot be read.
std::shared_ptr<const Source> read_source(const std::filesystem::path& path);

// Reads a file by its extension: .toml is TOML, and all other files are YAML (which includes JSON). The
// result is always a map.
Value read_document(const std::filesystem::path& path);

// Reads text in memory; the extension of source->name selects the format.
Value read_document(const std::shared_ptr<const Source>& source);

// Reads a command-line argument as one YAML value. The value and all values inside it have the origin
// `origin`.
Value read_yaml_inline(std::string_view text, const Origin& origin);

// The steps of read_document. `check_text` refuses invalid text before it is parsed.
void check_text(const std::shared_ptr<const Source>& source);
Value read_yaml(const std::shared_ptr<const Source>& source);
Value read_toml(const std::shared_ptr<const Source>& source);

}  // namespace primus::config
