#include "common/process/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

namespace tensorlane::process {
namespace {

std::vector<std::string> shell(const std::string& script) {
  return {"sh", "-c", script};
}

// Whether a process lives, as something else than a zombie.
bool alive(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && text.at(end + 2) != 'Z';
}

bool dies(pid_t pid) {
  for (int i = 0; i < 500 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return !alive(pid);
}

// A file that a script writes a pid to.
class PidFile {
 public:
  explicit PidFile(const std::string& name = "")
      : path(::testing::TempDir() + "process_test." + std::to_string(::getpid()) + name) {
    std::remove(path.c_str());
  }
  ~PidFile() { std::remove(path.c_str()); }
  pid_t read() const {
    for (int i = 0; i < 500; ++i) {
      std::ifstream file(path);
      std::string line;
      if (std::getline(file, line) && !line.empty() && !file.eof()) return static_cast<pid_t>(std::stol(line));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "no pid in " << path;
    return -1;
  }
  const std::string path;
};

TEST(RunCommand, GivesInputAndTakesOutput) {
  const auto output = run_command(shell("cat; echo oops >&2; exit 3"), "line\n");
  ASSERT_TRUE(output.ok()) << output.status().to_string();
  EXPECT_EQ(output->out, "line\n");
  EXPECT_EQ(output->err, "oops\n");
  EXPECT_EQ(output->exit_status, 3);
}

TEST(RunCommand, MovesMoreThanAPipeHolds) {
  const std::string input(3 << 20, 'x');
  const auto output = run_command({"cat"}, input);
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->out, input);
}

TEST(RunCommand, SurvivesAProgramThatDoesNotReadItsInput) {
  const auto output = run_command({"true"}, std::string(3 << 20, 'x'));
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(output->exit_status, 0);
}

TEST(RunCommand, SaysASignalAsAShellDoes) {
  EXPECT_EQ(run_command(shell("kill -9 $$"))->exit_status, 128 + SIGKILL);
}

TEST(RunCommand, SaysThatAProgramIsMissing) {
  const auto output = run_command({"no-such-program"});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.status().code(), Code::kNotFound);
  EXPECT_EQ(output.status().to_string(),
            "cannot run 'no-such-program': No such file or directory: install it or correct PATH");
}

TEST(RunCommand, KillsTheGroupOfWhatTakesTooLong) {
  const PidFile file;
  const auto output = run_command(shell("sleep 600 & echo $! > " + file.path + "; wait"), "", milliseconds(500));
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.status().code(), Code::kTimedOut);
  EXPECT_TRUE(dies(file.read()));
}

TEST(RunChecked, NamesTheCommandAndWhatItSaid) {
  EXPECT_EQ(run_checked(shell("echo fine")).value(), "fine\n");
  const auto failed = run_checked(shell("echo first >&2; echo second >&2; exit 5"));
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.status().to_string(),
            "'sh -c echo first >&2; echo second >&2; exit 5' failed with exit status 5: first");
}

TEST(StartDetached, RunsInASessionOfItsOwnAsNoChildOfOurs) {
  const PidFile file;
  ASSERT_TRUE(start_detached(shell("echo $$ > " + file.path + "; exec sleep 600")).ok());
  const pid_t pid = file.read();
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(alive(pid));
  EXPECT_EQ(::getsid(pid), ::getpgid(pid));
  EXPECT_NE(::getsid(pid), ::getsid(0));
  EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), -1) << "not our child";
  ::kill(pid, SIGKILL);
  EXPECT_TRUE(dies(pid));
  EXPECT_EQ(start_detached({"no-such-program"}).code(), Code::kNotFound);
}

TEST(FindProgram, LooksWhereAShellLooks) {
  EXPECT_EQ(find_program("/bin/sh").value(), "/bin/sh");
  EXPECT_TRUE(find_program("sh").ok());
  EXPECT_EQ(find_program("no-such-program").status().code(), Code::kNotFound);
  EXPECT_FALSE(find_program("/no/such/program").ok());
}

