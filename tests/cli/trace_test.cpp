// Tests of `profile: true`: a training run writes a trace of its work, and its results do not change.
#include <chrono>
#include <set>
#include <thread>

#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::Program;

ProgramResult train(const TemporaryFolder& folder, const std::string& name, std::vector<std::string> more) {
  more.push_back("exp_name=" + name);
  return run_program(test::train(folder.path(), more));
}

Path trace_file(const TemporaryFolder& folder, const std::string& name, int rank,
                const std::string& steps = "steps-3-4") {
  return test::run_folder(folder.path(), name) / "traces" / steps /
         ("rank-" + std::to_string(rank) + ".json");
}

// Returns the spans of a trace by category.
std::map<std::string, std::vector<json>> spans_of(const json& trace) {
  std::map<std::string, std::vector<json>> spans;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("dur").get<double>(), 0);
    spans[event.at("cat")].push_back(event);
  }
  return spans;
}

std::multiset<std::string> names_of(const std::vector<json>& spans) {
  std::multiset<std::string> names;
  for (const json& span : spans) names.insert(span.at("name"));
  return names;
}

std::set<std::string> tracks_of(const json& trace) {
  std::set<std::string> tracks;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") tracks.insert(event.at("args").at("name"));
  }
  return tracks;
}

const std::vector<std::string> kSteps = {"train_iters=6", "global_batch_size=8", "save_interval=3"};
std::vector<std::string> with(std::vector<std::string> more) {
  more.insert(more.end(), kSteps.begin(), kSteps.end());
  return more;
}

TEST(Trace, ContainsTheChosenStepsAndChangesNothing) {
  const TemporaryFolder folder;
  ASSERT_EQ(train(folder, "plain", with({})).exit_code, 0);
  const ProgramResult traced =
      train(folder, "traced", with({"profile=true", "profile_step_start=2", "profile_step_end=4"}));
  ASSERT_EQ(traced.exit_code, 0) << traced.err;
  EXPECT_THAT(traced.err, Not(HasSubstr("ignored")));
  const Path plain = test::run_folder(folder.path(), "plain"),
             run = test::run_folder(folder.path(), "traced");
  EXPECT_FALSE(Env::posix().status(plain / "traces"));
  EXPECT_EQ(test::losses(run), test::losses(plain));
  EXPECT_EQ(test::final_weights(run, 6), test::final_weights(plain, 6));

  const json trace = json::parse(read_file(trace_file(folder, "traced", 0)));
  EXPECT_EQ(trace.at("primus").at("first_step"), 3);
  EXPECT_EQ(trace.at("primus").at("last_step"), 4);
  EXPECT_TRUE(trace.at("primus").at("complete"));
  const auto spans = spans_of(trace);
  // There are two steps of four microbatches each.
  std::multiset<std::string> work;
  for (int step = 0; step < 2; ++step) {
    for (int m = 0; m < 4; ++m) {
      work.insert("F" + std::to_string(m));
      work.insert("B" + std::to_string(m));
    }
  }
  EXPECT_EQ(names_of(spans.at("schedule")), work);
  const auto kernels = names_of(spans.at("kernel"));
  for (const char* kernel : {"Gemm", "RmsNormForward", "AttentionBackward", "AdamW"})
    EXPECT_GE(kernels.count(kernel), 2U) << kernel;
  EXPECT_GE(names_of(spans.at("copy")).count("copy to device"), 8U);
  const auto host = names_of(spans.at("host"));
  for (const char* phase : {"step 3", "step 4"}) EXPECT_EQ(host.count(phase), 1U) << phase;
  for (const char* phase : {"step 2", "step 5"}) EXPECT_EQ(host.count(phase), 0U) << phase;
  for (const char* phase : {"read data", "microbatch 3", "gradients", "update", "begin a checkpoint"})
    EXPECT_GE(host.count(phase), 1U) << phase;
  EXPECT_EQ(spans.count("communication"), 0U);
}

