// Tests whole runs with LoRA: trained and saved tensors, resumption bit for bit, refused settings, and
// exports, which equal the adapted model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/elements.h"
#include "lm/decode/adapter_batch.h"
#include "lm/exchange/exchange.h"
#include "lm/generate/adapters.h"
#include "lm/generate/loss_evaluator.h"
#include "lm/model/stated_adapters.h"
#include "lm/train/whole_runs.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class LoraRuns : public WholeRuns {
 protected:
  LoraRuns() : WholeRuns({"num_query_groups=2"}) {}

  const std::string lora_ = "lora={enabled: true, dim: 4, alpha: 8}";
};

TEST_F(LoraRuns, TrainOnlyAdaptersAndResumeBitForBit) {
  const Path base = run("base", {});
  const Path whole = run("whole", {load(base), "finetune=true", lora_});
  const SafetensorsFolder before = SafetensorsFolder::open(base), after = SafetensorsFolder::open(whole);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::optional<TensorView> now = after.find(before[i].name);
    ASSERT_TRUE(now) << before[i].name;
    EXPECT_TRUE(std::ranges::equal(now->data, before[i].data)) << before[i].name;
  }
  // The query, key and value projections share one A. Every matrix has a B, whose values were trained.
  EXPECT_EQ(after.size(), before.size() + 2 * 7 * 2);
  const std::string attention = "model.layers.1.self_attn.";
  EXPECT_EQ(values(after, attention + "q_proj.lora_A.weight"),
            values(after, attention + "v_proj.lora_A.weight"));
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    const std::vector<float> b = values(after, attention + name + ".lora_B.weight");
    EXPECT_TRUE(std::ranges::any_of(b, [](float v) { return v != 0; })) << name;
  }
  // The model_type prevents other programs from loading the frozen weights as the trained model.
  const auto config = nlohmann::json::parse(read_file(whole / "config.json"));
  EXPECT_EQ(config.at("model_type"), "primus_lora");
  EXPECT_EQ(config.at("primus_lora").at("model_type"), "llama");
  EXPECT_EQ(load_model_config(find_model_folder(whole), families_).family, "llama");
  // The checkpoint has no optimizer state of frozen weights.
  const CheckpointReader saved = CheckpointReader::open(whole);
  int states = 0;
  for (const TensorRecord& record : saved.manifest().tensors) {
    if (record.part != TensorPart::kOptimizer) continue;
    EXPECT_THAT(record.name, HasSubstr(".lora_"));
    ++states;
  }
  EXPECT_GT(states, 0);

  run("twice", {load(base), "finetune=true", lora_, "exit_interval=2"});
  const Path twice = run("twice", {load(base), "finetune=true", lora_});
  EXPECT_EQ(losses("twice"), losses("whole"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(read_file(twice / file), read_file(whole / file)) << file;
}

TEST_F(LoraRuns, OtherAdaptersAreRefused) {
  const Path base = run("base", {});
  const Path adapted = run("adapted", {load(base), "finetune=true", lora_, "exit_interval=2"});
  // The hints name the settings that continue the run.
  EXPECT_THAT(refusal("adapted", {load(base), "finetune=true", "lora={enabled: true, dim: 8, alpha: 8}"}),
              AllOf(HasSubstr("was saved with other lora settings"), HasSubstr("set lora.dim=4; for")));
  EXPECT_THAT(
      refusal("adapted", {load(base), "finetune=true"}),
      AllOf(HasSubstr("was saved with LoRA adapters"), HasSubstr("set lora.dim=4 lora.alpha=8; for")));
  run("adapted", {load(base), "finetune=true", "lora.dim=4", "lora.alpha=8"});
  run("plain", {load(base), "finetune=true", "exit_interval=2"});
  EXPECT_THAT(refusal("plain", {load(base), "finetune=true", lora_}),
              AllOf(HasSubstr("was saved without LoRA"), HasSubstr("set lora.enabled=false; for")));
  EXPECT_THAT(refusal("other", {load(adapted), "finetune=true"}),
              AllOf(HasSubstr("has LoRA adapters, but lora is not enabled"),
                    HasSubstr("set lora.dim=4 lora.alpha=8; or")));
  EXPECT_THAT(refusal("other", {load(adapted), "finetune=true", "lora.dim=2", "lora.alpha=8"}),
              AllOf(HasSubstr("has LoRA adapters that differ"), HasSubstr("set lora.dim=4; or")));
  // A new run from weights with equal adapters starts with these adapters.
  run("further", {load(adapted), "finetune=true", lora_});
  EXPECT_LT(losses("further").front(), losses("adapted").front());
}

// The matrices of queries, keys and values share one A, which the file has for each of them.
TEST_F(LoraRuns, ExportedAdaptersAreCountedAsTheFileHasThem) {
  const Path base = run("base", {}), out = folder_.path() / "peft";
  const Path adapted = run("adapted", {load(base), "finetune=true", lora_});
  const ExchangeReport report = write_adapters(find_model_folder(adapted), out, "base", families_);
  const SafetensorsFile file = SafetensorsFile::open(out / "adapter_model.safetensors");
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < file.size(); ++i) bytes += file[i].data.size();
  EXPECT_EQ(report.tensors, std::ssize(file));
  EXPECT_EQ(static_cast<std::uint64_t>(report.parameters), bytes / sizeof(float));
}

