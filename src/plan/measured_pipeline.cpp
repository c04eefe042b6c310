#include "plan/measured_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text/counted.h"
#include "base/text/json_reader.h"
#include "plan/pipeline_drawing.h"

namespace primus {
namespace {

using engine::TimedWork;
using engine::Work;
using Kind = Work::Kind;

constexpr std::uint64_t kLargestTrace = 4ULL << 30;
constexpr std::int64_t kMaxWork = 1 << 24;  // maximum number of forward passes of all stages in a step
constexpr std::int64_t kMaxChunks = 4096, kMaxMicrobatches = 1 << 20, kMaxRanks = 1 << 24;
constexpr std::int64_t kLastStep = 1LL << 53;
constexpr double kLongest = 1e12;   // maximum milliseconds since the job's start: 30 years
constexpr double kShortest = 1e-6;  // resolution of a trace's times

bool sane(std::int64_t x, std::int64_t minimum, std::int64_t maximum) { return x >= minimum && x <= maximum; }

Error damaged(const std::string& name, const std::string& what) {
  return invalid(fmt::format("'{}' is damaged: {}", name, what),
                 "name other traces, or train again with profile=true profile_ranks=all");
}

// The trace file of one rank.
struct Trace {
  std::string name;
  std::int64_t rank = -1, job = 0, first_step = 0;
  std::int64_t stage = 0, stages = 1, chunks = 1, microbatches = 1;
  std::string schedule;
  std::vector<TimedWork> works;  // in file order, in milliseconds

