#include "client-lib/src/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace tensorlane::client {
namespace {

using protocol::MessageHeader;

constexpr Duration kSendTimeout = seconds(10);

int poll_ms(Time deadline) {
  return static_cast<int>(std::clamp<std::int64_t>((deadline - now()).value / 1'000'000 + 1, 0, 1'000'000));
}

Status no_daemon(const std::string& path, int error) {
  const bool denied = error == EACCES || error == EPERM;
  return Status(
      denied ? Code::kPermissionDenied : Code::kUnavailable, "no daemon to speak to",
      "connect to " + path + ": " + std::strerror(error),
      denied ? "use an account that may open it"
             : "start the program by 'tensorlane run -n RANKS -- PROGRAM', which starts daemons, too, or a daemon by "
               "'tensorlaned --config daemon.yaml', or set TENSORLANE_SOCKET to the socket of one");
}

template <std::size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

}  // namespace

Time now() {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                  .count());
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.release();
  }
  return *this;
}
UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}
int UniqueFd::release() {
  return std::exchange(fd_, -1);
}

Status Message::error() const {
  const Result<protocol::ErrorBody> body_of = as<protocol::ErrorBody>();
  if (!body_of.ok()) return body_of.status();
  const Code code = body_of->code == Code::kOk ? Code::kInternal : body_of->code;
  return Status(code, text_of(body_of->what), text_of(body_of->where), text_of(body_of->fix));
}

Status Message::wrong_size() const {
  return Status(Code::kCorrupt, "an answer of the wrong length", std::to_string(body.size()) + " bytes",
                "install the same release of library and daemon");
}

Status Channel::connect(const std::string& path, Time deadline) {
  path_ = path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Status(Code::kInvalidArgument, "the configuration is wrong",
                  "socket has " + std::to_string(path.size()) + " bytes, 1 to 107 are possible",
                  "set TENSORLANE_SOCKET to a shorter path");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  socket_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket_.get() < 0)
    return Status(Code::kResourceExhausted, "cannot open a socket", std::strerror(errno),
                  "raise the limit of open files");
  while (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EAGAIN && errno != EINTR) return no_daemon(path, errno);
    if (now() > deadline)
      return Status(Code::kTimedOut, "the daemon does not accept connections", path, "look at its log");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // its queue of connections is full
  }
  return {};
}

Status Channel::send(protocol::MessageType type, std::uint32_t request, std::span<const std::byte> body) {
  MessageHeader header;
  header.type = type;
  header.request = request;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  iovec parts[2] = {{&header, sizeof header}, {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  const Time deadline = now() + kSendTimeout;
  while (sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return Status(Code::kUnavailable, "the daemon closed the session", path_ + ": " + std::strerror(errno),
                    "look at the daemon's log");
    }
    if (now() > deadline)
      return Status(Code::kTimedOut, "the daemon does not read its socket", path_,
                    "check whether tensorlaned is stopped");
    pollfd ready{socket_.get(), POLLOUT, 0};
    poll(&ready, 1, 100);
  }
  return {};
}

Result<std::optional<Message>> Channel::receive(Time deadline) {
  Message message;
  message.body.resize(protocol::kMaxMessage);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)];
  bool reset = false;
  while (true) {
    iovec parts[2] = {{&message.header, sizeof message.header}, {message.body.data(), message.body.size()}};
    msghdr raw{};
    raw.msg_iov = parts;
    raw.msg_iovlen = 2;
    raw.msg_control = control;
    raw.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(socket_.get(), &raw, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      if (now() >= deadline) return std::optional<Message>();
      pollfd ready{socket_.get(), POLLIN, 0};
      poll(&ready, 1, poll_ms(deadline));
      continue;
    }
    // A reset says that the daemon closed before it had read all; what it sent before that can still be read.
    if (n < 0 && errno == ECONNRESET && !std::exchange(reset, true)) continue;
    if (n <= 0) return Status(Code::kUnavailable, "the daemon closed the session", path_, "look at the daemon's log");
    for (cmsghdr* c = CMSG_FIRSTHDR(&raw); c != nullptr; c = CMSG_NXTHDR(&raw, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      int fds[2] = {-1, -1};
      std::memcpy(fds, CMSG_DATA(c), std::min(sizeof fds, c->cmsg_len - CMSG_LEN(0)));
      for (std::size_t i = 0; i < 2; ++i) message.fds[i] = UniqueFd(fds[i]);
    }
    message.body.resize(
        static_cast<std::size_t>(std::max<ssize_t>(n - static_cast<ssize_t>(sizeof message.header), 0)));
    if (n < static_cast<ssize_t>(sizeof message.header)) message.header = {};
    TL_RETURN_IF_ERROR(check(message));
    return std::optional<Message>(std::move(message));
  }
}

void Channel::hang_up() const {
  (void)shutdown(socket_.get(), SHUT_RDWR);
}

Status Channel::check(const Message& message) const {
  const MessageHeader& h = message.header;
  if (h.magic != protocol::kSessionMagic || h.body_bytes != message.body.size()) {
    return Status(Code::kCorrupt, "an answer that is no packet of tensorlane", path_,
                  "set TENSORLANE_SOCKET to the daemon's socket");
  }
  if (h.version != protocol::kSessionVersion) {
    return Status(Code::kVersionMismatch, "the client library and the daemon have different versions",
                  "the daemon speaks session version " + std::to_string(h.version) + ", the library " +
                      std::to_string(protocol::kSessionVersion),
                  "install the same release of both");
  }
  return {};
}

}  // namespace tensorlane::client
