// Tests of ${VAR} substitution and `extends:`.
#include "config/loading/inherit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

TEST(Variables, GetTheirTypeFromTheirText) {
  const Variables variables = {{"ITERS", "50"}, {"LR", "1e-5"}, {"BF16", "false"}, {"NAME", "run-7"}};
  const Experiment e = load_text(experiment_text("      train_iters: ${ITERS}\n"
                                                 "      lr: ${LR}\n"
                                                 "      bf16: ${BF16}\n"
                                                 "      seed: ${SEED:42}\n"
                                                 "      weight_decay: \"${WD:0.1}\"\n"
                                                 "      save: /data/${NAME}/${SEED:42}/x\n"
                                                 "      lr_decay_iters: ${NOTHING:null}\n"
                                                 "      data_path: ${PATHS:[a, b]}\n"),
                                 {"mock_data=false"}, variables);
  EXPECT_EQ(e.trainer->train_iters, 50);
  EXPECT_EQ(e.trainer->lr, 1e-5);
  EXPECT_FALSE(e.trainer->bf16);
  EXPECT_EQ(e.trainer->seed, 42);
  EXPECT_EQ(e.trainer->weight_decay, 0.1);
  EXPECT_EQ(e.trainer->save, "/data/run-7/42/x");
  EXPECT_EQ(e.trainer->lr_decay_iters, 50);
  EXPECT_EQ(e.trainer->data_path, (std::vector<std::string>{"a", "b"}));
}

TEST(Variables, ThatAreEmptyUnsetAKeyWithANote) {
  const Experiment e =
      load_text(experiment_text("      train_iters: ${ITERS:3}\n"), {"mock_data=true"}, {{"ITERS", ""}});
  EXPECT_NE(e.trainer->train_iters, 3);
  EXPECT_EQ(std::ranges::count_if(e.warnings,
                                  [](const std::string& warning) {
                                    return warning.ends_with(
                                        "the environment variable ITERS is empty, so train_iters is unset");
                                  }),
            1);
}

TEST(Variables, WithTheTextNullUnsetAKeyWithANote) {
  const Experiment e =
      load_text(experiment_text("      train_iters: ${ITERS:3}\n"), {"mock_data=true"}, {{"ITERS", "null"}});
  EXPECT_NE(e.trainer->train_iters, 3);
  EXPECT_THAT(e.warnings, testing::Contains(testing::EndsWith(
                              "the environment variable ITERS is 'null', so train_iters is unset")));
}

TEST(SettingsFiles, AreReadOnce) {
  const TemporaryFolder folder;
  const auto write = [&](int seed, int iters) {
    write_file(folder, "base.yaml", experiment_text("      seed: " + std::to_string(seed) + "\n"));
    return write_file(folder, "exp.yaml",
                      "extends: base.yaml\nmodules: {pre_trainer: {overrides: {train_iters: " +
                          std::to_string(iters) + "}}}\n");
  };
  LoadOptions options = options_with();
  options.files = std::make_shared<SettingsFiles>();
  const std::filesystem::path file = write(1, 10);
  load_experiment(file, {}, options);
  write(2, 20);
  const Experiment again = load_experiment(file, {}, options);
  EXPECT_EQ(again.trainer->seed, 1);
  EXPECT_EQ(again.trainer->train_iters, 10);
  EXPECT_EQ(again.provenance_of("seed").origin.source,
            load_experiment(file, {}, options).provenance_of("seed").origin.source);
  // A load without the cache of `options` reads the files again.
  const Experiment anew = load_experiment(file, {}, options_with());
  EXPECT_EQ(anew.trainer->seed, 2);
  EXPECT_EQ(anew.trainer->train_iters, 20);
}

TEST(Variables, AreNamedInTheProvenance) {
  const Experiment e = load_text(experiment_text("      train_iters: ${ITERS}\n      seed: ${SEED:1}\n"), {},
                                 {{"ITERS", "50"}});
  EXPECT_EQ(e.provenance_of("train_iters").describe(), "exp.yaml:14:20 (environment ITERS)");
  EXPECT_EQ(e.provenance_of("seed").describe(), "exp.yaml:15:13");
}