  auto pipeline() const { return std::tie(stages, chunks, microbatches, schedule); }
};

void read_facts(JsonReader& json, Trace& trace) {
  const std::map<std::string_view, std::int64_t*> numbers{{"rank", &trace.rank},
                                                          {"job", &trace.job},
                                                          {"first_step", &trace.first_step},
                                                          {"stage", &trace.stage},
                                                          {"stages", &trace.stages},
                                                          {"chunks", &trace.chunks},
                                                          {"microbatches", &trace.microbatches}};
  json.object([&](std::string_view key) {
    if (const auto found = numbers.find(key); found != numbers.end()) {
      *found->second = json.read_int();
    } else if (key == "schedule") {
      trace.schedule = json.read_string();
    } else {
      json.skip();
    }
  });
}

// Reads the fields that the schedule runner writes for its work (engine/parallel/schedule_runner.cpp).
void read_work(JsonReader& json, const std::string& name, Work& work) {
  const auto bounded = [&](const char* key, std::int64_t maximum) {
    const std::int64_t x = json.read_int();
    if (!sane(x, 0, maximum)) throw damaged(name, fmt::format("{} {} of a piece of work", key, x));
    return x;
  };
  json.object([&](std::string_view key) {
    if (key == "work") {
      const std::string kind = json.read_string();
      work.kind = kind == "F"      ? Kind::kForward
                  : kind == "B"    ? Kind::kBackward
                  : kind == "W"    ? Kind::kWeight
                  : kind == "send" ? Kind::kSend
                                   : Kind::kReceive;
    } else if (key == "chunk") {
      work.chunk = static_cast<int>(bounded("chunk", kMaxChunks));
    } else if (key == "microbatch") {
      work.microbatch = bounded("microbatch", kMaxMicrobatches);
    } else if (key == "gradient") {
      work.gradient = json.read_bool();
    } else if (key == "peer") {
      work.peer = static_cast<int>(json.read_int());
    } else {
      json.skip();
    }
  });
}

void read_event(JsonReader& json, Trace& trace) {
  TimedWork timed;
  std::string category;
  double duration = 0;
  std::string_view arguments;
  json.object([&](std::string_view key) {
    if (key == "cat") {
      json.read_string(category);
    } else if (key == "ts") {
      timed.start = 1e-3 * json.read_double();
    } else if (key == "dur") {
      duration = 1e-3 * json.read_double();
    } else if (key == "args") {
      arguments = json.skip();
    } else {
      json.skip();
    }
  });
  if (category != "schedule" || arguments.empty()) return;
  JsonReader reader(arguments, trace.name);
  read_work(reader, trace.name, timed.work);
  // The negated condition also rejects NaN.
  if (!(std::abs(timed.start) <= kLongest && duration >= 0 && duration <= kLongest)) {
    throw damaged(trace.name, fmt::format("a piece of work begins at {:.6g} ms and takes {:.6g} ms",
                                          timed.start, duration));
  }
  timed.end = timed.start + duration;
  trace.works.push_back(timed);
}

Trace read_trace(const Path& file) {
  Trace trace{.name = file.string()};
  const std::string text = read_file(file, kLargestTrace);
  JsonReader json(text, trace.name, {.hint = "name a trace that a training run wrote (profile: true)"});
  json.require(JsonReader::Kind::kObject, "a trace");
  json.object([&](std::string_view key) {
    if (key == "primus") {
      read_facts(json, trace);
    } else if (key == "traceEvents") {
      json.array([&] { read_event(json, trace); });
    } else {
      json.skip();
    }
  });
  json.finish();
  if (!engine::schedule_named(trace.schedule) || !sane(trace.stages, 1, 4096) ||
      !sane(trace.stage, 0, trace.stages - 1) || !sane(trace.chunks, 1, kMaxChunks) ||
      !sane(trace.microbatches, 1, kMaxMicrobatches) ||
      trace.stages * trace.chunks * trace.microbatches > kMaxWork) {
    throw invalid(fmt::format("'{}' is no trace of a training run", trace.name),
                  "train with profile=true profile_ranks=all, and name the run's folder");
  }
  for (const auto& [what, x, maximum] :
       {std::tuple("rank", trace.rank, kMaxRanks - 1),
        std::tuple("job", trace.job, std::numeric_limits<std::int64_t>::max()),
        std::tuple("first_step", trace.first_step, kLastStep)}) {
    if (!sane(x, 0, maximum)) throw damaged(trace.name, fmt::format("its {} is {}", what, x));
  }
  for (const TimedWork& t : trace.works) {
    if (t.work.chunk >= trace.chunks || t.work.microbatch >= trace.microbatches) {
      throw damaged(trace.name, fmt::format("chunk {} and microbatch {} are of another schedule",
                                            t.work.chunk, t.work.microbatch));
    }
  }
  return trace;
}

bool is_trace_name(const std::string& name) { return name.starts_with("rank-") && name.ends_with(".json"); }

std::vector<Path> files_in(const Path& folder) {
  std::vector<Path> files;
  for (const std::string& name : Env::posix().list(folder)) {
    if (is_trace_name(name)) files.push_back(folder / name);
  }
  return files;
}

// Returns the trace files that `name` refers to.
std::vector<Path> files_of(const Path& name) {
  const auto status = Env::posix().status(name);
  if (!status)
    throw invalid(fmt::format("there is no '{}'", name.string()), "name a run's folder, or traces");
  if (status->type != FileStatus::Type::kFolder) return {name};
  std::vector<Path> files = files_in(name);
  if (!files.empty()) return files;
  // For a run folder, or for a run's folder of traces, uses the newest traces.
  const Path traces = Env::posix().status(name / "traces") ? name / "traces" : name;
  std::optional<std::filesystem::file_time_type> newest;
  for (const std::string& steps : Env::posix().list(traces)) {
    if (!steps.starts_with("steps-")) continue;
    const std::vector<Path> found = files_in(traces / steps);
    if (found.empty()) continue;
    const auto written = std::filesystem::last_write_time(traces / steps);
    if (newest && written < *newest) continue;
    newest = written;
    files = found;
  }
  if (files.empty()) {
    throw invalid(fmt::format("'{}' holds no traces", name.string()),
                  "train with profile=true profile_ranks=all, which writes them");
  }
  return files;
}

// Returns for each stage the trace of its first rank in the newest run.
std::map<std::int64_t, Trace> choose(std::vector<Trace> traces, std::vector<std::string>& notes) {
  std::int64_t newest = 0;
  for (const Trace& trace : traces) newest = std::max(newest, trace.job);
  std::map<std::int64_t, Trace> chosen;
  for (Trace& trace : traces) {
    if (trace.job != newest) {
      notes.push_back(fmt::format("'{}' is of an earlier run, and is left out", trace.name));
      continue;
    }
    if (!chosen.empty() && chosen.begin()->second.pipeline() != trace.pipeline()) {
      throw invalid(
          fmt::format("'{}' and '{}' are of different pipelines", chosen.begin()->second.name, trace.name),
          "name the traces of one run");
    }
    const auto [at, added] = chosen.try_emplace(trace.stage, trace);
    if (!added && trace.rank < at->second.rank) at->second = std::move(trace);
  }
  std::vector<std::int64_t> missing;
  for (std::int64_t stage = 0; stage < chosen.begin()->second.stages; ++stage) {
    if (!chosen.contains(stage)) missing.push_back(stage);
  }
  if (!missing.empty()) {
    throw invalid(fmt::format("there is no trace of stage {}", fmt::join(missing, ", ")),
                  "train with profile_ranks=all, or with a rank of each stage");
  }
  return chosen;
}

// Splits a trace into steps: the i-th occurrence of each piece of work belongs to step i.
std::vector<std::vector<TimedWork>> steps_of(const Trace& trace) {
  std::map<std::tuple<Kind, int, std::int64_t, bool>, std::size_t> seen;
  std::vector<std::vector<TimedWork>> steps;
  for (const TimedWork& timed : trace.works) {
    const Work& w = timed.work;
    const std::size_t step = seen[{w.kind, w.chunk, w.microbatch, w.gradient}]++;
    if (step == steps.size()) steps.emplace_back();
    steps[step].push_back(timed);
  }
  return steps;
}

// Returns a short text of the number: "0.0123", "12.3", "12345".
std::string number(double x) { return x >= 1000 ? fmt::format("{:.0f}", x) : fmt::format("{:.3g}", x); }

double mean(const engine::PipelineTimeline& timeline, Kind kind) {
  double sum = 0;
  std::int64_t count = 0;
  for (const auto& stage : timeline.stages) {
    for (const TimedWork& t : stage) {
      if (t.work.kind != kind) continue;
      sum += t.end - t.start;
      ++count;
    }
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// Computes the mean time of transfers, and the maximum time by which a transfer seems to arrive before it was
// sent.
void measure_transfers(MeasuredPipeline& result) {
  const engine::PipelineShape& shape = result.measured.schedule.shape;
  // The sends. Key: the part that produced the tensor, the microbatch, and the direction.
  std::map<std::tuple<int, std::int64_t, bool>, TimedWork> sends;
  const auto& stages = result.measured.timeline.stages;
  const auto part = [&](std::size_t stage, const Work& work) {
    return shape.part(static_cast<int>(stage), work.chunk);
  };
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const TimedWork& t : stages[s]) {
      if (t.work.kind == Kind::kSend) sends[{part(s, t.work), t.work.microbatch, t.work.gradient}] = t;
    }
  }
  double sum = 0;
  std::int64_t count = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const TimedWork& t : stages[s]) {
      if (t.work.kind != Kind::kReceive) continue;
      const int from = part(s, t.work) + (t.work.gradient ? 1 : -1);
      const auto sent = sends.find({from, t.work.microbatch, t.work.gradient});
      if (sent == sends.end()) continue;
      sum += std::max(0.0, t.end - std::max(t.start, sent->second.start));
      ++count;
      result.clocks_apart = std::max(result.clocks_apart, sent->second.start - t.end);
    }
  }
  if (count > 0) result.transfer = sum / static_cast<double>(count);
}

}  // namespace

