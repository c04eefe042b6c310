#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "base/text/suggest.h"
#include "config/hybrid.h"
#include "config/keys.h"
#include "config/loading/loading.h"
#include "config/lora_settings.h"
#include "config/losses.h"
#include "config/trainer_config.h"
#include "config/validation/not_yet.h"

namespace primus::config {
namespace {

class Binding {
 public:
  explicit Binding(Loading& loading)
      : framework_(loading.framework),
        layers_(loading.layers),
        names_(loading.names),
        problems_(loading.problems),
        result_(loading.result) {}

  // Binds the merged settings to typed fields.
  void bind() {
    result_.settings.kind = Value::Kind::kMap;
    // The warm-up is given in steps or as a fraction of the decay. If two layers set both keys, the stronger
    // layer's key is used.
    resolve_warmup();
    resolve_length();
    resolve_data();
    resolve_tokenizer();
    if (framework_ == Framework::kNative) take_hybrid(result_.settings, layers_, problems_);
    for (const Member& member : result_.settings.members) {
      const KeySpec& key = *find_key(member.key);
      problems_.collect([&] {
        assign(key.name == name_of_key(&TrainerConfig::loss_type) ? loss_of_stage(key) : key, member.value,
               result_.trainer);
        if (framework_ == Framework::kNative && !is_moot(key.name)) require_native_support(key, member.value);
        if (framework_ == Framework::kNative && key.name == "lora") read_lora(member.value);
        note_replaced(key, member.value);
      });
      if (!key.has_meaning_for(framework_) && !is_default_of_engine(key, member.value))
        result_.ignored.emplace_back(key.name);
      Origin origin = member.value.origin.source ? member.value.origin : member.origin;
      const std::string& name = names_[member.key];
      result_.provenance[member.key] = {layers_[member.key], std::move(origin),
                                        name == member.key ? "" : name};
    }
    std::sort(result_.ignored.begin(), result_.ignored.end());
  }

 private:
  // Returns whether a key's value is irrelevant because of another key.
  bool is_moot(std::string_view key) const {
    const auto is_on = [&](std::string_view other) {
      const Value* const value = result_.settings.find(other);
      return value && value->kind == Value::Kind::kBool && value->boolean;
    };
    if (key == "exit_on_missing_checkpoint") {
      const Value* load = result_.settings.find("load");
      return !load || load->is_null();
    }
    if (key == "turbo_mega_moe_precision") return !is_on("use_turbo_mega_moe");
    if (key == "sequence_parallel") {
      const Value* tensor = result_.settings.find("tensor_model_parallel_size");
      return !tensor || (tensor->kind == Value::Kind::kInt && tensor->integer == 1);
    }
    return false;
  }

  // Returns whether the native engine always does what the value requests, so that no note is needed.
  bool is_default_of_engine(const KeySpec& key, const Value& value) const {
    return framework_ == Framework::kNative && key.name == "sequence_parallel" && value.boolean;
  }

  // Returns the key `loss_type` with the losses of the stage as its choices, so that errors list only these.
  KeySpec loss_of_stage(const KeySpec& key) const {
    KeySpec limited = key;
    const Value* const stage = result_.settings.find("stage");
    const auto losses = losses_of(stage ? stage->text : "");
    if (!losses.empty()) limited.choices.assign(losses.begin(), losses.end());
    return limited;
  }

  // Records a note about the replacement that the native engine uses for the requested value. Skips keys from
  // presets, since AMD Primus's presets set hundreds of them.
  void note_replaced(const KeySpec& key, const Value& value) {
    if (framework_ != Framework::kNative || layers_[std::string(key.name)] < Layer::kOverrides) return;
    if (is_moot(key.name) || !asks_for_more(key, value)) return;
    result_.replaced.emplace(key.name, key.instead);
  }

