// Runs the checks of all operators (turbo/operator_checks.h).
#include "turbo/check.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "turbo/elementwise/elementwise.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {

#include "turbo/operator_checks.def"  // generated; defines kAllOperatorCheck

namespace {

TEST(CheckTest, EveryKernelRefusesWrongOperands) {
  std::set<KernelId> covered;
  for (const OperatorCheck* entry : kAllOperatorCheck) {
    SCOPED_TRACE(std::string(entry->folder));
    const std::unique_ptr<OperatorChecks> checks = entry->make();
    checks->run();
    covered.insert(checks->covered().begin(), checks->covered().end());
  }
#define PRIMUS_KERNEL(name)                     \
  EXPECT_TRUE(covered.count(KernelId::k##name)) \
      << #name << " has no check: give its operator's folder one, in checks.cpp";
#include "turbo/kernels.def"
#undef PRIMUS_KERNEL
}

class FillCheck final : public OperatorChecks {
 public:
  void run() override {
    EXPECT_EQ(refusal(Fill{.out = i32({3}), .value = 1}), "Fill: check failed: is_float(out)");
  }
};

TEST(CheckTest, TheMessageNamesKernelAndCondition) { FillCheck().run(); }

}  // namespace
}  // namespace primus::turbo::test
