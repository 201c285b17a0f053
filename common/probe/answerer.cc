#include "common/probe/answerer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace tensorlane::probe {
namespace {

constexpr std::size_t kChunk = std::size_t{256} << 10;

// In constant time.
bool same_token(const Token& a, const Token& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

// The whole of a short message fits the empty send buffer of a new connection.
bool send_all(int fd, const void* data, std::size_t bytes) {
  return ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes);
}

}  // namespace

void keep_first_packet(int listener) {
  const int yes = 1;
  ::setsockopt(listener, IPPROTO_TCP, TCP_SAVE_SYN, &yes, sizeof yes);
}

void read_first_packet(int connection, Answer* answer) {
  std::array<std::uint8_t, 512> syn{};
  socklen_t length = syn.size();
  if (::getsockopt(connection, IPPROTO_TCP, TCP_SAVED_SYN, syn.data(), &length) != 0 || length < 20) return;
  if (syn[0] >> 4 == 4) {
    answer->dscp = static_cast<std::uint8_t>(syn[1] >> 2);
    answer->hop_limit = syn[8];
  } else if (syn[0] >> 4 == 6) {
    answer->dscp = static_cast<std::uint8_t>((syn[0] & 0xf) << 2 | syn[1] >> 6);
    answer->hop_limit = syn[7];
  }
}

namespace {

// A hello with room for a descriptor beside it, as it goes over a channel.
struct Handed {
  explicit Handed(Hello* hello) : part{hello, sizeof *hello} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  Handed(const Handed&) = delete;
  Handed& operator=(const Handed&) = delete;

  iovec part;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

// What hand_over() gave: an invalid socket where nothing came with the hello. 0: the other end is gone.
ssize_t receive_handed(int channel, Socket* socket, Hello* hello) {
  Handed handed(hello);
  const ssize_t got = ::recvmsg(channel, &handed.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  const cmsghdr* rights = got > 0 ? CMSG_FIRSTHDR(&handed.message) : nullptr;
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS || rights->cmsg_len != CMSG_LEN(sizeof(int))) return got;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  *socket = Socket(fd);
  return got;
}

}  // namespace

bool hand_over(int channel, int connection, const Hello& hello) {
  Hello said = hello;
  Handed handed(&said);
  cmsghdr* rights = CMSG_FIRSTHDR(&handed.message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &connection, sizeof connection);
  return ::sendmsg(channel, &handed.message, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof said);
}

struct Answerer::Connection {
  Socket socket;
  std::int64_t hello_by = 0;
  bool greeted = false;
  Purpose purpose = Purpose::kTell;
  std::array<std::uint8_t, sizeof(Hello)> inbox{};
  std::size_t bytes = 0;                // of the hello, then of the message in hand
  std::int64_t first = 0;               // when the burst began
  std::vector<std::uint64_t> received;  // by slot
};

Answerer::Answerer(const Token& token, Capture* capture, int channel)
    : token_(token), capture_(capture), channel_(channel), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Answerer::~Answerer() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  if (::write(stop_.fd(), &one, sizeof one) < 0) return;  // an eventfd at zero takes a one
  thread_.join();
}

int Answerer::listen_at(const ListenAt& at) {
  const std::optional<Address> address = Address::parse(at.address, at.port);
  if (!address) return EINVAL;
  Socket socket = make_tagged(*address, at.tag);
  if (!socket.valid()) return errno;
  const int yes = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address->is_ipv6()) ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  keep_first_packet(socket.fd());
  if (::bind(socket.fd(), address->get(), address->length) != 0 || ::listen(socket.fd(), 128) != 0) return errno;
  listeners_.push_back(std::move(socket));
  return 0;
}

void Answerer::start() {
  thread_ = std::thread([this] { run(); });
}

void Answerer::run() {
  for (;;) {
    std::vector<pollfd> waited;
    waited.push_back({stop_.fd(), POLLIN, 0});
    waited.push_back({channel_, POLLIN, 0});  // ignored where it is negative
    for (const Socket& listener : listeners_) waited.push_back({listener.fd(), POLLIN, 0});
    for (const auto& connection : connections_) waited.push_back({connection->socket.fd(), POLLIN, 0});
    if (::poll(waited.data(), waited.size(), 500) < 0 && errno != EINTR) return;
    if (waited[0].revents != 0) return;
    const std::int64_t now = now_ms();
    constexpr std::size_t kFirst = 2;  // listener
    std::size_t i = kFirst + listeners_.size();
    for (auto it = connections_.begin(); it != connections_.end(); ++i) {
      Connection& connection = **it;
      const bool late = !connection.greeted && now > connection.hello_by;
      const bool over = late || (waited[i].revents != 0 && !serve(connection));
      it = over ? connections_.erase(it) : std::next(it);
    }
    for (std::size_t listener = 0; listener < listeners_.size(); ++listener)
      if (waited[kFirst + listener].revents != 0) accept_all(listeners_[listener].fd());
    if (waited[1].revents != 0 && !take_handed()) channel_ = -1;
  }
}

