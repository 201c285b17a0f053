// A child process of a test, with its output.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tensorlane::test {

// Runs TEST_PROGRAMS/`program`; killed when the object goes.
class Process {
 public:
  Process(const std::string& program, const std::vector<std::string>& arguments, uid_t uid = 0);
  ~Process();
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // The next line of its standard output; empty when there is none within 15 s.
  std::string line();
  // Its exit status, or 128 + signal; -1 when it still runs after 15 s.
  int wait();

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  bool reaped_ = false;
};

}  // namespace tensorlane::test
