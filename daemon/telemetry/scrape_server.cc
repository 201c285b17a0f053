#include "daemon/telemetry/scrape_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace tensorlane::telemetry {
namespace {

struct AddrinfoDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddrinfoDeleter>;

Status no_address(const std::string& listen, const std::string& why) {
  return {Code::kInvalidArgument, fmt::format("'{}' is no address to serve metrics on{}", listen, why), "metrics",
          "write ADDRESS:PORT, e.g. 127.0.0.1:9400"};
}

Result<Addresses> resolve(const std::string& listen) {
  const std::size_t colon = listen.rfind(':');
  if (colon == std::string::npos || colon == 0) return no_address(listen, "");
  std::string host = listen.substr(0, colon);
  const std::string port = listen.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size()) return no_address(listen, ": its port is no number");
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return no_address(listen, ": nobody knows that name");
  return Addresses(found);
}

int tcp_socket(const addrinfo& address, int flags) {
  return socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
}

using Clock = std::chrono::steady_clock;
using Moment = Clock::time_point;

// A scraper, or a stranger. Not copied: it owns its socket.
struct Caller {
  explicit Caller(int socket) : fd(socket) {}
  ~Caller() { close(fd); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  const int fd;
  Moment until = Clock::now() + std::chrono::milliseconds(ScrapeServer::kRequestMs);
  std::string request, answer;
  std::size_t sent = 0;
  bool answered = false;  // `answer` is what it gets
  bool said_all = false;  // and has got: what is left is to see that it closes, or its end would be a reset
  bool done = false;
};

// What an answer begins with; its body follows.
std::string head_of(const char* status, const char* type, std::size_t bytes) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", status, type,
                     bytes);
}

std::string refusal(const char* status, const char* text) {
  return head_of(status, "text/plain; charset=utf-8", std::strlen(text)) + text;
}

// That a socket is bound to.
std::uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  // Both families have it in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

