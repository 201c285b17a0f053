// Descriptors that nobody asked for, whose last close sleeps: whoever reaches the socket can send them.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "fake_daemon.h"
#include "raw_client.h"

namespace tensorlane::test {
namespace {

using protocol::MessageType;
using session::UniqueFd;

constexpr int kPassRights = 83;  // SO_PASSRIGHTS
constexpr int kLinger = 100;     // seconds

// A connection whose last close sleeps for kLinger, or until a signal comes: nobody reads what it has sent.
struct Lingering {
  Lingering() : listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    socket = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    const std::vector<char> rubbish(65536);
    while (::send(socket.get(), rubbish.data(), rubbish.size(), MSG_DONTWAIT) > 0) {
    }
    const linger wait{1, kLinger};
    EXPECT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &wait, sizeof wait), 0);
  }
  ~Lingering() {
    listener.reset();  // which resets the connection
    if (closing.joinable()) closing.join();
  }
  // Where the daemon has closed it already, it is this close that sleeps.
  void let_go() {
    closing = std::thread([this] { socket.reset(); });
  }
  UniqueFd listener, socket;
  std::thread closing;
};

// Sends a packet that brings the socket along, which is the sender's no longer. Errno, 0 when it is on its way.
int give(int to, Lingering& what) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  *CMSG_FIRSTHDR(&message) = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  const int fd = what.socket.get();
  std::memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
  const int error = sendmsg(to, &message, MSG_NOSIGNAL) >= 0 ? 0 : errno;
  if (error == 0) what.let_go();
  return error;
}

int listening_socket(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd, 64), 0);
  return fd;
}

class Descriptors : public ::testing::Test {
 protected:
  Descriptors() {
    session::SessionConfig config;
    config.socket_path = fresh_socket();
    config.listen_fd = listener_ = listening_socket(config.socket_path);
    daemon_.emplace(config);
  }
  ~Descriptors() override {
    const std::string path = daemon_->socket();
    const auto begun = std::chrono::steady_clock::now();
    daemon_.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(kLinger / 4)) << "it ends, too";
    unlink(path.c_str());
  }
  // As on kernels that do not know SO_PASSRIGHTS.
  void let_descriptors_pass() const {
    const int on = 1;
    (void)setsockopt(listener_, SOL_SOCKET, kPassRights, &on, sizeof on);
  }
  void others_are_served() {
    const auto begun = std::chrono::steady_clock::now();
    RawClient other(daemon_->socket());
    EXPECT_TRUE(other.join("other"));
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(5));
  }

  int listener_ = -1;
  std::vector<std::unique_ptr<Lingering>> lingering_;
  std::optional<FakeDaemon> daemon_;
};

TEST_F(Descriptors, TheKernelRefusesThemWhereItCan) {
  int pass = 1;
  socklen_t size = sizeof pass;
  if (getsockopt(listener_, SOL_SOCKET, kPassRights, &pass, &size) != 0) GTEST_SKIP() << "needs Linux 6.16";
  EXPECT_EQ(pass, 0);
  Lingering& lingering = *lingering_.emplace_back(std::make_unique<Lingering>());
  RawClient client(daemon_->socket());
  EXPECT_EQ(give(client.fd(), lingering), EPERM);
  others_are_served();
}

TEST_F(Descriptors, OneThatIsReadDelaysNobody) {
  let_descriptors_pass();
  Lingering& lingering = *lingering_.emplace_back(std::make_unique<Lingering>());
  RawClient client(daemon_->socket());
  ASSERT_EQ(give(client.fd(), lingering), 0);
  const auto answer = client.receive();
  ASSERT_TRUE(answer.has_value());
  EXPECT_NE(answer->error.find("sent descriptors"), std::string::npos) << answer->error;
  EXPECT_TRUE(client.closed()) << "it learns at once that it is over";
  others_are_served();
}

TEST_F(Descriptors, OneThatWaitsInASocketThatIsClosedDelaysNobody) {
  let_descriptors_pass();
  Lingering& lingering = *lingering_.emplace_back(std::make_unique<Lingering>());
  RawClient client(daemon_->socket());
  ASSERT_TRUE(client.join("job"));
  ASSERT_TRUE(client.send_bytes(std::vector<std::byte>(1)));  // ends the session
  (void)give(client.fd(), lingering);                         // which may be over already
  EXPECT_TRUE(client.closed());
  others_are_served();
}

TEST_F(Descriptors, ManyOfThemAreClosedInTheEnd) {
  let_descriptors_pass();
  for (std::size_t i = 0; i < 2 * session::Closer::kMost; ++i) {
    Lingering& lingering = *lingering_.emplace_back(std::make_unique<Lingering>());
    RawClient client(daemon_->socket());
    ASSERT_EQ(give(client.fd(), lingering), 0);
  }
  RawClient other(daemon_->socket());
  EXPECT_TRUE(other.join("other"));
}

}  // namespace
}  // namespace tensorlane::test
