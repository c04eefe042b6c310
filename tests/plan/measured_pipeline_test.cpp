// Tests timelines measured from traces. The traces are made from simulated timelines.
#include "plan/measured_pipeline.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

using engine::ScheduleKind;
using engine::TimedWork;
using ::testing::HasSubstr;

struct Made {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int stages = 2, chunks = 1;
  std::int64_t microbatches = 3;
  engine::PipelineCosts costs = {.forward = 1, .backward = 1, .weight = 1, .transfer = 0.5};
  std::vector<int> steps = {3, 4};
  double late = 0;  // seconds by which the clock of the last stage is ahead
  std::int64_t job = 1;
};

// Writes rank-N.json of each stage, as runs do. One time unit is a second, and steps start 100 units apart.
void write_traces(const Path& folder, const Made& made, std::size_t torn = 0) {
  const PipelinePlan plan = plan_pipeline(made.kind, made.stages, made.chunks, made.microbatches, made.costs);
  make_folders(folder);
  for (std::size_t stage = 0; stage < plan.timeline.stages.size(); ++stage) {
    std::string text = fmt::format(
        R"({{"primus": {{"rank": {}, "world": {}, "job": {}, "first_step": {}, "complete": false, "stage": {}, )"
        R"("stages": {}, "chunks": {}, "microbatches": {}, "schedule": "{}"}}, "traceEvents": [)"
        R"({{"ph": "M", "name": "process_name", "pid": 0, "args": {{"name": "x"}}}})",
        4 * stage, 4 * made.stages, made.job, made.steps.front(), stage, made.stages, made.chunks,
        made.microbatches, engine::traits_of(made.kind).name);
    for (const int step : made.steps) {
      const auto& works = plan.timeline.stages[stage];
      const std::size_t count = works.size() - (step == made.steps.back() ? torn : 0);
      for (std::size_t i = 0; i < count; ++i) {
        const TimedWork& t = works[i];
        const double shift = 100 * step + (static_cast<int>(stage) == made.stages - 1 ? made.late : 0);
        const std::string kind = !t.work.transfer() ? std::string(1, letter_of(t.work.kind))
                                 : t.work.kind == engine::Work::Kind::kSend ? "send"
                                                                            : "receive";
        text += fmt::format(
            ",\n"
            R"({{"ph": "X", "name": "{}", "cat": "schedule", "pid": 0, "tid": 1, "ts": {}, "dur": {}, "args": )"
            R"({{"work": "{}", "stage": {}, "chunk": {}, "microbatch": {}, "gradient": {}, "peer": {}}}}})",
            label_of(t.work), (t.start + shift) * 1e6, (t.end - t.start) * 1e6, kind, stage, t.work.chunk,
            t.work.microbatch, t.work.gradient, t.work.peer);
      }
      text += R"(, {"ph": "X", "name": "Gemm", "cat": "kernel", "pid": 0, "tid": 1, "ts": 0, "dur": 9e9})";
    }
    write_file_atomic(folder / fmt::format("rank-{}.json", 4 * stage), text + "]}");
  }
}

std::string refusal(const std::vector<std::string>& names, std::optional<std::int64_t> step = {}) {
  try {
    (void)measure_pipeline(names, step);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    return error.what();
  }
  return "";
}

TEST(MeasuredPipeline, IsDrawnAboveItsSchedule) {
  const test::TemporaryFolder folder;
  write_traces(folder.path() / "traces" / "steps-3-4", {});
  const MeasuredPipeline p = measure_pipeline({folder.path().string()});
  EXPECT_EQ(p.step, 4);
  EXPECT_EQ(p.ranks, (std::vector<int>{0, 4}));
  EXPECT_EQ(to_text(p, 80),
            "1F1B: 2 stages of 1 chunk, 3 microbatches\n"
            "\n"
            "step 4 as it ran, on ranks 0 4\n"
            "stage 0   F0   F1   ...............B0        F2   B1        ..........B2        \n"
            "stage 1   ........F0   B0        F1   B1        .....F2   B2        ............\n"
            "\n"
            "the schedule, if all work took the mean times and transfers none\n"
            "stage 0   F0   F1   ..........B0        F2   B1        .....B2        \n"
            "stage 1   .....F0   B0        F1   B1        F2   B2        ..........\n"
            "\n"
            "F forward, B backward, with the number of the microbatch where it fits\n"
            "               measured  schedule\n"
            "bubble             35.7      25.0   % of all stages' time\n"
            "time              14000     12000   ms\n"
            "work         F 1000 ms, B 2000 ms\n"
            "transfer     500 ms, from when both sides are ready\n");
}

