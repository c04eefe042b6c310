#include "base/files/file_mapping.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

namespace primus {

// An element of a list. Elements are never removed, because the signal handler may read the list at any time.
// Unused elements are reused.
struct FileMapping::Slot {
  std::atomic<bool> taken{true};
  std::atomic<std::uintptr_t> begin{0}, end{0};  // both 0: unused
  std::atomic<bool> tolerant{false}, torn{false};
  std::atomic<const char*> path{nullptr};
  Slot* next = nullptr;
};

namespace {

using Slot = FileMapping::Slot;

std::atomic<Slot*> first_slot{nullptr};
static_assert(std::atomic<Slot*>::is_always_lock_free && std::atomic<std::uintptr_t>::is_always_lock_free);

constexpr int kExitCode = 2;  // the exit code of Error(kInvalid): the input is invalid

// Prints to stderr, with async-signal-safe functions only.
void say(const char* text) {
  std::size_t done = 0;
  const std::size_t size = std::strlen(text);
  while (done < size) {
    const ssize_t put = ::write(STDERR_FILENO, text + done, size - done);
    if (put <= 0) return;
    done += static_cast<std::size_t>(put);
  }
}

extern "C" void on_missing_page(int signal_number, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (Slot* slot = first_slot.load(); slot != nullptr; slot = slot->next) {
    if (address < slot->begin.load() || address >= slot->end.load()) continue;
    if (!slot->tolerant.load()) {
      say("error: '");
      say(slot->path.load());
      say("' was truncated while it was read\n  hint: restore the whole file, and start again\n");
      ::_exit(kExitCode);
    }
    slot->torn.store(true);
    const std::uintptr_t page = address & ~(static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)) - 1);
    // All later pages are missing, too, and also become zeros. The reader detects missing pages with
    // check_unchanged().
    if (::mmap(reinterpret_cast<void*>(page), slot->end.load() - page, PROT_READ,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED) {
      errno = saved_errno;
      return;
    }
    break;
  }
  // The fault is outside of our mappings, or cannot be handled. Restores the default action, which ends the
  // process when the read is repeated after the handler.
  std::signal(signal_number, SIG_DFL);
  errno = saved_errno;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_missing_page;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, nullptr);
  });
}

Slot* take_slot() {
  for (Slot* slot = first_slot.load(); slot != nullptr; slot = slot->next) {
    bool taken = false;
    if (slot->taken.compare_exchange_strong(taken, true)) return slot;
  }
  auto* const slot = new Slot;  // never freed, because the handler may read it at any time
  slot->next = first_slot.load();
  while (!first_slot.compare_exchange_weak(slot->next, slot)) {
  }
  return slot;
}

}  // namespace

FileMapping::FileMapping(Path path, int descriptor, std::size_t size)
    : path_(std::move(path)), descriptor_(descriptor) {
  struct stat status {};
  void* const address = ::fstat(descriptor_, &status) == 0
                            ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_, 0)
                            : MAP_FAILED;
  if (address == MAP_FAILED) {
    const int code = errno;
    ::close(descriptor_);
    throw FileError(fmt::format("cannot map '{}'", path_.string()), code);
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
  changed_seconds_ = status.st_mtim.tv_sec;
  changed_nanoseconds_ = status.st_mtim.tv_nsec;
  install_handler();
  slot_ = take_slot();
  slot_->tolerant.store(false);
  slot_->torn.store(false);
  slot_->path.store(path_.c_str());
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  slot_->begin.store(begin);
  slot_->end.store(begin + size);
}

FileMapping::~FileMapping() {
  slot_->end.store(0);
  slot_->begin.store(0);
  slot_->path.store(nullptr);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  ::close(descriptor_);
  slot_->taken.store(false);
}

void FileMapping::tolerate_truncation() const { slot_->tolerant.store(true); }

void FileMapping::check_unchanged() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    throw FileError(fmt::format("cannot look at '{}'", path_.string()), errno);
  }
  const char* hint = "restore the file, and start again";
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size != bytes_.size()) {
    throw invalid(fmt::format("'{}' changed from {} to {} bytes while it was in use", path_.string(),
                              bytes_.size(), size),
                  hint);
  }
  if (slot_->torn.load() || status.st_mtim.tv_sec != changed_seconds_ ||
      status.st_mtim.tv_nsec != changed_nanoseconds_) {
    throw invalid(fmt::format("'{}' was written to while it was in use", path_.string()), hint);
  }
}

}  // namespace primus
