#include "daemon/transport/handshake/connector.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

namespace tensorlane::handshake {
namespace {

// How long a listener rests when the process is out of descriptors.
constexpr Duration kPause = milliseconds(100);

std::uint64_t port_of(std::uint16_t data_port, ClassId cls) {
  return data_port + service_order(cls);
}

Status check(const ConnectorConfig& config) {
  const std::string& where = config.name;
  bool control = false;
  for (std::size_t i = 0; i < config.listeners.size(); ++i) {
    const ListenerConfig& c = config.listeners[i];
    if (c.tag.cls != kControlClass && c.tag.cls.value >= kMaxDataClasses) {
      return {Code::kInvalidArgument,
              fmt::format("class {}, at most {} data classes are possible", c.tag.cls.value, kMaxDataClasses), where};
    }
    if (c.tag.dscp > 63 || c.tag.pcp > 7) {
      return {Code::kInvalidArgument,
              fmt::format("class {} has DSCP {} and PCP {}", class_name(c.tag.cls), c.tag.dscp, c.tag.pcp), where,
              "a DSCP is at most 63, a PCP at most 7"};
    }
    if (port_of(config.data_port, c.tag.cls) > 65535) {
      return {Code::kInvalidArgument,
              fmt::format("no port for class {}: data_port {} is too high", class_name(c.tag.cls), config.data_port),
              where, "use a data_port below 65526"};
    }
    control = control || c.tag.cls == kControlClass;
    for (std::size_t j = 0; j < i; ++j) {
      if (config.listeners[j].tag.cls == c.tag.cls) {
        return {Code::kInvalidArgument, fmt::format("class {} is there twice", class_name(c.tag.cls)), where};
      }
    }
  }
  if (!control || config.listeners.size() < 2)
    return {Code::kInvalidArgument, "needs the control class and a data class", where};
  return {};
}

}  // namespace

std::size_t service_order(ClassId cls) {
  return cls == kControlClass ? 0 : std::size_t{1} + cls.value;
}

// ---- opening ----

Status Connector::open(const ConnectorConfig& config) {
  name_ = config.name;
  TL_RETURN_IF_ERROR(check(config));
  unix_folder_ = config.unix_folder;
  probes_ = config.probes;
  TL_ASSIGN_OR_RETURN(source_, parse_endpoint(config.listen_address, 0));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) {
    return {Code::kResourceExhausted, "cannot make an epoll descriptor: " + errno_text(errno), name_,
            "raise the limit of open files"};
  }
  TL_RETURN_IF_ERROR(waker_.open(epoll_.get(), &waker_mark_));
  for (const ListenerConfig& wanted : config.listeners) {
    TL_ASSIGN_OR_RETURN(
        const Endpoint here,
        endpoint(config.listen_address, static_cast<std::uint16_t>(port_of(config.data_port, wanted.tag.cls))));
    auto made = std::make_unique<ClassListener>(ClassListener{wanted.tag, wanted.window, nullptr});
    TL_ASSIGN_OR_RETURN(made->listener, Listener::open(here, wanted.tag, wanted.window));
    if (!watch(*made->listener, made->listener->fd(), EPOLLIN, false)) {
      return {Code::kResourceExhausted, "cannot watch a listener: " + errno_text(errno), here.text()};
    }
    class_listeners_[service_order(wanted.tag.cls)] = std::move(made);
  }
  return {};
}

Result<Endpoint> Connector::endpoint(const std::string& address, std::uint16_t port) const {
  TL_ASSIGN_OR_RETURN(const Endpoint endpoint, parse_endpoint(address, port));
  if (unix_folder_.empty()) return endpoint;
  return unix_endpoint(unix_folder_, endpoint);
}

Connector::ClassListener* Connector::find(ClassId cls) {
  const std::size_t position = service_order(cls);
  return position < class_listeners_.size() ? class_listeners_[position].get() : nullptr;
}

bool Connector::watch(Watched& object, int fd, std::uint32_t events, bool known) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &object;
  return ::epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0;
}

void Connector::unwatch(int fd) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Connector::due(Time time) {
  next_deadline_ = std::min(next_deadline_, time);
}

// ---- events ----

std::span<const epoll_event> Connector::ready() {
  const int count = ::epoll_wait(epoll_.get(), ready_.data(), static_cast<int>(ready_.size()), 0);
  return std::span(ready_).first(static_cast<std::size_t>(std::max(count, 0)));
}