TEST(MeasuredPipeline, EqualsTheSimulation) {
  for (const ScheduleKind kind : {ScheduleKind::kZeroBubbleV, ScheduleKind::kInterleaved}) {
    const test::TemporaryFolder folder;
    const Made made{.kind = kind, .stages = 4, .chunks = 2, .microbatches = 8};
    write_traces(folder.path(), made);
    const MeasuredPipeline p = measure_pipeline({folder.path().string()}, 3);
    EXPECT_EQ(p.step, 3);
    const PipelinePlan plan = plan_pipeline(kind, 4, 2, 8, made.costs);
    EXPECT_NEAR(p.measured.timeline.bubble, plan.timeline.bubble, 1e-6);
    EXPECT_NEAR(p.measured.timeline.makespan, 1000 * plan.timeline.makespan, 1e-3);
    EXPECT_EQ(p.measured.timeline.peak_stash, plan.timeline.peak_stash);
    EXPECT_NEAR(p.transfer, 500, 1e-3);
    EXPECT_LT(p.generated.timeline.bubble, p.measured.timeline.bubble);
    const nlohmann::json json = nlohmann::json::parse(to_json(p));
    EXPECT_NEAR(json["measured"]["bubble"].get<double>(), plan.timeline.bubble, 1e-6);
    const std::string svg = to_svg(p);
    std::size_t rectangles = 0;
    for (std::size_t at = svg.find("stroke="); at != std::string::npos; at = svg.find("stroke=", at + 1))
      ++rectangles;
    EXPECT_EQ(rectangles, 2U * json["measured"]["work"].size());
    EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  }
}

TEST(MeasuredPipeline, IncompleteStepsAreSkipped) {
  const test::TemporaryFolder folder;
  write_traces(folder.path(), {}, 2);
  EXPECT_EQ(measure_pipeline({folder.path().string()}).step, 3);
  EXPECT_THAT(refusal({folder.path().string()}, 4), HasSubstr("step 4 is not in the traces"));
  write_traces(folder.path(), {.steps = {5}}, 2);
  EXPECT_THAT(refusal({folder.path().string()}), HasSubstr("no whole step"));
}

TEST(MeasuredPipeline, DifferentClocksAreReported) {
  const test::TemporaryFolder folder;
  write_traces(folder.path(), {.late = 2});
  const MeasuredPipeline p = measure_pipeline({folder.path().string()});
  EXPECT_NEAR(p.clocks_apart, 1500, 1e-3);  // 2000, minus 500 for a transfer
  EXPECT_THAT(to_text(p, 80), HasSubstr("clocks       the hosts' clocks differ by 1500 ms or more"));
}

TEST(MeasuredPipeline, UsesTheNewestRunOfAFolder) {
  const test::TemporaryFolder folder;
  write_traces(folder.path(), {.stages = 3});
  write_traces(folder.path(), {.job = 2});
  const MeasuredPipeline p = measure_pipeline({folder.path().string()});
  EXPECT_EQ(p.measured.schedule.shape.stages, 2);
  ASSERT_EQ(p.notes.size(), 1U);
  EXPECT_THAT(p.notes[0], HasSubstr("rank-8.json' is of an earlier run"));
}

