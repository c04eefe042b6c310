// libprimus_comm-mpi.so: implements comm/mpi/library.h.
#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "comm/comm_abi.h"
#include "comm/mpi/library.h"
#include "comm/mpi/mpi_links.h"

namespace primus::comm::mpi {
namespace {

class MpiLibrary final : public Library {
 public:
  MpiLibrary() {
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
      throw Error(ErrorKind::kDependency, "MPI cannot be initialized", "start the job with mpirun");
    if (provided < MPI_THREAD_MULTIPLE) {
      throw Error(ErrorKind::kDependency,
                  version() + " was built without MPI_THREAD_MULTIPLE, which several groups of ranks need",
                  "build or install it with thread support");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm here;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here);
    MPI_Comm_rank(here, &local_rank_);
    MPI_Comm_size(here, &local_size_);
    // A host is identified by its lowest rank.
    int first = rank_;
    MPI_Bcast(&first, 1, MPI_INT, 0, here);
    std::vector<int> firsts(static_cast<std::size_t>(size_));
    MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, MPI_COMM_WORLD);
    MPI_Comm_free(&here);
    std::sort(firsts.begin(), firsts.end());
    firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
    host_ = static_cast<int>(std::lower_bound(firsts.begin(), firsts.end(), first) - firsts.begin());
  }

  std::string version() const override {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    // Cut "Open MPI v4.1.4, package: ..., ident: ..." at the first comma.
    return std::string(text, std::min(static_cast<std::size_t>(length), std::strcspn(text, ",\n")));
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }
  int host() const override { return host_; }

  std::string broadcast(const std::string& text) override {
    auto length = static_cast<unsigned long long>(text.size());
    MPI_Bcast(&length, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    std::string all = text;
    all.resize(length);
    MPI_Bcast(all.data(), static_cast<int>(length), MPI_BYTE, 0, MPI_COMM_WORLD);
    return all;
  }

  std::unique_ptr<Links> make_links(std::span<const int> members, int tag) override {
    return std::make_unique<MpiLinks>(members, tag);
  }
  int max_tag() const override {
    void* value = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
    constexpr int kMinOfAll = 32767;  // the minimum that the standard guarantees
    return found ? *static_cast<int*>(value) : kMinOfAll;
  }

  void finish() noexcept override { MPI_Finalize(); }

 private:
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1, host_ = 0;
};

Library& start() {
  static MpiLibrary library;
  return library;
}

const Plugin kPlugin = {.abi = kCommAbi, .start = &start};

}  // namespace
}  // namespace primus::comm::mpi

extern "C" __attribute__((visibility("default"))) const primus::comm::mpi::Plugin* primus_mpi_plugin() {
  return &primus::comm::mpi::kPlugin;
}
