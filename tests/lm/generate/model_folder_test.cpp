#include "lm/generate/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../../base/temporary_folder.h"
#include "lm/checkpoint/checkpoint.h"
#include "tiny_model.h"

namespace primus {
namespace {

using test::TemporaryFolder;

const Path kGolden = Path(PRIMUS_SOURCE_DIR) / "tests" / "golden" / "models" / "llama";

void save_checkpoint(const Path& root, std::int64_t iteration) {
  make_folders(root);
  Snapshot snapshot;
  snapshot.iteration = iteration;
  snapshot.files = {{"config.json", read_file(kGolden / "config.json")}};
  CheckpointRoot(root).save(snapshot);
}

TEST(ModelFolder, IsAHuggingFaceFolder) {
  const ModelFolder found = find_model_folder(kGolden);
  EXPECT_EQ(found.path, kGolden);
  EXPECT_FALSE(found.iteration);
  EXPECT_GT(load_model_config(found, builtin_families()).layers, 0);
}

TEST(ModelFolder, IsTheNewestCheckpointOfARun) {
  const TemporaryFolder folder;
  const Path root = folder.path() / "checkpoints";
  save_checkpoint(root, 5);
  save_checkpoint(root, 10);
  for (const Path& given : {folder.path(), root, root / "iter_0000010"}) {
    const ModelFolder found = find_model_folder(given);
    EXPECT_EQ(found.path, root / "iter_0000010") << given;
    EXPECT_EQ(found.iteration, 10);
  }
  EXPECT_EQ(find_model_folder(root / "iter_0000005").iteration, 5);
}

TEST(ModelFolder, NeedsNoLatest) {
  const TemporaryFolder folder;
  const Path root = folder.path() / "checkpoints";
  save_checkpoint(root, 5);
  save_checkpoint(root, 10);
  make_folders(root / "iter_0000015");  // an incomplete copy
  for (const char* latest : {"", "no name", "iter_0000020"}) {
    write_file(root / "latest", latest);
    EXPECT_EQ(find_model_folder(folder.path()).iteration, 10) << latest;
  }
  try {
    find_model_folder(root / "latest");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.hint(), "give the folder of the checkpoints: " + root.string());
  }
  std::filesystem::remove(root / "latest");
  EXPECT_EQ(find_model_folder(folder.path()).iteration, 10);
  EXPECT_EQ(find_model_folder(root).iteration, 10);
}

TEST(ModelFolder, ReportsMissingFiles) {
  const TemporaryFolder folder;
  EXPECT_THROW(find_model_folder(folder.path() / "nothing"), Error);
  EXPECT_THROW(find_model_folder(folder.path()), Error);
  write_file(folder.path() / "file", "x");
  EXPECT_THROW(find_model_folder(folder.path() / "file"), Error);
}

std::string error_for(const Path& given) {
  try {
    find_model_folder(given);
  } catch (const Error& error) {
    return error.render();
  }
  return "no error";
}

TEST(ModelFolder, SuggestsTheFolderToName) {
  using ::testing::HasSubstr;
  using ::testing::Not;
  const TemporaryFolder folder;
  EXPECT_THAT(error_for(kGolden / "config.json"),
              HasSubstr("hint: give the folder that holds config.json: " + kGolden.string()));
  write_file(folder.path() / "m.gguf", "GGUF");
  EXPECT_THAT(error_for(folder.path() / "m.gguf"),
              HasSubstr("give the Hugging Face folder that it was made"));
  EXPECT_THAT(error_for("an-organisation/Model-1B"),
              HasSubstr("'hf download an-organisation/Model-1B --local-dir FOLDER'"));
  EXPECT_THAT(error_for(folder.path() / "nothing"), Not(HasSubstr("hf download")));
  EXPECT_THAT(error_for("nothing"), Not(HasSubstr("hf download")));
}

TEST(ModelTokenizer, ComesFromTheFolderOrByName) {
  const TemporaryFolder folder;
  const ModelFolder model{folder.path(), {}};
  ModelConfig config = test::tiny_config();
  config.vocab = 384;
  EXPECT_THROW(load_model_tokenizer(model, config, "", ""), Error);
  EXPECT_EQ(load_model_tokenizer(model, config, "ByteTokenizer", "")->vocab_size(), 257);
  config.vocab = 128;  // fewer embeddings than tokens
  EXPECT_THROW(load_model_tokenizer(model, config, "ByteTokenizer", ""), Error);
}

TEST(ModelTokenizer, OfACheckpointComesFromItsExperiment) {
  const TemporaryFolder folder;
  Snapshot snapshot;
  snapshot.iteration = 1;
  snapshot.files = {{"config.json", read_file(kGolden / "config.json")}};
  snapshot.trainer_state =
      R"({"experiment": "work_group: a\nuser_name: b\nexp_name: c\nworkspace: d\nmodules:\n  pre_trainer:\n    )"
      R"(overrides:\n      tokenizer_type: ByteTokenizer\n      num_layers: 1\n      hidden_size: 8\n      )"
      R"(num_attention_heads: 1\n      mock_data: true\n"})";
  CheckpointRoot(folder.path()).save(snapshot);
  ModelConfig config = test::tiny_config();
  config.vocab = 384;
  const ModelFolder model = find_model_folder(folder.path());
  EXPECT_EQ(load_model_tokenizer(model, config, "", "")->name(), "ByteTokenizer");

  // The byte tokenizer is the model's own, so it gives no warning. Another tokenizer gives one.
  std::vector<std::string> notes;
  EXPECT_EQ(load_model_tokenizer(model, config, "ByteTokenizer", "", &notes)->vocab_size(), 257);
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(load_model_tokenizer(model, config, "NullTokenizer", "300", &notes)->name(), "NullTokenizer");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], ::testing::HasSubstr("was trained with its own tokenizer (ByteTokenizer)"));
}

