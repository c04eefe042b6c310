// Tests the MLflow files that are written for runs. check_mlflow.py reads these files with MLflow's client.
#include "lm/report/mlflow.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kExperiment =
    "work_group: team\nuser_name: ann\nexp_name: try\nmodules:\n  pre_trainer:\n    framework: native\n"
    "    overrides:\n      train_iters: 3\n      lr: 0.5\n      save: null\n      data_path: [a, b]\n";

// Makes a run of `steps` steps of half a second each. The last step ends at second 1000.
Path make_run(const Path& folder, int steps, const std::string& experiment = kExperiment) {
  make_folders(folder);
  write_file_atomic(folder / "experiment.yaml", experiment);
  std::string lines;
  for (int i = 1; i <= steps; ++i) {
    lines += fmt::format(
        R"({{"iteration":{},"train_iters":3,"lm_loss":{},"elapsed_time_per_iteration_ms":500,"eta_seconds":1}})"
        "\n",
        i, i == 2 ? R"("NaN")" : fmt::format("{}", 1.0 / i));
  }
  write_file_atomic(folder / "metrics.jsonl", lines + "{\"iteration\":9,");
  write_file_atomic(folder / "evaluations.jsonl",
                    R"({"iteration":2,"data_set":"validation","lm_loss":0.75,"tokens":4,"seconds":1})"
                    "\n"
                    R"({"iteration":2,"data_set":"../../escape","lm_loss":0.75,"tokens":4,"seconds":1})"
                    "\n");
  std::filesystem::last_write_time(
      folder / "metrics.jsonl",
      std::chrono::file_clock::from_sys(std::chrono::sys_seconds(std::chrono::seconds(1000))));
  return folder;
}

TEST(Mlflow, WritesTheFilesOfARun) {
  const test::TemporaryFolder folder;
  const Path store = folder.path() / "mlruns";
  const MlflowRun run = write_mlflow_run(store, make_run(folder.path() / "run", 3));
  EXPECT_EQ(run.experiment, "team_ann");
  EXPECT_EQ(run.name, "try");
  EXPECT_EQ(run.steps, 3);
  const Path target = store / run.experiment_id / run.run_id;
  EXPECT_EQ(read_file(target / "metrics" / "lm_loss"),
            "999000 1 1\n999500 nan 2\n1000000 0.3333333333333333 3\n");
  EXPECT_EQ(read_file(target / "metrics" / "validation" / "lm_loss"), "999500 0.75 2\n");
  EXPECT_FALSE(Env::posix().status(target / "metrics" / "eta_seconds"));
  EXPECT_EQ(read_file(target / "params" / "lr"), "0.5");
  EXPECT_EQ(read_file(target / "params" / "data_path"), "[a, b]");
  EXPECT_FALSE(Env::posix().status(target / "params" / "save"));
  EXPECT_EQ(read_file(target / "tags" / "mlflow.runName"), "try");
  const std::string meta = read_file(target / "meta.yaml");
  EXPECT_THAT(meta, HasSubstr("run_id: \"" + run.run_id + "\"\n"));
  EXPECT_THAT(meta, HasSubstr("start_time: 998500\n"));
  EXPECT_THAT(meta, HasSubstr("end_time: 1000000\n"));
  EXPECT_THAT(read_file(store / run.experiment_id / "meta.yaml"), HasSubstr("name: \"team_ann\"\n"));
  EXPECT_FALSE(Env::posix().status(folder.path() / "escape"));
  EXPECT_FALSE(Env::posix().status(store / "escape"));
}

TEST(Mlflow, AResumedRunContinuesTheSameRun) {
  const test::TemporaryFolder folder;
  const Path store = folder.path() / "mlruns", where = folder.path() / "run";
  const MlflowRun first = write_mlflow_run(store, make_run(where, 2));
  const Path metrics = store / first.experiment_id / first.run_id / "metrics";
  write_file(metrics / "gone", "1 1 1\n");
  const Path params = metrics.parent_path() / "params";
  write_file(params / "gone", "1");
  const MlflowRun second = write_mlflow_run(store, make_run(where, 3).string() + "/");
  EXPECT_EQ(second.run_id, first.run_id);
  EXPECT_EQ(second.experiment_id, first.experiment_id);
  EXPECT_THAT(read_file(metrics / "lm_loss"), HasSubstr(" 3\n"));
  EXPECT_FALSE(Env::posix().status(metrics / "gone"));
  EXPECT_FALSE(Env::posix().status(params / "gone"));
  EXPECT_EQ(read_file(params / "lr"), "0.5");
  EXPECT_NE(write_mlflow_run(store, make_run(folder.path() / "other", 1)).run_id, first.run_id);
}

TEST(Mlflow, NamesComeFromTheExperimentAndTheStore) {
  const test::TemporaryFolder folder;
  const Path store = folder.path() / "mlruns";
  // An experiment that MLflow created, with its own number.
  make_folders(store / "42");
  write_file(store / "42" / "meta.yaml", "experiment_id: '42'\nlifecycle_stage: active\nname: ours\n");
  const std::string named =
      std::string(kExperiment) + "      mlflow_experiment_name: ours\n      mlflow_run_name: \"a: 'b'\"\n";
  const MlflowRun run = write_mlflow_run(store, make_run(folder.path() / "run", 1, named));
  EXPECT_EQ(run.experiment_id, "42");
  EXPECT_EQ(run.name, "a: 'b'");
  EXPECT_EQ(read_file(store / "42" / "meta.yaml"),
            "experiment_id: '42'\nlifecycle_stage: active\nname: ours\n");
  EXPECT_THAT(read_file(store / "42" / run.run_id / "meta.yaml"), HasSubstr("run_name: \"a: 'b'\"\n"));
}

TEST(Mlflow, OtherFoldersAreRefused) {
  const test::TemporaryFolder folder;
  EXPECT_THROW(write_mlflow_run(folder.path() / "mlruns", folder.path()), Error);
  EXPECT_FALSE(Env::posix().status(folder.path() / "mlruns"));
}

// Writes a store for check_mlflow.py.
TEST(Mlflow, WritesAStoreForItsClient) {
  const char* const workspace = std::getenv("PRIMUS_MLFLOW_CHECK");
  if (!workspace) GTEST_SKIP() << "runs only under check_mlflow.py";
  const Path root = workspace;
  for (const int steps : {2, 3}) write_mlflow_run(root / "mlruns", make_run(root / "run", steps));
  write_mlflow_run(root / "mlruns", make_run(root / "other", 1));
}

}  // namespace
}  // namespace primus
