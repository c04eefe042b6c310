// Tests of keys that the native engine does not read: each key has no effect, is expressed by other keys, is
// replaced with a note, or is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "config/keys.h"
#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Pair;

bool is_alone(char c) { return c == ',' || c == ' '; }

// Splits "a, b" into words.
std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> found;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = static_cast<std::size_t>(
        std::find_if(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), is_alone) - text.begin());
    if (end > begin) found.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

TEST(KeyClasses, EveryIgnoredKeyHasAClass) {
  int without_meaning = 0;
  for (const KeySpec& key : all_keys()) {
    if (key.has_meaning_for(Framework::kNative)) {
      EXPECT_EQ(key.native_class, KeyClass::kNone) << key.name;
      continue;
    }
    ++without_meaning;
    EXPECT_NE(key.native_class, KeyClass::kNone)
        << key.name << ": other_keys.def needs a rule: no_effect, said_by, replaced or only";
    EXPECT_EQ(key.native_class == KeyClass::kRefused, !key.native_values.empty()) << key.name;
    if (key.native_class == KeyClass::kReplaced) {
      EXPECT_GT(key.instead.size(), 10U) << key.name;
    }
    if (key.native_class != KeyClass::kSaidBy) continue;
    for (const std::string& other : words(key.instead)) {
      const KeySpec* const there = find_key(other);
      ASSERT_TRUE(there) << key.name << " is expressed by " << other;
      EXPECT_TRUE(there->has_meaning_for(Framework::kNative)) << other;
    }
  }
  EXPECT_GT(without_meaning, 400);
}

// Keys that affect memory or the algorithm do not have the class kNoEffect.
TEST(KeyClasses, KeysOfMemoryOrAlgorithmsAreNotIgnored) {
  for (const char* const name :
       {"optimizer_cpu_offload", "use_megatron_fsdp", "patch_zero_bubble", "fp8_param_gather",
        "use_turbo_deepep", "use_turbo_mega_moe", "ckpt_format", "record_memory_history",
        "generate_tracelens_report", "dump_pp_data", "enable_turbo_attention_float8", "cpu_offload",
        "offload", "num_seq_splits", "moe_layer_recompute", "decoder_pipeline_manual_split_list",
        "encoder_seq_length", "vision_pretraining"}) {
    const KeySpec* const key = find_key(name);
    ASSERT_TRUE(key) << name;
    EXPECT_NE(key->native_class, KeyClass::kNoEffect) << name;
  }
}

TEST(KeyClasses, AReplacedKeyIsNamedIfItHasAnEffect) {
  const auto replaced = [](const std::string& overrides) {
    return load_text(experiment_text(overrides)).replaced;
  };
  EXPECT_THAT(replaced("      use_turbo_deepep: true\n      ckpt_format: torch_dist\n"),
              ElementsAre(Pair("ckpt_format", HasSubstr("safetensors")),
                          Pair("use_turbo_deepep", HasSubstr("moe_token_dispatcher_type"))));
  EXPECT_THAT(
      replaced("      use_turbo_deepep: false\n      distributed_backend: nccl\n      rerun_mode: null\n"
               "      override_opt_param_scheduler: true\n"),
      IsEmpty());
  EXPECT_THAT(replaced("      override_opt_param_scheduler: false\n      distributed_backend: gloo\n"),
              ElementsAre(Key("distributed_backend"), Key("override_opt_param_scheduler")));
  // sequence_parallel has an effect only with tensor parallelism.
  EXPECT_THAT(replaced("      sequence_parallel: false\n"), IsEmpty());
  EXPECT_THAT(replaced("      sequence_parallel: false\n      tensor_model_parallel_size: 2\n"),
              ElementsAre(Key("sequence_parallel")));
}

TEST(KeyClasses, OffloadIsRefusedByName) {
  EXPECT_THAT(error_of(experiment_text("      optimizer_cpu_offload: true\n")),
              AllOf(HasSubstr("exp.yaml:14:30"), HasSubstr("optimizer_cpu_offload is true"),
                    HasSubstr("or set optimizer_cpu_offload: false")));
  EXPECT_EQ(error_of(experiment_text("      optimizer_cpu_offload: true\n"), {"optimizer_cpu_offload=false"}),
            "");
  EXPECT_EQ(error_of(experiment_text("      optimizer_cpu_offload: true\n"), {"framework=megatron"}), "");
  EXPECT_THAT(error_of(experiment_text("      offload: true\n")), HasSubstr("offload is true"));
  EXPECT_EQ(error_of(experiment_text("      turbo_mega_moe_precision: mxfp8\n")), "");
  EXPECT_THAT(
      error_of(experiment_text("      turbo_mega_moe_precision: mxfp8\n      use_turbo_mega_moe: true\n")),
      HasSubstr("turbo_mega_moe_precision is 'mxfp8'"));
}

// AMD Primus's older key for zero-bubble pipelines selects the same schedules as the newer key.
TEST(KeyClasses, ZeroBubbleKeysNameASchedule) {
  const auto schedule = [](const std::string& overrides) {
    const Experiment e =
        load_text(experiment_text("      patch_zero_bubble: true\n"
                                  "      pipeline_model_parallel_size: 2\n" +
                                  overrides));
    EXPECT_EQ(e.trainer->patch_primus_pipeline, e.replaced.contains("patch_zero_bubble"));
    return e.trainer->patch_primus_pipeline ? e.trainer->pp_algorithm : "none";
  };
  EXPECT_EQ(schedule(""), "zero-bubble");
  EXPECT_EQ(schedule("      enable_zero_bubble: false\n"), "none");
  EXPECT_EQ(schedule("      zero_bubble_v_schedule: true\n"), "v-half");
  EXPECT_EQ(schedule("      zero_bubble_v_schedule: true\n      zero_bubble_v_schedule_mem_setup: min\n"),
            "v-min");
  EXPECT_EQ(schedule("      zero_bubble_v_schedule: true\n      zero_bubble_v_schedule_mem_setup: zb\n"),
            "zbv-formatted");
  EXPECT_EQ(schedule("      zero_bubble_max_pending_backward: auto\n"), "zero-bubble");
  const std::string patch = "      patch_zero_bubble: true\n";
  EXPECT_THAT(error_of(experiment_text(patch + "      enable_1f1b_v: true\n")),
              HasSubstr("no 1F1B-V schedule"));
  EXPECT_THAT(error_of(experiment_text(patch + "      zero_bubble_max_pending_backward: 16\n"
                                               "      pipeline_model_parallel_size: 8\n")),
              HasSubstr("ZB-H2"));
  EXPECT_THAT(
      error_of(experiment_text(patch + "      patch_primus_pipeline: true\n      pp_algorithm: v-min\n")),
      HasSubstr("patch_zero_bubble selects the schedule zero-bubble, but pp_algorithm is v-min"));
  EXPECT_EQ(load_text(experiment_text("")).trainer->patch_primus_pipeline, false);
}

}  // namespace
}  // namespace primus::config
