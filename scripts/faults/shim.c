/* Injects faults into processes of Primus, for scripts/inject-faults.py. It is loaded with LD_PRELOAD, and wraps
 * functions of libc. A fault happens at an exact point: the n-th call of a wrapped function after an event of the run.
 * The script that writes the plan removes nothing: each fault has a token file, and the process that removes it injects
 * the fault, so a fault happens once, even if the job is restarted.
 *
 * Environment: FAULT_FOLDER (has `plan`, tokens, and process numbers by role), FAULT_RUN (the run's folder).
 *
 * A line of the plan: token needed-token role event hook count actions
 *   needed-token: the fault waits until this token is gone; '-': none
 *   role:    of the process that waits: rank-0, launcher, supervisor-0 ...
 *   event:   a part of the line of the run's events after which calls are counted; '-': from the start
 *   hook:    clock, open, pwrite, rename, futex, event; clock counts calls of the main thread
 *   actions: role=action[:argument], separated by ';' without spaces; '+' stands for a space in an argument
 * The role of an action may be `self`. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kFaults = 8, kSignal = 5 };
enum Action { kExit = 1, kHang, kSpin, kNanLog, kNanExp, kDiskFull, kWriteError, kReadOnly, kFileLimit, kMemory,
              kOpenFiles, kSockets, kPartition, kSlow, kClock, kBlock, kSegv, kThrow, kKeep, kPace, kAwait };
static const char* const kNames[] = {"", "exit", "hang", "spin", "nan-log", "nan-exp", "disk-full", "write-error",
                                     "read-only", "file-limit", "memory", "open-files", "sockets", "partition", "slow",
                                     "clock", "block", "segv", "throw", "keep", "pace", "await"};

struct Fault {
  char token[32], needed[32], event[96], hook[16], actions[1024];
  int count;
  atomic_int armed, done;
};
static struct Fault faults[kFaults];
static int fault_count;
static char folder[512], run_folder[512], role[32];
static atomic_int nan_log, nan_exp, disk_full, write_error, read_only, partition, keep;
static atomic_long clock_offset;  /* seconds */
static atomic_long slow_until, block_until, pace_until;  /* milliseconds of the raw clock */
static __thread int inside;

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static long now_ms(void) {
  struct timespec t;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
static void pause_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}
static int path_of(char* out, size_t size, const char* name) { return snprintf(out, size, "%s/%s", folder, name); }
static int gone(const char* token) {
  char path[600];
  if (strcmp(token, "-") == 0) return 1;
  path_of(path, sizeof path, token);
  return access(path, F_OK) != 0;
}

/* Waits until the script has done its part of the fault (the file `go`), at most for this time. */
static void await(long ms) {
  for (const long end = now_ms() + ms; now_ms() < end && gone("go");) pause_ms(10);
}

/* What an action does in this process. */
static void act(int action, long argument) {
  struct rlimit limit = {0, 0};
  switch (action) {
    case kExit: _exit((int)argument);
    case kHang: for (;;) pause_ms(100000);
    case kSpin: for (;;) {}
    case kNanLog: nan_log = 1; break;
    case kNanExp: nan_exp = 1; break;
    case kDiskFull: disk_full = 1; break;
    case kWriteError: write_error = 1; break;
    case kReadOnly: read_only = 1; break;
    case kFileLimit: limit.rlim_cur = limit.rlim_max = 4096; setrlimit(RLIMIT_FSIZE, &limit); break;
    case kMemory: limit.rlim_cur = limit.rlim_max = 1 << 20; setrlimit(RLIMIT_AS, &limit); break;
    case kOpenFiles: limit.rlim_cur = limit.rlim_max = 4; setrlimit(RLIMIT_NOFILE, &limit); break;
    case kSockets:
    case kPartition:
      for (int fd = 3; fd < 1024 && action == kSockets; ++fd) {
        struct sockaddr_storage a;
        socklen_t size = sizeof a;
        if (getpeername(fd, (struct sockaddr*)&a, &size) == 0 && (a.ss_family == AF_INET || a.ss_family == AF_INET6))
          shutdown(fd, SHUT_RDWR);
      }
      partition = action == kPartition;
      break;
    case kSlow: slow_until = now_ms() + argument; break;
    case kClock: clock_offset = argument; break;
    case kBlock: block_until = now_ms() + argument; break;
    case kSegv: raise(SIGSEGV); break;
    case kKeep: keep = 1; break;
    case kPace: pace_until = now_ms() + argument; break;
    case kAwait: await(argument); break;
    default: break;
  }
}
static void on_signal(int number, siginfo_t* info, void* context) {
  (void)context;
  const int kind = info->si_value.sival_int & 255;
  /* The kernel may choose any thread. A rank hangs in the thread that trains. */
  if ((kind == kHang || kind == kSpin) && syscall(SYS_gettid) != getpid()) {
    syscall(SYS_rt_tgsigqueueinfo, getpid(), getpid(), number, info);
    return;
  }
  act(kind, info->si_value.sival_int >> 8);
}

