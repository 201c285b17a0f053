// The env plugin's shared object in programs in trouble: whatever has become of them, it neither ends nor stops them.
// Each test runs in a child, which loads it as NCCL does.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "client-lib/nccl-env/interface.h"

namespace tensorlane::nccl_env {
namespace {

using testing::ExitedWithCode;

constexpr char kForced[] = "NCCL_IB_SL=9 of the environment is not used: .* says NCCL_IB_SL=3\n";
constexpr char kNoPolicy[] = "warning: NCCL's variables are left as they are: cannot read the NCCL policy";

// Ends the child where something is not as it must be.
void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  _exit(1);
}

#define MUST(condition) must(condition, #condition)

const NcclEnvPluginV1& load() {
  void* library = dlopen(TENSORLANE_ENV_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  const auto* plugin = library == nullptr ? nullptr : static_cast<NcclEnvPluginV1*>(dlsym(library, "ncclEnvPlugin_v1"));
  MUST(plugin != nullptr);
  return *plugin;
}

void init(const NcclEnvPluginV1& plugin) {
  MUST(plugin.init(2, 28, 9, "") == kNcclSuccess);
}

bool has_level(const NcclEnvPluginV1& plugin, const char* level) {
  const char* value = plugin.get_env("NCCL_IB_SL");
  return value != nullptr && std::strcmp(value, level) == 0;
}

// The user says 9.
class EnvFaults : public testing::Test {
 protected:
  EnvFaults() {
    setenv("NCCL_IB_SL", "9", 1);
    use(policy("3"));
  }
  ~EnvFaults() override { std::filesystem::remove_all(folder_); }

  // A file with that level, which is in force from the next init on.
  std::string policy(const std::string& level) const {
    std::string path = folder_ + "/" + level + ".json";
    std::ofstream(path) << R"({"version": 1, "for": "nccl", "process": {"NCCL_IB_SL": ")" << level << R"("}})";
    return path;
  }
  std::string missing() const { return folder_ + "/missing"; }
  static void use(const std::string& path) { setenv("TENSORLANE_NCCL_POLICY", path.c_str(), 1); }

  // Once with a line from init, and once with one from get_env.
  void make_it_speak(const NcclEnvPluginV1& plugin) const {
    use(missing());
    init(plugin);
    MUST(has_level(plugin, "9"));
    plugin.finalize();
    use(folder_ + "/3.json");
    init(plugin);
    MUST(has_level(plugin, "3"));
    plugin.finalize();
  }

 private:
  static std::string made_folder() {
    std::string path = testing::TempDir() + "nccl-env-XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    return path;
  }
  const std::string folder_ = made_folder();
};

void break_standard_error() {
  int ends[2];
  MUST(pipe(ends) == 0 && close(ends[0]) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
}

sigset_t set_of(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  return set;
}

bool is_pending(int signal) {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, signal) == 1;
}

bool is_blocked(int signal) {
  sigset_t blocked;
  return pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0 && sigismember(&blocked, signal) == 1;
}

TEST_F(EnvFaults, ABrokenStandardErrorSendsTheProgramNoSignal) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    break_standard_error();
    std::signal(SIGPIPE, SIG_DFL);
    make_it_speak(plugin);
    _exit(is_blocked(SIGPIPE) ? 2 : 0);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), "");
}

TEST_F(EnvFaults, ABrokenStandardErrorLeavesNoSignalAndTakesNone) {
  const auto child = [&](bool was_pending) {
    const NcclEnvPluginV1& plugin = load();
    break_standard_error();
    const sigset_t pipe = set_of(SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    if (was_pending) raise(SIGPIPE);
    make_it_speak(plugin);
    _exit(is_pending(SIGPIPE) == was_pending && is_blocked(SIGPIPE) ? 0 : 2);
  };
  EXPECT_EXIT(child(false), ExitedWithCode(0), "");
  EXPECT_EXIT(child(true), ExitedWithCode(0), "");
}

TEST_F(EnvFaults, AFullFileAsStandardErrorSendsTheProgramNoSignal) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    const int file = open((missing() + ".log").c_str(), O_WRONLY | O_CREAT, 0600);
    MUST(dup2(file, STDERR_FILENO) == STDERR_FILENO);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_FSIZE, &none);
    std::signal(SIGXFSZ, SIG_DFL);
    make_it_speak(plugin);
    _exit(is_blocked(SIGXFSZ) || is_pending(SIGXFSZ) ? 2 : 0);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), "");
}

