#include "lm/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "base/fault_env.h"
#include "base/files/crc32c.h"
#include "checkpoint_testing.h"

namespace primus {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointTest : public ::testing::Test {
 protected:
  void save(std::int64_t iteration, SaveOptions options = {}) {
    CheckpointRoot("/run/checkpoints", options, env_).save(TestSnapshot(iteration).snapshot);
  }
  CheckpointReader open(std::int64_t iteration, Validation validation = Validation::kFull) {
    return CheckpointReader::open(CheckpointRoot("/run/checkpoints", {}, env_).folder(iteration), validation,
                                  env_);
  }
  ResumePoint resume() { return find_resume_point("/run/checkpoints", Validation::kFull, env_); }
  std::vector<std::string> names() { return env_.list("/run/checkpoints"); }
  std::string text(const Path& path) { return read_file(path, 1 << 20, env_); }

  FaultEnv env_;
};

TEST_F(CheckpointTest, RoundTrip) {
  save(100);
  EXPECT_THAT(names(), ElementsAre("iter_0000100", "latest"));
  EXPECT_EQ(text("/run/checkpoints/latest"), "iter_0000100\n");
  EXPECT_THAT(env_.list("/run/checkpoints/iter_0000100"),
              ElementsAre("config.json", "manifest.json", "model.safetensors", "optimizer.safetensors",
                          "tokenizer.json", "trainer_state.json"));
  for (const auto validation : {Validation::kFull, Validation::kStructure}) {
    TestSnapshot(100).expect_equal(open(100, validation));
  }
  // The model part of a checkpoint is a valid model folder.
  EXPECT_EQ(SafetensorsFolder::open("/run/checkpoints/iter_0000100", env_).size(), 2U);
}

TEST_F(CheckpointTest, ShardsOfBothParts) {
  save(7, {.max_shard_bytes = 250});
  EXPECT_EQ(SafetensorsFolder::open("/run/checkpoints/iter_0000007", env_).files().size(), 1U);
  EXPECT_TRUE(env_.status("/run/checkpoints/iter_0000007/optimizer-00003-of-00003.safetensors"));
  TestSnapshot(7).expect_equal(open(7));
}

TEST_F(CheckpointTest, APartMayBeEmpty) {
  const TestSnapshot whole(1);
  Snapshot snapshot = whole.snapshot;
  snapshot.optimizer.clear();
  CheckpointRoot("/run/checkpoints", {}, env_).save(snapshot);
  EXPECT_FALSE(open(1).find(TensorPart::kOptimizer, "exp_avg.embed.weight"));
}

TEST_F(CheckpointTest, InvalidRequestsAreErrors) {
  save(100);
  const auto reader = open(100);
  std::vector<std::byte> out(24);
  const std::vector<std::int64_t> shape = {6}, other = {2, 3};
  const auto read = [&](const char* name, DType dtype, const std::vector<std::int64_t>& wanted) {
    return error_of([&] { reader.read(TensorPart::kModel, name, dtype, wanted, out); });
  };
  EXPECT_EQ(read("norm.weight", DType::kF32, shape), "");
  EXPECT_THAT(read("norm.bias", DType::kF32, shape), HasSubstr("lacks the model tensor 'norm.bias'"));
  EXPECT_THAT(read("norm.weight", DType::kF32, other), HasSubstr("is F32 [6], but F32 [2, 3] is needed"));
  EXPECT_THAT(read("norm.weight", DType::kBF16, shape), HasSubstr("but BF16 [6] is needed"));
  EXPECT_THAT(error_of([&] { reader.file("vocab.json"); }), HasSubstr("lacks the file 'vocab.json'"));
}

TEST_F(CheckpointTest, RefusesNamesThatLeaveTheFolderOrCollide) {
  for (const char* name : {"../x", "a/b", "", "manifest.json", "trainer_state.json", "model.safetensors",
                           "model.safetensors.index.json"}) {
    const TestSnapshot whole(1);
    Snapshot snapshot = whole.snapshot;
    snapshot.files.push_back({name, "x"});
    EXPECT_THAT(error_of([&] { CheckpointRoot("/run/checkpoints", {}, env_).save(snapshot); }),
                HasSubstr("cannot hold a file named"))
        << name;
  }
  EXPECT_FALSE(env_.status("/run/checkpoints"));
}

TEST_F(CheckpointTest, RetentionKeepsTheLastCheckpoints) {
  for (const std::int64_t iteration : {100, 200, 300, 400}) save(iteration, {.keep_last = 2});
  EXPECT_THAT(names(), ElementsAre("iter_0000300", "iter_0000400", "latest"));
  save(500);
  EXPECT_THAT(names(), ElementsAre("iter_0000300", "iter_0000400", "iter_0000500", "latest"))
      << "0 keeps all";
}

TEST_F(CheckpointTest, TheNewestCheckpointBeforeALimitIsKept) {
  const auto limit = std::make_shared<std::atomic<std::int64_t>>(250);
  for (const std::int64_t iteration : {100, 200, 300, 400, 500})
    save(iteration, {.keep_last = 2, .keep_behind = limit});
  EXPECT_THAT(names(), ElementsAre("iter_0000200", "iter_0000400", "iter_0000500", "latest"));
  *limit = 400;
  save(600, {.keep_last = 1, .keep_behind = limit});
  EXPECT_THAT(names(), ElementsAre("iter_0000400", "iter_0000600", "latest"));
}

TEST_F(CheckpointTest, SuspectCheckpointsAreMovedAside) {
  for (const std::int64_t iteration : {100, 200, 300}) save(iteration);
  CheckpointRoot root("/run/checkpoints", {}, env_);
  EXPECT_FALSE(root.set_aside_after(300));
  EXPECT_EQ(root.set_aside_after(150), Path("/run/checkpoints/suspect-1"));
  EXPECT_EQ(resume().reader->iteration(), 100);
  EXPECT_THAT(env_.list("/run/checkpoints/suspect-1"), ElementsAre("iter_0000200", "iter_0000300"));
  save(200);
  EXPECT_EQ(root.set_aside_after(0), Path("/run/checkpoints/suspect-2"));
  EXPECT_FALSE(resume().reader);
  EXPECT_THAT(names(), ElementsAre("suspect-1", "suspect-2"));
}

// If a run resumes from an older checkpoint, keep_last ignores the newer checkpoints: they are neither
// counted nor removed.
TEST_F(CheckpointTest, AfterAnOlderCheckpointIsResumedTheNewSaveIsKept) {
  for (const std::int64_t iteration : {100, 200, 300}) save(iteration);
  write_file_atomic("/run/checkpoints/latest", "iter_0000100\n", env_);
  EXPECT_EQ(resume().reader->iteration(), 100);
  save(150, {.keep_last = 1});
  EXPECT_THAT(names(), ElementsAre("iter_0000150", "iter_0000200", "iter_0000300", "latest"));
  EXPECT_EQ(resume().reader->iteration(), 150);
}

TEST_F(CheckpointTest, SavingAnIterationAgainReplacesIt) {
  save(100);
  const TestSnapshot whole(100);
  Snapshot other = whole.snapshot;
  other.trainer_state = "{\"again\":true}";
  CheckpointRoot("/run/checkpoints", {}, env_).save(other);
  EXPECT_EQ(open(100).trainer_state(), "{\"again\":true}");
  EXPECT_THAT(names(), ElementsAre("iter_0000100", "latest"));
}

TEST_F(CheckpointTest, AFolderWithoutCheckpointsIsNoError) {
  EXPECT_FALSE(resume().reader);
  make_folders("/run/checkpoints", env_);
  EXPECT_FALSE(resume().reader);
}

TEST_F(CheckpointTest, LatestMayBeMissingOrInvalid) {
  save(100);
  save(200);
  for (const char* content : {"", "iter_0000300\n", "../../etc", "iter_100", "\xff\xff"}) {
    write_file_atomic("/run/checkpoints/latest", content, env_);
    const ResumePoint point = resume();
    EXPECT_EQ(point.reader->iteration(), 200) << content;
    ASSERT_EQ(point.notes.size(), 1U) << content;
    EXPECT_THAT(point.notes[0], HasSubstr("latest names ")) << content;
  }
  write_file_atomic("/run/checkpoints/latest", std::string(5000, 'x'), env_);
  EXPECT_EQ(resume().reader->iteration(), 200);
  EXPECT_THAT(resume().notes[0], HasSubstr("larger than 4096 bytes"));
  env_.remove_file("/run/checkpoints/latest");
  EXPECT_EQ(resume().reader->iteration(), 200);
}

TEST_F(CheckpointTest, CheckpointsOfAnEarlierRunAreMovedAndStayLoadable) {
  CheckpointRoot root("/run/checkpoints", {}, env_);
  EXPECT_FALSE(root.set_aside());
  for (const char* aside : {"previous-1", "previous-2"}) {
    save(100);
    save(200);
    write_file("/run/checkpoints/notes.txt", "x", env_);
    EXPECT_EQ(root.set_aside(), Path("/run/checkpoints") / aside);
    EXPECT_FALSE(resume().reader);
    EXPECT_FALSE(root.set_aside());
    // The folder to which the newer checkpoints were moved is a normal folder of checkpoints.
    const Path moved = Path("/run/checkpoints") / aside;
    EXPECT_EQ(find_resume_point(moved, Validation::kFull, env_).reader->iteration(), 200);
    TestSnapshot(100).expect_equal(CheckpointReader::open(moved / "iter_0000100", Validation::kFull, env_));
  }
  EXPECT_THAT(names(), ElementsAre("notes.txt", "previous-1", "previous-2"));
}

// Tests on the real file system, with links, folders and pipes where files are expected.
class CheckpointFolder : public ::testing::Test {
 protected:
  void save(std::int64_t iteration, SaveOptions options = {}) {
    CheckpointRoot(root_, options).save(TestSnapshot(iteration).snapshot);
  }
  TemporaryFolder folder_;
  const Path root_ = folder_.path() / "checkpoints";
};

TEST_F(CheckpointFolder, CheckpointsWithoutRegularFilesAreSkippedAndNamed) {
  const auto pipe = [](const Path& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); };
  const auto loop = [](const Path& path) { std::filesystem::create_symlink(path.filename(), path); };
  const auto make = [](const Path& path) { std::filesystem::create_directory(path); };
  const std::vector<std::function<void(const Path&)>> kinds = {pipe, loop, make};
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    remove_tree(root_);
    save(100);
    save(200);
    std::filesystem::remove(root_ / "latest");
    kinds[i](root_ / "latest");
    const ResumePoint first = find_resume_point(root_);
    EXPECT_EQ(first.reader->iteration(), 200) << i;
    ASSERT_EQ(first.notes.size(), 1U) << i;
    EXPECT_THAT(first.notes[0], HasSubstr("latest")) << i;
    for (const char* file : {"manifest.json", "model.safetensors", "trainer_state.json"}) {
      remove_tree(root_);
      save(100);
      save(200);
      std::filesystem::remove(root_ / "iter_0000200" / file);
      kinds[i](root_ / "iter_0000200" / file);
      const ResumePoint point = find_resume_point(root_);
      EXPECT_EQ(point.reader->iteration(), 100) << i << file;
      ASSERT_EQ(point.rejected.size(), 1U) << i << file;
      EXPECT_THAT(point.rejected[0], HasSubstr(file)) << i;
    }
  }
}

