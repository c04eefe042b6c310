// Tests that a new part (a command, an operator, an optimizer and so on) touches few files (docs/extending.md
// has the table). The rest of the program does not contain the name of the part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace primus {
namespace {

namespace fs = std::filesystem;
using ::testing::UnorderedElementsAreArray;

// Returns all sources of src/ without "//" comments, the scripts that build and check GPU kernels, and the
// tables of other frameworks. All of these could list a new part.
const std::map<std::string, std::string>& sources() {
  static const std::map<std::string, std::string> all = [] {
    const fs::path root(PRIMUS_SOURCE_DIR);
    const std::set<std::string> extensions = {".cpp", ".h", ".cu", ".def", ".txt"};
    std::map<std::string, std::string> found;
    const auto read = [&](const fs::path& path, const fs::path& from) {
      std::ifstream file(path);
      std::string& text = found[fs::relative(path, from).string()];
      for (std::string line; std::getline(file, line);) text += line.substr(0, line.find("//")) + "\n";
      EXPECT_FALSE(text.empty()) << path;
    };
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / "src"))
      if (extensions.contains(entry.path().extension())) read(entry.path(), root / "src");
    for (const char* script : {"scripts/build-gpu.sh", "scripts/gpu_check.sh"}) read(root / script, root);
    for (const char* framework : {"megatron", "torchtitan", "maxtext"})
      read(root / "presets/backends" / framework / "keys.yaml", root);
    return found;
  }();
  return all;
}

bool has_word(const std::string& text, const std::string& word) {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_letter(text[at - 1])) && (end == text.size() || !is_letter(text[end]))) return true;
  }
  return false;
}

std::set<std::string> files_with(const std::string& word, const std::string& folder = "") {
  std::set<std::string> files;
  for (const auto& [path, text] : sources()) {
    if (path.starts_with(folder) && has_word(text, word)) files.insert(path);
  }
  return files;
}

// Returns the first group of every match, with its file.
std::vector<std::pair<std::string, std::string>> definitions(const std::string& folder,
                                                             const std::string& pattern) {
  const std::regex regex(pattern, std::regex::multiline);
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& [path, text] : sources()) {
    if (!path.starts_with(folder)) continue;
    for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match)
      found.emplace_back((*match)[1], path);
  }
  return found;
}

// Checks the search itself with a word of many files, words of no file, and an entry inside a comment.
TEST(Newcomers, TheSearchFindsExactlyTheSourceFiles) {
  EXPECT_GT(files_with("CommandEntry").size(), 40U);
  EXPECT_GT(files_with("CommandEntry", "cli/").size(), 40U);
  EXPECT_TRUE(files_with("CommandEntr").empty()) << "part of a word";
  EXPECT_TRUE(files_with("CommandEntry", "turbo/").empty());
  // The example in a comment of bench/benchmark_entry.h is not found.
  const auto memory = definitions("bench/", "extern const BenchmarkEntry (kMemoryEntry)");
  EXPECT_EQ(memory.size(), 1U);
}

TEST(Newcomers, ACommandNeedsOneFile) {
  const auto commands = definitions("cli/", "^extern const CommandEntry (k\\w+)");
  EXPECT_GT(commands.size(), 40U);
  for (const auto& [name, file] : commands) EXPECT_EQ(files_with(name, "cli/"), std::set{file}) << name;
}

TEST(Newcomers, AnOptimizerNeedsOneFileAndItsKeys) {
  const auto optimizers = definitions("lm/optimizer/", "^extern const OptimizerEntry (k\\w+)");
  EXPECT_GE(optimizers.size(), 4U);
  for (const auto& [name, file] : optimizers) EXPECT_EQ(files_with(name, "lm/"), std::set{file}) << name;
  // Keys marked .own() need no entry for other frameworks. The names of AdamW and Muon occur in more files:
  // AdamW is the default, and Muon has keys in other frameworks.
  const std::string keys = "config/keys/optimizer.def";
  for (const char* word : {"\"lion\"", "lion_beta1", "lion_beta2"})
    EXPECT_EQ(files_with(word), (std::set<std::string>{keys, "lm/optimizer/lion.cpp"})) << word;
  EXPECT_EQ(files_with("\"sgd\""), (std::set<std::string>{keys, "lm/optimizer/sgd.cpp"}));
}

TEST(Newcomers, ADetectorNeedsOneFile) {
  const auto detectors = definitions("lm/events/detectors/", "^extern const DetectorEntry (k\\w+)");
  EXPECT_GE(detectors.size(), 4U);
  for (const auto& [name, file] : detectors) EXPECT_EQ(files_with(name), std::set{file}) << name;
}

