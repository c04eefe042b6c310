// Every preset equals the published model in config.json and parameter count. The memory and the work of
// every example can be predicted without a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "config/trainer_config.h"
#include "engine/runtime/rank.h"
#include "lm/model/family.h"
#include "lm/model/language_model.h"
#include "lm/model/model_size.h"
#include "lm/train/settings/training_settings.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = PRIMUS_SOURCE_DIR;
const fs::path kPresets = kSource / "presets";

config::LoadOptions load_options() {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs = {kPresets};
  return options;
}

config::Experiment experiment_with(const std::string& preset) {
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules: {pre_trainer: {config: pre_trainer.yaml, model: " +
      preset + ".yaml, overrides: {mock_data: true, seq_length: 512}}}\n";
  config::Experiment experiment = config::load_experiment_text(text, "exp.yaml", {}, load_options());
  EXPECT_TRUE(experiment.ignored.empty());
  EXPECT_TRUE(experiment.warnings.empty());
  return experiment;
}

ModelConfig model_of_preset(const std::string& preset, const FamilyRegistry& families) {
  return model_config_of(experiment_with(preset), std::nullopt, families);
}

// Checks the forecast of `train pretrain --dry-run`, except the time.
void expect_forecast(const config::Experiment& experiment, const FamilyRegistry& families) {
  const std::unique_ptr<const Tokenizer> tokenizer =
      experiment.trainer->vocab_size ? nullptr : tokenizer_of(experiment);
  const ModelConfig model = model_of(experiment, families, tokenizer.get());
  const SessionSettings settings = session_settings_of(experiment, model);
  engine::Rank rank(turbo::make_cpu_device(1));
  const StepMeasurement step = measure_session(rank, settings, families);
  // Weights, gradients and two moments in fp32. In bf16 training, an fp32 weight is stored as two parts of
  // 16 bits. Frozen weights are stored only in bf16. Tables add a few megabytes.
  engine::ParameterStore declared;
  const LanguageModel declaration(model, families, declared);
  double states = 0;
  for (const engine::Parameter& p : declared.parameters()) {
    const double bytes = p.trainable ? 16 : 2;
    states += bytes * static_cast<double>(p.shape.elements());
  }
  EXPECT_GE(static_cast<double>(step.memory.persistent), states);
  EXPECT_LE(static_cast<double>(step.memory.persistent), 1.01 * states + 64e6);
  // Every product of the model is computed. Attention may compute masked products, and full recomputation
  // repeats a forward pass.
  const double flops =
      training_flops(model, experiment.trainer->global_batch_size, experiment.trainer->seq_length);
  EXPECT_GE(step.kernels.total_flops(), flops);
  // PPO also trains a value model, which is as large as the policy.
  const double models = experiment.trainer->stage == "ppo" ? 2 : 1;
  EXPECT_LE(step.kernels.total_flops(), 1.7 * models * flops);
}

struct Published {
  const char* preset;
  std::int64_t total;
  std::int64_t active = 0;      // parameters that a token uses; 0: all parameters
  std::int64_t prediction = 0;  // parameters of multi-token prediction only
};

// Parameter counts, computed by hand from the published sizes. They agree with the publishers' rounded
// numbers. Llama 4's vision part is not counted. Each four-bit weight of gpt-oss counts as one parameter.
// Some publishers do not count the embedding as active: DeepSeek-V2-Lite (2.4 billion), gpt-oss (3.6 and 5.1
// billion).
constexpr Published kPublished[] = {
    {"llama2_7B", 6'738'415'616},
    {"llama2_13B", 13'015'864'320},
    {"llama2_70B", 68'976'648'192},
    {"llama3_8B", 8'030'261'248},
    {"llama3_70B", 70'553'706'496},
    {"llama3.1_8B", 8'030'261'248},
    {"llama3.1_70B", 70'553'706'496},
    {"llama3.1_405B", 405'853'388'800},
    {"llama3.2_1B", 1'235'814'400},
    {"llama3.2_3B", 3'212'749'824},
    {"llama3.3_70B", 70'553'706'496},
    {"llama4_17B16E", 107'769'861'120, 17'172'894'720},
    {"llama4_17B128E", 400'711'848'960, 17'184'691'200},
    {"mixtral_8x7B_v0.1", 46'702'792'704, 12'879'925'248},
    {"mixtral_8x22B_v0.1", 140'620'634'112, 39'152'031'744},
    {"deepseek_v2_lite", 15'706'484'224, 2'661'150'208},
    {"deepseek_v2", 235'741'434'880, 21'375'800'320},
    {"deepseek_v3", 671'026'419'200, 37'552'297'472, 11'610'068'224},
    {"deepseek_r1_distill_qwen_1.5B", 1'777'088'000},
    {"deepseek_v3.2", 671'877'944'064, 38'403'822'336, 11'624'027'648},
    {"glm5_dsa", 743'911'218'432, 41'784'728'832, 9'952'920'576},
    {"kimi_k2", 1'026'408'232'448, 32'861'500'928},
    {"gpt_oss_20B", 20'914'757'184, 4'187'440'704},
    {"gpt_oss_120B", 116'829'156'672, 5'711'982'912},
    {"qwen2.5_0.5B", 494'032'768},
    {"qwen2.5_1.5B", 1'543'714'304},
    {"qwen2.5_3B", 3'085'938'688},
    {"qwen2.5_7B", 7'615'616'512},
    {"qwen2.5_14B", 14'770'033'664},
    {"qwen2.5_32B", 32'763'876'352},
    {"qwen2.5_72B", 72'706'203'648},
    {"qwen3_0.6B", 596'049'920},
    {"qwen3_1.7B", 1'720'574'976},
    {"qwen3_4B", 4'022'468'096},
    {"qwen3_8B", 8'190'735'360},
    {"qwen3_14B", 14'768'307'200},
    {"qwen3_32B", 32'762'123'264},
    {"qwen3_30B_A3B", 30'532'122'624, 3'353'032'704},
    {"qwen3_235B_A22B", 235'093'634'560, 22'190'763'520},
    {"qwen3_vl_30B_A3B", 30'532'122'624, 3'353'032'704},
    {"qwen3_vl_235B_A22B", 235'093'634'560, 22'190'763'520},
    {"qwen3_next_80B_A3B", 79'674'391'296, 3'874'929'408},
    {"qwen3_5_35B_A3B", 34'660'610'688, 3'454'988'928},
    {"lfm2_350M", 354'483'968},
    {"lfm2_700M", 742'489'344},
    {"lfm2_1.2B", 1'170'340'608},
    {"lfm2_8B_A1B", 8'339'930'560, 1'557'740'992},
    {"kimi_linear_48B_A3B", 49'122'681'728, 3'484'459'904},
    {"mistral_7B", 7'248'023'552},
    {"mistral_nemo_12B", 12'247'782'400},
    {"mistral_small_24B", 23'572'403'200},
    {"ministral_8B", 8'019'808'256},
    {"phi3_mini_4k", 3'821'079'552},
    {"phi4_14B", 14'659'507'200},
    {"phi4_mini", 3'836'021'760},
    {"smollm3_3B", 3'075'098'624},
    {"olmo2_1B", 1'484'916'736},
    {"olmo2_7B", 7'298'617'344},
    {"olmo2_13B", 13'716'198'400},
    {"olmo2_32B", 32'234'279'936},
    {"glm4_9B", 9'400'279'040},
    {"glm4.5_air", 106'852'251'264, 13'424'129'664, 2'375'059'584},
    {"glm4.5", 352'797'829'024, 33'632'266'144, 3'988'069'792},
    {"granite3.1_2B", 2'533'531'648},
    {"granite3.1_8B", 8'170'848'256},
    {"granite3.1_3B_A800M", 3'298'793'472, 882'874'368},
    {"gemma2_2B", 2'614'341'888},
    {"gemma2_9B", 9'241'705'984},
    {"gemma2_27B", 27'227'128'320},
    {"gemma3_1B", 999'885'952},
    {"gemma3_4B", 3'880'263'168},
    {"gemma3_12B", 11'766'034'176},
    {"gemma3_27B", 27'009'346'304},
    {"ministral3_3B", 3'429'006'336},
    {"ministral3_8B", 8'489'553'920},
};

// Presets of Primus, presets of AMD Primus, and parts of published models.
constexpr Published kOwn[] = {
    {"llama3_debug", 6'163'712},
    {"llama_25M", 26'450'304},
    {"llama_124M", 123'587'328},
    {"qwen3_235B_A22B_4layer", 11'195'683'840, 2'135'987'200},
    {"glm5", 743'180'209'920, 41'053'720'320, 9'943'548'672},
    {"grok1", 315'271'944'192, 83'343'710'208},
    {"grok2", 216'351'645'696, 61'732'823'040},
    {"minimax_m2.5", 228'689'336'320, 11'030'124'544},
    {"glm4_7", 355'756'876'800, 33'005'184'000},
    {"deepseek_v4_flash", 284'334'567'511, 13'801'959'511, 6'610'048'891},
    {"deepseek_v4_pro", 1'572'999'528'803, 49'781'408'099, 25'840'145'979},
    {"kimi_k3", 2'779'484'461'664, 105'364'003'424},
    {"kimi_k3_8L_official", 214'697'216'960, 11'231'529'920},
    {"kimi_k3_curve", 3'848'295'168, 1'822'446'336},
    {"zebra_llama_300M_gdn_pure", 307'767'232},
    {"zebra_llama_300M_kda_pure", 303'549'280},
    {"zebra_llama_300M_gdn_hybrid", 309'280'624},
    {"zebra_llama_1B_gdn", 1'203'441'152},
    {"zebra_llama_1B_gdn_pure", 1'203'441'152},
    {"zebra_llama_1B_kda_pure", 1'175'153'920},
    {"zebra_llama_1B", 1'431'873'152},
    {"moe_515B", 528'135'782'400, 57'031'557'120},
    {"moe_1T", 1'035'566'874'624, 57'119'637'504},
    {"moe_2T", 2'050'429'059'072, 93'534'584'832},
    {"moe_4T", 4'080'153'427'968, 166'364'479'488},
    {"moe_proxy_single_node", 104'857'880'576, 3'389'278'208},
};

void expect_size(const Published& expected, const FamilyRegistry& families) {
  SCOPED_TRACE(expected.preset);
  ModelConfig model = model_of_preset(expected.preset, families);
  const std::int64_t all = model_size(model, families).parameters;
  model.mtp.enabled = false;
  const ModelSize size = model_size(model, families);
  EXPECT_EQ(size.parameters, expected.total);
  EXPECT_EQ(size.active, expected.active == 0 ? expected.total : expected.active);
  EXPECT_EQ(all - size.parameters, expected.prediction);
}

TEST(Presets, HaveThePublishedParameters) {
  const FamilyRegistry families = builtin_families();
  for (const Published& published : kPublished) expect_size(published, families);
  for (const Published& own : kOwn) expect_size(own, families);
}

// published_configs.json has the architecture keys of the models' config.json by preset. For Llama 4, these
// keys are the text_config, which has its own model_type. Kimi K2 calls DeepSeek-V3's architecture kimi_k2.
TEST(Presets, EqualThePublishedArchitectures) {
  const FamilyRegistry families = builtin_families();
  std::ifstream file(kSource / "tests/lm/train/published_configs.json");
  const nlohmann::json configs = nlohmann::json::parse(file);
  EXPECT_EQ(configs.size(), std::size(kPublished));
  for (const auto& [preset, published] : configs.items()) {
    SCOPED_TRACE(preset);
    const auto written = [&](const ModelConfig& config) {
      return nlohmann::json::parse(write_model_config(config, DType::kBF16, families));
    };
    ModelConfig theirs = read_model_config(published.dump(), preset, families);
    const ModelConfig ours = model_of_preset(preset, families);
    EXPECT_EQ(ours.mtp.layers, theirs.mtp.layers);
    EXPECT_EQ(ours.moe.training.balance_loss,
              published.value("router_aux_loss_coef", ours.moe.training.balance_loss));
    theirs.mtp = ours.mtp;  // training settings are not read from config.json
    theirs.moe.training = ours.moe.training;
    theirs.unsaid_ids = ours.unsaid_ids;  // these ids belong to the tokenizer and not to the architecture
    EXPECT_EQ(written(ours).dump(1), written(theirs).dump(1));
  }
}

TEST(Presets, EachIsDocumentedOrABaseOrAnAlias) {
  const FamilyRegistry families = builtin_families();
  for (const auto& entry : fs::directory_iterator(kPresets / "models")) {
    if (entry.is_directory()) continue;  // presets of other frameworks (tests/backends)
    const std::string name = entry.path().stem().string();
    if (name.ends_with("_base") || name == "llama_tiny") continue;
    const auto is_it = [&](const Published& p) { return name == p.preset; };
    if (std::any_of(std::begin(kPublished), std::end(kPublished), is_it) ||
        std::any_of(std::begin(kOwn), std::end(kOwn), is_it)) {
      continue;
    }
    // Skips an alias, a file that has only a comment and the preset that it extends.
    std::ifstream file(entry.path());
    std::string comment, extends, more;
    std::getline(file, comment);
    std::getline(file, extends);
    EXPECT_TRUE(comment.starts_with("# ") && extends.starts_with("extends: ") && !std::getline(file, more))
        << name << " is neither an alias nor in a table of this test";
    EXPECT_NO_THROW(model_of_preset(name, families)) << name;
  }
}

TEST(Presets, CanBeForecast) {
  const FamilyRegistry families = builtin_families();
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kPresets / "models")) {
    if (entry.is_directory()) continue;  // examples of other frameworks (tests/backends)
    const std::string name = entry.path().stem().string();
    if (name.ends_with("_base")) continue;
    SCOPED_TRACE(name);
    ++count;
    try {
      expect_forecast(experiment_with(name), families);
    } catch (const Error& error) {
      ADD_FAILURE() << error.render();
    }
  }
  EXPECT_GE(count, 45);
}

TEST(Examples, CanBeForecast) {
  const FamilyRegistry families = builtin_families();
  int count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "examples" / "native")) {
    if (entry.path().extension() != ".yaml") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++count;
    try {
      expect_forecast(config::load_experiment(entry.path(), {}, load_options()), families);
    } catch (const Error& error) {
      ADD_FAILURE() << error.render();
    }
  }
  EXPECT_GE(count, 36);
}

}  // namespace
}  // namespace primus
