// Interrupts tokenizing, merging and splitting at every operation, or lets the disk fill up. No data set is
// partial, and a second call makes equal files.
#include <gmock/gmock.h>

#include <cerrno>
#include <functional>

#include "base/fault_env.h"
#include "data_test_util.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/rearrange.h"
#include "lm/data/tokenize.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

using Survivors = FaultEnv::Survivors;
using testing::AnyOf;
using testing::HasSubstr;

const Path kFolder = "/data";

// A command: its inputs, its action, and the data sets that it makes.
struct Job {
  std::function<void(Env&)> prepare, work;
  std::vector<Path> outputs;
  bool noted = false;  // each data set records its tokenizer
};

std::string bytes_of(const Path& prefix, Env& env) {
  return read_file(prefix.string() + ".bin", 1 << 20, env) +
         read_file(prefix.string() + ".idx", 1 << 20, env);
}

class Stopped : public testing::TestWithParam<const char*> {
 protected:
  Stopped() {
    const std::string name = GetParam();
    if (name == "Merge") {
      job_ = {
          .prepare = [this](Env& env) { write_sources(env); },
          .work =
              [](Env& env) {
                merge_datasets({kFolder / "a", kFolder / "b"}, kFolder / "out", {}, Existing::kReplace, env);
              },
          .outputs = {kFolder / "out"}};
    } else if (name == "Split") {
      job_ = {.prepare = [this](Env& env) { write_sources(env); },
              .work =
                  [](Env& env) {
                    split_dataset(kFolder / "a", {{kFolder / "out_0", 0, 3}, {kFolder / "out_1", 3, 9}}, {},
                                  Existing::kReplace, env);
                  },
              .outputs = {kFolder / "out_0", kFolder / "out_1"}};
    } else {
      prepare_tokenize(name == "Partitions" ? 2 : 1);
    }
    FaultEnv env;
    job_.prepare(env);
    before_ = env.list(kFolder);
    env.set_capacity(kRoom);
    const std::uint64_t free = env.free_space("/"), first = env.operations();
    job_.work(env);
    operations_ = env.operations() - first;
    output_size_ = free - env.free_space("/");
    names_ = env.list(kFolder);
    for (const Path& output : job_.outputs) expected_.push_back(bytes_of(output, env));
  }

  // Each file is a separate block. The state is saved after each block.
  void prepare_tokenize(int partitions) {
    for (int file = 0; file < 2; ++file) {
      std::string lines;
      for (int i = 0; i < 5; ++i)
        lines += R"({"text": "line )" + std::to_string(i) + R"(", "title": ["a", "bc"]})" + "\n";
      options_.inputs.push_back(inputs_.write(std::to_string(file) + ".jsonl", lines));
    }
    options_.json_keys = {"text", "title"};
    options_.output_prefix = kFolder / "out";
    options_.workers = 1;
    options_.partitions = partitions;
    options_.save_seconds = 0;
    job_ = {.prepare = [](Env& env) { make_folders(kFolder, env); },
            .work = [this](Env& env) { tokenize_corpus(options_, *tokenizer_, {}, env); },
            .outputs = {kFolder / "out_text_document", kFolder / "out_title_document"},
            .noted = true};
  }
  static void write_sources(Env& env) {
    for (const char* name : {"a", "b"}) {
      IndexedDatasetWriter writer(kFolder / name, TokenType::kU16, env);
      for (std::int32_t document = 0; document < 9; ++document) {
        const std::vector<std::int32_t> tokens(static_cast<size_t>(document), name[0]);
        writer.add_sequence(tokens);
        writer.end_document();
      }
      writer.finish();
    }
  }

  // Expects that each data set is complete and correct, or absent.
  void expect_whole_or_nothing(Env& env) const {
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (!env.status(job_.outputs[i].string() + ".idx")) continue;
      EXPECT_TRUE(bytes_of(job_.outputs[i], env) == expected_[i]) << job_.outputs[i];
      EXPECT_TRUE(!job_.noted || env.status(job_.outputs[i].string() + ".tokenizer.json"));
    }
  }
  void expect_nothing(Env& env) const {
    for (const std::string& name : env.list(kFolder)) {
      EXPECT_TRUE(name.ends_with(".partial") || std::ranges::count(before_, name) == 1) << name;
    }
  }
  void expect_the_same_again(Env& env) const {
    const bool complete = std::ranges::all_of(
        job_.outputs, [&](const Path& output) { return env.status(output.string() + ".idx").has_value(); });
    try {
      job_.work(env);
    } catch (const FileError&) {
      throw;
    } catch (const Error& error) {
      // A crash after the last rename leaves complete files. They are not replaced without permission.
      EXPECT_TRUE(complete) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("already exists"));
      return;
    }
    for (size_t i = 0; i < expected_.size(); ++i)
      EXPECT_TRUE(bytes_of(job_.outputs[i], env) == expected_[i]) << job_.outputs[i];
    EXPECT_EQ(env.list(kFolder), names_) << "unexpected files remain";
  }

  static constexpr std::uint64_t kRoom = 1'000'000;
  const TemporaryFolder inputs_;
  const std::unique_ptr<const Tokenizer> tokenizer_ = make_byte_tokenizer();
  TokenizeOptions options_;
  Job job_;
  std::vector<std::string> before_, names_, expected_;
  std::uint64_t operations_ = 0, output_size_ = 0;
};

