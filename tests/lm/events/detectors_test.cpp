#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/fault_env.h"
#include "lm/events/detectors/detector.h"
#include "lm/events/metrics_file.h"
#include "lm/events/run_ending.h"
#include "lm/events/training_monitor.h"

namespace primus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

IterationRecord step(std::int64_t iteration, double loss, double norm = 1, double seconds = 1) {
  IterationRecord record{.iteration = iteration, .lm_loss = loss, .grad_norm = norm};
  record.throughput.now.seconds_per_iteration = seconds;
  return record;
}

// One detector of each kind.
class Detectors {
 public:
  Detectors() {
    for (const DetectorEntry* entry : detectors()) all_.emplace_back(entry->name, entry->make());
  }
  std::vector<RunWarning> iteration(const IterationRecord& record) {
    return found([&](Detector& detector) { return detector.iteration(record); });
  }
  std::vector<RunWarning> evaluation(const EvaluationRecord& record) {
    return found([&](Detector& detector) { return detector.evaluation(record); });
  }

 private:
  template <class Look>
  std::vector<RunWarning> found(Look look) {
    std::vector<RunWarning> warnings;
    for (const auto& [name, detector] : all_) {
      auto warning = look(*detector);
      if (!warning) continue;
      warning->detector = name;
      warnings.push_back(std::move(*warning));
    }
    return warnings;
  }
  std::vector<std::pair<std::string_view, std::unique_ptr<Detector>>> all_;
};

// Returns the warnings of all detectors in order, as "name@iteration".
template <class Of>
std::vector<std::string> reported(std::int64_t steps, Of of) {
  Detectors detectors;
  std::vector<std::string> names;
  for (std::int64_t i = 1; i <= steps; ++i) {
    for (const RunWarning& warning : detectors.iteration(of(i)))
      names.push_back(warning.detector + "@" + std::to_string(warning.iteration));
  }
  return names;
}

std::vector<std::string> reported_of(const std::vector<double>& validation) {
  Detectors detectors;
  std::vector<std::string> names;
  std::int64_t iteration = 0;
  for (const double loss : validation) {
    iteration += 10;
    for (const RunWarning& warning : detectors.evaluation({.iteration = iteration, .lm_loss = loss}))
      names.push_back(warning.detector + "@" + std::to_string(warning.iteration));
  }
  return names;
}

// A loss that is NaN once and then finite again is not reported.
TEST(Detectors, ASingleNanIsNoDivergence) {
  Detectors detectors;
  const std::vector<RunWarning> first = detectors.iteration(step(1, kNaN));
  ASSERT_EQ(first.size(), 1U);
  EXPECT_TRUE(std::isinf(first[0].limit));
}

TEST(Detectors, AHealthyRunGivesNoWarning) {
  EXPECT_THAT(reported(500,
                       [](std::int64_t i) {
                         const auto x = static_cast<double>(i);
                         // A healthy run: the loss has noise of 5 %, steps take 0.9 to 1.2 s, and gradient
                         // norms fall.
                         return step(i, 3 + 7 / x + 0.1 * std::sin(x), 1 + 4 / x,
                                     1.05 + 0.15 * std::cos(3 * x));
                       }),
              IsEmpty());
}

// The loss of a run with lr=1: it grows from 7.6 to 147 within 60 steps.
TEST(Detectors, AGrownLossIsReportedOnce) {
  const auto diverging = [](std::int64_t i) {
    return step(i, i <= 20 ? 7.6 : 7.6 + 3.5 * static_cast<double>(i - 20));
  };
  EXPECT_THAT(reported(60, diverging), ElementsAre("loss_growth@23"));
  Detectors detectors;
  std::vector<RunWarning> found;
  for (std::int64_t i = 1; i <= 23; ++i) found = detectors.iteration(diverging(i));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].text, HasSubstr("from 7.6 (best, near iteration 1) to "));
  EXPECT_THAT(found[0].advice, HasSubstr("lower lr"));
}

// The loss of a run with lr=1 in its first five steps.
TEST(Detectors, ALossThatGrowsFromTheFirstStepIsReported) {
  EXPECT_THAT(reported(60, [](std::int64_t i) { return step(i, i == 1 ? 5.5 : 18.5); }),
              ElementsAre("loss_growth@5"));
}

TEST(Detectors, OneBadBatchIsNoDivergence) {
  EXPECT_THAT(reported(60, [](std::int64_t i) { return step(i, i == 30 ? 80.0 : 3.0); }), IsEmpty());
}

