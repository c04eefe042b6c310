// Accepted and refused values of options of srun, sbatch and `docker run`. Where these tools are installed,
// tests check the samples with these tools (tests/cli/slurm_test.cpp, container_test.cpp).
#pragma once

#include <string>
#include <vector>

namespace primus::test {

struct OptionSample {
  std::string option;
  std::vector<std::string> taken, refused;
  bool by_tool = true;  // true: the client of the tool refuses `refused`; false: the server does
};

inline std::vector<OptionSample> srun_samples() {
  std::vector<OptionSample> samples{
      {"time",
       {"10", "10:30", "1:2:3", "1-12", "1-12:00", "1-12:00:00", "-1", "INFINITE", "unlimited", "0"},
       {"abc", "1d", "12h", "1:2:3:4", "5-2-1", "1.5", ":"}},
      {"nodes", {"2", "2-4", "1k", "1k-2k", "2m"}, {"two", "4-2", "2x", "2-", "1.5"}},
      {"mem",
       {"64G", "64g", "64GB", "64", "0", "4000M", "1T", "4K"},
       {"64X", "foo", "1.5G", "-1", "2P", "64GiB"}},
      {"wait", {"0", "60"}, {"-1", "1.5", "4k", "two"}},
      {"immediate", {"10", "0"}, {"x", "-1"}},
      {"begin",
       {"16:00", "now", "now+1hour", "now+3days", "now+60", "midnight", "fika", "tomorrow", "4:00PM",
        "2030-01-20", "2030-01-20T12:34:00", "2030-01-20T12:34", "0112", "01/20/30", "011230"},
       {"4pm", "now+x", "soonish", "x"}},
      {"signal",
       {"USR1", "SIGUSR1", "usr1", "10", "USR1@120", "R:10@5", "USR1@"},
       {"0", "FOO", "FOO@1", "USR1@99999", "USR1@x", "B:USR1@1"}},
      {"switches", {"1", "1@10", "1@1:00:00"}, {"x", "0", "-1"}},
      {"open-mode", {"append", "truncate", "a", "t"}, {"x", "keep"}},
      {"extra-node-info", {"2", "2:4", "2:4:1", "*:4", "2-4:2"}, {"x", "2:x"}},
      {"hint", {"compute_bound", "memory_bound", "multithread", "nomultithread"}, {"x"}},
      {"profile", {"all", "none", "energy", "task,network"}, {"x"}},
      {"exclusive", {"user", "mcs"}, {"x", "yes"}},
      {"kill-on-bad-exit", {"0", "1"}, {"x", "yes"}},
      {"no-kill", {"off", "set"}, {"x", "on"}},
      {"mail-type", {"ALL", "END,FAIL", "NONE", "TIME_LIMIT_80", "begin", "ARRAY_TASKS"}, {"x"}},
      {"propagate", {"ALL", "NONE", "MEMLOCK,STACK"}, {"x"}},
      {"distribution",
       {"block", "cyclic", "plane=4", "block:cyclic", "*:cyclic:block", "block,NoPack", "block:block,Pack"},
       {"x", "plane=x", "block:x"}},
      {"gres-flags", {"disable-binding", "enforce-binding"}, {"x"}},
      {"delay-boot", {"10", "10:00", "1-0"}, {"x"}},
      {"cpu-freq", {"low", "high-high", "1000-2000", "performance", "low-high:OnDemand"}, {"x", "none"}},
      {"acctg-freq", {"30", "task=30", "task=30,energy=10"}, {"x=1", "task=x"}},
      {"gpu-bind", {"none", "closest", "single:2", "verbose,none", "map_gpu:0,1", "per_task:1"}, {"x"}},
      {"accel-bind", {"gn", "v"}, {"x"}},
      {"send-libs", {"yes", "no"}, {"x"}},
      {"het-group", {"1", "0,1", "0-1"}, {"x"}},
      {"exclude", {"n1", "n[1-2]", "n1,n2"}, {"./nofile"}},
      {"nodelist", {}, {"./nofile", "n[a-b]"}},
      {"nodelist", {}, {"n[1-2"}, false},
      {"gpus", {"0"}, {}},
      {"gpus", {"8", "a100:4", "a100:4,h100:2"}, {"-1", "2:", ":2", "a:b:2"}, false},
      {"gres", {"none"}, {}},
      {"gres",
       {"gpu", "gpu:2", "gpu:a100:2", "gpu:1g.10gb:1", "gpu:2k", "gpu:a100"},
       {"gpu:", "foo:bar:baz", "gpu:-1", "8"},
       false},
      {"cpus-per-gpu", {}, {"0", "4k", "two"}},
      {"jobid", {"12"}, {"x", "-1", "12.0"}},
  };
  for (const char* count : {"ntasks", "ntasks-per-node", "cpus-per-task", "ntasks-per-core", "mincpus",
                            "cores-per-socket", "sockets-per-node", "threads"})
    samples.push_back({count, {"1"}, {"0", "-1", "two", "1.5", "4k", "2-4"}});
  for (const char* size : {"mem-per-cpu", "tmp"})
    samples.push_back({size, {"0", "64", "1G"}, {"64X", "foo", "1.5G", "-1"}});
  return samples;
}

inline std::vector<OptionSample> sbatch_samples() {
  return {
      {"signal", {"B:USR1@120", "R:10@5", "RB:USR1@2", "USR1"}, {"FOO", "X:USR1", "USR1@99999"}},
      {"wait-all-nodes", {"0", "1"}, {"2", "x"}},
      {"kill-on-invalid-dep", {"yes", "no"}, {"x"}},
      {"export-file", {"/dev/null"}, {"nofile"}},
      {"bbf", {}, {"nofile"}},
      {"array", {"0-15", "0,6,16-32", "0-15:4", "0-15%4"}, {"x", "5-3", "1-", "0-1,x"}, false},
      {"dependency",
       {"afterok:12", "afterok:12:13", "singleton", "after:12+5", "afterok:1,afterany:2",
        "afterok:1?afterany:2"},
       {"x", "afterok", "afterok:x"},
       false},
  };
}

inline std::vector<OptionSample> container_samples() {
  return {
      {"memory", {"64GiB", "1.5g", "512m", "1073741824", "64gb"}, {"foo", "-1", "64X", "g"}},
      {"shm-size", {"16g", "64GB", "1e9"}, {"foo", "-1"}},
      {"memory-swap", {"-1", "2g"}, {"x", "-2"}},
      {"cpus", {"8", "1.5", "1/2", "1e1", "0"}, {"foo", "1.5.2", "two"}},
      {"ulimit",
       {"nofile=1024", "nofile=1:2", "memlock=-1", "stack=67108864:-1"},
       {"nofile", "foo=1", "nofile=2:1", "nofile=x"}},
      {"publish",
       {"80", "8080:80", "127.0.0.1:8080:80", "1.2.3.4:80:90/tcp", "80-82:90-92", "127.0.0.1::80",
        "[::1]:80:80"},
       {"x:80", "80/foo", "99999", "80:x"}},
      {"expose", {"80", "80-90", "80/udp"}, {"foo", "90-80"}},
      {"restart", {"no"}, {"always", "foo"}},
      {"pull", {"always", "missing", "never"}, {"foo"}},
      {"attach", {"stdin", "STDOUT"}, {"foo"}},
      {"add-host", {"a:1.2.3.4", "a:host-gateway", "a:::1"}, {"a", "a:foo"}},
      {"mac-address", {"92:d0:c6:0a:29:33"}, {"foo", "92:d0"}},
      {"device",
       {"/dev/fuse", "/dev/fuse:/dev/x:rw", "/dev/fuse:r", "nvidia.com/gpu=all"},
       {"foo", "/dev/fuse:/x:q"},
       false},
      {"device-cgroup-rule", {"c 1:3 mr", "a *:* rwm"}, {"foo", "c 1:3 q"}},
      {"device-read-bps", {"/dev/sda:1mb"}, {"/dev/sda:foo", "/dev/sda"}},
      {"device-read-iops", {"/dev/sda:100"}, {"/dev/sda:foo"}},
      {"health-interval", {"5s", "1m30s", "1.5h", "0"}, {"5", "5 s", "soon"}},
      {"health-retries", {"3"}, {"-1", "x"}},
      {"mount", {"type=bind,src=/a,dst=/b", "type=tmpfs,destination=/b,readonly"}, {"type=bind", "foo"}},
      {"pid", {"host", "container:x"}, {"foo"}},
      {"uts", {"host"}, {"foo"}},
      {"userns", {"host"}, {"foo"}},
      {"cgroupns", {"host", "private"}, {"foo"}},
      {"ipc", {"host", "private", "shareable", "none", "container:x"}, {"foo"}, false},
      {"sysctl", {"net.core.somaxconn=1024"}, {"foo"}},
      {"gpus", {"all", "2", "device=0,1", "\"device=0,1\"", "-1"}, {"foo"}},
      {"cpuset-cpus", {"0-3,8", "1"}, {"foo", "3-0"}, false},
      {"stop-signal", {"TERM", "SIGUSR1", "15", "RTMIN+3"}, {"foo"}, false},
      {"oom-score-adj", {"-1000", "500"}, {"5000", "x"}, false},
      {"memory-swappiness", {"0", "100", "-1"}, {"500"}},
      {"platform", {"linux/amd64", "linux"}, {"a/b/c/d"}},
      {"workdir", {"/work"}, {"x"}, false},
      {"tmpfs", {"/run", "/run:size=64m"}, {"run"}, false},
      {"volume",
       {"/tmp:/data", "/tmp:/data:ro,z", "name:/data", "/tmp"},
       {"/tmp:data", "/tmp:/data:foo", "/tmp:/", "name"},
       false},
      {"cap-add", {"SYS_PTRACE", "CAP_SYS_ADMIN", "all", "sys_nice"}, {"FOO"}, false},
      {"security-opt", {"seccomp=unconfined", "no-new-privileges", "label:disable"}, {"foo"}},
      {"env-file", {"/dev/null"}, {"nofile"}},
      {"cpu-shares", {"512"}, {"x"}},
      {"pids-limit", {"100", "-1"}, {"x"}},
      {"stop-timeout", {"30"}, {"x"}},
      {"name", {"train", "a.b-c_1"}, {"a/b", "-a"}, false},
  };
}

}  // namespace primus::test
