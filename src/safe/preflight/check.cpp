#include "safe/preflight/check.h"

#include <algorithm>
#include <map>

namespace primus::preflight {

#include "safe/preflight/checks.def"  // generated: kAllCheck

namespace {

using Checks = std::map<std::string_view, std::vector<Check>>;

// Returns all checks by group. The map is a local static variable, because the entries of other files may be
// initialized later than a global variable of this file.
const Checks& checks_by_group() {
  static const Checks all = [] {
    Checks found;
    for (const Check* entry : kAllCheck)
      found[entry->group.empty() ? entry->category : entry->group].push_back(*entry);
    return found;
  }();
  return all;
}

bool is_demanded(const Check& check, const Requirements& wanted) {
  if (check.threshold.field && wanted.*check.threshold.field) return true;
  return check.demanded && check.demanded(wanted);
}

}  // namespace

std::span<const Check> checks_of(std::string_view group) {
  const auto found = checks_by_group().find(group);
  return found == checks_by_group().end() ? std::span<const Check>() : found->second;
}

std::span<const ThresholdOption> threshold_options() {
  static const std::vector<ThresholdOption> all = [] {
    std::vector<ThresholdOption> options;
    for (const auto& [group, checks] : checks_by_group())
      for (const Check& check : checks)
        if (check.threshold.field) options.push_back(check.threshold);
    std::ranges::sort(options, {}, &ThresholdOption::place);
    return options;
  }();
  return all;
}

CheckInput without_machine() {
  static const Machine machine;
  static const Inventory found;
  static const Requirements wanted;
  return {machine, found, wanted};
}

bool any_demanded(const Requirements& wanted) {
  return std::ranges::any_of(checks_by_group(), [&](const auto& group) {
    return std::ranges::any_of(group.second, [&](const Check& check) { return is_demanded(check, wanted); });
  });
}

void run_checks(std::span<const Check> checks, const CheckInput& input, std::vector<Finding>& findings,
                bool only_demanded) {
  for (const Check& check : checks) {
    if (only_demanded && !is_demanded(check, input.wanted)) continue;
    Judge judge(check.name, check.category, findings);
    try {
      check.judge(input, judge);
      if (judge.silent() && !check.may_be_silent) {
        judge.fail(
            {.measured = "the check ended without a verdict", .fix = "report this as a bug of primus"});
      }
    } catch (const std::exception& error) {
      judge.fail({.measured = std::string("the check failed: ") + error.what(),
                  .fix = "fix the cause that the message names, and run preflight again"});
    }
  }
}

}  // namespace primus::preflight
