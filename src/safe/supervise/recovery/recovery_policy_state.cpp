// Saving and restoring a RecoveryPolicy.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "safe/supervise/recovery/recovery_policy.h"

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

template <class T>
std::optional<T> optional_in(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<T>());
}

// Only what the policy compares with the next end.
Json json_of(const JobEnd& end) {
  return {{"kind", static_cast<int>(end.kind)}, {"rank", json_of(end.rank)}, {"node", json_of(end.node)},
          {"began", json_of(end.began)},        {"step", end.step},          {"text", end.text}};
}

JobEnd end_in(const Json& json) {
  JobEnd end;
  end.kind =
      static_cast<EndKind>(std::clamp(json.at("kind").get<int>(), 0, static_cast<int>(EndKind::kLostNode)));
  end.rank = optional_in<int>(json.at("rank"));
  end.node = optional_in<int>(json.at("node"));
  end.began = optional_in<std::int64_t>(json.at("began"));
  end.step = json.at("step").get<std::int64_t>();
  end.text = json.at("text").get<std::string>();
  return end;
}

}  // namespace

Json RecoveryPolicy::save(double to_unix) const {
  Json times = Json::array();
  for (const double time : times_) times.push_back(time + to_unix);
  return {{"restarts", restarts_},
          {"times", std::move(times)},
          {"newest", newest_},
          {"without_checkpoint", without_checkpoint_},
          {"same_rank", same_rank_},
          {"same", same_},
          {"last", last_ ? json_of(*last_) : Json()}};
}

void RecoveryPolicy::restore(const Json& saved, double to_unix) {
  RecoveryPolicy made(limits_);
  made.restarts_ = saved.at("restarts").get<std::int64_t>();
  for (const Json& time : saved.at("times")) made.times_.push_back(time.get<double>() - to_unix);
  made.newest_ = saved.at("newest").get<std::int64_t>();
  made.without_checkpoint_ = saved.at("without_checkpoint").get<int>();
  made.same_rank_ = saved.at("same_rank").get<int>();
  made.same_ = saved.at("same").get<int>();
  if (!saved.at("last").is_null()) made.last_ = end_in(saved.at("last"));
  *this = std::move(made);
}

}  // namespace primus::supervise