// Published weights without a manifest are adapted, and the export has the adapters folded in.
TEST_F(LoraRuns, PublishedWeightsAreLoadedAndExportedMerged) {
  const std::string own_tokenizer = "allow_tokenizer_change=true";
  for (const char* bf16 : {"bf16=false", "bf16=true"}) {
    SCOPED_TRACE(bf16);
    const std::string name = std::string(bf16).substr(5);
    const Path base = run("base_" + name, {bf16}), published = folder_.path() / ("published_" + name);
    const Path out = folder_.path() / ("out_" + name);
    copy_model(find_model_folder(base), published, {}, families_);
    const Path adapted = run("adapted_" + name, {bf16, load(published), lora_, own_tokenizer});
    const ExchangeReport report =
        copy_model(find_model_folder(adapted), out, {.dtype = DType::kF32}, families_);
    EXPECT_FALSE(report.config.lora);
    EXPECT_THAT(report.notes, testing::Contains(HasSubstr("merged")));

    const CheckpointReader training = CheckpointReader::open(adapted);
    const auto master = [&](const std::string& tensor) {
      const auto found = training.find(TensorPart::kOptimizer, "fp32_param." + tensor);
      const TensorView view = found ? *found : *training.find(TensorPart::kModel, tensor);
      std::vector<float> all(view.data.size() / static_cast<std::size_t>(size_of(view.dtype)));
      to_float(view.dtype, view.data, all);
      return all;
    };
    // The master of the shared A is saved once, for all three projections.
    const std::string attention = "model.layers.0.self_attn.", key = attention + "k_proj.";
    const std::vector<float> w = master(key + "weight"), a = master(attention + "q_proj.lora_A.weight"),
                             b = master(key + "lora_B.weight"),
                             folded = values(SafetensorsFolder::open(out), key + "weight");
    ASSERT_EQ(folded.size(), 16U * 32);
    for (std::size_t i = 0; i < folded.size(); ++i) {
      double sum = 0;
      for (std::size_t r = 0; r < 4; ++r)
        sum += static_cast<double>(b[i / 32 * 4 + r]) * static_cast<double>(a[r * 32 + i % 32]);
      EXPECT_FLOAT_EQ(folded[i], static_cast<float>(static_cast<double>(w[i]) + 2 * sum));
    }
    // The export is an ordinary model that has learned what the adapters had learned.
    run("after_" + name, {bf16, load(out), own_tokenizer});
    EXPECT_LT(losses("after_" + name).front(), losses("adapted_" + name).front());
  }
}

// Returns the bits of the losses of a model's windows, alone or among others.
std::vector<double> losses_of(const std::vector<AdaptedModel>& models, DType compute,
                              const FamilyRegistry& families) {
  std::vector<ModelConfig> configs;
  std::vector<engine::ParameterStore*> stores;
  for (const AdaptedModel& model : models) configs.push_back(model.config);
  LossEvaluator evaluator(turbo::make_cpu_device(2), configs, families,
                          {.compute = compute, .sequence = 16, .batch = 2});
  for (std::size_t i = 0; i < models.size(); ++i) stores.push_back(&evaluator.store(i));
  load_shared_weights(models, stores, evaluator.rank());
  std::vector<double> losses;
  for (std::size_t i = 0; i < models.size(); ++i) {
    evaluator.select(i);
    std::vector<std::int32_t> text;
    for (std::int32_t t = 0; t < 65; ++t) text.push_back(t * t % 50);
    evaluator.add(text);
    evaluator.finish();
    losses.push_back(evaluator.total());
  }
  return losses;
}

