#include "lm/checkpoint/checkpoint_group.h"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files/file.h"

namespace primus {
namespace {

using nlohmann::json;

// Encodes the outcome of a rank, which is a result or an error.
std::string encode(const std::string& result) { return "+" + result; }
std::string encode(const Error& error) {
  return "-" + json{{"kind", static_cast<int>(error.kind())},
                    {"what", error.what()},
                    {"hint", error.hint()},
                    {"location", error.location()},
                    {"code", file_code_of(error)}}
                   .dump(-1, ' ', false, json::error_handler_t::replace);
}

bool is_error(const std::string& text) { return text.starts_with("-"); }

GroupError decode_error(const std::string& text, const std::string& prefix) {
  const json error = json::parse(text.substr(1));
  GroupError result(static_cast<ErrorKind>(error.at("kind").get<int>()),
                    prefix + error.at("what").get<std::string>(), error.at("hint").get<std::string>(),
                    error.at("code").get<int>());
  if (const auto location = error.at("location").get<std::string>(); !location.empty()) result.at(location);
  return result;
}

template <class Action>
std::string outcome_of(const Action& action) {
  try {
    return encode(action());
  } catch (const Error& error) {
    return encode(error);
  } catch (const std::bad_alloc&) {
    return encode(
        Error(ErrorKind::kIo, "not enough memory to write a checkpoint", "free memory on this machine"));
  }
}

}  // namespace

int file_code_of(const Error& error) {
  if (const auto* file = dynamic_cast<const FileError*>(&error)) return file->code();
  if (const auto* group = dynamic_cast<const GroupError*>(&error)) return group->file_code();
  return 0;
}

std::string in_step(CheckpointGroup& group, const std::function<std::string()>& work,
                    const std::function<std::string(const std::vector<std::string>&)>& conclude,
                    const std::function<void(const Error&)>& failed) {
  if (group.size() == 1) {
    try {
      return conclude({work()});
    } catch (const Error& error) {
      if (failed) failed(error);
      throw;
    }
  }
  std::vector<std::string> outcomes = group.gather(outcome_of(work));
  std::string verdict;
  if (group.rank() == 0) {
    verdict = outcome_of([&] {
      try {
        for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
          if (is_error(outcomes[rank])) throw decode_error(outcomes[rank], fmt::format("rank {}: ", rank));
          outcomes[rank].erase(0, 1);
        }
        return conclude(outcomes);
      } catch (const Error& error) {
        if (failed) failed(error);
        throw;
      }
    });
  }
  verdict = group.broadcast(verdict);
  if (is_error(verdict)) throw decode_error(verdict, "");
  return verdict.substr(1);
}

}  // namespace primus
