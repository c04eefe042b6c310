// primus model info
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/generate/model_folder.h"

namespace primus::cli {
namespace {

struct Weights {
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
  std::map<std::string, std::int64_t> by_type;  // elements
};

Weights count(const SafetensorsFolder& folder) {
  Weights w;
  for (std::size_t i = 0; i < folder.size(); ++i) {
    const TensorView tensor = folder[i];
    const auto bytes = static_cast<std::int64_t>(tensor.data.size());
    const std::int64_t elements = bytes / size_of(tensor.dtype);
    ++w.tensors;
    w.parameters += elements;
    w.bytes += bytes;
    w.by_type[std::string(name_of(tensor.dtype))] += elements;
  }
  return w;
}

class ModelInfo final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("MODEL", &folder_, "a Hugging Face folder, a checkpoint, or the folder of a run");
    args.flag("--tensors", tensors_, "list every tensor");
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    const FamilyRegistry families = builtin_families();
    const ModelFolder folder = find_model_folder(folder_);
    const ModelConfig config = load_model_config(folder, families);
    const SafetensorsFolder weights = SafetensorsFolder::open(folder.path);
    for (const std::string& warning : weights.warnings()) console.note("warning: " + warning);
    const Weights total = count(weights);
    console.print(json_ ? json(folder, config, weights, total) : text(folder, config, weights, total));
    return 0;
  }

 private:
  std::string text(const ModelFolder& folder, const ModelConfig& c, const SafetensorsFolder& weights,
                   const Weights& total) const {
    std::string out;
    auto line = [&](std::string_view what, const std::string& value) {
      out += fmt::format("{:<16}{}\n", what, value);
    };
    line("folder", folder.path.string());
    if (folder.iteration) line("iteration", fmt::format("{}", *folder.iteration));
    line("family", c.family);
    line("parameters",
         fmt::format("{} ({})", human_count(static_cast<double>(total.parameters)), total.parameters));
    line("layers", fmt::format("{}", c.layers));
    line("hidden", fmt::format("{}, feed-forward {}", c.hidden, c.ffn));
    line("heads", fmt::format("{} of {}, {} key/value", c.heads, c.head_dim, c.kv_heads));
    line("vocabulary", fmt::format("{}{}", c.vocab, c.tied_embeddings ? ", head tied to the embedding" : ""));
    line("positions", fmt::format("{}, rope theta {}, scaling {}", c.max_positions, c.rope_theta,
                                  name_of(c.rope_scaling.kind)));
    std::string types;
    for (const auto& [type, elements] : total.by_type) {
      types +=
          fmt::format("{}{} {}", types.empty() ? "" : ", ", human_count(static_cast<double>(elements)), type);
    }
    line("weights", fmt::format("{} tensors in {} files, {}: {}", total.tensors, weights.files().size(),
                                human_bytes(static_cast<double>(total.bytes)), types));
    if (tensors_) {
      out += "\n";
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const TensorView t = weights[i];
        out += fmt::format("{:<56} {:<5} {}\n", t.name, name_of(t.dtype), shape_text(t.shape));
      }
    }
    return out;
  }

  std::string json(const ModelFolder& folder, const ModelConfig& c, const SafetensorsFolder& weights,
                   const Weights& total) const {
    nlohmann::json json{{"folder", folder.path.string()},
                        {"family", c.family},
                        {"parameters", total.parameters},
                        {"layers", c.layers},
                        {"hidden", c.hidden},
                        {"ffn", c.ffn},
                        {"heads", c.heads},
                        {"kv_heads", c.kv_heads},
                        {"head_dim", c.head_dim},
                        {"vocab", c.vocab},
                        {"max_positions", c.max_positions},
                        {"rope_theta", c.rope_theta},
                        {"rope_scaling", name_of(c.rope_scaling.kind)},
                        {"tied_embeddings", c.tied_embeddings},
                        {"tensors", total.tensors},
                        {"files", weights.files().size()},
                        {"bytes", total.bytes},
                        {"elements_by_type", total.by_type}};
    if (folder.iteration) json["iteration"] = *folder.iteration;
    if (tensors_) {
      json["tensor_list"] = nlohmann::json::array();
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const TensorView t = weights[i];
        json["tensor_list"].push_back({{"name", t.name},
                                       {"type", name_of(t.dtype)},
                                       {"shape", std::vector<std::int64_t>(t.shape.begin(), t.shape.end())}});
      }
    }
    return json.dump(2) + "\n";
  }

  std::string folder_;
  bool tensors_ = false, json_ = false;
};

}  // namespace

const CommandEntry kModelInfo{"model info",
                              "Shows what a model folder or checkpoint holds",
                              {},
                              "primus model info Llama-3.2-1B\n"
                              "primus model info output/primus/root/quickstart --tensors",
                              make_command<ModelInfo>};

}  // namespace primus::cli