TEST(Trace, RanksAreProcessesOnOneTimeAxis) {
  const TemporaryFolder folder;
  const std::vector<std::string> stages = {"--nproc=2", "pipeline_model_parallel_size=2"};
  ASSERT_EQ(train(folder, "plain", with(stages)).exit_code, 0);
  auto traced = stages;
  for (const char* word : {"profile=true", "profile_step_start=2", "profile_step_end=4", "profile_ranks=all"})
    traced.emplace_back(word);
  const ProgramResult result = train(folder, "traced", with(traced));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Path plain = test::run_folder(folder.path(), "plain"),
             run = test::run_folder(folder.path(), "traced");
  EXPECT_EQ(test::losses(run), test::losses(plain));
  EXPECT_EQ(test::final_weights(run, 6), test::final_weights(plain, 6));

  std::map<std::string, std::vector<json>> spans[2];
  for (int rank = 0; rank < 2; ++rank) {
    const json trace = json::parse(read_file(trace_file(folder, "traced", rank)));
    EXPECT_EQ(trace.at("primus").at("rank"), rank);
    EXPECT_EQ(trace.at("primus").at("world"), 2);
    EXPECT_EQ(trace.at("primus").at("stage"), rank);
    EXPECT_THAT(tracks_of(trace), ::testing::IsSupersetOf({"host", "compute", "communication"}));
    for (const json& event : trace.at("traceEvents")) EXPECT_EQ(event.at("pid"), rank);
    spans[rank] = spans_of(trace);
    EXPECT_FALSE(spans[rank].at("communication").empty());
  }
  // In each step, every microbatch's activations are sent forward and its gradient back. Both ranks use the
  // same names, and a receive ends after its send begins.
  const auto named = [&](int rank, const std::string& name) {
    std::vector<json> found;
    for (const json& span : spans[rank].at("schedule")) {
      if (span.at("name") == name) found.push_back(span);
    }
    return found;
  };
  for (int m = 0; m < 4; ++m) {
    const std::string number = std::to_string(m);
    for (const auto& [from, what] : {std::pair(0, "F"), std::pair(1, "B")}) {
      const auto made = named(from, what + number), sent = named(from, "send " + (what + number)),
                 received = named(1 - from, "receive " + (what + number));
      ASSERT_EQ(made.size(), 2U) << what << m;
      ASSERT_EQ(sent.size(), 2U) << what << m;
      ASSERT_EQ(received.size(), 2U) << what << m;
      const auto begin = [](const json& span) { return span.at("ts").get<double>(); };
      const auto end = [&](const json& span) { return begin(span) + span.at("dur").get<double>(); };
      for (std::size_t step = 0; step < 2; ++step) {
        constexpr double kClocks = 500;  // microseconds; tolerance between the ranks' clocks
        EXPECT_LE(end(made[step]), begin(sent[step]) + kClocks) << what << m;
        EXPECT_LE(begin(sent[step]), end(received[step]) + kClocks) << what << m;
        EXPECT_EQ(sent[step].at("args").at("peer"), 1 - from);
        EXPECT_EQ(sent[step].at("args").at("microbatch"), m);
        EXPECT_EQ(sent[step].at("args").at("work"), "send");
      }
    }
  }
}

TEST(Trace, TheMeasuredPipelineIsDrawn) {
  const TemporaryFolder folder;
  ASSERT_EQ(train(folder, "run",
                  with({"--nproc=2", "pipeline_model_parallel_size=2", "patch_primus_pipeline=true",
                        "pp_algorithm=zbv-formatted", "profile=true", "profile_step_start=2",
                        "profile_step_end=4", "profile_ranks=all"}))
                .exit_code,
            0);
  const std::string run = test::run_folder(folder.path(), "run").string();
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "pipeline", "--trace", run});
    return run_program(more);
  };
  const ProgramResult drawn = plan({});
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, HasSubstr("zero bubble V: 2 stages of 2 chunks, 4 microbatches\n\n"
                                   "step 4 as it ran, on ranks 0 1\n"
                                   "stage 0   F"));
  const std::string image = (folder.path() / "m.svg").string();
  const ProgramResult figures = plan({"--json", "--step", "3", "--svg", image});
  ASSERT_EQ(figures.exit_code, 0) << figures.err;
  EXPECT_THAT(read_file(image), HasSubstr("step 3 as it ran"));
  const json both = json::parse(figures.out);
  const json &measured = both.at("measured"), &generated = both.at("generated");
  // The measured and the planned pipeline have the same work, in the same order on each stage.
  const auto orders = [](const json& timeline) {
    std::map<int, std::vector<std::string>> order;
    for (const json& work : timeline.at("work")) {
      order[work.at("stage")].push_back(work.at("kind").get<std::string>() + work.at("microbatch").dump() +
                                        "." + work.at("chunk").dump());
    }
    return order;
  };
  EXPECT_EQ(measured.at("work").size(), 2U * 2 * 4 * 3);
  EXPECT_EQ(orders(measured), orders(generated));
  EXPECT_EQ(measured.at("peak_stash"), generated.at("peak_stash"));
  EXPECT_GT(measured.at("bubble"), 0);
  EXPECT_GT(measured.at("time"), 0);
  EXPECT_EQ(plan({"--stages", "2"}).exit_code, 2);
  EXPECT_EQ(plan({"--step", "5"}).exit_code, 2);
  EXPECT_EQ(plan({run + "/traces/steps-3-4/rank-1.json"}).exit_code, 0);
  EXPECT_EQ(run_program({"plan", "pipeline", "--trace", run + "/traces/steps-3-4/rank-1.json"}).exit_code, 2);
}

