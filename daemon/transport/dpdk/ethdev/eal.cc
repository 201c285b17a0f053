#include "daemon/transport/dpdk/ethdev/eal.h"

#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>

#include "common/base/available_memory.h"
#include "daemon/transport/dpdk/ethdev/eal_arguments.h"
#include "daemon/transport/dpdk/ethdev/log_stream.h"

namespace tensorlane::dpdk {
namespace {

// Of this process; DPDK has one, too.
struct Environment {
  std::mutex mutex;
  bool runs = false;
  bool leaves_files = false;           // where other processes could find its memory
  std::vector<std::string> arguments;  // as the configuration had them
  std::optional<Status> failure;       // for good
};
Environment& environment() {
  static Environment one;
  return one;
}

bool host_has_huge_pages() {
  std::error_code ignored;
  for (const auto& size : std::filesystem::directory_iterator("/sys/kernel/mm/hugepages", ignored)) {
    std::ifstream file(size.path() / "nr_hugepages");
    std::uint64_t pages = 0;
    if (file >> pages && pages > 0) return true;
  }
  return false;
}

std::vector<int> own_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

struct Outcome {
  bool ok = false;
  int error = 0;
};

// On a thread of its own: EAL binds the thread that starts it to CPUs, and its own threads inherit that thread's
// signals, which are all blocked here.
Outcome start(std::vector<std::string> arguments) {
  Outcome outcome;
  std::thread([&] {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::string program = "tensorlaned";
    std::vector<char*> pointers = {program.data()};
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    // For a wrong value EAL prints its usage to standard output, which may be somebody's file.
    std::FILE* const output = stdout;
    stdout = null_stream();
    rte_errno = 0;
    outcome.ok = rte_eal_init(static_cast<int>(pointers.size()) - 1, pointers.data()) >= 0;
    outcome.error = rte_errno;
    stdout = output;
  }).join();
  return outcome;
}

Status explain(int error) {
  std::string said = complaints();
  if (said.empty()) said = rte_strerror(error);
  if (said.find("nother primary process") != std::string::npos)
    return {Code::kAlreadyExists, "another process with DPDK has the same file prefix: " + said, "EAL",
            "give each its own --file-prefix"};
  switch (error) {
    case EINVAL:
      return {Code::kInvalidArgument, "DPDK refuses its arguments: " + said, "EAL",
              "correct the arguments of DPDK's EAL"};
    case EACCES:
    case EPERM:
      return {Code::kPermissionDenied, "DPDK may not do what it needs: " + said, "EAL",
              host_has_huge_pages() ? "run as root, or with CAP_NET_RAW, CAP_NET_ADMIN and access to the device"
                                    : "this host has no huge pages: leave out what asks for them, or echo 256 > "
                                      "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages; and run as root, or "
                                      "with CAP_NET_RAW, CAP_NET_ADMIN and access to the device"};
    case ENOMEM:
      return {Code::kResourceExhausted, "DPDK gets no memory: " + said, "EAL",
              "give it less (-m), or reserve huge pages"};
    case EALREADY:
      return {Code::kInternal, "DPDK cannot be started again in this process: " + said, "EAL", "restart the daemon"};
    default:
      return {Code::kInternal, "DPDK did not start: " + said, "EAL", "see the lines of DPDK in the log"};
  }
}

// EAL shares no files with others where there are none, and then its folder is empty.
void remove_empty_folder() {
  if (const char* const folder = rte_eal_get_runtime_dir(); folder != nullptr) rmdir(folder);
}

}  // namespace

Status start_eal(const EalConfig& config) {
  Environment& one = environment();
  const std::lock_guard lock(one.mutex);
  if (one.failure) return *one.failure;
  if (one.runs && one.arguments == config.arguments) return {};
  if (one.runs)
    return {Code::kAlreadyExists, "DPDK runs in this process with other arguments", "EAL",
            "give all ports the same arguments"};
  TL_ASSIGN_OR_RETURN(
      std::vector<std::string> arguments,
      eal_arguments(config.arguments, {host_has_huge_pages(), getpid(), own_cpus(), available_memory()}));
  if (log_stream() == nullptr || null_stream() == nullptr || rte_openlog_stream(log_stream()) != 0)
    return {Code::kResourceExhausted, "DPDK's messages have nowhere to go", "EAL", "free some memory"};
  // So that a log that goes to standard output finds it before start() puts something else in its place.
  spdlog::default_logger_raw();
  forget_complaints();
  one.leaves_files = std::none_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--no-shconf" || argument == "--in-memory";
  });
  const Outcome outcome = start(std::move(arguments));
  if (outcome.ok) {
    one.runs = true;
    one.arguments = config.arguments;
    remove_empty_folder();
    return {};
  }
  const Status status = explain(outcome.error);
  remove_empty_folder();
  // DPDK undoes nothing but the reading of its arguments.
  if (status.code() != Code::kInvalidArgument) one.failure = status;
  return status;
}

void end_eal() {
  Environment& one = environment();
  const std::lock_guard lock(one.mutex);
  if (!one.runs) return;
  one.runs = false;
  one.failure = Status(Code::kUnavailable, "DPDK has ended in this process", "EAL", "restart the daemon");
  // What is in memory alone goes with the process. Only files are to be removed, and not at any price: DPDK frees what
  // its thread for interrupts reads when it has been woken, so that thread gets time to fall asleep.
  if (!one.leaves_files) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::thread([] { rte_eal_cleanup(); }).join();
}

bool eal_runs() {
  Environment& one = environment();
  const std::lock_guard lock(one.mutex);
  return one.runs;
}

}  // namespace tensorlane::dpdk
