#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"
#include "safe/postmortem/cause.h"

namespace primus::postmortem {
namespace {

using enum Source;
using enum Role;

// --- Kernels and hardware

constexpr Pattern kHostOutOfMemory[] = {{kKernel, "out of memory: killed process"},
                                        {kKernel, "memory cgroup out of memory"},
                                        {kKernel, "oom-kill:"},
                                        {kScheduler, "oom_kill event"},
                                        {kScheduler, "oom-kill event"},
                                        {kScheduler, "oomkilled"},
                                        {kScheduler, "out_of_memory"},
                                        {kEvent, "supervise out-of-memory kill"},
                                        {kEvent, "out-of-memory killer ended"},
                                        {kLog, "out of memory: killed process"},
                                        {kLog, "out-of-memory killer ended"},
                                        {kLog, "oom_kill event"},
                                        {kLog, "oom-kill event"},
                                        {kLog, "cannot allocate memory"},
                                        {kEvent, "cannot allocate memory"},
                                        {kKernel, "killed process*total-vm"},
                                        {kLog, "the run needs*of memory, but*are free"},
                                        {kEvent, "the run needs*of memory, but*are free"}};
constexpr Pattern kGpuLost[] = {{kKernel, "xid*: 79,"},
                                {kKernel, "gpu has fallen off the bus"},
                                {kLog, "gpu has fallen off the bus"},
                                {kLog, "gpu is lost"},
                                {kKernel, "amdgpu*device lost from bus"},
                                {kKernel, "pcieport*surprise down"},
                                {kEvent, "gpu_error*xid 79,"}};
constexpr Pattern kGpuMemory[] = {{kKernel, "xid*: 48,"},
                                  {kKernel, "xid*: 63,"},
                                  {kKernel, "xid*: 64,"},
                                  {kKernel, "xid*: 94,"},
                                  {kKernel, "xid*: 95,"},
                                  {kKernel, "xid*: 92,"},
                                  {kKernel, "amdgpu*uncorrectable"},
                                  {kKernel, "amdgpu*poison"},
                                  {kLog, "uncorrectable ecc error"},
                                  {kLog, "cudaerroreccuncorrectable"},
                                  {kLog, "hiperroreccnotcorrectable"},
                                  {kEvent, "gpu_memory*uncorrectable"},
                                  {kEvent, "gpu_error*xid 48,"},
                                  {kEvent, "gpu_error*xid 63,"},
                                  {kEvent, "gpu_error*xid 64,"},
                                  {kEvent, "gpu_error*xid 92,"},
                                  {kEvent, "gpu_error*xid 94,"},
                                  {kEvent, "gpu_error*xid 95,"}};
constexpr Pattern kGpuLink[] = {
    {kKernel, "xid*: 74,"},         {kKernel, "xid*: 144,"},        {kKernel, "xid*: 145,"},
    {kKernel, "xid*: 149,"},        {kKernel, "nvlink*fatal"},      {kKernel, "sxid*fatal"},
    {kKernel, "amdgpu*xgmi*error"}, {kLog, "nvlink error"},         {kEvent, "gpu_error*xid 74,"},
    {kEvent, "gpu_error*xid 144,"}, {kEvent, "gpu_error*xid 145,"}, {kEvent, "gpu_error*xid 149,"}};
constexpr Pattern kGpuFirmware[] = {
    {kKernel, "xid*: 119,"},        {kKernel, "xid*: 120,"},
    {kKernel, "xid*: 62,"},         {kKernel, "xid*: 109,"},
    {kKernel, "xid*: 46,"},         {kKernel, "gsp*timeout"},
    {kKernel, "amdgpu*smu*failed"}, {kKernel, "amdgpu*failed to load firmware"},
    {kEvent, "gpu_error*xid 119,"}, {kEvent, "gpu_error*xid 120,"},
    {kEvent, "gpu_error*xid 62,"},  {kEvent, "gpu_error*xid 109,"},
    {kEvent, "gpu_error*xid 46,"}};
constexpr Pattern kGpuReset[] = {{kKernel, "amdgpu*gpu reset begin"},
                                 {kKernel, "amdgpu*ring*timeout"},
                                 {kKernel, "amdgpu*gpu hang"},
                                 {kKernel, "amdgpu*queue preemption time out"},
                                 {kKernel, "xid*: 8,"},
                                 {kKernel, "nvrm: gpu*reset required"}};
constexpr Pattern kGpuAccess[] = {
    {kKernel, "xid*: 31,"},         {kKernel, "xid*: 13,"},          {kKernel, "xid*: 43,"},
    {kKernel, "amdgpu*page fault"}, {kLog, "illegal memory access"}, {kLog, "memory access fault by gpu"},
    {kLog, "misaligned address"},   {kLog, "hsa_status_error"},      {kEvent, "gpu_error*xid 31,"},
    {kEvent, "gpu_error*xid 13,"},  {kEvent, "gpu_error*xid 43,"}};
constexpr Pattern kGpuPower[] = {{kLog, "hw power brake slowdown*: active"},
                                 {kEvent, "gpu_throttled*power brake"}};
constexpr Pattern kGpuHeat[] = {
    {kLog, "hw thermal slowdown*: active"},   {kLog, "sw thermal slowdown*: active"},
    {kEvent, "gpu_throttled*thermal"},        {kKernel, "nvrm*thermal"},
    {kKernel, "amdgpu*over temperature"},     {kKernel, "amdgpu*thermal"},
    {kKernel, "temperature above threshold"}, {kKernel, "critical temperature reached"}};
constexpr Pattern kMachineCheck[] = {{kKernel, "machine check exception"},
                                     {kKernel, "machine check*uncorrected"},
                                     {kKernel, "processor context corrupt"},
                                     {kKernel, "uncorrected hardware memory error"},
                                     {kKernel, "fatal machine check"},
                                     {kKernel, "hardware error*fatal"},
                                     {kKernel, "edac* ue "},
                                     {kKernel, "kernel panic"},
                                     {kKernel, "nmi watchdog*lockup"},
                                     {kKernel, "soft lockup"},
                                     {kKernel, "memory failure:*hardware memory corruption"}};
constexpr Pattern kDiskFault[] = {{kKernel, "i/o error, dev"},
                                  {kKernel, "buffer i/o error"},
                                  {kKernel, "nvme*controller is down"},
                                  {kKernel, "nvme*timeout, reset controller"},
                                  {kKernel, "nvme*i/o*timeout"},
                                  {kKernel, "ext4-fs error"},
                                  {kKernel, "xfs*corruption"},
                                  {kKernel, "xfs*metadata i/o error"},
                                  {kKernel, "btrfs*error"},
                                  {kLog, "input/output error"},
                                  {kEvent, "input/output error"}};
constexpr Pattern kReadOnly[] = {{kKernel, "remounting filesystem read-only"},
                                 {kLog, "read-only file system"},
                                 {kEvent, "read-only file system"}};
constexpr Pattern kSharedStorage[] = {{kKernel, "nfs: server*not responding"},
                                      {kKernel, "nfs: server*timed out"},
                                      {kKernel, "lustreerror"},
                                      {kKernel, "lustre*request sent has timed out"},
                                      {kKernel, "task primus*blocked for more than"},
                                      {kKernel, "lustre:*connection*lost"},
                                      {kKernel, "beegfs*error"},
                                      {kKernel, "ceph*session lost"},
                                      {kLog, "stale file handle"},
                                      {kEvent, "stale file handle"},
                                      {kLog, "transport endpoint is not connected"},
                                      {kEvent, "transport endpoint is not connected"},
                                      {kLog, "cannot send after transport endpoint shutdown"},
                                      {kEvent, "cannot send after transport endpoint shutdown"}};
constexpr Pattern kLinkDown[] = {{kKernel, "mlx5*link down"},
                                 {kKernel, "link is down"},
                                 {kKernel, "nic link is down"},
                                 {kKernel, "bnxt_en*link is down"},
                                 {kKernel, "infiniband*port_err"},
                                 {kKernel, "mlx5_core*health*error"},
                                 {kKernel, "netdev watchdog*timed out"},
                                 {kLog, "ib_event_port_err"},
                                 {kLog, "transport retry counter exceeded"},
                                 {kLog, "ibv_wc_retry_exc_err"},
                                 {kLog, "local catastrophic error"},
                                 {kEvent, "network_port*went down"}};

// --- Schedulers

constexpr Pattern kNodeLost[] = {{kEvent, "supervise lost node"},
                                 {kScheduler, "due to node failure"},
                                 {kScheduler, "due to failure of node"},
                                 {kScheduler, "node_fail"},
                                 {kScheduler, "not responding, setting down"},
                                 {kScheduler, "node failure on"},
                                 {kScheduler, "nodenotready"},
                                 {kScheduler, "nodelost"},
                                 {kScheduler, "nodeshutdown"},
                                 {kScheduler, "terminated by taint"},
                                 {kLog, "due to node failure"}};
constexpr Pattern kTimeLimit[] = {{kScheduler, "|timeout|"},
                                  {kScheduler, "due to time limit"},
                                  {kLog, "due to time limit"},
                                  {kScheduler, "deadlineexceeded"},
                                  {kScheduler, "activedeadlineseconds"}};
constexpr Pattern kPreempted[] = {{kScheduler, "due to preemption"},
                                  {kLog, "due to preemption"},
                                  {kScheduler, "preempted"},
                                  {kScheduler, "preempting"}};
constexpr Pattern kEvicted[] = {{kScheduler, "the node was low on resource"},
                                {kScheduler, "exceeded its local ephemeral storage limit"},
                                {kScheduler, "evicted"}};
constexpr Pattern kImage[] = {{kScheduler, "imagepullbackoff"},
                              {kScheduler, "errimagepull"},
                              {kScheduler, "failed to pull image"},
                              {kLog, "manifest unknown"},
                              {kLog, "pull access denied"}};
constexpr Pattern kUnschedulable[] = {{kScheduler, "failedscheduling"},
                                      {kScheduler, "nodes are available*insufficient"}};
constexpr Pattern kMountFailed[] = {{kScheduler, "failedmount"}, {kScheduler, "mountvolume.setup failed"}};
constexpr Pattern kCancelled[] = {{kScheduler, "|cancelled by"},
                                  {kScheduler, "cancelled at"},
                                  {kScheduler, "signal*to*cancelled by"},
                                  {kLog, "cancelled at"}};

// --- Programs, data, settings

constexpr Pattern kCorruption[] = {{kEvent, "supervise silent corruption"},
                                   {kEvent, "silent_corruption"},
                                   {kEvent, "fault silent corruption"},
                                   {kLog, "silent corruption: "}};
constexpr Pattern kNan[] = {
    {kEvent, "supervise nan"}, {kEvent, "fault nan"}, {kLog, "is not a number (nan)"}};
constexpr Pattern kDiskFull[] = {
    {kEvent, "supervise disk full"},       {kEvent, "fault disk full"},
    {kEvent, "no space left on device"},   {kLog, "no space left on device"},
    {kLog, "a checkpoint needs*but*free"}, {kEvent, "a checkpoint needs*but*free"},
    {kKernel, "no space left on device"}};
constexpr Pattern kQuota[] = {{kLog, "disk quota exceeded"}, {kEvent, "disk quota exceeded"}};
constexpr Pattern kFileLimit[] = {
    {kEvent, "supervise file size limit"}, {kLog, "file too large"}, {kEvent, "file too large"}};
constexpr Pattern kDeviceOutOfMemory[] = {{kLog, "out of device memory"},
                                          {kEvent, "out of device memory"},
                                          {kLog, "cuda out of memory"},
                                          {kLog, "cuda_error_out_of_memory"},
                                          {kLog, "cudaerrormemoryallocation"},
                                          {kEvent, "supervise out of memory"},
                                          {kLog, "hiperroroutofmemory"},
                                          {kLog, "hip out of memory"},
                                          {kEvent, "fault out of memory"},
                                          {kLog, "the run needs*of the device's memory, but"},
                                          {kEvent, "the run needs*of the device's memory, but"},
                                          {kLog, "the run needs*of device memory and"},
                                          {kEvent, "the run needs*of device memory and"}};
constexpr Pattern kLibrary[] = {{kLog, "error while loading shared libraries"},
                                {kLog, "version `glibc"},
                                {kLog, "undefined symbol"},
                                {kLog, "driver version is insufficient"},
                                {kLog, "unsupported display driver"},
                                {kLog, "the nvidia driver shows no gpu"},
                                {kLog, "driver/library version mismatch"},
                                {kKernel, "nvrm: api mismatch"},
                                {kLog, "cannot find the device plug-in"},
                                {kLog, "no kernel image is available"}};
constexpr Pattern kDescriptors[] = {{kLog, "too many open files"}, {kEvent, "too many open files"}};
constexpr Pattern kThreads[] = {{kLog, "fork: retry"},
                                {kLog, "resource temporarily unavailable"},
                                {kEvent, "resource temporarily unavailable"},
                                {kKernel, "fork rejected by pids controller"}};
constexpr Pattern kPermission[] = {{kLog, "permission denied"}, {kEvent, "permission denied"}};
constexpr Pattern kDamaged[] = {{kEvent, "checksum"},
                                {kLog, "checksum"},
                                {kLog, "is damaged"},
                                {kEvent, "is damaged"},
                                {kLog, "crc32c"},
                                {kEvent, "crc32c"},
                                {kLog, "broken json"},
                                {kEvent, "broken json"},
                                {kLog, "not valid utf-8"},
                                {kEvent, "not valid utf-8"},
                                {kLog, "cut short"},
                                {kEvent, "cut short"},
                                {kLog, "changed from*bytes while it was in use"},
                                {kEvent, "changed from*bytes while it was in use"},
                                {kLog, "was written to while it was in use"},
                                {kEvent, "was written to while it was in use"},
                                {kLog, "no checkpoint in*can be used"},
                                {kEvent, "no checkpoint in*can be used"}};
constexpr Pattern kVersions[] = {{kLog, "uses version*of the rendezvous protocol"},
                                 {kLog, "was started with world_size="},
                                 {kLog, "ranks*and*differ in"},
                                 {kEvent, "ranks*and*differ in"},
                                 {kLog, "other settings"},
                                 {kLog, "another version of primus"}};
constexpr Pattern kMismatch[] = {{kLog, "differ in what they call"}, {kEvent, "differ in what they call"}};
constexpr Pattern kSetting[] = {{kLog, "command line: error:"},
                                {kLog, ".yaml:*error:"},
                                {kLog, ".yml:*error:"},
                                {kLog, "error: unknown key"},
                                {kLog, "config.json:*: error: "},
                                {kEvent, "config.json:*: error: "},
                                {kLog, "tokenizer.json:*: error: "},
                                {kEvent, "tokenizer.json:*: error: "},
                                {kLog, "index.json:*: error: "},
                                {kEvent, "index.json:*: error: "}};
constexpr Pattern kRecord[] = {{kLog, ".json*:*: error: "},   {kEvent, ".json*:*: error: "},
                               {kLog, ".ndjson:*: error: "},  {kEvent, ".ndjson:*: error: "},
                               {kLog, "the line has no key"}, {kEvent, "the line has no key"}};
constexpr Pattern kMissing[] = {
    {kLog, "names only one of a pair of files"}, {kEvent, "names only one of a pair of files"},
    {kLog, "no such file or directory"},         {kEvent, "no such file or directory"},
    {kLog, "data '*' does not exist"},           {kEvent, "data '*' does not exist"},
    {kLog, "data file '*' does not exist"},      {kEvent, "data file '*' does not exist"},
    {kLog, "file or folder '*' does not exist"}, {kEvent, "file or folder '*' does not exist"},
    {kLog, "model folder '*' does not exist"},   {kEvent, "model folder '*' does not exist"},
    {kLog, "the tokenizer*'*' does not exist"},  {kEvent, "the tokenizer*'*' does not exist"},
    {kLog, "the program '*' does not exist"},    {kEvent, "the program '*' does not exist"}};
constexpr Pattern kSegmentation[] = {{kKernel, "segfault at"},
                                     {kKernel, "general protection fault"},
                                     {kLog, "segmentation fault"},
                                     {kLog, "signal 11"},
                                     {kEvent, "signal 11"}};
constexpr Pattern kBus[] = {{kLog, "bus error"}, {kLog, "signal 7"}, {kEvent, "signal 7"}};
constexpr Pattern kIllegal[] = {{kLog, "illegal instruction"},
                                {kLog, "signal 4 "},
                                {kEvent, "signal 4 "},
                                {kKernel, "trap invalid opcode"}};
constexpr Pattern kAbort[] = {{kLog, "terminate called after"},
                              {kLog, "signal 6"},
                              {kEvent, "signal 6"},
                              {kLog, "assertion*failed"},
                              {kLog, "check failed"}};
constexpr Pattern kNetwork[] = {{kLog, "no route to host"},
                                {kLog, "network is unreachable"},
                                {kLog, "temporary failure in name resolution"},
                                {kLog, "name or service not known"},
                                {kLog, "cannot assign requested address"}};
constexpr Pattern kPort[] = {{kLog, "address already in use"},
                             {kEvent, "address already in use"},
                             {kLog, "is in use by another program"},
                             {kEvent, "is in use by another program"}};
constexpr Pattern kCrashLoop[] = {{kEvent, "supervise gave up (crash loop)"}};
constexpr Pattern kRankSlow[] = {{kEvent, "slow_rank"}};
constexpr Pattern kSlowStorage[] = {{kEvent, "slow_saves"}, {kEvent, "slow_data"}, {kEvent, "slow_storage"}};
constexpr Pattern kDivergence[] = {{kEvent, "loss_growth"}, {kEvent, "the run diverges"}};
constexpr Pattern kNeverArrived[] = {
    {kLog, "missing ranks"}, {kLog, "ranks are missing"}, {kLog, "have not arrived"}};
constexpr Pattern kHang[] = {{kEvent, "supervise hang"},
                             {kLog, "has not called it"},
                             {kEvent, "has not called it"},
                             {kLog, "is in*and waits for rank"},
                             {kEvent, "is in*and waits for rank"},
                             {kLog, "is missing and does not answer"},
                             {kEvent, "is missing and does not answer"},
                             {kLog, "watchdog caught collective operation timeout"}};
constexpr Pattern kCollectives[] = {{kLog, "nccl*unhandled"},
                                    {kLog, "ncclsystemerror"},
                                    {kLog, "ncclremoteerror"},
                                    {kLog, "ncclinternalerror"}};
constexpr Pattern kSignal9[] = {
    {kLog, "signal 9"}, {kEvent, "signal 9"}, {kLog, ": killed"}, {kScheduler, ": killed"}};
constexpr Pattern kRankLost[] = {{kEvent, "was lost"},
                                 {kLog, "was lost"},
                                 {kEvent, "stopped before the end"},
                                 {kLog, "stopped before the end"}};
constexpr Pattern kReset[] = {
    {kLog, "connection reset by peer"}, {kLog, "broken pipe"}, {kLog, "connection closed by remote peer"}};
constexpr Pattern kOtherError[] = {{kEvent, "fault error"}, {kEvent, "fault refused"}};
constexpr Pattern kAskedToStop[] = {{kEvent, "stop sig"}, {kEvent, "stop asked to stop"}};
constexpr Pattern kStopNow[] = {{kEvent, "stop without a record"}};
constexpr Pattern kNoSupervisor[] = {{kEvent, "supervise ended without a record"}};
constexpr Pattern kLimit[] = {{kEvent, "stop exit_"}};

constexpr auto kCauses = std::to_array<Cause>({
    {"crash-loop", kLoop, "the job failed again and again without progress, and the supervisor gave up",
     "repair the cause that the evidence names ('or' lists it); then the same command continues.", kCrashLoop,
     "repair the cause that the evidence names ('or' lists it)."},
    {"gpu-lost", kMachine, "a GPU has fallen off its bus",
     "drain the node; power-cycle it, and if this happens again, replace the GPU. Start the job without "
     "the node.",
     kGpuLost, "drain the node; power-cycle it, and if this happens again, replace the GPU."},
    {"gpu-memory-error", kMachine, "uncorrectable error in a GPU's memory",
     "reset the GPU or restart its node before you use it again; replace the GPU if the error returns.",
     kGpuMemory},
    {"gpu-link-error", kMachine, "error of a link between GPUs",
     "run 'primus preflight' on the node, which measures its links; restart the node, or leave it out.",
     kGpuLink},
    {"gpu-firmware", kMachine, "a GPU's firmware does not answer",
     "restart the node, and compare its driver and firmware with the other nodes ('primus preflight').",
     kGpuFirmware},
    {"gpu-reset", kMachine, "a GPU hung and was reset",
     "restart the node, and run 'primus preflight' on it before it takes jobs again.", kGpuReset},
    {"gpu-power", kMachine, "a GPU is slowed down by its power supply (power brake)",
     "check the power supplies and the power limits of the node and its rack.", kGpuPower},
    {"gpu-heat", kMachine, "a GPU or CPU is too hot",
     "check the node's cooling, and leave the node out until then.", kGpuHeat},
    {"gpu-access-fault", kFault, "a kernel read or wrote outside its memory on a GPU",
     "repeat the run on another node. If it fails at the same step, report the fault with the log.",
     kGpuAccess, "if it fails again at the same step, report the fault with the log."},
    {"host-out-of-memory", kMachine,
     "the host's memory was full: the kernel killed a process, or refused memory",
     "use fewer ranks per node, or a larger memory limit of the job; 'primus train ... --dry-run' prints the "
     "memory that a rank needs.",
     kHostOutOfMemory},
    {"machine-check", kMachine, "the hardware or the kernel of a machine failed",
     "drain the node, and have its memory, CPUs and boards tested.", kMachineCheck},
    {"read-only-file-system", kMachine, "a file system became read-only",
     "look for errors of its disk in the kernel's log; repair or replace the disk, and mount it again.",
     kReadOnly},
    {"disk-fault", kMachine, "a disk or its file system reports errors",
     "replace the disk, or choose another folder ('save', 'workspace'); then start the run again.",
     kDiskFault, "replace the disk."},
    {"shared-storage", kMachine, "a shared file system does not answer",
     "check its servers and this node's mount, then start the run again: it resumes from its newest "
     "checkpoint.",
     kSharedStorage, "check its servers and this node's mount."},
    {"network-link", kMachine, "a network port went down or reports errors",
     "check cable, switch port and driver of the named port; 'primus preflight' tests all ports of a node.",
     kLinkDown},
    {"node-lost", kMachine, "a node failed, or lost its connection to the scheduler",
     "check the node's console and power; start the job without it (Slurm: --exclude).", kNodeLost,
     "check the node's console and power."},
    {"evicted", kMachine, "Kubernetes evicted the pod, because its node lacked a resource",
     "raise the pod's requests for memory or ephemeral storage, or write checkpoints to a volume.", kEvicted},
    {"image-pull", kMachine, "the container's image could not be pulled",
     "check the image's name and the registry's credentials on the node.", kImage},
    {"mount-failed", kMachine, "a volume could not be mounted",
     "check the volume's claim and its storage server.", kMountFailed},
    {"unschedulable", kMachine, "no node has the resources that the job requests",
     "reduce the requests, or wait for nodes.", kUnschedulable},
    {"time-limit", kRequest, "the job reached its time limit",
     "submit the same command again; it resumes the run. 'sbatch --requeue' submits it automatically.",
     kTimeLimit, ""},
    {"preempted", kRequest, "a job of higher priority took the nodes",
     "submit the same command again; it resumes the run. 'sbatch --requeue' submits it automatically.",
     kPreempted, ""},
    {"cancelled", kRequest, "the job was cancelled",
     "ask the owner of the job; the same command resumes the run.", kCancelled, "ask the owner of the job."},
    {"stopped-now", kRequest, "the run was asked to stop, and ended without saving ('primus stop --now')",
     "start the same command again; it continues from the newest checkpoint.", kStopNow, ""},
    {"silent-corruption", kMachine, "a device or its memory gave wrong bits without reporting an error",
     "leave the named rank's node out, and test its memory and GPU ('primus preflight'); the same command "
     "continues from a checkpoint from before the damage.",
     kCorruption, "leave the named rank's node out, and test its memory and GPU ('primus preflight')."},
    {"nan", kFault, "the loss or a gradient is not a number (NaN)",
     "check the data of this step and the scale of the model's values; if steps before were good, lower 'lr' "
     "or set 'clip_grad'. The log names the first operator with a NaN.",
     kNan},
    // An event "disk full" may name the quota.
    {"disk-quota", kFault, "the disk quota is used up",
     "remove old files or raise the quota; the same command then resumes the run.", kQuota,
     "remove old files or raise the quota."},
    {"disk-full", kFault, "the disk is full",
     "free space, or choose another folder for checkpoints ('save'); the same command then resumes the run.",
     kDiskFull, "free space."},
    {"file-size-limit", kFault, "a file exceeds the size limit of the process or the file system",
     "raise 'ulimit -f', or use a file system for large files.", kFileLimit},
    {"device-out-of-memory", kFault, "the memory of a device was too small",
     "run the command with --fit, which chooses a mesh and recomputation that fit, or reduce "
     "'micro_batch_size'.",
     kDeviceOutOfMemory},
    {"library-missing", kFault, "a library or a driver is missing or too old",
     "run 'primus doctor' on the node, which names missing libraries.", kLibrary},
    {"file-descriptors", kFault, "the process has too many open files", "raise 'ulimit -n' on the node.",
     kDescriptors},
    {"process-limit", kFault, "the limit of processes or threads was reached",
     "raise 'ulimit -u' or the job's limit.", kThreads},
    {"permission", kFault, "a file or device may not be used",
     "check the owner and the mode of the named path on this node.", kPermission},
    {"damaged-file", kFault, "a file is damaged",
     "restore the named file; an earlier checkpoint loads with load=RUN/checkpoints/iter_N.", kDamaged},
    {"different-collectives", kFault, "ranks called different collectives",
     "report this with the logs: it is a fault of the program, or ranks differ in their data.", kMismatch},
    {"different-ranks", kFault, "the ranks were started with different programs or settings",
     "install one version on all nodes, and start all ranks by one command.", kVersions},
    {"wrong-setting", kFault, "a setting of the experiment is wrong",
     "correct the named setting; 'primus config reference KEY' explains it.", kSetting},
    {"bad-record", kFault, "a record of the data lacks a key or has a wrong value", "correct the named line.",
     kRecord},
    {"segmentation-fault", kFault, "a process read or wrote outside its memory",
     "repeat the run. If it fails again, report it with the log; on one node only, test the node's memory.",
     kSegmentation, "if it fails again, report it with the log; on one node only, test the node's memory."},
    {"bus-error", kFault, "a mapped file or shared memory could not be read",
     "enlarge /dev/shm (containers: --shm-size), and check that no file of the run was truncated.", kBus},
    {"illegal-instruction", kFault, "the program contains an instruction that this CPU lacks",
     "use a build for this CPU (scripts/build.sh -DPRIMUS_CPU_KERNELS=all).", kIllegal},
    {"aborted", kFault, "the program found an error in its own state and ended",
     "report the message with the log.", kAbort},
    {"port-in-use", kFault, "another program uses the port of the rendezvous",
     "set MASTER_PORT to a free port on all ranks; 'ss -ltnp' shows which program uses the port.", kPort},
    {"network-setup", kFault, "a host could not be reached by its name or address",
     "check MASTER_ADDR, the network's interface and open ports between the nodes.", kNetwork},
    {"rank-never-started", kFault, "some ranks never started", "look at the log of the named ranks' nodes.",
     kNeverArrived},
    {"missing-file", kFault, "a file or folder does not exist", "check the named path on this node.",
     kMissing},
    {"collective-failed", kDeath, "a collective failed",
     "look at the network and GPUs of the named rank's node.", kCollectives},
    {"hang", kDeath, "a rank hung, and the other ranks ended",
     "look at flight-rank-N.json and the node of the named rank; the same command resumes the run.", kHang,
     "look at flight-rank-N.json and the node of the named rank."},
    {"killed", kDeath, "a process was killed (SIGKILL)",
     "look for the out-of-memory killer in the kernel's log of the node (--log), and ask who else can kill "
     "it; the same command continues from the newest checkpoint.",
     kSignal9,
     "look for the out-of-memory killer in the kernel's log of the node (--log), and ask who else can kill "
     "it."},
    {"supervisor-lost", kDeath, "the supervisor was killed, and its ranks ended with it",
     "run the same command again; it continues from the newest checkpoint. Ask who can kill it, and look for "
     "the out-of-memory killer in the kernel's log of its node (--log).",
     kNoSupervisor,
     "ask who can kill the supervisor, and look for the out-of-memory killer in the kernel's log of its node "
     "(--log)."},
    {"rank-lost", kConsequence, "a rank was lost",
     "look at the log and the kernel's log of the named rank's node.", kRankLost},
    {"connection-lost", kConsequence, "a connection to another rank broke",
     "look for the rank that ended first.", kReset},
    {"other-error", kFault, "an error ended the run", "read the message; 'primus runs' shows it, too.",
     kOtherError},
    {"slow-rank", kTrouble, "a rank is slower than its peers, and slowed down the run",
     "look at heat, power and other programs on the rank's node, or leave the node out.", kRankSlow},
    {"slow-storage", kTrouble, "saving or reading took a large share of the time",
     "look at the load of the storage server and at this node's mount; save less often, or in the background "
     "('async_save').",
     kSlowStorage},
    {"divergence", kTrouble, "the loss grew instead of falling",
     "lower 'lr', lengthen 'lr_warmup_iters' or set 'clip_grad', and load an earlier checkpoint.",
     kDivergence},
    {"stopped", kStop, "the run was asked to stop", "start the same command again, which resumes the run.",
     kAskedToStop, ""},
    {"limit", kStop, "the run reached a limit of its experiment",
     "start the same command again, which resumes the run.", kLimit, ""},
    {"died-silently",
     kDeath,
     "the process ended without a record",
     "SIGKILL, the out-of-memory killer or a crash of the machine ended it: pass the kernel's log of the "
     "node and the scheduler's log by --log.",
     {}},
    {"unknown",
     kConsequence,
     "no cause was found",
     "pass further logs by --log: the job's output, the kernel's log of each node, the scheduler's events.",
     {}},
});

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool matches(std::string_view lowered, std::string_view pattern) {
  std::size_t from = 0;
  while (!pattern.empty()) {
    const std::string_view fragment = pattern.substr(0, pattern.find('*'));
    pattern.remove_prefix(std::min(pattern.size(), fragment.size() + 1));
    const std::size_t at = lowered.find(fragment, from);
    if (at == std::string_view::npos) return false;
    from = at + fragment.size();
  }
  return true;
}

}  // namespace

std::string_view name_of(Source source) {
  constexpr std::array<std::string_view, 4> kNames = {"event", "log", "kernel", "scheduler"};
  return kNames[static_cast<std::size_t>(source)];
}

std::span<const Cause> causes() { return kCauses; }

const Cause& cause_named(std::string_view name) {
  const auto* const found = std::ranges::find(kCauses, name, &Cause::name);
  if (found == kCauses.end()) throw invalid(fmt::format("no cause is named '{}'", name));
  return *found;
}

const Cause* match(Source source, std::string_view text) {
  std::string lowered(text);
  std::ranges::transform(lowered, lowered.begin(), lower);
  for (const Cause& cause : kCauses) {
    for (const Pattern& pattern : cause.patterns) {
      if (pattern.source == source && matches(lowered, pattern.text)) return &cause;
    }
  }
  return nullptr;
}

}  // namespace primus::postmortem
