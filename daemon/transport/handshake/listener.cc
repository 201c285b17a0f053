#include "daemon/transport/handshake/listener.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/probe/answerer.h"

namespace tensorlane::handshake {
namespace {

// A file that a daemon has left behind when it was killed keeps nobody from listening.
void remove_what_nobody_serves(const Endpoint& endpoint) {
  const std::string path = unix_path(endpoint);
  if (path.empty()) return;
  const Fd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (::connect(probe.get(), endpoint.get(), endpoint.length) != 0 && errno == ECONNREFUSED) ::unlink(path.c_str());
}

Status cannot_listen(const Endpoint& endpoint, ClassId cls, int error) {
  const bool taken = error == EADDRINUSE;
  return {taken ? Code::kUnavailable : Code::kInvalidArgument,
          fmt::format("cannot listen for class {}: {}", class_name(cls), errno_text(error)), endpoint.text(),
          taken ? "stop the other program (perhaps a daemon of this host that runs already), or give this host another "
                  "data_port in fabric.yaml"
                : "write an address of this host into fabric.yaml"};
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(const Endpoint& endpoint, const ports::ClassTag& tag, Bytes window) {
  Fd socket(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return cannot_listen(endpoint, tag.cls, errno);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const Result<int> tagged = apply_tag(socket.get(), tag);
  if (!tagged.ok()) return tagged.status();
  if (*tagged < tag.pcp) {
    spdlog::warn(fmt::format(
        "class {}: priority {} needs the privilege CAP_NET_ADMIN, which this process lacks: frames leave with priority "
        "{}",
        class_name(tag.cls), tag.pcp, *tagged));
  }
  if (endpoint.family() != AF_UNIX) probe::keep_first_packet(socket.get());  // for probes, which ask how it came
  remove_what_nobody_serves(endpoint);
  // A socket with a path: no other user's process may connect, whose descriptors this end would have to close.
  const bool closed = endpoint.family() != AF_UNIX || ::fchmod(socket.get(), S_IRUSR | S_IWUSR) == 0;
  if (!closed || ::bind(socket.get(), endpoint.get(), endpoint.length) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    return cannot_listen(endpoint, tag.cls, errno);
  }
  return std::unique_ptr<Listener>(new Listener(std::move(socket), tag, window, unix_path(endpoint)));
}

Listener::~Listener() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

Result<Fd> Listener::accept() {
  for (;;) {
    Fd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      // A socket that the peer has reset already cannot be tagged; it fails in the handshake.
      tune(socket.get(), window_);
      (void)apply_tag(socket.get(), tag_);
      return socket;
    }
    if (errno == EAGAIN) return Fd();
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return Status(Code::kResourceExhausted, "cannot accept a connection: " + errno_text(errno),
                    "class " + class_name(tag_.cls), "raise the limit of open files of tensorlaned");
    }
    // Anything else concerns the one connection that was first in line, which is gone.
  }
}

std::list<std::unique_ptr<Connection>>::iterator Listener::victim(std::string_view address) {
  const auto counts = [address](const Connection& c) {
    return !c.peer_known() && (address.empty() || c.remote_address() == address);
  };
  const auto first = [&](auto&& drop) {
    return std::find_if(pending.begin(), pending.end(), [&](const auto& c) { return counts(*c) && drop(*c); });
  };
  if (const auto silent = first([](const Connection& c) { return c.silent(); }); silent != pending.end()) return silent;
  if (const auto stranger = first([](const Connection& c) { return !c.proven(); }); stranger != pending.end())
    return stranger;
  return first([](const Connection&) { return true; });
}

bool Listener::full() const {
  const auto strangers = std::ranges::count_if(pending, [](const auto& c) { return !c->peer_known(); });
  return static_cast<std::size_t>(strangers) >= kMaxUnauthenticated;
}

bool Listener::full_for(std::string_view address) const {
  if (!path_.empty()) return false;
  const auto of_address = std::ranges::count_if(
      pending, [address](const auto& c) { return !c->peer_known() && c->remote_address() == address; });
  return static_cast<std::size_t>(of_address) >= kMaxUnauthenticatedPerAddress;
}

}  // namespace tensorlane::handshake
