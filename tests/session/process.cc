#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace tensorlane::test {

Process::Process(const std::string& program, const std::vector<std::string>& arguments, uid_t uid) {
  const std::string path = std::string(TEST_PROGRAMS) + "/" + program;
  std::vector<char*> argv = {const_cast<char*>(path.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {  // only what is safe after a fork with threads
    dup2(pipe_fds[1], 1);
    if (uid != 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(126);
    execv(path.c_str(), argv.data());
    _exit(127);
  }
  close(pipe_fds[1]);
  out_ = pipe_fds[0];
}

Process::~Process() {
  if (!reaped_ && pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
}

void Process::signal(int number) const {
  kill(pid_, number);
}

std::string Process::line() {
  std::string text;
  while (true) {
    pollfd ready{out_, POLLIN, 0};
    char c = 0;
    if (poll(&ready, 1, 15000) <= 0 || read(out_, &c, 1) != 1 || c == '\n') return text;
    text += c;
  }
}

int Process::wait() {
  for (int i = 0; i < 1500; ++i) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      reaped_ = true;
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return -1;
}

}  // namespace tensorlane::test
