// Connections that are not flows yet, and sockets that are no longer: accepting, dialling, time-outs, lingering.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>

#include "daemon/transport/tcp/transport_impl.h"

namespace tensorlane::tcp {
namespace {

// How long a listener rests when the process is out of descriptors.
constexpr Duration kPause = milliseconds(100);
constexpr Duration kRefusalLogInterval = seconds(1);

}  // namespace

// ---- accepting ----

void TcpTransport::accept_all(Listener& listener) {
  for (std::size_t i = 0; i < kAcceptsPerPoll; ++i) {
    Result<Fd> socket = listener.accept();
    if (!socket.ok()) return out_of_descriptors(listener);
    if (!socket->valid()) return;
    ++counters_.accepted;
    if (listener.pending.size() >= kMaxUnauthenticated) {
      const auto victim = listener.victim();
      retire(std::move(*victim));
      listener.pending.erase(victim);
      ++counters_.unauthenticated_dropped;
    }
    const Time deadline = now_ + kHandshakeTimeout;
    auto connection = std::make_unique<Connection>(std::move(socket).value(), listener.tag().cls, deadline);
    if (!watch(*connection, connection->fd(), EPOLLIN, false)) continue;
    listener.pending.push_back(std::move(connection));
    due(deadline);
  }
}

void TcpTransport::out_of_descriptors(Listener& listener) {
  // Strangers give way to whoever comes; when there is none, the descriptors belong to flows and the newcomer waits in
  // the kernel's queue.
  for (const auto& state : classes_) {
    if (!state || state->listener->pending.empty()) continue;
    const auto victim = state->listener->victim();
    retire(std::move(*victim));
    state->listener->pending.erase(victim);
    ++counters_.unauthenticated_dropped;
    return;
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.fd(), nullptr);
  listener.paused = true;
  due(now_ + kPause);
}

void TcpTransport::advance(Connection& connection, std::size_t& handled) {
  const bool wanted_output = connection.wants_output();
  const Connection::State state = connection.advance(jobs_);
  if (wanted_output && !connection.wants_output() && connection.fd() >= 0)
    watch(connection, connection.fd(), EPOLLIN, true);
  if (state != Connection::State::kDone && state != Connection::State::kFailed) return;
  if (!connection.connecting_end()) {
    std::unique_ptr<Connection> mine = take_pending(connection);
    if (state == Connection::State::kDone) establish(connection, handled);
    if (state == Connection::State::kFailed) accepted_failed(connection);
    return retire(std::move(mine));
  }
  const auto found = dialers_.find(connection.key());
  TL_ASSERT(found != dialers_.end() && found->second->attempt.get() == &connection);
  if (state == Connection::State::kFailed)
    return dial_failed(*found->second, connection.failure(), connection.refusal());
  const std::unique_ptr<Dialer> dialer = std::move(found->second);
  dialers_.erase(found);
  establish(connection, handled);
  retire(std::move(dialer->attempt));
}

std::unique_ptr<Connection> TcpTransport::take_pending(Connection& connection) {
  auto& pending = find_class(connection.cls())->listener->pending;
  const auto found =
      std::find_if(pending.begin(), pending.end(), [&](const auto& c) { return c.get() == &connection; });
  TL_ASSERT(found != pending.end());
  std::unique_ptr<Connection> taken = std::move(*found);
  pending.erase(found);
  return taken;
}

void TcpTransport::accepted_failed(Connection& connection) {
  if (connection.refusal() == Refusal::kNotAnswered) {
    ++counters_.unauthenticated_dropped;
  } else if (!connection.silent()) {
    ++counters_.refused;  // one that never said a word was a port scan or a health check
  }
  if (!connection.silent()) log_refusal(connection.failure());
  // What we told the peer must reach it, if it is one that listens.
  if (connection.refusal() != Refusal::kNone && !connection.silent()) linger(connection.take_socket(), true);
}

void TcpTransport::log_refusal(const Status& cause) {
  if (last_refusal_log_ && now_ - *last_refusal_log_ < kRefusalLogInterval) {
    ++unlogged_refusals_;
    return;
  }
  last_refusal_log_ = now_;
  if (unlogged_refusals_ > 0) {
    spdlog::warn(fmt::format("{} ({} more such since the last message)", cause.to_string(), unlogged_refusals_));
  } else {
    spdlog::warn(cause.to_string());
  }
  unlogged_refusals_ = 0;
}

// ---- dialling ----

void TcpTransport::dial(Dialer& dialer) {
  ClassState& state = *find_class(dialer.key().cls);
  const Status started = dialer.start(now_, source_, state.tag, state.window.window());
  if (!started.ok()) return dial_failed(dialer, started, Refusal::kNone);
  Connection& attempt = *dialer.attempt;
  if (!watch(attempt, attempt.fd(), EPOLLOUT, false)) {
    return dial_failed(dialer, {Code::kResourceExhausted, "cannot watch a socket", "tcp transport"}, Refusal::kNone);
  }
}

void TcpTransport::dial_failed(Dialer& dialer, const Status& cause, Refusal refusal) {
  if (dialer.attempt && refusal != Refusal::kNone) linger(dialer.attempt->take_socket(), true);
  retire(std::move(dialer.attempt));
  const ports::FlowKey key = dialer.key();
  Status given_up = dialer.failed(now_, cause, refusal);
  if (given_up.ok()) return due(dialer.next());
  dialers_.erase(key);
  ended_.push_back({key, std::move(given_up), nullptr});
}

// ---- time and ends ----

void TcpTransport::run_deadlines() {
  next_deadline_ = Time(kNever);
  for (const auto& state : classes_) {
    if (!state) continue;
    Listener& listener = *state->listener;
    if (listener.paused) {
      listener.paused = !watch(listener, listener.fd(), EPOLLIN, false);
      if (listener.paused) due(now_ + kPause);
    }
    while (!listener.pending.empty() && listener.pending.front()->deadline() <= now_) {
      std::unique_ptr<Connection> late = take_pending(*listener.pending.front());
      late->time_out();
      accepted_failed(*late);
      retire(std::move(late));
    }
    if (!listener.pending.empty()) due(listener.pending.front()->deadline());
  }
  for (auto next = dialers_.begin(); next != dialers_.end();) {
    Dialer& dialer = *(next++)->second;  // either branch may erase it
    if (dialer.attempt && dialer.attempt->deadline() <= now_) {
      dialer.attempt->time_out();
      dial_failed(dialer, dialer.attempt->failure(), Refusal::kNotAnswered);
    } else if (!dialer.attempt && dialer.next() <= now_) {
      dial(dialer);
    }
  }
  for (const auto& [key, dialer] : dialers_) due(dialer->attempt ? dialer->attempt->deadline() : dialer->next());
  for (std::size_t i = lingering_.size(); i-- > 0;) {
    if (lingering_[i]->deadline() <= now_) {
      lingering_[i]->gone = true;
      graveyard_.push_back(std::move(lingering_[i]));
      lingering_.erase(lingering_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      due(lingering_[i]->deadline());
    }
  }
}

void TcpTransport::retire(std::unique_ptr<Connection> connection) {
  if (!connection) return;
  connection->gone = true;
  connection->take_socket();  // closes it
  graveyard_.push_back(std::move(connection));
}

void TcpTransport::linger(Fd socket, bool in_epoll) {
  if (lingering_.size() >= kMaxLingering || !socket.valid()) return;
  const int fd = socket.get();
  auto lingering = std::make_unique<Linger>(std::move(socket), now_ + kLingerTimeout);
  if (!watch(*lingering, fd, EPOLLIN, in_epoll)) return;
  due(lingering->deadline());
  lingering_.push_back(std::move(lingering));
}

void TcpTransport::drain(Linger& linger) {
  if (!linger.drained()) return;
  const auto found =
      std::find_if(lingering_.begin(), lingering_.end(), [&](const auto& l) { return l.get() == &linger; });
  linger.gone = true;
  graveyard_.push_back(std::move(*found));
  lingering_.erase(found);
}

}  // namespace tensorlane::tcp
