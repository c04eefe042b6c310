#include "cli/options/side_by_side.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "launch/node/node.h"
#include "safe/preflight/machine.h"

namespace primus::cli {
namespace {

// "task/0/2", set by the starter of a job for its ranks.
constexpr const char* kSideBySideVariable = "PRIMUS_SIDE_BY_SIDE";

std::int64_t number_in(const std::string& name, const std::string& text, std::int64_t minimum) {
  constexpr std::int64_t kMax = 1 << 30;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum || value > kMax)
    throw invalid(fmt::format("{}='{}' is not a number from {} to {}", name, text, minimum, kMax),
                  "set it to one, or unset it");
  return value;
}

// Returns the place given by two variables; nullopt if one of them is unset or there is only one process.
std::optional<SideBySide> place_of(const launch::Surroundings& surroundings, const char* number,
                                   const char* count, const char* what) {
  const auto mine = surroundings.setting(number), all = surroundings.setting(count);
  if (!mine || !all) return std::nullopt;
  const SideBySide place{
      .number = number_in(number, *mine, 0), .of = number_in(count, *all, 1), .what = what};
  if (place.number >= place.of)
    throw invalid(fmt::format("{}={} is not below {}={}", number, *mine, count, *all));
  return place.single() ? std::nullopt : std::optional(place);
}

constexpr std::pair<const char*, const char*> kRanks[] = {{"RANK", "WORLD_SIZE"},
                                                          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}};

}  // namespace

std::string SideBySide::text() const { return fmt::format("{} {} of {}", what, number, of); }

SideBySide side_by_side(const launch::Surroundings& surroundings) {
  for (const auto& [rank, world] : kRanks)
    if (const auto place = place_of(surroundings, rank, world, "rank")) return *place;
  if (const auto task = launch::task_of_step(surroundings)) return {.number = task->task, .of = task->tasks};
  if (const auto place = place_of(surroundings, "PMI_RANK", "PMI_SIZE", "rank")) return *place;
  return place_of(surroundings, "NODE_RANK", "NNODES", "node").value_or(SideBySide{});
}

SideBySide jobs_side_by_side(const launch::Surroundings& surroundings, std::int64_t nodes) {
  for (const auto& [rank, world] : kRanks) {
    if (!place_of(surroundings, rank, world, "rank")) continue;
    const std::vector<std::string> reported =
        preflight::split_text(surroundings.setting(kSideBySideVariable).value_or(""), '/');
    if (reported.size() != 3) return {};
    return {.number = number_in(kSideBySideVariable, reported[1], 0),
            .of = number_in(kSideBySideVariable, reported[2], 1),
            .what = reported[0]};
  }
  return nodes > 1 ? SideBySide{} : side_by_side(surroundings);
}

std::map<std::string, std::string> for_ranks(const SideBySide& place) {
  if (place.single()) return {};
  return {{kSideBySideVariable, fmt::format("{}/{}/{}", place.what, place.number, place.of)}};
}

std::string own_name(const std::string& name, const SideBySide& place) {
  if (place.single() || name.empty()) return name;
  return fmt::format("{}.{}-of-{}", name, place.number, place.of);
}

std::string own_file(const std::string& file, const SideBySide& place) {
  const std::string end = Path(file).extension();
  return place.single() ? file : own_name(file.substr(0, file.size() - end.size()), place) + end;
}

bool has_own_files(const std::string& file) {
  const Path path(file), folder = path.has_parent_path() ? path.parent_path() : Path(".");
  if (!Env::posix().status(folder)) return false;
  const std::string end = path.extension(), first = path.stem().string() + ".";
  for (const std::string& name : Env::posix().list(folder)) {
    if (!name.starts_with(first) || !name.ends_with(end) || name.size() < first.size() + end.size()) continue;
    const std::string between = name.substr(first.size(), name.size() - first.size() - end.size());
    const std::size_t at = between.find("-of-");
    const auto is_number = [](const std::string& text) {
      return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    };
    if (at != std::string::npos && is_number(between.substr(0, at)) && is_number(between.substr(at + 4)))
      return true;
  }
  return false;
}

}  // namespace primus::cli