// A fine-tune with one packed sequence per step, of which half are memorized: losses of 2.5 and 9.4
// alternate.
TEST(Detectors, VaryingLossesOfDifferentSequencesAreNoDivergence) {
  const std::vector<double> one_epoch = {2.86, 8.74, 9.4, 2.5, 8.9, 2.6, 9.1, 9.4, 2.5, 2.9};
  const auto alternating = [&](std::int64_t i) {
    return one_epoch[static_cast<std::size_t>(i * 7) % one_epoch.size()];
  };
  EXPECT_THAT(reported(120, [&](std::int64_t i) { return step(i, alternating(i)); }), IsEmpty());
  // A divergence is reported once the loss exceeds these losses, or once no sequence has a low loss any more.
  EXPECT_THAT(reported(120, [&](std::int64_t i) { return step(i, i <= 60 ? alternating(i) : 40); }),
              ElementsAre("loss_growth@63"));
  EXPECT_THAT(reported(120, [&](std::int64_t i) { return step(i, i <= 60 ? alternating(i) : 11 + i % 2); }),
              ElementsAre("loss_growth@92"));
}

// The recorded losses of a fine-tune that learned all its answers.
TEST(Detectors, RecordedLossesOfAFineTuneAreNoDivergence) {
  const std::vector<double> losses = {3.515, 10.271, 9.438, 5.113, 2.921, 10.109, 2.522, 3.452, 4.104, 2.486,
                                      4.417, 2.384,  7.75,  2.611, 2.223, 7.947,  7.68,  2.64,  3.102, 2.409,
                                      6.259, 2.017,  1.627, 1.982, 1.68,  2.763,  1.738, 4.275, 4.554, 1.925,
                                      3.344, 1.016,  1.17,  1.506, 2.648, 0.978,  3.004, 0.929, 1.55,  0.955};
  EXPECT_THAT(reported(std::ssize(losses),
                       [&](std::int64_t i) { return step(i, losses[static_cast<std::size_t>(i - 1)]); }),
              IsEmpty());
}

// If a loss is near zero, noise may change it tenfold, which is not reported. Growth to a large loss is
// reported.
TEST(Detectors, ALossOfMemorizedTextMayGrowTenfold) {
  EXPECT_THAT(reported(60, [](std::int64_t i) { return step(i, i < 10   ? 3.0
                                                               : i < 40 ? 0.01
                                                                        : 0.2); }),
              IsEmpty());
  EXPECT_THAT(reported(60, [](std::int64_t i) { return step(i, i < 10   ? 3.0
                                                               : i < 40 ? 0.01
                                                                        : 1.5); }),
              ElementsAre("loss_growth@42"));
}

TEST(Detectors, ALossThatGrowsAgainIsReportedAgain) {
  EXPECT_THAT(reported(100, [](std::int64_t i) { return step(i, i % 50 >= 30 ? 40.0 : 3.0); }),
              ElementsAre("loss_growth@32", "loss_growth@82"));
}

TEST(Detectors, ANanLossIsReported) {
  EXPECT_THAT(reported(30, [](std::int64_t i) { return step(i, i < 10 ? 3.0 : kNaN); }),
              ElementsAre("loss_growth@10"));
}

TEST(Detectors, GradientSpikesAreReported) {
  EXPECT_THAT(reported(200, [](std::int64_t i) { return step(i, 3, i == 50 || i == 52 ? 20 : 1); }),
              ElementsAre("gradient_spike@50"));
  EXPECT_THAT(reported(200, [](std::int64_t i) { return step(i, 3, i == 50 || i == 150 ? 20 : 1); }),
              ElementsAre("gradient_spike@50", "gradient_spike@150"));
  // The first steps are not checked, and tiny norms are ignored.
  EXPECT_THAT(reported(200, [](std::int64_t i) { return step(i, 3, i == 10 ? 20 : 1); }), IsEmpty());
  EXPECT_THAT(reported(200, [](std::int64_t i) { return step(i, 3, i == 50 ? 5e-4 : 1e-5); }), IsEmpty());
}

// After the data have been memorized, the norm of an ordinary batch is no spike.
TEST(Detectors, AnInitialGradientNormIsNoSpike) {
  const auto memorized = [](double late) {
    return reported(200, [=](std::int64_t i) {
      return step(i, 3, i == 150 ? late : i <= 30 ? 1.5 : 3.3e-7);
    });
  };
  EXPECT_THAT(memorized(1.987), IsEmpty());
  EXPECT_THAT(memorized(20), ElementsAre("gradient_spike@150"));
}

