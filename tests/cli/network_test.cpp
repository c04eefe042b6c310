// Tests of the order of nodes by the network (--rank-order, --topology), from the plan to a trained run.
#include <map>
#include <memory>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "cli/program_names.h"
#include "comm/rendezvous/socket.h"

namespace primus {
namespace {

using Words = std::vector<std::string>;

const std::string kExperiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";

class NodeNetwork : public ::testing::Test {
 protected:
  // Four nodes are below two leaf switches.
  void SetUp() override {
    std::string text = "# nodes and switches\n";
    for (const char* line : {"a core leaf1", "b core leaf2", "c core leaf1", "d core leaf2"})
      text += std::string(line) + "\n";
    write_file(folder_.path() / "network.txt", text);
  }

  // Runs `primus direct` on each of four nodes of this machine with a rank each.
  std::vector<ProgramResult> on_four_nodes(const Words& options, const Words& command) {
    const std::uint16_t port = comm::port_of(comm::listen_on("127.0.0.1", 0));
    std::vector<std::unique_ptr<test::Program>> programs;
    for (int node = 0; node < 4; ++node) {
      Words words{"direct"};
      words.insert(words.end(), options.begin(), options.end());
      words.emplace_back("--");
      words.insert(words.end(), command.begin(), command.end());
      programs.push_back(std::make_unique<test::Program>(
          words, test::ProgramOptions{.folder = folder_.path().string(),
                                      .environment = {{"NNODES", "4"},
                                                      {"NODE_RANK", std::to_string(node)},
                                                      {"GPUS_PER_NODE", "1"},
                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                      {"MASTER_PORT", std::to_string(port)}}}));
    }
    std::vector<ProgramResult> results;
    for (const auto& program : programs) results.push_back(program->wait());
    return results;
  }
  Words training(const std::string& name) const {
    return {"train",
            "pretrain",
            "--config",
            kExperiment,
            "exp_name=" + name,
            "seq_length=32",
            "micro_batch_size=1",
            "global_batch_size=4",
            "train_iters=2",
            "log_interval=1",
            "num_threads=1",
            "pipeline_model_parallel_size=2",
            "workspace=" + folder_.path().string()};
  }
  // Returns the file of this name in the run's folder.
  Path file_of(const std::string& run, const std::string& name) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      const std::string path = entry.path().string();
      if (path.ends_with(run + "/" + name)) return entry.path();
    }
    return {};
  }
  static std::vector<double> losses_of(const Path& metrics) {
    std::vector<double> losses;
    std::istringstream lines(read_file(metrics));
    for (std::string line; std::getline(lines, line);) losses.push_back(json::parse(line)["lm_loss"]);
    return losses;
  }

  test::TemporaryFolder folder_;
};

TEST_F(NodeNetwork, ADryRunDrawsTheNetwork) {
  const ProgramResult plan = run_program(
      {"direct",
       "--dry-run",
       "--rank-order",
       "switch",
       "--topology",
       "network.txt",
       "--env",
       "NNODES=4",
       "--env",
       "NODE_RANK=2",
       "--env",
       "GPUS_PER_NODE=8",
       "--env",
       "MASTER_ADDR=a",
       "--",
       "train",
       "pretrain",
       "--config",
       kExperiment,
       "pipeline_model_parallel_size=2",
       "global_batch_size=256",
       "tensor_model_parallel_size=2"},
      {.folder = folder_.path().string(), .environment = {{"PRIMUS_JOB_TOKEN", "of four nodes"}}});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out,
              AllOf(HasSubstr("network of network.txt:\n"), HasSubstr("  core\n"), HasSubstr("    leaf1\n"),
                    HasSubstr("      c: node 1 (given as 2), ranks 8..15, stage 0\n"),
                    HasSubstr("      b: node 2 (given as 1), ranks 16..23, stage 1\n")));
  EXPECT_THAT(plan.out,
              AllOf(HasSubstr("tensor: 16 groups of 2 ranks, 0 across hosts, 0 across switches"),
                    HasSubstr("data: 4 groups of 8 ranks, 4 across hosts, 0 across switches"),
                    HasSubstr("pipeline: 16 groups of 2 ranks, 16 across hosts, 16 across switches, 0 across "
                              "switches of level 2")));
  EXPECT_THAT(plan.out, AllOf(HasSubstr("--node_rank 1 "), HasSubstr("export NODE_RANK=1\n")));
}

// The job's nodes are known before it runs.
TEST_F(NodeNetwork, APlanForSlurmDrawsNamedNodes) {
  const Words command{"direct",
                      "--rank-order",
                      "pipeline",
                      "--topology",
                      "network.txt",
                      "--",
                      "train",
                      "pretrain",
                      "--config",
                      kExperiment,
                      "pipeline_model_parallel_size=2",
                      "global_batch_size=256"};
  Words words{"--dry-run",         "slurm", "srun", "-N", "4", "-w", "a,b,c,d", "--gpus-per-node=8",
              "--switches=2@1:00", "--"};
  words.insert(words.end(), command.begin(), command.end());
  const ProgramResult plan = run_program(words, {.folder = folder_.path().string()});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out,
              AllOf(HasSubstr("--switches=2@1:00"), HasSubstr("a: node 0, ranks 0..7, stage 0\n"),
                    HasSubstr("pipeline: 16 groups of 2 ranks, 16 across hosts, 0 across switches")));
  words.erase(std::find(words.begin(), words.end(), "-w"), std::find(words.begin(), words.end(), "-w") + 2);
  EXPECT_THAT(run_program(words, {.folder = folder_.path().string()}).out,
              HasSubstr("--rank-order pipeline: the nodes are ordered at the start of the job"));
}

