// Tests of training runs with each optimizer: they resume exactly, and refuse another optimizer's states.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name,
                               const std::string& optimizer, std::vector<std::string> more) {
  more.insert(more.end(), {"exp_name=" + name, "optimizer=" + optimizer, "train_iters=6", "save_interval=3",
                           "lr=0.001", "bf16=true"});
  return test::train(folder.path(), more);
}

TEST(Optimizers, AResumedRunEqualsAnUninterruptedRun) {
  const TemporaryFolder folder;
  std::string first_weights;
  for (const std::string optimizer : {"adam", "sgd", "lion", "muon"}) {
    const ProgramResult whole = run_program(train(folder, "whole_" + optimizer, optimizer, {}));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    for (const char* part : {"exit_interval=3", "exit_interval=6"}) {
      const ProgramResult result = run_program(train(folder, "parts_" + optimizer, optimizer, {part}));
      ASSERT_EQ(result.exit_code, 0) << result.err;
    }
    const Path run = test::run_folder(folder.path(), "parts_" + optimizer);
    const Path uninterrupted = test::run_folder(folder.path(), "whole_" + optimizer);
    EXPECT_EQ(test::losses(run), test::losses(uninterrupted)) << optimizer;
    const std::string weights = test::final_weights(run, 6);
    EXPECT_FALSE(weights.empty());
    EXPECT_TRUE(weights == test::final_weights(uninterrupted, 6)) << optimizer;
    if (first_weights.empty()) first_weights = weights;
    EXPECT_EQ(weights == first_weights, optimizer == "adam") << optimizer;
  }
}

// The rounding of bf16 moments depends only on step and element, so a resumed run equals an uninterrupted
// one.
TEST(Optimizers, MomentsInBf16ResumeAndNeedHalfTheMemory) {
  const TemporaryFolder folder;
  const std::vector<std::string> narrow = {"exp_avg_dtype=bf16", "exp_avg_sq_dtype=bf16"};
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    const ProgramResult result = run_program(train(folder, name, "adam", std::move(more)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return test::run_folder(folder.path(), name);
  };
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), narrow.begin(), narrow.end());
    return more;
  };
  const Path whole = run("whole", narrow);
  run("parts", with({"exit_interval=3"}));
  const Path parts = run("parts", narrow);
  EXPECT_EQ(test::losses(parts), test::losses(whole));
  EXPECT_TRUE(test::final_weights(parts, 6) == test::final_weights(whole, 6));
  const Path wide = run("wide", {});
  const auto losses = test::losses(wide), narrow_losses = test::losses(whole);
  ASSERT_EQ(losses.size(), narrow_losses.size());
  EXPECT_NE(losses, narrow_losses);
  for (const auto& [step, of] : losses) EXPECT_NEAR(narrow_losses.at(step).loss, of.loss, 1e-2) << step;
  // A run that began with fp32 moments resumes with bf16 moments, and the reverse.
  run("begun_wide", {"exit_interval=3"});
  EXPECT_EQ(test::losses(run("begun_wide", narrow)).size(), 6U);
  run("begun_narrow", with({"exit_interval=3"}));
  EXPECT_EQ(test::losses(run("begun_narrow", {})).size(), 6U);

  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--dry-run", "--json"});
    return json::parse(run_program(train(folder, "plan", "adam", more)).out);
  };
  const json large = plan({}), small = plan(narrow);
  const auto parameters = large.at("parameters").get<std::int64_t>();
  EXPECT_EQ(
      large.at("checkpoint_bytes").get<std::int64_t>() - small.at("checkpoint_bytes").get<std::int64_t>(),
      2 * 2 * parameters);
  const ProgramResult lion = run_program(train(folder, "lion", "lion", {"exp_avg_dtype=bf16"}));
  EXPECT_EQ(lion.exit_code, 2);
  EXPECT_THAT(lion.err, HasSubstr("exp_avg_dtype: bf16 supports only optimizer: adam, not lion"));
}