// A save replaces anything named `latest` except a folder, which may hold the only copy of a checkpoint.
TEST_F(CheckpointFolder, ASaveReplacesAnyFileOrFolderNamedLatest) {
  const Path archive = folder_.path() / "archive", latest = root_ / "latest";
  std::filesystem::create_directory(archive);
  save(100);
  std::filesystem::remove(latest);
  std::filesystem::create_directory_symlink(archive, latest);
  save(200);
  EXPECT_EQ(CheckpointRoot(root_).latest(), 200);
  for (const char* aside : {"latest-1", "latest-2"}) {
    std::filesystem::remove(latest);
    std::filesystem::copy(root_ / "iter_0000100", latest);
    save(300);
    EXPECT_EQ(CheckpointRoot(root_).latest(), 300);
    TestSnapshot(100).expect_equal(CheckpointReader::open(root_ / aside));
  }
  EXPECT_TRUE(std::filesystem::is_empty(archive));
}

// Links are removed; their targets elsewhere are kept.
TEST_F(CheckpointFolder, LinksAreRemovedButNotTheirTargets) {
  save(100);
  const Path archive = folder_.path() / "archive";
  std::filesystem::rename(root_ / "iter_0000100", archive);
  std::filesystem::create_directory_symlink(archive, root_ / "iter_0000100");
  for (const char* name : {".tmp-x", ".replaced-iter_0000300"}) {
    std::filesystem::create_directory_symlink(archive, root_ / name);
  }
  std::filesystem::create_symlink(archive / "manifest.json", root_ / ".tmp-latest");
  save(200, {.keep_last = 1});
  save(300, {.keep_last = 1});
  EXPECT_EQ(Env::posix().list(root_), (std::vector<std::string>{"iter_0000300", "latest"}));
  TestSnapshot(100).expect_equal(CheckpointReader::open(archive));
}

