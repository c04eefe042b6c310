// No key is accepted and then dropped without a word: every key that keys.def calls native is read by the
// engine, and every key that it calls not native is not.
#include <fmt/format.h>
#include <gtest/gtest.h>

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

// All sources outside src/config.
std::string engine_sources() {
  const fs::path root = fs::path(PRIMUS_SOURCE_DIR) / "src";
  std::stringstream text;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const fs::path& path = entry.path();
    if (path.extension() != ".cpp" && path.extension() != ".h") continue;
    if (*path.lexically_relative(root).begin() == "config") continue;
    text << std::ifstream(path).rdbuf();
  }
  return text.str();
}

// Whether `text` has a member access .name or ->name.
bool reads(const std::string& text, std::string_view name) {
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const bool member = at >= 2 && (text[at - 1] == '.' || (text[at - 1] == '>' && text[at - 2] == '-'));
    const char after = at + name.size() < text.size() ? text[at + name.size()] : ' ';
    if (member && !std::isalnum(static_cast<unsigned char>(after)) && after != '_') return true;
  }
  return false;
}

TEST(Usage, NativeKeysAreRead) {
  // These take effect through others, or are held against others, inside src/config.
  const std::set<std::string_view> folded = {"group_query_attention",
                                             "use_rope_scaling",
                                             "make_vocab_size_divisible_by",
                                             "rope_type",
                                             "train_tokens",
                                             "sink_sliding_window",
                                             "sink_window_even_layers_only",
                                             "deterministic_mode"};  // the engine has no other
  // Held against model_type by name (lm/model/model_settings.cpp).
  const std::set<std::string_view> switches = {"add_qkv_bias",      "add_bias_linear",
                                               "qk_layernorm",      "swiglu",
                                               "quick_geglu",       "activation_func_clamp_value",
                                               "glu_linear_offset", "softmax_type",
                                               "rotary_interleaved"};
  const std::string text = engine_sources();
  for (const KeySpec& key : all_keys()) {
    if (std::holds_alternative<std::monostate>(key.field)) continue;
    if (!key.has_meaning_for(Framework::kNative)) {
      EXPECT_FALSE(reads(text, key.name)) << key.name << " is read: take .not_native() off it in keys.def";
    } else if (key.native_values.empty() && !folded.contains(key.name)) {
      const bool is_switch = switches.contains(key.name) &&
                             text.find(fmt::format("{{\"{}\", \"", key.name)) != std::string::npos;
      EXPECT_TRUE(is_switch || reads(text, key.name))
          << key.name << " is never read: mark it .not_native() or .only(...)";
    }
  }
}

}  // namespace
}  // namespace primus::config