// Runs and the PEFT folder of a run are adapters of the same base, which is a run, too.
TEST_F(LoraRuns, RunsShareABaseModel) {
  const Path base = run("base", {}), peft = folder_.path() / "peft";
  const Path first = run("first", {load(base), "finetune=true", lora_}),
             second = run("second", {load(base), "finetune=true",
                                     "lora={enabled: true, dim: 2, alpha: 4, target_modules: [linear_qkv]}"});
  write_adapters(find_model_folder(first), peft, base.string(), families_);
  std::vector<AdaptedModel> models = {{std::string(kBaseName), find_model_folder(base), {}}};
  for (const Path& path : {first, second, peft})
    models.push_back({path.filename().string(), find_adapters(path, models.front().folder, families_), {}});
  std::vector<ModelConfig> configs;
  for (AdaptedModel& model : models) {
    model.config = load_model_config(model.folder, families_);
    configs.push_back(model.config);
  }
  EXPECT_THAT(models_of_one_batch(configs, families_), testing::ElementsAre(0, 1, 2, 3));
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const std::vector<double> together = losses_of(models, compute, families_);
    for (std::size_t i = 0; i < models.size(); ++i)
      EXPECT_EQ(together[i], losses_of({models[i]}, compute, families_).front()) << models[i].name;
    EXPECT_NE(together[0], together[1]);
    EXPECT_NE(together[1], together[2]);
  }
  // A run that trained next to other weights.
  const Path other = run("other", {"seed=99"});
  models.front().folder = find_model_folder(other);
  try {
    losses_of({models[0], models[1]}, DType::kF32, families_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.render(), AllOf(HasSubstr("differs from the base model"),
                                      HasSubstr("give the model next to which they were trained")));
  }
}

// Folders move, so another base model is only a warning, and only the last part of its path counts.
TEST_F(LoraRuns, AdaptersOfAnotherBaseModelAreReported) {
  const std::string own_tokenizer = "allow_tokenizer_change=true";
  const Path first = folder_.path() / "first", other = folder_.path() / "other",
             peft = folder_.path() / "peft";
  const Path moved = folder_.path() / "moved" / "first";
  const Path base = run("base", {});
  for (const Path& to : {first, other, moved}) copy_model(find_model_folder(base), to, {}, families_);
  const Path adapted = run("adapted", {load(first), lora_, own_tokenizer});
  write_adapters(find_model_folder(adapted), peft, first.string(), families_);
  const std::string adapters = "lora.adapters=" + peft.string();
  run("same", {load(first), adapters, own_tokenizer});
  run("elsewhere", {load(moved), adapters, own_tokenizer});
  run("another", {load(other), adapters, own_tokenizer});
  for (const char* name : {"same", "elsewhere", "another"})
    EXPECT_THAT(log_of(name), HasSubstr("adapters loaded from " + peft.string() + ": rank 4, 14 matrices"));
  constexpr const char* kWarning = "were trained on";
  EXPECT_THAT(log_of("same"), Not(HasSubstr(kWarning)));
  EXPECT_THAT(log_of("elsewhere"), Not(HasSubstr(kWarning)));
  EXPECT_THAT(log_of("another"), AllOf(HasSubstr(kWarning), HasSubstr("'" + first.string() + "'"),
                                       HasSubstr("but the base model is '" + other.string() + "'")));
}

// A checkpoint or run is a base model, too; the hint for a PEFT folder as `load` names its path.
TEST_F(LoraRuns, AdaptersAreTrainedFurtherOnCheckpoints) {
  const std::string own_tokenizer = "allow_tokenizer_change=true";
  const Path base = run("base", {}), root = base.parent_path().parent_path();
  const Path exported = folder_.path() / "exported", peft = folder_.path() / "peft";
  copy_model(find_model_folder(base), exported, {}, families_);
  const Path adapted = run("adapted", {load(root), "finetune=true", lora_});
  write_adapters(find_model_folder(adapted), peft, root.string(), families_);
  EXPECT_THAT(note_on_base(root.string()), HasSubstr("a run that other programs cannot open"));
  EXPECT_EQ(note_on_base(exported.string()), "");
  EXPECT_EQ(note_on_base("org/model"), "") << "a name on the Hub";
  const std::string adapters = "lora.adapters=" + peft.string();
  EXPECT_THAT(refusal("peft", {load(peft), "finetune=true"}),
              AllOf(HasSubstr("set load=" + base.string() + " lora.adapters=" + peft.string()),
                    HasSubstr("primus model export " + peft.string() + " MODEL")));
  run("of_export", {load(exported), adapters, own_tokenizer});
  run("of_run", {load(root), "finetune=true", adapters, own_tokenizer, "exit_interval=2"});
  run("of_run", {load(root), "finetune=true", adapters, own_tokenizer});
  run("of_checkpoint", {load(base), "finetune=true", adapters, own_tokenizer});
  EXPECT_EQ(losses("of_run"), losses("of_export"));
  EXPECT_EQ(losses("of_checkpoint"), losses("of_export"));
  EXPECT_LT(losses("of_run").front(), losses("adapted").front());
  EXPECT_THAT(log_of("of_run"), Not(HasSubstr("were trained on")));
  EXPECT_THAT(log_of("of_checkpoint"), Not(HasSubstr("were trained on")));
  EXPECT_THAT(log_of("of_export"), HasSubstr("only if it is an export of that run"));
  EXPECT_THAT(refusal("continued", {load(base), "finetune=false", adapters, own_tokenizer}),
              HasSubstr("set finetune=true"));
  EXPECT_THAT(refusal("folder", {load(base), "finetune=true", "lora.adapters=" + adapted.string()}),
              AllOf(HasSubstr("is no PEFT folder"), HasSubstr("FOLDER --adapters")));
  EXPECT_THAT(refusal("twice", {load(adapted), "finetune=true", adapters, own_tokenizer}),
              HasSubstr("primus model export"));
}