TEST(Variables, MissingVariablesAreReportedWithTheirLocation) {
  EXPECT_EQ(error_of(experiment_text("      save: /data/${RUN}/x\n")),
            "exp.yaml:14:19: error: environment variable RUN is not set\n"
            " 14 |       save: /data/${RUN}/x\n"
            "    |                   ^^^^^^\n"
            "  hint: export RUN=..., or give a default: ${RUN:default}");
}

TEST(Variables, BrokenReferences) {
  EXPECT_NE(error_of(experiment_text("      save: ${RUN\n"))
                .find("exp.yaml:14:13: error: '${' without a closing '}'"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      save: a${1X}\n"))
                .find("exp.yaml:14:14: error: '${1X}' is not the name of a variable"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      save: ${}\n")).find("'${}' is not the name of a variable"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      save: ${A b}\n")).find("'${A b}' is not the name of a variable"),
            std::string::npos);
  EXPECT_EQ(error_of(experiment_text("      save: ${A:-x}\n")),
            "exp.yaml:14:13: error: '${A:-x}' uses ':-' as in a shell\n"
            " 14 |       save: ${A:-x}\n"
            "    |             ^^^^^^^\n"
            "  hint: write the default right after the colon: ${A:x}");
  // The text after the colon, -1, is a valid default. Only the check of the key seed refuses -1.
  EXPECT_NE(error_of(experiment_text("      seed: ${A:-1}\n")).find("seed is -1"), std::string::npos);
}

TEST(Variables, EmptyVariablesCountAsSet) {
  const Experiment e =
      load_text(experiment_text("      save: a${X:default}b\n      load: ${X:default}\n"), {}, {{"X", ""}});
  EXPECT_EQ(e.trainer->save, "ab");
  EXPECT_FALSE(e.trainer->load);
}

TEST(Variables, MayHaveDashesAndDots) {
  const Experiment e =
      load_text(experiment_text("      save: ${my-var.x:z}\n      load: ${a.b}\n"), {}, {{"a.b", "there"}});
  EXPECT_EQ(e.trainer->save, "z");
  EXPECT_EQ(e.trainer->load, "there");
}

TEST(Variables, WrongTypesAreFoundAfterSubstitution) {
  EXPECT_EQ(error_of(experiment_text("      train_iters: ${ITERS}\n"), {}, {{"ITERS", "many"}}),
            "exp.yaml:14:20: error: train_iters expects an integer, not 'many'\n"
            " 14 |       train_iters: ${ITERS}\n"
            "    |                    ^^^^\n"
            "  hint: 'primus config reference train_iters' explains it");
}

TEST(Variables, AreText) {
  EXPECT_EQ(error_of(experiment_text("      save: /data/${RUN}/x\n"), {}, {{"RUN", "a\x85"}}),
            "exp.yaml:14:19: error: environment variable RUN is not UTF-8 text, as settings must be\n"
            " 14 |       save: /data/${RUN}/x\n"
            "    |                   ^^^^^^\n"
            "  hint: export it again from a UTF-8 terminal");
}

TEST(Variables, LiteralsAreEscaped) {
  const Experiment e = load_text(experiment_text("      save: a$${b}$c\n"));
  EXPECT_EQ(e.trainer->save, "a${b}$c");
}

TEST(Variables, CannotExpandWithoutLimit) {
  const Variables variables = {{"BIG", std::string(100000, 'x')}};
  std::string list = "      data_path: [";
  for (int i = 0; i < 2000; ++i) list += "\"${BIG}\", ";
  EXPECT_NE(error_of(experiment_text(list + "]\n"), {}, variables)
                .find("these settings are too long after their variables are replaced"),
            std::string::npos);
}

class Extends : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& text) {
    return write_file(folder_, name, text);
  }
  Experiment load(const std::filesystem::path& path, const std::vector<std::string>& arguments = {}) {
    return load_experiment(path, arguments, options_with());
  }
  std::string error(const std::filesystem::path& path) {
    try {
      load(path);
      return "";
    } catch (const Error& problem) {
      EXPECT_EQ(problem.exit_code(), 2);
      std::string text = problem.render();
      // Removes the folder's random name.
      const std::string folder = folder_.path().string() + "/";
      for (size_t at; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
      return text;
    }
  }
  TemporaryFolder folder_;
};

