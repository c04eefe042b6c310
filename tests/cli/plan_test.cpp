// Tests of `primus plan pipeline`, from options and from an experiment, and of `primus plan recovery`.
#include "base/files/file.h"
#include "cli/program_names.h"

namespace primus {
namespace {

TEST(PlanPipeline, DrawsTheRequestedSchedule) {
  const ProgramResult plan =
      run_program({"plan", "pipeline", "--schedule", "zero-bubble", "--stages", "2", "--microbatches", "3"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_EQ(plan.out,
            "zero bubble H1: 2 stages of 1 chunk, 3 microbatches\n\n"
            "stage 0   F0 F1 ...B0 W0 F2 B1 W1 B2 W2 \n"
            "stage 1   ...F0 B0 F1 B1 W0 F2 B2 W1 W2 \n\n"
            "F forward, B backward of inputs, W of weights, with the number of the microbatch\n"
            "time         10, of which a stage's own work is 9\n"
            "bubble       10.0 % of all stages' time\n"
            "peak stash   2 microbatches at most, 2 of a stage's whole share\n"
            "by stage     2 2\n");
}

TEST(PlanPipeline, DrawsAnExperimentAndWritesAnImage) {
  const test::TemporaryFolder folder;
  const std::string experiment = (folder.path() / "exp.yaml").string(),
                    image = (folder.path() / "s.svg").string();
  write_file(
      experiment,
      "work_group: a\nuser_name: b\nexp_name: c\nworkspace: .\nmodules:\n  pre_trainer:\n    framework: "
      "native\n    config: pre_trainer.yaml\n    model: llama3.1_8B.yaml\n    overrides:\n      mock_data: "
      "true\n      vocab_size: 100\n      micro_batch_size: 1\n      global_batch_size: 16\n      "
      "pipeline_model_parallel_size: 4\n");
  const auto plan = [&](std::vector<std::string> more) {
    std::vector<std::string> words{"plan", "pipeline", "--config", experiment};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  const ProgramResult drawn = plan({"--json", "--svg", image});
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  const nlohmann::json json = nlohmann::json::parse(drawn.out);
  EXPECT_EQ(json["schedule"], "1f1b");
  EXPECT_EQ(json["stages"], 4);
  EXPECT_EQ(json["microbatches"], 16);
  EXPECT_NEAR(json["bubble"].get<double>(), 3.0 / 19, 1e-9);
  EXPECT_EQ(json["peak_stash"], (std::vector<int>{4, 3, 2, 1}));
  EXPECT_THAT(read_file(image), HasSubstr("</svg>"));
  EXPECT_EQ(plan({"--svg", image}).exit_code, 2);
  EXPECT_EQ(plan({"--svg", image, "--overwrite"}).exit_code, 0);

  // Two data-parallel ranks share the microbatches, and two chunks per rank are interleaved.
  const ProgramResult two = plan({"--json", "--world", "8", "virtual_pipeline_model_parallel_size=2"});
  ASSERT_EQ(two.exit_code, 0) << two.err;
  EXPECT_EQ(nlohmann::json::parse(two.out)["schedule"], "1f1b-interleaved");
  EXPECT_EQ(nlohmann::json::parse(two.out)["microbatches"], 8);
}

TEST(PlanPipeline, ReportsImpossibleOptions) {
  const auto refusal = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{"plan", "pipeline"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refusal({"--stages", "0"}), HasSubstr("--stages must be from 1 to 1024"));
  EXPECT_THAT(refusal({"--schedule", "dualpipe"}), HasSubstr("zbv-formatted"));
  EXPECT_THAT(refusal({"--schedule", "1f1b-interleaved", "--stages", "4", "--microbatches", "6"}),
              HasSubstr("set the microbatches to 4 or 8"));
  EXPECT_THAT(refusal({"lr=1"}), HasSubstr("no experiment"));
}

TEST(PlanRecovery, PrintsARowForEachSize) {
  const ProgramResult plan = run_program({"plan", "recovery", "--nodes", "16,2048", "--days", "5", "--runs",
                                          "3", "--save-interval", "20", "--json"});
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const nlohmann::json json = nlohmann::json::parse(plan.out);
  ASSERT_EQ(json["rows"].size(), 2);
  const nlohmann::json& small = json["rows"][0];
  const nlohmann::json& large = json["rows"][1];
  EXPECT_EQ(small["nodes"], 16);
  EXPECT_EQ(large["max_restarts"], 20 + 2048 / 64);
  EXPECT_GT(small["goodput"].get<double>(), large["goodput"].get<double>());
  EXPECT_GT(large["restarts_per_day"].get<double>(), 2);
  EXPECT_EQ(run_program({"plan", "recovery", "--nodes", "16,2048", "--days", "5", "--runs", "3",
                         "--save-interval", "20", "--json"})
                .out,
            plan.out)
      << "the same scenario gives the same result";
}

TEST(PlanRecovery, RefusesWhatIsNoNumber) {
  const ProgramResult plan = run_program({"plan", "recovery", "--nodes", "16,many"});
  EXPECT_EQ(plan.exit_code, 2);
  EXPECT_THAT(plan.err, HasSubstr("--nodes: 'many' is not a whole number from 1 to 10000000"));
  EXPECT_THAT(run_program({"plan", "recovery", "--nodes", "16,"}).err, HasSubstr("'' is not a whole number"));
}

}  // namespace
}  // namespace primus
