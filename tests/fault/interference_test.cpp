// Tests of changes to a run's files by other programs, before and during training: links, pipes, and files
// that are truncated, overwritten or removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"
#include "fault/long_runs.h"

namespace primus {
namespace {

using test::kLong;
using test::Program;
using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using test::wait_until;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Interference, TruncatedDataIsNamedAndProgressIsSaved) {
  for (const char* name : {"d_text_document.bin", "d_text_document.idx"}) {
    const TemporaryFolder folder;
    const Path run = test::run_folder(folder.path()), prefix = folder.path() / "d_text_document";
    std::string text;
    for (int i = 0; i < 20'000; ++i)
      text += "Line " + std::to_string(i) + " of a text that is long enough.\n";
    std::ofstream(folder.path() / "text.txt") << text;
    ASSERT_EQ(
        run_program({"data", "tokenize", "-i", (folder.path() / "text.txt").string(), "-o",
                     (folder.path() / "d").string(), "--tokenizer-type", "ByteTokenizer", "--append-eod"})
            .exit_code,
        0);
    Program program(
        test::train(folder.path(), with(kLong, {"mock_data=false", "data_path=" + prefix.string()})));
    ASSERT_TRUE(wait_until([&] { return test::losses(run).size() >= 3; }));
    ASSERT_EQ(::truncate((folder.path() / name).c_str(), 100), 0);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr(name), HasSubstr("while it was in use")));
    const auto done = test::losses(run);
    EXPECT_EQ(done.begin()->first, 1);
    const ProgramResult info = run_program({"model", "info", run.string()});
    EXPECT_EQ(info.exit_code, 0) << "no usable checkpoint was saved: " << info.err;
    EXPECT_FALSE(test::final_weights(run, static_cast<int>(done.size())).empty());
  }
}

TEST(Interference, MetricsThatAreRemovedAreWrittenAgain) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path()), metrics = run / "metrics.jsonl";
  Program program(test::train(folder.path(), kLong));
  ASSERT_TRUE(wait_until([&] { return test::losses(run).size() >= 3; }));
  std::filesystem::remove(metrics);
  ASSERT_TRUE(wait_until([&] { return Env::posix().status(metrics).has_value(); }));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("metrics.jsonl was removed during the run and has been rewritten"));
  const auto losses = test::losses(run);
  EXPECT_EQ(losses.begin()->first, 1);
  EXPECT_EQ(losses.rbegin()->first, static_cast<std::int64_t>(losses.size()));
}

TEST(Interference, MissingLinesAreNamed) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path());
  ASSERT_EQ(run_program(test::train(folder.path(), {"train_iters=6"})).exit_code, 0);
  std::string text = read_file(run / "metrics.jsonl");
  // The third line is lost, and half of the last one.
  const auto line = [&](int n) {
    std::size_t at = 0;
    for (; n > 0; --n) at = text.find('\n', at) + 1;
    return at;
  };
  text = text.substr(0, line(2)) + text.substr(line(3), line(5) - line(3)) + text.substr(line(5), 20);
  write_file(run / "metrics.jsonl", text);
  const ProgramResult result = run_program(test::train(folder.path(), {"train_iters=7"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("metrics.jsonl has no line for iteration 3, 6,"));
}

TEST(Interference, ANamedPipeInPlaceOfTheMetricsIsRefused) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path());
  make_folders(run);
  ASSERT_EQ(::mkfifo((run / "metrics.jsonl").c_str(), 0600), 0);
  const ProgramResult result = run_program(test::train(folder.path(), {"train_iters=2"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("metrics.jsonl' is not a file"));
}

// Links with the names of a run's temporary files lead to another user's files. The run must not change these
// files.
TEST(Interference, NothingOutsideTheRunIsRemovedOrWritten) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path()), victim = folder.path() / "victim";
  const std::string precious = (victim / "precious").string();
  make_folders(run / "checkpoints");
  make_folders(victim);
  write_file(precious, "mine");
  for (const char* name : {".tokenizer", "checkpoints/.tmp-x", "checkpoints/.tmp-iter_0000002",
                           "checkpoints/.replaced-iter_0000001"}) {
    std::filesystem::create_directory_symlink(victim, run / name);
  }
  for (const char* name : {".tmp-experiment.yaml", "checkpoints/.tmp-latest"}) {
    std::filesystem::create_symlink(precious, run / name);
  }
  // Without auto_continue_train=false, the run would resume from this link.
  std::filesystem::create_directory_symlink(victim, run / "checkpoints/iter_0000001");
  const ProgramResult result = run_program(test::train(
      folder.path(), {"train_iters=4", "save_interval=2", "keep_latest=1", "auto_continue_train=false"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(precious), "mine");
  EXPECT_EQ(Env::posix().list(victim), std::vector<std::string>{"precious"});
  EXPECT_TRUE(Env::posix().status(run / "checkpoints/iter_0000004"));
}

TEST(Interference, ALastEvaluationThatWasStoppedIsRepeated) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path());
  const std::vector<std::string> settings = {"train_iters=2", "save_interval=2", "eval_interval=100"};
  Program program(test::train(folder.path(), with(settings, {"eval_iters=1000000"})));
  ASSERT_TRUE(wait_until([&] { return Env::posix().status(run / "checkpoints/latest").has_value(); }));
  std::this_thread::sleep_for(100ms);
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped after iteration 2"));
  const ProgramResult next = run_program(test::train(folder.path(), with(settings, {"eval_iters=2"})));
  EXPECT_EQ(next.exit_code, 0) << next.err;
  EXPECT_THAT(next.out, AllOf(HasSubstr("validation loss"), HasSubstr("test loss")));
}

}  // namespace
}  // namespace primus