TEST_F(Extends, LaterFilesOverrideAndTheFileItselfComesLast) {
  file("base.yaml",
       experiment_text("      lr: 0.1\n      seed: 1\n      clip_grad: 5\n      data_path: [a, b]\n"));
  file("more/second.yaml", "modules:\n  pre_trainer:\n    overrides:\n      lr: 0.2\n      seed: 2\n");
  const auto path = file("exp.yaml",
                         "extends: [base.yaml, more/second.yaml]\n"
                         "exp_name: mine\n"
                         "modules:\n  pre_trainer:\n    overrides:\n      lr: 0.3\n      data_path: [c]\n"
                         "      mock_data: false\n");
  const Experiment e = load(path);
  EXPECT_EQ(e.exp_name, "mine");
  EXPECT_EQ(e.work_group, "g");
  EXPECT_EQ(e.trainer->lr, 0.3);
  EXPECT_EQ(e.trainer->seed, 2);
  EXPECT_EQ(e.trainer->clip_grad, 5);
  EXPECT_EQ(e.trainer->data_path, std::vector<std::string>{"c"});  // lists are replaced
  EXPECT_EQ(e.provenance_of("seed").describe(), (folder_.path() / "more" / "second.yaml").string() + ":5:13");
}

TEST_F(Extends, AcceptsOneNameAndChains) {
  file("a.yaml", experiment_text("      lr: 0.1\n      seed: 1\n"));
  file("sub/b.yaml", "extends: ../a.yaml\nmodules: {pre_trainer: {overrides: {lr: 0.2}}}\n");
  const Experiment e = load(file("c.yaml", "extends: sub/b.yaml\nuser_name: me\n"));
  EXPECT_EQ(e.trainer->lr, 0.2);
  EXPECT_EQ(e.trainer->seed, 1);
  EXPECT_EQ(e.user_name, "me");
}

TEST_F(Extends, MixesYamlAndToml) {
  file("base.toml",
       "work_group = \"g\"\nuser_name = \"u\"\nworkspace = \"w\"\n[modules.pre_trainer.overrides]\nseed = "
       "3\n");
  const Experiment e =
      load(file("exp.yaml",
                "extends: base.toml\nexp_name: e\nmodules:\n  pre_trainer:\n    overrides: {num_layers: "
                "1, hidden_size: 8, num_attention_heads: 2, vocab_size: 9, mock_data: true}\n"));
  EXPECT_EQ(e.trainer->seed, 3);
}

TEST_F(Extends, RefusesCircles) {
  file("a.yaml", "extends: b.yaml\n");
  file("b.yaml", "x: 1\nextends: [c.yaml]\n");
  file("c.yaml", "extends: a.yaml\n");
  EXPECT_EQ(error(folder_.path() / "a.yaml"),
            "c.yaml:1:10: error: extends forms a cycle: a.yaml > b.yaml > c.yaml > a.yaml\n"
            " 1 | extends: a.yaml\n"
            "   |          ^^^^^^\n"
            "  hint: remove one of them");
  EXPECT_NE(error(file("self.yaml", "extends: ./self.yaml\n")).find("forms a cycle: self.yaml > self.yaml"),
            std::string::npos);
}

TEST_F(Extends, RefusesMissingFiles) {
  file("base.yaml", "x: 1\n");
  EXPECT_EQ(error(file("exp.yaml", "extends: bsae.yaml\n")),
            "exp.yaml:1:10: error: 'bsae.yaml' does not exist\n"
            " 1 | extends: bsae.yaml\n"
            "   |          ^^^^^^^^^\n"
            "  hint: did you mean 'base.yaml'?");
  EXPECT_NE(error(file("exp2.yaml", "extends: [base.yaml, 3]\n"))
                .find("exp2.yaml:1:22: error: extends expects file names, not 3"),
            std::string::npos);
}

TEST_F(Extends, RefusesFilesThatMultiply) {
  for (int i = 0; i < 30; ++i) {
    file(fmt::format("f{}.yaml", i), fmt::format("extends: [f{0}.yaml, f{0}.yaml]\n", i + 1));
  }
  file("f30.yaml", "x: 1\n");
  EXPECT_NE(error(folder_.path() / "f0.yaml").find("extends reaches more than 64 files"), std::string::npos);
}