TEST_F(CheckpointTest, LeftoversAreRemovedAndForeignFilesStay) {
  save(100);
  make_folders("/run/checkpoints/.tmp-iter_0000200/sub", env_);
  write_file("/run/checkpoints/.tmp-iter_0000200/sub/x", "x", env_);
  write_file("/run/checkpoints/.tmp-latest", "x", env_);
  write_file("/run/checkpoints/notes.txt", "x", env_);
  env_.rename("/run/checkpoints/iter_0000100", "/run/checkpoints/.replaced-iter_0000100");
  CheckpointRoot("/run/checkpoints", {}, env_).recover();
  EXPECT_THAT(names(), ElementsAre("iter_0000100", "latest", "notes.txt"));
  TestSnapshot(100).expect_equal(open(100));
}

// A tensor of 24 MB is checked in three parts, by several threads.
TEST_F(CheckpointTest, DamageInAnyPartOfALargeTensorIsFound) {
  constexpr std::int64_t kElements = 6'000'000;
  const TestSnapshot snapshot(1, kElements);
  CheckpointRoot("/run/checkpoints", {}, env_).save(snapshot.snapshot);
  snapshot.expect_equal(open(1));
  const Path file = "/run/checkpoints/iter_0000001/optimizer.safetensors";
  const std::uint64_t size = env_.status(file)->size;
  for (const std::uint64_t from_end : {1, 12'000'000, 23'000'000}) {
    env_.flip_bit(file, 8 * (size - from_end));
    EXPECT_THAT(error_of([&] { open(1); }), HasSubstr("differ from their CRC32C"));
    env_.flip_bit(file, 8 * (size - from_end));
  }
  snapshot.expect_equal(open(1));
}

