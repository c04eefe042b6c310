// The options for several adapters on one base model, shared by the commands that use a trained model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/options/model_options.h"
#include "lm/generate/adapters.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::cli {

// A model that a command uses: the base model, or the base model with one of the adapters.
struct UsedModel : AdaptedModel {
  std::shared_ptr<const Tokenizer> tokenizer = {};
};

class AdapterArguments {
 public:
  // Declares --adapters.
  void declare(Arguments& arguments);
  // Declares --adapter; `help` says what the chosen model does.
  void declare_choice(Arguments& arguments, const std::string& help);

  // Returns whether there are adapters.
  bool given() const { return !adapters_.empty(); }
  // Returns the base model, which is named "base", and then its models with adapters. Writes warnings to the
  // console. Throws Error(kInvalid) for invalid or repeated names, and the errors of find_adapters().
  std::vector<UsedModel> models(const ModelArguments& model, const FamilyRegistry& families,
                                const Console& console) const;
  // Returns the number of the model with this name. `where`: location of the name for the error; may be
  // empty. Throws Error(kInvalid) if there is no such model.
  std::size_t find(std::string_view name, const std::string& where = {}) const;
  // Returns the numbers of the models that --adapter chooses; empty if it is not given.
  std::vector<std::size_t> chosen() const;
  // Returns all names, the base first.
  std::vector<std::string> names() const;

 private:
  // Splits NAME=FOLDER.
  static std::pair<std::string, std::string> parts_of(const std::string& given);

  std::vector<std::string> adapters_, chosen_;
};

// Loads the weights of `models`. `store(i)` is the store of model i.
template <class Store>
void load_weights_of(const std::vector<UsedModel>& models, const Store& store, engine::Rank& rank) {
  std::vector<engine::ParameterStore*> stores;
  for (std::size_t i = 0; i < models.size(); ++i) stores.push_back(&store(i));
  load_shared_weights(std::vector<AdaptedModel>(models.begin(), models.end()), stores, rank);
}

// Returns the architectures of the models.
std::vector<ModelConfig> configs_of(const std::vector<UsedModel>& models);

}  // namespace primus::cli
