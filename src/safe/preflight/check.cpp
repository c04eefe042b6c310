#include "safe/preflight/check.h"

#include <algorithm>

namespace primus::preflight {
namespace {

bool is_demanded(const Check& check, const Requirements& wanted) {
  return check.demanded && check.demanded(wanted);
}

}  // namespace

bool any_demanded(const Requirements& wanted) {
  const auto any_of = [&](std::span<const Check> checks) {
    return std::any_of(checks.begin(), checks.end(),
                       [&](const Check& check) { return is_demanded(check, wanted); });
  };
  return any_of(host_checks()) || any_of(gpu_checks()) || any_of(network_checks());
}

void run_checks(std::span<const Check> checks, const CheckInput& input, std::vector<Finding>& findings,
                bool only_demanded) {
  for (const Check& check : checks) {
    if (only_demanded && !is_demanded(check, input.wanted)) continue;
    Judge judge(check.name, check.category, findings);
    try {
      check.judge(input, judge);
      if (judge.silent()) {
        judge.fail({.measured = "the check came to no verdict", .fix = "report this as a bug of primus"});
      }
    } catch (const std::exception& error) {
      judge.fail({.measured = std::string("the check failed: ") + error.what(),
                  .fix = "see to what the message names, and run preflight again"});
    }
  }
}

}  // namespace primus::preflight
