#include "daemon/transport/handshake/dialer.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace tensorlane::handshake {
namespace {

Status and_so_until_the_deadline(const Status& cause) {
  const Code code = cause.code() == Code::kUnavailable ? Code::kTimedOut : cause.code();
  return {code, cause.what() + ", and so until the deadline", cause.where(), cause.fix()};
}

}  // namespace

Duration Dialer::patience(Time first, Time deadline, bool again) {
  return again ? std::clamp(Duration((deadline - first).value / 8), milliseconds(100), kHandshakeTimeout)
               : kHandshakeTimeout;
}

Status Dialer::start(Time now, const Endpoint& source, const ports::ClassTag& tag, Bytes window,
                     const ExchangeFactory& exchanges) {
  Fd socket(::socket(peer_.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) {
    return {Code::kResourceExhausted, "cannot make a socket: " + errno_text(errno),
            connection_name(key_.peer, peer_.text(), key_.cls), "raise the limit of open files of tensorlaned"};
  }
  // Tagged before the SYN leaves, and once more when connected: the law does not trust that nothing resets it in
  // between.
  const Result<int> tagged = apply_tag(socket.get(), tag);
  if (!tagged.ok()) return tagged.status();
  tune(socket.get(), window);
  // A host with several NICs sends from the one that this transport belongs to.
  if (source.family() == peer_.family() && !source.wildcard()) {
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (::bind(socket.get(), source.get(), source.length) != 0) {
      return {Code::kUnavailable, fmt::format("cannot send from {}: {}", source.text(), errno_text(errno)),
              connection_name(key_.peer, peer_.text(), key_.cls), "check the addresses of this host in fabric.yaml"};
    }
  }
  if (::connect(socket.get(), peer_.get(), peer_.length) != 0 && errno != EINPROGRESS) {
    // Nobody listens where a local peer's socket would be: what the network calls by the other name.
    const int error = errno == ENOENT ? ECONNREFUSED : errno;
    return {Code::kUnavailable,
            fmt::format("{} failed: {}", connection_name(key_.peer, peer_.text(), key_.cls), errno_text(error)),
            {},
            "check that tensorlaned runs on that host and that its data ports can be reached"};
  }
  attempt = std::make_unique<Connection>(std::move(socket), peer_, key_, job_, std::min(now + patience_, deadline_),
                                         exchanges);
  return {};
}

Status Dialer::failed(Time now, const Status& cause, Refusal refusal) {
  if (refusal != Refusal::kNone && !worth_retrying(refusal)) return cause;
  // An attempt that the deadline cut short says less than the one before it.
  const bool cut = refusal == Refusal::kNotAnswered && now >= deadline_;
  if (!cut || last_cause_.ok()) last_cause_ = cause;
  if (now + backoff_ >= deadline_) return and_so_until_the_deadline(last_cause_);
  next_ = now + backoff_;
  backoff_ = std::min({Duration(backoff_.value * 2), kLastBackoff, patience_});
  if (refusal == Refusal::kNotAnswered) patience_ = std::min(Duration(patience_.value * 2), kHandshakeTimeout);
  return {};
}

}  // namespace tensorlane::handshake
