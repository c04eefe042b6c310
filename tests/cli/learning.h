// Compares the final losses of low-precision runs with bf16 runs, over several seeds. Runs with the same seed
// have equal initial weights and batches, so they are compared in pairs. The permitted difference includes
// the measured spread of the pairs. Over seeds, losses spread by 3 %, and the differences of pairs by 0.7 %
// (fp8: hybrid, tensorwise) to 3.6 %.
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

  Learning() : text_(folder_.path() / "text.txt") {  // tokenized files are written next to it
    std::filesystem::copy_file(PRIMUS_SOURCE_DIR "/LICENSE", text_);
    // All tests of the program compare with the same runs.
    static const std::vector<double> bf16 = [this] {
      learn("bf16", {});
      return losses_["bf16"];
    }();
    losses_["bf16"] = bf16;
  }

  // Trains a small Llama on English text with each seed. `name` is the recipe's name.
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
      double sum = 0;  // mean of the last 40 steps
      for (int i = kSteps - 39; i <= kSteps; ++i) sum += steps.at(i).loss / 40;
      EXPECT_LT(sum, 0.7 * steps.at(1).loss) << run;
      losses_[name].push_back(sum);
    }
  }

  // Expects that each recipe's relative increase of the loss over bf16 is at most `loss` plus three standard
  // errors of the mean over seeds. The deviation is pooled over all recipes.
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
    EXPECT_LT(deviation, 0.06);  // a larger spread would make the bound useless
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