TEST_F(CheckpointTest, DamageIsNamedAndTheOlderCheckpointIsUsed) {
  struct Damage {
    const char* what;
    std::function<void(const Path&)> act;
    const char* message;
  };
  const std::vector<Damage> damages = {
      {"file gone", [&](const Path& f) { env_.remove_file(f / "config.json"); },
       "config.json': the file is missing"},
      {"manifest gone", [&](const Path& f) { env_.remove_file(f / "manifest.json"); },
       "manifest.json is missing"},
      {"manifest cut",
       [&](const Path& f) { env_.open(f / "manifest.json", OpenMode::kUpdate)->truncate(100); },
       "its final checksum is missing"},
      {"manifest changed", [&](const Path& f) { env_.flip_bit(f / "manifest.json", 8 * 60); },
       "its checksum differs"},
      {"truncated",
       [&](const Path& f) { env_.open(f / "model.safetensors", OpenMode::kUpdate)->truncate(300); },
       "the file has 300 bytes, but"},
      {"weights changed",
       [&](const Path& f) {
         env_.flip_bit(f / "model.safetensors", 8 * (env_.status(f / "model.safetensors")->size - 1));
       },
       "the bytes of tensor 'embed.weight' differ from their CRC32C"},
      {"state changed", [&](const Path& f) { env_.flip_bit(f / "trainer_state.json", 9); },
       "the file's CRC32C differs"},
      {"shard of another checkpoint",
       [&](const Path& f) {
         write_file(f / "optimizer.safetensors", text("/run/checkpoints/iter_0000100/optimizer.safetensors"),
                    env_);
       },
       "differ from their CRC32C"},
      {"whole checkpoint of another iteration",
       [&](const Path& f) {
         for (const auto& name : env_.list(f))
           write_file(f / name, text("/run/checkpoints/iter_0000100" / Path(name)), env_);
       },
       "it was saved at iteration 100"},
  };
  for (const auto& damage : damages) {
    SCOPED_TRACE(damage.what);
    remove_tree("/run", env_);
    save(100);
    save(200);
    damage.act("/run/checkpoints/iter_0000200");
    const ResumePoint point = resume();
    ASSERT_TRUE(point.reader);
    EXPECT_EQ(point.reader->iteration(), 100);
    TestSnapshot(100).expect_equal(*point.reader);
    EXPECT_THAT(point.rejected, ElementsAre(AllOf(HasSubstr("iter_0000200: "), HasSubstr(damage.message))));
  }
}