MeasuredPipeline measure_pipeline(const std::vector<std::string>& names, std::optional<std::int64_t> step) {
  MeasuredPipeline result;
  std::vector<Trace> traces;
  std::set<Path> read;
  for (const std::string& name : names) {
    for (const Path& file : files_of(name)) {
      if (read.insert(file).second) traces.push_back(read_trace(file));
    }
  }
  const std::map<std::int64_t, Trace> stages = choose(std::move(traces), result.notes);
  const Trace& first = stages.begin()->second;
  const engine::ScheduleKind kind = *engine::schedule_named(first.schedule);
  PipelinePlan& measured = result.measured;
  measured.schedule = engine::make_schedule(kind, static_cast<int>(first.stages),
                                            static_cast<int>(first.chunks), first.microbatches);

  // Number of steps that every stage completed.
  std::size_t steps = SIZE_MAX;
  std::vector<std::vector<std::vector<TimedWork>>> works;  // indexed by stage and step
  for (const auto& [stage, trace] : stages) {
    if (trace.first_step != first.first_step)
      throw invalid(fmt::format("'{}' and '{}' begin with different steps", first.name, trace.name));
    const std::size_t expected = measured.schedule.stages[static_cast<std::size_t>(stage)].size();
    works.push_back(steps_of(trace));
    const auto torn = std::ranges::find_if(works.back(), [&](const auto& w) { return w.size() != expected; });
    steps = std::min(steps, static_cast<std::size_t>(torn - works.back().begin()));
    result.ranks.push_back(static_cast<int>(trace.rank));
  }
  if (steps == 0)
    throw invalid(fmt::format("'{}' holds no whole step of the schedule '{}'", first.name, first.schedule),
                  "trace more steps (profile_step_end)");
  result.first_step = first.first_step;
  result.last_step = first.first_step + static_cast<std::int64_t>(steps) - 1;
  result.step = step.value_or(result.last_step);
  if (result.step < result.first_step || result.step > result.last_step) {
    throw invalid(fmt::format("step {} is not in the traces", result.step),
                  fmt::format("they hold steps {} to {}", result.first_step, result.last_step));
  }

  engine::PipelineTimeline& timeline = measured.timeline;
  double origin = 0;
  bool any = false;
  for (auto& all : works) {
    auto& shown = timeline.stages.emplace_back(
        std::move(all[static_cast<std::size_t>(result.step - result.first_step)]));
    std::ranges::stable_sort(shown, {}, &TimedWork::start);
    for (const TimedWork& t : shown) {
      if (!t.work.transfer()) origin = std::exchange(any, true) ? std::min(origin, t.start) : t.start;
    }
  }
  for (auto& stage : timeline.stages) {
    for (TimedWork& t : stage) {
      t.start -= origin;
      t.end -= origin;
    }
  }
  engine::summarize(timeline, engine::traits_of(kind).splits_backward);
  if (timeline.makespan < kShortest)
    throw damaged(first.name, fmt::format("the work of step {} takes no time", result.step));
  measured.costs = {.forward = mean(timeline, Kind::kForward),
                    .backward = mean(timeline, Kind::kBackward),
                    .weight = mean(timeline, Kind::kWeight)};
  result.generated = measured;
  result.generated.timeline = engine::simulate(measured.schedule, measured.costs);
  measure_transfers(result);
  return result;
}