class Server final : public ScrapeServer {
 public:
  Server(int listener, std::string address, std::shared_ptr<prometheus::Collectable> page)
      : listener_(listener), stop_(eventfd(0, EFD_CLOEXEC)), address_(std::move(address)), page_(std::move(page)) {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "tl-metrics");
  }
  ~Server() override {
    eventfd_write(stop_, 1);
    thread_.join();
    close(stop_);
    close(listener_);
  }
  std::string address() const override { return address_; }

 private:
  void run() {
    std::vector<pollfd> polled;
    while (true) {
      // Without a descriptor for them, callers stay in the listen queue for a moment instead of waking us for ever.
      const bool open = Clock::now() >= closed_until_;
      polled.assign({{stop_, POLLIN, 0}, {open ? listener_ : -1, POLLIN, 0}});
      Moment next = open ? Moment::max() : closed_until_;
      for (const auto& caller : callers_) {
        polled.push_back({caller->fd, short(caller->answered && !caller->said_all ? POLLOUT : POLLIN), 0});
        next = std::min(next, caller->until);
      }
      if (poll(polled.data(), polled.size(), milliseconds_to(next)) < 0 && errno != EINTR) return;
      if (polled[0].revents != 0) return;
      for (std::size_t i = 0; i < callers_.size(); ++i) {
        if (polled[i + 2].revents != 0) serve(*callers_[i]);
      }
      if (polled[1].revents != 0) accept_all();
      const Moment now = Clock::now();
      std::erase_if(callers_, [&](const auto& caller) { return caller->done || caller->until <= now; });
    }
  }

  static int milliseconds_to(Moment next) {
    if (next == Moment::max()) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0)) + 1;
  }

  // Most have asked by then, and are answered before anybody else comes.
  void accept_all() {
    for (std::size_t i = 0; i < kConnections; ++i) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
          closed_until_ = Clock::now() + std::chrono::milliseconds(100);
        return;
      }
      if (callers_.size() >= kConnections) make_room();
      callers_.push_back(std::make_unique<Caller>(fd));
      serve(*callers_.back());
    }
  }

  // They are in the order in which they came.
  void make_room() {
    const auto silent = std::ranges::find_if(callers_, [](const auto& c) { return !c->answered || c->said_all; });
    callers_.erase(silent == callers_.end() ? callers_.begin() : silent);
  }

  void serve(Caller& caller) {
    if (!caller.answered || caller.said_all) hear(caller);
    if (caller.answered && !caller.said_all) say(caller);
  }

  void hear(Caller& caller) {
    char bytes[2048];
    const ssize_t got = recv(caller.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      caller.done = true;
      return;
    }
    if (caller.said_all) return;
    caller.request.append(bytes, static_cast<std::size_t>(got));
    if (caller.request.find("\r\n\r\n") != std::string::npos) {
      caller.answer = answer_to(caller.request);
    } else if (caller.request.size() >= kRequestBytes) {
      caller.answer = refusal("431 Request Header Fields Too Large", "The request is too long.\n");
    } else {
      return;
    }
    caller.answered = true;
    caller.until = Clock::now() + std::chrono::milliseconds(kAnswerMs);
  }

  std::string answer_to(const std::string& request) const {
    if (!request.starts_with("GET ")) return refusal("405 Method Not Allowed", "Only GET is served here.\n");
    const std::string path = request.substr(4, request.find_first_of(" ?\r", 4) - 4);
    if (path != "/metrics") return refusal("404 Not Found", "The metrics are at /metrics.\n");
    const std::string text = prometheus::TextSerializer().Serialize(page_->Collect());
    return head_of("200 OK", "text/plain; version=0.0.4; charset=utf-8", text.size()) + text;
  }

  static void say(Caller& caller) {
    const std::string_view rest = std::string_view(caller.answer).substr(caller.sent);
    const ssize_t sent = send(caller.fd, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) {
      caller.done = true;
      return;
    }
    caller.sent += static_cast<std::size_t>(sent);
    if (caller.sent < caller.answer.size()) return;
    caller.said_all = true;
    shutdown(caller.fd, SHUT_WR);
    caller.until = Clock::now() + std::chrono::milliseconds(kRequestMs);
  }

  const int listener_, stop_;
  const std::string address_;
  const std::shared_ptr<prometheus::Collectable> page_;
  std::vector<std::unique_ptr<Caller>> callers_;  // the thread's, as the next one
  Moment closed_until_;
  std::thread thread_;
};

}  // namespace

Status check_listen_address(const std::string& listen) {
  TL_ASSIGN_OR_RETURN(const Addresses address, resolve(listen));
  const int fd = tcp_socket(*address, 0);
  if (fd < 0) return no_address(listen, fmt::format(": {}", std::strerror(errno)));
  const int bound = bind(fd, address->ai_addr, address->ai_addrlen);
  const int error = errno;
  close(fd);
  if (bound == 0 || error == EADDRINUSE) return {};
  return {Code::kInvalidArgument, fmt::format("cannot serve metrics on {}: {}", listen, std::strerror(error)),
          "metrics", "write an address of this host and a port that the daemon may use"};
}

Result<std::unique_ptr<ScrapeServer>> ScrapeServer::start(const std::string& listen,
                                                          std::shared_ptr<prometheus::Collectable> page) {
  TL_RETURN_IF_ERROR(check_listen_address(listen));
  TL_ASSIGN_OR_RETURN(const Addresses address, resolve(listen));
  const int fd = tcp_socket(*address, SOCK_NONBLOCK);
  const int on = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd, address->ai_addr, address->ai_addrlen) != 0 || ::listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    if (fd >= 0) close(fd);
    return Status(Code::kUnavailable, fmt::format("cannot serve metrics on {}", listen), std::strerror(error),
                  "stop what uses the port or set another one under 'metrics'");
  }
  return std::unique_ptr<ScrapeServer>(std::make_unique<Server>(
      fd, fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), port_of(fd)), std::move(page)));
}

}  // namespace tensorlane::telemetry
