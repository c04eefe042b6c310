// Tests that no key is silently ignored: the engine reads every key that keys.def calls native, and no other
// key.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "config/keys.h"

namespace primus::config {
namespace {

namespace fs = std::filesystem;

// Returns the text of all sources of the native engine.
std::string engine_sources() {
  const fs::path root = fs::path(PRIMUS_SOURCE_DIR) / "src";
  std::stringstream text;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".cpp" && path.extension() != ".h") continue;
    const fs::path floor = *path.lexically_relative(root).begin();
    if (floor == "config" || floor == "backends") continue;  // keys for other frameworks do not count
    text << std::ifstream(path).rdbuf();
  }
  return text.str();
}

// Returns whether `text` has a member access .name or ->name.
bool reads(const std::string& text, std::string_view name) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const bool member = at >= 2 && (text[at - 1] == '.' || (text[at - 1] == '>' && text[at - 2] == '-'));
    const char after = at + name.size() < text.size() ? text[at + name.size()] : ' ';
    if (member && !std::isalnum(static_cast<unsigned char>(after)) && after != '_') return true;
  }
  return false;
}

// Returns `text` with one space in place of the white space after each comma.
std::string with_single_spaces(const std::string& text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    result += text[at];
    if (text[at] != ',') continue;
    const std::size_t end = std::min(text.find_first_not_of(" \t\r\n\f\v", at + 1), text.size());
    if (end > at + 1) result += ' ';
    at = end - 1;
  }
  return result;
}

// Returns whether the key `name` sets a field of a model. `declarations` has lines PRIMUS_MODEL_FIELD(PART,
// type, member, initial, setting, when_loaded, "keys") and the lines of lm/model/model_fields.def.
bool decides_a_field(const std::string& declarations, std::string_view name) {
  return declarations.find(fmt::format(", {}, k", name)) != std::string::npos;
}

TEST(Usage, NativeKeysAreRead) {
  // src/config translates these keys to other keys, or compares them with other keys.
  const std::set<std::string_view> folded = {"group_query_attention",
                                             "use_rope_scaling",
                                             "make_vocab_size_divisible_by",
                                             "rope_type",
                                             "train_tokens",
                                             "sink_sliding_window",
                                             "sink_window_even_layers_only",
                                             "pretrained_checkpoint",
                                             "hf_path"};
  // These keys are compared with model_type by name (lm/model/model_settings.cpp).
  const std::set<std::string_view> switches = {"add_qkv_bias",      "add_bias_linear",
                                               "qk_layernorm",      "swiglu",
                                               "quick_geglu",       "activation_func_clamp_value",
                                               "glu_linear_offset", "softmax_type",
                                               "rotary_interleaved"};
  const std::string text = engine_sources();
  std::stringstream fields;
  fields << std::ifstream(fs::path(PRIMUS_SOURCE_DIR) / "src/lm/model/model_fields.def").rdbuf() << text;
  const std::string declarations = with_single_spaces(fields.str());
  for (const KeySpec& key : all_keys()) {
    if (std::holds_alternative<std::monostate>(key.field)) continue;
    if (!key.has_meaning_for(Framework::kNative)) {
      EXPECT_FALSE(reads(text, key.name)) << key.name << " is read: take .not_native() off it in keys.def";
    } else if (key.native_values.empty() && !folded.contains(key.name)) {
      const bool is_switch = switches.contains(key.name) &&
                             text.find(fmt::format("{{\"{}\", \"", key.name)) != std::string::npos;
      EXPECT_TRUE(is_switch || reads(text, key.name) || decides_a_field(declarations, key.name))
          << key.name << " is never read: mark it .not_native() or .only(...)";
    }
  }
}

}  // namespace
}  // namespace primus::config
