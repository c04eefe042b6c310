// The forms of option values: times, sizes, ranges and names in the formats of Slurm, docker, podman and
// Kubernetes. Command-line options and settings share these forms. A form accepts the values that the tools
// accept. Any text is valid for names that only a server can check (partitions, networks).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace primus::launch {

enum class Form : std::uint8_t {
  kText,     // any text
  kChoice,   // a word of a list; list entries that end in ':' or '=' are prefixes
  kChoices,  // several words separated by commas; at least one must be known
  kCount,    // 1, 2 ...
  kNumber,   // 0, 1 ...
  kInteger,  // -1, 0, 1 ...
  kFile,     // an existing file of this machine, which the tool reads
  // Slurm
  kNodes,            // 4, 2-4, 1k, 2-8:2, 1,2,4
  kSlurmTime,        // 90, 1:30:00, 2-12, 2-12:00:00, INFINITE
  kMegabytes,        // 64000, 64G
  kMoment,           // 16:00, now+1hour, 2026-12-24T12:00
  kGpuCount,         // 8, a100:4,h100:4
  kResources,        // gpu:8, gpu:a100:4,nvme:1
  kWarning,          // USR1@120, R:10
  kBatchWarning,     // B:USR1@120
  kSwitches,         // 1, 1@30:00
  kDistribution,     // block:cyclic, plane=4
  kDependency,       // afterok:12:13, singleton
  kArray,            // 0-15%4, 1,3,5
  kCores,            // 2:4:*, 2-4
  kOpenMode,         // append, truncate, or a prefix of these
  kFrequency,        // 1000-2000:performance, low
  kSampling,         // 30, task=30
  kBinding,          // verbose,map_cpu:0,1; the types are in the list
  kLetters,          // some letters of a list
  kNodeList,         // n[01-16], or a file
  kEnvironmentFile,  // a file, or a file descriptor number
  // docker and podman
  kBytes,         // 64g, 1.5GiB, 1024
  kBytesOrAll,    // -1 is also valid
  kCpus,          // 1.5
  kDuration,      // 1m30s
  kRanges,        // 0-3,8
  kUlimit,        // nofile=1024:2048
  kPublish,       // 127.0.0.1:8080:80/tcp
  kExpose,        // 80-90/udp
  kHost,          // name:10.0.0.1
  kAddress,       // an IP address
  kMac,           // 92:d0:c6:0a:29:33
  kDevice,        // /dev/fuse:/dev/fuse:rw, nvidia.com/gpu=all
  kDeviceRule,    // c 1:3 mr
  kDeviceBytes,   // /dev/sda:1mb
  kDeviceNumber,  // /dev/sda:1000
  kMount,         // type=bind,src=/a,dst=/b
  kMountPath,     // /scratch:size=1g
  kAbsolute,      // /a/path
  kVolume,        // /data, /data:/data:ro
  kAssignment,    // name=value
  kName,          // name of a container
  kSignal,        // TERM, SIGTERM, 15, RTMIN+3
  kCapability,    // SYS_PTRACE, CAP_SYS_PTRACE, ALL
  kGpusOfDocker,  // all, 2, device=0,1
  kSecurity,      // no-new-privileges, seccomp=unconfined
  kPlatform,      // linux/amd64
  kImage,         // image in a registry
  kUmask,         // 0022
  kScore,         // -1000 to 1000
  kPercent,       // -1 to 100
  // Kubernetes
  kQuantity,      // 128Gi, 500m, 1.5
  kDnsName,       // team-a, a.b.c
  kLabelName,     // kubernetes.io/hostname
  kResourceName,  // amd.com/gpu
  kPodVolume,     // pvc/data:/data, /nfs:/nfs:ro
  kSecretRef,     // HF_TOKEN=hugging-face/token, or only the Secret
};

// A form and, for choices, the allowed words: "always|missing|never".
struct ValueForm {
  Form form = Form::kText;
  std::string_view words = {};
  constexpr ValueForm() = default;
  constexpr ValueForm(Form which, std::string_view list = {})  // NOLINT: implicit, for tables
      : form(which), words(list) {}
};

// Returns nullopt if `text` fits. Otherwise returns the rest of a message that begins with "must be".
std::optional<std::string> misfit(const ValueForm& form, std::string_view text);

// Throws Error(kInvalid) if `text` does not fit; `what`: "--nodes of srun".
void require_form(const ValueForm& form, std::string_view text, std::string_view what);

}  // namespace primus::launch