TEST(Newcomers, AnObjectiveNeedsOneFile) {
  const auto objectives = definitions("lm/train/objectives/", "^extern const ObjectiveEntry (k\\w+)");
  EXPECT_GE(objectives.size(), 3U);
  for (const auto& [name, file] : objectives) EXPECT_EQ(files_with(name), std::set{file}) << name;
  // The entry of an objective names its stage. In config/, only the table of keys contains the name of a
  // stage.
  EXPECT_EQ(
      definitions("config/", "^KEY\\(std::string, stage, .*\\.one_of\\((.*)\\)\\)$"),
      (std::vector<std::pair<std::string, std::string>>{{"names_of_stages()", "config/keys/training.def"}}));
  const auto stages = definitions("lm/train/objectives/", "\\.stage = \\{\\.name = \"(\\w+)\"");
  EXPECT_EQ(stages.size(), objectives.size());
  for (const auto& [stage, file] : stages) {
    const std::string word = "\"" + stage + "\"";
    for (const std::string& path : files_with(word, "config/"))
      EXPECT_TRUE(path.starts_with("config/keys/")) << path << ": " << word;
    EXPECT_EQ(files_with(".name = " + word, "lm/train/"), std::set{file}) << word;
    for (const auto& [path, text] : sources()) {
      if (path.starts_with("lm/train/objectives/")) continue;
      EXPECT_EQ(text.find("stage == \"" + stage), std::string::npos) << path;
      EXPECT_EQ(text.find("stage != \"" + stage), std::string::npos) << path;
    }
  }
}

TEST(Newcomers, AFamilyOfExistingLayersNeedsOneFile) {
  const auto families = definitions("lm/model/families/", "^extern const FamilyEntry (k\\w+)");
  EXPECT_GE(families.size(), 30U);
  for (const auto& [name, file] : families) EXPECT_EQ(files_with(name, "lm/model/"), std::set{file}) << name;
  for (const char* type : {"\"olmo2\"", "\"glm4\"", "\"smollm3\"", "\"gemma2\"", "\"ministral3\""})
    EXPECT_EQ(files_with(type).size(), 1U) << type;
}

// The table of keys is compiled twice. A new key also recompiles the files that include
// config/trainer_config.h. Files that read a key include this header; files that only pass experiments on do
// not. Each additional file makes the build after a new key slower (docs/performance.md).
TEST(Newcomers, AKeyRecompilesOnlyItsReaders) {
  const auto including = [](const std::string& header) {
    std::set<std::string> files;
    for (const auto& [path, text] : sources())
      if (text.find("#include \"" + header + "\"") != std::string::npos) files.insert(path);
    return files;
  };
  EXPECT_EQ(including("config/keys.def"),
            (std::set<std::string>{"config/keys.cpp", "config/trainer_config.cpp"}));
  EXPECT_EQ(including("config/key_fields.def"), std::set<std::string>{"config/trainer_config.h"});
  std::size_t readers = 0;
  for (const std::string& file : including("config/trainer_config.h")) {
    ++readers;
    EXPECT_TRUE(file.ends_with(".cpp") || file == "lm/model/model_fields.h")
        << file << ": declare TrainerConfig instead";
  }
  EXPECT_GE(readers, 50U);
  EXPECT_LE(readers, 95U);
  for (const std::string& file : including("lm/model/model_fields.h"))
    EXPECT_TRUE(including("config/trainer_config.h").contains(file))
        << file
        << ": include config/trainer_config.h too, so that the build groups the file with such readers";
}

// Only families, and the files that make a model from settings, name kinds of layers. Other code, such as
// that for FLOPs, meshes and caches, calls the functions of LayerKind and names no kind. Headers declare only
// the two kinds of a plain layer.
TEST(Newcomers, AKindOfLayerNeedsOneFile) {
  const auto kinds = definitions("lm/model/blocks/", "^extern const LayerKind (k\\w+)\\{");
  EXPECT_GE(kinds.size(), 8U);
  const std::set<std::string> plain = {"kSelfAttention", "kDenseFeedForward"};
  const std::set<std::string> choose = {"lm/model/family.cpp", "lm/model/stated_parts.cpp"};
  for (const auto& [name, file] : kinds) {
    for (const std::string& path : files_with(name, "lm/")) {
      EXPECT_TRUE(path == file || choose.contains(path) || path.starts_with("lm/model/families/") ||
                  (plain.contains(name) && path == "lm/model/layer_spec.h"))
          << name << " in " << path;
    }
  }
  // For a kind without options, headers do not declare a function either: the entry of the kind makes the
  // layers.
  EXPECT_EQ(files_with("kCompressedAttention.make"),
            std::set<std::string>{"lm/model/families/deepseek_v4.cpp"});
  EXPECT_EQ(definitions("lm/model/blocks/layers.h", "(short_convolution|compressed_attention)").size(), 0U);
}