TEST(Trace, ContainsTheNamedRanks) {
  const TemporaryFolder folder;
  const ProgramResult result = train(folder, "run",
                                     with({"--nproc=2", "profile=true", "profile_step_start=2",
                                           "profile_step_end=4", "profile_ranks=[01, 7]"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("names rank 7, but the job has 2 ranks"));
  EXPECT_FALSE(Env::posix().status(trace_file(folder, "run", 0)));
  const json trace = json::parse(read_file(trace_file(folder, "run", 1)));
  EXPECT_FALSE(spans_of(trace).at("communication").empty());
}

// The trace file is complete JSON at every moment, also after SIGKILL.
TEST(Trace, OfAKilledRunCanBeRead) {
  const TemporaryFolder folder;
  Program program(test::train(folder.path(), {"train_iters=100000", "profile=true", "profile_step_start=1",
                                              "profile_step_end=100000"}));
  const Path file = trace_file(folder, "run", 0, "steps-2-100000");
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  json trace;
  while (trace.is_null() || trace.at("primus").at("last_step") < 9) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
    ASSERT_TRUE(program.running());
    if (Env::posix().status(file)) trace = json::parse(read_file(file));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  program.send(SIGKILL);
  program.wait();
  trace = json::parse(read_file(file));
  EXPECT_FALSE(trace.at("primus").at("complete"));
  EXPECT_GE(names_of(spans_of(trace).at("schedule")).count("F0"), 8U);
}

TEST(Trace, OfAStoppedRunIsComplete) {
  const TemporaryFolder folder;
  const ProgramResult result = train(
      folder, "run",
      {"train_iters=100", "exit_interval=7", "profile=true", "profile_step_start=2", "profile_step_end=50"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json trace = json::parse(read_file(trace_file(folder, "run", 0, "steps-3-50")));
  EXPECT_EQ(trace.at("primus").at("last_step"), 7);
  EXPECT_FALSE(trace.at("primus").at("complete"));
  EXPECT_EQ(names_of(spans_of(trace).at("schedule")).count("B1"), 5U);

  // The resumed run writes a second trace next to the first. A later start notes that no step is left to
  // trace.
  const auto go_on = [&](const char* iterations) {
    return train(folder, "run", {iterations, "profile=true", "profile_step_start=2", "profile_step_end=10"});
  };
  ASSERT_EQ(go_on("train_iters=10").exit_code, 0);
  const json rest = json::parse(read_file(trace_file(folder, "run", 0, "steps-8-10")));
  EXPECT_EQ(rest.at("primus").at("first_step"), 8);
  EXPECT_TRUE(rest.at("primus").at("complete"));
  EXPECT_EQ(json::parse(read_file(trace_file(folder, "run", 0, "steps-3-50"))), trace);
  const ProgramResult resumed = go_on("train_iters=12");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err,
              HasSubstr("nothing is traced: profile_step_end is 10, but the run continues after step 10"));
}

TEST(Trace, SettingsThatTraceNothingAreReported) {
  const TemporaryFolder folder;
  const auto check = [&](std::vector<std::string> more, int code, const char* text) {
    more.insert(more.end(), {"profile=true", "train_iters=2", "--dry-run"});
    const ProgramResult result = train(folder, "run", more);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(text));
  };
  check({"profile_step_start=4", "profile_step_end=4"}, 2, "profile_step_end (4) is not above");
  check({"profile_ranks=[0, one]"}, 2, "'one' is not a rank");
  check({"profile_ranks=[-1]"}, 2, "'-1' is not a rank");
  check({}, 0, "nothing is traced: profile_step_start is 10");
}

}  // namespace
}  // namespace primus