TEST_F(EnvFaults, AFullPipeAsStandardErrorDoesNotStopTheProgram) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    int ends[2];
    MUST(pipe2(ends, O_NONBLOCK) == 0);
    while (write(ends[1], "x", 1) == 1) {
    }
    MUST(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    alarm(20);
    make_it_speak(plugin);
    _exit(0);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), "");
}

// All of it: pages that are mapped, and what malloc has left of them.
void use_up_memory() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_AS, &none);
  for (std::size_t size : {std::size_t{1} << 20, std::size_t{4096}, std::size_t{16}})
    for (void* volatile got = malloc(size); got != nullptr;) got = malloc(size);
}

TEST_F(EnvFaults, ThePolicyHoldsWhereMemoryHasEnded) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    init(plugin);
    use_up_memory();
    _exit(has_level(plugin, "3") ? 0 : 2);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), kForced);
}

TEST_F(EnvFaults, TheProgramBeginsWhereMemoryHasEnded) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    use_up_memory();
    init(plugin);
    _exit(has_level(plugin, "9") ? 0 : 2);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), "left as they are: out of memory\n");
}

TEST_F(EnvFaults, AChildGoesOnThatIsForkedWhileAThreadBegins) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    std::thread([&] {
      for (;;) {
        init(plugin);
        plugin.finalize();
      }
    }).detach();
    for (int i = 0; i < 300; ++i) {
      const pid_t forked = fork();
      if (forked == 0) {
        alarm(10);
        init(plugin);
        _exit(has_level(plugin, "3") ? 0 : 2);
      }
      int status = -1;
      MUST(waitpid(forked, &status, 0) == forked && status == 0);
    }
    _exit(0);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), "");
}

// A thread that is cancelled ends where its program lets it, and not in the plugin.
TEST_F(EnvFaults, ACancelledThreadEndsOutsideThePlugin) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    std::atomic<bool> came_back = false;
    auto speak = [&] {
      pthread_cancel(pthread_self());
      make_it_speak(plugin);
      came_back = true;
      pthread_testcancel();
    };
    pthread_t thread{};
    const auto start = [](void* body) -> void* {
      (*static_cast<decltype(speak)*>(body))();
      return nullptr;
    };
    MUST(pthread_create(&thread, nullptr, start, &speak) == 0);
    void* ended = nullptr;
    MUST(pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED && came_back);
    init(plugin);
    _exit(has_level(plugin, "3") ? 0 : 2);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), std::string(kNoPolicy) + ".*\n.*" + kForced);
}

// NCCL keeps what it got, so that no policy is deleted: one that comes again is the one that was there.
TEST_F(EnvFaults, PoliciesThatComeAgainTakeNoMemory) {
  const auto child = [&] {
    const NcclEnvPluginV1& plugin = load();
    const std::string paths[] = {policy("3"), policy("4"), policy("5")};
    const char* first[3] = {};
    for (int i = 0; i < 1000; ++i) {
      use(paths[i % 3]);
      init(plugin);
      const char* value = plugin.get_env("NCCL_IB_SL");
      if (i < 3) first[i] = value;
      MUST(value == first[i % 3]);
      plugin.finalize();
    }
    _exit(0);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0), "");
}

TEST_F(EnvFaults, PoliciesWithoutEndAreNotTaken) {
  const auto child = [&] {
    constexpr int kMost = 256;
    const NcclEnvPluginV1& plugin = load();
    for (int i = 0; i <= kMost; ++i) {
      const std::string level = std::to_string(1000 + i);
      use(policy(level));
      init(plugin);
      MUST(has_level(plugin, i < kMost ? level.c_str() : "9"));
      plugin.finalize();
    }
    use(policy("1000"));
    init(plugin);
    _exit(has_level(plugin, "1000") ? 0 : 2);
  };
  EXPECT_EXIT(child(), ExitedWithCode(0),
              "left as they are: the NCCL policy has changed too often in this process: .*1256");
}

}  // namespace
}  // namespace tensorlane::nccl_env