static pid_t process_of(const char* who) {
  char path[600], text[32] = "";
  if (strcmp(who, "self") == 0) return getpid();
  path_of(path, sizeof path, who);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
  if (fd < 0) return 0;
  const ssize_t got = syscall(SYS_read, fd, text, sizeof text - 1);
  close(fd);
  return got > 0 ? (pid_t)atol(text) : 0;
}
static void run_shell(char* text) {
  for (char* c = text; *c; ++c) *c = *c == '+' ? ' ' : *c;
  const pid_t child = fork();
  if (child == 0) {
    unsetenv("LD_PRELOAD");
    execl("/bin/sh", "sh", "-c", text, (char*)0);
    _exit(127);
  }
  if (child > 0) syscall(SYS_wait4, child, 0, 0, 0);
}
/* Keeps the name of the newest checkpoint at the time of the fault. */
static void record_saved(void) {
  char path[600], name[64] = "";
  snprintf(path, sizeof path, "%s/checkpoints/latest", run_folder);
  const int from = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
  const ssize_t got = from >= 0 ? syscall(SYS_read, from, name, sizeof name - 1) : 0;
  if (from >= 0) close(from);
  path_of(path, sizeof path, "saved");
  const int to = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (to >= 0 && got > 0) syscall(SYS_write, to, name, got);
  if (to >= 0) close(to);
}
/* A rank with the action `pace` waits this time before it writes an event, which is no hang. */
static void keep_pace(void) {
  enum { kPause = 2500 };
  if (pace_until && now_ms() < pace_until) pause_ms(kPause);
}
/* Records that an action of a fault was done, and when: the script demands it. */
static void delivered(const struct Fault* fault, int action) {
  char path[600], name[96], text[64];
  struct timespec t;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
  const int length = snprintf(text, sizeof text, "%ld.%09ld", (long)t.tv_sec, t.tv_nsec);
  snprintf(name, sizeof name, "delivered-%s-%d", fault->token, action);
  path_of(path, sizeof path, name);
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  syscall(SYS_write, fd, text, length);
  close(fd);
}
static void fire(struct Fault* fault) {
  char path[600], actions[1024], *rest = actions;
  int number = -1;
  path_of(path, sizeof path, fault->token);
  if (unlink(path) != 0) return;
  record_saved();
  snprintf(actions, sizeof actions, "%s", fault->actions);
  for (char* one; (one = strsep(&rest, ";"));) {
    char* const what = strchr(one, '=');
    if (!what) continue;
    *what = 0;
    char* argument = strchr(what + 1, ':');
    if (argument) *argument++ = 0;
    const long value = argument ? atol(argument) : 0;
    ++number;
    const pid_t target = process_of(one);
    if (target <= 0) continue;
    /* An action may end this process. */
    if (target == getpid()) delivered(fault, number);
    if (strcmp(what + 1, "sh") == 0) {
      run_shell(argument);
    } else if (strcmp(what + 1, "signal") == 0) {
      if (kill(target, (int)value) == 0) delivered(fault, number);
      if (target == getpid()) pause_ms(50);
    } else if (strcmp(what + 1, "wait") == 0) {
      pause_ms(value);
    } else {
      for (int i = 1; i < (int)(sizeof kNames / sizeof *kNames); ++i) {
        if (strcmp(kNames[i], what + 1) != 0) continue;
        const union sigval code = {.sival_int = (int)(value * 256) | i};
        if (target == getpid()) {
          act(i, value);
        } else {
          if (sigqueue(target, SIGRTMIN + kSignal, code) == 0) delivered(fault, number);
        }
      }
    }
  }
}
static void called(const char* hook) {
  if (fault_count == 0 || inside) return;
  inside = 1;
  const int error = errno;
  for (int i = 0; i < fault_count; ++i) {
    struct Fault* const f = &faults[i];
    if (!f->armed || f->done || strcmp(f->hook, hook) != 0) continue;
    if (!gone(f->needed)) continue;
    if (atomic_fetch_add(&f->armed, 1) != f->count) continue;
    f->done = 1;
    fire(f);
  }
  errno = error;
  inside = 0;
}
/* An event line is about to be written (`before`), or was written. A fault whose calls did not come in time happens
 * before the second event line. */
