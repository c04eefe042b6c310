#include "cli/benchmark/device_benchmark.h"

#include <cctype>
#include <variant>

#include "bench/device_timer.h"
#include "bench/operator_benchmark.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

class EntryCommand final : public DeviceBenchmark {
 public:
  explicit EntryCommand(const BenchmarkEntry& entry) : entry_(entry), benchmark_(entry.make()) {}

 private:
  void declare_case(Arguments& args) override {
    for (const BenchmarkOption& option : benchmark_->options())
      args.option(option.names, std::string(option.value),
                  std::visit([](auto* target) -> Target { return target; }, option.target),
                  std::string(option.help));
    for (const RefusedOption& option : benchmark_->refused())
      args.refuse(option.names, std::string(option.reason), std::string(option.instead));
  }
  void check_case() override { benchmark_->prepare(); }
  std::optional<MeasuredTypes> types() const override { return entry_.types; }
  BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    return benchmark_->measure(device, options);
  }

  const BenchmarkEntry& entry_;
  std::unique_ptr<Benchmark> benchmark_;
};

}  // namespace

std::unique_ptr<Command> make_entry_command(const BenchmarkEntry& entry) {
  return std::make_unique<EntryCommand>(entry);
}

void DeviceBenchmark::declare(Arguments& args) {
  declare_case(args);
  args.option("--seconds,--duration", "S", &seconds_, "time for each measurement");
  if (const auto measured = types())
    device_.declare(args, "fp32", *measured);
  else
    device_.declare_without_type(args);
  declare_output(args, output_);
}

void DeviceBenchmark::check_job(int, int, const std::map<std::string, std::string>&) {
  check_words();
  const std::string file = file_of_case();  // may exist only on the job's nodes
  if (file.empty() || Env::posix().status(file)) check_case();
}

int DeviceBenchmark::run(Console& console) {
  check_words();
  output_.check();
  check_case();
  OperatorBenchmarkOptions options{
      .dtype = device_.compute(), .fp8 = device_.fp8(), .fp4 = device_.fp4(), .seconds = seconds_};
  const DeviceSpec spec = device_.spec(console);
  const BenchmarkReport result = measured(console, [&](const DeviceTimer::Progress& progress) {
    options.progress = progress;
    return report(spec, options);
  });
  return output_.finish(result, console);
}

void DeviceBenchmark::check_words() {
  device_.check_words();
  output_.check_words();
  check_seconds(seconds_);
}

BenchmarkReport DeviceBenchmark::report(const DeviceSpec& spec, const OperatorBenchmarkOptions& options) {
  return measure(*turbo::open_device(spec), options);
}

// Maps a model name of AMD Primus to the preset: "Llama3.1_8B", "mistral_8x7B", "Deepseek_V2_Lite".
std::string preset_of(const std::string& name) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"v2_lite", "deepseek_v2_lite"},
                                                            {"v2", "deepseek_v2"},
                                                            {"v3", "deepseek_v3"},
                                                            {"mistral_8x7b", "mixtral_8x7B"},
                                                            {"mistral_8x22b", "mixtral_8x22B"},
                                                            {"llama2_7b", "llama2_7B"},
                                                            {"llama2_70b", "llama2_70B"},
                                                            {"llama3_8b", "llama3_8B"},
                                                            {"llama3_70b", "llama3_70B"},
                                                            {"llama3.1_8b", "llama3.1_8B"},
                                                            {"llama3.1_70b", "llama3.1_70B"},
                                                            {"llama3.1_405b", "llama3.1_405B"},
                                                            {"deepseek_v2_lite", "deepseek_v2_lite"},
                                                            {"deepseek_v2", "deepseek_v2"},
                                                            {"deepseek_v3", "deepseek_v3"}};
  std::string small = name;
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [theirs, ours] : kNames)
    if (small == theirs) return ours;
  return name;
}

}  // namespace primus::cli
