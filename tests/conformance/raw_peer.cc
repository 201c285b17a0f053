#include "raw_peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <stdexcept>

namespace tensorlane::conformance {
namespace {

std::uint16_t port_of(const Host& host, ClassId cls) {
  return static_cast<std::uint16_t>(cls == kControlClass ? host.data_port : host.data_port + 1 + cls.value);
}

const handshake::Job& job_of_host_0() {
  static const handshake::Job job(credentials(HostIndex(0)));
  return job;
}

auto soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(2);
}

}  // namespace

RawPeer::RawPeer(TestClock& clock, Host& host, ClassId cls) : clock_(clock), host_(host) {
  socket_ = handshake::Fd(::socket(AF_INET, SOCK_STREAM, 0));
  const auto endpoint = *handshake::parse_endpoint(host.kind.address, port_of(host, cls));
  if (::connect(socket_.get(), endpoint.get(), endpoint.length) != 0)
    throw std::runtime_error("cannot connect to the host under test");
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  poll();
}

void RawPeer::send(std::span<const std::byte> bytes) {
  // The host may have closed already; that is what the test is about.
  (void)!::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  poll();
}

std::vector<std::byte> RawPeer::receive(std::size_t bytes) {
  std::vector<std::byte> result;
  for (const auto end = soon(); result.size() < bytes && std::chrono::steady_clock::now() < end;) {
    poll();
    std::vector<std::byte> part(bytes - result.size());
    const ssize_t received = ::recv(socket_.get(), part.data(), part.size(), MSG_DONTWAIT);
    if (received > 0) result.insert(result.end(), part.begin(), part.begin() + received);
    if (received == 0 || (received < 0 && errno != EAGAIN)) break;
  }
  return result;
}

bool RawPeer::closed() {
  for (const auto end = soon(); std::chrono::steady_clock::now() < end;) {
    poll();
    std::byte byte;
    const ssize_t received = ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

void RawPeer::half_close() {
  ::shutdown(socket_.get(), SHUT_WR);
}

void RawPeer::reset() {
  const linger off{1, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &off, sizeof off);
  socket_.reset();
}

void RawPeer::authenticate(ClassId cls) {
  const handshake::Hello hello = good_hello(cls);
  send_message(hello);
  send_message(good_proof(hello, receive_message<handshake::Challenge>().nonce));
  EXPECT_EQ(receive_message<handshake::Verdict>().head.refusal, handshake::Refusal::kNone);
}

handshake::Hello good_hello(ClassId cls) {
  return handshake::make_hello(job_of_host_0(), HostIndex(1), cls);
}

handshake::Challenge good_challenge(const handshake::Hello& hello) {
  handshake::Challenge challenge;
  challenge.nonce = handshake::random_nonce();
  challenge.mac = handshake::challenge_mac(job_of_host_0(), hello, challenge);
  return challenge;
}

handshake::Proof good_proof(const handshake::Hello& hello, const handshake::Nonce& nonce,
                            handshake::Parameters client) {
  handshake::Proof proof;
  proof.mac = handshake::proof_mac(job_of_host_0(), hello, nonce, proof, client);
  return proof;
}

handshake::Verdict good_verdict(const handshake::Hello& hello, const handshake::Nonce& nonce,
                                handshake::Parameters client, handshake::Parameters server) {
  handshake::Verdict verdict;
  verdict.mac = handshake::verdict_mac(job_of_host_0(), hello, nonce, verdict, client, server);
  return verdict;
}

handshake::Ready good_ready(const handshake::Hello& hello, const handshake::Nonce& nonce, handshake::Parameters client,
                            handshake::Parameters server) {
  handshake::Ready ready;
  ready.mac = handshake::ready_mac(job_of_host_0(), hello, nonce, ready, client, server);
  return ready;
}

RawListener::RawListener(std::uint16_t port, const std::string& address) {
  socket_ = handshake::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto endpoint = *handshake::parse_endpoint(address, port);
  if (::bind(socket_.get(), endpoint.get(), endpoint.length) != 0 || ::listen(socket_.get(), 64) != 0)
    throw std::runtime_error("port in use");
}

RawPeer RawListener::accept(TestClock& clock, Host& host) {
  for (const auto end = soon(); std::chrono::steady_clock::now() < end;) {
    host->poll(clock.now());
    handshake::Fd socket(::accept(socket_.get(), nullptr, nullptr));
    if (socket.valid()) return RawPeer(clock, host, std::move(socket));
  }
  throw std::runtime_error("the host under test did not connect");
}

}  // namespace tensorlane::conformance