void Connector::serve(const epoll_event& event) {
  auto* object = static_cast<Watched*>(event.data.ptr);
  if (object->gone) return;
  switch (object->kind) {
    case Watched::Kind::kConnection:
      return advance(static_cast<Connection&>(*object));
    case Watched::Kind::kLinger:
      return drain(static_cast<Linger&>(*object));
    case Watched::Kind::kListener:
      return accept_all(static_cast<Listener&>(*object));
    case Watched::Kind::kWaker:
      return waker_.clear_timer();
    case Watched::Kind::kFlow:
    case Watched::Kind::kDevice:
      return;
  }
}

void Connector::settle(const ports::FlowKey& key) {
  std::vector<Connection*> waiting;
  if (const auto found = dialers_.find(key); found != dialers_.end()) waiting.push_back(found->second->attempt.get());
  if (const ClassListener* of_class = find(key.cls); of_class != nullptr) {
    for (const auto& connection : of_class->listener->pending) waiting.push_back(connection.get());
  }
  // One that goes lives until the poll ends.
  for (Connection* connection : waiting) {
    if (connection != nullptr && !connection->gone && connection->key() == key && connection->waits_for_exchange())
      advance(*connection);
  }
}

// ---- jobs ----

void Connector::add_job(const ports::JobCredentials& credentials) {
  jobs_.add(std::make_shared<const Job>(credentials));
}

std::vector<ports::FlowKey> Connector::remove_job(JobId job) {
  std::vector<ports::FlowKey> keys;
  for (const auto& [key, dialer] : dialers_) {
    if (key.job == job) keys.push_back(key);
  }
  for (const ports::FlowKey& key : keys) cancel(key);
  jobs_.remove(job);
  return keys;
}

// ---- accepting ----

void Connector::accept_all(Listener& listener) {
  for (std::size_t i = 0; i < kAcceptsPerPoll; ++i) {
    Result<Fd> socket = listener.accept();
    if (!socket.ok()) return out_of_descriptors(listener);
    if (!socket->valid()) return;
    ++counters_.accepted;
    const Time deadline = now_ + kHandshakeTimeout;
    auto connection =
        std::make_unique<Connection>(std::move(socket).value(), listener.tag().cls, deadline, exchanges_, probes_);
    if (listener.full_for(connection->remote_address())) {
      drop(listener, listener.victim(connection->remote_address()));
    } else if (listener.full()) {
      drop(listener, listener.victim());
    }
    if (!watch(*connection, connection->fd(), EPOLLIN, false)) continue;
    listener.pending.push_back(std::move(connection));
    due(deadline);
  }
}

void Connector::drop(Listener& listener, std::list<std::unique_ptr<Connection>>::iterator victim) {
  log_refusal({Code::kResourceExhausted,
               fmt::format("connection from {} (class {}) was dropped: too many have not proved themselves",
                           (*victim)->remote(), class_name(listener.tag().cls)),
               {},
               "find out what connects from there"},
              (*victim)->remote_address());
  retire(std::move(*victim));
  listener.pending.erase(victim);
  ++counters_.unauthenticated_dropped;
}

// Its host has given up the older one, whether or not we have heard of it. So they are as few as flows.
void Connector::drop_older(const Connection& newer) {
  auto& pending = find(newer.cls())->listener->pending;
  const auto older = std::ranges::find_if(
      pending, [&](const auto& c) { return c.get() != &newer && c->peer_known() && c->key() == newer.key(); });
  if (older == pending.end()) return;
  spdlog::debug("{} {}", connection_name(newer.key().peer, (*older)->remote(), newer.cls()), newer.replaces());
  retire(std::move(*older));
  pending.erase(older);
}

void Connector::out_of_descriptors(Listener& listener) {
  // Strangers give way to whoever comes; when there is none, the descriptors belong to flows and the newcomer waits in
  // the kernel's queue.
  for (const auto& of_class : class_listeners_) {
    if (!of_class) continue;
    if (const auto victim = of_class->listener->victim(); victim != of_class->listener->pending.end())
      return drop(*of_class->listener, victim);
  }
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener.fd(), nullptr);
  listener.paused = true;
  due(now_ + kPause);
}

