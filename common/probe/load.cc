#include "common/probe/load.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

namespace tensorlane::probe {
namespace {

constexpr int kAnswerMilliseconds = 3000;

bool wait_for(int fd, short events, std::int64_t until) {
  pollfd waited{fd, events, 0};
  const std::int64_t left = until - now_ms();
  return left > 0 && ::poll(&waited, 1, static_cast<int>(left)) == 1;
}

bool receive_all(int fd, void* into, std::size_t bytes, std::int64_t until) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, at, bytes, MSG_DONTWAIT);
    if (got > 0) {
      at += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLIN, until)) {
      return false;
    }
  }
  return true;
}

bool send_all(int fd, const char* at, std::size_t bytes, std::int64_t until) {
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      at += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(fd, POLLOUT, until)) {
      return false;
    }
  }
  return true;
}

// A connection that has said its hello and had its answer; invalid, with the reason, when there is none.
Socket open_stream(const BurstSpec& burst, std::uint16_t source_port, const Token& token, Outcome* outcome) {
  const auto to = Address::parse(burst.flow.address, burst.flow.port);
  const auto from = Address::parse(burst.flow.source, source_port);
  *outcome = Outcome::kLocal;
  if (!to || !from || to->is_ipv6() != from->is_ipv6()) return {};
  Socket socket = make_tagged(*to, burst.flow.tag);
  if (!socket.valid() || bind_to(socket.fd(), *from) != 0) return {};
  forget_on_close(socket.fd());
  const std::int64_t until = now_ms() + kAnswerMilliseconds;
  *outcome = Outcome::kTimedOut;
  if (::connect(socket.fd(), to->get(), to->length) != 0 && errno != EINPROGRESS) return {};
  if (!wait_for(socket.fd(), POLLOUT, until)) return {};
  Hello hello;
  hello.purpose = burst.purpose;
  hello.token = token;
  hello.nonce = std::random_device{}();
  Answer answer;
  *outcome = Outcome::kSilent;
  if (!send_all(socket.fd(), reinterpret_cast<const char*>(&hello), sizeof hello, until)) return {};
  if (!receive_all(socket.fd(), &answer, sizeof answer, until)) return {};
  const bool sound = answer.magic == kMagic && answer.version == kVersion && answer.nonce == hello.nonce;
  *outcome = sound ? Outcome::kArrived : Outcome::kRubbish;
  return sound ? std::move(socket) : Socket();
}

std::uint64_t retransmissions(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_total_retrans : 0;
}

bool fill(int fd, const BurstSpec& burst, std::int64_t end, BurstSeen::Stream* seen, std::uint64_t* retransmitted) {
  const std::vector<char> chunk(std::size_t{64} << 10, kBurstByte);
  for (std::uint64_t sent = 0; sent < burst.max_bytes && now_ms() < end;) {
    const ssize_t now = ::send(fd, chunk.data(), chunk.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (now > 0)
      sent += static_cast<std::uint64_t>(now);
    else if (errno != EAGAIN && errno != EINTR)
      return false;
    else
      wait_for(fd, POLLOUT, end);
  }
  // What is in the send buffer goes first; a class that is starved waits until the others are done.
  const std::int64_t until = now_ms() + kMaxBurstMilliseconds + kAnswerMilliseconds;
  if (!send_all(fd, &kLastByte, 1, until)) return false;
  Received head;
  if (!receive_all(fd, &head, sizeof head, until) || head.slots > kSlots) return false;
  seen->start_ms = head.start;
  seen->bytes.resize(head.slots);
  *retransmitted = retransmissions(fd);
  return receive_all(fd, seen->bytes.data(), head.slots * sizeof(std::uint64_t), until);
}

void measure(int fd, std::int64_t end, std::vector<std::uint32_t>* delays) {
  constexpr std::size_t kMaxMessages = 4000;
  const std::vector<char> message(kMessageBytes);
  while (now_ms() < end && delays->size() < kMaxMessages) {
    const auto before = std::chrono::steady_clock::now();
    char echo = 0;
    const std::int64_t until = end + kAnswerMilliseconds;
    if (!send_all(fd, message.data(), message.size(), until) || !receive_all(fd, &echo, 1, until)) return;
    const auto took = std::chrono::steady_clock::now() - before;
    delays->push_back(static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// One thread's part: one stream, or the messages.
void run_stream(const BurstSpec& burst, std::size_t stream, const Token& token, std::int64_t begin, std::mutex& mutex,
                BurstSeen* seen) {
  Outcome outcome{};
  const std::uint16_t port = stream < burst.source_ports.size() ? burst.source_ports[stream] : 0;
  const Socket socket = open_stream(burst, port, token, &outcome);
  BurstSeen::Stream mine;
  std::vector<std::uint32_t> delays;
  std::uint64_t retransmitted = 0;
  if (socket.valid()) {
    const std::int64_t start = begin + burst.start_ms;
    if (const std::int64_t wait = start - now_ms(); wait > 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    const std::int64_t end = std::max(start, now_ms()) + burst.duration_ms;
    if (burst.purpose == Purpose::kEcho)
      measure(socket.fd(), end, &delays);
    else if (!fill(socket.fd(), burst, end, &mine, &retransmitted))
      outcome = Outcome::kHangs;
  }
  const std::lock_guard lock(mutex);
  if (seen->outcome == Outcome::kArrived) seen->outcome = outcome;  // the first failure is the burst's
  if (outcome == Outcome::kArrived && burst.purpose == Purpose::kSink) seen->streams.push_back(std::move(mine));
  if (burst.purpose == Purpose::kEcho) seen->delays_us = std::move(delays);
  seen->retransmitted += retransmitted;
}

}  // namespace

std::vector<BurstSeen> load(const std::vector<BurstSpec>& bursts, const Token& token) {
  std::vector<BurstSeen> seen(bursts.size());
  std::vector<std::thread> threads;
  std::mutex mutex;
  const std::int64_t begin = now_ms();
  for (std::size_t i = 0; i < bursts.size(); ++i) {
    seen[i].id = bursts[i].flow.id;
    const std::size_t streams =
        bursts[i].purpose == Purpose::kEcho ? 1 : std::min(bursts[i].source_ports.size(), kMaxStreams);
    if (streams > 0) seen[i].outcome = Outcome::kArrived;  // unless one of them says otherwise
    for (std::size_t stream = 0; stream < streams; ++stream)
      threads.emplace_back([&, i, stream] { run_stream(bursts[i], stream, token, begin, mutex, &seen[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

}  // namespace tensorlane::probe
