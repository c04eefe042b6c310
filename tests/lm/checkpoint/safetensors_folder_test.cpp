#include <algorithm>
#include <filesystem>

#include "base/fault_env.h"
#include "checkpoint_testing.h"

namespace primus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsFolderTest : public ::testing::Test {
 protected:
  SafetensorsFolderTest() {
    tensors_.add("c", DType::kF32, {4}, 1);
    tensors_.add("a", DType::kF32, {2, 3}, 2);
    tensors_.add("b", DType::kF32, {6}, 3);
  }
  // Makes two shards: c (16 bytes) and a (24 bytes) fit into 40 bytes, b (24 bytes) does not.
  void save_sharded() { save_safetensors("/m", tensors_.sources, {.max_shard_bytes = 40}, env_); }
  std::string index() { return read_file("/m/model.safetensors.index.json", 1 << 20, env_); }
  std::string refused_index(const std::string& json) {
    write_file("/m/model.safetensors.index.json", json, env_);
    return refused();
  }
  std::string refused() {
    return error_of([&] { SafetensorsFolder::open("/m", env_); });
  }
  std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const auto at = text.find(from);
    EXPECT_NE(at, text.npos);
    return text.replace(at, from.size(), to);
  }

  FaultEnv env_;
  TestTensors tensors_;
};

TEST_F(SafetensorsFolderTest, OneFileAndShardsHaveTheSameContents) {
  for (const std::uint64_t limit : {1000U, 40U, 1U}) {
    save_safetensors("/m", tensors_.sources, {.max_shard_bytes = limit}, env_);
    const auto folder = SafetensorsFolder::open("/m", env_);
    ASSERT_EQ(folder.size(), 3U);
    EXPECT_EQ(folder.files().size(), limit == 1000U ? 1U : limit == 40U ? 2U : 3U);
    EXPECT_EQ(folder[0].name, "a");
    EXPECT_EQ(folder[2].name, "c");
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(std::ranges::equal(folder.at(tensors_.sources[i].name).data, tensors_.storage[i]));
    }
    EXPECT_TRUE(folder.warnings().empty());
  }
}

TEST_F(SafetensorsFolderTest, NamesAndIndexEqualTransformers) {
  save_sharded();
  EXPECT_THAT(env_.list("/m"),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  EXPECT_EQ(index(), R"({
  "metadata": {
    "total_size": 64
  },
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors",
    "c": "model-00001-of-00002.safetensors"
  }
}
)");
}

TEST_F(SafetensorsFolderTest, SavingReplacesOnlyTheOldModel) {
  write_file_atomic("/README", "x", env_);
  save_sharded();
  write_file("/m/modelling.py", "x", env_);
  save_safetensors("/m", tensors_.sources, {}, env_);
  EXPECT_THAT(env_.list("/m"), ElementsAre("model.safetensors", "modelling.py"));
}

// The index may have any total_size: transformers ignores it, and other tools write floats.
TEST_F(SafetensorsFolderTest, ATotalSizeMayHaveAnyType) {
  save_sharded();
  const std::string good = index();
  const auto warnings = [&](const std::string& total) {
    write_file_atomic("/m/model.safetensors.index.json", replaced(good, "64", total), env_);
    return SafetensorsFolder::open("/m", env_).warnings();
  };
  for (const char* same : {"64", "64.0", "6.4e1", "\"64\"", "null", "-1", "64.5", "1e300"})
    EXPECT_TRUE(warnings(same).empty()) << same;
  EXPECT_THAT(warnings("65.0"),
              ElementsAre(HasSubstr("lists a total of 65 bytes for the tensors, but they have 64")));
}

TEST_F(SafetensorsFolderTest, ShardNamesStayInTheFolder) {
  save_sharded();
  const std::string good = index();
  const std::string shard = "model-00001-of-00002.safetensors";
  for (const std::string bad : {"../model.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "",
                                "a\\\\b.safetensors", "a\\u0000.safetensors", "config.json"}) {
    EXPECT_THAT(refused_index(replaced(good, shard, bad)),
                AllOf(HasSubstr("tensor 'a' is listed in"), HasSubstr("not the plain name")))
        << bad;
  }
}

TEST_F(SafetensorsFolderTest, IndexAndShardsMustAgree) {
  save_sharded();
  const std::string good = index();
  EXPECT_THAT(refused_index(replaced(good, "\"a\": \"model-00001", "\"a\": \"model-00002")),
              HasSubstr("tensor 'a' is missing in 'model-00002-of-00002.safetensors'"));
  EXPECT_THAT(refused_index(replaced(good, "\"b\"", "\"x\"")), HasSubstr("tensor 'x' is missing in"));
  EXPECT_THAT(refused_index(replaced(good, "\"a\": \"model-00001-of-00002.safetensors\",", "")),
              HasSubstr("model-00001-of-00002.safetensors' holds tensor 'a', which"));
  EXPECT_THAT(refused_index(replaced(good, "\"b\"", "\"a\"")), HasSubstr("tensor 'a' is listed twice"));
  EXPECT_THAT(refused_index(replaced(good, "00002-of", "00003-of")),
              HasSubstr("00003-of-00002.safetensors' is missing"));
  EXPECT_THAT(refused_index("{}"), HasSubstr("it has no weight_map"));
  EXPECT_THAT(refused_index("[]"), HasSubstr("an object is expected here"));
  EXPECT_THAT(refused_index("{\"weight_map\":\n {\"a\":1}}"),
              HasSubstr("model.safetensors.index.json:2:7: broken JSON: a string is expected here"));
  EXPECT_THAT(refused_index(good.substr(0, good.size() / 2)), HasSubstr("model.safetensors.index.json"));
}

