// The tutorial of docs/models.md, "Add your own model": its code is compiled and its experiment is run as
// printed there (CMakeLists.txt extracts them).
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "../../base/temporary_folder.h"
#include "lm/generate/generate.h"
#include "lm/generate/model_folder.h"
#include "lm/model/weights.h"
#include "lm/train/trainer.h"
#include "tiny_model.h"

namespace primus {

extern const FamilyEntry kMine;

namespace {

FamilyRegistry families() {
  FamilyRegistry registry = builtin_families();
  registry.add(kMine.make());
  return registry;
}

// Puts the tutorial's `overrides: {...}` into a minimal experiment.
std::string experiment_in(const Path& workspace) {
  const std::string text = read_file(Path(PRIMUS_SOURCE_DIR) / "docs" / "models.md");
  const std::string fence = "```yaml\n";
  const std::size_t begin = text.find(fence, text.find("## Add your own model")) + fence.size();
  std::string lines = text.substr(begin, text.find("```", begin) - begin);
  std::string indented;
  for (std::size_t end = 0; !lines.empty(); lines.erase(0, end + 1)) {
    end = lines.find('\n');
    indented += "    " + lines.substr(0, end + 1);
  }
  return "work_group: w\nuser_name: u\nexp_name: e\nworkspace: " + workspace.string() +
         "\nmodules:\n  pre_trainer:\n    framework: native\n" + indented;
}

TEST(Tutorial, ItsFamilyTrainsFromItsExperimentAndGenerates) {
  const test::TemporaryFolder workspace;
  const config::Experiment experiment =
      config::load_experiment_text(experiment_in(workspace.path()), "experiment.yaml");
  const FamilyRegistry registry = families();
  Logger log(LogOptions{});
  Trainer trainer(experiment, registry, log);
  trainer.prepare();
  const std::atomic<bool> stop = false;
  const TrainingSummary summary = trainer.run(stop);
  EXPECT_EQ(summary.last_step, 4);
  EXPECT_TRUE(std::isfinite(summary.last_loss));
  ASSERT_TRUE(summary.checkpoint);

  const ModelFolder folder = find_model_folder(*summary.checkpoint);
  const ModelConfig config = load_model_config(folder, registry);
  EXPECT_EQ(config.family, "mine");
  EXPECT_EQ(config.attention.window, 16);
  EXPECT_EQ(config.local_layers(), (std::vector<std::int64_t>{0, 2}));
  Decoder decoder(test::cpu(), config, registry, {.capacity = 64});
  load_model_weights(folder, decoder.store(), decoder.rank());
  const GenerateSettings settings{.sampling = {.temperature = 0}, .max_tokens = 8};
  EXPECT_EQ(generate(decoder, test::some_tokens(40, 250), settings).ids.size(), 8U);
}

}  // namespace
}  // namespace primus
