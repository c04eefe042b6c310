// Tests of the output of settings: resolved experiments, listings, references and the JSON Schema.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "config/experiment.h"
#include "config/key_hints.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

void expect_same(const Experiment& a, const Experiment& b) {
  EXPECT_EQ(a.work_group, b.work_group);
  EXPECT_EQ(a.user_name, b.user_name);
  EXPECT_EQ(a.exp_name, b.exp_name);
  EXPECT_EQ(a.workspace, b.workspace);
  EXPECT_EQ(a.env, b.env);
  EXPECT_EQ(a.framework, b.framework);
  EXPECT_EQ(a.module_name, b.module_name);
  EXPECT_EQ(a.trainer, b.trainer);
  EXPECT_EQ(a.ignored, b.ignored);
}

Experiment round_trip(const Experiment& experiment, const Variables& variables = {}) {
  const std::string yaml = to_yaml(experiment);
  const Experiment again = load_text(yaml, {}, variables);
  expect_same(experiment, again);
  EXPECT_EQ(to_yaml(again), yaml);
  return again;
}

TEST(ToYaml, LoadsBackToTheSame) {
  round_trip(load_text(experiment_text("")));
  round_trip(
      load_text(experiment_text("      lr: 1e-5\n      lr_warmup_fraction: 0.1\n      save: /a b/c\n"
                                "      data_path: [0.3, a, 0.7, 'b: c']\n      recompute_granularity: full\n"
                                "      exit_duration_in_mins: 0.5\n      group_query_attention: true\n"
                                "      num_query_groups: 2\n      torch_compile: {enable: true, mode: 'x'}\n"
                                "      profile_ranks: [0, 1]\n      fp8: null\n"),
                {"mock_data=false"}));
}

// lr_decay_iters, which is null in presets, follows train_iters unless the experiment sets lr_decay_iters.
TEST(ToYaml, OmitsADecayThatFollowsTheLength) {
  const auto decay_of = [](const std::string& settings, const std::vector<std::string>& later) {
    return load_text(to_yaml(load_text(experiment_text(settings))), later).trainer->lr_decay_iters;
  };
  const std::vector<std::string> longer{"train_iters=77"};
  EXPECT_EQ(decay_of("", longer), 77);
  EXPECT_EQ(decay_of("      lr_decay_iters: null\n", longer), 77);
  EXPECT_EQ(decay_of("      lr_decay_iters: 30\n", longer), 30);
  round_trip(
      load_text(experiment_text("      lr_decay_iters: null\n"), {"train_iters=null", "train_epochs=1"}));
  Experiment planned = load_text(experiment_text("      lr_decay_iters: null\n"));
  set_train_iters(planned, 55);
  EXPECT_EQ(planned.trainer->lr_decay_iters, 55);
}

TEST(ToYaml, KeepsStringsThatLookLikeSomethingElse) {
  for (const char* text : {"12",    "1e-5", "true",  "null", "~",    "- a",   "a: b", "#x",       "[a",
                           "a # b", "x\ny", "\"q\"", "'",    "${X}", "$${X}", "a$b",  "\xC3\xBC", "-",
                           " a ",   "\t",   "\\",    "@",    "%",    "!x",    "&x",   "*x"}) {
    Experiment experiment = load_text(experiment_text(""));
    experiment.trainer->mock_data = false;
    experiment.trainer->save = text;
    experiment.trainer->data_path = {text, "b"};
    experiment.exp_name = "2024";
    const Experiment again = load_text(to_yaml(experiment));
    EXPECT_EQ(again.trainer->save, text);
    EXPECT_EQ(again.trainer->data_path, experiment.trainer->data_path);
  }
}

TEST(ToYaml, KeepsEveryNumber) {
  Experiment experiment = load_text(experiment_text(""));
  for (const double lr : {1e-5, 0.1, 1.0 / 3, 1e-300, 5e-324, 123.456}) {
    experiment.trainer->lr = lr;
    experiment.trainer->min_lr = 0;
    EXPECT_EQ(load_text(to_yaml(experiment)).trainer->lr, lr);
  }
}