void Connector::advance(Connection& connection) {
  const bool wanted_output = connection.wants_output();
  const Connection::State before = connection.state();
  connection.begin(now_);
  const Connection::State state = connection.advance(jobs_);
  if (wanted_output && !connection.wants_output() && connection.fd() >= 0)
    watch(connection, connection.fd(), EPOLLIN, true);
  if (state != before) {
    connection.note_state(now_);
    due(connection.deadline());
    if (before == Connection::State::kProof && connection.waits_for_exchange()) drop_older(connection);
  }
  if (state != Connection::State::kDone && state != Connection::State::kFailed) return;
  if (!connection.connecting_end()) {
    std::unique_ptr<Connection> mine = take_pending(connection);
    if (state == Connection::State::kDone) events_.on_connected(connection);
    if (state == Connection::State::kFailed) accepted_failed(connection);
    return retire(std::move(mine));
  }
  const auto found = dialers_.find(connection.key());
  TL_ASSERT(found != dialers_.end() && found->second->attempt.get() == &connection);
  if (state == Connection::State::kFailed)
    return dial_failed(*found->second, connection.failure(), connection.refusal());
  const std::unique_ptr<Dialer> dialer = std::move(found->second);
  dialers_.erase(found);
  events_.on_connected(connection);
  retire(std::move(dialer->attempt));
}

std::unique_ptr<Connection> Connector::take_pending(Connection& connection) {
  auto& pending = find(connection.cls())->listener->pending;
  const auto found =
      std::find_if(pending.begin(), pending.end(), [&](const auto& c) { return c.get() == &connection; });
  TL_ASSERT(found != pending.end());
  std::unique_ptr<Connection> taken = std::move(*found);
  pending.erase(found);
  return taken;
}

void Connector::accepted_failed(Connection& connection) {
  // The socket lives on elsewhere, and would go on to wake this end.
  if (connection.probe_handed_over()) return unwatch(connection.fd());
  // A probe that has its answer is counted where its token is.
  if (connection.probe_answered()) return linger(connection.take_socket(), true);
  const bool comes_again = connection.refusal() == Refusal::kNotYet;
  if (connection.refusal() == Refusal::kNotAnswered) {
    ++counters_.unauthenticated_dropped;
  } else if (!connection.silent() && !comes_again) {
    ++counters_.refused;  // one that never said a word was a port scan or a health check
  }
  // A host whose job begins a moment earlier than here tries again by itself; that is no news but for who looks
  // closely.
  const bool early = connection.refusal() == Refusal::kJob && !connection.refusal_sent();
  if (early) {
    spdlog::debug("{}", connection.failure().to_string());
  } else if (!connection.silent() && !comes_again) {
    log_refusal(connection.failure(), connection.remote_address());
  }
  // The refusal must reach the peer.
  if (connection.refusal_sent()) linger(connection.take_socket(), true);
}

void Connector::log_refusal(const Status& cause, std::string_view whom) {
  if (const auto held_back = log_gate_.pass(now_, whom))
    spdlog::warn("{}{}", cause.to_string(), held_back_text(*held_back));
}

// ---- dialling ----

Status Connector::dial(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port, Time deadline,
                       bool exists) {
  if (exists) {
    return {Code::kAlreadyExists, "the flow is there",
            connection_name(flow.peer, fmt::format("{}:{}", address, port_of(data_port, flow.cls)), flow.cls)};
  }
  return begin_dialling(flow, address, data_port, now_, deadline, false);
}

Status Connector::redial(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port, Time first,
                         Time deadline) {
  return begin_dialling(flow, address, data_port, first, deadline, true);
}

Status Connector::begin_dialling(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                                 Time first, Time deadline, bool again) {
  const JobPtr job = jobs_.find(flow.job);
  const std::string where =
      connection_name(flow.peer, fmt::format("{}:{}", address, port_of(data_port, flow.cls)), flow.cls);
  if (!job) return {Code::kNotFound, fmt::format("job {:#018x} has not been added", flow.job.value), where};
  if (find(flow.cls) == nullptr) return {Code::kNotFound, "this transport has no such class", where};
  if (flow.peer <= job->self()) {
    return {Code::kInvalidArgument, fmt::format("host {} must not connect: the lower index does", job->self().value),
            where};
  }
  if (job->key(flow.peer) == nullptr)
    return {Code::kInvalidArgument, fmt::format("the job has no key of this host and host {}", flow.peer.value), where};
  if (port_of(data_port, flow.cls) > 65535)
    return {Code::kInvalidArgument, "the peer has no port for the class", where, "use a data_port below 65526"};
  TL_ASSIGN_OR_RETURN(const Endpoint peer, endpoint(address, static_cast<std::uint16_t>(port_of(data_port, flow.cls))));
  if (dialers_.contains(flow)) return {Code::kAlreadyExists, "the flow is there", where};
  dialers_[flow] = std::make_unique<Dialer>(flow, job, peer, first, deadline, again);
  due(first);
  waker_.kick();
  return {};
}

