#include "client-lib/nccl-env/line.h"

#include <pthread.h>
#include <sys/select.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>

#include "common/base/text.h"

namespace tensorlane::nccl_env {
namespace {

constexpr int kLongestWaitUs = 100'000;

// Whether standard error takes a line now. Between this and the write another writer may take the room of a pipe: then
// the write waits as any write of the program would. Not poll(): it fails in a process that may open no file.
bool has_room() {
  fd_set standard_error;
  FD_ZERO(&standard_error);
  FD_SET(STDERR_FILENO, &standard_error);
  timeval longest{0, kLongestWaitUs};
  return select(STDERR_FILENO + 1, nullptr, &standard_error, nullptr, &longest) == 1;
}

// Writes, and takes back the signal that the write has raised where it has: a pipe or a socket without a reader, or a
// file that has become as long as it may. One that waited for the program before is left to it.
void write_without_signals(std::string_view line) {
  sigset_t raised, before, pending;
  sigemptyset(&raised);
  sigaddset(&raised, SIGPIPE);
  sigaddset(&raised, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &raised, &before);
  sigemptyset(&pending);
  sigpending(&pending);
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) {
    sigdelset(&raised, errno == EPIPE ? SIGXFSZ : SIGPIPE);
    const bool is_ours = (errno == EPIPE && sigismember(&pending, SIGPIPE) == 0) ||
                         (errno == EFBIG && sigismember(&pending, SIGXFSZ) == 0);
    const timespec at_once{};
    if (is_ours) sigtimedwait(&raised, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

Line& Line::operator<<(std::string_view text) {
  if (size_ == 0) put(kStart);
  while (!text.empty() && !is_cut_) {
    const std::size_t size = printable_character(text);
    const std::string_view shown = size == 0 ? "?" : text.substr(0, size);
    is_cut_ = size_ + shown.size() + kCut.size() + kEnd.size() > kMostBytes;
    if (!is_cut_) put(shown);
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return *this;
}

void Line::put(std::string_view text) {
  std::copy(text.begin(), text.end(), bytes_.begin() + size_);
  size_ += text.size();
}

// Where the program has closed its standard error and then opened a file of its own, the line goes into that file:
// nothing tells the two apart.
void Line::write() {
  static_assert(kMostBytes <= PIPE_BUF);
  if (is_cut_) put(kCut);
  put(kEnd);
  if (has_room()) write_without_signals({bytes_.data(), size_});
}

Undisturbed::Undisturbed() : errno_before_(errno) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_before_);
}

Undisturbed::~Undisturbed() {
  pthread_setcancelstate(cancel_before_, nullptr);
  errno = errno_before_;
}

}  // namespace tensorlane::nccl_env
