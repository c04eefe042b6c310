// Whether runs in few bits learn as those in bf16 do, by the losses of several seeds: how far apart they may
// be follows from how far apart seeds are.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"

namespace primus::test {

class Learning {
 public:
  static constexpr int kSeeds = 6, kSteps = 150;

  Learning() : text_(folder_.path() / "text.txt") {  // what is made of it lies beside it
    std::filesystem::copy_file(PRIMUS_SOURCE_DIR "/LICENSE", text_);
    learn("bf16", {});
  }

  // Trains a small Llama on English text with each seed. Names are those of recipes.
  void learn(const std::string& name, const std::vector<std::string>& recipe) {
    for (int seed = 1; seed <= kSeeds; ++seed) {
      const std::string run = name + "-" + std::to_string(seed);
      std::vector<std::string> words{"exp_name=" + run,
                                     "bf16=true",
                                     "data_path=" + text_.string(),
                                     "train_iters=" + std::to_string(kSteps),
                                     "lr=0.003",
                                     "seed=" + std::to_string(seed)};
      words.insert(words.end(), recipe.begin(), recipe.end());
      const ProgramResult result = run_program(train(folder_.path(), words));
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const auto steps = losses(run_folder(folder_.path(), run));
      ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps));
      // The mean of the last twenty: one batch is not the other.
      double sum = 0;
      for (int i = kSteps - 19; i <= kSteps; ++i) sum += steps.at(i).loss / 20;
      EXPECT_LT(sum, 0.7 * steps.at(1).loss) << run;
      losses_[name].push_back(sum);
    }
  }

  // The mean loss of each recipe is at most `loss` above bf16's, as a share of it, and three standard errors
  // of the difference of two means of so many seeds. The deviation is that of all runs from their recipes'
  // means.
  void expect_near_bf16(double loss) const {
    std::map<std::string, double> means;
    double squares = 0, count = 0;
    for (const auto& [name, of_seeds] : losses_) {
      double& mean = means[name];
      for (const double x : of_seeds) mean += x / kSeeds;
      for (const double x : of_seeds) squares += (x / mean - 1) * (x / mean - 1);
      count += kSeeds - 1;
    }
    const double deviation = std::sqrt(squares / count), error = deviation * std::sqrt(2.0 / kSeeds);
    EXPECT_LT(deviation, 0.06);  // or the bound would be none
    for (const auto& [name, mean] : means) {
      const double more = mean / means.at("bf16") - 1;
      EXPECT_LE(more, loss + 3 * error) << name;
      if (name != "bf16") {
        EXPECT_NE(losses_.at(name), losses_.at("bf16")) << name;
      }
      testing::Test::RecordProperty(name, std::to_string(more) + " +- " + std::to_string(error));
    }
  }

 private:
  TemporaryFolder folder_;
  Path text_;
  std::map<std::string, std::vector<double>> losses_;
};

}  // namespace primus::test