bool Connector::cancel(const ports::FlowKey& key) {
  const auto found = dialers_.find(key);
  if (found == dialers_.end()) return false;
  retire(std::move(found->second->attempt));
  dialers_.erase(found);
  return true;
}

void Connector::start(Dialer& dialer) {
  ClassListener& of_class = *find(dialer.key().cls);
  const Status started = dialer.start(now_, source_, of_class.tag, of_class.window, exchanges_);
  if (!started.ok()) return dial_failed(dialer, started, Refusal::kNone);
  Connection& attempt = *dialer.attempt;
  if (!watch(attempt, attempt.fd(), EPOLLOUT, false)) {
    return dial_failed(dialer, {Code::kResourceExhausted, "cannot watch a socket", name_}, Refusal::kNone);
  }
}

void Connector::dial_failed(Dialer& dialer, const Status& cause, Refusal refusal) {
  if (dialer.attempt && dialer.attempt->refusal_sent()) linger(dialer.attempt->take_socket(), true);
  retire(std::move(dialer.attempt));
  const ports::FlowKey key = dialer.key();
  Status given_up = dialer.failed(now_, cause, refusal);
  if (given_up.ok()) return due(dialer.next());
  dialers_.erase(key);
  events_.on_given_up(key, std::move(given_up));
}

// ---- time and ends ----

void Connector::run_listener_deadlines(Listener& listener) {
  if (listener.paused) {
    listener.paused = !watch(listener, listener.fd(), EPOLLIN, false);
    if (listener.paused) due(now_ + kPause);
  }
  for (auto next = listener.pending.begin(); next != listener.pending.end();) {
    Connection& connection = **next++;
    if (!connection.late(now_)) {
      due(connection.deadline());
      continue;
    }
    std::unique_ptr<Connection> late = take_pending(connection);
    late->time_out();
    if (late->refusal() == Refusal::kNotYet) log_refusal(late->failure(), late->remote_address());
    accepted_failed(*late);
    retire(std::move(late));
  }
}

void Connector::run_deadlines() {
  if (now_ < next_deadline_) return;
  next_deadline_ = never();
  for (const auto& of_class : class_listeners_) {
    if (of_class) run_listener_deadlines(*of_class->listener);
  }
  for (auto next = dialers_.begin(); next != dialers_.end();) {
    Dialer& dialer = *(next++)->second;  // either branch may erase it
    if (dialer.attempt && dialer.attempt->deadline() <= now_) {
      dialer.attempt->time_out();
      dial_failed(dialer, dialer.attempt->failure(), Refusal::kNotAnswered);
    } else if (!dialer.attempt && dialer.next() <= now_) {
      start(dialer);
    }
  }
  for (const auto& [key, dialer] : dialers_) due(dialer->attempt ? dialer->attempt->deadline() : dialer->next());
  for (std::size_t i = lingering_.size(); i-- > 0;) {
    if (lingering_[i]->deadline() <= now_) {
      lingering_[i]->gone = true;
      deferred_.push_back(std::move(lingering_[i]));
      lingering_.erase(lingering_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      due(lingering_[i]->deadline());
    }
  }
}

void Connector::retire(std::unique_ptr<Connection> connection) {
  if (!connection) return;
  connection->gone = true;
  connection->take_socket();  // closes it
  deferred_.push_back(std::move(connection));
}

void Connector::linger(Fd socket, bool in_epoll) {
  if (lingering_.size() >= kMaxLingering || !socket.valid()) return;
  const int fd = socket.get();
  auto lingering = std::make_unique<Linger>(std::move(socket), now_ + kLingerTimeout);
  if (!watch(*lingering, fd, EPOLLIN, in_epoll)) return;
  due(lingering->deadline());
  lingering_.push_back(std::move(lingering));
}

void Connector::drain(Linger& linger) {
  if (!linger.drained()) return;
  const auto found =
      std::find_if(lingering_.begin(), lingering_.end(), [&](const auto& l) { return l.get() == &linger; });
  linger.gone = true;
  deferred_.push_back(std::move(*found));
  lingering_.erase(found);
}

}  // namespace tensorlane::handshake