TEST(ModelWeights, LoadIntoADecoder) {
  const ModelFolder folder = find_model_folder(kGolden);
  const FamilyRegistry families = builtin_families();
  const ModelConfig config = load_model_config(folder, families);
  test::TestDecoder decoder(test::cpu(), config, families, {.capacity = 8});
  load_model_weights(folder, decoder.store(), decoder.rank());
  const std::vector<std::int32_t> tokens{1, 2, 3};
  const auto logits = decoder.read(tokens);
  EXPECT_EQ(static_cast<std::int64_t>(logits.size()), config.vocab);
  EXPECT_NE(logits[0], logits[1]);
}

TEST(StopIds, IncludeAllThatTheFolderLists) {
  const TemporaryFolder folder;
  const ModelFolder model{folder.path(), {}};
  ModelConfig config = test::tiny_config();
  config.vocab = 300;
  config.eos_ids = {7, 9, -1};
  const auto tokenizer = load_tokenizer("ByteTokenizer", "");
  const std::int32_t eod = *tokenizer->special_ids().eod;
  EXPECT_EQ(load_stop_ids(model, config, *tokenizer), (std::vector<std::int32_t>{eod, 7, 9}));
  write_file(folder.path() / "generation_config.json", R"({"eos_token_id": [9, 11, 999999999999999999999]})");
  EXPECT_THROW(load_stop_ids(model, config, *tokenizer), Error);
  write_file(folder.path() / "generation_config.json", R"({"eos_token_id": [9, 11, 18446744073709551615]})");
  std::vector<std::string> notes;
  EXPECT_EQ(load_stop_ids(model, config, *tokenizer, &notes), (std::vector<std::int32_t>{eod, 7, 9, 11}));
  EXPECT_EQ(notes, std::vector<std::string>{(folder.path() / "generation_config.json").string() +
                                            ": eos_token_id is 18446744073709551615, but the vocabulary has "
                                            "300 tokens, so no text ends with it"});
  write_file(folder.path() / "generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(load_stop_ids(model, config, *tokenizer), (std::vector<std::int32_t>{eod, 7, 9}));
  write_file(folder.path() / "generation_config.json", "[");
  EXPECT_THROW(load_stop_ids(model, config, *tokenizer), Error);
}

TEST(SamplingDefaults, ComeFromTheFile) {
  const TemporaryFolder folder;
  const auto read = [&](const char* text) {
    write_file(folder.path() / "generation_config.json", text);
    return load_sampling_defaults({folder.path(), {}});
  };
  const SamplingDefaults none = load_sampling_defaults({folder.path(), {}});
  EXPECT_FALSE(none.temperature || none.top_k || none.top_p);
  // The generation_config.json of Qwen2.5-Instruct.
  const SamplingDefaults qwen =
      read(R"({"bos_token_id": 1, "do_sample": true, "repetition_penalty": 1.05, "temperature": 0.7,
               "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0"})");
  EXPECT_EQ(qwen.temperature, 0.7);
  EXPECT_EQ(qwen.top_k, 20);
  EXPECT_EQ(qwen.top_p, 0.8);
  EXPECT_EQ(qwen.unused, std::vector<std::string>{"repetition_penalty 1.05"});
  EXPECT_EQ(read(R"({"do_sample": true})").temperature, 1);
  EXPECT_EQ(read(R"({"do_sample": false, "temperature": 0.7})").temperature, 0);
  EXPECT_EQ(read(R"({"temperature": 0.7})").temperature, 0.7);
  EXPECT_EQ(read(R"({"top_k": -1})").top_k, 0);
  // Reads values that have no effect, and values that Primus cannot use.
  EXPECT_TRUE(read(R"({"repetition_penalty": 1.0, "num_beams": 1, "min_p": null, "bad_words_ids": []})")
                  .unused.empty());
  const SamplingDefaults bad = read(R"({"temperature": "hot", "top_p": 1.5, "top_k": -7})");
  EXPECT_FALSE(bad.temperature || bad.top_k || bad.top_p);
  EXPECT_EQ(bad.unused, (std::vector<std::string>{"temperature \"hot\"", "top_k -7", "top_p 1.5"}));
  EXPECT_THROW(read("["), Error);
}

}  // namespace
}  // namespace primus