// Weights that are all 0 have gradients of 0. The warning comes once.
TEST(Detectors, AModelWithoutGradientsIsReported) {
  EXPECT_THAT(reported(50, [](std::int64_t i) { return step(i, 5.5, 0); }), ElementsAre("zero_gradients@2"));
  EXPECT_THAT(reported(50, [](std::int64_t i) { return step(i, 5.5, i % 2 == 0 ? 0 : 1); }), IsEmpty());
  // Equal rewards give a loss of 0, which has no gradient.
  EXPECT_THAT(reported(50, [](std::int64_t i) { return step(i, 0, 0); }), IsEmpty());
}

TEST(Detectors, RewardsThatAreEqualInManyStepsAreReported) {
  const auto rewarded = [](double equal) {
    return [equal](std::int64_t i) {
      IterationRecord record = step(i, 0, 0);
      record.other_losses = {{"reward", 0.0}, {"frac_reward_zero_std", i == 7 ? equal : 1.0}};
      return record;
    };
  };
  EXPECT_THAT(reported(60, rewarded(1)), ElementsAre("equal_rewards@20"));
  EXPECT_THAT(reported(60, rewarded(0.9)), ElementsAre("equal_rewards@27"));
  EXPECT_THAT(reported(26, rewarded(0.9)), IsEmpty());
}

TEST(Detectors, AShortRunWithoutUnequalRewardsIsReportedAtItsEnd) {
  const auto rewarded = [](std::int64_t unequal_step) {
    return [unequal_step](std::int64_t i) {
      IterationRecord record = step(i, 0, 0);
      record.train_iters = 5;
      record.other_losses = {{"reward", 0.0}, {"frac_reward_zero_std", i == unequal_step ? 0.5 : 1.0}};
      return record;
    };
  };
  EXPECT_THAT(reported(5, rewarded(0)), ElementsAre("equal_rewards@5"));
  EXPECT_THAT(reported(5, rewarded(2)), IsEmpty());
  EXPECT_THAT(reported(4, rewarded(0)), IsEmpty());
}

TEST(Detectors, DoubledStepTimesAreReported) {
  EXPECT_THAT(reported(100, [](std::int64_t i) { return step(i, 3, 1, i <= 51 ? 1.0 : 2.1); }),
              ElementsAre("slow_steps@61"));
  // One slow step in ten, such as a step that saves a checkpoint, causes no warning.
  EXPECT_THAT(reported(100, [](std::int64_t i) { return step(i, 3, 1, i % 10 == 0 ? 9.0 : 1.0); }),
              IsEmpty());
  // Short steps are judged by their total time: 20 steps of 0.1 s are too short for a warning.
  EXPECT_THAT(reported(500, [](std::int64_t i) { return step(i, 3, 1, i > 480 ? 0.1 : 0.01); }), IsEmpty());
}

// Time spent waiting for data is no proof of a slow disk: on a busy machine, batches are prepared late.
TEST(Detectors, SlowStepsThatWaitForDataNameBothCauses) {
  Detectors detectors;
  std::vector<RunWarning> warnings;
  for (std::int64_t i = 1; i <= 100 && warnings.empty(); ++i) {
    IterationRecord record = step(i, 3, 1, i <= 51 ? 1.0 : 2.1);
    record.throughput.now.data_wait_share = 0.39;
    warnings = detectors.iteration(record);
  }
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0].advice, ::testing::AllOf(HasSubstr("39 % of the time is spent waiting for data"),
                                                   HasSubstr("other processes"), HasSubstr("a slow disk")));
}

TEST(Detectors, ThreeWorseningEvaluationsAreReported) {
  EXPECT_THAT(reported_of({5, 4, 3, 3.1, 3.2, 3.3, 3.4, 3.5}), ElementsAre("worse_evaluations@60"));
  EXPECT_THAT(reported_of({5, 4, 3, 3.1, 3.2, 3.15, 3.3, 3.4}), IsEmpty());
  // After a new best loss, three worse evaluations are reported again.
  EXPECT_THAT(reported_of({3, 3.1, 3.2, 3.3, 2, 2.1, 2.2, 2.3}),
              ElementsAre("worse_evaluations@40", "worse_evaluations@80"));
}