TEST(MeasuredPipeline, FilesThatAreNoTracesAreRefused) {
  const test::TemporaryFolder folder;
  const auto file = [&](const std::string& name) { return (folder.path() / name).string(); };
  EXPECT_THAT(refusal({file("none")}), HasSubstr("there is no"));
  EXPECT_THAT(refusal({folder.path().string()}), HasSubstr("holds no traces"));
  write_traces(folder.path(), {});
  EXPECT_THAT(refusal({file("rank-4.json")}), HasSubstr("no trace of stage 0"));
  write_file(file("text"), "no JSON");
  write_file(file("other"), R"({"traceEvents": []})");
  write_file(file("huge"),
             R"({"primus": {"rank": 0, "job": 1, "stage": 0, "stages": 99999999999, "chunks": 1, )"
             R"("microbatches": 1, "schedule": "1f1b"}, "traceEvents": []})");
  EXPECT_THAT(refusal({file("text")}), HasSubstr("broken JSON"));
  EXPECT_THAT(refusal({file("other")}), HasSubstr("is no trace of a training run"));
  EXPECT_THAT(refusal({file("huge")}), HasSubstr("is no trace of a training run"));
  write_traces(folder.path() / "b", {.microbatches = 4});
  EXPECT_THAT(refusal({file("rank-0.json"), file("b")}), HasSubstr("different pipelines"));
}

// Returns the trace of one stage and one step with these facts, work and times.
std::string one_stage(const std::string& job, const std::string& first_step, const std::string& rank,
                      const std::string& times, const std::string& work) {
  std::string text = fmt::format(
      R"({{"primus": {{"rank": {}, "job": {}, "first_step": {}, "stage": 0, "stages": 1, "chunks": 1, )"
      R"("microbatches": 1, "schedule": "1f1b"}}, "traceEvents": [)",
      rank, job, first_step);
  for (const char* kind : {"F", "B"}) {
    text += fmt::format(R"({}{{"cat": "schedule", {}, "args": {{"work": "{}", {}}}}})",
                        *kind == 'F' ? "" : ",", times, kind, work);
  }
  return text + "]}";
}

TEST(MeasuredPipeline, DamagedTracesAreRefused) {
  const test::TemporaryFolder folder;
  const std::string file = (folder.path() / "rank-0.json").string();
  const auto refused = [&](const std::string& text) {
    write_file(file, text);
    return refusal({file});
  };
  const std::string times = R"("ts": 5, "dur": 2)", work = R"("chunk": 0, "microbatch": 0)";
  EXPECT_EQ(refused(one_stage("1", "3", "0", times, work)), "");
  const auto is = [&](const std::string& what) { return HasSubstr("'" + file + "' is damaged: " + what); };
  EXPECT_THAT(refused(one_stage("-5", "3", "0", times, work)), is("its job is -5"));
  EXPECT_THAT(refused(one_stage("1", "9223372036854775807", "0", times, work)), is("its first_step is 9"));
  EXPECT_THAT(refused(one_stage("1", "-1", "0", times, work)), is("its first_step is -1"));
  EXPECT_THAT(refused(one_stage("1", "3", "4294967296", times, work)), is("its rank is 4294967296"));
  EXPECT_THAT(refused(one_stage("1", "3", "0", R"("ts": 1e300, "dur": 2)", work)),
              is("a piece of work begins"));
  EXPECT_THAT(refused(one_stage("1", "3", "0", R"("ts": 5, "dur": -2)", work)), is("a piece of work begins"));
  EXPECT_THAT(refused(one_stage("1", "3", "0", R"("ts": 5, "dur": 0)", work)),
              is("the work of step 3 takes no time"));
  EXPECT_THAT(refused(one_stage("1", "3", "0", times, R"("chunk": -1, "microbatch": 0)")), is("chunk -1"));
  EXPECT_THAT(refused(one_stage("1", "3", "0", times, R"("chunk": 0, "microbatch": 1)")), is("chunk 0 and"));
}

}  // namespace
}  // namespace primus