TEST(Newcomers, ASinkNeedsOneFile) {
  const auto sinks = definitions("lm/events/sinks/", "^extern const ListenerEntry (k\\w+)");
  EXPECT_GE(sinks.size(), 8U);
  for (const auto& [name, file] : sinks)
    EXPECT_EQ(files_with("ListenerEntry " + name), std::set{file}) << name;
}

// A framework has a file for its keys, a file for its jobs, and tables in presets/backends. This test leaves
// out Megatron-LM, because the native engine shares Megatron-LM's keys.
TEST(Newcomers, ABackendNeedsTwoFilesAndItsTables) {
  const auto backends = definitions("backends/", "^extern const BackendEntry (k\\w+)");
  EXPECT_GE(backends.size(), 3U);
  for (const auto& [name, file] : backends) EXPECT_EQ(files_with(name, "backends/"), std::set{file}) << name;
  EXPECT_GT(definitions("config/", "^extern const FrameworkEntry (k\\w+)").size(), backends.size());
  for (const std::string name : {"torchtitan", "maxtext"}) {
    EXPECT_EQ(files_with("\"" + name + "\""),
              (std::set<std::string>{"backends/" + name + ".cpp", "config/frameworks/" + name + ".cpp"}));
  }
}

// A check with its own threshold also has a line in Requirements.
TEST(Newcomers, APreflightCheckNeedsOneFile) {
  const auto checks = definitions("safe/preflight/", "^extern const Check (k\\w+)");
  EXPECT_GT(checks.size(), 40U);
  for (const auto& [name, file] : checks) EXPECT_EQ(files_with(name, "safe/"), std::set{file}) << name;
  for (const char* option : {"\"--shm-min-gb\"", "\"--ulimit-l-min-gb\""})
    EXPECT_EQ(files_with(option), std::set<std::string>{"safe/preflight/host_checks.cpp"}) << option;
  EXPECT_EQ(files_with("shared_memory_gib"),
            (std::set<std::string>{"safe/preflight/check.h", "safe/preflight/host_checks.cpp"}));
  // Each category has a check.
  std::map<std::string, int> of_category;
  for (const auto& [category, file] :
       definitions("safe/preflight/", "^extern const Check k\\w+\\{[^;]*\"(\\w+)\\.[\\w-]+\",\\s"))
    ++of_category[category];
  for (const char* category : {"host", "gpu", "network", "performance", "storage", "experiment", "cluster"})
    EXPECT_GT(of_category[category], 0) << category;
  EXPECT_EQ(files_with("\"--gemm-tflops-min\""), std::set<std::string>{"safe/preflight/performance.cpp"});
  EXPECT_EQ(files_with("\"--rccl-gbs-min\""), std::set<std::string>{"safe/preflight/all_reduce.cpp"});
}

// The judge fills in a finding's check, category and verdict from the entry. Findings from reports of other
// processes already have these fields.
TEST(Newcomers, EveryFindingComesFromACheck) {
  for (const std::string folder : {"safe/", "cli/"})
    for (const auto& [word, file] : definitions(folder, "\\.(check|category) = (?!check_|category_|\")"))
      EXPECT_EQ(file, "safe/preflight/finding.cpp") << word;
  for (const auto& [word, file] : definitions("", "(\\.check = \")")) ADD_FAILURE() << word << " in " << file;
}