// Evaluations of few tokens differ by chance, because each reads other sequences.
TEST(Detectors, EvaluationsOfFewTokensMayScatter) {
  const auto reported_with = [](std::int64_t tokens, double step) {
    Detectors detectors;
    std::size_t reported = 0;
    for (int i = 0; i < 5; ++i)
      reported += detectors.evaluation({.iteration = i, .lm_loss = 1 + step * i, .tokens = tokens}).size();
    return reported;
  };
  EXPECT_EQ(reported_with(1024, 0.05), 0U);  // the noise is 6 sqrt(2 / 1024) = 0.27
  EXPECT_EQ(reported_with(1024, 0.1), 1U);
  EXPECT_EQ(reported_with(1 << 20, 0.05), 1U);
}

// The log and warnings.jsonl have each warning once. A resumed run also compares with earlier evaluations.
TEST(Detectors, AMonitorReportsWarnings) {
  FaultEnv env;
  const RunFolder folder({"/work", "amd", "root", "test"});
  const Path logs = folder.rank_logs("pre_trainer", 0);
  Logger log({.folder = logs.string()}, env);
  {
    TrainingMonitor monitor(folder, {}, log, env);
    for (int i = 1; i <= 40; ++i) monitor.iteration(step(i, i < 20 ? 3 : 50));
    for (int i = 10; i <= 30; i += 10) monitor.evaluation({.iteration = i, .lm_loss = 3 + 0.1 * i});
  }
  {
    TrainingMonitor monitor(folder, {.resume_iteration = 40}, log, env);
    monitor.evaluation({.iteration = 50, .lm_loss = 9});
  }
  const std::vector<RunWarning> warnings = recorded_warnings(folder.warnings_file(), env);
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_EQ(warnings[0].detector, "loss_growth");
  EXPECT_EQ(warnings[0].iteration, 22);
  EXPECT_EQ(warnings[1].detector, "worse_evaluations");
  EXPECT_EQ(warnings[1].iteration, 50);
  const std::string said = read_file(logs / "warning.log", 1 << 20, env);
  EXPECT_THAT(said, HasSubstr("iteration 22: the loss has grown from 3 (best, near iteration 1) to 50"));
  // A run that resumes from an iteration before the warnings removes these warnings.
  TrainingMonitor(folder, {.resume_iteration = 20}, log, env).sync();
  EXPECT_THAT(recorded_warnings(folder.warnings_file(), env), IsEmpty());
}

TEST(RunEndings, RoundTrip) {
  FaultEnv env;
  const Path folder = "/home/me/run";
  make_folders(folder, env);
  EXPECT_FALSE(read_ending(folder, env));
  write_ending(folder, {.state = RunEnding::State::kRunning, .iteration = 3}, env);
  EXPECT_EQ(read_ending(folder, env)->state, RunEnding::State::kRunning);
  const FileError full("cannot write 'x'", ENOSPC);
  write_ending(folder, ending_of(full, 8), env);
  const auto ending = read_ending(folder, env);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->state, RunEnding::State::kFailed);
  EXPECT_EQ(ending->reason, "disk full");
  EXPECT_EQ(ending->iteration, 8);
  EXPECT_THAT(ending->text, HasSubstr("cannot write 'x'"));
  write_ending(folder, {.state = RunEnding::State::kFailed, .text = "rank 0 was lost\n  its last lines"},
               env);
  EXPECT_EQ(read_ending(folder, env)->text, "rank 0 was lost");
  EXPECT_EQ(ending_of(Error(ErrorKind::kNumerics, "lm loss is NaN"), 1).reason, "NaN");
  EXPECT_EQ(ending_of(std::bad_alloc(), 1).reason, "out of memory");
  // The error text as another rank forwards it.
  EXPECT_EQ(ending_of(Error(ErrorKind::kInvalid, "rank 1: cannot write: No space left on device"), 1).reason,
            "disk full");
  for (const char* lost : {"rank 1 was lost during all_reduce: closed", "rank 0: rank 12 was lost: killed"})
    EXPECT_EQ(ending_of(Error(ErrorKind::kIo, lost), 1).reason, "a rank was lost");
  EXPECT_EQ(ending_of(Error(ErrorKind::kIo, "the rank was lost"), 1).reason, "error");
  write_file_atomic(folder / kEndingFile, "{\"state\":\"", env);
  EXPECT_FALSE(read_ending(folder, env));
}

}  // namespace
}  // namespace primus
