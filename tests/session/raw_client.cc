#include "raw_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace tensorlane::test {

RegistrationOfOne registration_of_one(const char* name, std::uint64_t elements, Operation operation) {
  RegistrationOfOne packet;
  std::strcpy(packet.head.group, "g");
  packet.head.count = 1;
  std::strcpy(packet.tensor.name, name);
  packet.tensor.elements = elements;
  packet.tensor.operation = operation;
  packet.tensor.positions = 1;
  return packet;
}

protocol::HelloBody hello(const std::string& job, std::uint32_t rank, std::uint32_t world_size) {
  protocol::HelloBody body;
  body.rank = body.local_rank = rank;
  body.world_size = body.local_world_size = world_size;
  std::memcpy(body.job, job.data(), job.size());
  return body;
}

RawClient::RawClient(const std::string& socket_path) : fd_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) perror("connect");
}

RawClient::~RawClient() {
  if (rings_ != nullptr) munmap(rings_, ring_bytes_);
  for (const int fd : {fd_, wake_fd_, ring_fd_}) {
    if (fd >= 0) close(fd);
  }
}

bool RawClient::send_bytes(std::span<const std::byte> bytes) {
  return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0;
}

bool RawClient::send(protocol::MessageType type, std::uint32_t request, std::span<const std::byte> body,
                     std::uint16_t version, std::uint32_t magic) {
  protocol::MessageHeader header{magic, version, type, request, static_cast<std::uint32_t>(body.size())};
  std::vector<std::byte> packet(sizeof header + body.size());
  std::memcpy(packet.data(), &header, sizeof header);
  if (!body.empty()) std::memcpy(packet.data() + sizeof header, body.data(), body.size());
  return send_bytes(packet);
}

std::optional<Answer> RawClient::receive(int timeout_ms) {
  Answer answer;
  answer.body.resize(protocol::kMaxMessage);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 2)];
  pollfd ready{fd_, POLLIN, 0};
  if (poll(&ready, 1, timeout_ms) <= 0) return std::nullopt;
  iovec parts[2] = {{&answer.header, sizeof answer.header}, {answer.body.data(), answer.body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
  if (n <= 0) return std::nullopt;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    answer.fds.resize((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(answer.fds.data(), CMSG_DATA(c), answer.fds.size() * sizeof(int));
  }
  if (n < static_cast<ssize_t>(sizeof answer.header)) return std::nullopt;
  answer.body.resize(static_cast<std::size_t>(n) - sizeof answer.header);
  if (answer.header.type == protocol::MessageType::kError && answer.body.size() == sizeof(protocol::ErrorBody)) {
    protocol::ErrorBody body;
    std::memcpy(&body, answer.body.data(), sizeof body);
    answer.code = body.code;
    answer.error = Status(body.code, body.what, body.where, body.fix).to_string();
  }
  return answer;
}

bool RawClient::closed(int timeout_ms) {
  while (true) {
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, timeout_ms) <= 0) return false;
    std::byte packet[4096];
    const ssize_t n = recv(fd_, packet, sizeof packet, 0);
    if (n <= 0) return n == 0;
  }
}

bool RawClient::join(const std::string& job) {
  const protocol::HelloBody body = hello(job);
  if (!send(protocol::MessageType::kHello, 1, bytes_of(body))) return false;
  const auto answer = receive();
  if (!answer || answer->header.type != protocol::MessageType::kWelcome || answer->fds.size() != 2) return false;
  protocol::WelcomeBody welcome;
  std::memcpy(&welcome, answer->body.data(), sizeof welcome);
  ring_fd_ = answer->fds[0];
  wake_fd_ = answer->fds[1];
  entries_ = welcome.ring_entries;
  ring_bytes_ = protocol::ring_memory_bytes(entries_);
  void* memory = mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, ring_fd_, 0);
  if (memory == MAP_FAILED) return false;
  rings_ = static_cast<std::byte*>(memory);
  return true;
}

int RawClient::arena(std::uint64_t bytes) {
  protocol::ArenaBody body;
  body.bytes = bytes;
  if (!send(protocol::MessageType::kArena, 2, bytes_of(body))) return -1;
  const auto answer = receive();
  return answer && answer->header.type == protocol::MessageType::kArena && answer->fds.size() == 1 ? answer->fds[0]
                                                                                                   : -1;
}

bool seal(int arena) {
  return fcntl(arena, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0;
}

}  // namespace tensorlane::test
