#include "config/hybrid.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace primus::config {
namespace {

constexpr char kMixer = 'M', kAttention = '*', kFeedForward = '-';  // letters in patterns

class Hybrid {
 public:
  Hybrid(Value& settings, std::map<std::string, Layer>& layers) : settings_(settings), layers_(layers) {}

  void take() {
    const std::string family = family_of_spec();
    const Member* const count = settings_.find_member("num_layers");
    if (!count || count->value.kind != Value::Kind::kInt) return;  // another check reports num_layers
    refuse_stages_by_layers();
    refuse_without_convolution();
    const auto& [source, blocks] = mixers(*count);
    std::vector<Value> linear;
    for (const char mixer : blocks)
      linear.push_back(plain_scalar(mixer == kMixer ? "1" : "0", source->origin));
    Value list;
    list.kind = Value::Kind::kList;
    list.origin = source->value.origin;
    list.items = std::move(linear);
    const Origin at = source->origin;
    layers_["linear_attention_freq"] = layers_[source->key];
    put("num_layers", std::to_string(blocks.size()));
    put("model_type", family);
    settings_.set("linear_attention_freq", at, std::move(list));
    // Drops position_embedding_type: none. The key has no effect here: latent attention always has its own
    // rotary positions, and all other layers have no positions.
    const Value* const positions = settings_.find("position_embedding_type");
    const bool none = positions && positions->text == "none";
    std::erase_if(settings_.members, [&](const Member& m) {
      return m.key == "is_hybrid_model" || m.key == "hybrid_attention_ratio" ||
             m.key == "hybrid_override_pattern" || m.key == "spec" || m.key == "use_short_conv" ||
             (none && m.key == "position_embedding_type");
    });
  }

 private:
  struct Mixers {
    const Member* source;  // the key that sets the pattern
    std::string blocks;    // the mixer's letter for each block
  };

  Error refuse(const Member& member, std::string what, std::string hint) const {
    const Value& value = member.value;
    const Origin& at = value.origin.source ? value.origin : member.origin;
    return unsupported(std::move(what), std::move(hint)).at(at.location(), at.snippet(value.width()));
  }

  // Replaces the value of a key and keeps its origin.
  void put(std::string_view key, std::string_view text) {
    const Member& member = *settings_.find_member(key);
    settings_.set(std::string(key), member.origin, plain_scalar(text, member.value.origin));
  }

  std::string family_of_spec() const {
    const Member* const spec = settings_.find_member("spec");
    const bool said = spec && spec->value.is_list() && !spec->value.items.empty();
    const std::string name = said ? spec->value.items.back().text : "";
    if (name == "gdn_hybrid_stack_spec" || name == "gdn_hybrid_stack_spec_no_te") return "gated_deltanet";
    if (name == "kda_hybrid_stack_spec" || name == "kda_hybrid_stack_spec_no_te") return "kda";
    const char* const hint =
        "set framework: megatron, which has Mamba's layers, or choose gdn_hybrid_stack_spec or "
        "kda_hybrid_stack_spec as the spec";
    if (!said) {
      throw refuse(*settings_.find_member("model_type"),
                   "model_type mamba without a spec has Mamba's state-space layers, which the native engine "
                   "does not support",
                   hint);
    }
    throw refuse(
        *spec,
        fmt::format("spec {} has Mamba's state-space layers, which the native engine does not support", name),
        hint);
  }

  // Refuses keys that count the layers of a stage. AMD Primus counts a mixer and its feed-forward as two
  // layers, but the native engine counts both as one block.
  void refuse_stages_by_layers() const {
    for (const char* const key :
         {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
          "num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_layout"}) {
      const Member* const member = settings_.find_member(key);
      if (!member || member->value.is_null()) continue;
      throw refuse(*member, fmt::format("{} is not supported for model_type mamba", key),
                   fmt::format("leave {} out: all stages get equal numbers of blocks", key));
    }
  }

  void refuse_without_convolution() const {
    const Member* const member = settings_.find_member("use_short_conv");
    if (!member || member->value.is_null() || member->value.boolean) return;
    throw refuse(*member,
                 "use_short_conv: false is not supported: gated delta networks convolve their inputs",
                 "set use_short_conv to true");
  }

  Mixers mixers(const Member& count) const {
    if (const Member* const pattern = settings_.find_member("hybrid_override_pattern");
        pattern && !pattern->value.is_null())
      return {pattern, by_pattern(*pattern, count)};
    if (count.value.integer < 2 || count.value.integer % 2 != 0) {
      throw refuse(count,
                   fmt::format("num_layers is {}, but with model_type mamba it must be even: each block "
                               "counts as two layers, a mixer and a feed-forward",
                               count.value.integer),
                   "set num_layers to twice the number of blocks");
    }
    const std::int64_t blocks = std::min<std::int64_t>(count.value.integer / 2, kMaxBlocks);
    const Member* const ratio = settings_.find_member("hybrid_attention_ratio");
    if (!ratio || ratio->value.is_null())
      return {&count, std::string(static_cast<std::size_t>(blocks), kMixer)};
    return {ratio, by_ratio(*ratio, blocks)};
  }

  std::string by_pattern(const Member& pattern, const Member& count) const {
    const std::string& text = pattern.value.text;
    if (static_cast<std::int64_t>(text.size()) != count.value.integer) {
      throw refuse(pattern,
                   fmt::format("hybrid_override_pattern has {} layers, but num_layers is {}", text.size(),
                               count.value.integer),
                   "write one letter for each layer");
    }
    std::string blocks;
    for (std::size_t at = 0; at < text.size(); at += 2) {
      const bool mixes = text[at] == kMixer || text[at] == kAttention;
      if (!mixes || at + 1 == text.size() || text[at + 1] != kFeedForward) {
        throw refuse(
            pattern,
            fmt::format(
                "hybrid_override_pattern '{}' does not have a pair of mixer and feed-forward at letter {}",
                text, at + 1),
            "write M- for a block with linear attention, and *- for one with attention");
      }
      blocks += text[at];
    }
    return blocks;
  }

  // Distributes attention layers as AMD Primus does (HybridStack.allocate_layers).
  std::string by_ratio(const Member& ratio, std::int64_t blocks) const {
    const double share =
        ratio.value.kind == Value::Kind::kInt ? static_cast<double>(ratio.value.integer) : ratio.value.real;
    if (!(share >= 0 && share <= 1))
      throw refuse(ratio, "hybrid_attention_ratio must be between 0 and 1",
                   "set it to the share of blocks that have attention");
    const auto attention = static_cast<std::int64_t>(static_cast<double>(blocks) * share);
    const std::int64_t linear = blocks - attention;
    const auto repeated = [](const std::string& unit, std::int64_t times) {
      std::string all;
      for (std::int64_t i = 0; i < times; ++i) all += unit;
      return all;
    };
    const std::string mixer(1, kMixer), attends(1, kAttention);
    if (attention == 0) return repeated(mixer, linear);
    if (share <= 0.5)
      return repeated(attends + repeated(mixer, linear / attention), attention) +
             repeated(mixer, linear % attention);
    return repeated(attends, attention - linear) + repeated(attends + mixer, linear);
  }

  static constexpr std::int64_t kMaxBlocks = 10000;

  Value& settings_;
  std::map<std::string, Layer>& layers_;
};

}  // namespace

void take_hybrid(Value& settings, std::map<std::string, Layer>& layers, Problems& problems) {
  const Value* const type = settings.find("model_type");
  if (!type || type->text != "mamba") return;
  problems.collect([&] { Hybrid(settings, layers).take(); });
}

}  // namespace primus::config