TEST(Processes, RelaysLinesWithTheirPrefixToTheRightStream) {
  Processes processes;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  ASSERT_TRUE(processes.spawn({.argv = shell("echo one; echo bad >&2; printf two"), .prefix = "[rank 0] "}).ok());
  std::size_t exited = 9;
  const auto event = processes.wait(seconds(20), &exited);
  const std::string out = testing::internal::GetCapturedStdout(), err = testing::internal::GetCapturedStderr();
  EXPECT_EQ(event, Processes::Event::kExited);
  EXPECT_EQ(exited, 0u);
  EXPECT_EQ(processes.exit_status(0), 0);
  EXPECT_EQ(out, "[rank 0] one\n[rank 0] two\n");
  EXPECT_EQ(err, "[rank 0] bad\n");
}

TEST(Processes, ReportsEveryExitOnceAndThenTimesOut) {
  Processes processes;
  for (const char* script : {"exit 4", "exit 5"}) ASSERT_TRUE(processes.spawn({.argv = shell(script)}).ok());
  int sum = 0;
  std::size_t exited = 0;
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(processes.wait(seconds(20), &exited), Processes::Event::kExited);
    sum += processes.exit_status(exited);
  }
  EXPECT_EQ(sum, 9);
  EXPECT_EQ(processes.wait(milliseconds(20), &exited), Processes::Event::kTimedOut);
}

TEST(Processes, AddsToTheEnvironment) {
  ::setenv("TL_TEST_OLD", "old", 1);
  ::setenv("TL_TEST_KEPT", "kept", 1);
  Processes processes;
  const PidFile file;
  ASSERT_TRUE(processes
                  .spawn({.argv = shell("echo $TL_TEST_OLD $TL_TEST_KEPT $TL_TEST_NEW"),
                          .environment = {{"TL_TEST_OLD", "changed"}, {"TL_TEST_NEW", "new"}},
                          .output_file = file.path})
                  .ok());
  std::size_t exited = 0;
  ASSERT_EQ(processes.wait(seconds(20), &exited), Processes::Event::kExited);
  std::ifstream text(file.path);
  std::string line;
  std::getline(text, line);
  EXPECT_EQ(line, "changed kept new");
}

TEST(Processes, StopEndsWhatIgnoresSigtermAndWhatItsLeaderLeftBehind) {
  const PidFile file, ignores(".ignores");
  Processes processes;
  ASSERT_TRUE(
      processes.spawn({.argv = shell("trap '' TERM; echo $$ > " + ignores.path + "; while true; do sleep 600; done")})
          .ok());
  ASSERT_GT(ignores.read(), 0);  // from now on
  ASSERT_TRUE(processes.spawn({.argv = shell("sleep 600 & echo $! > " + file.path)}).ok());
  const pid_t orphan = file.read();
  std::size_t exited = 0;
  ASSERT_EQ(processes.wait(seconds(20), &exited), Processes::Event::kExited);
  ASSERT_EQ(exited, 1u);
  EXPECT_TRUE(alive(orphan));
  processes.stop(milliseconds(200));
  EXPECT_EQ(processes.exit_status(0), 128 + SIGKILL);
  EXPECT_TRUE(dies(orphan));
  processes.stop(milliseconds(200));
}

TEST(Processes, SomeAreStoppedWhileTheOthersGoOn) {
  Processes processes;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(processes.spawn({.argv = {"sleep", "600"}}).ok());
  const std::size_t ends[] = {0, 2};
  processes.stop(ends, seconds(20));
  EXPECT_EQ(processes.exit_status(0), 128 + SIGTERM);
  EXPECT_EQ(processes.exit_status(2), 128 + SIGTERM);
  EXPECT_TRUE(processes.running(1));
  processes.stop(seconds(20));
  EXPECT_EQ(processes.exit_status(1), 128 + SIGTERM);
}

TEST(Processes, ASignalToUsIsAnEvent) {
  Processes processes;
  ASSERT_TRUE(processes.spawn({.argv = {"sleep", "600"}}).ok());
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  std::size_t exited = 0;
  EXPECT_EQ(processes.wait(seconds(20), &exited), Processes::Event::kSignal);
  EXPECT_EQ(processes.stop_signal(), SIGTERM);
  EXPECT_TRUE(processes.running(0));
}

TEST(Processes, ChildrenDieWithUs) {
  const PidFile file;
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    Processes processes;
    const auto child = processes.spawn({.argv = shell("echo $$ > " + file.path + "; exec sleep 600")});
    std::size_t exited = 0;
    if (child.ok()) processes.wait(seconds(60), &exited);
    ::_exit(1);
  }
  const pid_t child = file.read();
  EXPECT_TRUE(alive(child));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(dies(child));
}

}  // namespace
}  // namespace tensorlane::process
