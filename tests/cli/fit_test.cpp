// Tests of `primus train pretrain --fit`: the chosen settings are shown, recorded and used, also with several
// ranks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

ProgramResult train(const TemporaryFolder& folder, std::vector<std::string> more) {
  more.insert(more.end(), {"train_iters=2", "async_save=false"});
  return run_program(test::train(folder.path(), more));
}

json plan(const TemporaryFolder& folder, std::vector<std::string> more) {
  more.insert(more.end(), {"--dry-run", "--json"});
  const ProgramResult result = train(folder, more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return json::parse(result.out);
}

// Returns the bytes that the run needs, without the memory of the program itself.
std::int64_t total(const json& plan) {
  const json& bytes = plan.at("memory_bytes");
  std::int64_t sum = 0;
  for (const char* part : {"persistent", "stash", "scratch", "checkpoint_copy", "host_buffers"})
    sum += bytes.at(part).get<std::int64_t>();
  return sum;
}

TEST(Fit, TheChoiceIsShownRecordedAndTrained) {
  const TemporaryFolder folder;
  // This memory suffices for microbatches of one sequence, but not of two.
  const std::int64_t one = total(plan(folder, {"micro_batch_size=1"}));
  const std::int64_t two = total(plan(folder, {"micro_batch_size=2"}));
  ASSERT_LT(one, two);
  const std::string size = std::to_string(one + (one / 19) + (two - one) / 4);
  const ProgramResult result = train(folder, {"--fit-memory", size});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("fit: micro_batch_size=1 recompute_granularity=none, 4 microbatches a step"),
                    HasSubstr("fit: needs ")));
  const std::string recorded = read_file(test::run_folder(folder.path()) / "experiment.yaml");
  EXPECT_THAT(recorded, AllOf(HasSubstr("micro_batch_size: 1\n"), HasSubstr("global_batch_size: 4\n")));
  EXPECT_EQ(test::losses(test::run_folder(folder.path())).size(), 2U);
}

TEST(Fit, TheWholeBatchIsChosenForThisMachinesMemory) {
  const TemporaryFolder folder;
  const json found = plan(folder, {"--fit"});
  EXPECT_EQ(found.at("memory_bytes").at("fits"), true);
  const ProgramResult text = train(folder, {"--fit", "--dry-run"});
  EXPECT_THAT(text.err, HasSubstr("fit: micro_batch_size=4 recompute_granularity=none, 1 microbatch a step"));
  EXPECT_THAT(train(folder, {"--fit-memory=50%", "--dry-run"}).err, HasSubstr("fit: micro_batch_size=4"));
}

// A resumed run keeps its microbatch size, even if a larger one would fit.
TEST(Fit, AContinuedRunKeepsItsMicrobatches) {
  const TemporaryFolder folder;
  const auto until = [&](const std::string& iterations, std::vector<std::string> more) {
    more.push_back("exit_interval=" + iterations);
    return train(folder, more);
  };
  ASSERT_EQ(until("1", {"micro_batch_size=1"}).exit_code, 0);
  const ProgramResult result = until("2", {"--fit"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("fit: micro_batch_size=1 recompute_granularity=none, 4 microbatches a "
                                    "step, as in the run so far\n"));
  EXPECT_THAT(read_file(test::run_folder(folder.path()) / "experiment.yaml"),
              HasSubstr("micro_batch_size: 1\n"));
  // A new run makes its own choice.
  EXPECT_THAT(until("2", {"--fit", "exp_name=other"}).err, HasSubstr("fit: micro_batch_size=4"));
}

// The launcher chooses and shows the choice once for all ranks.
TEST(Fit, RanksUseOneChoice) {
  const TemporaryFolder folder;
  const ProgramResult result = train(folder, {"--fit", "--nproc", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::size_t shown = result.err.find("fit: micro_batch_size=2");
  EXPECT_NE(shown, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find("fit: ", result.err.find("fit: needs") + 1), std::string::npos) << result.err;
  EXPECT_THAT(read_file(test::run_folder(folder.path()) / "experiment.yaml"),
              HasSubstr("micro_batch_size: 2\n"));
  const ProgramResult far =
      train(folder, {"--dry-run", "--world", "8", "--fit-memory", "80GiB", "global_batch_size=64",
                     "tensor_model_parallel_size=2", "exp_name=far"});
  EXPECT_EQ(far.exit_code, 0) << far.err;
  EXPECT_THAT(far.err, HasSubstr("fit: micro_batch_size=16"));
}

TEST(Fit, ImpossibleRequestsAreRefused) {
  const TemporaryFolder folder;
  // GB is a power of 1000, GiB of 1024.
  EXPECT_THAT(train(folder, {"--fit-memory", "1MB"}).err, HasSubstr("only 977 KiB"));
  const ProgramResult small = train(folder, {"--fit-memory", "1M"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(small.err, AllOf(HasSubstr("--fit: with micro_batch_size=1"), HasSubstr("the run needs")));
  for (const std::string bad : {"0%", "101%", "x%", "lots", "1G,2G"}) {
    const ProgramResult result = train(folder, {"--fit-memory", bad});
    EXPECT_EQ(result.exit_code, 2) << bad;
    EXPECT_THAT(result.err, HasSubstr("--fit-memory")) << bad;
  }
  const ProgramResult other =
      train(folder, {"--fit", "--nnodes", "2", "--master_addr", "x", "--master_port", "1"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("--fit: ranks could choose"), Not(HasSubstr("fit: micro"))));
}

}  // namespace
}  // namespace primus