TEST_F(NodeNetwork, SlicesOfKueueAreSwitches) {
  const ProgramResult plan = run_program({"--dry-run",
                                          "k8s",
                                          "--image",
                                          "a/b:1",
                                          "-N",
                                          "4",
                                          "--gpus-per-node",
                                          "8",
                                          "--gpu-resource",
                                          "amd",
                                          "--queue",
                                          "q",
                                          "--slice-topology",
                                          "net/rack",
                                          "--slice-size",
                                          "2",
                                          "--",
                                          "direct",
                                          "--rank-order",
                                          "pipeline",
                                          "--",
                                          "train",
                                          "pretrain",
                                          "--config",
                                          kExperiment,
                                          "pipeline_model_parallel_size=2",
                                          "global_batch_size=256"},
                                         {.folder = folder_.path().string()});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("value: \"slices=2\""), HasSubstr("network of slices of 2 nodes:"),
                              HasSubstr("node-1: node 2 (given as 1), ranks 16..23, stage 1\n")));
}

TEST_F(NodeNetwork, RefusesWhatItCannotKnow) {
  const auto refused = [&](const Words& options, const std::string& said) {
    Words words{"direct", "--env", "NNODES=2", "--env", "NODE_RANK=0", "--env", "MASTER_ADDR=a"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "version"});
    const ProgramResult result = run_program(words, {.folder = folder_.path().string()});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(said));
  };
  refused({"--rank-order", "switch"}, "--rank-order switch needs the network of the nodes");
  refused({"--rank-order", "up"}, "--rank-order");
  refused({"--topology", "slices=x"}, "the size of a slice is a number");
  refused({"--topology", "slurm"}, "this is no step of a Slurm job");
  refused({"--topology", "network.txt"}, "has 4 nodes, but the job has 2");
}

// Ranks of exchanged nodes would overlap.
TEST_F(NodeNetwork, NodesWithOtherNumbersOfTasksKeepTheirRanks) {
  const auto plan_of = [&](const Words& options) {
    Words words{"direct", "--dry-run", "--topology", "network.txt"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "train", "pretrain", "--config", kExperiment, "global_batch_size=48"});
    return run_program(words, {.folder = folder_.path().string(),
                               .environment = {{"PRIMUS_JOB_TOKEN", "of two nodes"},
                                               {"SLURM_JOB_ID", "1"},
                                               {"SLURM_STEP_ID", "0"},
                                               {"SLURM_PROCID", "4"},
                                               {"SLURM_LOCALID", "0"},
                                               {"SLURM_NNODES", "2"},
                                               {"SLURM_NTASKS", "6"},
                                               {"SLURM_NODEID", "1"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "4,2"},
                                               {"SLURM_STEP_NODELIST", "a,b"},
                                               {"MASTER_ADDR", "a"}}});
  };
  const ProgramResult given = plan_of({});
  EXPECT_EQ(given.exit_code, 0) << given.err;
  EXPECT_THAT(given.out, HasSubstr("export RANK=4\n"));
  const ProgramResult ordered = plan_of({"--rank-order", "switch"});
  EXPECT_EQ(ordered.exit_code, 2);
  EXPECT_THAT(ordered.err, HasSubstr("--rank-order needs as many tasks on each node, but node 0 has 4"));
}

// Nodes 1 and 2 exchange their places. The run records this, and has the same losses.
TEST_F(NodeNetwork, AnotherOrderTrainsTheSame) {
  for (const ProgramResult& result : on_four_nodes({}, training("given")))
    ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const ProgramResult& result :
       on_four_nodes({"--rank-order", "switch", "--topology", "network.txt"}, training("ordered")))
    ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(losses_of(file_of("given", "metrics.jsonl")), losses_of(file_of("ordered", "metrics.jsonl")));
  const auto job_of = [&](const std::string& run) {
    std::istringstream lines(read_file(file_of(run, "events/rank-00000.jsonl")));
    std::string begin;
    std::getline(lines, begin);
    return json::parse(begin)["facts"]["job"];
  };
  EXPECT_FALSE(job_of("given").contains("node_order"));
  const json order = job_of("ordered")["node_order"];
  // Both stages record step 2: two forward and two backward passes, without overlaps.
  for (const int stage : {0, 1}) {
    const std::string text =
        read_file(file_of("ordered", "timelines/stage-000" + std::to_string(stage) + ".jsonl"));
    const json record = json::parse(text);
    EXPECT_EQ(record["step"], 2);
    EXPECT_EQ(record["stage"], stage);
    EXPECT_EQ(record["rank"], 2 * stage);
    std::map<std::string, int> count;
    std::int64_t end = 0;
    for (const json& span : record["spans"]) {
      ++count[span[0]];
      EXPECT_GE(span[3], end) << text;
      end = span[3].get<std::int64_t>() + span[4].get<std::int64_t>();
    }
    EXPECT_LE(end, record["microseconds"].get<std::int64_t>() + 1);
    EXPECT_EQ(count["F"], 2) << text;
    EXPECT_EQ(count["B"], 2) << text;
    EXPECT_EQ(count["S"], 1) << text;
    EXPECT_GE(count["P"], 1) << text;
  }
  EXPECT_EQ(order["order"], "switch");
  EXPECT_EQ(order["source"], "network.txt");
  EXPECT_EQ(order["nodes"], json({0, 2, 1, 3}));
  EXPECT_EQ(order["switches"], json({{0, 1}, {0, 1}, {0, 2}, {0, 2}}));
}

}  // namespace
}  // namespace primus