std::string to_text(const MeasuredPipeline& p, std::size_t width) {
  using namespace drawing;
  const engine::PipelineTimeline &measured = p.measured.timeline, &generated = p.generated.timeline;
  const std::size_t room = std::max<std::size_t>(width, kMargin + 20) - kMargin;
  const double per_column = std::max(measured.makespan, generated.makespan) / static_cast<double>(room);
  const auto rows = [&](const engine::PipelineTimeline& timeline) {
    return text_rows(timeline, static_cast<std::size_t>(timeline.makespan / per_column + 0.5), per_column,
                     Labels::kWhereTheyFit);
  };
  std::string text = title_of(p.measured) + "\n\n";
  text += fmt::format("step {} as it ran, on {} {}\n", p.step, noun_for(std::ssize(p.ranks), "rank"),
                      fmt::join(p.ranks, " "));
  text += rows(measured) + "\nthe schedule, if all work took the mean times and transfers none\n";
  text += rows(generated);
  text += fmt::format("\n{}, with the number of the microbatch where it fits\n", legend_of(p.measured));
  text += fmt::format("{:<13}{:>10}{:>10}\n", "", "measured", "schedule");
  text += fmt::format("{:<13}{:>10}{:>10}   % of all stages' time\n", "bubble",
                      fmt::format("{:.1f}", 100 * measured.bubble),
                      fmt::format("{:.1f}", 100 * generated.bubble));
  text +=
      fmt::format("{:<13}{:>10}{:>10}   ms\n", "time", number(measured.makespan), number(generated.makespan));
  const bool splits = engine::traits_of(p.measured.schedule.kind).splits_backward;
  text += fmt::format("work         F {} ms, B {} ms{}\n", number(p.measured.costs.forward),
                      number(p.measured.costs.backward),
                      splits ? fmt::format(", W {} ms", number(p.measured.costs.weight)) : "");
  if (p.ranks.size() > 1)
    text += fmt::format("transfer     {} ms, from when both sides are ready\n", number(p.transfer));
  if (p.clocks_apart > 0) {
    text += fmt::format(
        "clocks       the hosts' clocks differ by {} ms or more, so rows may be shifted by as much\n",
        number(p.clocks_apart));
  }
  return text;
}

std::string to_svg(const MeasuredPipeline& p) {
  using namespace drawing;
  const engine::PipelineTimeline &measured = p.measured.timeline, &generated = p.generated.timeline;
  const double scale = svg_scale(std::max(measured.makespan, generated.makespan));
  const double block = kRow * static_cast<double>(measured.stages.size());
  const double second = kTop + 24 + block + 46, height = second + block + 50;
  return svg_begin(height, title_of(p.measured)) +
         svg_text(kTop + 12, fmt::format("step {} as it ran: {} ms, bubble {:.1f} %", p.step,
                                         number(measured.makespan), 100 * measured.bubble)) +
         svg_rows(measured, kTop + 24, scale) +
         svg_text(second - 12,
                  fmt::format("the schedule, if all work took the mean times and transfers none: "
                              "{} ms, bubble {:.1f} %",
                              number(generated.makespan), 100 * generated.bubble)) +
         svg_rows(generated, second, scale) + svg_text(height - 18, legend_of(p.measured)) + svg_end();
}

std::string to_json(const MeasuredPipeline& p) {
  return fmt::format(
      "{{\"step\": {}, \"ranks\": [{}], \"transfer\": {}, \"clocks_apart\": {},\n\"measured\": {},\n"
      "\"generated\": {}}}\n",
      p.step, fmt::join(p.ranks, ", "), p.transfer, p.clocks_apart, to_json(p.measured),
      to_json(p.generated));
}

}  // namespace primus