static void event(const char* line, size_t size, int before) {
  if (fault_count == 0 || inside) return;
  inside = 1;
  const int error = errno;
  for (int i = 0; i < fault_count; ++i) {
    struct Fault* const f = &faults[i];
    if (f->done || !gone(f->needed)) continue;
    const int matches = strcmp(f->event, "-") != 0 && memmem(line, size, f->event, strlen(f->event)) != 0;
    if (before ? f->armed && !matches : matches && strcmp(f->hook, "event") == 0) {
      f->done = 1;
      fire(f);
    } else if (!before && matches && !f->armed) {
      f->armed = 1;
    }
  }
  errno = error;
  inside = 0;
}
static int is_event(const void* data, size_t size) { return size > 10 && memcmp(data, "{\"event\":\"", 10) == 0; }
static int is_file(int fd) {
  struct stat status;
  return fd > 2 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}
static void block(const char* path) {
  while (block_until && now_ms() < block_until && (!path || strncmp(path, run_folder, strlen(run_folder)) == 0))
    pause_ms(20);
}
static int write_fails(int fd) {
  if ((disk_full || write_error) && is_file(fd)) {
    errno = disk_full ? ENOSPC : EIO;
    return 1;
  }
  return 0;
}

__attribute__((constructor)) static void begin(void) {
  const char *where = getenv("FAULT_FOLDER"), *run = getenv("FAULT_RUN"), *rank = getenv("RANK");
  char path[600], text[8192] = "", number[32];
  if (!where || !run || inside) return;
  snprintf(folder, sizeof folder, "%s", where);
  snprintf(run_folder, sizeof run_folder, "%s", run);
  const int command = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
  const ssize_t length = syscall(SYS_read, command, text, sizeof text - 1);
  close(command);
  if (length <= 0 || !memmem(text, (size_t)length, "pretrain", 8)) return;
  /* srun has the words of the command, too. */
  const char* const name = strrchr(text, '/') ? strrchr(text, '/') + 1 : text;
  if (strcmp(name, "primus") != 0) return;
  const int supervises = memmem(text, (size_t)length, "--supervise", 11) != 0;
  const char *const node = memmem(text, (size_t)length, "--node_rank", 11), *const slurm = getenv("SLURM_NODEID");
  const int place = node ? atoi(node + 12) : slurm ? atoi(slurm) : 0;
  const int single = memmem(text, (size_t)length, "--nproc\0001", 9) && !(node && place >= 0);
  if (supervises) {
    snprintf(role, sizeof role, "supervisor-%d", place);
  } else if (rank || single) {
    snprintf(role, sizeof role, "rank-%s", rank ? rank : "0");
  } else {
    snprintf(role, sizeof role, "launcher-%d", place);
  }
  path_of(path, sizeof path, role);
  const int own = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int digits = snprintf(number, sizeof number, "%d", (int)getpid());
  if (own >= 0) {
    syscall(SYS_write, own, number, digits);
    close(own);
  }
  struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGRTMIN + kSignal, &action, 0);
  path_of(path, sizeof path, "plan");
  FILE* const plan = fopen(path, "r");
  if (!plan) return;
  char line[2048], who[32];
  while (fault_count < kFaults && fgets(line, sizeof line, plan)) {
    struct Fault* const f = &faults[fault_count];
    if (sscanf(line, "%31s %31s %31s %95s %15s %d %1023s", f->token, f->needed, who, f->event, f->hook, &f->count,
               f->actions) != 7)
      continue;
    if (strcmp(who, role) != 0 || gone(f->token)) continue;
    f->armed = strcmp(f->event, "-") == 0;
    ++fault_count;
  }
  fclose(plan);
}