// PyYAML would read 1e-08 as text, so numbers have a decimal point. Texts that PyYAML would read as another
// type are quoted: 0123 (octal), on (a boolean) and 2024-01-01 (a date).
TEST(ToYaml, IsReadEquallyByPyYaml) {
  Experiment experiment = load_text(experiment_text(""));
  experiment.trainer->lr = 3e-05;
  experiment.trainer->save = "0123";
  experiment.trainer->load = "on";
  experiment.trainer->tokenizer_model = "2024-01-01";
  experiment.trainer->data_cache_path = "meta-llama/Llama-3.1-8B";
  const std::string yaml = to_yaml(experiment);
  for (const char* line :
       {"      lr: 3.0e-05\n", "      adam_eps: 1.0e-08\n", "      save: \"0123\"\n", "      load: \"on\"\n",
        "      tokenizer_model: \"2024-01-01\"\n", "      data_cache_path: meta-llama/Llama-3.1-8B\n"}) {
    EXPECT_NE(yaml.find(line), std::string::npos) << line << yaml;
  }
  EXPECT_EQ(load_text(yaml).trainer->lr, 3e-05);
}

TEST(ToYaml, CanHaveAbsolutePaths) {
  const TemporaryFolder folder;
  write_file(folder, "tokenizer.json", "{}");
  write_file(folder, "text.jsonl", "{}");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  Experiment experiment =
      load_text(experiment_text(
                    "      data_path: [0.3, text.jsonl, 0.7, data/b]\n      tokenizer_model: tokenizer.json\n"
                    "      load: meta-llama/Llama-3.1-8B\n      save: out/../ckpt\n"),
                {"mock_data=false"});
  std::filesystem::create_directory("scores");
  experiment.trainer->reward = {"exact:scores", "model:scores", "model:no-such-folder"};
  const Experiment absolute = with_absolute_paths(experiment);
  std::filesystem::current_path(before);
  const std::filesystem::path root = std::filesystem::weakly_canonical(folder.path());
  EXPECT_EQ(absolute.workspace, (root / "output").string());
  EXPECT_EQ(absolute.trainer->save, (root / "ckpt").string());
  EXPECT_EQ(absolute.trainer->data_path, (std::vector<std::string>{"0.3", (root / "text.jsonl").string(),
                                                                   "0.7", (root / "data/b").string()}));
  EXPECT_EQ(absolute.trainer->tokenizer_model, (root / "tokenizer.json").string());
  EXPECT_EQ(absolute.trainer->reward,
            (std::vector<std::string>{"exact:scores", "model:" + (root / "scores").string(),
                                      "model:no-such-folder"}));
  EXPECT_EQ(absolute.trainer->load, "meta-llama/Llama-3.1-8B");  // no such folder, so it is a model's name
}

TEST(Show, NotesWhereAmdPrimussDefaultDiffers) {
  const std::string text = show(load_text(experiment_text("      async_save: true\n")), true);
  EXPECT_NE(text.find("# default; Primus has cyclic"), std::string::npos) << text;
  EXPECT_NE(text.find("# default; Primus has null, the model's own type"), std::string::npos);
  // AMD Primus's default is not shown for a key that the user has set.
  EXPECT_NE(text.find("# exp.yaml:14:19\n"), std::string::npos);
}

