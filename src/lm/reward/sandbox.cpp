#include "lm/reward/sandbox.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/files/scratch_folder.h"
#include "base/system/subprocess.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"

namespace primus {
namespace {

// The program that runs inside the sandbox. It sets the limits, which the code cannot raise, compiles the
// checks, reports the start, and runs the code and the checks. It reports success by a random word, which it
// reads from its standard input, so that code which ends the process early does not pass.
constexpr std::string_view kDriver = R"py(import os, resource, sys
def limit(kind, value):
    resource.setrlimit(kind, (value, value))
def main():
    word = os.read(0, 64).decode()
    seconds, memory, files, processes = (int(x) for x in sys.argv[1:5])
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, seconds)
    limit(resource.RLIMIT_AS, memory)
    limit(resource.RLIMIT_FSIZE, files)
    limit(resource.RLIMIT_NPROC, processes)
    limit(resource.RLIMIT_NOFILE, 64)
    with open("/work/code.py", "rb") as file:
        code = file.read()
    try:
        with open("/work/checks.py", "rb") as file:
            checks = compile(file.read(), "checks.py", "exec")
    except Exception as error:
        message = "%s-checks\n%s: %s" % (word, type(error).__name__, error)
        os.write(1, message.encode("utf-8", "replace"))
        sys.exit(1)
    os.dup2(os.open("/work/input", os.O_RDONLY), 0)
    # The code may define names such as exec, so this function uses its own variables.
    write, output, execute, translate, system = os.write, os.dup(1), exec, compile, sys
    write(output, (word + "\n").encode())
    sys.argv[:] = ["code.py"]
    module = sys.modules["__main__"].__dict__
    for name in ("main", "limit", "os", "resource", "sys"):
        del module[name]
    execute(translate(code, "code.py", "exec"), module)
    execute(checks, module)
    system.stdout.flush()
    write(output, ("\n" + word + "\n").encode())
main()
)py";

std::string random_word() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw io_error("cannot read random numbers", errno);
  }
  std::string word;
  for (const unsigned char byte : bytes) word += fmt::format("{:02x}", byte);
  return word;
}

// Returns the last line of `text` that is not blank, for a message.
std::string last_line(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  if (last == std::string_view::npos) return {};
  const std::size_t before = text.rfind('\n', last);
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  return printable(excerpt(text.substr(begin, last + 1 - begin)));
}

std::vector<std::string> sandbox_command(const std::string& bwrap, const std::string& folder,
                                         const SandboxLimits& limits) {
  std::vector<std::string> command{bwrap,
                                   "--unshare-all",
                                   "--die-with-parent",
                                   "--new-session",
                                   "--clearenv",
                                   "--as-pid-1",
                                   "--setenv",
                                   "PATH",
                                   "/usr/bin:/bin",
                                   "--setenv",
                                   "LANG",
                                   "C.UTF-8",
                                   "--setenv",
                                   "HOME",
                                   "/tmp",
                                   "--setenv",
                                   "OPENBLAS_NUM_THREADS",
                                   "1"};
  for (const char* const path :
       {"/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/etc/alternatives", "/etc/ld.so.cache"}) {
    command.insert(command.end(), {"--ro-bind-try", path, path});
  }
  const std::int64_t files = std::int64_t{limits.files_mib} << 20;
  const auto seconds = static_cast<std::int64_t>(limits.seconds) + 1;
  command.insert(command.end(), {"--ro-bind",
                                 folder,
                                 "/work",
                                 "--proc",
                                 "/proc",
                                 "--dev",
                                 "/dev",
                                 "--size",
                                 fmt::format("{}", files),
                                 "--tmpfs",
                                 "/tmp",
                                 "--remount-ro",
                                 "/",
                                 "--chdir",
                                 "/tmp",
                                 "/usr/bin/python3",
                                 "-I",
                                 "-S",
                                 "/work/driver.py",
                                 fmt::format("{}", seconds),
                                 fmt::format("{}", std::int64_t{limits.memory_mib} << 20),
                                 fmt::format("{}", files),
                                 fmt::format("{}", limits.processes)});
  return command;
}

}  // namespace

SandboxResult run_in_sandbox(const SandboxRun& run, const SandboxLimits& limits,
                             const std::atomic<bool>* stop) {
  SandboxResult result;
  const char* const path = std::getenv("PATH");
  const std::string bwrap = find_program("bwrap", fmt::format("{}:/usr/bin", path == nullptr ? "" : path));
  if (bwrap.empty()) {
    result.problem = "the sandbox is missing: install it with 'apt-get install bubblewrap'";
    return result;
  }
  const ScratchFolder folder("primus-sandbox");
  const std::pair<const char*, std::string_view> files[] = {
      {"driver.py", kDriver}, {"code.py", run.code}, {"checks.py", run.checks}, {"input", run.input}};
  for (const auto& [name, text] : files) {
    const Path file = folder.path() / name;
    write_file(file, text);
    std::filesystem::permissions(file, std::filesystem::perms(0444));
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));

  const std::string word = random_word();
  SubprocessOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(limits.seconds * 1000) + 1);
  options.output_limit = static_cast<std::size_t>(limits.output_kib) << 10;
  options.input = word;
  // Gives up root's privileges, because the limit of processes does not apply to root.
  options.unprivileged = true;
  options.stop = stop;
  const SubprocessResult ended =
      run_subprocess(sandbox_command(bwrap, folder.path().string(), limits), options);

  std::string_view out = ended.out;
  const std::string wrong_checks = word + "-checks\n";
  if (out.starts_with(wrong_checks)) {
    result.problem =
        fmt::format("the tests are no valid Python code: {}", last_line(out.substr(wrong_checks.size())));
    return result;
  }
  const std::string start = word + "\n", end = "\n" + word + "\n";
  if (!out.starts_with(start)) {
    result.problem = ended.timed_out ? "the sandbox did not start in time"
                                     : fmt::format("the sandbox did not start: {}", last_line(ended.err));
    return result;
  }
  result.started = true;
  out.remove_prefix(start.size());
  result.passed = !ended.timed_out && ended.exit_code == 0 && out.ends_with(end);
  if (result.passed) {
    out.remove_suffix(end.size());
  } else if (ended.timed_out) {
    result.problem = fmt::format("the code ran for more than {} s", limits.seconds);
  } else {
    const std::string line = last_line(ended.err);
    result.problem =
        line.empty() ? fmt::format("the code ended early, with exit code {}", ended.exit_code) : line;
  }
  result.output = out;
  return result;
}

}  // namespace primus