// Codes and scales of 8-bit moments are stored unchanged, so a resumed run equals an uninterrupted one.
TEST(Optimizers, MomentsInEightBitsResumeAndNeedAQuarterOfTheMemory) {
  const TemporaryFolder folder;
  const std::vector<std::string> narrow = {"exp_avg_dtype=fp8", "exp_avg_sq_dtype=fp8"};
  std::string log;
  const auto run = [&](const std::string& name, std::vector<std::string> more,
                       const std::string& optimizer = "adam") {
    const ProgramResult result = run_program(train(folder, name, optimizer, std::move(more)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    log = result.out + result.err;
    return test::run_folder(folder.path(), name);
  };
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), narrow.begin(), narrow.end());
    return more;
  };
  for (const std::string optimizer : {"adam", "muon"}) {
    const Path whole = run("whole_" + optimizer, narrow, optimizer);
    run("parts_" + optimizer, with({"exit_interval=3"}), optimizer);
    const Path parts = run("parts_" + optimizer, narrow, optimizer);
    EXPECT_EQ(test::losses(parts), test::losses(whole));
    EXPECT_TRUE(test::final_weights(parts, 6) == test::final_weights(whole, 6)) << optimizer;
    const auto wide = test::losses(run("wide_" + optimizer, {}, optimizer)), losses = test::losses(whole);
    ASSERT_EQ(losses.size(), 6U);
    EXPECT_NE(losses, wide);
  }
  // On real text, the loss falls as far as with fp32 moments, within 20 % (see MomentsInEightBits in
  // lm_train_ranks).
  const Path text = folder.path() / "text.txt";  // tokenized files are written next to it
  std::filesystem::copy_file(PRIMUS_SOURCE_DIR "/LICENSE", text);
  std::map<std::string, double> last;
  for (const std::string type : {"fp32", "fp8"}) {
    const ProgramResult result = run_program(
        test::train(folder.path(), {"exp_name=text_" + type, "data_path=" + text.string(), "train_iters=40",
                                    "lr=0.003", "exp_avg_dtype=" + type, "exp_avg_sq_dtype=" + type}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto steps = test::losses(test::run_folder(folder.path(), "text_" + type));
    EXPECT_LT(steps.at(40).loss, 0.8 * steps.at(1).loss);
    last[type] = steps.at(1).loss - steps.at(40).loss;
  }
  EXPECT_NEAR(last.at("fp8"), last.at("fp32"), 0.2 * last.at("fp32"));
  // A run that began with fp32 or bf16 moments resumes with 8-bit moments, and the reverse. A note says so.
  for (const std::string other : {"fp32", "bf16"}) {
    const std::vector<std::string> wide = {"exp_avg_dtype=" + other, "exp_avg_sq_dtype=" + other};
    std::vector<std::string> first = wide;
    first.emplace_back("exit_interval=3");
    run("begun_" + other, first);
    EXPECT_EQ(test::losses(run("begun_" + other, narrow)).size(), 6U);
    EXPECT_THAT(log, HasSubstr("exp_avg_sq_dtype was " + other + ", and is fp8 from here on"));
    run("ended_" + other, with({"exit_interval=3"}));
    EXPECT_EQ(test::losses(run("ended_" + other, wide)).size(), 6U);
    EXPECT_THAT(log, HasSubstr("exp_avg_dtype was fp8, and is " + other + " from here on"));
  }
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--dry-run", "--json"});
    return json::parse(run_program(train(folder, "plan", "adam", more)).out);
  };
  const json large = plan({}), small = plan(narrow);
  const auto persistent = [](const json& report) {
    return report.at("memory_bytes").at("persistent").get<double>();
  };
  const auto parameters = large.at("parameters").get<double>();
  EXPECT_NEAR(persistent(large) - persistent(small), (8 - 2 * (1 + 1.0 / 64)) * parameters,
              0.02 * parameters);
  EXPECT_EQ(large.at("checkpoint_bytes").get<double>() - small.at("checkpoint_bytes").get<double>(),
            2 * 2 * parameters);
  // Optimizers that do not use Adam refuse the key and report its position.
  for (const auto& [optimizer, more] : {std::pair<std::string, std::vector<std::string>>{"lion", {}},
                                        {"muon", {"muon_scalar_optimizer=lion"}}}) {
    std::vector<std::string> words = more;
    words.emplace_back("exp_avg_sq_dtype=fp8");
    const ProgramResult refused = run_program(train(folder, "refused", optimizer, words));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("exp_avg_sq_dtype: fp8 supports only optimizer: adam, not lion"),
                                   HasSubstr("command line")));
  }
}

// Compares two plans: the second plan needs two bytes less memory per parameter, and its checkpoints have the
// size of the first plan's.
void expect_two_bytes_less(const json& large, const json& small) {
  const auto persistent = [](const json& report) {
    return report.at("memory_bytes").at("persistent").get<double>();
  };
  const auto parameters = large.at("parameters").get<double>();
  EXPECT_NEAR(persistent(large) - persistent(small), 2 * parameters, 0.02 * parameters);
  EXPECT_EQ(large.at("checkpoint_bytes"), small.at("checkpoint_bytes"));
}

// The storage of master weights affects no loss, no norm and no byte of a checkpoint. A run may resume with
// either storage.
TEST(Optimizers, SplitMastersChangeOnlyTheMemory) {
  const TemporaryFolder folder;
  const std::string wide = "store_param_remainders=false", split = "store_param_remainders=true";
  for (const std::string optimizer : {"adam", "sgd", "lion", "muon"}) {
    const auto run = [&](const std::string& name, std::vector<std::string> more) {
      const ProgramResult result = run_program(train(folder, name + optimizer, optimizer, std::move(more)));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return test::run_folder(folder.path(), name + optimizer);
    };
    const Path expected = run("wide_", {wide});
    const std::string weights = test::final_weights(expected, 6);
    EXPECT_FALSE(weights.empty());
    run("to_split_", {wide, "exit_interval=3"});
    run("to_wide_", {split, "exit_interval=3"});
    for (const Path& other : {run("split_", {split}), run("to_split_", {split}), run("to_wide_", {wide})}) {
      EXPECT_EQ(test::losses(other), test::losses(expected)) << other.string();
      EXPECT_TRUE(test::final_weights(other, 6) == weights) << other.string();
    }
  }
  const auto plan = [&](const std::string& form) {
    return json::parse(run_program(train(folder, "plan", "adam", {form, "--dry-run", "--json"})).out);
  };
  const json large = plan(wide), small = plan(split);
  expect_two_bytes_less(large, small);
}