void Answerer::accept_all(int listener) {
  for (;;) {
    Socket socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    add(std::move(socket), nullptr);
  }
}

bool Answerer::take_handed() {
  for (;;) {
    Socket socket;
    Hello hello;
    const ssize_t got = receive_handed(channel_, &socket, &hello);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    if (socket.valid() && got == static_cast<ssize_t>(sizeof hello)) add(std::move(socket), &hello);
  }
}

void Answerer::add(Socket socket, const Hello* hello) {
  if (connections_.size() >= kMaxConnections) {
    const auto silent = std::ranges::find_if(connections_, [](const auto& other) { return !other->greeted; });
    if (silent == connections_.end()) return;
    connections_.erase(silent);
  }
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  connection->hello_by = now_ms() + kHelloMilliseconds;
  if (hello == nullptr || greet(*connection, *hello)) connections_.push_back(std::move(connection));
}

bool Answerer::serve(Connection& connection) {
  if (!connection.greeted) return take_hello(connection);
  switch (connection.purpose) {
    case Purpose::kSink:
      return take_burst(connection);
    case Purpose::kEcho:
      return take_messages(connection);
    case Purpose::kTell:
      break;
  }
  char more = 0;  // it has its answer: whatever it says, and its end, ends it
  return ::recv(connection.socket.fd(), &more, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

bool Answerer::take_hello(Connection& connection) {
  const int fd = connection.socket.fd();
  const ssize_t got =
      ::recv(fd, connection.inbox.data() + connection.bytes, connection.inbox.size() - connection.bytes, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.bytes += static_cast<std::size_t>(got);
  if (connection.bytes < sizeof(Hello)) return true;
  Hello hello;
  std::memcpy(&hello, connection.inbox.data(), sizeof hello);
  return greet(connection, hello);
}

bool Answerer::greet(Connection& connection, const Hello& hello) {
  const int fd = connection.socket.fd();
  if (hello.magic != kMagic || hello.version != kVersion || hello.purpose > Purpose::kEcho) return false;
  if (!same_token(hello.token, token_)) return false;
  connection.greeted = true;
  connection.purpose = hello.purpose;
  connection.bytes = 0;
  Answer answer;
  answer.nonce = hello.nonce;
  read_first_packet(fd, &answer);
  if (capture_ != nullptr) {
    Address peer, own;
    peer.length = own.length = sizeof peer.storage;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) == 0 &&
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length) == 0) {
      if (const auto marks = capture_->incoming(peer.text(), peer.port(), own.port())) answer.pcp = marks->pcp;
    }
  }
  return send_all(fd, &answer, sizeof answer);
}

bool Answerer::take_burst(Connection& connection) {
  static thread_local std::array<char, kChunk> discarded;
  const ssize_t got = ::recv(connection.socket.fd(), discarded.data(), discarded.size(), MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  const std::int64_t now = now_ms();
  if (connection.received.empty()) connection.first = now;
  const auto slot = std::min(static_cast<std::size_t>(now - connection.first) / kSlotMilliseconds, kSlots - 1);
  if (connection.received.size() <= slot) connection.received.resize(slot + 1);
  connection.received[slot] += static_cast<std::uint64_t>(got);
  if (discarded[static_cast<std::size_t>(got) - 1] != kLastByte) return true;
  const Received head{.start = static_cast<std::uint64_t>(connection.first), .slots = connection.received.size()};
  connection.purpose = Purpose::kTell;  // nothing more is expected
  return send_all(connection.socket.fd(), &head, sizeof head) &&
         send_all(connection.socket.fd(), connection.received.data(),
                  connection.received.size() * sizeof(std::uint64_t));
}

bool Answerer::take_messages(Connection& connection) {
  std::array<char, kMessageBytes> message{};
  const ssize_t got = ::recv(connection.socket.fd(), message.data(), message.size() - connection.bytes, MSG_DONTWAIT);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  connection.bytes += static_cast<std::size_t>(got);
  if (connection.bytes < kMessageBytes) return true;
  connection.bytes = 0;
  return send_all(connection.socket.fd(), message.data(), 1);
}

}  // namespace tensorlane::probe
