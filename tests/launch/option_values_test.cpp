// Tests of the checks of option values for Slurm, containers and Kubernetes.
#include "launch/options/option_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "launch/options/tables.h"
#include "option_samples.h"

namespace primus::launch {
namespace {

using test::OptionSample;
using ::testing::HasSubstr;

void expect_as(ForeignTable table, const std::string& tool, const std::vector<OptionSample>& samples) {
  for (const OptionSample& sample : samples) {
    const ForeignOption* const option = find_option(table, sample.option, tool);
    ASSERT_NE(option, nullptr) << sample.option;
    for (const std::string& value : sample.taken)
      EXPECT_EQ(misfit(option->form, value), std::nullopt) << tool << " --" << sample.option << "=" << value;
    for (const std::string& value : sample.refused) {
      EXPECT_NE(misfit(option->form, value), std::nullopt) << tool << " --" << sample.option << "=" << value;
      EXPECT_THROW(read_options(table, std::vector<std::string>{"--" + sample.option + "=" + value}, tool),
                   Error);
    }
  }
}

TEST(OptionValues, AreAcceptedAsByTheTools) {
  expect_as(slurm_options(), "srun", test::srun_samples());
  expect_as(slurm_options(), "sbatch", test::sbatch_samples());
  expect_as(container_options(), "docker", test::container_samples());
}

// Values that only later versions of Slurm support are accepted.
TEST(OptionValues, OfNewerToolVersionsAreAccepted) {
  for (const char* nodes : {"1,2,4", "2-8:2"}) EXPECT_EQ(misfit(Form::kNodes, nodes), std::nullopt) << nodes;
  EXPECT_EQ(misfit(find_option(slurm_options(), "exclusive")->form, "topo"), std::nullopt);
}

TEST(OptionValues, FollowKubernetes) {
  for (const char* quantity : {"1", "1.5", "500m", "128Gi", "64G", "1e9", "1E3", "0.5", "2Ti"})
    EXPECT_EQ(misfit(Form::kQuantity, quantity), std::nullopt) << quantity;
  for (const char* quantity : {"two", "128GB", "128gi", "1.2.3", "", "Gi", "-1", "1 Gi"})
    EXPECT_NE(misfit(Form::kQuantity, quantity), std::nullopt) << quantity;
  for (const char* name : {"team-a", "a.b.c", "0a"})
    EXPECT_EQ(misfit(Form::kDnsName, name), std::nullopt) << name;
  for (const char* name : {"Team", "a_b", "-a", "a..b", ""})
    EXPECT_NE(misfit(Form::kDnsName, name), std::nullopt) << name;
  for (const char* label : {"kubernetes.io/hostname", "rack", "a.b/c_d.E"})
    EXPECT_EQ(misfit(Form::kLabelName, label), std::nullopt) << label;
  for (const char* label : {"a/b/c", "/rack", "A/b", "rack-"})
    EXPECT_NE(misfit(Form::kLabelName, label), std::nullopt) << label;
  for (const char* image :
       {"a/b:1", "rocm/primus:v26.8", "localhost:5000/a/b", "ghcr.io:1/own.er/x@sha256:0123", "x",
        "docker://a/b", "my.sif", "./folder", "registry:5000/a/b:tag"})
    EXPECT_EQ(misfit(Form::kImage, image), std::nullopt) << image;
  for (const char* image : {"A/b:1", "a b", "a:", "", "a//b"})
    EXPECT_NE(misfit(Form::kImage, image), std::nullopt) << image;
}

TEST(OptionValues, ErrorsNameTheExpectedFormAndTheLocation) {
  const auto said = [](const std::vector<std::string>& words) {
    try {
      read_options(slurm_options(), words, "srun");
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(said({"-N", "two"}),
              HasSubstr("-N of srun must be a number of nodes, such as 4, 2-4 or 1k, not 'two'"));
  EXPECT_THAT(said({"-tabc"}), HasSubstr("-t of srun must be a duration"));
  EXPECT_THAT(said({"--mem", "64X"}), HasSubstr("--mem of srun must be a size"));
  EXPECT_THAT(said({"--hint=x"}), HasSubstr("one of compute_bound, memory_bound, multithread"));
}

// One-letter switches may be combined in one argument (-vvv). Switches may be turned off (--init=false).
TEST(OptionValues, SwitchesAreParsedAsByGetopt) {
  const auto words = [](ForeignTable table, const std::vector<std::string>& given, const char* tool) {
    std::string text;
    for (const GivenOption& option : read_options(table, given, tool)) text += written(option) + " ";
    return text;
  };
  EXPECT_EQ(words(slurm_options(), {"-vvv", "-lN2", "-K"}, "srun"),
            "--verbose --verbose --verbose --label --nodes=2 --kill-on-bad-exit ");
  EXPECT_EQ(words(container_options(), {"-it", "--init=false", "--privileged=true"}, "docker"),
            "--interactive --tty --privileged ");
  // --wait has a value in srun, but none in sbatch.
  EXPECT_EQ(words(slurm_options(), {"--wait", "-N2"}, "sbatch"), "--wait --nodes=2 ");
  EXPECT_EQ(words(slurm_options(), {"-W", "5"}, "srun"), "--wait=5 ");
}

}  // namespace
}  // namespace primus::launch
