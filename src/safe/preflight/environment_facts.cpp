#include "safe/preflight/environment_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/text/secrets.h"

namespace primus::preflight {
namespace {

// Prefixes of variables of: collectives and networks, drivers and runtimes, kernel libraries, frameworks,
// host threads, and MPI.
constexpr std::string_view kBeginnings[] = {
    "NCCL_",  "RCCL_",    "GLOO_",          "UCX_",      "UCC_",      "FI_",        "IBV_",         "RDMAV_",
    "MLX5_",  "NVSHMEM_", "CUDA_",          "CUBLAS_",   "CUBLASLT_", "CUDNN_",     "NVIDIA_TF32_", "HIP_",
    "HSA_",   "ROCR_",    "GPU_",           "AMD_",      "ROCBLAS_",  "HIPBLASLT_", "MIOPEN_",      "NVTE_",
    "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_",   "XLA_",      "JAX_",       "PRIMUS_",      "OMP_",
    "KMP_",   "GOMP_",    "MKL_",           "OPENBLAS_", "MALLOC_",   "OMPI_MCA_",  "MPICH_",       "I_MPI_",
};
constexpr std::string_view kNames[] = {"LD_LIBRARY_PATH", "LD_PRELOAD"};

// Matching variables that may differ between nodes or ranks of a healthy job. An entry that ends with '_'
// matches all names with this prefix.
constexpr std::string_view kOwn[] = {
    // The scheduler assigns different devices to each task, so only the number of devices is compared.
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    // Folders and processors of a machine's MPS service.
    "CUDA_MPS_",
    // The host's id for NCCL, and log file names, which may contain the host name.
    "NCCL_HOSTID", "NCCL_DEBUG_FILE", "RCCL_DEBUG_FILE", "UCX_LOG_FILE",
    // Set by mpirun for each rank: its number, and addresses and folders of its daemon.
    "OMPI_MCA_ess_", "OMPI_MCA_orte_", "OMPI_MCA_initial_wdir", "I_MPI_INFO_", "I_MPI_HYDRA_",
    // Set for each rank of JAX: its number and its devices.
    "JAX_PROCESS_ID", "JAX_LOCAL_",
    // A process's file descriptor, details of the launch, and the secrets that the rendezvous already
    // compares.
    "PRIMUS_RENDEZVOUS_FD", "PRIMUS_LAUNCHED_STEP", "PRIMUS_SIDE_BY_SIDE", "PRIMUS_JOB_TOKEN",
    "PRIMUS_JOB_TOKEN_FILE"};

// Variables that scripts set for each rank by its local rank.
constexpr std::string_view kRanksOwn[] = {"UCX_NET_DEVICES",  "OMPI_MCA_btl_openib_if_include",
                                          "OMP_PLACES",       "GOMP_CPU_AFFINITY",
                                          "KMP_AFFINITY",     "KMP_HW_SUBSET",
                                          "I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST"};

}  // namespace

bool places_a_rank(std::string_view name) {
  return std::find(std::begin(kRanksOwn), std::end(kRanksOwn), name) != std::end(kRanksOwn);
}

bool changes_jobs(std::string_view name) {
  const bool known = std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
                     std::any_of(std::begin(kBeginnings), std::end(kBeginnings),
                                 [&](std::string_view beginning) { return name.starts_with(beginning); });
  return known && std::none_of(std::begin(kOwn), std::end(kOwn), [&](std::string_view own) {
           return own.ends_with('_') ? name.starts_with(own) : name == own;
         });
}

void add_environment_facts(const Machine& machine, std::vector<Fact>& facts) {
  std::vector<Fact> set;
  for (const std::string& name : machine.variables()) {
    if (!changes_jobs(name)) continue;
    const auto value = machine.variable(name);
    if (value) set.push_back({std::string(kEnvironment), name, shown_value(name, *value), Verdict::kWarn});
  }
  facts.push_back(
      {std::string(kEnvironment), "variables that change how jobs run", std::to_string(set.size())});
  facts.insert(facts.end(), set.begin(), set.end());
}

bool has_environment(const NodeReport& report) {
  return std::any_of(report.facts.begin(), report.facts.end(),
                     [](const Fact& fact) { return fact.category == kEnvironment; });
}

}  // namespace primus::preflight