  void resolve_warmup() {
    const Member* iters = result_.settings.find_member("lr_warmup_iters");
    const Member* fraction = result_.settings.find_member("lr_warmup_fraction");
    if (!iters || !fraction || iters->value.is_null() || fraction->value.is_null()) return;
    if (iters->value.kind == Value::Kind::kInt && iters->value.integer == 0) return;
    const Layer of_iters = layers_["lr_warmup_iters"], of_fraction = layers_["lr_warmup_fraction"];
    if (of_iters == of_fraction) {
      problems_.add(error_at(fraction->origin, "lr_warmup_iters and lr_warmup_fraction exclude each other",
                             "keep one of the two", fraction->key.size()));
      return;
    }
    const std::string weaker = of_iters < of_fraction ? "lr_warmup_iters" : "lr_warmup_fraction";
    std::erase_if(result_.settings.members, [&](const Member& member) { return member.key == weaker; });
  }

  // Selects the key that sets the length of training. If several such keys are set, the key of the strongest
  // layer is used.
  void resolve_length() {
    const Member* chosen = nullptr;
    for (const char* name : {"train_iters", "train_epochs", "train_tokens", "train_minutes"}) {
      const Member* member = result_.settings.find_member(name);
      if (!member || member->value.is_null()) continue;
      if (!chosen || layers_[member->key] > layers_[chosen->key]) {
        chosen = member;
      } else if (layers_[member->key] == layers_[chosen->key]) {
        problems_.add(
            error_at(member->origin,
                     fmt::format("{} and {} exclude each other", names_[chosen->key], names_[member->key]),
                     "both set the length of training: keep one", member->key.size()));
        return;
      }
    }
    if (!chosen) return;
    const std::string kept = chosen->key;
    std::erase_if(result_.settings.members, [&](const Member& member) {
      const bool length = member.key == "train_iters" || member.key == "train_epochs" ||
                          member.key == "train_tokens" || member.key == "train_minutes";
      return length && member.key != kept;
    });
    if (kept != "train_iters") result_.trainer->train_iters = 0;
  }

  // Switches mock data off if a stronger layer sets training data: `data_path=FILE` on the command line
  // suffices to train on that file.
  void resolve_data() {
    const Member* mock = result_.settings.find_member("mock_data");
    if (!mock || mock->value.is_null()) return;
    const Layer of_mock = layers_["mock_data"];
    for (const char* name : {"data_path", "train_data_path"}) {
      const Member* paths = result_.settings.find_member(name);
      if (!paths || paths->value.is_null() || layers_[name] <= of_mock) continue;
      const bool none = paths->value.is_list() ? paths->value.items.empty() : paths->value.text.empty();
      if (none) continue;
      std::erase_if(result_.settings.members, [](const Member& member) { return member.key == "mock_data"; });
      return;
    }
  }

  // Drops tokenizer_type: ByteTokenizer, which has no file, if a stronger layer names a tokenizer file. The
  // format is then recognised from the file's content. So `tokenizer_model=FILE` also replaces the
  // ByteTokenizer of a preset.
  void resolve_tokenizer() {
    const Member* type = result_.settings.find_member("tokenizer_type");
    if (!type || !type->value.is_scalar() || !same_ignoring_case(type->value.text, "ByteTokenizer")) return;
    const Layer of_type = layers_["tokenizer_type"];
    for (const char* name : {"tokenizer_model", "vocab_file"}) {
      const Member* file = result_.settings.find_member(name);
      if (!file || file->value.is_null() || file->value.text.empty() || layers_[name] < of_type) continue;
      if (layers_[name] == of_type) {
        problems_.add(error_at(
            file->origin, fmt::format("tokenizer_type ByteTokenizer reads no file, but {} names one", name),
            "keep one of the two: without tokenizer_type, Primus detects the type from the file",
            file->key.size()));
        return;
      }
      std::erase_if(result_.settings.members,
                    [](const Member& member) { return member.key == "tokenizer_type"; });
      return;
    }
  }

  Framework& framework_;
  std::map<std::string, Layer>& layers_;
  std::map<std::string, std::string>& names_;
  Problems& problems_;
  Experiment& result_;
};

}  // namespace

void bind(Loading& loading) { Binding(loading).bind(); }

}  // namespace primus::config