// When any single read operation fails, loading uses another checkpoint or throws. It never returns without a
// checkpoint.
TEST_F(CheckpointTest, ReadErrorsFallBackOrStop) {
  save(100);
  save(200);
  const std::uint64_t before = env_.operations();
  EXPECT_EQ(resume().reader->iteration(), 200);
  const std::uint64_t count = env_.operations() - before;
  int fallbacks = 0;
  for (std::uint64_t operation = 0; operation < count; ++operation) {
    env_.fail_at(env_.operations() + operation, EIO);
    try {
      const ResumePoint point = resume();
      ASSERT_TRUE(point.reader);
      EXPECT_EQ(point.reader->iteration(), 100);
      EXPECT_THAT(point.rejected,
                  ElementsAre(AllOf(HasSubstr("iter_0000200"), HasSubstr("Input/output error"))));
      ++fallbacks;
    } catch (const FileError& error) {
      EXPECT_EQ(error.code(), EIO);
    }
  }
  EXPECT_GT(fallbacks, 10);
}

// If access to the newest checkpoint is denied, as for another user's files, this is an error. The checkpoint
// is not skipped, because it may be intact.
TEST_F(CheckpointTest, UnreadableCheckpointsAreErrors) {
  save(100);
  save(200);
  const std::uint64_t before = env_.operations();
  resume();
  const std::uint64_t count = env_.operations() - before;
  for (std::uint64_t operation = 0; operation < count; ++operation) {
    env_.fail_at(env_.operations() + operation, EACCES);
    EXPECT_THROW(resume(), FileError) << operation;
  }
}

TEST_F(CheckpointTest, WithoutAValidCheckpointTheErrorNamesAll) {
  save(100);
  save(200);
  for (const char* name : {"iter_0000100", "iter_0000200"}) {
    env_.remove_file("/run/checkpoints" / Path(name) / "model.safetensors");
  }
  EXPECT_THAT(error_of([&] { resume(); }), AllOf(HasSubstr("no checkpoint in '/run/checkpoints' can be used"),
                                                 HasSubstr("iter_0000200: "), HasSubstr("iter_0000100: ")));
}

// Each flipped bit and each truncation, in any file of the folder, is detected.
TEST_F(CheckpointTest, EveryBitFlipIsDetected) {
  save(100);
  const Path folder = "/run/checkpoints/iter_0000100";
  const auto files = env_.list(folder);
  TestRandom random(1);
  int undetected = 0;
  for (int round = 0; round < 10'000; ++round) {
    const Path path = folder / files[random.below(files.size())];
    const std::uint64_t bit = random.below(8 * env_.status(path)->size);
    env_.flip_bit(path, bit);
    if (error_of([&] { open(100); }).empty()) ++undetected;
    env_.flip_bit(path, bit);
  }
  EXPECT_EQ(undetected, 0);
  TestSnapshot(100).expect_equal(open(100));
}

// With Validation::kStructure, a flip is found when the tensor is read, if not before.
TEST_F(CheckpointTest, ReadingChecksTensorsThatOpeningDidNot) {
  save(100);
  const Path path = "/run/checkpoints/iter_0000100/model.safetensors";
  env_.flip_bit(path, 8 * (env_.status(path)->size - 1));
  const auto reader = open(100, Validation::kStructure);
  std::vector<std::byte> out(120);
  const std::vector<std::int64_t> embed = {10, 6}, norm = {6};
  EXPECT_THAT(error_of([&] { reader.read(TensorPart::kModel, "embed.weight", DType::kBF16, embed, out); }),
              HasSubstr("'embed.weight' differ from their CRC32C"));
  EXPECT_EQ(error_of([&] {
              reader.read(TensorPart::kModel, "norm.weight", DType::kF32, norm, std::span(out).first(24));
            }),
            "");
}

