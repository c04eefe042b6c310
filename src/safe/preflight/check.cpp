#include "safe/preflight/check.h"

namespace primus::preflight {

void run_checks(std::span<const Check> checks, const CheckInput& input, std::vector<Finding>& findings) {
  for (const Check& check : checks) {
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
