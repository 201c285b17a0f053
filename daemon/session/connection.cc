#include "daemon/session/connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "common/base/assert.h"

namespace tensorlane::session {
namespace {

constexpr std::size_t kStatusPage =
    protocol::kMaxMessage - sizeof(protocol::MessageHeader) - sizeof(protocol::StatusPage);

}  // namespace

Time now() {
  return Time(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                  .count());
}

std::string Connection::who() const {
  if (session == nullptr) return "a process (pid " + std::to_string(pid) + ") that has not joined a job";
  return "rank " + std::to_string(hello.rank) + " (pid " + std::to_string(pid) + ") of job '" + hello.job + "'";
}

Status Connection::send(protocol::MessageType type, std::uint32_t request, std::span<const std::byte> body,
                        std::span<const int> fds) const {
  protocol::MessageHeader header;
  header.type = type;
  header.request = request;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  iovec parts[2] = {{&header, sizeof header}, {const_cast<std::byte*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  constexpr std::size_t kMaxFds = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)] = {};
  if (!fds.empty()) {
    TL_ASSERT(fds.size() <= kMaxFds);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  if (sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
  if (errno == EAGAIN || errno == EWOULDBLOCK) {
    return Status(Code::kUnavailable, who() + " does not read its session's socket", "its buffer is full",
                  "check whether the process hangs");
  }
  return Status(Code::kUnavailable, who() + " cannot be reached", std::strerror(errno));
}

std::uint64_t Connection::count_status_pages(std::uint64_t bytes) {
  return (bytes + kStatusPage - 1) / kStatusPage;
}

void Connection::drop_status() {
  std::string().swap(status);
  status_pages.release();
}

Status Connection::send_status_page(std::uint32_t request, std::uint64_t offset) {
  const protocol::StatusPage head{status.size(), offset};
  const std::size_t bytes = std::min<std::size_t>(kStatusPage, status.size() - offset);
  std::vector<std::byte> body(sizeof head + bytes);
  std::memcpy(body.data(), &head, sizeof head);
  std::memcpy(body.data() + sizeof head, status.data() + offset, bytes);
  status_read = now();
  if (offset + bytes == status.size()) drop_status();
  return send(protocol::MessageType::kStatus, request, body);
}

Status Connection::send_error(std::uint32_t request, const Status& why) const {
  const protocol::ErrorBody body = to_error_body(why);
  return send(protocol::MessageType::kError, request, std::as_bytes(std::span(&body, 1)));
}

}  // namespace tensorlane::session