TEST_F(SafetensorsFolderTest, AWrongTotalSizeIsAWarning) {
  save_sharded();
  write_file("/m/model.safetensors.index.json", replaced(index(), "64", "65"), env_);
  EXPECT_THAT(SafetensorsFolder::open("/m", env_).warnings(),
              ElementsAre(HasSubstr("lists a total of 65 bytes for the tensors, but they have 64")));
}

TEST_F(SafetensorsFolderTest, ASingleFileIsReadAndAnIndexIsNoted) {
  save_sharded();
  const std::string shards = index();
  save_safetensors("/m", tensors_.sources, {}, env_);  // removes the shards
  const auto warnings = [&](const std::string& text) {
    write_file("/m/model.safetensors.index.json", text, env_);
    const auto folder = SafetensorsFolder::open("/m", env_);
    EXPECT_EQ(folder.size(), 3U);
    return folder.warnings();
  };
  EXPECT_THAT(
      warnings(shards),
      ElementsAre(AllOf(HasSubstr("'/m/model.safetensors' is loaded"),
                        HasSubstr("lists 'model-00001-of-00002.safetensors' and other files, is not read"))));
  EXPECT_THAT(warnings("{"), ElementsAre(HasSubstr("which is damaged, is not read")));
  EXPECT_THAT(warnings(R"({"weight_map": {"a": "model.safetensors"}})"), ElementsAre());
}

TEST_F(SafetensorsFolderTest, AdaptersNextToWeightsAreNoted) {
  for (const bool shards : {false, true}) {
    shards ? save_sharded() : save_safetensors("/m", tensors_.sources, {}, env_);
    write_file("/m/adapter_model.safetensors", "x", env_);
    EXPECT_THAT(SafetensorsFolder::open("/m", env_).warnings(),
                ElementsAre(HasSubstr("'/m/adapter_model.safetensors' is ignored: Primus does not read")));
  }
  env_.remove_file("/m/adapter_model.safetensors");
  write_file("/m/adapter_config.json", "{}", env_);
  EXPECT_THAT(SafetensorsFolder::open("/m", env_).warnings(),
              ElementsAre(AllOf(HasSubstr("'/m/adapter_config.json' is ignored"),
                                HasSubstr("(adapter_model.safetensors) are missing"))));
}

TEST_F(SafetensorsFolderTest, MissingAndMisshapenTensorsAreNamed) {
  save_sharded();
  const auto folder = SafetensorsFolder::open("/m", env_);
  EXPECT_THAT(error_of([&] { folder.at("lm_head.weight"); }),
              HasSubstr("tensor 'lm_head.weight' is missing in '/m'"));
  const std::vector<std::int64_t> right = {2, 3}, wrong = {3, 2};
  EXPECT_EQ(folder.at("a", right).data.size(), 24U);
  EXPECT_THAT(error_of([&] { folder.at("a", wrong); }),
              HasSubstr("tensor 'a' in '/m' has shape [2, 3], but the model needs [3, 2]"));
}

TEST_F(SafetensorsFolderTest, AFolderWithoutAModelGivesAHint) {
  EXPECT_THAT(refused(), HasSubstr("'/m'"));
  env_.make_folder("/m");
  const auto hint = [&] {
    try {
      SafetensorsFolder::open("/m", env_);
    } catch (const Error& error) {
      return error.hint();
    }
    return std::string();
  };
  EXPECT_THAT(refused(), HasSubstr("'/m' contains no model"));
  EXPECT_THAT(hint(), HasSubstr("save_pretrained"));
  EXPECT_FALSE(has_weights("/m", env_));
  // Other files next to the weights are not read as weights.
  for (const char* other : {"training_args.bin", "optimizer.pt", "rng_state.pth", "io.safetensors"}) {
    write_file(std::string("/m/") + other, "x", env_);
  }
  EXPECT_FALSE(has_weights("/m", env_));
  EXPECT_THAT(hint(), HasSubstr("give the folder that transformers' save_pretrained wrote"));
  write_file("/m/pytorch_model.bin", "x", env_);
  EXPECT_THAT(hint(), AllOf(HasSubstr("'pytorch_model.bin' is a pickle"), HasSubstr("safe_serialization")));
  write_file("/m/model-00001-of-00002.safetensors", "x", env_);
  EXPECT_THAT(hint(), HasSubstr("a shard whose index is missing"));
  EXPECT_TRUE(has_weights("/m", env_));
}

TEST_F(SafetensorsFolderTest, ABrokenLinkIsReportedAsSuch) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    const TemporaryFolder folder;
    std::filesystem::create_symlink("../blobs/gone", folder.path() / name);
    EXPECT_TRUE(has_weights(folder.path()));
    EXPECT_THAT(
        error_of([&] { SafetensorsFolder::open(folder.path()); }),
        AllOf(HasSubstr(std::string(name) + "' is a link to a missing file"), Not(HasSubstr("neither"))));
  }
}

}  // namespace
}  // namespace primus
