// Tests of AMD Primus's hybrid models (model_type: mamba), translated to blocks of the native engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

std::string hybrid(const std::string& spec, const std::string& more) {
  return experiment_text("      model_type: mamba\n      is_hybrid_model: true\n      spec: [layer_specs, " +
                         spec + "]\n" + more);
}

std::string with_layers(int layers, const std::string& more,
                        const std::string& spec = "gdn_hybrid_stack_spec") {
  std::string text = hybrid(spec, more);
  const std::string before = "num_layers: 2\n";
  return text.replace(text.find(before), before.size(), "num_layers: " + std::to_string(layers) + "\n");
}

Words linear(int layers, const std::string& more) {
  const TrainerConfig c = load_text(with_layers(layers, more)).trainer;
  EXPECT_EQ(c.num_layers, layers / 2);
  return c.linear_attention_freq;
}

TEST(Hybrid, TheSpecNamesTheFamily) {
  for (const auto& [spec, family] : {std::pair("gdn_hybrid_stack_spec", "gated_deltanet"),
                                     {"gdn_hybrid_stack_spec_no_te", "gated_deltanet"},
                                     {"kda_hybrid_stack_spec", "kda"},
                                     {"kda_hybrid_stack_spec_no_te", "kda"}}) {
    const Experiment e =
        load_text(hybrid(spec, "      position_embedding_type: none\n      use_short_conv: true\n"));
    EXPECT_EQ(e.trainer->model_type, family);
    EXPECT_EQ(e.trainer->num_layers, 1);
    EXPECT_EQ(e.trainer->linear_attention_freq, Words{"1"});
    EXPECT_EQ(e.provenance_of("num_layers").describe(), "exp.yaml:9:19");
    EXPECT_TRUE(e.warnings.empty());
    EXPECT_TRUE(e.ignored.empty());
  }
}

TEST(Hybrid, PatternsAndRatiosBecomeListsOfLayers) {
  EXPECT_EQ(linear(8, ""), (Words{"1", "1", "1", "1"}));
  EXPECT_EQ(linear(8, "      hybrid_attention_ratio: 0.0\n"), (Words{"1", "1", "1", "1"}));
  EXPECT_EQ(linear(8, "      hybrid_attention_ratio: 0.25\n"), (Words{"0", "1", "1", "1"}));
  // The pattern overrides the ratio.
  EXPECT_EQ(linear(8, "      hybrid_attention_ratio: 0.25\n      hybrid_override_pattern: \"M-M-*-M-\"\n"),
            (Words{"1", "1", "0", "1"}));
  // Two of 7 and four of 5 layers have attention, at the places that HybridStack.allocate_layers chooses.
  EXPECT_EQ(linear(14, "      hybrid_attention_ratio: 0.3\n"), (Words{"0", "1", "1", "0", "1", "1", "1"}));
  EXPECT_EQ(linear(10, "      hybrid_attention_ratio: 0.8\n"), (Words{"0", "0", "0", "0", "1"}));
}

TEST(Hybrid, StateSpaceLayersAreRefusedByName) {
  EXPECT_THAT(error_of(hybrid("hybrid_stack_spec", "")),
              HasSubstr("exp.yaml:16:13: error: spec hybrid_stack_spec has Mamba's state-space layers"));
  EXPECT_THAT(error_of(experiment_text("      model_type: mamba\n")),
              HasSubstr("model_type mamba without a spec has Mamba's state-space layers"));
}

TEST(Hybrid, InvalidPatternsAreRefused) {
  EXPECT_THAT(error_of(with_layers(7, "")),
              HasSubstr("num_layers is 7, but with model_type mamba it must be even"));
  EXPECT_THAT(error_of(with_layers(6, "      hybrid_override_pattern: \"M-M-\"\n")),
              HasSubstr("hybrid_override_pattern has 4 layers, but num_layers is 6"));
  for (const char* pattern : {"M-MM", "M--M", "M-E-", "-M-M"}) {
    EXPECT_THAT(error_of(with_layers(4, "      hybrid_override_pattern: \"" + std::string(pattern) + "\"\n")),
                HasSubstr("does not have a pair of mixer and feed-forward"))
        << pattern;
  }
  EXPECT_THAT(error_of(with_layers(4, "      hybrid_attention_ratio: 1.5\n")), HasSubstr("between 0 and 1"));
  EXPECT_THAT(error_of(with_layers(4, "      use_short_conv: false\n")),
              HasSubstr("use_short_conv: false is not"));
  EXPECT_THAT(error_of(with_layers(4, "      decoder_first_pipeline_num_layers: 2\n")),
              HasSubstr("decoder_first_pipeline_num_layers is not supported for model_type mamba"));
}

// The native engine refuses these keys for other models.
TEST(Hybrid, OtherModelsHaveNoPattern) {
  for (const char* line :
       {"is_hybrid_model: true", "hybrid_override_pattern: M-M-", "spec: [a, gdn_hybrid_stack_spec]"})
    EXPECT_NE(error_of(experiment_text("      " + std::string(line) + "\n")), "") << line;
}

}  // namespace
}  // namespace primus::config