// Dropout masks depend on step and token, so a resumed run draws the masks of an uninterrupted one.
TEST_F(LoraRuns, WithDropoutResumeBitForBit) {
  const Path base = run("base", {});
  for (const char* position : {"pre", "post"}) {
    SCOPED_TRACE(position);
    const std::string name = position;
    const std::string with =
        "lora={enabled: true, dim: 4, alpha: 8, dropout: 0.25, dropout_position: " + name + "}";
    const Path whole = run("whole_" + name, {load(base), "finetune=true", with});
    run("plain_" + name, {load(base), "finetune=true", lora_});
    // B is zero at first, so dropout has no effect in the first step.
    EXPECT_EQ(losses("whole_" + name).front(), losses("plain_" + name).front());
    EXPECT_NE(losses("whole_" + name), losses("plain_" + name));
    run("twice_" + name, {load(base), "finetune=true", with, "exit_interval=2"});
    const Path twice = run("twice_" + name, {load(base), "finetune=true", with});
    EXPECT_EQ(losses("twice_" + name), losses("whole_" + name));
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / file), read_file(whole / file)) << file;
    // Dropout is not part of the saved model.
    EXPECT_THAT(read_file(whole / "config.json"), Not(HasSubstr("dropout\": 0.25")));
    run("further_" + name, {load(whole), "finetune=true", lora_});
  }
}

class LoraMixtures : public LoraRuns, public testing::WithParamInterface<const char*> {
 protected:
  // Tests families that publish each expert separately, and families that publish all experts of a layer in
  // one transposed tensor.
  std::vector<std::string> with(std::vector<std::string> more) const {
    const std::string family = GetParam();
    std::vector<std::string> all{"model_type=" + family,        "num_experts=4",
                                 "moe_router_topk=2",           "ffn_hidden_size=16",
                                 "moe_ffn_hidden_size=16",      "moe_router_load_balancing_type=none",
                                 "allow_tokenizer_change=true", "bf16=false"};
    std::ranges::copy(more, std::back_inserter(all));
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Families, LoraMixtures, testing::Values("qwen3_moe", "gpt_oss"),
                         [](const auto& family) { return std::string(family.param); });

TEST_P(LoraMixtures, TrainResumeAndExportMergedWeights) {
  const Path base = run("base", with({}));
  const Path whole = run("whole", with({load(base), "finetune=true", lora_}));
  const SafetensorsFolder before = SafetensorsFolder::open(base), after = SafetensorsFolder::open(whole);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::optional<TensorView> now = after.find(before[i].name);
    ASSERT_TRUE(now) << before[i].name;
    EXPECT_TRUE(std::ranges::equal(now->data, before[i].data)) << before[i].name;
  }
  run("twice", with({load(base), "finetune=true", lora_, "exit_interval=2"}));
  const Path twice = run("twice", with({load(base), "finetune=true", lora_}));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(read_file(twice / file), read_file(whole / file)) << file;

  // The export is an ordinary model with the loss of the adapted model.
  const Path out = folder_.path() / "out";
  const ExchangeReport report = copy_model(find_model_folder(whole), out, {.dtype = DType::kF32}, families_);
  EXPECT_FALSE(report.config.lora);
  EXPECT_EQ(report.tensors, before.size());
  run("adapted", with({load(whole), "finetune=true", lora_}));
  run("merged", with({load(out), "finetune=true"}));
  EXPECT_NEAR(losses("merged").front(), losses("adapted").front(), 1e-5 * losses("adapted").front());
  EXPECT_LT(losses("merged").front(), losses("whole").front());
}

TEST_F(LoraRuns, DropoutOfExpertsIsRefused) {
  const std::vector<std::string> mixture{"model_type=mixtral", "num_experts=4", "moe_router_topk=2",
                                         "ffn_hidden_size=16"};
  const auto with = [&](const std::string& modules) {
    std::vector<std::string> all = mixture;
    all.push_back("lora={enabled: true, dim: 4, alpha: 8, dropout: 0.1, target_modules: " + modules + "}");
    return all;
  };
  EXPECT_THAT(refusal("experts", with("[linear_proj, linear_fc2]")),
              HasSubstr("does not support adapters of experts"));
  run("attention", with("[linear_qkv, linear_proj]"));
}

}  // namespace
}  // namespace primus::test