// A benchmark has a file for its work and a file for its command. The file for the work ends with the
// benchmark's entry. The command selects the entry by the suite's name, and has no other code.
TEST(Newcomers, ABenchmarkNeedsItsWorkAndItsCommand) {
  const auto benchmarks =
      definitions("bench/", "^extern const BenchmarkEntry k\\w+\\{\\s*\\.name = \"([\\w-]+)\"");
  EXPECT_GE(benchmarks.size(), 11U);
  EXPECT_EQ(benchmarks.size(), definitions("bench/", "^extern const BenchmarkEntry (k\\w+)").size());
  std::map<std::string, std::string> commands;
  for (const auto& [name, file] : definitions("cli/", "make_benchmark_command<\"([\\w-]+)\">"))
    EXPECT_EQ(commands.emplace(name, file).first->second, file) << name;
  for (const auto& [name, file] : benchmarks) {
    EXPECT_EQ(commands.erase(name), 1U) << name;
    EXPECT_FALSE(file.ends_with(".h")) << file;
  }
  EXPECT_TRUE(commands.empty()) << commands.begin()->first;
  for (const auto& [name, file] : definitions("cli/", "^ +\"(benchmark [\\w-]+)\","))
    EXPECT_EQ(definitions(file, "(make_command)<").size(), 0U) << name << " has work in " << file;
  EXPECT_EQ(files_with("MemoryBenchmark"), std::set<std::string>{"bench/memory_benchmark.cpp"});
  EXPECT_EQ(files_with("kBenchmarkMemory"), std::set<std::string>{"cli/benchmark/memory.cpp"});
}

// In turbo/, only the operator's own folder contains the names of its kernels. An operator with one source
// per kind of device has four files.
TEST(Newcomers, AnOperatorNeedsOneFolder) {
  // turbo/linear/gemm_rate.cpp prepares its operands with these two kernels.
  const std::set<std::string> used_by_others = {"Cast", "RandomNormal"};
  // The build finds kernels by this line (primus_kernel_list). The struct that contains the line has the name
  // of the kernel.
  const std::string line = "  static constexpr KernelId kId = KernelId::k";
  const auto kernels = definitions("turbo/", "^" + line + "(\\w+);");
  EXPECT_EQ(kernels, definitions("turbo/", "^struct (\\w+) \\{\n" + line + "\\1;"));
  EXPECT_GT(kernels.size(), 50U);
  std::map<std::string, int> structs;
  for (const auto& [name, file] : definitions("turbo/", "^struct (\\w+) \\{")) ++structs[name];
  std::set<std::string> not_looked_at;
  for (const auto& [kernel, header] : kernels) {
    if (used_by_others.contains(kernel)) continue;
    const std::string folder = fs::path(header).parent_path().string() + "/";
    // A word search cannot distinguish two structs of the same name.
    if (structs[kernel] > 1) {
      not_looked_at.insert(kernel);
      continue;
    }
    for (const std::string& file : files_with(kernel, "turbo/"))
      EXPECT_TRUE(file.starts_with(folder)) << kernel << ": " << file;
  }
  EXPECT_EQ(not_looked_at, std::set<std::string>{"Sum"});
  EXPECT_THAT(files_with("Lion", "turbo/"),
              UnorderedElementsAreArray(
                  {"turbo/lion/lion.h", "turbo/lion/lion.cpp", "turbo/lion/cpu.cpp", "turbo/lion/gpu.cu"}));
}

// A formula.h contains arithmetic that CPU and GPU kernels share. Sources of both kinds include the
// formula.h, perhaps through another header.
TEST(Newcomers, CpuAndGpuShareAFormula) {
  std::map<std::string, std::string> cpu, gpu, shared;  // texts by path
  for (const auto& [path, text] : sources()) {
    if (!path.starts_with("turbo/") || path == "turbo/formula.h") continue;
    const std::string file = fs::path(path).filename().string();
    if (file == "formula.h") shared[path] = text;
    if (file.starts_with("cpu")) cpu[path] = text;
    if (file.starts_with("gpu")) gpu[path] = text;
  }
  EXPECT_GE(shared.size(), 20U);
  // The formulas that these files include.
  const auto included_by = [&](const std::map<std::string, std::string>& files) {
    std::set<std::string> found;
    for (const auto& [path, text] : files)
      for (const auto& [formula, unused] : shared)
        if (text.find("#include \"" + formula + "\"") != std::string::npos) found.insert(formula);
    return found;
  };
  const std::set<std::string> of_cpu = included_by(cpu), of_gpu = included_by(gpu),
                              of_others = included_by(shared);
  for (const auto& [formula, text] : shared) {
    EXPECT_TRUE(text.find("PRIMUS_FORMULA") != std::string::npos) << formula;
    EXPECT_TRUE(of_cpu.contains(formula) || of_others.contains(formula)) << formula;
    EXPECT_TRUE(of_gpu.contains(formula) || of_others.contains(formula)) << formula;
  }
  // No other file includes a formula.h, because a formula is compiled for a target, in the namespace of its
  // kernels.
  for (const auto& [path, text] : sources()) {
    if (cpu.contains(path) || gpu.contains(path) || shared.contains(path)) continue;
    EXPECT_EQ(text.find("/formula.h\""), std::string::npos) << path;
  }
}

