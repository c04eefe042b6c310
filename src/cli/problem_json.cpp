#include "cli/problem_json.h"

#include <nlohmann/json.hpp>

#include "config/problems.h"

namespace primus::cli {
namespace {

const char* kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kInvalid:
      return "invalid";
    default:
      return "failure";
  }
}

nlohmann::json one(const Error& error) {
  return {{"error", error.what()},
          {"location", error.location()},
          {"hint", error.hint()},
          {"kind", kind_name(error.kind())}};
}

}  // namespace

nlohmann::json problem_json(const Error& error) {
  nlohmann::json json = one(error);
  json.erase("kind");
  json["exit_code"] = error.exit_code();
  json["problems"] = nlohmann::json::array();
  if (const auto* several = dynamic_cast<const config::SeveralProblems*>(&error)) {
    for (const Error& problem : several->problems()) json["problems"].push_back(one(problem));
    if (several->count() > several->problems().size())
      json["problems_left_out"] = several->count() - several->problems().size();
  } else {
    json["problems"].push_back(one(error));
  }
  return json;
}

}  // namespace primus::cli
