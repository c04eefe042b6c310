#include "comm/local/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/sha256.h"

namespace primus::comm::local {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 20ms;
constexpr const char* kHint = "raise the limit of the container's memory, or of open files (ulimit -n)";

std::shared_ptr<std::byte> map(int fd, std::size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw io_error(fmt::format("cannot map {} bytes of shared memory", bytes), errno, kHint);
  }
  return {static_cast<std::byte*>(address), [bytes](std::byte* memory) { munmap(memory, bytes); }};
}

constexpr const char* kDescriptors = "raise the limit of open files ('ulimit -n'), or start fewer ranks here";

// Makes an address in the abstract namespace. Such an address needs no file and disappears with the socket.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof(address.sun_path) - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool same_user(const Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

void wait_readable(const Socket& socket, Deadline deadline, const std::function<void()>& check,
                   const char* what) {
  for (;;) {
    pollfd entry{socket.fd(), POLLIN, 0};
    if (poll(&entry, 1,
             static_cast<int>(std::min<std::int64_t>(milliseconds_until(deadline), kTick.count()))) > 0) {
      return;
    }
    check();
    if (milliseconds_until(deadline) == 0)
      throw Error(ErrorKind::kIo, what, "see the logs of the other ranks");
  }
}

// A message of one byte with room for one descriptor. It is not copied: `header` points to other members.
struct DescriptorMessage {
  char byte = 'm';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  DescriptorMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;
};

}  // namespace

std::string host_identity() {
  try {
    std::string boot = read_file("/proc/sys/kernel/random/boot_id", 100);
    boot.erase(boot.find_last_not_of('\n') + 1);
    return fmt::format("{} {} {}", boot, std::filesystem::read_symlink("/proc/self/ns/net").string(),
                       geteuid());
  } catch (const std::exception&) {
    return hex(random_bytes(16));  // a random text, because it must differ from that of every other process
  }
}

SharedMemory create_shared_memory(std::size_t bytes) {
  SharedMemory result;
  result.descriptor = Socket(memfd_create("primus", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!result.descriptor.valid() || ftruncate(result.descriptor.fd(), static_cast<off_t>(bytes)) != 0) {
    throw io_error(fmt::format("cannot get {} bytes of shared memory", bytes), errno,
                   errno == EFBIG ? "raise the limit of file sizes (ulimit -f)" : kHint);
  }
  // Seals the file, because truncating it would crash processes that have mapped it.
  if (fcntl(result.descriptor.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw io_error("cannot seal shared memory", errno);
  }
  result.memory = map(result.descriptor.fd(), bytes);
  return result;
}

DescriptorGiver::DescriptorGiver()
    : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
      name_("primus-" + hex(random_bytes(16))) {
  sockaddr_un address;
  const socklen_t size = abstract_address(name_, address);
  if (!listener_.valid() || bind(listener_.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_.fd(), 1024) != 0) {
    throw io_error("cannot listen on a local socket", errno);
  }
}

void DescriptorGiver::give(const Socket& descriptor, int receivers, Deadline deadline,
                           const std::function<void()>& check) {
  while (receivers > 0) {
    wait_readable(listener_, deadline, check,
                  "a rank of this host did not connect to the shared memory in time");
    const Socket peer(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid() && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
      throw io_error("cannot send the shared memory to the ranks of this host", errno, kDescriptors);
    }
    if (!peer.valid() || !same_user(peer)) continue;
    DescriptorMessage message;
    cmsghdr* const header = CMSG_FIRSTHDR(&message.header);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = descriptor.fd();
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (sendmsg(peer.fd(), &message.header, MSG_NOSIGNAL) == 1) --receivers;
  }
}

std::shared_ptr<std::byte> map_from_giver(const std::string& name, std::size_t bytes, Deadline deadline,
                                          const std::function<void()>& check) {
  const Socket peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  if (name.size() >= sizeof(address.sun_path))
    throw Error(ErrorKind::kIo, "the name of the local socket is too long");
  const socklen_t size = abstract_address(name, address);
  if (!peer.valid() || connect(peer.fd(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    throw io_error("cannot connect to the rank that owns the shared memory", errno, "see that rank's log");
  }
  if (!same_user(peer))
    throw Error(ErrorKind::kIo, "another user's process offers shared memory under this job's name");
  wait_readable(peer, deadline, check, "the rank that owns the shared memory did not answer in time");
  DescriptorMessage message;
  const ssize_t got = recvmsg(peer.fd(), &message.header, MSG_CMSG_CLOEXEC);
  // The kernel drops the descriptor if this process has too many open descriptors.
  if (got == 1 && (message.header.msg_flags & MSG_CTRUNC) != 0) {
    throw io_error("cannot receive the shared memory of this host's ranks", EMFILE, kDescriptors);
  }
  const cmsghdr* const header = got == 1 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (!header || header->cmsg_type != SCM_RIGHTS) {
    throw Error(ErrorKind::kIo, "the rank that owns the shared memory has exited", "see that rank's log");
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  const Socket owned(fd);
  struct stat status {};
  if (fstat(fd, &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes) {
    throw Error(ErrorKind::kIo, "the shared memory of this host's ranks has an unexpected size",
                "run the same build of Primus on all ranks");
  }
  return map(fd, bytes);
}

}  // namespace primus::comm::local
