// Compares settings with AMD Primus's configuration loader and command line. The cases are from its unit
// tests and documents. Intended differences are listed in docs/config.md ("Where this differs from AMD
// Primus").
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support.h"

namespace primus::config {
namespace {

using Json = nlohmann::json;

struct Case {
  const char* source;                  // AMD Primus's test or document
  std::string overrides;               // lines of the experiment's overrides, without indentation
  std::vector<std::string> arguments;  // command line
  const char* key;                     // a trainer key, or a path such as "lora/dim"
  const char* value;                   // expected value as JSON
};

Json shown(const Case& one, const Variables& variables) {
  std::string lines;
  for (std::size_t begin = 0; begin < one.overrides.size();) {
    const std::size_t end = std::min(one.overrides.find('\n', begin), one.overrides.size());
    lines += "      " + one.overrides.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  const Experiment e = load_text(experiment_text(lines), one.arguments, variables);
  return Json::parse(to_json(e, false));
}

const Variables kVariables = {{"TEST_VAR", "123"},     {"TEST_STR", "hello"},   {"NUM", "42"},
                              {"FLOAT", "3.14"},       {"SMALL", "1e-5"},       {"FLAG_TRUE", "true"},
                              {"FLAG_FALSE", "false"}, {"FLAG_UPPER", "False"}, {"MINUS", "-7"}};

// Values on the command line, from tests/unit_tests/core/utils/test_arg_utils.py and
// core/launcher/test_parser.py.
const Case kArguments[] = {
    {"bool", "", {"use_turbo_deepep=true"}, "use_turbo_deepep", "true"},
    {"bool", "", {"use_turbo_deepep=True"}, "use_turbo_deepep", "true"},
    {"bool", "", {"use_turbo_deepep=false"}, "use_turbo_deepep", "false"},
    {"bool", "", {"use_turbo_deepep=FALSE"}, "use_turbo_deepep", "false"},
    {"bool, spaced", "", {"--use_turbo_deepep", "true"}, "use_turbo_deepep", "true"},
    {"bool, spaced", "", {"--use_turbo_deepep", "False"}, "use_turbo_deepep", "false"},
    {"bare flag", "", {"--use_turbo_deepep"}, "use_turbo_deepep", "true"},
    {"bare flag before another", "", {"--use_turbo_deepep", "--lr", "0.001"}, "lr", "0.001"},
    {"int", "", {"eval_iters=0"}, "eval_iters", "0"},
    {"int", "", {"seed=42"}, "seed", "42"},
    {"int", "", {"wgrad_deferral_limit=-7"}, "wgrad_deferral_limit", "-7"},
    {"int, dashes", "", {"--seed=42"}, "seed", "42"},
    {"int, spaced", "", {"--train_iters", "10"}, "train_iters", "10"},
    {"float", "", {"lr=0.001"}, "lr", "0.001"},
    {"float", "", {"odc_grad_spike_threshold=-1.5"}, "odc_grad_spike_threshold", "-1.5"},
    {"scientific, fixed in v26.8", "", {"lr=1e-5"}, "lr", "1e-5"},
    {"scientific, spaced", "", {"--lr", "1e-5"}, "lr", "1e-5"},
    {"scientific", "", {"lr=2.5E-4"}, "lr", "2.5e-4"},
    {"string", "", {"tokenizer_model=hello"}, "tokenizer_model", "\"hello\""},
    {"string with points", "", {"tokenizer_model=v1.2.3"}, "tokenizer_model", "\"v1.2.3\""},
    {"quoted string", "", {"tokenizer_model=\"a b\""}, "tokenizer_model", "\"a b\""},
    {"quoted number", "", {"tokenizer_model='12'"}, "tokenizer_model", "\"12\""},
    {"list", "", {"profile_ranks=[0]"}, "profile_ranks", "[0]"},
    {"list", "", {"profile_ranks=[0, 1, 2]"}, "profile_ranks", "[0, 1, 2]"},
    {"list, spaced", "", {"--profile_ranks", "[0]"}, "profile_ranks", "[0]"},
    {"list, dashes", "", {"--profile_ranks=[0, 4]"}, "profile_ranks", "[0, 4]"},
    {"list, mixed with others",
     "",
     {"--profile", "true", "--profile_ranks", "[0, 1]", "--lr", "0.001"},
     "profile_ranks",
     "[0, 1]"},
    {"list, mixed with others",
     "",
     {"--profile", "true", "--profile_ranks", "[0, 1]", "--lr", "0.001"},
     "profile",
     "true"},
    {"tuple", "", {"profile_ranks=(1, 2)"}, "profile_ranks", "[1, 2]"},
    {"empty list", "", {"profile_ranks=[]"}, "profile_ranks", "[]"},
    {"list of strings", "", {R"(data_path=["a", "b"])"}, "data_path", R"(["a", "b"])"},
    {"list of numbers and strings",
     "",
     {"data_path=[0.3, a, 0.7, b]"},
     "data_path",
     R"([0.3, "a", 0.7, "b"])"},
    {"quoted numbers in a list", "", {R"(data_path=["1", "2"])"}, "data_path", R"(["1", "2"])"},
    {"list of a key without a field",
     "",
     {"use_rocm_mem_info_iters=[1, 2]"},
     "use_rocm_mem_info_iters",
     "[1, 2]"},
    {"nested list",
     "",
     {"nccl_communicator_config_path=[[1, 2], [4]]"},
     "nccl_communicator_config_path",
     "[[1, 2], [4]]"},
    {"dict", "", {"lora={'dim': 8, 'alpha': 16}"}, "lora/dim", "8"},
    {"empty dict", "", {"nccl_communicator_config_path={}"}, "nccl_communicator_config_path", "{}"},
    {"none", "", {"load=None"}, "load", "null"},
    {"malformed list of a key of any kind",
     "",
     {"nccl_communicator_config_path=[0,"},
     "nccl_communicator_config_path",
     "\"[0,\""},
    {"malformed dict",
     "",
     {"nccl_communicator_config_path={not_a_dict}"},
     "nccl_communicator_config_path",
     "\"{not_a_dict}\""},
    {"nested key", "lora: {enabled: true, dim: 4}", {"lora.dim=8"}, "lora/dim", "8"},
    {"nested key keeps its neighbours",
     "lora: {enabled: true, dim: 4}",
     {"lora.dim=8"},
     "lora/enabled",
     "true"},
    {"two nested keys of one parent", "", {"lora.dim=8", "lora.alpha=16"}, "lora/alpha", "16"},
    {"nested key, spaced", "", {"--lora.dim", "8"}, "lora/dim", "8"},
    {"the last one wins", "", {"seed=1", "--seed", "2"}, "seed", "2"},
    {"an equals sign within a value", "", {"tokenizer_model=a=b"}, "tokenizer_model", "\"a=b\""},
    {"precedence: command line over overrides", "lr: 1.0e-3", {"lr=2.0e-3"}, "lr", "2.0e-3"},
};

// Values in files, from tests/unit_tests/core/config/test_yaml_loader.py, test_merge_utils.py and the
// document about configuration.
const Case kFiles[] = {
    {"number", "seed: 7", {}, "seed", "7"},
    {"text", "tokenizer_model: test", {}, "tokenizer_model", "\"test\""},
    {"bool", "use_turbo_deepep: false", {}, "use_turbo_deepep", "false"},
    {"null", "load: null", {}, "load", "null"},
    {"tilde", "load: ~", {}, "load", "null"},
    {"list of numbers", "profile_ranks: [0, 1]", {}, "profile_ranks", "[0, 1]"},
    {"block list of numbers", "profile_ranks:\n  - 0\n  - 3", {}, "profile_ranks", "[0, 3]"},
    {"list of layers",
     "recompute_granularity: full\nrecompute_layer_ids: [0, 1, 2]",
     {},
     "recompute_layer_ids",
     "[0, 1, 2]"},
    {"pattern of layers", "moe_layer_freq: ([0]*1+[1]*1)", {}, "moe_layer_freq", "\"([0]*1+[1]*1)\""},
    {"one number for a list", "moe_layer_freq: 2", {}, "moe_layer_freq", "2"},
    {"quoted number", "tokenizer_model: '123'", {}, "tokenizer_model", "\"123\""},
    {"float with a point", "lr: 1.0e-05", {}, "lr", "1e-05"},
    {"nested map",
     "lora:\n  dim: 16\n  target_modules: [linear_qkv]",
     {},
     "lora/target_modules/0",
     "\"linear_qkv\""},
    {"variable, int", "train_iters: ${TEST_VAR}", {}, "train_iters", "123"},
    {"variable, text", "tokenizer_model: ${TEST_STR}", {}, "tokenizer_model", "\"hello\""},
    {"variable, float", "clip_grad: ${FLOAT}", {}, "clip_grad", "3.14"},
    {"variable, scientific", "lr: ${SMALL}", {}, "lr", "1e-5"},
    {"variable, negative", "wgrad_deferral_limit: ${MINUS}", {}, "wgrad_deferral_limit", "-7"},
    {"variable, default", "tokenizer_model: ${MISSING:default}", {}, "tokenizer_model", "\"default\""},
    {"variable, default number", "seed: ${MISSING:5}", {}, "seed", "5"},
    {"variable, default zero", "eval_iters: ${UNSET_ZERO:0}", {}, "eval_iters", "0"},
    {"variable wins over default", "seed: ${NUM:5}", {}, "seed", "42"},
    {"variable within text", "tokenizer_model: prefix_${NUM}", {}, "tokenizer_model", "\"prefix_42\""},
    {"two variables", "tokenizer_model: ${TEST_STR}-${NUM}", {}, "tokenizer_model", "\"hello-42\""},
    {"variable in a nested map", "lora:\n  dim: ${NUM}", {}, "lora/dim", "42"},
    {"variable in a list", "profile_ranks: [0, \"${NUM}\"]", {}, "profile_ranks", "[0, 42]"},
    {"variable, true", "use_turbo_deepep: ${FLAG_TRUE}", {}, "use_turbo_deepep", "true"},
    {"variable, false", "use_turbo_deepep: ${FLAG_FALSE}", {}, "use_turbo_deepep", "false"},
    {"variable, False", "use_turbo_deepep: ${FLAG_UPPER}", {}, "use_turbo_deepep", "false"},
    {"default true", "use_turbo_deepep: ${UNSET_BOOL:true}", {}, "use_turbo_deepep", "true"},
    {"default false", "use_turbo_deepep: ${UNSET_BOOL:false}", {}, "use_turbo_deepep", "false"},
};

template <class Cases>
void check(const Cases& cases) {
  for (const Case& one : cases) {
    SCOPED_TRACE(std::string(one.source) + ": " + one.overrides +
                 (one.arguments.empty() ? "" : " " + one.arguments.back()));
    const Json json = shown(one, kVariables);
    const Json::json_pointer path("/trainer/" + std::string(one.key));
    ASSERT_TRUE(json.contains(path)) << json["trainer"].dump();
    EXPECT_EQ(json[path], Json::parse(one.value));
  }
}

TEST(UpstreamCases, Arguments) { check(kArguments); }
TEST(UpstreamCases, Files) { check(kFiles); }

// Files that extend others: the four cases of test_yaml_loader.py. Lists are replaced (test_merge_utils.py).
TEST(UpstreamCases, Inheritance) {
  const TemporaryFolder folder;
  write_file(
      folder, "base1.yaml",
      experiment_text(
          "      seed: 1\n      lr: 1.0e-3\n      profile_ranks: [0, 1]\n      lora: {dim: 4, alpha: 8}\n"));
  write_file(folder, "base2.yaml",
             "modules:\n  pre_trainer:\n    overrides:\n      lr: 2.0e-3\n      eval_iters: 2\n");
  const auto load_child = [&](const std::string& extends, const std::string& overrides) {
    const auto file = write_file(folder, "child.yaml",
                                 extends + "modules:\n  pre_trainer:\n    overrides:\n      " + overrides);
    return Json::parse(to_json(load_experiment(file, {}, options_with()), false))["trainer"];
  };
  const Json one = load_child("extends: [base1.yaml]\n", "seed: 2\n");
  EXPECT_EQ(one["seed"], 2);
  EXPECT_EQ(one["lr"], 1.0e-3);
  EXPECT_EQ(load_child("extends: base1.yaml\n", "seed: 2\n")["lr"], 1.0e-3);  // one file, as a scalar
  const Json two = load_child("extends:\n  - base1.yaml\n  - base2.yaml\n", "eval_iters: 3\n");
  EXPECT_EQ(two["seed"], 1);
  EXPECT_EQ(two["lr"], 2.0e-3);
  EXPECT_EQ(two["eval_iters"], 3);
  EXPECT_EQ(load_child("extends: base1.yaml\n", "profile_ranks: [3]\n")["profile_ranks"], Json::parse("[3]"));
  const Json merged = load_child("extends: base1.yaml\n", "lora: {alpha: 16}\n")["lora"];
  EXPECT_EQ(merged["dim"], 4);
  EXPECT_EQ(merged["alpha"], 16);
}

// Keys of AMD Primus since v26.5 are known. Values that would change the trained weights are refused, with
// the reason.
TEST(UpstreamCases, NewerKeys) {
  for (const char* fine : {"qk_clip: false", "mxfp4_scale_rounding_mode: 0", "te_precision_config_file: null",
                           "turbo_fused_grouped_gemm: true", "multiprocessing_context: spawn",
                           "moe_permute_quant_fusion: true", "disable_jit_fuser: true"})
    EXPECT_EQ(error_of(experiment_text("      " + std::string(fine) + "\n")), "") << fine;
  EXPECT_NE(error_of(experiment_text("      qk_clip: true\n")).find("largest attention logit"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      mxfp4_scale_rounding_mode: 1\n")).find("half up"),
            std::string::npos);
  EXPECT_NE(
      error_of(experiment_text("      te_precision_config_file: a.yaml\n")).find("first_last_layers_bf16"),
      std::string::npos);
}

// Both programs refuse these settings.
TEST(UpstreamCases, Refusals) {
  EXPECT_NE(error_of(experiment_text("      seed: ${NON_EXISTENT_VAR}\n")).find("NON_EXISTENT_VAR"),
            std::string::npos);
  EXPECT_NE(error_of("", {}), "");
  EXPECT_NE(error_of(experiment_text(""), {"missing=10"}).find("unknown key 'missing'"), std::string::npos);
  std::string without_name = experiment_text("");
  without_name.replace(without_name.find("pre_trainer"), 11, "somebody");
  EXPECT_NE(error_of(without_name), "");
}

// The written experiment loads back to the same settings.
TEST(UpstreamCases, ExportedExperimentsLoadBack) {
  for (const Case& one : kFiles) {
    SCOPED_TRACE(one.source);
    const Json before = shown(one, kVariables);
    const std::string lines = "      " + one.overrides;
    std::string indented;
    for (const char c : lines) indented += c == '\n' ? "\n      " : std::string(1, c);
    const Experiment e = load_text(experiment_text(indented + "\n"), {}, kVariables);
    EXPECT_EQ(Json::parse(to_json(load_text(to_yaml(e)), false))["trainer"], before["trainer"]);
  }
}

}  // namespace
}  // namespace primus::config