TEST_F(Extends, ErrorsPointIntoTheFaultyFile) {
  file("base.yaml", experiment_text("      lr: fast\n"));
  EXPECT_EQ(error(file("exp.yaml", "extends: base.yaml\n")),
            "base.yaml:14:11: error: lr expects a number, not 'fast'\n"
            " 14 |       lr: fast\n"
            "    |           ^^^^\n"
            "  hint: 'primus config reference lr' explains it");
}

TEST_F(Extends, WorksInPresets) {
  file("models/base.yaml", "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 100\n");
  file("models/big.yaml", "extends: base.yaml\nnum_layers: 5\n");
  file("modules/pre_trainer.yaml", "mock_data: true\n");
  const auto path = file("exps/exp.yaml",
                         "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
                         "modules: {pre_trainer: {config: pre_trainer.yaml, model: big}}\n");
  const Experiment e = load_experiment(path, {}, options_with({}, {folder_.path()}));
  EXPECT_EQ(e.trainer->num_layers, 5);
  EXPECT_EQ(e.trainer->hidden_size, 64);
  EXPECT_EQ(e.provenance_of("num_layers").layer, Layer::kModelPreset);
  EXPECT_EQ(e.provenance_of("mock_data").layer, Layer::kModulePreset);
}

TEST_F(Extends, AUsersPresetExtendsAShippedOneByName) {
  file("models/shipped.yaml", "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 100\n");
  file("exps/mine.yaml", "extends: [shipped.yaml]\nnum_layers: 5\n");
  const std::string head = "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n";
  const LoadOptions options = options_with({}, {folder_.path()});
  const Experiment e = load_experiment(
      file("exps/exp.yaml",
           head + "modules: {pre_trainer: {model: mine.yaml, overrides: {mock_data: true}}}\n"),
      {}, options);
  EXPECT_EQ(e.trainer->num_layers, 5);
  EXPECT_EQ(e.trainer->hidden_size, 64);
  // An experiment cannot extend a shipped preset by its name, only a file by its path.
  EXPECT_THROW(load_experiment(file("exps/bad.yaml", "extends: shipped.yaml\n" + head), {}, options), Error);
}

TEST_F(Extends, PresetsNextToTheExperimentComeFirst) {
  file("models/m.yaml", "num_layers: 1\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 100\n");
  file("models/megatron/m.yaml", "extends: ../m.yaml\nnum_layers: 2\n");
  file("near/m.yaml", "extends: ../models/m.yaml\nnum_layers: 3\n");
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules: {pre_trainer: {model: m.yaml, overrides: {mock_data: true}}}\n";
  const LoadOptions options = options_with({}, {folder_.path()});
  EXPECT_EQ(load_experiment(file("far/exp.yaml", text), {}, options).trainer->num_layers, 1);
  EXPECT_EQ(load_experiment(file("near/exp.yaml", text), {}, options).trainer->num_layers, 3);
  const std::vector<std::string> megatron = {"--framework", "megatron"};
  EXPECT_EQ(load_experiment(file("far/exp.yaml", text), megatron, options).trainer->num_layers, 2);
}

TEST(DefaultPresetDirs, TheFoldersOfTheVariableComeFirst) {
  const TemporaryFolder mine;
  const auto dirs = default_preset_dirs([&](const std::string& name) -> std::optional<std::string> {
    return name == "PRIMUS_PRESETS" ? std::optional<std::string>(mine.path().string()) : std::nullopt;
  });
  ASSERT_GE(dirs.size(), 2u);
  EXPECT_EQ(dirs.front(), mine.path());
  EXPECT_TRUE(std::filesystem::exists(dirs.back() / "models" / "llama3_8B.yaml"));
}

TEST(Presets, RefusesAMissingFolderOfPresets) {
  const auto read = [](const std::string& name) {
    return name == "PRIMUS_PRESETS" ? std::optional<std::string>("/no/such/folder") : std::nullopt;
  };
  try {
    default_preset_dirs(read);
    FAIL() << "accepted a missing folder";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("PRIMUS_PRESETS names the folder '/no/such/folder'"),
              std::string::npos);
    EXPECT_EQ(error.exit_code(), 2);
  }
}

}  // namespace
}  // namespace primus::config