// The build makes the lists of operators from the folders, for CPUs and for GPUs (and for
// scripts/build-gpu.sh).
TEST(Newcomers, OperatorsAreInNoHandwrittenList) {
  for (const auto& [name, file] : definitions("turbo/", "PRIMUS_[CG]PU_OPERATOR\\((\\w+)\\)"))
    EXPECT_EQ(name, "operator_name") << file;  // the macro's own parameter
  int operators = 0;
  for (const auto& [path, text] : sources()) {
    if (!path.starts_with("turbo/") || !path.ends_with("/gpu.cu")) continue;
    const fs::path folder = fs::path(path).parent_path();
    for (const std::string& file : files_with("register_" + folder.filename().string()))
      EXPECT_EQ(fs::path(file).parent_path(), folder) << file;
    ++operators;
  }
  EXPECT_GE(operators, 20);
  for (const std::string& file : files_with("lion", "turbo/"))
    EXPECT_TRUE(file.starts_with("turbo/lion/")) << file;
  EXPECT_TRUE(files_with("lion", "scripts/").empty());
}

// Each operator's folder in tests/turbo has checks of its own kernels, which turbo_check_test runs.
TEST(Newcomers, AnOperatorsChecksAreNextToItsTest) {
  const fs::path tests = fs::path(PRIMUS_SOURCE_DIR) / "tests/turbo";
  std::map<std::string, std::set<std::string>> kernels;  // by folder
  for (const auto& [kernel, header] :
       definitions("turbo/", "^  static constexpr KernelId kId = KernelId::k(\\w+);"))
    kernels[fs::path(header).parent_path().filename()].insert(kernel);
  EXPECT_GT(kernels.size(), 30U);
  for (const auto& [folder, own] : kernels) {
    std::ifstream file(tests / folder / "checks.cpp");
    const std::string checks{std::istreambuf_iterator<char>(file), {}};
    for (const std::string& kernel : own) EXPECT_TRUE(has_word(checks, kernel)) << folder << ": " << kernel;
  }
}

// A new type for storage touches at most ten files. Compute types of single operators do not count.
TEST(Newcomers, ADtypeNeedsTenFiles) {
  for (const char* type : {"kI8", "kI16", "kU16", "kF8E5M2"}) {
    const std::set<std::string> files = files_with(type);
    EXPECT_GE(files.size(), 4U) << type;
    EXPECT_LE(files.size(), 10U) << type;
  }
  // fp16 is also a compute type of linear layers and attention. Files that have or offer such kernels do not
  // count.
  int files = 0;
  for (const std::string& file : files_with("kF16")) {
    const std::string folder = file.substr(0, file.find('/'));
    if (folder != "turbo" && folder != "bench" && folder != "cli" && !file.starts_with("lm/exchange/"))
      ++files;
  }
  EXPECT_GT(files, 4);
  EXPECT_LE(files, 10);
}

// A new model setting has a line in the table of keys. The file that uses the setting declares its field. The
// files of other frameworks name a setting only if they treat the setting specially.
TEST(Newcomers, AModelSettingNeedsItsKeyAndTheFileThatUsesIt) {
  const std::string llama4 = "lm/model/families/llama4.cpp", attention = "lm/model/blocks/self_attention.cpp";
  EXPECT_EQ(files_with("qk_l2_norm"), (std::set<std::string>{"config/keys/model.def", llama4}));
  for (const char* setting : {"attention_temperature_floor", "attention_temperature_scale"}) {
    EXPECT_EQ(files_with(setting, "config/"), std::set<std::string>{"config/keys/model.def"}) << setting;
    EXPECT_EQ(files_with(setting, "lm/"), std::set{attention}) << setting;
  }
  // The table of fields has only the fields of the whole model and of its rotary embedding.
  const std::string table = "lm/model/model_fields.def";
  for (const auto& [part, file] : definitions("lm/model/", "^([A-Z]+)_FIELD\\(\\w"))
    EXPECT_TRUE(file == table && (part == "MODEL" || part == "ROPE")) << part << " in " << file;
  const auto fields = definitions("lm/model/", "^PRIMUS_MODEL_FIELD\\(\\w+,\\s[^,]+,\\s(\\w+),");
  EXPECT_GE(fields.size(), 40U);
  for (const auto& [member, file] : fields) {
    EXPECT_TRUE(file.starts_with("lm/model/blocks/") || file.starts_with("lm/model/families/"))
        << member << " in " << file;
  }
}

}  // namespace
}  // namespace primus