TEST_P(Stopped, ByACrashAtEveryOperation) {
  ASSERT_GT(operations_, 20u);
  struct Case {
    Survivors survivors;
    std::uint64_t seed;
  };
  for (const auto& [survivors, seed] : {Case{Survivors::kAll, 0},
                                        {Survivors::kSynced, 0},
                                        {Survivors::kRandom, 1000},
                                        {Survivors::kRandom, 2000},
                                        {Survivors::kRandom, 3000},
                                        {Survivors::kRandom, 4000}}) {
    for (std::uint64_t operation = 0; operation < operations_ && !HasFailure(); ++operation) {
      SCOPED_TRACE(testing::Message()
                   << "operation " << operation << ", survivors " << int(survivors) << ", seed " << seed);
      FaultEnv env;
      job_.prepare(env);
      for (const Path& folder : {Path("/"), kFolder}) env.sync_folder(folder);
      env.crash_at(env.operations() + operation);
      EXPECT_THROW(job_.work(env), SimulatedCrash);
      env.reboot(survivors, seed + operation);
      expect_whole_or_nothing(env);
      expect_the_same_again(env);
    }
  }
}

TEST_P(Stopped, ByAnErrorAtEveryOperation) {
  for (const int code : {ENOSPC, EIO}) {
    for (std::uint64_t operation = 0; operation < operations_ && !HasFailure(); ++operation) {
      SCOPED_TRACE(testing::Message() << "operation " << operation << ", error " << code);
      FaultEnv env;
      job_.prepare(env);
      env.fail_at(env.operations() + operation, code);
      int exit_code = 0;
      try {
        job_.work(env);
      } catch (const FileError& error) {
        exit_code = error.exit_code();
        EXPECT_EQ(error.code(), code);
      }
      EXPECT_THAT(exit_code, AnyOf(0, code == ENOSPC ? 2 : 3));
      expect_whole_or_nothing(env);
      for (const Path& output : job_.outputs) {
        EXPECT_EQ(env.status(output.string() + ".bin").has_value(),
                  env.status(output.string() + ".idx").has_value());
      }
      expect_the_same_again(env);
    }
  }
}

TEST_P(Stopped, ByADiskThatFillsUp) {
  for (std::uint64_t room = 0; !HasFailure(); room += 13) {
    SCOPED_TRACE(room);
    FaultEnv env;
    job_.prepare(env);
    env.set_capacity(kRoom);
    env.set_capacity(kRoom - env.free_space("/") + room);
    try {
      job_.work(env);
      EXPECT_GE(room, output_size_);
      break;
    } catch (const FileError& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_THAT(error.render(), HasSubstr("No space left on device"));
      EXPECT_THAT(error.hint(), HasSubstr("free some space"));
    }
    expect_nothing(env);
    env.set_capacity(kRoom);
    expect_the_same_again(env);
  }
}

// A data set that existed before has its complete old data, the complete new data, or no index. An index
// never describes other data.
TEST(Overwriting, LeavesTheOldDataSetOrTheNew) {
  const auto write = [](Env& env, std::int32_t token) {
    IndexedDatasetWriter writer(kFolder / "out", TokenType::kU16, env);
    for (std::size_t length : {4, 2, 3}) {
      writer.add_sequence(std::vector<std::int32_t>(length + static_cast<std::size_t>(token) % 3, token));
      writer.end_document();
    }
    writer.finish();
  };
  FaultEnv whole;
  write(whole, 1);
  const std::string old_bytes = bytes_of(kFolder / "out", whole);
  const std::uint64_t first = whole.operations();
  write(whole, 2);
  const std::uint64_t operations = whole.operations() - first;
  const std::string new_bytes = bytes_of(kFolder / "out", whole);
  ASSERT_NE(old_bytes, new_bytes);
  for (std::uint64_t operation = 0; operation < operations && !testing::Test::HasFailure(); ++operation) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << "operation " << operation << ", seed " << seed);
      FaultEnv env;
      write(env, 1);
      for (const Path& folder : {Path("/"), kFolder}) env.sync_folder(folder);
      env.crash_at(env.operations() + operation);
      EXPECT_THROW(write(env, 2), SimulatedCrash);
      env.reboot(seed == 0 ? Survivors::kSynced : seed == 1 ? Survivors::kAll : Survivors::kRandom, seed);
      if (env.status(kFolder / "out.idx")) {
        EXPECT_THAT(bytes_of(kFolder / "out", env), AnyOf(old_bytes, new_bytes));
      }
      write(env, 2);
      EXPECT_TRUE(bytes_of(kFolder / "out", env) == new_bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, Stopped, testing::Values("Tokenize", "Partitions", "Merge", "Split"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace primus::data