// Two ranks of a mesh wrote this checkpoint. Each rank wrote half of the columns, with a separate checksum.
TEST_F(CheckpointTest, SlicesOfSeveralRanks) {
  save(100);
  const Path folder = "/run/checkpoints/iter_0000100";
  Manifest manifest = Manifest::parse(text(folder / "manifest.json"), "manifest.json");
  auto& record = manifest.tensors[0];
  ASSERT_EQ(record.name, "embed.weight");
  record.slices.clear();
  const TestSnapshot saved(100);
  const std::span<const std::byte> all = saved.model.storage[0];
  for (const std::int64_t rank : {0, 1}) {
    const Slice half{.offset = {0, 3 * rank}, .extent = {10, 3}};
    std::uint32_t checksum = 0;
    for_each_run(record.shape, half, [&](std::int64_t first, std::int64_t count) {
      checksum = crc32c(
          checksum, all.subspan(2 * static_cast<std::size_t>(first), 2 * static_cast<std::size_t>(count)));
    });
    record.slices.push_back({half, checksum});
  }
  write_file(folder / "manifest.json", manifest.to_json(), env_);
  TestSnapshot(100).expect_equal(open(100));
  TestSnapshot(100).expect_equal(open(100, Validation::kStructure));
  record.slices[1].slice.offset[1] = 2;
  write_file(folder / "manifest.json", manifest.to_json(), env_);
  EXPECT_THAT(error_of([&] { open(100); }),
              HasSubstr("the slices of tensor 'embed.weight' overlap, or do not cover it"));
}

TEST(Manifest, RoundTripAndStrictness) {
  Manifest manifest;
  manifest.iteration = 12;
  manifest.files = {{"a.safetensors", 10, 0x00000001}, {"b", 0, 0xffffffff}};
  manifest.tensors = {
      {"x\"", TensorPart::kModel, DType::kBF16, {2, 3}, 0, {{whole(std::vector<std::int64_t>{2, 3}), 7}}},
      {"x\"", TensorPart::kOptimizer, DType::kF32, {}, 0, {{{}, 8}}}};
  const std::string json = manifest.to_json();
  EXPECT_EQ(Manifest::parse(json, "m").to_json(), json);
  // Gives the changed manifest a correct checksum, so that the parser of manifests must find the error.
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = json.substr(0, json.size() - 11);
    const auto at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    text.replace(at, from.size(), to);
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", crc32c(0, as_bytes(text)));
    return error_of([&] { Manifest::parse(text + digits + "\"}\n", "m"); });
  };
  EXPECT_EQ(changed("\"iteration\":12", "\"iteration\":13"), "");
  EXPECT_THAT(changed("primus-checkpoint", "other"), HasSubstr("not the manifest of a Primus checkpoint"));
  EXPECT_THAT(changed("\"version\":1", "\"version\":2"),
              HasSubstr("checkpoint format 2; this program reads 1"));
  EXPECT_THAT(changed("\"version\":1,", ""), HasSubstr("its version is missing"));
  EXPECT_THAT(changed("\"b\"", "\"../b\""), HasSubstr("'../b' is not plain"));
  EXPECT_THAT(changed("\"b\"", "\"a\""), HasSubstr("file 'a' is out of order or given twice"));
  EXPECT_THAT(changed("\"part\":\"optimizer\"", "\"part\":\"model\""),
              HasSubstr("out of order or given twice"));
  EXPECT_THAT(changed("\"part\":\"model\"", "\"part\":\"data\""), HasSubstr("unknown part 'data'"));
  EXPECT_THAT(changed("BF16", "BF17"), HasSubstr("unknown dtype 'BF17'"));
  EXPECT_THAT(changed("\"file\":\"a.safetensors\"", "\"file\":\"c\""), HasSubstr("a tensor is in 'c'"));
  EXPECT_THAT(changed("\"shape\":[2,3]", "\"shape\":[9223372036854775807,9]"),
              HasSubstr("too large to exist"));
  EXPECT_THAT(changed("\"shape\":[2,3]", "\"shape\":[2,4]"), HasSubstr("do not cover it"));
  EXPECT_THAT(changed("\"00000007\"", "\"0000007\""), HasSubstr("not 8 hexadecimal digits"));
}

}  // namespace
}  // namespace primus
