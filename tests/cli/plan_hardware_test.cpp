// Tests of `train --dry-run --hardware`: a plan for a GPU that this machine need not have.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "cli/program_names.h"

namespace primus {
namespace {

class PlanHardware : public ::testing::Test {
 protected:
  // Writes FOLDER/e.yaml, an experiment with Llama 3.1 8B and `overrides`, and returns its path.
  std::string file(const std::string& folder, const std::string& overrides) const {
    const Path path = folder_.path() / folder;
    make_folders(path);
    write_file(
        path / "e.yaml",
        "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  pre_trainer:\n"
        "    framework: native\n    config: pre_trainer.yaml\n    model: llama3.1_8B.yaml\n    overrides:\n"
        "      mock_data: true\n      micro_batch_size: 1\n      global_batch_size: 8\n" +
            overrides);
    return (path / "e.yaml").string();
  }
  ProgramResult plan(const std::string& experiment, const std::vector<std::string>& more,
                     const std::map<std::string, std::string>& variables = {}) const {
    std::vector<std::string> words{"train", "pretrain", "--config", experiment, "--dry-run"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, {.environment = variables});
  }
  TemporaryFolder folder_;
};

// The run fits one GPU and does not fit another: 8B parameters with fp32 states take 134 GiB.
TEST_F(PlanHardware, ReportsWhetherTheRunFitsThatGpu) {
  const std::string experiment = file("x", "      seq_length: 2048\n");
  const ProgramResult large = plan(experiment, {"--hardware", "mi300x"});
  EXPECT_EQ(large.exit_code, 0) << large.err;
  EXPECT_THAT(large.out,
              AllOf(HasSubstr("AMD Instinct MI300X (presets/hardware/amd_mi300x.yaml)"), HasSubstr("FITS"),
                    HasSubstr("time, an estimate"), HasSubstr("tokens/s of each device"),
                    HasSubstr("device: hip"), Not(HasSubstr("DOES NOT FIT"))));
  // The reported memory is the number that is compared with the GPU. A checkpoint's copy counts as host
  // memory.
  std::smatch device, host, fits;
  ASSERT_TRUE(std::regex_search(large.out, device, std::regex("\nmemory +(\\S+ GiB) on the device\n")));
  ASSERT_TRUE(std::regex_search(large.out, fits, std::regex("FITS +(\\S+ GiB) of ")));
  ASSERT_TRUE(std::regex_search(large.out, host, std::regex("\nhost memory +\\S+ GiB\n  checkpoint copy ")));
  EXPECT_EQ(device[1], fits[1]);
  const ProgramResult small = plan(experiment, {"--hardware", "h100"});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.out, AllOf(HasSubstr("DOES NOT FIT: the run needs"), HasSubstr("of NVIDIA H100 SXM"),
                               HasSubstr("it would fit on mi300x, ")));
  // Eight GPUs share the optimizer states, as pre_trainer.yaml sets.
  const ProgramResult eight = plan(experiment, {"--hardware", "h100", "--world", "8", "--json"});
  EXPECT_EQ(eight.exit_code, 0) << eight.err;
  const json forecast = json::parse(eight.out);
  EXPECT_EQ(forecast.at("memory_bytes").at("fits"), true);
  const json& hardware = forecast.at("hardware");
  EXPECT_EQ(hardware.at("name"), "NVIDIA H100 SXM");
  const json& memory = hardware.at("memory_bytes");
  EXPECT_EQ(memory.at("for_the_run").get<std::int64_t>() +
                memory.at("reserved_for_driver").get<std::int64_t>() +
                memory.at("reserved_for_collectives").get<std::int64_t>() +
                memory.at("reserved_for_libraries").get<std::int64_t>(),
            memory.at("installed").get<std::int64_t>());
  const json& seconds = hardware.at("estimated_seconds_per_step");
  EXPECT_GT(seconds.at("none_hidden"), seconds.at("computing"));
  EXPECT_EQ(forecast.at("seconds_per_step"), seconds.at("none_hidden"));
  EXPECT_FALSE(forecast.at("timed"));
  EXPECT_EQ(forecast.at("experiment").at("trainer").at("use_distributed_optimizer"), true);
}

TEST_F(PlanHardware, RefusesAnotherDeviceOnTheCommandLine) {
  const std::string experiment = file("x", "      num_layers: 1\n      seq_length: 64\n      device: cuda\n");
  for (const auto& [name, device] : {std::pair("mi300x", "cuda:3"), std::pair("cpu", "cuda")}) {
    const ProgramResult refused = plan(experiment, {"--hardware", name, std::string("device=") + device});
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    EXPECT_THAT(refused.err, AllOf(HasSubstr(std::string("--hardware ") + name + " plans for device "),
                                   HasSubstr(std::string("but device is ") + device)));
  }
  for (const char* device : {"hip", "hip:1", "auto"}) {
    const ProgramResult agrees = plan(experiment, {"--hardware", "mi300x", std::string("device=") + device});
    EXPECT_NE(agrees.exit_code, 2) << agrees.err;
  }
  EXPECT_THAT(plan(experiment, {"--hardware", "mi300x"}).err, HasSubstr("device: cuda ("));
}

TEST_F(PlanHardware, ReadsYourOwnProfiles) {
  const std::string experiment = file("x", "      num_layers: 1\n      seq_length: 64\n");
  const std::string own = (folder_.path() / "own.yaml").string();
  const std::string text =
      "name: Tiny\nmatch: [Tiny]\nsource: me\ndevice: cuda\npeak_bf16_tflops: 10\npeak_memory_gbs: 100\n";
  write_file(own, text + "memory_gib: 2\n");
  const ProgramResult small = plan(experiment, {"--hardware", own});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_THAT(small.out, HasSubstr("of Tiny"));
  // The plan states how many GPUs share a host.
  const auto hosts = [&](const std::string& numbers, const std::vector<std::string>& more) {
    write_file(own, text + "memory_gib: 80\nlink_gbs: 400\nnetwork_gbs: 50\n" + numbers);
    std::vector<std::string> words{"--hardware", own, "--world", "8"};
    words.insert(words.end(), more.begin(), more.end());
    return plan(experiment, words).out;
  };
  EXPECT_THAT(hosts("", {}), HasSubstr("8 with 1 GPU each (gpus_per_host of the hardware file, 1 if absent"));
  EXPECT_THAT(hosts("gpus_per_host: 4\n", {}), HasSubstr("2 with 4 GPUs each (gpus_per_host"));
  EXPECT_THAT(hosts("gpus_per_host: 8\n", {"--nnodes", "4"}), HasSubstr("4 with 2 GPUs each"));
  EXPECT_THAT(plan(experiment, {"--hardware", own, "--world", "8", "--nnodes", "4"}).err,
              HasSubstr("note: the plan uses 2 of 8 GPUs per host; --nproc 8 uses all"));
  write_file(own, text);
  const ProgramResult without = plan(experiment, {"--hardware", own});
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_THAT(without.err, HasSubstr("lacks memory_gib"));
  write_file(own, text + "memory: 2\n");
  EXPECT_THAT(plan(experiment, {"--hardware", own}).err,
              AllOf(HasSubstr("own.yaml:7:1"), HasSubstr("'memory'"),
                    HasSubstr("docs/parallelism.md lists the keys")));
}

// AMD Primus's variable chooses the GPU. A folder named after a GPU only gives a note.
TEST_F(PlanHardware, TheVariableAndTheFolderAddProfiles) {
  const std::string experiment =
      file("MI355X",
           "      num_layers: 1\n      seq_length: 64\n      vocab_size: 1000\n      hidden_size: 64\n"
           "      ffn_hidden_size: 128\n      num_attention_heads: 4\n      num_query_groups: 2\n"
           "      kv_channels: 16\n");
  const ProgramResult here = plan(experiment, {});
  EXPECT_EQ(here.exit_code, 0) << here.err;
  EXPECT_THAT(here.err,
              HasSubstr("the experiment is in a folder for the AMD Instinct MI355X: --hardware mi355x"));
  EXPECT_THAT(here.out, Not(HasSubstr("planned for")));
  const ProgramResult by_variable = plan(experiment, {}, {{"PRIMUS_GPU_MODEL", "MI300X"}});
  EXPECT_EQ(by_variable.exit_code, 0) << by_variable.err;
  EXPECT_THAT(by_variable.out, HasSubstr("AMD Instinct MI300X"));
  EXPECT_THAT(by_variable.err, HasSubstr("planned for the MI300X that PRIMUS_GPU_MODEL names"));
  const ProgramResult chosen = plan(experiment, {"device=cpu"}, {{"PRIMUS_GPU_MODEL", "MI300X"}});
  EXPECT_THAT(chosen.out, Not(HasSubstr("planned for")));
  const ProgramResult unknown = plan(experiment, {}, {{"PRIMUS_GPU_MODEL", "XYZ"}});
  EXPECT_EQ(unknown.exit_code, 2) << "a script must not read success";
  EXPECT_THAT(unknown.err, HasSubstr("PRIMUS_GPU_MODEL: no hardware is called 'XYZ'"));
  const ProgramResult cpu = plan(experiment, {"--hardware", "cpu"});
  EXPECT_EQ(cpu.exit_code, 0) << cpu.err;
  EXPECT_THAT(cpu.out, HasSubstr("measured here"));
  // A plan for this machine's CPU reports in its exit code, too, that the run does not fit.
  for (const std::vector<std::string>& device : {std::vector<std::string>{}, {"--hardware", "cpu"}}) {
    std::vector<std::string> words{"micro_batch_size=1048576", "global_batch_size=1048576"};
    words.insert(words.end(), device.begin(), device.end());
    const ProgramResult large = plan(experiment, words);
    EXPECT_EQ(large.exit_code, 1) << large.err;
    EXPECT_THAT(large.out, HasSubstr("DOES NOT FIT"));
  }
}

TEST_F(PlanHardware, MistakesAreRefused) {
  const std::string experiment = file("x", "");
  const auto refused = [&](const std::vector<std::string>& more, const std::string& said) {
    const ProgramResult result = plan(experiment, more);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    EXPECT_THAT(result.err, HasSubstr(said));
  };
  refused({"--hardware", "mi300"}, "no hardware is called 'mi300'");
  refused({"--hardware", "nowhere.yaml"}, "nowhere.yaml");
  refused({"--hardware", "h100", "--framework", "megatron"}, "--hardware is for the native engine");
  refused({"--world", "8", "--nproc", "4", "--nnodes", "1"},
          "--world is 8, but --nproc 4 and --nnodes 1 make 4 ranks");
  refused({"--world", "8", "--nnodes", "3"}, "which 3 machines (--nnodes) cannot share equally");
  const ProgramResult run = run_program({"train", "pretrain", "--config", experiment, "--hardware", "h100"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--hardware needs --dry-run"));
}

// --fit chooses settings for the given GPU's memory.
TEST_F(PlanHardware, FitChoosesForIt) {
  const std::string experiment = file("x", "      num_layers: 4\n      seq_length: 8192\n");
  const ProgramResult fitted =
      plan(experiment, {"--fit", "--hardware", "h100", "--json", "global_batch_size=64"});
  EXPECT_EQ(fitted.exit_code, 0) << fitted.err;
  const json forecast = json::parse(fitted.out);
  EXPECT_EQ(forecast.at("hardware").at("name"), "NVIDIA H100 SXM");
  EXPECT_GT(forecast.at("experiment").at("trainer").at("micro_batch_size"), 1);
  EXPECT_TRUE(forecast.at("memory_bytes").at("fits"));
}

// Eight ranks cannot split a batch of 8 into microbatches of 2. --fit chooses 1.
TEST_F(PlanHardware, FitReplacesAMicrobatchOfTheCommandLineAndReportsIt) {
  const std::string experiment = file("x", "      num_layers: 2\n      seq_length: 1024\n");
  const ProgramResult fitted =
      plan(experiment, {"--fit", "--hardware", "h200", "--world", "8", "micro_batch_size=2"});
  EXPECT_EQ(fitted.exit_code, 0) << fitted.err;
  EXPECT_THAT(fitted.err,
              AllOf(HasSubstr("fit: micro_batch_size=1 "),
                    HasSubstr("note: --fit chooses micro_batch_size: 1 replaces the command line's 2\n")));
  const ProgramResult batch = plan(experiment, {"--fit", "--hardware", "h200", "--world", "8",
                                                "micro_batch_size=2", "global_batch_size=12"});
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_THAT(batch.err, HasSubstr("global_batch_size (12) is not a multiple of micro_batch_size (1)"));
}

TEST_F(PlanHardware, FitRefusesMoreMemoryThanTheDeviceHas) {
  const std::string experiment = file("x", "      num_layers: 2\n      seq_length: 1024\n");
  const ProgramResult result = plan(experiment, {"--fit-memory", "500GiB", "--hardware", "h100"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--fit-memory is 500 GiB, but the NVIDIA H100 SXM has"));
}

TEST_F(PlanHardware, NotesSettingsOfTheFileWithoutEffect) {
  const std::string experiment =
      file("x",
           "      num_layers: 2\n      seq_length: 1024\n      split: 90,10\n      train_iters: 5\n"
           "      disable_last_saving: true\n      save_interval: 100\n");
  const ProgramResult result = plan(experiment, {"--hardware", "h200"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("note: "), HasSubstr("split has an effect only with data_path"),
                                HasSubstr("no checkpoint is written: disable_last_saving is true")));
}

// With experts on two hosts of eight GPUs, a row travels to the other host once, and not once to each GPU.
// The plan prints the bytes of both methods.
TEST_F(PlanHardware, PrintsTheBytesBetweenHostsByBothMethods) {
  const std::string experiment = file(
      "moe",
      "      model_type: mixtral\n      num_layers: 2\n      hidden_size: 128\n      ffn_hidden_size: 64\n"
      "      num_attention_heads: 4\n      num_query_groups: 4\n      kv_channels: 32\n"
      "      seq_length: 256\n      num_experts: 16\n"
      "      moe_ffn_hidden_size: 64\n      moe_router_topk: 4\n      expert_model_parallel_size: 16\n"
      "      moe_token_dispatcher_type: alltoall\n");
  const std::vector<std::string> options{"--hardware", "h100", "--world", "16", "global_batch_size=16"};
  const ProgramResult text = plan(experiment, options);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("expert_places (2)"), HasSubstr("expert_host (8)"),
                              HasSubstr("    two hops          "), HasSubstr("    one hop, not used "),
                              HasSubstr("if all experts are chosen equally often")));
  std::vector<std::string> as_json = options;
  as_json.emplace_back("--json");
  const json stage = json::parse(plan(experiment, as_json).out).at("mesh").at("stages").at(0);
  const json& methods = stage.at("experts_over_hosts");
  EXPECT_EQ(methods.at("ranks_per_host"), 8);
  const json& two = methods.at("two_hops").at("bytes_per_step_at_most");
  const json& one = methods.at("one_hop").at("bytes_per_step_at_most");
  EXPECT_DOUBLE_EQ(one.at("between_hosts"), 8 * two.at("between_hosts").get<double>());
  EXPECT_DOUBLE_EQ(two.at("within_host"), 2 * one.at("within_host").get<double>());
  as_json.emplace_back("moe_ranks_per_host=1");
  EXPECT_FALSE(json::parse(plan(experiment, as_json).out)
                   .at("mesh")
                   .at("stages")
                   .at(0)
                   .contains("experts_over_hosts"));
}

}  // namespace
}  // namespace primus
