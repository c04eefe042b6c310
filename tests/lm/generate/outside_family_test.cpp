// A new model family, added by a program that uses Primus as a library: its composition, its config.json and
// one registry entry. An ordinary experiment then trains a model of it, saves it, resumes from the
// checkpoint, and generates text.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../base/temporary_folder.h"
#include "lm/generate/generate.h"
#include "lm/generate/model_folder.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/config_reader.h"
#include "lm/model/weights.h"
#include "lm/train/trainer.h"
#include "tiny_model.h"

namespace primus {
namespace {

// --- the family: parallel attention and feed-forward (GPT-J, Wang and Komatsuzaki 2021), head norms, and
// sliding windows on even layers

class ParallelBlock final : public Block {
 public:
  ParallelBlock(const ModelConfig& config, const BlockParameters& parameters)
      : layer_(parameters.layer()),
        epsilon_(config.norm_epsilon),
        norm_(parameters.norm(".norm", ".ln_1.weight")),
        attention_(self_attention(config, parameters, options(config, parameters.layer()))),
        feed_forward_(feed_forward(config, parameters, config.ffn)) {}

  void forward(engine::Residual& x, const BlockInputs& in) const override {
    engine::BlockScope scope(x, layer_);
    const engine::Value h = norm(x, norm_, epsilon_);
    add(x, attention_->forward(h, in));
    add(x, feed_forward_->forward(h, in));
  }

 private:
  static SelfAttentionOptions options(const ModelConfig& config, std::int64_t layer) {
    SelfAttentionOptions o = attention_options(config, layer);
    o.head_norm = SelfAttentionOptions::HeadNorm::kBeforeRope;
    if (layer % 2 == 0) o.window = 24;
    return o;
  }

  std::int64_t layer_;
  double epsilon_;
  engine::Parameter& norm_;
  std::unique_ptr<Layer> attention_, feed_forward_;
};

void read(const nlohmann::json& json, ModelConfig& config) {
  const ConfigReader reader(json);
  if (!reader.flag_or("parallel", true)) throw reader.bad("parallel", "must be true");
  config.norm_epsilon = reader.positive_or("layer_norm_epsilon", config.norm_epsilon);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["parallel"] = true;
  json["layer_norm_epsilon"] = config.norm_epsilon;
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  return std::make_unique<ParallelBlock>(config, BlockParameters(config, store, layer, chunk));
}

FamilyRegistry families() {
  FamilyRegistry registry = builtin_families();
  registry.add({"parallel", "ParallelForCausalLM", read, write, make_block});
  return registry;
}

// --- using the family

ModelConfig small_config() {
  ModelConfig config = test::tiny_config();
  config.family = "parallel";
  config.layers = 3;
  config.head_dim = 16;
  config.vocab = 384;  // the byte tokenizer's 257 ids, padded
  config.max_positions = 128;
  config.init_std = 0.05;
  return config;
}

// Writes a folder of random weights in the published layout.
void publish(const Path& folder) {
  const FamilyRegistry registry = families();
  const auto random = test::random_decoder(test::cpu(), small_config(), 5, {.capacity = 8}, registry);
  DeviceReader reader(random->rank());
  make_folders(folder);
  save_safetensors(folder, model_sources(random->store(), reader));
  write_file(folder / "config.json", write_model_config(small_config(), DType::kF32, registry));
}

std::string experiment_in(const Path& workspace, const Path& model) {
  return "work_group: w\nuser_name: u\nexp_name: e\nworkspace: " + workspace.string() + R"(
modules:
  pre_trainer:
    framework: native
    overrides:
      load: )" +
         model.string() + R"(
      num_layers: 3
      hidden_size: 32
      num_attention_heads: 4
      seq_length: 48
      tokenizer_type: ByteTokenizer
      mock_data: true
      micro_batch_size: 1
      global_batch_size: 2
      lr: 1.0e-2
      train_iters: 12
      save_interval: 6
      eval_iters: 0
      recompute_granularity: full
      recompute_method: uniform
      recompute_num_layers: 1
)";
}

TrainingSummary train(const Path& workspace, const Path& from, const std::vector<std::string>& overrides) {
  const config::Experiment experiment =
      config::load_experiment_text(experiment_in(workspace, from), "experiment.yaml", overrides);
  const FamilyRegistry registry = families();
  Logger log(LogOptions{});
  Trainer trainer(experiment, registry, log);
  trainer.prepare();
  const std::atomic<bool> stop = false;
  return trainer.run(stop);
}

TEST(OutsideFamily, TrainsSavesReloadsAndGenerates) {
  const test::TemporaryFolder published, once, twice;
  publish(published.path());
  const TrainingSummary whole = train(once.path(), published.path(), {});
  ASSERT_TRUE(whole.checkpoint);
  EXPECT_EQ(whole.last_step, 12);
  EXPECT_LT(whole.last_loss, std::log(384.0));  // below the loss of uniform guesses

  train(twice.path(), published.path(), {"exit_interval=6"});
  const TrainingSummary resumed = train(twice.path(), published.path(), {});
  EXPECT_EQ(resumed.first_step, 6);
  EXPECT_EQ(resumed.last_loss, whole.last_loss);

  const FamilyRegistry registry = families();
  const ModelFolder folder = find_model_folder(*whole.checkpoint);
  const ModelConfig config = load_model_config(folder, registry);
  EXPECT_EQ(config.family, "parallel");
  Decoder decoder(test::cpu(), config, registry, {.capacity = 64});
  load_model_weights(folder, decoder.store(), decoder.rank());
  const std::vector<std::int32_t> prompt = test::some_tokens(40, 250);
  const GenerateSettings settings{.sampling = {.temperature = 0}, .max_tokens = 16};
  const std::vector<std::int32_t> text = generate(decoder, prompt, settings).ids;
  EXPECT_EQ(text.size(), 16U);

  Decoder other(test::cpu(), config, registry, {.capacity = 64});
  const ModelFolder resumed_folder = find_model_folder(*resumed.checkpoint);
  load_model_weights(resumed_folder, other.store(), other.rank());
  EXPECT_EQ(generate(other, prompt, settings).ids, text);
}

TEST(OutsideFamily, DecodesAsTrained) {
  const ModelConfig config = small_config();
  const FamilyRegistry registry = families();
  const auto tokens = test::some_tokens(60, config.vocab);
  const auto reference = test::teacher_forcing(config, 3, tokens, registry);
  const auto decoder = test::random_decoder(test::cpu(), config, 3, {.capacity = 64}, registry);
  const auto logits = decoder->read(tokens);
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], reference.back()[i], 1e-4) << i;
}

TEST(OutsideFamily, IsUnknownWithoutItsEntry) { EXPECT_THROW(builtin_families().find("parallel"), Error); }

}  // namespace
}  // namespace primus
