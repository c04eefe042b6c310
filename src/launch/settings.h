// The launcher's settings: .primus.yaml, with AMD Primus's sections main, slurm, container and direct, and
// the section k8s.
//
// Several files are merged, and later files override earlier files: /etc/primus/primus.yaml (system),
// ~/.primus.yaml (user), ./.primus.yaml (project), and the files of --config. Maps are merged key by key;
// other values, including lists, are replaced. Command-line options override all files. The project's file
// can name programs to run. So this file is read only if it belongs to the user or to root, and no other user
// can write to it.
//
// ${NAME} and ${NAME:default} are replaced by variables. Errors have file:line:col; unknown keys are errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "launch/network/node_order.h"
#include "launch/options/foreign_options.h"
#include "launch/plan.h"

namespace primus::launch {

enum class Numa { kAuto, kOn, kOff };

struct DirectSettings {
  std::optional<bool> single;            // run_mode: single | torchrun
  std::optional<std::string> script;     // empty: runs this program, Primus
  std::vector<std::string> environment;  // "NAME=VALUE"
  std::vector<Path> environment_files;   // files of lines NAME=VALUE
  std::vector<Path> patches, hooks;      // programs, and folders of programs
  std::optional<std::string> log_file;
  Numa numa = Numa::kAuto;
  bool silent = false;
  std::optional<int> nodes, ranks_per_node;
  std::optional<std::string> master_address;
  std::optional<std::uint16_t> master_port;
  std::optional<RankOrder> rank_order;
  std::optional<std::string> topology;  // the network of the nodes: "slurm", "slices=N", or a file
};

struct SlurmSettings {
  std::vector<GivenOption> options;  // options of srun and sbatch
  std::optional<int> ranks_per_node;
};

struct ContainerSettings {
  std::string runtime = "auto";      // docker, podman, apptainer, singularity
  std::string program;               // path of Primus in the image; empty: this program is mounted
  std::string accelerator = "auto";  // amd, nvidia, none
  bool privileged_set = false;       // AMD Primus's set of privileges
  std::vector<GivenOption> options;  // options of `docker run`, including image
};

// Where the pods of a job are placed, and whether nodes are checked before. Labels are names of node labels,
// such as cloud.provider.com/topology-block; empty: not requested.
struct KubernetesPlacing {
  std::string topology_key = "kubernetes.io/hostname";  // pods are spread over the values of this label
  std::string required, preferred;  // Kueue: all pods on nodes with one value of the label
  std::string slice;                // Kueue: each slice_size consecutive pods on nodes with one value
  std::optional<int> slice_size;
  std::string exclusive;      // JobSet: all pods on nodes with one value, which no other JobSet gets
  std::string gate = "none";  // preflight before the command: "pods", "job" (kubernetes_placing.h)
};

struct KubernetesSettings {
  std::string kind = "jobset";  // or pytorchjob
  std::string name, image, service_account, queue, priority_class, program, gpu_resource, rdma_resource;
  std::string name_space;  // "namespace"
  std::string shared_memory = "16Gi", memory, cpus;
  KubernetesPlacing placing;
  std::optional<int> nodes, ranks_per_node, max_restarts;
  std::vector<std::string> environment;  // "NAME=VALUE"
  std::vector<std::string> secrets;      // "NAME=SECRET/KEY", or the name of a Secret whose values all become
                                         // variables
  std::vector<std::string> volumes;      // "/host/path:/path", "pvc/claim:/path"
};

struct LauncherSettings {
  struct Switches {
    bool debug = false, dry_run = false;
    std::string dry_run_at;  // where dry_run was set: "dry_run: true in .primus.yaml:3:12"
  };
  bool debug = false, dry_run = false;  // main:
  std::string dry_run_at;
  Switches slurm_switches, container_switches, direct_switches, k8s_switches;
  DirectSettings direct;
  SlurmSettings slurm;
  ContainerSettings container;
  KubernetesSettings k8s;
  std::vector<std::string> files;  // files that were read, in order
  std::vector<std::string> notes;  // files that were not read, and why
};

// Reads all files. `named`: files given by --config, which must exist.
LauncherSettings load_settings(const std::vector<std::string>& named, const Surroundings& surroundings);

// Parses "true", "1" ...; nullopt for text that is neither true nor false.
std::optional<bool> truth_of(std::string_view text);

}  // namespace primus::launch
