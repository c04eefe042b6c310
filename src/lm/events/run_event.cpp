#include "lm/events/run_event.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "lm/events/metrics_file.h"

namespace primus {
namespace {

using Json = nlohmann::ordered_json;

// The texts come from experiments and from the system. Invalid UTF-8 in a text must not stop the run.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

struct ToJson {
  bool first_rank;

  std::string operator()(const RunFacts& run) const {
    Json json{{"first_iteration", run.first_iteration}, {"trains", run.trains}};
    if (run.train_iters > 0) json["train_iters"] = run.train_iters;
    json["ranks"] = run.world;
    for (const auto& [key, text] : {std::pair("version", &run.version),
                                    {"model", &run.model},
                                    {"device", &run.device},
                                    {"compute", &run.compute},
                                    {"mesh", &run.mesh},
                                    {"host", &run.host},
                                    {"experiment", &run.experiment}}) {
      if (!text->empty()) json[key] = *text;
    }
    if (run.pid > 0) json["pid"] = run.pid;
    if (!run.state_from.empty()) json["state_from"] = run.state_from;
    if (run.parameters > 0) json["parameters"] = run.parameters;
    if (!run.job.empty()) json["job"] = Json::parse(run.job);
    return text_of(json);
  }
  std::string operator()(const PhaseFacts& phase) const {
    Json json{{"what", phase.what}};
    if (phase.share) json["share"] = *phase.share;
    return text_of(json);
  }
  std::string operator()(const IterationRecord& record) const {
    return first_rank ? to_json(record) : rank_json(record);
  }
  std::string operator()(const EvaluationStart& start) const {
    return text_of(Json{{"data_set", start.data_set}});
  }
  std::string operator()(const EvaluationRecord& record) const { return to_json(record); }
  std::string operator()(const SampleRecord& record) const { return to_json(record); }
  std::string operator()(const CheckpointFacts& checkpoint) const {
    using State = CheckpointFacts::State;
    return text_of(Json{{"state", checkpoint.state == State::kDurable    ? "durable"
                                  : checkpoint.state == State::kCopying  ? "copying"
                                  : checkpoint.state == State::kInMemory ? "in memory"
                                                                         : "saving"}});
  }
  std::string operator()(const RunWarning& warning) const { return to_json(warning); }
  std::string operator()(const FaultFacts& fault) const {
    Json json{{"text", fault.text}};
    if (!fault.first_operator.empty()) json["operator"] = fault.first_operator;
    return text_of(json);
  }
  std::string operator()(const StopFacts&) const { return "{}"; }
  std::string operator()(const RunEnding& ending) const { return to_json(ending); }
};

}  // namespace

std::string_view name_of(EventKind kind) {
  constexpr std::array<std::string_view, std::variant_size_v<RunEvent::Facts>> kNames = {
      "begin", "phase", "step", "evaluation_start", "evaluation", "sample", "checkpoint", "warning",
      "fault", "stop",  "end"};
  return kNames[static_cast<std::size_t>(kind)];
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || !is_plain_name(name.data())) return "localhost";
  return name.data();
}

std::string facts_json(const RunEvent& event) {
  return std::visit(ToJson{.first_rank = event.rank == 0}, event.facts);
}

}  // namespace primus