// The gradient type is not part of a checkpoint. A run resumes exactly, also with the other type.
TEST(Optimizers, GradientsInBf16ResumeAndNeedTwoBytesLess) {
  const TemporaryFolder folder;
  const std::string narrow = "main_grads_dtype=bf16";
  for (const std::string optimizer : {"adam", "sgd", "lion", "muon"}) {
    const auto run = [&](const std::string& name, std::vector<std::string> more) {
      const ProgramResult result = run_program(train(folder, name + optimizer, optimizer, std::move(more)));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return test::run_folder(folder.path(), name + optimizer);
    };
    const Path whole = run("whole_", {narrow}), wide = run("wide_", {});
    run("parts_", {narrow, "exit_interval=3"});
    EXPECT_EQ(test::losses(run("parts_", {narrow})), test::losses(whole));
    EXPECT_NE(test::losses(whole), test::losses(wide));
    for (const auto& [step, of] : test::losses(wide))
      EXPECT_NEAR(test::losses(whole).at(step).loss, of.loss, 2e-2) << optimizer << " " << step;
    run("begun_narrow_", {narrow, "exit_interval=3"});
    EXPECT_EQ(test::losses(run("begun_narrow_", {})).size(), 6U);
  }
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--dry-run", "--json"});
    return json::parse(run_program(train(folder, "plan", "adam", more)).out);
  };
  const json large = plan({}), small = plan({narrow});
  expect_two_bytes_less(large, small);
}

TEST(Optimizers, StatesOfAnotherOptimizerAreRefused) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder, "run", "adam", {"exit_interval=3"})).exit_code, 0);
  // Lion is refused, too, although one of its states has the name of one of Adam's states.
  for (const std::string other : {"lion", "sgd", "muon"}) {
    const ProgramResult refused = run_program(train(folder, "run", other, {}));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("has the states of another optimizer: adam in the checkpoint, "),
                                   HasSubstr("no_load_optim=true")));
  }
  ASSERT_EQ(run_program(train(folder, "lion", "muon", {"exit_interval=3"})).exit_code, 0);
  const ProgramResult rest = run_program(train(folder, "lion", "muon", {"muon_scalar_optimizer=lion"}));
  EXPECT_EQ(rest.exit_code, 2);
  EXPECT_THAT(rest.err, HasSubstr("muon, adam in the checkpoint, muon, lion in the experiment"));
  const ProgramResult fresh = run_program(train(folder, "run", "lion", {"no_load_optim=true"}));
  EXPECT_EQ(fresh.exit_code, 0) << fresh.err;
  EXPECT_EQ(test::losses(test::run_folder(folder.path())).size(), 6U);
}

// A plan includes the states of the chosen optimizer, in memory and on disk.
TEST(Optimizers, APlanCountsTheirStates) {
  const TemporaryFolder folder;
  const auto plan = [&](const std::string& optimizer, std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--dry-run", "--json"});
    const ProgramResult result = run_program(train(folder, "run", optimizer, more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json adam = plan("adam"), sgd = plan("sgd"), bare = plan("sgd", {"sgd_momentum=0"});
  const json lion = plan("lion"), muon = plan("muon");
  const auto of = [](const json& report, const char* key) { return report.at(key).get<std::int64_t>(); };
  const std::int64_t parameters = of(adam, "parameters");
  for (const auto& [report, states] : {std::pair(&adam, 2), {&sgd, 1}, {&lion, 1}}) {
    EXPECT_EQ(of(*report, "checkpoint_bytes") - of(bare, "checkpoint_bytes"), states * 4 * parameters);
  }
  // Muon keeps one state for hidden matrices and two for other parameters.
  EXPECT_GT(of(muon, "checkpoint_bytes"), of(lion, "checkpoint_bytes"));
  EXPECT_LT(of(muon, "checkpoint_bytes"), of(adam, "checkpoint_bytes"));
}

TEST(Optimizers, KeysOfAnotherOptimizerGetANote) {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(train(folder, "run", "sgd", {"muon_momentum=0.9", "sgd_momentum=0.8", "--dry-run"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("muon_momentum has an effect only with optimizer: muon"),
                                Not(HasSubstr("sgd_momentum has"))));
  const ProgramResult soap = run_program(train(folder, "run", "soap", {"--dry-run"}));
  EXPECT_EQ(soap.exit_code, 2);
  EXPECT_THAT(soap.err, HasSubstr("soap"));
}

}  // namespace
}  // namespace primus