TEST(Reference, SearchesForAKeyOrAWord) {
  const std::string lr = reference_text("lr");
  EXPECT_EQ(lr.rfind("lr\n  meaning     peak learning rate\n", 0), 0u) << lr;
  EXPECT_NE(lr.find("elsewhere"), std::string::npos);
  EXPECT_EQ(lr.find("min_lr"), std::string::npos);
  EXPECT_NE(reference_text("learning_rate").find("lr\n"), std::string::npos);
  EXPECT_NE(reference_text("Rotary").find("rotary_base\n"), std::string::npos);
  EXPECT_EQ(reference_text("layernorm_epsilon").rfind("norm_epsilon\n", 0), 0u);
  EXPECT_NE(reference_text("exp_name").find("top level"), std::string::npos);
  EXPECT_THROW(reference_text("no_such_thing_at_all"), Error);
  const auto json = nlohmann::json::parse(reference_json("dataloader_type"));
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["default"], "single");
  EXPECT_EQ(json[0]["primus_default"], "cyclic");
  EXPECT_EQ(nlohmann::json::parse(reference_json("")).size(), all_keys().size() + 12);
  for (const auto& key : nlohmann::json::parse(reference_json(""))) EXPECT_TRUE(key["name"].is_string());
}

TEST(ToYaml, WorksForOtherFrameworks) {
  round_trip(load_text(experiment_text("      tensor_model_parallel_size: 8\n      fp8: hybrid\n"),
                       {"--framework", "megatron"}));
}

TEST(ToYaml, OmitsSecrets) {
  const Variables variables = {{"HF_TOKEN", "hf_canary"}};
  const Experiment e =
      load_text("env: {HF_TOKEN: \"${HF_TOKEN}\", A: b}\n" + experiment_text(""), {}, variables);
  EXPECT_EQ(e.env.at("HF_TOKEN"), "hf_canary");
  EXPECT_EQ(to_yaml(e).find("canary"), std::string::npos);
  EXPECT_EQ(show(e, true).find("canary"), std::string::npos);
  EXPECT_NE(show(e, false).find("env.HF_TOKEN: <redacted>"), std::string::npos);
  round_trip(e, variables);
}

// Every copy of the experiment that a run writes or shows omits passwords in addresses.
TEST(ToYaml, OmitsPasswordsInAddresses) {
  const Variables variables = {{"DB_URL", "http://u:canary@h"}};
  const Experiment e = load_text(
      "env: {DB_URL: 'http://u:canary@h', PROXY: 'http://h:80'}\n" + experiment_text(""), {}, variables);
  EXPECT_EQ(e.env.at("DB_URL"), "http://u:canary@h");
  for (const std::string& text : {to_yaml(e), show(e, true), show(e, false), to_json(e, true)})
    EXPECT_EQ(text.find("canary"), std::string::npos) << text;
  EXPECT_NE(to_yaml(e).find("PROXY: \"http://h:80\""), std::string::npos);
  round_trip(e, variables);
  // Without the variable, the experiment cannot be run. Its record can still be read.
  EXPECT_THROW(load_text(to_yaml(e)), Error);
  EXPECT_EQ(load_recorded_experiment(to_yaml(e), "exp.yaml").env.at("DB_URL"), "");
  EXPECT_EQ(load_recorded_experiment(to_yaml(e), "exp.yaml").exp_name, e.exp_name);
}

TEST(Show, ListsValuesAndOrigins) {
  const Experiment e = load_text(experiment_text("      lr: ${LR}\n      use_turbo_gemm: true\n"), {"seed=7"},
                                 {{"LR", "1e-5"}});
  const std::string plain = show(e, false), origins = show(e, true);
  EXPECT_NE(plain.find("\nlr: 1.0e-05\n"), std::string::npos);
  EXPECT_NE(plain.find("\n# Optimizer\n"), std::string::npos);
  EXPECT_NE(plain.find("(ignored)\nuse_turbo_gemm: true\n"), std::string::npos);
  const auto line = [&](const std::string& key) {
    const size_t begin = origins.find("\n" + key + ": ") + 1;
    std::string text = origins.substr(begin, origins.find('\n', begin) - begin);
    const size_t gap = text.find("  ");
    return text.substr(0, gap) + "  " + text.substr(text.find("# ", gap));
  };
  EXPECT_EQ(line("lr"), "lr: 1.0e-05  # exp.yaml:14:11 (environment LR)");
  EXPECT_EQ(line("seed"), "seed: 7  # command line");
  EXPECT_EQ(line("kv_channels"), "kv_channels: 16  # derived");
  EXPECT_EQ(line("adam_beta1"), "adam_beta1: 0.9  # default");
  EXPECT_EQ(line("user_name"), "user_name: u  # exp.yaml:2:12");
}

