// Whether runs in few bits learn as those in bf16 do, by the losses of several seeds: how far apart they may
// be follows from how far apart they are in the measure. Runs of one seed begin with the same weights and
// read the same batches, so they are compared in pairs. Losses of seeds spread by 3 %; differences of pairs
// by 0.7 % (fp8: hybrid, tensorwise) to 3.6 %.
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
  static constexpr int kSeeds = 4, kSteps = 100;

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
      double sum = 0;  // the mean of the last forty
      for (int i = kSteps - 39; i <= kSteps; ++i) sum += steps.at(i).loss / 40;
      EXPECT_LT(sum, 0.7 * steps.at(1).loss) << run;
      losses_[name].push_back(sum);
    }
  }

  // Each recipe's loss is at most `loss` above bf16's, as a share of it, and three standard errors of a mean
  // of so many pairs. The deviation is that of all pairs from their recipe's mean.
  void expect_near_bf16(double loss) const {
    const std::vector<double>& bf16 = losses_.at("bf16");
    std::map<std::string, double> means;
    double squares = 0, count = 0;
    for (const auto& [name, of_seeds] : losses_) {
      if (name == "bf16") continue;
      EXPECT_NE(of_seeds, bf16) << name;
      double& mean = means[name];
      const auto more = [&](std::size_t seed) { return of_seeds[seed] / bf16[seed] - 1; };
      for (std::size_t seed = 0; seed < kSeeds; ++seed) mean += more(seed) / kSeeds;
      for (std::size_t seed = 0; seed < kSeeds; ++seed) squares += (more(seed) - mean) * (more(seed) - mean);
      count += kSeeds - 1;
    }
    const double deviation = std::sqrt(squares / count), error = deviation / std::sqrt(kSeeds);
    EXPECT_LT(deviation, 0.06);  // or the bound would be none
    for (const auto& [name, mean] : means) {
      EXPECT_LE(mean, loss + 3 * error) << name;
      testing::Test::RecordProperty(name, std::to_string(mean) + " +- " + std::to_string(error));
    }
  }

 private:
  TemporaryFolder folder_;
  Path text_;
  std::map<std::string, std::vector<double>> losses_;
};

}  // namespace primus::test