int open(const char* path, int flags, ...) {
  REAL(open);
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  called("open");
  block(path);
  if (read_only && (flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0 &&
      strncmp(path, run_folder, strlen(run_folder)) == 0) {
    errno = EROFS;
    return -1;
  }
  return real(path, flags, mode);
}
ssize_t write(int fd, const void* data, size_t size) {
  REAL(write);
  const int line = is_event(data, size);
  if (line) keep_pace();
  if (line) event(data, size, 1);
  if (block_until && is_file(fd)) block(0);
  if (write_fails(fd)) return -1;
  const ssize_t done = real(fd, data, size);
  if (line) event(data, size, 0);
  return done;
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t at) {
  REAL(pwrite);
  called("pwrite");
  const int line = is_event(data, size);
  if (line) keep_pace();
  if (line) event(data, size, 1);
  if (write_fails(fd)) return -1;
  const ssize_t done = real(fd, data, size, at);
  if (line) event(data, size, 0);
  return done;
}
int rename(const char* from, const char* to) {
  REAL(rename);
  called("rename");
  return real(from, to);
}
int statvfs(const char* path, struct statvfs* out) {
  REAL(statvfs);
  char name[600], text[32] = "";
  const int result = real(path, out);
  if (!folder[0] || result != 0) return result;
  path_of(name, sizeof name, "free");
  const int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY);
  if (fd < 0) return result;
  const ssize_t got = syscall(SYS_read, fd, text, sizeof text - 1);
  close(fd);
  if (got > 0) out->f_bavail = out->f_bfree = (fsblkcnt_t)(atoll(text) / (long long)out->f_frsize);
  return result;
}
int clock_gettime(clockid_t clock, struct timespec* out) {
  const int result = (int)syscall(SYS_clock_gettime, clock, out);
  if (clock == CLOCK_REALTIME) out->tv_sec += clock_offset;
  if (slow_until && now_ms() < slow_until && !inside) pause_ms(5);
  if (syscall(SYS_gettid) == getpid()) called("clock");
  return result;
}
long syscall(long number, ...) {
  REAL(syscall);
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex) called("futex");
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
int kill(pid_t pid, int number) {
  REAL(kill);
  return keep && number == SIGKILL ? 0 : real(pid, number);
}
ssize_t send(int fd, const void* data, size_t size, int flags) {
  REAL(send);
  return partition ? (ssize_t)size : real(fd, data, size, flags);
}
ssize_t recv(int fd, void* data, size_t size, int flags) {
  REAL(recv);
  const ssize_t got = real(fd, data, size, flags);
  if (!partition || got <= 0) return got;
  errno = EAGAIN;
  return -1;
}
#define NAN_ONCE(type, name, flag) \
  type name(type x) { \
    REAL(name); \
    if (flag && atomic_exchange(&flag, 0)) return (type)NAN; \
    return real(x); \
  }
NAN_ONCE(double, log, nan_log)
NAN_ONCE(float, logf, nan_log)
NAN_ONCE(double, exp, nan_exp)
NAN_ONCE(float, expf, nan_exp)