TEST(JsonSchema, DescribesEveryKey) {
  const nlohmann::json schema = nlohmann::json::parse(json_schema());
  const nlohmann::json& keys = schema["$defs"]["trainer"]["properties"];
  for (const KeySpec& key : all_keys()) {
    EXPECT_TRUE(keys.contains(std::string(key.name))) << key.name;
    EXPECT_FALSE(keys[std::string(key.name)]["description"].get<std::string>().empty()) << key.name;
  }
  EXPECT_FALSE(schema["$defs"]["trainer"]["additionalProperties"].get<bool>());
  // A mistyped key is an error at the key, not at the map around it.
  const nlohmann::json& overrides = schema["$defs"]["module"]["properties"]["overrides"];
  EXPECT_EQ(overrides["$ref"], "#/$defs/trainer");
  EXPECT_FALSE(overrides.contains("anyOf"));
  EXPECT_EQ(schema["$defs"]["trainer"]["type"], nlohmann::json({"object", "null"}));
  EXPECT_EQ(keys["micro_batch_size"]["default"], 2);
  EXPECT_EQ(keys["micro_batch_size"]["anyOf"][0]["type"], "integer");
  EXPECT_EQ(keys["micro_batch_size"]["anyOf"][0]["minimum"], 1);
  EXPECT_EQ(keys["lr_decay_style"]["anyOf"][0]["enum"][2], "cosine");
  EXPECT_TRUE(keys.contains("layernorm_epsilon"));
}

TEST(Keys, AreUniqueAndComplete) {
  std::set<std::string_view> names;
  for (const KeySpec& key : all_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name << " is defined twice";
    for (std::string_view alias : key.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
    EXPECT_EQ(find_key(key.name), &key);
    if (!key.has_meaning_for(Framework::kNative)) continue;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_FALSE(key.group.empty()) << key.name;
  }
  EXPECT_GT(names.size(), 700u);
}

TEST(Keys, DefaultsSatisfyTheirOwnRules) {
  for (const KeySpec& key : all_keys()) {
    if (std::holds_alternative<std::monostate>(key.field) || key.is_required || !key.derived_from.empty())
      continue;
    TrainerConfig config;
    const Value value = current_value(key, config);
    EXPECT_NO_THROW(assign(key, value, config)) << key.name;
    EXPECT_NO_THROW(require_native_support(key, value)) << key.name;
    EXPECT_EQ(config, TrainerConfig{}) << key.name;
  }
}

// Mistypes keys by one or two edits, and counts how often the hint names the right key.
TEST(Keys, MistypedKeysAreRecognized) {
  uint64_t state = 1;
  const auto random = [&](size_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((state >> 33) % n);
  };
  int right = 0, total = 0;
  while (total < 500) {
    const KeySpec& key = all_keys()[random(all_keys().size())];
    if (key.name.size() < 4) continue;
    std::string typed(key.name);
    for (size_t edits = key.name.size() < 10 ? 1 : 1 + random(2); edits > 0; --edits) {
      const size_t at = random(typed.size());
      const char letter = static_cast<char>('a' + random(26));
      switch (random(4)) {
        case 0:
          typed.insert(at, 1, letter);
          break;
        case 1:
          typed.erase(at, 1);
          break;
        case 2:
          typed[at] = letter;
          break;
        default:
          if (at + 1 < typed.size()) std::swap(typed[at], typed[at + 1]);
      }
    }
    if (find_key(typed)) continue;
    ++total;
    right += hint_for_unknown_key(typed) == "did you mean '" + std::string(key.name) + "'?";
  }
  EXPECT_GE(right, total * 95 / 100) << right << " of " << total;
  RecordProperty("right", right);
}

}  // namespace
}  // namespace primus::config
