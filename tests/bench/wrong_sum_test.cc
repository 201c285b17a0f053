// The worker's own check: a library whose sum is wrong in one element of one allreduce must not get a time.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/bench/peers/bench_worker.h"

namespace {

// A library for one rank: the sum is what was put in, but for one planted fault.
struct Library {
  std::vector<float> memory;
  int calls = 0;
  int faulty_call = -1;
};

float* buffer(void* self, std::size_t bytes) {
  auto& memory = static_cast<Library*>(self)->memory;
  memory.resize(bytes / sizeof(float));
  return memory.data();
}

int barrier(void*) {
  return 0;
}

int allreduce(void* self, float* memory, std::size_t count) {
  auto& library = *static_cast<Library*>(self);
  if (library.calls++ == library.faulty_call) memory[count - 1] += 1;
  return 0;
}

const char* error(void*) {
  return "planted";
}

// What the worker answers to "run 4096 3".
std::string answer_of(Library& library) {
  const std::string path = testing::TempDir() + "/link" + std::to_string(::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ::unlink(path.c_str());
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  std::thread worker([&] {
    const bench_operations_t operations = {&library, buffer, barrier, allreduce, error};
    bench_serve(path.c_str(), 0, 1, &operations);
  });
  const int link = ::accept(listener, nullptr, nullptr);
  const std::string command = "run 4096 3\n";
  EXPECT_EQ(::write(link, command.data(), command.size()), static_cast<ssize_t>(command.size()));
  std::string said;
  char byte = 0;
  for (int lines = 0; lines < 2 && ::read(link, &byte, 1) == 1; lines += byte == '\n') said += byte;
  ::close(link);
  ::close(listener);
  worker.join();
  ::unlink(path.c_str());
  return said;
}

TEST(BenchWorker, AnswersTimesWhenSumsAreRight) {
  Library library;
  EXPECT_EQ(answer_of(library).rfind("hello 0\ndone ", 0), 0u);
  EXPECT_EQ(library.calls, 4);  // one to warm up
}

TEST(BenchWorker, FindsOneWrongElement) {
  for (const int call : {0, 3}) {
    Library library;
    library.faulty_call = call;
    EXPECT_EQ(answer_of(library), "hello 0\nerror wrong sum on rank 0: element 1023 of 1024 is 21, expected 20\n");
  }
}

}  // namespace
